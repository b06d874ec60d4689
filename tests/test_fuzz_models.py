"""Whatever a file holds, loading it raises nothing but our own errors, in no time."""

from __future__ import annotations

import pytest

from tests.fuzz_models import fuzz, mutant


def assert_clean(report, count, record_property):
    # What kills ONNX Runtime itself is no fault of the loader; the record keeps it.
    record_property("died in ONNX Runtime", report.deaths)
    assert not report.faults, "\n".join(f"{n}: {what}" for n, what in report.faults.items())
    assert report.count == count
    # A mutation that always, or never, leaves a model would try little.
    assert report.outcomes["loaded and run"] > count / 10
    assert report.outcomes["analysed"] > count / 50
    assert report.outcomes["refused: ModelError"] > count / 10


def test_mutated_models_are_loaded_or_refused(record_property):
    assert_clean(fuzz(500), 500, record_property)


@pytest.mark.slow
def test_many_mutated_models_are_loaded_or_refused(record_property):
    assert_clean(fuzz(20_000, first=1000, jobs=2), 20_000, record_property)


def test_an_input_is_the_same_every_time():
    assert [mutant(number) for number in range(50)] == [mutant(number) for number in range(50)]
