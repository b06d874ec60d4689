"""Original weights of QDQ models of ONNX Runtime's quantizer, found in disguised float models.

What is right is known from outside: the quantizer names an integer constant after the float one
that it was made of, which the matcher never looks at.
"""

from __future__ import annotations

import copy
import logging
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hbdebug.errors import ModelError
from hbdebug.loading.originals import match_originals
from hbdebug.loading.protobuf import read_model
from tests.loading.qdq_twin import twin
from tests.models import GraphBuilder

CLASSIFIER = Path(__file__).parents[2] / "fixtures" / "textline_cls"


class FloatModel(GraphBuilder):
    """Collects nodes of a float model; every method returns the name of the tensor it makes."""

    def __init__(self, seed=0):
        super().__init__()
        self.random = np.random.default_rng(seed)

    def normal(self, *shape, scale=0.2, mean=0.0):
        values = self.random.normal(mean, scale, shape).astype(np.float32)
        return self.constant(f"c{len(self.initializers)}", values)

    def node(self, op_type, *inputs, outputs=1, **attributes):
        name = f"{op_type}_{len(self.nodes)}"
        made = [f"{name}_out{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name=name, **attributes))
        return made[0]

    def conv(self, x, cin, cout, *, kernel=3, bias=True, group=1):
        inputs = [x, self.normal(cout, cin // group, kernel, kernel)]
        inputs += [self.normal(cout)] if bias else []
        pads = [kernel // 2] * 4
        return self.node("Conv", *inputs, kernel_shape=[kernel, kernel], pads=pads, group=group)

    def norm(self, x, channels):
        gamma = self.normal(channels, mean=1.0)
        shift = self.normal(channels)
        mean = self.normal(channels)
        variance = self.constant(
            f"c{len(self.initializers)}",
            self.random.uniform(0.5, 2, channels).astype(np.float32),
        )
        return self.node("BatchNormalization", x, gamma, shift, mean, variance, epsilon=1e-3)

    def ints(self, *values):
        return self.constant(f"c{len(self.initializers)}", np.asarray(values, np.int64))

    def linear(self, x, inner, outer):
        return self.node(
            "Add", self.node("MatMul", x, self.normal(inner, outer)), self.normal(outer)
        )

    def proto(self, opset=17):
        return helper.make_model(
            helper.make_graph(self.nodes, "float", self.inputs, self.outputs, self.initializers),
            opset_imports=[helper.make_opsetid("", opset)],
            ir_version=8,
        )

    def finish(self, tensor, shape):
        """Make a tensor the output."""
        name = f"output{len(self.outputs)}"
        self.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"{name}_identity"))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))


def residual_network(*, norm=True, seed=0):
    """Convolutions with BatchNormalization, a residual block, a depthwise one, a head."""
    b = FloatModel(seed)
    x = b.input("x", (1, 3, 8, 8))

    def block(x, cin, cout, *, act, **settings):
        x = b.conv(x, cin, cout, bias=not norm, **settings)
        x = b.norm(x, cout) if norm else x
        if act == "Clip":
            limits = [b.constant(f"c{len(b.initializers)}", np.float32(0))]
            limits.append(b.constant(f"c{len(b.initializers)}", np.float32(6)))
            return b.node("Clip", x, *limits)
        return b.node(act, x) if act else x

    x = block(x, 3, 8, act="Relu")
    for _ in range(3):
        y = block(x, 8, 8, act="Clip")
        y = block(y, 8, 8, act="Relu", group=8)
        y = block(y, 8, 8, act="", kernel=1)
        x = b.node("Relu", b.node("Add", x, y))
    x = b.node("ConvTranspose", x, b.normal(8, 4, 2, 2), b.normal(4), strides=[2, 2])
    x = b.node("Flatten", b.node("GlobalAveragePool", x))
    x = b.node("Gemm", x, b.normal(10, 4), b.normal(10), transB=1)
    b.finish(x, (1, 10))
    return b.proto()


def twin_branches():
    """Four convolutions of one shape read the same tensor, and nothing else tells them apart."""
    b = FloatModel(1)
    x = b.node("Relu", b.conv(b.input("x", (1, 3, 8, 8)), 3, 4))
    branches = [b.conv(x, 4, 4) for _ in range(4)]
    x = b.node("Add", b.node("Add", branches[0], branches[1]), b.node("Add", *branches[2:]))
    b.finish(b.conv(x, 4, 2), (1, 2, 8, 8))
    return b.proto()


