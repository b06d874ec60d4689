"""Every kernel gives the integers that the vendor's executor gave, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.kernels import KERNELS
from tests.kernels import slow, slow_images
from tests.kernels.golden import cases

CASES = cases()
TWINS = {**vars(slow), **vars(slow_images)}


def run(case, **more):
    return KERNELS["horizon", case.operator](*case.inputs, **case.attributes, **more)


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_equals_the_vendor(case):
    before = [None if x is None else x.copy() for x in case.inputs]

    assert_same(run(case).outputs, case.outputs)

    for array, copy in zip(case.inputs, before, strict=True):
        assert copy is None or np.array_equal(array, copy), "an input was modified"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_asking_for_the_report_changes_no_output(case):
    outcome = run(case, report=True)

    assert_same(outcome.outputs, case.outputs)
    if outcome.accumulator is not None:
        assert outcome.accumulator.elements == case.outputs[0].size
        assert outcome.accumulator.smallest <= outcome.accumulator.largest


SMALL = [
    case
    for case in CASES
    # Preprocess is a convolution; the twin of a large case would take seconds.
    if case.operator != "HzSQuantizedPreprocess" and case.outputs[0].size <= 5000
]


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_the_slow_twin_equals_the_vendor(case):
    """So that the property tests compare with something that is right."""
    attributes = dict(case.attributes)
    attributes.pop("data_format", None)
    if case.operator in {"HzSQuantizedConv", "HzSQuantizedConvTranspose"}:
        attributes = {**SPATIAL_DEFAULTS, **attributes}
    if case.operator == "HzSQuantizedConvTranspose":
        attributes = {"output_padding": [0, 0], "output_type": "int8", **attributes}

    assert_same(TWINS[case.operator](*case.inputs, **attributes), case.outputs)


SPATIAL_DEFAULTS = {
    "strides": [1, 1],
    "pads": [0, 0, 0, 0],
    "dilations": [1, 1],
    "group": 1,
    "activation": "linear",
}


def test_every_kernel_has_a_golden_case_and_a_twin():
    operators = {operator for _, operator in KERNELS}

    assert operators == {case.operator for case in CASES}
    assert operators - {"HzSQuantizedPreprocess"} <= TWINS.keys()
    assert {case.operator for case in SMALL} == operators - {"HzSQuantizedPreprocess"}
