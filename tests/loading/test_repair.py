"""A repaired float model computes the same function, and one that the chip computes too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from hbdebug.loading.repair import repair_hard_sigmoids
from tests import models

FLOAT = Path(__file__).parents[2] / "fixtures/textline_cls/cls_original_float_model.onnx"


def run(content, inputs):
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def gate(builder, x, name="gate", **attributes):
    return builder.node("HardSigmoid", [x], name, **attributes)


def alphas(content):
    return [
        {item.name: round(item.f, 6) for item in node.attribute}
        for node in onnx.load_from_string(content).graph.node
        if node.op_type == "HardSigmoid"
    ]


def test_the_classifiers_nine_are_repaired_without_a_new_node():
    before = FLOAT.read_bytes()

    repaired = repair_hard_sigmoids(FLOAT)

    assert FLOAT.read_bytes() == before
    assert [item.node for item in repaired.repairs] == [f"HardSigmoid@{i}" for i in range(9)]
    # The weight of the Conv and the bias that is added behind it.
    assert all(len(item.scaled) == 2 for item in repaired.repairs)
    assert alphas(repaired.content) == [{"alpha": 0.166667, "beta": 0.5}] * 9
    count = len(onnx.load(FLOAT).graph.node)
    assert len(onnx.load_from_string(repaired.content).graph.node) == count
    x = np.load(FLOAT.parent / "calib/x/0.npy")
    # Class scores after 50 layers; every scaled weight was rounded to float32 once more.
    np.testing.assert_allclose(
        run(repaired.content, {"x": x}), run(before, {"x": x}), rtol=0, atol=1e-5
    )


def plain(b, x, cin=3, cout=4):
    weight = b.random.normal(0, 1, (cout, cin, 1, 1)).astype(np.float32)
    bias = b.random.normal(0, 1, cout).astype(np.float32)
    return b.node("Conv", [x, b.constant("w", weight), b.constant("b", bias)], "conv")


def conv_in_front(b):
    return gate(b, plain(b, b.input("x", (1, 3, 5, 5))), alpha=0.2)


def conv_with_another_reader(b):
    y = plain(b, b.input("x", (1, 3, 5, 5)))
    return b.node("Mul", [y, gate(b, y, alpha=0.2)])


def input_in_front(b):
    return gate(b, b.input("x", (1, 3, 5, 5)), alpha=0.25)


def relu_in_front(b):
    return gate(b, b.node("Relu", [plain(b, b.input("x", (1, 3, 5, 5)))]), alpha=0.2)


def default_alpha(b):
    return gate(b, plain(b, b.input("x", (1, 3, 5, 5))))


@pytest.mark.parametrize(
    ("build", "scaled"),
    [
        (conv_in_front, ("w", "b")),
        (default_alpha, ("w", "b")),
        (conv_with_another_reader, ()),
        (input_in_front, ()),
        (relu_in_front, ()),
    ],
)
def test_the_function_stays(build, scaled):
    b = models.CalibratedModel()
    b.output(build(b))
    proto = b.proto()
    content = proto.SerializeToString()
    inputs = models.inputs_for(proto)[0]

    repaired = repair_hard_sigmoids(proto)

    assert proto.SerializeToString() == content
    (repair,) = repaired.repairs
    assert repair.scaled == scaled
    assert alphas(repaired.content) == [{"alpha": 0.166667, "beta": 0.5}]
    # Values of the order of 1 after a few float32 roundings.
    np.testing.assert_allclose(
        run(repaired.content, inputs), run(content, inputs), rtol=0, atol=2e-6
    )


@pytest.mark.parametrize(("alpha", "beta", "left"), [(1 / 6, 0.5, ()), (0.2, 0.4, ("gate",))])
def test_what_is_right_or_beyond_repair_stays_as_it_is(alpha, beta, left):
    b = models.CalibratedModel()
    b.output(gate(b, b.input("x", (1, 3)), alpha=alpha, beta=beta))

    repaired = repair_hard_sigmoids(b.proto())

    assert repaired.repairs == ()
    assert repaired.left == left
    assert onnx.load_from_string(repaired.content) == b.proto()