def attention_network(layers=3):
    """An encoder: embedding, positions, attention with heads, feed-forward, norms."""
    b = FloatModel(2)
    tokens = b.input("x", (1, 6), TensorProto.INT64)
    x = b.node("Add", b.node("Gather", b.normal(20, 16), tokens), b.normal(1, 6, 16))
    for _ in range(layers):
        y = b.node("LayerNormalization", x, b.normal(16, mean=1.0), b.normal(16))
        heads = []
        for axes in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
            head = b.node("Reshape", b.linear(y, 16, 16), b.ints(1, 6, 2, 8))
            heads.append(b.node("Transpose", head, perm=axes))
        scores = b.node("MatMul", heads[0], heads[1])
        scale = b.constant(f"c{len(b.initializers)}", np.float32(8**-0.5))
        scores = b.node("Softmax", b.node("Mul", scores, scale), axis=-1)
        y = b.node("Transpose", b.node("MatMul", scores, heads[2]), perm=[0, 2, 1, 3])
        y = b.linear(b.node("Reshape", y, b.ints(1, 6, 16)), 16, 16)
        x = b.node("Add", x, y)
        y = b.node("LayerNormalization", x, b.normal(16, mean=1.0), b.normal(16))
        y = b.node("Sigmoid", b.linear(y, 16, 32))
        x = b.node("Add", x, b.linear(y, 32, 16))
    b.finish(b.linear(x, 16, 5), (1, 6, 5))
    return b.proto()


def recurrent_network():
    """Convolution, LSTM, GRU, and a product behind each."""
    b = FloatModel(3)
    x = b.node("Relu", b.conv(b.input("x", (1, 1, 4, 8)), 1, 4))
    x = b.node("Reshape", b.node("Transpose", x, perm=[3, 0, 1, 2]), b.ints(8, 1, 16))
    x = b.node("LSTM", x, b.normal(1, 24, 16), b.normal(1, 24, 6), b.normal(1, 48), hidden_size=6)
    x = b.linear(b.node("Squeeze", x, b.ints(1)), 6, 6)
    x = b.node("GRU", x, b.normal(1, 18, 6), b.normal(1, 18, 6), b.normal(1, 36), hidden_size=6)
    b.finish(b.linear(b.node("Squeeze", x, b.ints(1)), 6, 6), (8, 1, 6))
    return b.proto()


NETWORKS = {
    "residual": residual_network,
    "branches": twin_branches,
    "attention": attention_network,
    "recurrent": recurrent_network,
}


# What exporters and optimizers do to a float model.


