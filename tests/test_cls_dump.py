"""Node by node, the real classifier's 285 tensors are the vendor's, bit for bit.

The vendor's tensors are kept as digests. ONNX Runtime may sum in another order on another CPU,
and no digest survives that; so the claim is made step by step. A step whose inputs are the
vendor's must give the vendor's bits, unless its operator sums many terms; then, and behind it,
only rough statistics are compared.
"""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from hbdebug.loading import load
from hbdebug.model import Assignment, Point
from tests.loading.golden import FIXTURES
from tests.loading.one_node_walk import run_all

RECORD = json.loads((FIXTURES / "cls_dump_hashes.json").read_text())

# Sums whose order may depend on the CPU, and a multiply-add that it may fuse.
SUMMING = {"Conv", "GlobalAveragePool", "HardSigmoid", "Softmax"}


@pytest.fixture(scope="module")
def model():
    return load(FIXTURES / RECORD["model"])


@pytest.fixture(scope="module")
def sample():
    return {"x": np.load(FIXTURES / RECORD["sample"])}


def test_every_tensor_is_the_vendors(model, sample):
    values = run_all(model, sample, Assignment.as_calibrated(model))
    recorded = {item["tensor"]: item for item in RECORD["tensors"]}
    assert recorded.keys() == {name for step in model.steps for name in step.outputs}
    differing: set[str] = set()
    for step in model.steps:
        (name,) = step.outputs
        expected, actual = recorded[name], values[name]
        assert list(actual.shape) == expected["shape"]
        assert actual.dtype.name == expected["dtype"]
        if hashlib.sha256(np.ascontiguousarray(actual)).hexdigest() == expected["sha256"]:
            continue
        excused = not isinstance(step, Point) and step.op_type in SUMMING
        assert excused or not differing.isdisjoint(step.inputs), f"{step.name} differs first"
        differing.add(name)
        # A flipped tie moves single elements by a step; it moves no mean by a hundredth.
        tolerance = 0.01 * expected["absmax"]
        assert abs(actual.mean(dtype=np.float64) - expected["mean"]) <= tolerance
        assert abs(np.abs(actual).max() - expected["absmax"]) <= 2 * tolerance


def test_output_with_every_point_off_is_the_vendors(model, sample):
    values = run_all(model, sample, Assignment())
    for name, expected in RECORD["output_all_off"].items():
        # Nothing is quantized, so a CPU that sums in another order moves it by float32 noise only.
        assert np.allclose(values[name], expected, rtol=0, atol=2e-6)
