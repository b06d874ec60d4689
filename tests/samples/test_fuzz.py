"""Damaged files of every kind are samples or clear errors, in little memory."""

from __future__ import annotations

import pytest

from tests.fuzz_data import fuzz


def test_damaged_files_are_samples_or_clear_errors():
    pytest.importorskip("PIL")

    found = fuzz(300, seed=1)

    assert found.keys() <= {"sample", "DataError", "UsageError"}
    # Some files escape damage, and most do not.
    assert found["sample"] > 20
    assert found["DataError"] > 100


@pytest.mark.slow
def test_many_damaged_files_are_samples_or_clear_errors():
    pytest.importorskip("PIL")

    found = fuzz(12_000, seed=2)

    assert found.keys() <= {"sample", "DataError", "UsageError"}