def renamed(proto, seed=5):
    """Give every node and tensor another name, the ends of the graph included."""
    proto = copy.deepcopy(proto)
    random = np.random.default_rng(seed)
    names = {}

    def new(name):
        return names.setdefault(name, f"t{random.integers(1 << 40):x}") if name else ""

    for node in proto.graph.node:
        node.name = f"n{random.integers(1 << 40):x}"
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
    for item in (*proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        item.name = new(item.name)
    del proto.graph.value_info[:]
    return proto


def shuffled(proto, seed=6):
    """Put the nodes in another order in which each still follows what it reads."""
    proto = copy.deepcopy(proto)
    random = np.random.default_rng(seed)
    left, done, order = list(proto.graph.node), set(), []
    made = {name for node in left for name in node.output}
    while left:
        ready = [node for node in left if not (set(node.input) & made) - done]
        node = ready[random.integers(len(ready))]
        left.remove(node)
        done.update(node.output)
        order.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(order)
    return proto


def padded(proto):
    """Put what changes nothing between nodes, and behind initializers."""
    proto = copy.deepcopy(proto)
    nodes, outputs = [], {item.name for item in proto.graph.output}
    for index, item in enumerate(list(proto.graph.initializer)):
        if index % 3 == 0:
            inner = f"{item.name}/inner"
            nodes.append(helper.make_node("Identity", [inner], [item.name]))
            item.name = inner
        elif index % 3 == 1:
            nodes.append(helper.make_node("Constant", [], [item.name], value=item))
            proto.graph.initializer.remove(item)
    for node in proto.graph.node:
        for index, name in enumerate(node.output):
            if name not in outputs and index == 0:
                node.output[0] = f"{name}/inner"
                op_type = ("Identity", "Dropout")[len(nodes) % 2]
                nodes.append(node)
                nodes.append(helper.make_node(op_type, [f"{name}/inner"], [name]))
                break
        else:
            nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


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


class Reader:
    """Hands random samples to the quantizer."""

    def __init__(self, proto, seed=9):
        random = np.random.default_rng(seed)
        initializers = {item.name for item in proto.graph.initializer}
        self.samples = []
        for _ in range(2):
            sample = {}
            for item in proto.graph.input:
                if item.name in initializers:
                    continue
                shape = [size.dim_value or 1 for size in item.type.tensor_type.shape.dim]
                integers = item.type.tensor_type.elem_type == TensorProto.INT64
                sample[item.name] = (
                    random.integers(0, 20, shape)
                    if integers
                    else random.normal(0, 1, shape).astype(np.float32)
                )
            self.samples.append(sample)

    def get_next(self):
        return self.samples.pop() if self.samples else None


def quantized(proto, folder, *, preprocess=False, **settings):
    """Return the QDQ model, and the float initializers of what was quantized."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Samples(Reader, CalibrationDataReader):
        pass

    source, target = folder / "source.onnx", folder / "qdq.onnx"
    onnx.save(proto, source)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # What ONNX Runtime's Python warns of is not what is tested.
            warnings.simplefilter("ignore")
            if preprocess:
                quant_pre_process(source, folder / "pre.onnx", skip_symbolic_shape=True)
                source = folder / "pre.onnx"
            quantize_static(source, target, Samples(proto), **settings)
    finally:
        logging.disable(logging.NOTSET)
    floats = onnx.load(source).graph.initializer
    return onnx.load(target), {item.name: numpy_helper.to_array(item) for item in floats}


def _skip_before_1_18():
    import onnxruntime

    if tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < (1, 18):
        pytest.skip("ONNX Runtime 1.17 cannot quantize all constants of it per channel")


def settings_of(name):
    from onnxruntime.quantization import QuantType

    if name == "int4" and not hasattr(QuantType, "QInt4"):
        pytest.skip("this ONNX Runtime does not quantize to int4")
    return {
        "per tensor": {},
        "per channel": {"per_channel": True},
        "uint8": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
        "int16": {
            "activation_type": QuantType.QInt16,
            "extra_options": {"UseQDQContribOps": True},
        },
        "int4": {
            "weight_type": getattr(QuantType, "QInt4", None),
            "extra_options": {"UseQDQContribOps": True},
        },
    }[name]


def assert_all_found(qdq, golden, file, *, tolerance=0.0):
    """Check that every constant has found its original, and that some are there."""
    model, wanted = twin(qdq)
    assert wanted

    originals = match_originals(model, wanted, file)

    assert not originals.unmatched
    for constant in wanted:
        right = golden[constant.removesuffix("_quantized")]
        found = originals.found[constant]
        assert found.shape == model.constants[constant].shape
        # Zero where values are only moved. Folding is done in double precision here and in single
        # precision by whoever folded, a few roundings of 6e-8 each; the sum in a bias may cancel.
        limit = tolerance * max(np.abs(right).max(), 1e-3)
        np.testing.assert_allclose(
            found,
            right.reshape(found.shape),
            rtol=0,
            atol=limit,
            err_msg=originals.source[constant],
        )
    return originals


def as_file(proto, folder):
    path = folder / "float.onnx"
    onnx.save(proto, path)
    return path


@pytest.fixture(scope="session")
def cache():
    return {}


def quantized_once(cache, tmp_path_factory, network, settings):
    if settings == "per channel" and network in ("attention", "residual"):
        _skip_before_1_18()
    key = network, settings
    if key not in cache:
        folder = tmp_path_factory.mktemp("qdq")
        cache[key] = quantized(NETWORKS[network](), folder, **settings_of(settings))
    return cache[key]


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


# Coarser and stranger than the quantizer makes them.


def rounded(proto, rounding):
    """Return a model whose float constants are rounded, and which they are.

    Args:
        proto: A float model without Constant nodes.
        rounding: Makes stored values of original ones.
    """
    proto = copy.deepcopy(proto)
    model, _ = twin(proto)
    wanted = [name for name, values in model.constants.items() if values.dtype == np.float32]
    stored = {name: rounding(model.constants[name]).astype(np.float32) for name in wanted}
    golden = {name: model.constants[name] for name in wanted}
    return replace(model, constants={**model.constants, **stored}), wanted, golden


def to_signs(values):
    """Round to one bit: of a normal distribution that keeps a cosine of 0.8."""
    return np.sign(values) * np.abs(values).mean() if values.size > 16 else values


def to_bytes(values):
    step = max(float(np.abs(values).max()), 1e-6) / 127
    return np.rint(values / step) * step


def assert_found(model, wanted, golden, file):
    originals = match_originals(model, wanted, file)

    assert not originals.unmatched
    for name in wanted:
        np.testing.assert_array_equal(originals.found[name], golden[name])
    return originals


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


# What is refused.


@pytest.mark.parametrize("settings", ["per tensor", "per channel", "int4"])
@pytest.mark.parametrize("network", ["residual", "attention"])
def test_weights_of_another_training_are_refused_with_the_numbers(
    network, settings, cache, tmp_path_factory, tmp_path
):
    qdq, _ = quantized_once(cache, tmp_path_factory, network, settings)
    other = NETWORKS[network]()
    random = np.random.default_rng(77)
    for item in other.graph.initializer:
        values = numpy_helper.to_array(item)
        if values.dtype == np.float32 and values.ndim:
            # Another draw, around zero, so that no value is near its old one.
            values = random.normal(0, values.std(), values.shape).astype(np.float32)
            item.CopyFrom(numpy_helper.from_array(values, item.name))
    model, wanted = twin(qdq)

    originals = match_originals(model, wanted, as_file(other, tmp_path))

    large = [name for name in wanted if model.constants[name].size >= 64]
    assert large
    assert not set(large) & originals.found.keys()
    for name in large:
        assert "differs too much (cosine " in originals.unmatched[name]
        assert "is it the model that was quantized?" in originals.unmatched[name]


def test_factors_around_one_are_told_from_those_of_another_training(
    cache, tmp_path_factory, tmp_path
):
    """Their cosine is near 1 whatever they belong to, but they are not on the stored grid."""
    qdq, golden = quantized_once(cache, tmp_path_factory, "attention", "per tensor")
    other = attention_network()
    random = np.random.default_rng(78)
    for item in other.graph.initializer:
        values = numpy_helper.to_array(item)
        if values.shape == (16,) and values.mean() > 0.7:
            values = random.normal(1, 0.2, values.shape).astype(np.float32)
            item.CopyFrom(numpy_helper.from_array(values, item.name))
    model, wanted = twin(qdq)
    factors = {
        name
        for name in wanted
        if model.constants[name].shape == (16,) and model.constants[name].mean() > 0.7
    }
    assert len(factors) == 6

    originals = match_originals(model, wanted, as_file(other, tmp_path))

    assert originals.unmatched.keys() == factors
    for name in originals.found:
        right = golden[name.removesuffix("_quantized")]
        np.testing.assert_array_equal(originals.found[name], right)


def test_weights_that_were_trained_further_are_found_and_the_difference_is_told(
    cache, tmp_path_factory, tmp_path
):
    qdq, golden = quantized_once(cache, tmp_path_factory, "branches", "per channel")
    other = renamed(twin_branches())
    random = np.random.default_rng(79)
    for item in other.graph.initializer:
        values = numpy_helper.to_array(item)
        values = values + random.normal(0, 0.05 * values.std(), values.shape).astype(np.float32)
        item.CopyFrom(numpy_helper.from_array(values, item.name))
    model, wanted = twin(qdq)

    originals = match_originals(model, wanted, as_file(other, tmp_path))

    weights = [name for name in wanted if model.constants[name].ndim == 4]
    assert len(weights) == 6
    for name in weights:
        right = golden[name.removesuffix("_quantized")]
        # The noise is 0.05 of the spread, and weights of this spread are at a distance of 1.4.
        distance = np.linalg.norm(originals.found[name] - right) / np.linalg.norm(right)
        assert 0.02 < distance < 0.1
        assert "% of the values are within a step of the stored ones" in originals.source[name]


def test_a_weight_of_a_shape_that_the_float_model_lacks_says_so(tmp_path):
    b = FloatModel()
    b.finish(b.conv(b.input("x", (1, 3, 8, 8)), 3, 4), (1, 4, 8, 8))
    model, wanted, _ = rounded(b.proto(), to_bytes)
    b = FloatModel()
    b.finish(b.conv(b.input("x", (1, 3, 8, 8)), 3, 4, kernel=1), (1, 4, 8, 8))

    originals = match_originals(model, wanted, as_file(b.proto(), tmp_path))

    expected = "the float model has no weight like this 4x3x3x3 of Conv"
    assert originals.unmatched["c0"] == expected


def test_one_of_several_alike_is_not_guessed(tmp_path):
    """Where places differ and values are few, what fits equally well is left alone."""
    b = FloatModel()
    x = b.input("x", (1, 8))
    for _ in range(2):
        x = b.node("Sigmoid", b.node("Mul", x, b.constant(f"m{len(b.nodes)}", np.float32(0.5))))
    b.finish(b.node("MatMul", x, b.normal(8, 3)), (1, 3))
    model, _, _ = rounded(b.proto(), to_bytes)
    other = FloatModel()
    x = other.input("x", (1, 8))
    x = other.node("MatMul", x, other.normal(8, 8, mean=5))
    x = other.node("Mul", x, other.constant("half", np.float32(0.51)))
    x = other.node("MatMul", x, other.normal(8, 4, mean=5))
    other.finish(other.node("MatMul", x, other.normal(4, 3, mean=5)), (1, 3))

    originals = match_originals(model, ["m0"], as_file(other.proto(), tmp_path))

    assert "none is close enough to be recognized" in originals.unmatched["m0"]


def test_a_quantized_model_in_the_float_models_place_is_refused(cache, tmp_path_factory, tmp_path):
    qdq, _ = quantized_once(cache, tmp_path_factory, "branches", "per tensor")
    model, wanted = twin(qdq)
    path = as_file(qdq, tmp_path)

    with pytest.raises(ModelError) as caught:
        match_originals(model, wanted, path)

    assert str(path) in str(caught.value)
    assert "is no float model: it holds DequantizeLinear and QuantizeLinear" in str(caught.value)
    assert "Give the float ONNX file that was quantized" in str(caught.value)


def test_a_calibrated_model_in_the_float_models_place_is_refused(cache, tmp_path_factory):
    qdq, _ = quantized_once(cache, tmp_path_factory, "branches", "per tensor")
    model, wanted = twin(qdq)

    with pytest.raises(ModelError, match="is no float model: it holds HzCalibration"):
        match_originals(model, wanted, CLASSIFIER / "cls_calibrated_model.onnx")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("attention", "its input x is 1x6, and input x of the quantized model 1x3x8x8"),
        (
            "residual",
            "its output output0 is 1x10, and output output0 of the quantized model 1x2x8x8",
        ),
    ],
)
def test_another_network_in_the_float_models_place_is_refused(
    network, message, cache, tmp_path_factory, tmp_path
):
    qdq, _ = quantized_once(cache, tmp_path_factory, "branches", "per tensor")
    model, wanted = twin(qdq)

    with pytest.raises(ModelError, match=message):
        match_originals(model, wanted, as_file(NETWORKS[network](), tmp_path))


def test_a_file_that_was_read_is_not_changed(cache, tmp_path_factory, tmp_path):
    qdq, _ = quantized_once(cache, tmp_path_factory, "residual", "per tensor")
    model, wanted = twin(qdq)
    file = read_model(as_file(residual_network(), tmp_path))
    before = file.proto.SerializeToString(deterministic=True)
    stored = {name: values.copy() for name, values in model.constants.items()}

    originals = match_originals(model, wanted, file)

    assert originals.found.keys() == set(wanted)
    assert file.proto.SerializeToString(deterministic=True) == before
    for name, values in stored.items():
        np.testing.assert_array_equal(model.constants[name], values)


# Float models in every condition.


def two_inputs(names):
    """Two inputs that are treated differently, in the order of their names given."""
    b = FloatModel(6)
    for name in names:
        b.input(name, (1, 8))
    weights = [b.normal(8, 8) for _ in range(2)]
    biases = [b.normal(8) for _ in range(2)]
    halves = [
        b.node("Add", b.node("MatMul", name, weight), bias)
        for name, weight, bias in zip(("left", "right"), weights, biases, strict=True)
    ]
    b.finish(b.node("Concat", *halves, axis=1), (1, 16))
    return b.proto()


def test_inputs_in_another_order_are_told_by_their_names(tmp_path):
    model, wanted, golden = rounded(two_inputs(["left", "right"]), to_bytes)

    file = as_file(two_inputs(["right", "left"]), tmp_path)

    originals = assert_found(model, wanted, golden, file)
    assert all("at the same place in both graphs" in text for text in originals.source.values())


@pytest.mark.parametrize(
    "value",
    [
        {"value_float": 0.5},
        {"value": numpy_helper.from_array(np.asarray(0.5, np.float32))},
        {"value_floats": [0.5]},
    ],
)
def test_constant_nodes_hold_their_value_in_any_attribute(value, tmp_path):
    def network():
        b = FloatModel(7)
        x = b.input("x", (1, 8))
        b.constant("half", np.asarray(0.5, np.float32))
        b.finish(
            b.node("MatMul", b.node("Sigmoid", b.node("Mul", x, "half")), b.normal(8, 3)), (1, 3)
        )
        return b.proto()

    model, wanted, golden = rounded(network(), to_bytes)
    other = network()
    del other.graph.initializer[0]
    other.graph.node.insert(0, helper.make_node("Constant", [], ["half"], **value))

    originals = match_originals(model, wanted, as_file(renamed(other), tmp_path))

    assert not originals.unmatched
    assert originals.found["half"].shape == ()
    assert originals.found["half"] == golden["half"]


def test_a_constant_of_strings_is_passed_over(tmp_path):
    model, wanted, golden = rounded(twin_branches(), to_bytes)
    other = twin_branches()
    other.graph.node.append(helper.make_node("Constant", [], ["s"], value_strings=["a", "b"]))

    assert_found(model, wanted, golden, as_file(other, tmp_path))


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 3e38])
def test_values_that_are_no_weights_are_refused(value, tmp_path):
    model, wanted, golden = rounded(residual_network(), to_bytes)
    other = residual_network()
    # The weight of the second convolution, and what its BatchNormalization divides by.
    for index in (5, 9):
        item = other.graph.initializer[index]
        values = np.full_like(numpy_helper.to_array(item), value)
        item.CopyFrom(numpy_helper.from_array(values, item.name))

    originals = match_originals(model, wanted, as_file(other, tmp_path))

    assert originals.unmatched.keys() == {"c5", "c9"}
    for name, values in originals.found.items():
        np.testing.assert_array_equal(values, golden[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda graph: (
                graph.node[-2].attribute[0].CopyFrom(helper.make_attribute("transB", "yes"))
            ),
            "attribute transB is no number",
        ),
        (lambda graph: graph.node[3].input.__setitem__(0, graph.node[-2].output[0]), "has a cycle"),
        (lambda graph: graph.node[3].input.__setitem__(0, "nowhere"), "which nothing makes"),
    ],
)
def test_a_damaged_float_model_is_refused_with_its_name(change, message, tmp_path):
    model, wanted, _ = rounded(residual_network(), to_bytes)
    other = residual_network()
    change(other.graph)
    path = as_file(other, tmp_path)

    with pytest.raises(ModelError, match=message) as caught:
        match_originals(model, wanted, path)

    assert str(path) in str(caught.value)


@pytest.mark.slow
def test_a_thousand_nodes_with_100_mb_of_weights_take_seconds(tmp_path):
    """All convolutions are of one shape, so each could be any other."""

    def network():
        b = FloatModel(10)
        x = b.conv(b.input("x", (1, 3, 8, 8)), 3, 104)
        for _ in range(250):
            y = b.node("Relu", b.norm(b.conv(x, 104, 104), 104))
            x = b.node("Add", x, y)
        b.finish(b.conv(x, 104, 2), (1, 2, 8, 8))
        return b.proto()

    proto = network()
    assert len(proto.graph.node) > 1000
    model, wanted, golden = rounded(proto, to_bytes)
    assert sum(values.nbytes for values in golden.values()) > 97e6
    file = as_file(shuffled(renamed(proto)), tmp_path)

    started = time.perf_counter()
    originals = match_originals(model, wanted, file)
    seconds = time.perf_counter() - started

    assert originals.found.keys() == set(wanted)
    for name in wanted:
        np.testing.assert_array_equal(originals.found[name], golden[name])
    # It takes 1.5 s on a core of 2 GHz or so; comparing each with each would take minutes.
    assert seconds < 15
