"""Which points a node stands for, what is left out, and how selectors choose."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.analysis.coverage import (
    FUSED,
    INTEGER_TYPED,
    RUNS_IN_FLOAT,
    cover,
    coverage_line,
    points_of,
    select,
)
from hbdebug.errors import UsageError
from hbdebug.loading import load
from hbdebug.results import NotAnalysed
from tests import models


def names(points):
    return [point.name for point in points]


@pytest.fixture(scope="module")
def residual():
    return load(models.residual())


def test_a_node_stands_for_the_points_on_its_inputs(residual):
    add = residual.node_by_name["one_add"]

    assert names(points_of(residual, add)) == [
        "one_b_out_HzCalibration",
        "stem_relu_out_HzCalibration",
    ]


def test_a_conv_stands_for_its_weight_too(residual):
    conv = residual.node_by_name["one_b"]

    assert set(names(points_of(residual, conv))) == {
        "one_relu_out_HzCalibration",
        "one_b_w_HzCalibration",
    }


def test_a_node_behind_one_that_hands_on_stands_for_the_points_in_front_of_it():
    b = models.CalibratedModel()
    x = b.point(b.input("x", (1, 2, 4, 4)))
    pooled = b.node("MaxPool", [x], "pool", kernel_shape=[2, 2])
    flat = b.node("Reshape", [pooled, b.constant("to", np.array([1, 8]))], "flat")
    b.output(b.node("Softmax", [flat], "scores"))
    b.output(b.node("Sigmoid", [b.node("Tanh", [flat], "tanh")], "behind_tanh"))
    model = load(b.proto())

    found = {node.name: names(points_of(model, node)) for node in model.nodes}

    assert found["pool"] == found["flat"] == found["scores"] == ["x_HzCalibration"]
    assert found["tanh"] == ["x_HzCalibration"]
    assert found["behind_tanh"] == []


def test_two_points_in_series_belong_to_the_node_behind_them():
    b = models.CalibratedModel()
    x = b.point(b.point(b.input("x", (1, 4)), dtype="int16"), dtype="int8")
    b.output(b.node("Sigmoid", [x], "sigmoid"))
    model = load(b.proto())

    (node,) = model.nodes

    assert names(points_of(model, node)) == names(model.points)
    assert len(model.points) == 2


def test_every_node_is_analysed_or_listed_with_a_reason(residual):
    coverage = cover(residual, {})

    listed = {item.name: item.reason for item in coverage.not_analysed}
    assert coverage.node_points.keys() | listed.keys() == set(residual.node_by_name)
    assert not coverage.node_points.keys() & listed.keys()
    assert listed == {
        "stem_relu": FUSED,
        "one_relu": FUSED,
        "two_relu": FUSED,
        "reshape": RUNS_IN_FLOAT,
        "softmax": RUNS_IN_FLOAT,
    }


def test_integer_nodes_are_listed_as_such():
    b = models.CalibratedModel()
    x = b.input("x", (1, 5))
    b.node("ArgMax", [b.point(x)], "argmax", axis=1)
    b.output(b.node("Neg", ["argmax_out"], "negate"), 7)
    model = load(b.proto())

    coverage = cover(model, {"argmax_out": "int64", "negate_out": "int64"})

    (left_out,) = coverage.not_analysed
    assert (left_out.name, left_out.reason) == ("negate", INTEGER_TYPED)


def test_points_that_are_switched_off_explain_their_node():
    b = models.CalibratedModel()
    x = b.input("x", (1, 4))
    b.output(b.node("Sigmoid", [b.point(x, switch="OFF")], "off"))
    b.output(b.node("Tanh", [b.point(x)], "on"))
    model = load(b.proto())

    coverage = cover(model, {})

    (left_out,) = coverage.not_analysed
    assert left_out.name == "off"
    assert "OFF" in left_out.reason
    assert set(coverage.node_points) == {"on"}


def test_the_coverage_line_counts_and_names_operators():
    left_out = [
        *[NotAnalysed(name=f"s{i}", op_type="Softmax", reason=RUNS_IN_FLOAT) for i in range(2)],
        NotAnalysed(name="r", op_type="Relu", reason=FUSED),
    ]

    assert coverage_line("node", 5, left_out) == (
        "5 nodes analysed; 3 not: 2 run in float (Softmax), 1 fused (Relu)"
    )
    assert coverage_line("node", 1, []) == "1 node analysed; none left out"


NAMES = {"encoder.conv_38": ("encoder.conv_38",), "head.fc": ("head.fc",), "a[0]": ("a[0]",)}
OPS = {"encoder.conv_38": ("Conv",), "head.fc": ("Gemm",), "a[0]": ("Conv",)}


@pytest.mark.parametrize(
    ("patterns", "ops", "chosen"),
    [
        ([], [], ["encoder.conv_38", "head.fc", "a[0]"]),
        (["encoder*"], [], ["encoder.conv_38"]),
        (["a[0]"], [], ["a[0]"]),
        ([], ["Conv"], ["encoder.conv_38", "a[0]"]),
        (["head.fc"], ["Conv"], ["encoder.conv_38", "head.fc", "a[0]"]),
    ],
)
def test_selectors_are_exact_names_wildcards_and_operator_types(patterns, ops, chosen):
    assert list(select(NAMES, OPS, patterns=patterns, ops=ops)) == chosen


def test_a_selector_that_matches_nothing_is_an_error_with_suggestions():
    """Cases 38 and 40: a list of names that matched nothing was ignored silently."""
    with pytest.raises(UsageError, match=r"0 of 3 matched 'encoder.conv_39'") as caught:
        select(NAMES, OPS, patterns=["encoder.conv_39"], ops=[])
    assert "encoder.conv_38" in caught.value.hint

    with pytest.raises(UsageError, match="no analysed node is a 'MatMul'") as caught:
        select(NAMES, OPS, patterns=[], ops=["MatMul"])
    assert "Gemm" in caught.value.hint


def test_a_selected_node_that_is_not_analysed_says_why():
    left_out = [NotAnalysed(name="act", op_type="Relu", reason=FUSED)]

    with pytest.raises(UsageError, match=r"act \(Relu\) is not analysed: fused"):
        select(NAMES, OPS, patterns=["act"], ops=[], left_out=left_out)
