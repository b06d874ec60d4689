"""What the tests of original weights share."""

from __future__ import annotations

import copy
import logging
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hbdebug.loading.originals import match_originals
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


def quantized_once(cache, tmp_path_factory, network, settings):
    if settings == "per channel" and network in ("attention", "residual"):
        _skip_before_1_18()
    key = network, settings
    if key not in cache:
        folder = tmp_path_factory.mktemp("qdq")
        cache[key] = quantized(NETWORKS[network](), folder, **settings_of(settings))
    return cache[key]


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


def to_bytes(values):
    step = max(float(np.abs(values).max()), 1e-6) / 127
    return np.rint(values / step) * step


def assert_found(model, wanted, golden, file):
    originals = match_originals(model, wanted, file)

    assert not originals.unmatched
    for name in wanted:
        np.testing.assert_array_equal(originals.found[name], golden[name])
    return originals
