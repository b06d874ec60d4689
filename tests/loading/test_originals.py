"""Original weights of QDQ models of ONNX Runtime's quantizer, found in disguised float models.

What is right is known from outside: the quantizer names an integer constant after the float one
that it was made of, which the matcher never looks at.
"""

from __future__ import annotations

import copy

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.loading.originals import (
    CLASSIFIER,
    NETWORKS,
    _skip_before_1_18,
    as_file,
    assert_all_found,
    padded,
    quantized,
    quantized_once,
    renamed,
    residual_network,
    settings_of,
    shuffled,
)

# What exporters and optimizers do to a float model.


def products_rewritten(proto):
    """Turn MatMul weights around behind a Transpose, and a Gemm into MatMul and Add."""
    proto = copy.deepcopy(proto)
    initializers = {item.name: item for item in proto.graph.initializer}
    nodes = []
    for node in proto.graph.node:
        if node.op_type == "MatMul" and node.input[1] in initializers:
            item = initializers[node.input[1]]
            turned = numpy_helper.to_array(item).T
            name = f"{item.name}/turned"
            item.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(turned), name))
            nodes.append(helper.make_node("Transpose", [name], [f"{name}/back"], perm=[1, 0]))
            node.input[1] = f"{name}/back"
            nodes.append(node)
        elif node.op_type == "Gemm":
            x, weight, bias = node.input
            item = initializers[weight]
            item.CopyFrom(
                numpy_helper.from_array(np.ascontiguousarray(numpy_helper.to_array(item).T), weight)
            )
            nodes.append(helper.make_node("MatMul", [x, weight], [f"{node.name}/product"]))
            nodes.append(helper.make_node("Add", [bias, f"{node.name}/product"], node.output))
        else:
            nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def activations_decomposed(proto):
    """Write Sigmoid and Softmax, Relu and LayerNormalization with other operators."""
    proto = copy.deepcopy(proto)
    nodes = []
    graph = proto.graph
    for name, value in (("one", 1.0), ("tiny", 1e-5), ("zero", 0.0)):
        graph.initializer.append(numpy_helper.from_array(np.float32(value), f"{name}/new"))
    for node in graph.node:
        x, y, prefix = node.input[0], node.output[0], f"{node.name}/"

        def made(op_type, *inputs, to=None, prefix=prefix, **attributes):
            output = to or f"{prefix}{len(nodes)}"
            nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
            return output

        if node.op_type == "Relu":
            made("Max", x, "zero/new", to=y)
        elif node.op_type == "Sigmoid":
            raised = made("Exp", made("Neg", x))
            made("Div", "one/new", made("Add", raised, "one/new"), to=y)
        elif node.op_type == "LayerNormalization":
            centred = made("Sub", x, made("ReduceMean", x, axes=[-1]))
            square = made("ReduceMean", made("Mul", centred, centred), axes=[-1])
            scaled = made("Div", centred, made("Sqrt", made("Add", square, "tiny/new")))
            made("Add", made("Mul", scaled, node.input[1]), node.input[2], to=y)
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return proto


def constants_computed(proto):
    """Compute initializers of other constants, in ways that are exact."""
    proto = copy.deepcopy(proto)
    nodes = []

    def add(name, values):
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    for index, item in enumerate(list(proto.graph.initializer)):
        values, name = numpy_helper.to_array(item), item.name
        if values.dtype != np.float32 or not values.ndim:
            continue
        proto.graph.initializer.remove(item)
        if index % 3 == 0:
            parts = [add(f"{name}/twice", values * 2)]
            parts.append(add(f"{name}/half", np.asarray(0.5, np.float32)))
            nodes.append(helper.make_node("Mul", parts, [name]))
        elif index % 3 == 1:
            cut = max(1, len(values) // 2)
            parts = [add(f"{name}/a", values[:cut]), add(f"{name}/b", values[cut:])]
            nodes.append(helper.make_node("Concat", parts, [name], axis=0))
        else:
            longer = add(f"{name}/longer", np.concatenate([values[:1] * 3, values]))
            bounds = [add(f"{name}/start", np.asarray([1])), add(f"{name}/end", np.asarray([99]))]
            nodes.append(helper.make_node("Slice", [longer, *bounds], [name]))
    nodes.extend(proto.graph.node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


DISGUISES = {
    "as it is": lambda proto: proto,
    "renamed": renamed,
    "renamed and shuffled": lambda proto: shuffled(renamed(proto)),
    "padded": lambda proto: renamed(padded(proto)),
    "products rewritten": lambda proto: shuffled(renamed(products_rewritten(proto))),
    "constants computed": lambda proto: shuffled(renamed(constants_computed(proto))),
    "activations decomposed": lambda proto: renamed(activations_decomposed(proto)),
    "all": lambda proto: shuffled(
        renamed(padded(activations_decomposed(products_rewritten(proto))))
    ),
}


# The quantizer.


@pytest.mark.parametrize("disguise", DISGUISES)
@pytest.mark.parametrize("settings", ["per tensor", "per channel", "uint8", "int16", "int4"])
@pytest.mark.parametrize("network", NETWORKS)
def test_originals_are_found_in_a_disguised_float_model(
    network, settings, disguise, cache, tmp_path_factory, tmp_path
):
    qdq, golden = quantized_once(cache, tmp_path_factory, network, settings)
    proto = DISGUISES[disguise](NETWORKS[network]())

    assert_all_found(qdq, golden, as_file(proto, tmp_path))


@pytest.mark.parametrize("network", NETWORKS)
def test_renaming_and_shuffling_leaves_every_place_recognizable(
    network, cache, tmp_path_factory, tmp_path
):
    qdq, golden = quantized_once(cache, tmp_path_factory, network, "per channel")
    proto = shuffled(renamed(NETWORKS[network]()))

    originals = assert_all_found(qdq, golden, as_file(proto, tmp_path))

    assert all("at the same place in both graphs" in text for text in originals.source.values())


@pytest.mark.parametrize("settings", ["per tensor", "per channel", "uint8", "int4"])
def test_a_folded_batch_normalization_is_folded_into_the_original(settings, tmp_path):
    if settings == "per channel":
        _skip_before_1_18()
    qdq, golden = quantized(residual_network(), tmp_path, preprocess=True, **settings_of(settings))
    assert "BatchNormalization" not in {node.op_type for node in qdq.graph.node}
    proto = shuffled(renamed(padded(residual_network())))

    assert_all_found(qdq, golden, as_file(proto, tmp_path), tolerance=2e-6)


def classifier():
    """Return the real classifier in an opset that the quantizer takes; no operator changed."""
    proto = onnx.load(CLASSIFIER / "cls_original_float_model.onnx")
    del proto.opset_import[:]
    proto.opset_import.append(helper.make_opsetid("", 13))
    return proto


@pytest.mark.parametrize("settings", ["per tensor", "per channel", "uint8", "int4"])
def test_all_weights_of_the_real_classifier_are_found(settings, tmp_path):
    qdq, golden = quantized(classifier(), tmp_path, preprocess=True, **settings_of(settings))

    originals = assert_all_found(
        qdq, golden, CLASSIFIER / "cls_original_float_model.onnx", tolerance=1e-5
    )

    assert len(originals.found) > 100
