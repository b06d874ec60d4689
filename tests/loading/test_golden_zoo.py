"""Whole calibrated models of one operator or a few equal the vendor's, points and all."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.loading import load
from hbdebug.model import Assignment
from tests.loading.golden import Case, by_name, cases, largest_error
from tests.loading.one_node_walk import build, run_all

ZOO = cases("zoo/")

# Of the largest value of an output, or of 1. Softmax is summed in another order than the vendor's
# (measured: 4.8e-7 of 2.8 where a MatMul follows, 3e-8 otherwise); all else is exact on the CPU the
# numbers come from. Another one may sum convolutions differently, as ONNX Runtime's own
# optimizations do (measured: up to 4e-7 of the largest value).
TOLERANCE = 1e-6


def assert_close(actual, expected):
    finite = expected[np.isfinite(expected)]
    size = max(1.0, float(np.abs(finite).max(initial=0)))
    assert largest_error(actual, expected) <= TOLERANCE * size


def without_points(case: Case) -> bool:
    return not any(node.op_type == "HzCalibration" for node in case.model.graph.node)


def test_all_models_are_there():
    assert len(ZOO) == 210
    assert sum(without_points(case) for case in ZOO) == 18


@pytest.mark.parametrize("case", ZOO, ids=by_name)
def test_calibrated_model(case: Case):
    # Some of the vendor's calibrated models quantize nothing; load() says so, a test of its own.
    model = build(case.model) if without_points(case) else load(case.model)
    values = run_all(model, case.inputs, Assignment.as_calibrated(model))
    for name, expected in case.outputs.items():
        assert_close(values[name], expected)
    if case.outputs_all_off:
        values = run_all(model, case.inputs, Assignment())
        for name, expected in case.outputs_all_off.items():
            assert_close(values[name], expected)


def test_models_with_every_point_off_are_among_them():
    assert sum(bool(case.outputs_all_off) for case in ZOO) == 11
