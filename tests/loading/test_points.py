"""HzCalibration nodes become points: role, parameters, checks, and odd places in the graph."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import load
from hbdebug.model import Assignment
from tests.loading.one_node_walk import run_all
from tests.models import CalibratedModel, inputs_for, many_outputs, residual


def without(proto, node_name: str, attribute: str):
    (node,) = (n for n in proto.graph.node if n.name == node_name)
    kept = [a for a in node.attribute if a.name != attribute]
    assert len(kept) == len(node.attribute) - 1
    del node.attribute[:]
    node.attribute.extend(kept)
    return proto


def test_role_comes_from_the_bits():
    model = load(residual())
    roles = {point.name: point.role for point in model.points}
    assert roles["stem_w_HzCalibration"] == "weight"
    assert roles["x_HzCalibration"] == "activation"


@pytest.mark.parametrize(
    ("flags", "expected"), [(None, "by edges"), (0x30000, "by edges"), (0x10000, "activation")]
)
def test_role_without_clear_bits_comes_from_the_edges(flags, expected):
    proto = residual()
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.name == "quant_attrs":
                # Keep the per-channel bit, which the weights need.
                attribute.i = (attribute.i & 0x2000) | (flags or 0)
    for point in load(proto).points:
        weight = point.name.endswith("_w_HzCalibration") and expected == "by edges"
        assert point.role == ("weight" if weight else "activation")


def test_role_by_edges_looks_through_points_in_series_and_at_the_input_index():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 3)))
    first = b.point(b.constant("w", np.ones((3, 2), np.float32)), quant_attrs=0)
    second = b.point(first, dtype="int16", quant_attrs=0)
    y = b.node("MatMul", [x, second], "matmul")
    offset = b.point(b.constant("o", np.ones((1, 2), np.float32)), quant_attrs=0)
    b.output(b.node("Add", [y, offset], "add"))
    roles = {point.name: point.role for point in load(b.proto()).points}
    assert roles == {
        "x_HzCalibration": "activation",
        "w_HzCalibration": "weight",
        "w_calibrated_HzCalibration": "weight",
        "o_HzCalibration": "activation",
    }


def test_scales_that_do_not_fit_are_refused_on_loading():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 3, 4, 4)), thresholds=[1.0, 2.0], scales=[0.1, 0.2])
    b.output(b.node("Relu", [x]))
    with pytest.raises(ModelError, match="2 scales do not fit a tensor of shape") as info:
        load(b.proto())
    assert info.value.where == "(in memory): HzCalibration node x_HzCalibration"
    # The wrong file, not an unknown one: nothing is to be skipped.
    assert not isinstance(info.value, UnsupportedError)


def test_weight_scales_are_checked_against_the_initializer():
    b = CalibratedModel()
    y = b.conv(b.input("x", (1, 3, 6, 6)), (3, 4), "conv")
    b.output(y)
    proto = b.proto()
    (node,) = (n for n in proto.graph.node if n.name == "conv_w_HzCalibration")
    for attribute in node.attribute:
        if attribute.name in ("scales", "thresholds"):
            del attribute.floats[3:]
    with pytest.raises(ModelError, match="3 scales"):
        load(proto)


def test_scales_fit_where_the_deciding_sizes_are_known_and_others_are_open():
    b = CalibratedModel()
    b.inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, "h", 4]))
    b.output(b.node("Relu", [b.point("x", thresholds=[1.0, 2.0], scales=[0.1, 0.2])]))
    (point,) = load(b.proto()).points
    assert point.params.scale.shape == (2,)
    assert load(b.proto()).inputs[0].shape == (None, 2, None, 4)


def test_negative_axis_needs_the_rank():
    b = CalibratedModel()
    x = b.node("Relu", [b.input("x", (1, 4, 5))], "relu")
    flags = {"quant_attrs": 0x12111, "axis": -2}
    b.output(b.node("Relu", [b.point(x, thresholds=[1.0] * 4, scales=[0.1] * 4, **flags)]))
    proto = b.proto()
    with pytest.raises(ModelError, match="unknown rank"):
        load(proto)
    proto.graph.value_info.append(helper.make_tensor_value_info(x, TensorProto.FLOAT, [1, 4, 5]))
    assert load(proto).points[0].params.axis == 1


def test_two_points_in_series_act_one_after_the_other():
    b = CalibratedModel()
    fine = b.point(b.input("x", (1, 4)), 1.0, "int16")
    coarse = b.point(fine, 1.0, "int8")
    b.output(b.node("Identity", [coarse], "copy"))
    model = load(b.proto())
    assert [step.name for step in model.steps] == [
        "x_HzCalibration",
        "x_calibrated_HzCalibration",
        "copy",
    ]
    (sample,) = inputs_for(b.proto())
    both = run_all(model, sample, Assignment.as_calibrated(model))
    only_fine = run_all(model, sample, Assignment.of([model.points[0]]))
    assert np.array_equal(only_fine[coarse], only_fine[fine])
    assert not np.array_equal(both[coarse], both[fine])


def test_one_point_feeds_several_consumers_and_a_graph_output():
    model = load(many_outputs())
    shared = model.point_by_name["early_out_HzCalibration"]
    assert [node.name for node, _ in model.consuming_nodes(shared)] == ["mixed"]
    calibrated = model.outputs[1].name
    assert model.producer_of[calibrated].name == "mixed_out_HzCalibration"


def test_file_without_domains_on_the_vendor_operators_is_read_all_the_same():
    proto = residual()
    reference = [step.name for step in load(proto).steps]
    for node in proto.graph.node:
        node.ClearField("domain")
    del proto.opset_import[1:]
    assert [step.name for step in load(proto).steps] == reference


def test_disabled_points_stay_in_the_model_with_their_reason():
    proto = residual()
    (node,) = (n for n in proto.graph.node if n.name == "x_HzCalibration")
    for attribute in node.attribute:
        if attribute.name == "constant":
            attribute.i = 0
    model = load(proto)
    point = model.point_by_name["x_HzCalibration"]
    assert (point.enabled, point.reason) == (False, "its calibration is open (constant=0)")
    assert "x_HzCalibration" not in Assignment.as_calibrated(model)


def test_missing_type_is_int8():
    model = load(without(residual(), "x_HzCalibration", "qtype"))
    assert model.point_by_name["x_HzCalibration"].params.dtype == "int8"


@pytest.mark.parametrize("used", [True, False])
def test_statistics_output_is_refused_only_when_somebody_reads_it(used):
    proto = residual()
    (node,) = (n for n in proto.graph.node if n.name == "x_HzCalibration")
    node.output.append("histogram")
    if used:
        proto.graph.output.append(helper.make_tensor_value_info("histogram", 1, None))
        with pytest.raises(UnsupportedError, match="calibration statistics"):
            load(proto)
    else:
        assert load(proto).point_by_name["x_HzCalibration"].enabled


def test_point_with_no_input_is_refused():
    proto = residual()
    del proto.graph.node[0].input[:]
    with pytest.raises(ModelError, match="0 inputs and 1 outputs"):
        load(proto)


def test_parameters_are_the_floats_of_the_file():
    # The real classifier has thresholds and scales on every point, written by the vendor: the
    # recomputed scales must be the stored ones.
    import onnx

    from tests.loading.golden import FIXTURES

    path = FIXTURES / "textline_cls" / "cls_calibrated_model.onnx"
    stored = {
        node.name: next(
            np.array(a.floats, np.float32) for a in node.attribute if a.name == "scales"
        )
        for node in onnx.load(str(path)).graph.node
        if node.op_type == "HzCalibration"
    }
    for point in load(path).points:
        assert np.array_equal(point.params.scale.reshape(-1), stored[point.name])
