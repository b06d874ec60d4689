"""Custom operators in the forms that no golden case has, against NumPy written from their spec."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.model import Assignment
from tests.loading.golden import cases, largest_error
from tests.loading.one_node_walk import build, run_all
from tests.models import CalibratedModel

# Ties to either even neighbour, the ends of int8, int16 and int32, and what no integer is.
_TIES = [0.5, 1.5, 2.5, -0.5, -1.5, 127.5, -128.5]
_ENDS = [127.4, 40000, -40000, 2.0**31, -(2.0**31), 3e38]
_ODD = [np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40]
SPECIAL = np.array([*_TIES, *_ENDS, *_ODD], np.float32)


def computed(b: CalibratedModel, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Run a model and return its one output."""
    model = build(b.proto())
    return run_all(model, inputs, Assignment())[model.outputs[0].name]


@pytest.mark.parametrize("opset", [10, 11, 13])
@pytest.mark.parametrize(("bits", "dtype"), [(8, np.int8), (16, np.int16), (32, np.int32)])
def test_quantize_at_special_values(bits, dtype, opset):
    b = CalibratedModel(opset=opset)
    x = b.input("x", (len(SPECIAL),))
    scale = b.constant("s", np.float32(1))
    b.output(b.hz("HzQuantize", [x, scale], bits=bits), getattr(TensorProto, f"INT{bits}"))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    expected = [
        int(min(max(np.rint(np.float64(v)), low), high)) if abs(v) < 2.0**31 else low
        for v in SPECIAL
    ]
    actual = computed(b, {"x": SPECIAL})
    assert actual.dtype == dtype
    assert actual.tolist() == expected


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_quantize_and_dequantize_along_an_axis_with_zero_points(axis):
    random = np.random.default_rng(3)
    x = random.normal(0, 40, (3, 4, 5)).astype(np.float32)
    count = x.shape[axis]
    scale = random.uniform(0.2, 1, count).astype(np.float32)
    zero = random.integers(-20, 20, count).astype(np.int8)
    b = CalibratedModel()
    parameters = [b.constant("s", scale), b.constant("z", zero)]
    q = b.hz("HzQuantize", [b.input("x", x.shape), *parameters], "q", axis=axis)
    b.output(b.hz("HzDequantize", [q, *parameters], "dq", axis=axis))
    shape = [1, 1, 1]
    shape[axis] = count
    s, z = scale.reshape(shape), zero.reshape(shape).astype(np.float32)
    expected = (np.clip(np.rint(x / s) + z, -128, 127) - z) * s
    assert np.array_equal(computed(b, {"x": x}), expected)


def test_dequantize_rounds_large_integers_to_float32_first():
    q = np.array([2**31 - 1, 2**24 + 1, -(2**24) - 1], np.int32)
    b = CalibratedModel()
    x = b.input("x", (3,), TensorProto.INT32)
    b.output(b.hz("HzDequantize", [x, b.constant("s", np.array([0.1], np.float32))]))
    assert np.array_equal(computed(b, {"x": q}), q.astype(np.float32) * np.float32(0.1))


def test_resize_cubic_has_aligned_corners():
    x = np.random.default_rng(0).normal(0, 1, (1, 2, 5, 6)).astype(np.float32)
    b = CalibratedModel()
    sizes = b.constant("scales", np.array([1, 1, 2, 2], np.float32))
    inputs = [b.input("x", x.shape), b.constant("roi", np.zeros(0, np.float32)), sizes]
    b.output(b.hz("HzResize11", inputs, mode="cubic"))
    y = computed(b, {"x": x})
    assert y.shape == (1, 2, 10, 12)
    # Aligned corners leave the corners where they are; half-pixel coordinates do not.
    for row in (0, -1):
        for column in (0, -1):
            # The weights of a tap at a pixel centre are 0 and 1 up to float32 noise.
            assert np.allclose(y[..., row, column], x[..., row, column], rtol=0, atol=1e-6)


def layer_norm(b: CalibratedModel, x: str, scale: np.ndarray, axis: int) -> str:
    parameters = [b.constant("g", scale), b.constant("o", np.zeros_like(scale))]
    return b.hz("HzLayerNorm", [x, *parameters], "norm", axis=axis)


def test_layer_norm_takes_the_rank_from_its_scale_when_the_input_has_none():
    x = np.random.default_rng(0).normal(0, 1, (2, 3, 4)).astype(np.float32)
    b = CalibratedModel()
    hidden = b.node("Identity", [b.input("x", x.shape)])
    b.output(layer_norm(b, hidden, np.ones((3, 4), np.float32), 1))
    mean = x.mean((1, 2), keepdims=True)
    expected = (x - mean) / np.sqrt(((x - mean) ** 2).mean((1, 2), keepdims=True) + 1e-5)
    # Float32 sums of twelve terms in another order.
    assert np.allclose(computed(b, {"x": x}), expected, rtol=0, atol=1e-6)


def test_layer_norm_without_any_rank_is_refused():
    b = CalibratedModel()
    hidden = b.node("Identity", [b.input("x", (2, 3))])
    scale = b.node("Identity", [b.constant("g", np.ones(3, np.float32))])
    b.output(b.hz("HzLayerNorm", [hidden, scale, scale], axis=1))
    with pytest.raises(UnsupportedError, match="HzLayerNorm: its rank is not known"):
        build(b.proto())


