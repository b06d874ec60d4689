"""Whether a parameter is an attribute or an input, the integers are the same."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.model import Assignment
from tests import models

PADS = [0, 0, 1, 2, 0, 0, 2, 1]


def clip(b, x):
    if b.opset < 11:
        return b.node("Clip", [x], "it", min=-1.5, max=0.75)
    bounds = [b.constant(name, np.float32(value)) for name, value in (("l", -1.5), ("h", 0.75))]
    return b.node("Clip", [x, *bounds], "it")


def pad(b, x):
    if b.opset < 11:
        return b.node("Pad", [x], "it", pads=PADS, value=0.5)
    constants = [b.constant("pads", np.array(PADS)), b.constant("value", np.float32(0.5))]
    return b.node("Pad", [x, *constants], "it")


def reduce_sum(b, x):
    if b.opset < 13:
        return b.node("ReduceSum", [x], "it", axes=[-2])
    return b.node("ReduceSum", [x, b.constant("axes", np.array([-2]))], "it")


def resize(b, x):
    """Without a mode of coordinates, opset 10 has what opset 11 calls asymmetric."""
    scales = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    if b.opset < 11:
        return b.node("Resize", [x, scales], "it", mode="linear")
    mode = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    return b.node("Resize", [x, b.constant("roi", np.zeros(0, np.float32)), scales], "it", **mode)


def integers_of(build, opset):
    b = models.CalibratedModel(opset=opset)
    b.output(b.point(build(b, b.point(b.input("x", (1, 4, 6, 5)))), 3.0))
    model = load(b.proto())
    inputs = models.inputs_for(b.proto(), count=1)[0]
    engine = Engine(model, fidelity="integer", jobs=1)
    engine.profile(inputs)
    assert not engine.fallbacks(Assignment.as_calibrated(model))
    (integers,), (calibrated,) = (
        engine.at(fidelity).forward(inputs, Assignment.as_calibrated(model)).values()
        for fidelity in ("integer", "calibrated")
    )
    # Steps of both points; a parameter that is not seen is off by far more.
    assert np.abs(integers - calibrated).max() <= (2.0 + 3.0) / 127
    return integers


@pytest.mark.parametrize("build", [clip, pad, reduce_sum, resize])
@pytest.mark.parametrize("opset", [10, 13])
def test_the_integers_are_those_of_opset_11(build, opset):
    assert np.array_equal(integers_of(build, opset), integers_of(build, 11))
