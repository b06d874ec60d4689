"""What is not known is named, all of it at once, or left out and listed."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import load
from hbdebug.model import Assignment
from tests.loading.one_node_walk import run_all
from tests.models import CalibratedModel, inputs_for


def two_branches():
    """``left`` is known to its end; ``right`` runs into an unknown operator."""
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 3, 6, 6)))
    b.output(b.conv(x, (3, 4), "left", calibrate=False))
    y = b.conv(x, (3, 4), "right", calibrate=False)
    z = b.node("Fancy", [b.point(y)], "fancy", domain="custom.ai", strength=2)
    z = b.conv(z, (4, 2), "behind")
    b.output(z)
    b.output(b.node("Wavelet", [z], "wave", domain="custom.ai"))
    return b.proto()


def test_all_unknown_operators_are_named_with_the_flag():
    with pytest.raises(UnsupportedError) as info:
        load(two_branches())
    error = info.value
    assert "operator Fancy of domain custom.ai is not known (node fancy)" in error.message
    assert "operator Wavelet of domain custom.ai is not known (node wave)" in error.message
    assert "--skip-unsupported" in error.hint
    assert error.where == "(in memory)"
    assert error.exit_code == 5


def test_nodes_of_one_kind_are_counted():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    for index in range(5):
        b.output(b.hz("HzUnheardOf", [x], f"n{index}"))
    with pytest.raises(UnsupportedError, match=r"\(nodes n0, n1, n2 and 2 more\)"):
        load(b.proto())


def test_operator_that_the_opset_lacks_is_named():
    b = CalibratedModel()
    b.output(b.node("Mish", [b.point(b.input("x", (1, 2)))], "mish"))
    with pytest.raises(UnsupportedError, match=r"Mish does not exist in ai\.onnx opset 11"):
        load(b.proto())


def test_unknown_attribute_of_a_known_operator_is_named():
    b = CalibratedModel()
    b.output(b.hz("HzSwish", [b.point(b.input("x", (1, 2)))], "swish", beta=2.0))
    with pytest.raises(UnsupportedError, match="attribute beta of HzSwish is not known"):
        load(b.proto())


@pytest.mark.parametrize(
    ("op_type", "attributes", "reason"),
    [
        ("GridSample", {"mode": "trilinear"}, "mode 'trilinear'"),
        ("HzChannelShuffle", {"data_format": "CHWN"}, "data_format 'CHWN'"),
        ("HzQuantize", {"bits": 4}, "attribute bits is 4"),
        ("HzSoftmax", {}, "attribute axis is missing"),
        ("HzSpaceToDepth", {"block_height": 2}, "attribute block_width is missing"),
    ],
)
def test_known_operator_in_an_unknown_form_is_named(op_type, attributes, reason):
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 4, 4, 4)))
    b.output(b.hz(op_type, [x, b.constant("two", np.ones(1, np.float32))], "node", **attributes))
    with pytest.raises(UnsupportedError, match=f"{op_type}: its {reason}"):
        load(b.proto())


def test_missing_input_of_a_known_operator_is_named():
    b = CalibratedModel()
    b.output(b.hz("HzQuantize", [b.point(b.input("x", (1, 2)))], "q"))
    with pytest.raises(UnsupportedError, match="HzQuantize: its input 1 is missing"):
        load(b.proto())


def test_skipping_leaves_out_the_node_and_what_depends_on_it():
    proto = two_branches()
    model = load(proto, skip_unsupported=True)
    assert [node.name for node in model.nodes] == ["left", "right"]
    assert {item.name: item.reason for item in model.skipped} == {
        "fancy": "operator Fancy of domain custom.ai is not known",
        "fancy_out_HzCalibration": "it depends on fancy, which is left out",
        "behind_w_HzCalibration": "it only feeds nodes that are left out",
        "behind": "it depends on fancy, which is left out",
        "wave": "operator Wavelet of domain custom.ai is not known",
    }
    assert {item.op_type for item in model.skipped} == {"Fancy", "Wavelet", "Conv", "HzCalibration"}
    # The damage is measured where the known graph ends: at the tensor that fed the unknown node.
    assert [(spec.name, spec.dtype) for spec in model.outputs] == [
        ("left_out", "float32"),
        ("right_out_calibrated", "float32"),
    ]
    (sample,) = inputs_for(proto)
    values = run_all(model, sample, Assignment.as_calibrated(model))
    assert values["right_out_calibrated"].shape == (1, 4, 6, 6)


def test_end_of_the_known_graph_has_the_type_that_the_file_states():
    from onnx import TensorProto, helper

    proto = two_branches()
    info = helper.make_tensor_value_info("right_out_calibrated", TensorProto.FLOAT, [1, 4, 6, 6])
    proto.graph.value_info.append(info)
    assert load(proto, skip_unsupported=True).outputs[1].shape == (1, 4, 6, 6)


def test_end_of_the_known_graph_without_a_stated_type_is_marked():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    b.output(b.node("Fancy", [b.node("Relu", [x], "relu")], "fancy", domain="custom.ai"))
    (spec,) = load(b.proto(), skip_unsupported=True).outputs
    assert (spec.name, spec.dtype) == ("relu_out", "unknown")


def test_nothing_left_is_an_error():
    b = CalibratedModel()
    y = b.node("Fancy", [b.input("x", (1, 2))], "fancy", domain="custom.ai")
    b.output(b.node("Relu", [b.point(y)], "relu"))
    with pytest.raises(UnsupportedError, match="nothing with a quantization point is left"):
        load(b.proto(), skip_unsupported=True)


def unknown_point(**attributes):
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    y = b.node("Relu", [x], "relu")
    b.output(b.node("Relu", [b.point(y, **attributes)], "end"))
    return b.proto()


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"blocks": 4}, "attribute blocks of HzCalibration is not known"),
        ({"qtype": "int6"}, "quantized type 'int6' is not known"),
    ],
)
def test_unknown_point_is_named_or_put_in_float(attributes, reason):
    proto = unknown_point(**attributes)
    with pytest.raises(UnsupportedError) as info:
        load(proto)
    assert f"{reason} (node relu_out_HzCalibration)" in info.value.message
    model = load(proto, skip_unsupported=True)
    point = model.point_by_name["relu_out_HzCalibration"]
    assert (point.params, point.enabled, point.reason) == (None, False, reason)
    assert [(item.name, item.reason) for item in model.skipped] == [(point.name, reason)]
    assert [node.name for node in model.nodes] == ["relu", "end"]


def test_damaged_model_is_refused_even_when_skipping():
    proto = unknown_point(axis=-9, quant_attrs=0x12111, scales=[0.1, 0.2], thresholds=[1.0, 2.0])
    with pytest.raises(ModelError, match="unknown rank"):
        load(proto, skip_unsupported=True)
