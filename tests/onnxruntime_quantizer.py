"""Float models with real structure, and ONNX Runtime's static quantizer that makes QDQ of them."""

from __future__ import annotations

import logging
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from tests.models import GraphBuilder


def quantize(model: onnx.ModelProto, samples, folder, **settings) -> onnx.ModelProto:
    """Quantize a float model statically, in QDQ form.

    Args:
        model: The float model; it is optimized first, as ONNX Runtime's documentation asks for.
        samples: Inputs to calibrate on.
        folder: For files.
        settings: For `onnxruntime.quantization.quantize_static`.
    """
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self):
            return next(self.left, None)

    logging.disable(logging.WARNING)
    # Whether the quantizer of some version uses something deprecated is not our concern.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx.save(model, folder / "float.onnx")
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folder / "prepared.onnx")
        options.log_severity_level = 4
        onnxruntime.InferenceSession(
            str(folder / "float.onnx"), options, providers=["CPUExecutionProvider"]
        )
        quantization.quantize_static(
            folder / "prepared.onnx",
            folder / "qdq.onnx",
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            **settings,
        )
    logging.disable(logging.NOTSET)
    return onnx.load(folder / "qdq.onnx")


class FloatModel(GraphBuilder):
    """Collects nodes of a float model; every method returns the name of the tensor it makes."""

    def __init__(self, opset: int, seed: int = 0) -> None:
        super().__init__()
        self.opset = opset
        self.random = np.random.default_rng(seed)

    def node(self, op_type, inputs, name, *, outputs=1, **attributes):
        made = [f"{name}_out" if index == 0 else f"{name}_out{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name=name, **attributes))
        return made[0]

    def weight(self, name, *shape, spread=1.0):
        values = self.random.normal(0, spread * shape[0] ** -0.5, shape)
        return self.constant(name, values.astype(np.float32))

    def linear(self, x, name, cin, cout):
        x = self.node("MatMul", [x, self.weight(f"{name}_w", cin, cout)], f"{name}_matmul")
        return self.node("Add", [x, self.weight(f"{name}_b", cout)], f"{name}_add")

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "float", self.inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def attention(length: int = 10, width: int = 16, heads: int = 2) -> onnx.ModelProto:
    """A block of a transformer encoder, with layer normalization and a head of its own."""
    b = FloatModel(17)
    x = b.input("x", (1, length, width))
    split = b.constant("split", np.array([1, length, heads, width // heads]))
    joined = b.constant("joined", np.array([1, length, width]))
    ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
    norm = b.node(
        "LayerNormalization", [x, b.constant("gain", ones), b.constant("shift", zeros)], "norm"
    )
    turned = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        y = b.node("Reshape", [b.linear(norm, part, width, width), split], f"{part}_heads")
        turned[part] = b.node("Transpose", [y], f"{part}_turned", perm=order)
    scores = b.node("MatMul", [turned["query"], turned["key"]], "scores")
    scores = b.node(
        "Mul", [scores, b.constant("scale", np.full((1, 1, 1, 1), 0.35, np.float32))], "scaled"
    )
    y = b.node("MatMul", [b.node("Softmax", [scores], "softmax", axis=-1), turned["value"]], "mix")
    y = b.node("Transpose", [y], "mix_turned", perm=[0, 2, 1, 3])
    y = b.linear(b.node("Reshape", [y, joined], "mix_joined"), "project", width, width)
    x = b.node("Add", [x, y], "residual")
    y = b.node("Relu", [b.linear(x, "wide", width, 2 * width)], "relu")
    x = b.node("Add", [x, b.linear(y, "narrow", 2 * width, width)], "residual_2")
    b.output(b.linear(x, "head", width, 4))
    return b.proto()


def recurrent(length: int = 8, width: int = 12, cells: int = 10) -> onnx.ModelProto:
    """Convolution along time, an LSTM in both directions, and a linear layer."""
    b = FloatModel(13)
    x = b.input("x", (1, 4, length))
    x = b.node(
        "Conv",
        [x, b.weight("conv_w", width, 4, 3), b.weight("conv_b", width)],
        "conv",
        kernel_shape=[3],
        pads=[1, 1],
    )
    x = b.node("Transpose", [b.node("Relu", [x], "relu")], "turn", perm=[2, 0, 1])
    gates = 4 * cells
    weights = (
        b.weight("lstm_w", 2, gates, width, spread=0.4),
        b.weight("lstm_r", 2, gates, cells, spread=0.4),
        b.weight("lstm_b", 2, 2 * gates, spread=0.1),
    )
    x = b.node("LSTM", [x, *weights], "lstm", hidden_size=cells, direction="bidirectional")
    x = b.node("Transpose", [x], "turn_back", perm=[2, 0, 1, 3])
    x = b.node("Reshape", [x, b.constant("flat", np.array([1, length, 2 * cells]))], "flatten")
    b.output(b.linear(x, "head", 2 * cells, 5))
    return b.proto()


def samples_for(model: onnx.ModelProto, count: int = 4, seed: int = 1):
    """Return normal inputs of the model's shapes."""
    random = np.random.default_rng(seed)
    shapes = {
        item.name: [size.dim_value for size in item.type.tensor_type.shape.dim]
        for item in model.graph.input
    }
    return [
        {name: random.normal(0, 1, shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(count)
    ]


def float_run(model: onnx.ModelProto, sample):
    """Run a model as it is, without optimizations, and return its outputs by name."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, sample), strict=True))
