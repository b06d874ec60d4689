"""A quantized model becomes nodes and constants, or an error that says what to do."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.integer_run import run
from hbdebug.loading import load, load_to_run
from hbdebug.loading.integer import load_integer
from hbdebug.model import IntegerModel
from tests import models
from tests.integer_models import FIXTURES, QuantizedModel, table_lookup, two_inputs
from tests.lowering.vendor import layout_models

CLASSIFIER = FIXTURES / "textline_cls" / "cls_quantized_model.onnx"


def test_a_node_holds_what_the_file_says():
    model = load_integer(table_lookup())

    assert isinstance(model, IntegerModel)
    assert model.kind == "HMCT quantized"
    assert model.producer == "horizon_nn 1.1.0"
    assert [node.name for node in model.nodes] == ["x_quantize", "negate", "negate_out_dequantize"]
    quantize = model.nodes[0]
    assert (quantize.domain, quantize.op_type) == ("horizon", "HzQuantize")
    assert quantize.attributes == {"bits": 8}
    assert quantize.inputs == ("x", "x_scale")
    assert quantize.outputs == ("x_quantize_out",)
    assert quantize.body == ()
    assert model.constants["table"].dtype == np.int8
    assert (model.inputs[0].name, model.inputs[0].dtype, model.inputs[0].shape) == (
        "x",
        "float32",
        (1, 4),
    )
    assert [(spec.name, spec.dtype) for spec in model.outputs] == [
        ("negate_out_dequantize_out", "float32")
    ]


def test_a_stock_operator_is_its_own_body():
    model = load_integer(two_inputs())

    (op,) = model.node_by_name["both"].body
    assert (op.op_type, op.domain, op.attributes) == ("Concat", "", {"axis": 1})


def test_no_point_is_in_it():
    model = load_integer(CLASSIFIER)

    assert model.points == ()
    assert len(model.nodes) == 108


def values_in(value):
    """Yield every value in a record, its records, tuples, lists and mappings."""
    yield value
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from values_in(getattr(value, field.name))
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from values_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from values_in(item)


def test_records_are_frozen_and_hold_no_protobuf_type():
    model = load_integer(CLASSIFIER)

    modules = {type(value).__module__.split(".")[0] for value in values_in(model)}
    assert modules == {"builtins", "hbdebug", "numpy"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.path = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.nodes[0].name = "other"


def test_nodes_come_in_topological_order_whatever_the_file_has():
    proto = table_lookup()
    nodes = list(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(nodes))

    names = [node.name for node in load_integer(proto).nodes]

    assert names == ["x_quantize", "negate", "negate_out_dequantize"]


def test_the_given_message_is_not_changed():
    proto = table_lookup()
    before = proto.SerializeToString()

    load_integer(proto)

    assert proto.SerializeToString() == before


def test_unknown_operators_are_named_all_at_once_with_what_to_do():
    b = QuantizedModel()
    x = b.quantize(b.input("x", (1, 4)), 0.5)
    x = b.node("HzGridWarp", [x], "warp")
    x = b.node("HzGridWarp", [x], "warp_again")
    b.output(b.dequantize(b.node("HzCorrelation", [x], "correlate"), 0.5))

    with pytest.raises(UnsupportedError) as caught:
        load_integer(b.proto())

    text = str(caught.value)
    assert "operator HzGridWarp of domain horizon is not known (nodes warp, warp_again)" in text
    assert "operator HzCorrelation of domain horizon is not known (node correlate)" in text
    assert "on the CPU" in caught.value.hint


def test_a_stock_operator_that_its_opset_lacks_is_named():
    b = QuantizedModel()
    b.output(b.node("LayerNormalization", [b.quantize(b.input("x", (1, 4)), 0.5)], "norm"))

    with pytest.raises(UnsupportedError, match="LayerNormalization does not exist"):
        load_integer(b.proto())


def test_a_compiled_model_is_told_from_an_unknown_operator():
    b = QuantizedModel()
    b.output(b.node("HzBpuHBM", [b.quantize(b.input("x", (1, 4)), 0.5)], "program"))

    with pytest.raises(UnsupportedError, match="HzBpuHBM") as caught:
        load_integer(b.proto())

    assert "*_quantized_model.onnx of the same conversion" in caught.value.hint


@pytest.mark.parametrize("stage", ["calibrated", "optimized_float"])
def test_other_stages_are_refused(stage):
    file = FIXTURES / "textline_cls" / f"cls_{stage}_model.onnx"

    with pytest.raises(ModelError) as caught:
        load_integer(file)

    assert str(file) in caught.value.where
    assert "*_quantized_model.onnx" in caught.value.hint


def test_a_graph_with_a_cycle_is_refused():
    proto = table_lookup()
    proto.graph.node[0].input[0] = "negate_out"

    with pytest.raises(ModelError, match="cycle"):
        load_integer(proto)


def test_a_missing_file_is_an_error_of_ours(tmp_path):
    with pytest.raises(ModelError, match="no such file"):
        load_integer(tmp_path / "none_quantized_model.onnx")


def test_either_stage_loads_to_be_run():
    folder = FIXTURES / "textline_cls"

    assert isinstance(load_to_run(folder / "cls_quantized_model.onnx"), IntegerModel)
    calibrated = load_to_run(folder / "cls_calibrated_model.onnx")
    assert not isinstance(calibrated, IntegerModel)
    assert calibrated.points


def test_a_float_model_does_not_load_to_be_run():
    with pytest.raises(ModelError, match="no quantization points"):
        load_to_run(FIXTURES / "textline_cls" / "cls_optimized_float_model.onnx")


def test_analysis_still_asks_for_the_calibrated_file():
    with pytest.raises(ModelError, match="is a quantized model") as caught:
        load(CLASSIFIER)

    assert "cls_calibrated_model.onnx" in caught.value.hint


def test_a_model_that_only_quantizes_counts_as_quantized():
    b = QuantizedModel()
    b.output(b.quantize(b.input("x", (1, 4)), 0.5), onnx.TensorProto.INT8)

    assert isinstance(load_to_run(b.proto()), IntegerModel)


def test_a_calibrated_model_with_vendor_operators_is_none():
    assert not isinstance(load_to_run(models.residual()), IntegerModel)


def test_an_operator_of_the_vendors_that_stays_float_is_run_as_its_calibrated_form_is():
    _, quantized = layout_models("cpu_hard_swish")
    model = load_integer(quantized)
    (node,) = (item for item in model.nodes if item.op_type == "HzHardSwish")
    tensors = {}
    x = np.random.default_rng(0).normal(size=model.inputs[0].shape).astype(np.float32)

    run(model, {model.inputs[0].name: x}, keep=tensors.__setitem__)

    value = tensors[node.inputs[0]].astype(np.float64)
    expected = value * np.clip(value + 3, 0, 6) / 6
    # float32 rounds each of four operations.
    assert np.allclose(tensors[node.outputs[0]], expected, rtol=1e-6, atol=1e-6)


def test_a_channel_shuffle_of_floats_is_channels_first():
    _, quantized = layout_models("cpu_shuffle")
    model = load_integer(quantized)
    (node,) = (item for item in model.nodes if item.op_type == "HzChannelShuffle")
    tensors = {}
    x = np.random.default_rng(0).normal(size=model.inputs[0].shape).astype(np.float32)

    run(model, {model.inputs[0].name: x}, keep=tensors.__setitem__)

    assert np.array_equal(tensors[node.outputs[0]], tensors[node.inputs[0]][:, [0, 2, 1, 3]])
