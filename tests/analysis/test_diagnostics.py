"""Known differences between chip and calibrated model are found, each with a remedy that works."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from hbdebug.analysis.diagnostics import diagnose
from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.model import Assignment
from tests import models
from tests.test_engine import float_twin

CLASSIFIER = Path(__file__).parents[2] / "fixtures/textline_cls/cls_calibrated_model.onnx"


def one_node(op_type, inputs=(), *, dtype="int8", quantized=True, **attributes):
    b = models.CalibratedModel()
    x = b.input("x", (1, 4, 8, 8))
    others = [b.constant(f"c{index}", value) for index, value in enumerate(inputs)]
    source = b.point(x, dtype=dtype) if quantized else x
    b.output(b.point(b.node(op_type, [source, *others], "it", **attributes)))
    return load(b.proto())


def names(model):
    return [item.name for item in diagnose(model)]


def test_the_classifiers_nine_hard_sigmoids_are_named():
    """PaddleOCR exports alpha 0.2; the chip computes 1/6."""
    found = diagnose(load(CLASSIFIER))

    assert [item.node for item in found] == [f"HardSigmoid@{index}" for index in range(9)]
    assert {item.name for item in found} == {"hardsigmoid_alpha_ignored"}
    assert all("alpha 0.2, beta 0.5" in item.evidence for item in found)
    assert all("by 1.2 (6 x alpha)" in item.remedy for item in found)


@pytest.mark.parametrize(
    ("alpha", "beta", "found"),
    [(0.2, 0.5, True), (1 / 6, 0.5, False), (0.1666667014, 0.5, False), (1 / 6, 0.4, True)],
)
def test_hard_sigmoid_is_named_when_its_table_shows_the_difference(alpha, beta, found):
    assert bool(names(one_node("HardSigmoid", alpha=alpha, beta=beta))) == found


def test_hard_sigmoid_in_float_keeps_its_alpha():
    assert names(one_node("HardSigmoid", quantized=False, alpha=0.2)) == []


def test_the_remedy_for_hard_sigmoid_keeps_the_function():
    """Scaling the Conv in front by 6 alpha and exporting alpha 1/6 gives the same float model."""

    def network(scale, alpha):
        b = models.CalibratedModel()
        x = b.input("x", (1, 3, 5, 5))
        random = np.random.default_rng(0)
        weight = random.normal(0, 1, (4, 3, 1, 1)).astype(np.float32) * np.float32(scale)
        bias = random.normal(0, 1, 4).astype(np.float32) * np.float32(scale)
        y = b.node("Conv", [x, b.constant("w", weight), b.constant("b", bias)], "conv")
        b.output(b.node("HardSigmoid", [y], "gate", alpha=alpha, beta=0.5))
        return float_twin(b.proto()).SerializeToString()

    x = np.random.default_rng(1).normal(0, 1, (1, 3, 5, 5)).astype(np.float32)
    before, after = (
        onnxruntime.InferenceSession(network(scale, alpha)).run(None, {"x": x})[0]
        for scale, alpha in ((1, 0.2), (6 * 0.2, 1 / 6))
    )

    # Values in [0, 1] after a handful of float32 roundings.
    np.testing.assert_allclose(before, after, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("slopes", "found"),
    [([0.1, 0.3], False), ([0.1, -0.3], True), ([-0.1, -0.2], True), ([0.3, -0.2], False)],
)
def test_prelu_slopes_that_wrap_are_named(slopes, found):
    slope = np.resize(np.array(slopes, np.float32), (4, 1, 1))

    assert names(one_node("PRelu", [slope])) == (["prelu_slope_wraps"] if found else [])


@pytest.mark.parametrize(
    ("pads", "counted", "found"),
    [([1, 1, 1, 1], 0, True), ([1, 1, 1, 1], 1, False), ([0, 0, 0, 0], 0, False)],
)
def test_an_average_pool_that_leaves_padding_out_is_named(pads, counted, found):
    model = one_node("AveragePool", kernel_shape=[3, 3], pads=pads, count_include_pad=counted)

    assert names(model) == (["averagepool_padding_divisor"] if found else [])


@pytest.mark.parametrize(
    ("bounds", "thresholds", "found"),
    [
        ((-1, 1), (1.0, 1.0), []),
        ((-1, 1), (4.0, 4.0), ["clip_left_out"]),
        ((-1, 1), (4.0, 1.0), ["clip_left_out"]),
        ((-1, 0.999), (4.0, 1.0), []),
        ((0, 6), (8.0, 6.0), []),
    ],
)
def test_a_clip_that_the_converter_leaves_out_is_named(bounds, thresholds, found):
    b = models.CalibratedModel(opset=10)
    source = b.point(b.input("x", (1, 4, 8, 8)), thresholds[0])
    clip = b.node("Clip", [source], "it", min=float(bounds[0]), max=float(bounds[1]))
    b.output(b.point(clip, thresholds[1]))
    model = load(b.proto())
    x = np.random.default_rng(0).uniform(-4, 4, (1, 4, 8, 8)).astype(np.float32)
    engine = Engine(model, fidelity="integer", jobs=1)
    engine.profile({"x": x})

    (integers,), (calibrated,) = (
        engine.at(fidelity).forward({"x": x}, Assignment.as_calibrated(model)).values()
        for fidelity in ("integer", "calibrated")
    )

    assert names(model) == found
    # A step of each of the two points is what they may differ by else.
    allowed = sum(thresholds) / 127
    assert (np.abs(integers - calibrated).max() > allowed) == bool(found)


@pytest.mark.parametrize(("dtype", "found"), [("int8", []), ("int16", ["int16_pad"])])
def test_an_int16_pad_is_named(dtype, found):
    pads = np.array([0, 0, 1, 1, 0, 0, 1, 1])

    assert names(one_node("Pad", [pads], dtype=dtype)) == found


@pytest.mark.parametrize(
    ("dtype", "ceil_mode", "found"),
    [("int8", 1, []), ("int16", 0, []), ("int16", 1, ["int16_maxpool_ceil_mode"])],
)
def test_an_int16_max_pool_with_ceil_mode_is_named(dtype, ceil_mode, found):
    model = one_node("MaxPool", dtype=dtype, kernel_shape=[3, 3], ceil_mode=ceil_mode)

    assert names(model) == found
