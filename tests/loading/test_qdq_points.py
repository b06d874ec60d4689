"""What points and nodes a QDQ model has, and what of it is refused with what to do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbdebug.engine import Engine
from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import load
from hbdebug.loading.qdq import ONLY_INTEGERS, integer_constants, with_originals
from hbdebug.model import Assignment
from hbdebug.quant import fake_quantize
from tests import models, qdq_models
from tests.qdq_models import QdqModel


def refusal(proto, error=UnsupportedError):
    with pytest.raises(error) as info:
        load(proto)
    return info.value


def test_points_have_the_names_and_roles_of_the_file():
    model = load(qdq_models.convolution(zero_point=127))
    assert model.kind == "QDQ"
    kinds = [(point.name, point.role, point.params.dtype, point.enabled) for point in model.points]
    assert kinds[0] == ("x_QuantizeLinear_0", "activation", "uint8", True)
    assert ("one_w_quantized_DequantizeLinear", "weight", "int8", False) not in kinds
    assert ("one_w_DequantizeLinear", "weight", "int8", False) in kinds
    assert ("one_b_DequantizeLinear", "weight", "int32", False) in kinds
    assert [node.name for node in model.nodes] == ["one", "relu", "two"]
    assert all(point.reason == ONLY_INTEGERS for point in model.points if not point.enabled)


def test_case_20_zero_points_are_those_of_the_file():
    for zero_point in (127, 128):
        model = load(qdq_models.convolution(zero_point=zero_point))
        assert model.points[0].params.zero_point == zero_point


def test_case_34_and_35_nodes_of_one_name_are_told_apart():
    model = load(qdq_models.dedicated_pairs())
    names = [step.name for step in model.steps]
    assert len(set(names)) == len(names)
    assert sum(name.startswith("x_QuantizeLinear") for name in names) == 2


def test_case_37_every_reader_of_shared_integers_has_its_own_scheme():
    proto = qdq_models.shared_integers()
    model = load(proto)
    stored = integer_constants(model)
    # Two grids, one of which two nodes read: two points.
    assert len(stored) == 2
    integers = onnx.numpy_helper.to_array(
        next(item for item in proto.graph.initializer if item.name == "w_quantized")
    )
    values = [model.constants[name] for name in stored]
    np.testing.assert_array_equal(values[0], integers.astype(np.float32) * np.float32(0.002))
    np.testing.assert_array_equal(values[1], (integers - np.float32(5)) * np.float32(0.003))
    readers = [model.node_by_name[f"conv_{index}"].inputs[1] for index in range(3)]
    assert readers[0] == readers[2] != readers[1]


def test_case_48_a_last_node_without_a_pair_behind_it_is_analysed():
    b = QdqModel()
    x = b.pair(b.input("x", (1, 3, 8, 8)))
    b.output(b.conv(x, (3, 4), "last"))
    model = load(b.proto())
    assert [spec.name for spec in model.outputs] == ["last_out"]
    assert Engine(model, jobs=1).model.node_by_name["last"]


def test_case_61_channels_with_a_scale_of_zero_are_said():
    model = load(qdq_models.odd_scales())
    said = [text for text in model.warnings if "dead channels" in text]
    assert len(said) == 2
    assert "1 of 4 scales" in said[0]


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 23, reason="this onnx has no opset 23")
def test_case_70_an_unknown_quantized_type_is_named():
    b = QdqModel(23)
    zero = helper.make_tensor("zero", TensorProto.BFLOAT16, [], [0.0])
    b.initializers.append(zero)
    grid = [b.reals("scale", 0.1), "zero"]
    b.output(b.dq(b.q(b.input("x", (1, 4)), grid), grid))
    error = refusal(b.proto())
    assert "quantized type bfloat16 is not known" in error.message
    assert "int8" in error.message
    assert "x_QuantizeLinear" in error.message


def test_float8_is_named():
    b = QdqModel(19)
    b.initializers.append(helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0]))
    grid = [b.reals("scale", 0.1), "zero"]
    b.output(b.dq(b.q(b.input("x", (1, 4)), grid), grid))
    # Older versions of onnx read float8 values as float32 ones.
    assert "quantized type float" in refusal(b.proto()).message


def test_one_point_for_several_dequantize_nodes():
    model = load(qdq_models.several_consumers())
    (point,) = [item for item in model.points if item.role == "activation"]
    assert {node.name for node, _ in model.consuming_nodes(point)} == {"one", "two", "mul"}


def test_integer_output_is_measured_as_the_real_numbers_it_stands_for():
    b = QdqModel()
    x = b.pair(b.input("x", (1, 4)), 0.02, 3)
    y = b.q(b.node("Neg", [x], "neg"), b.grid("y", 0.05, 1))
    b.output(y, TensorProto.INT8)
    model = load(b.proto())
    sample = {"x": np.array([[0.3, -1.2, 5.0, 0.0]], np.float32)}
    (found,) = Engine(model, jobs=1).forward(sample, Assignment.as_calibrated(model)).values()
    x_back = fake_quantize(sample["x"], model.points[0].params)
    # -x, divided by 0.05 and rounded to even, plus 1, within int8; minus 1 again, times 0.05.
    q = np.clip(np.rint(-x_back / np.float32(0.05)) + 1, -128, 127)
    np.testing.assert_array_equal(found, (q - 1).astype(np.float32) * np.float32(0.05))


def test_original_weights_are_measured_against_what_is_stored():
    proto = qdq_models.convolution()
    model = load(proto)
    name, point = next(iter(integer_constants(model).items()))
    original = model.constants[name] + np.float32(0.001)
    given = with_originals(model, {name: original})
    now = given.point_by_name[point.name]
    assert now.enabled
    assert not now.reason
    sample = qdq_models.feeds(proto)[0]
    calibrated = Assignment.as_calibrated(given)
    # What is stored counts, and not what rounding the original would give.
    for a, b in zip(
        Engine(given, jobs=1).forward(sample, calibrated).values(),
        Engine(model, jobs=1).forward(sample, Assignment.as_calibrated(model)).values(),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(given.constants[name], original)
    without = Engine(given, jobs=1).forward(sample)
    assert any(
        not np.array_equal(without[key], value)
        for key, value in Engine(model, jobs=1).forward(sample).items()
    )


def test_relu_and_relu6_left_to_ranges_are_put_back():
    model = load(qdq_models.removed_activations())
    assumed = {node.op_type for node in model.nodes if node.assumed}
    assert assumed == {"Relu", "Clip"}
    assert "2 Relu or Clip" in model.notes[0]


@pytest.mark.parametrize("signed", [True, False])
def test_a_relu_behind_a_concat_is_missing_if_any_branch_can_be_negative(signed):
    b = QdqModel()
    x = b.pair(b.input("x", (1, 3, 8, 8)), 0.05, 3)
    one = b.node("Relu", [b.conv(x, (3, 4), "one")], "relu")
    two = b.conv(x, (3, 4), "two")
    two = two if signed else b.node("Sigmoid", [two], "sigmoid")
    y = b.node(
        "Concat", [b.pair(one, 0.05, -128), b.pair(two, 0.05, 0 if signed else -128)], axis=1
    )
    b.output(b.conv(b.pair(y, 0.05, -128), (8, 2), "last"))

    assumed = [node.name for node in load(b.proto()).nodes if node.assumed]

    assert len(assumed) == int(signed)


def test_seven_bits_out_of_eight_limit_the_point_and_not_the_float_baseline():
    proto = qdq_models.seven_bits()
    model = load(proto)
    limits = [(point.params.qmin, point.params.qmax) for point in model.points]
    assert limits == [(-30, 127), (-128, 64), (-30, 64)]
    assert [node.op_type for node in model.nodes] == ["Neg"] * 3
    sample = qdq_models.feeds(proto)[0]
    (found,) = Engine(model, jobs=1).forward(sample).values()
    np.testing.assert_array_equal(found, -sample["x"])


def test_pairs_inside_of_a_branch_are_said():
    b = QdqModel()
    x = b.pair(b.input("x", (1, 4)), 0.02)
    flag = b.constant("flag", np.ones((), bool))
    grid = b.grid("inner", 0.1)
    inside = [
        helper.make_node("QuantizeLinear", [x, *grid], ["inner_q"]),
        helper.make_node("DequantizeLinear", ["inner_q", *grid], ["inner_out"]),
    ]
    info = [helper.make_tensor_value_info("inner_out", TensorProto.FLOAT, None)]
    branch = helper.make_graph(inside, "branch", [], info)
    b.output(b.node("If", [flag], "if", then_branch=branch, else_branch=branch))
    model = load(b.proto())
    assert len(model.points) == 1
    assert any(text.startswith("if: pairs inside of branches") for text in model.warnings)


def test_what_the_user_feeds_has_no_relu_in_front_of_it():
    b = QdqModel()
    x = b.pair(b.input("x", (1, 3, 8, 8)), 0.02, -128)
    b.output(b.conv(x, (3, 2), "one"))
    assert not any(node.assumed for node in load(b.proto()).nodes)


def test_a_weight_only_model_needs_the_float_model():
    b = QdqModel()
    b.output(b.node("MatMul", [b.input("x", (2, 4)), b.stored("w", (4, 3), axis=1)], "matmul"))
    error = refusal(b.proto(), ModelError)
    assert "1: " + ONLY_INTEGERS in error.message
    assert "--float" in error.hint


@pytest.mark.parametrize(
    ("op_type", "words"),
    [
        ("QLinearConv", "quantize again with pairs"),
        ("QLinearMatMul", "quantize again with pairs"),
        ("ConvInteger", "dynamic quantization"),
        ("MatMulInteger", "dynamic quantization"),
        ("DynamicQuantizeLinear", "dynamic quantization"),
    ],
)
def test_qoperator_form_is_recognized_and_refused_with_what_to_do(op_type, words):
    b = QdqModel()
    b.output(b.node(op_type, [b.pair(b.input("x", (1, 4)))], "node"))
    error = refusal(b.proto())
    assert f"is in QOperator form: {op_type}" in error.message
    assert words.lower() in error.hint.lower()
    assert "QuantFormat.QDQ" in error.hint


def dynamic_scale(b, x):
    scale = b.node("Abs", [b.node("ReduceMax", [x], "max", keepdims=0)], "abs")
    return b.dq(b.q(x, [scale]), [scale])


def unequal_scales(b, x):
    return b.dq(b.q(x, b.grid("one", 0.1)), b.grid("two", 0.2))


def unequal_zero_points(b, x):
    return b.dq(b.q(x, b.grid("one", 0.1, 1)), b.grid("two", 0.1, 2))


def computing_on_integers(b, x):
    grid = b.grid("one", 0.1)
    q = b.q(x, grid)
    return b.dq(b.node("Mul", [q, q], "square"), grid)


def mixing(b, x):
    one, two = b.grid("one", 0.1), b.grid("two", 0.2)
    return b.dq(b.node("Concat", [b.q(x, one, "qa"), b.q(x, two, "qb")], "both", axis=1), one)


def channels_parted(b, x):
    grid = b.grid("one", [0.1, 0.2, 0.3, 0.4])
    q = b.node("Concat", [b.q(x, grid, axis=1)] * 2, "twice", axis=1)
    return b.dq(q, grid, axis=1)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (dynamic_scale, "computed at run time: dynamic quantization"),
        (unequal_scales, "no pair with the QuantizeLinear x_QuantizeLinear"),
        (unequal_zero_points, "other zero points"),
        (computing_on_integers, "put a DequantizeLinear in front of it"),
        (mixing, "mixes the integers of qa and qb"),
        (channels_parted, "may part channels from their scales"),
    ],
)
def test_what_is_no_pair_is_named_and_can_be_left_out(build, words):
    b = QdqModel()
    x = b.input("x", (1, 4))
    b.output(b.node("Neg", [b.pair(x, 0.03)], "kept"))
    b.output(build(b, x))
    proto = b.proto()
    assert words in refusal(proto).message
    model = load(proto, skip_unsupported=True)
    assert [spec.name for spec in model.outputs if spec.name == "kept_out"]
    assert any(words in item.reason for item in model.skipped)


@pytest.mark.parametrize("bits", [8, 16])
def test_pairs_of_the_vendors_domain_are_points(bits):
    b = models.CalibratedModel()
    scale = b.constant("scale", np.float32(0.01))
    q = b.hz("HzQuantize", [b.input("x", (1, 4)), scale], "q", bits=bits)
    b.output(b.node("Neg", [b.hz("HzDequantize", [q, scale], "dq")], "neg"))
    model = load(b.proto())
    (point,) = model.points
    assert (point.name, point.params.dtype) == ("q", f"int{bits}")
    x = np.array([[0.005, 0.015, 9.0, -400.0]], np.float32)
    top, bottom = {8: (1.27, -1.28), 16: (327.67, -327.68)}[bits]
    (found,) = Engine(model, jobs=1).forward({"x": x}, Assignment.as_calibrated(model)).values()
    # Halves of a step go to the even step; what is beyond the range saturates.
    even = np.array([0.0, 0.02, min(9.0, top), bottom], np.float32)
    np.testing.assert_allclose(-found[0], even, rtol=1e-6)


def test_chip_integers_need_a_calibrated_model(tmp_path):
    from hbdebug.conversion import quantize

    onnx.save(qdq_models.convolution(), tmp_path / "qdq.onnx")
    with pytest.raises(UnsupportedError, match="this is a QDQ model"):
        quantize(tmp_path / "qdq.onnx", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_the_callers_model_is_not_changed():
    proto = qdq_models.far_apart()
    before = proto.SerializeToString()
    load(proto)
    assert proto.SerializeToString() == before