def test_pad_with_a_computed_value_needs_opset_11():
    b = CalibratedModel(opset=10)
    x = b.input("x", (1, 1, 2, 2))
    value = b.node("Identity", [b.constant("v", np.ones(1, np.float32))])
    b.output(b.hz("HzPad", [x, value], pads=[0, 0, 1, 0, 0, 0, 0, 0]))
    with pytest.raises(UnsupportedError, match="HzPad: padding with a computed value"):
        build(b.proto())


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_channel_shuffle_of_any_rank(layout, rank):
    channels_at = 1 if layout == "NCHW" else rank - 1
    shape = [2, 3, 5, 2, 3][:rank]
    shape[channels_at] = 6
    x = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    b = CalibratedModel()
    name = b.input("x", tuple(shape))
    b.output(b.hz("HzChannelShuffle", [name], group=3, data_format=layout))
    order = np.arange(6).reshape(3, 2).T.reshape(-1)
    assert np.array_equal(computed(b, {"x": x}), np.take(x, order, axis=channels_at))


def test_filter_keeps_rows_in_raster_order_over_batches():
    x = np.random.default_rng(0).normal(0, 1, (2, 4, 3, 5)).astype(np.float32)
    # A score that is exactly the threshold is kept.
    x[1, 2, 0, 0] = 0.7
    b = CalibratedModel()
    name = b.input("x", x.shape)
    made = b.node(
        "HzFilter", [name], "f", outputs=4, domain="horizon", idx_range=[1, 4], threshold=0.7
    )
    b.output(made)
    values = run_all(build(_with_all_outputs(b.proto())), {"x": x}, Assignment())
    rows = [
        (best, 1 + int(scores.argmax()), (h, w), x[n, :, h, w])
        for n in range(2)
        for h in range(3)
        for w in range(5)
        for scores in [x[n, 1:4, h, w]]
        for best in [scores.max()]
        if best >= np.float32(0.7)
    ]
    assert (0, 0) in [place for _, _, place, _ in rows]
    assert np.array_equal(values["f_out"], [row[0] for row in rows])
    assert np.array_equal(values["f_out1"], [row[1] for row in rows])
    assert np.array_equal(values["f_out2"], [row[2] for row in rows])
    assert np.array_equal(values["f_out3"], [row[3] for row in rows])


def _with_all_outputs(proto: onnx.ModelProto) -> onnx.ModelProto:
    names = [name for node in proto.graph.node for name in node.output]
    del proto.graph.output[:]
    for name in names:
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return proto


@pytest.mark.parametrize("op_type", ["GridSample", "GridSamplePlugin"])
def test_sampling_without_a_domain_is_the_vendors_in_old_opsets(op_type):
    (case,) = cases(f"ops/{op_type}_bicubic_border_ac0")
    model = case.model
    model.graph.node[0].ClearField("domain")
    values = run_all(build(model), case.inputs, Assignment())
    # As in test_golden_operators.
    assert largest_error(values["y0"], case.outputs["y0"]) <= 5e-6


def test_model_of_vendor_operators_alone_has_opset_11():
    b = CalibratedModel()
    b.output(b.hz("HzSwish", [b.input("x", (1, 2))]))
    proto = b.proto()
    del proto.opset_import[0]
    assert build(proto).opset == 11


def test_attribute_kinds_arrive_as_plain_values():
    b = CalibratedModel()
    b.output(b.node("Relu", [b.input("x", (1, 2))], "relu"))
    proto = b.proto()
    tensor = helper.make_tensor("t", TensorProto.INT64, [2], [1, 2])
    (node,) = proto.graph.node
    node.attribute.extend(
        [
            helper.make_attribute("words", ["a", "b"]),
            helper.make_attribute("tensors", [tensor, tensor]),
            helper.make_attribute("raw", b"\xff\xfe"),
            helper.make_attribute("graphs", [proto.graph]),
        ]
    )
    attributes = build(proto).nodes[0].attributes
    assert attributes["words"] == ["a", "b"]
    assert [item.tolist() for item in attributes["tensors"]] == [[1, 2], [1, 2]]
    assert attributes["raw"] == b"\xff\xfe"
    assert len(attributes["graphs"]) == 1


def test_damaged_attributes_name_their_node():
    b = CalibratedModel()
    b.output(b.node("Relu", [b.input("x", (1, 2))], "relu"))
    proto = b.proto()
    proto.graph.node[0].attribute.add(name="alpha", f=1.0)
    with pytest.raises(ModelError, match=r"model\.onnx: node relu: attribute alpha has no type"):
        build(proto)


def test_input_of_a_type_without_a_numpy_form_is_marked():
    b = CalibratedModel()
    b.output(b.node("Relu", [b.input("x", (1, 2))], "relu"))
    proto = b.proto()
    sequence = proto.graph.input.add(name="sequence")
    sequence.type.sequence_type.elem_type.tensor_type.elem_type = TensorProto.FLOAT
    assert [(spec.name, spec.dtype) for spec in build(proto).inputs] == [
        ("x", "float32"),
        ("sequence", "unknown"),
    ]
