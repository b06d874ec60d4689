"""Original weights of models coarser and stranger than a quantizer makes them."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hbdebug.loading.originals import match_originals
from tests.loading.originals import (
    NETWORKS,
    FloatModel,
    as_file,
    assert_all_found,
    assert_found,
    padded,
    quantized,
    renamed,
    residual_network,
    rounded,
    shuffled,
    to_bytes,
)

# Coarser and stranger than the quantizer makes them.


def to_signs(values):
    """Round to one bit: of a normal distribution that keeps a cosine of 0.8."""
    return np.sign(values) * np.abs(values).mean() if values.size > 16 else values


@pytest.mark.parametrize("network", NETWORKS)
def test_weights_of_one_bit_are_found_at_their_places(network, tmp_path):
    file = as_file(shuffled(renamed(NETWORKS[network]())), tmp_path)

    assert_found(*rounded(NETWORKS[network](), to_signs), file)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_model_with_fused_operators_finds_its_weights(network, tmp_path):
    """What ONNX Runtime makes of a network for itself is as far from the export as it gets."""
    import onnxruntime

    plain, fused = tmp_path / "plain.onnx", tmp_path / "fused.onnx"
    onnx.save(NETWORKS[network](), plain)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(fused)
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    proto = onnx.load(fused)
    model, wanted, golden = rounded(proto, to_bytes)
    file = as_file(shuffled(renamed(padded(NETWORKS[network]()))), tmp_path)

    originals = match_originals(model, wanted, file)

    assert {node.op_type for node in proto.graph.node} & {"FusedConv", "FusedMatMul", "Gemm"}
    # The factor that ONNX Runtime moved into an attribute of FusedMatMul, and the limits of a
    # fused Clip, are no constants any more, so nothing is missing on this side.
    assert not originals.unmatched
    for name in wanted:
        # As for folded BatchNormalization above.
        limit = 2e-6 * max(np.abs(golden[name]).max(), 1e-3)
        np.testing.assert_allclose(originals.found[name], golden[name], rtol=0, atol=limit)


def test_a_layout_of_its_own_is_kept(tmp_path):
    b = FloatModel()
    x = b.node("Gemm", b.input("x", (2, 3)), b.normal(5, 3), b.normal(5), transB=1)
    b.finish(b.node("Gemm", x, b.normal(5, 4), alpha=0.5), (2, 4))
    plain = b.proto()
    other = FloatModel()
    x = other.node("MatMul", other.input("x", (2, 3)), other.normal(5, 3))
    other.initializers[0] = numpy_helper.from_array(
        np.ascontiguousarray(numpy_helper.to_array(plain.graph.initializer[0]).T), "c0"
    )
    x = other.node("Add", other.normal(1, 5), x)
    x = other.node("MatMul", x, other.normal(5, 4))
    other.finish(x, (2, 4))
    model, wanted, golden = rounded(other.proto(), to_bytes)
    values = {item.name: numpy_helper.to_array(item) for item in plain.graph.initializer}
    # The factor of the second product is folded into its weight on one side only.
    stored = {"c1": to_bytes(values["c1"])[None], "c2": to_bytes(values["c2"] / 2)}
    model = replace(model, constants={**model.constants, **stored})

    originals = match_originals(model, wanted, as_file(plain, tmp_path))

    np.testing.assert_array_equal(originals.found["c0"], values["c0"].T)
    np.testing.assert_array_equal(originals.found["c1"], values["c1"][None])
    np.testing.assert_array_equal(originals.found["c2"], values["c2"] / 2)
    assert golden.keys() == originals.found.keys()


def test_a_product_is_found_in_a_convolution_of_one_place_and_the_other_way_round(tmp_path):
    def network(*, convolution):
        b = FloatModel(8)
        weight = b.random.normal(0, 1, (12, 5)).astype(np.float32)
        x = b.node("GlobalAveragePool", b.conv(b.input("x", (1, 3, 8, 8)), 3, 12))
        if convolution:
            weight = b.constant("w", weight.T.reshape(5, 12, 1, 1))
            x = b.node("Flatten", b.node("Conv", x, weight, b.normal(5)))
        else:
            x = b.node("Gemm", b.node("Flatten", x), b.constant("w", weight), b.normal(5))
        b.finish(x, (1, 5))
        return b.proto()

    for here in (False, True):
        model, wanted, golden = rounded(network(convolution=here), to_bytes)

        originals = match_originals(
            model, wanted, as_file(renamed(network(convolution=not here)), tmp_path)
        )

        assert not originals.unmatched
        for name in wanted:
            np.testing.assert_array_equal(originals.found[name], golden[name])


def tied(weight_shared, *, bias_first=True):
    """Two branches with equal weights and different biases; an embedding that is a product, too."""
    b = FloatModel(4)
    x = b.node("Gather", b.normal(20, 16), b.input("x", (1, 6), TensorProto.INT64))
    weight = b.normal(16, 16)
    other = weight
    if not weight_shared:
        other = b.constant("copy", numpy_helper.to_array(b.initializers[1]))
    biases = [b.normal(16), b.normal(16)]
    branches = [
        b.node("Add", b.node("MatMul", x, weight), biases[0]),
        b.node("Add", b.node("MatMul", x, other), biases[1]),
    ]
    x = b.node("Mul", *(branches if bias_first else reversed(branches)))
    b.finish(b.node("MatMul", x, b.node("Transpose", "c0", perm=[1, 0])), (1, 6, 20))
    return b.proto()


@pytest.mark.parametrize("shared_here", [True, False])
@pytest.mark.parametrize("shared_there", [True, False])
def test_tied_weights_are_found_shared_or_copied(shared_here, shared_there, tmp_path):
    model, wanted, golden = rounded(tied(shared_here), to_bytes)
    file = as_file(shuffled(renamed(tied(shared_there, bias_first=False))), tmp_path)

    assert_found(model, wanted, golden, file)


def test_a_weight_with_outliers_is_found_though_nearly_all_of_it_is_rounded_to_zero(tmp_path):
    proto = residual_network(norm=False)
    for item in proto.graph.initializer:
        values = numpy_helper.to_array(item).copy()
        if values.ndim == 4:
            values.reshape(-1)[:3] = 200, -150, 90
            item.CopyFrom(numpy_helper.from_array(values, item.name))
    qdq, golden = quantized(proto, tmp_path)

    assert_all_found(qdq, golden, as_file(shuffled(renamed(proto)), tmp_path))


def test_a_bias_that_the_float_model_does_not_have_was_zero(tmp_path):
    b = FloatModel()
    b.finish(b.conv(b.input("x", (1, 3, 8, 8)), 3, 4), (1, 4, 8, 8))
    with_bias = b.proto()
    model, wanted, golden = rounded(with_bias, to_bytes)
    zeros = np.zeros(4, np.float32)
    model = replace(model, constants={**model.constants, "c1": zeros})
    without = copy.deepcopy(with_bias)
    del without.graph.node[0].input[2]
    del without.graph.initializer[1]

    originals = match_originals(model, wanted, as_file(without, tmp_path))

    np.testing.assert_array_equal(originals.found["c1"], zeros)
    np.testing.assert_array_equal(originals.found["c0"], golden["c0"])
    assert "no bias of Conv Conv_0, which is zero" in originals.source["c1"]


def test_a_normalization_is_folded_into_a_grouped_transposed_convolution(tmp_path):
    b = FloatModel(11)
    x = b.input("x", (1, 6, 4, 4))
    x = b.node("ConvTranspose", x, b.normal(6, 2, 2, 2), b.normal(4), strides=[2, 2], group=2)
    b.finish(b.norm(x, 4), (1, 4, 8, 8))
    plain = b.proto()
    values = [numpy_helper.to_array(item) for item in plain.graph.initializer]
    weight, bias, gamma, shift, mean, variance = (item.astype(np.float64) for item in values)
    # Group by group, as the operator is defined: group g reads inputs 3g to 3g + 2 and makes the
    # channels 2g and 2g + 1.
    factor = gamma / np.sqrt(variance + 1e-3)
    for group in range(2):
        for channel in range(2):
            weight[3 * group : 3 * group + 3, channel] *= factor[2 * group + channel]
    folded = copy.deepcopy(plain)
    del folded.graph.node[1]
    folded.graph.node[1].input[0] = folded.graph.node[0].output[0]
    for index, item in enumerate((weight, (bias - mean) * factor + shift)):
        tensor = numpy_helper.from_array(item.astype(np.float32), f"c{index}")
        folded.graph.initializer[index].CopyFrom(tensor)
    del folded.graph.initializer[2:]
    model, wanted, golden = rounded(folded, to_bytes)

    originals = match_originals(model, wanted, as_file(renamed(plain), tmp_path))

    assert not originals.unmatched
    for name in wanted:
        # One rounding to float32 here and there.
        np.testing.assert_allclose(originals.found[name], golden[name], rtol=2e-7, atol=1e-8)
    assert "folded in" in originals.source["c0"]


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes", "operand"),
    [
        ("Flatten", (5, 4, 2), {}, None),
        ("Unsqueeze", (8,), {}, [0]),
        ("Squeeze", (1, 5, 8), {}, [0]),
        ("Reshape", (5, 2, 4), {}, [0, -1]),
        ("Transpose", (8, 5), {"perm": [1, 0]}, None),
    ],
)
@pytest.mark.parametrize("moved_here", [True, False])
def test_operators_that_move_a_constant_are_looked_through(
    op_type, shape, attributes, operand, moved_here, tmp_path
):
    def network(*, moved):
        b = FloatModel(12)
        x = b.node("Sigmoid", b.input("x", (1, 8)))
        values = b.random.normal(0, 1, shape).astype(np.float32)
        straight = {
            "Unsqueeze": lambda: values[None],
            "Transpose": lambda: values.T,
        }.get(op_type, lambda: values.reshape(5, 8))()
        if moved:
            given = [] if operand is None else [b.constant("operand", np.asarray(operand))]
            constant = b.node(op_type, b.constant("w", values), *given, **attributes)
        else:
            constant = b.constant("w", straight)
        b.finish(b.node("Mul", x, constant), straight.shape)
        return b.proto(), values, straight

    proto, values, straight = network(moved=moved_here)
    model, _, _ = rounded(proto, to_bytes)

    originals = match_originals(
        model, ["w"], as_file(renamed(network(moved=not moved_here)[0]), tmp_path)
    )

    np.testing.assert_array_equal(originals.found["w"], values if moved_here else straight)


def test_a_bias_is_found_though_its_weight_has_another_shape(tmp_path):
    """A kernel was padded with zeros on one side: the bias stayed."""
    b = FloatModel(13)
    b.finish(b.conv(b.input("x", (1, 3, 8, 8)), 3, 32), (1, 32, 8, 8))
    plain = b.proto()
    wide = copy.deepcopy(plain)
    node = wide.graph.node[0]
    del node.attribute[:]
    node.attribute.extend([helper.make_attribute("pads", [2] * 4)])
    weight = np.pad(numpy_helper.to_array(plain.graph.initializer[0]), [(0, 0)] * 2 + [(1, 1)] * 2)
    wide.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "c0"))
    model, wanted, golden = rounded(wide, to_bytes)

    originals = match_originals(model, wanted, as_file(renamed(plain), tmp_path))

    assert originals.unmatched == {"c0": "the float model has no weight like this 32x3x5x5 of Conv"}
    np.testing.assert_array_equal(originals.found["c1"], golden["c1"])
