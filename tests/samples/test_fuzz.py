"""Data files with faults of every kind end in samples or in a clear error."""

from __future__ import annotations

import pytest

from tests.fuzz_data import run


def test_some_hundred_mutated_files():
    outcomes = run(600, seed=1)

    assert outcomes["DataError"] > 300
    assert outcomes["samples"] > 20


@pytest.mark.slow
def test_ten_thousand_mutated_files():
    assert sum(run(10_000, seed=2).values()) == 10_000
