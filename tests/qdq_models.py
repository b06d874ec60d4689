"""Builders of small models with QuantizeLinear and DequantizeLinear, as exporters write them.

Every function of `FORMS` returns a model; inputs that fit come from `feeds`.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.models import GraphBuilder

# TensorProto.INT4 and UINT4, which onnx has since 1.16.
INT4, UINT4 = 22, 21

RANGES = {
    INT4: (-8, 7),
    UINT4: (0, 15),
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}
CONTRIB = "com.microsoft"


class QdqModel(GraphBuilder):
    """Collects nodes; every method returns the name of the tensor it makes."""

    def __init__(self, opset: int = 13, seed: int = 0, real: int = TensorProto.FLOAT) -> None:
        super().__init__()
        self.opset = opset
        self.real = real
        self.random = np.random.default_rng(seed)

    def node(self, op_type, inputs, name="", *, outputs=1, domain="", **attributes):
        name = name or f"{op_type}_{len(self.nodes)}"
        made = [f"{name}_out" if index == 0 else f"{name}_out{index}" for index in range(outputs)]
        node = helper.make_node(op_type, inputs, made, name=name, domain=domain, **attributes)
        self.nodes.append(node)
        return made[0]

    def integers(self, name, values, dtype=TensorProto.INT8):
        values = np.asarray(values)
        self.initializers.append(
            helper.make_tensor(name, dtype, values.shape, values.reshape(-1).tolist())
        )
        return name

    def reals(self, name, values):
        dtype = np.float16 if self.real == TensorProto.FLOAT16 else np.float32
        return self.constant(name, np.asarray(values, dtype))

    def grid(self, name, scale, zero_point=0, dtype=TensorProto.INT8):
        """Add a scale and its zero point, which may be None, and return their names."""
        names = [self.reals(f"{name}_scale", scale)]
        if zero_point is not None:
            zero = np.broadcast_to(np.asarray(zero_point), np.shape(scale))
            names.append(self.integers(f"{name}_zero_point", zero, dtype))
        return names

    def q(self, x, grid, name="", domain="", **attributes):
        name = name or f"{x}_QuantizeLinear"
        return self.node("QuantizeLinear", [x, *grid], name, domain=domain, **attributes)

    def dq(self, x, grid, name="", domain="", **attributes):
        name = name or f"{x}_DequantizeLinear"
        return self.node("DequantizeLinear", [x, *grid], name, domain=domain, **attributes)

    def pair(self, x, scale=0.05, zero_point=0, dtype=TensorProto.INT8, domain="", **attributes):
        grid = self.grid(f"{x}_{len(self.nodes)}", scale, zero_point, dtype)
        q = self.q(x, grid, f"{x}_QuantizeLinear_{len(self.nodes)}", domain, **attributes)
        return self.dq(q, grid, f"{x}_DequantizeLinear_{len(self.nodes)}", domain, **attributes)

    def stored(self, name, shape, *, dtype=TensorProto.INT8, channels=True, axis=0, domain=""):
        """Add a weight that is stored in integers, and return what dequantizes it."""
        low, high = RANGES[dtype]
        count = shape[axis] if channels else ()
        scale = self.random.uniform(0.5, 1.5, count) * 0.5 / high
        values = self.random.integers(low, high + 1, shape)
        if low == 0:
            values = np.clip(values, 0, 2 * (high // 2))
        grid = self.grid(name, scale, 0 if low else high // 2 + 1, dtype)
        self.integers(f"{name}_quantized", values, dtype)
        attributes = {"axis": axis} if channels else {}
        return self.dq(f"{name}_quantized", grid, f"{name}_DequantizeLinear", domain, **attributes)

    def bias(self, name, count, scale=1e-4):
        grid = [*self.grid(name, np.full(count, scale), None)]
        self.integers(
            f"{name}_quantized", self.random.integers(-3000, 3000, count), TensorProto.INT32
        )
        return self.dq(f"{name}_quantized", grid, f"{name}_DequantizeLinear", axis=0)

    def conv(self, x, sizes, name, **weight):
        cin, cout = sizes
        w = self.stored(f"{name}_w", (cout, cin, 3, 3), **weight)
        b = self.bias(f"{name}_b", cout)
        return self.node("Conv", [x, w, b], name, kernel_shape=[3, 3], pads=[1] * 4)

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, self.initializers)
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(CONTRIB, 1)]
        ir_version = 10 if self.opset >= 21 else 7
        return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def convolution(dtype=TensorProto.UINT8, zero_point=127, weight=TensorProto.INT8, **options):
    """Return what ONNX Runtime's quantizer makes of Conv, Relu, Conv."""
    opset = options.pop("opset", 13)
    domain = options.pop("domain", "")
    b = QdqModel(opset)
    scale = 0.02 if RANGES[dtype][1] < 300 else 1e-4
    x = b.pair(b.input("x", (1, 3, 8, 8)), scale, zero_point, dtype, domain)
    x = b.conv(x, (3, 4), "one", dtype=weight, domain=domain, **options)
    x = b.pair(b.node("Relu", [x], "relu"), scale, RANGES[dtype][0], dtype, domain)
    x = b.conv(x, (4, 2), "two", dtype=weight, domain=domain, **options)
    b.output(b.pair(x, scale, zero_point, dtype, domain))
    return b.proto()


def removed_activations():
    """Return a model whose Relu and Relu6 are left to the ranges of points."""
    b = QdqModel()
    x = b.pair(b.input("x", (1, 3, 8, 8)), 0.05, 3)
    x = b.pair(b.conv(x, (3, 4), "one"), 0.03, -128)
    x = b.pair(b.conv(x, (4, 4), "two"), np.float32(6) / np.float32(255), -128)
    b.output(b.pair(b.conv(x, (4, 2), "three"), 0.05, 0))
    return b.proto()


def double_pairs():
    b = QdqModel()
    x = b.input("x", (1, 3, 8, 8))
    x = b.pair(b.pair(x, 0.05), 0.02, -3)
    y = b.conv(x, (3, 3), "one")
    y = b.pair(b.pair(y, 0.38, 1), 0.16, -7)
    b.output(b.pair(b.node("Add", [x, y], "add"), 0.1))
    return b.proto()


def several_consumers():
    """One QuantizeLinear with two DequantizeLinear nodes, one of which two nodes read."""
    b = QdqModel()
    x = b.input("x", (1, 3, 8, 8))
    grid = b.grid("x", 0.04, 5)
    q = b.q(x, grid)
    left, right = b.dq(q, grid, "left"), b.dq(q, grid, "right")
    one, two = b.conv(left, (3, 3), "one"), b.conv(left, (3, 3), "two")
    b.output(b.node("Add", [b.node("Mul", [one, right], "mul"), two], "add"))
    return b.proto()


def dedicated_pairs():
    """A pair of its own for every consumer, their nodes called alike (DedicatedQDQPair)."""
    b = QdqModel()
    x = b.input("x", (1, 3, 8, 8))
    grid = b.grid("x", 0.04, 5)
    made = []
    for index in range(2):
        q = b.q(x, grid, f"q{index}")
        made.append(b.dq(q, grid, f"dq{index}"))
    for node in b.nodes:
        node.name = f"x_{node.op_type}"
    b.output(b.node("Mul", [b.conv(made[0], (3, 3), "one"), made[1]], "mul"))
    return b.proto()


def far_apart():
    """Integers are pooled, padded, turned and cut before they are dequantized."""
    b = QdqModel()
    x = b.input("x", (1, 4, 8, 8))
    grid = b.grid("x", 0.04, 9)
    q = b.q(x, grid)
    q = b.node("MaxPool", [q], "pool", kernel_shape=[2, 2], strides=[2, 2])
    q = b.node("Pad", [q, b.constant("pads", np.array([0, 0, 1, 0, 0, 0, 0, 1]))], "pad")
    q = b.node("Transpose", [q], "turn", perm=[0, 2, 3, 1])
    first = b.node("Split", [q], "cut", outputs=2, axis=3)
    q = b.node("Concat", ["cut_out1", first], "joined", axis=3)
    x = b.dq(q, grid)
    b.output(b.node("Mul", [x, b.reals("two", 2.0)], "mul"))
    b.output(b.dq("cut_out1", grid, "second"))
    return b.proto()


def clipped_integers():
    b = QdqModel()
    grid = b.grid("x", 0.04, 9)
    q = b.q(b.input("x", (1, 4, 8, 8)), grid)
    bounds = b.integers("low", -20), b.integers("high", 33)
    q = b.node("Clip", [q, *bounds], "clip")
    b.output(b.node("Exp", [b.dq(q, grid)], "exp"))
    return b.proto()


def products():
    """Products with one row, whose sum ONNX Runtime orders by whether the weight is a constant."""
    b = QdqModel()
    x = b.pair(b.input("x", (1, 200)), 0.02)
    y = b.node("MatMul", [x, b.stored("w", (200, 5), axis=1)], "matmul")
    z = b.node("Gemm", [x, b.stored("v", (5, 200)), b.bias("c", 5)], "gemm", transB=1)
    b.output(y)
    b.output(z)
    return b.proto()


def recurrent():
    """An LSTM with stored weights."""
    b = QdqModel(14)
    x = b.pair(b.input("x", (6, 1, 40)), 0.02)
    w, r = b.stored("w", (1, 64, 40), axis=1), b.stored("r", (1, 64, 16), axis=1)
    b.output(b.node("LSTM", [x, w, r], "lstm", hidden_size=16))
    return b.proto()


def seven_bits():
    """Seven bits of a type of eight, by a Clip between the two nodes (PyTorch's reduced range)."""
    b = QdqModel()
    x = b.input("x", (1, 4, 8, 8))
    for low, high in (("low", ""), ("", "high"), ("low2", "high2")):
        grid = b.grid(f"{x}_grid", 0.02, 5)
        for name, value in ((low, -30), (high, 64)):
            if name:
                b.integers(name, value)
        q = b.node("Clip", [b.q(x, grid), low, high], f"{x}_clip")
        x = b.node("Neg", [b.dq(q, grid)], f"{x}_neg")
    b.output(x)
    return b.proto()


def per_channel_turned():
    """Per-channel scales whose axis a Transpose moves; also one that counts from the end."""
    b = QdqModel()
    scale = b.random.uniform(0.01, 0.05, 4)
    zero = [3, -2, 0, 7]
    grid = b.grid("x", scale, zero)
    q = b.q(b.input("x", (2, 3, 4)), grid, axis=-1)
    q = b.node("Transpose", [q], "turn", perm=[2, 0, 1])
    b.output(b.node("Neg", [b.dq(q, grid, axis=0)], "neg"))
    return b.proto()


def embedding():
    """Stored integers are gathered before they are dequantized."""
    b = QdqModel()
    grid = b.grid("table", 0.01, 4)
    table = b.integers("table_quantized", b.random.integers(-128, 128, (20, 6)))
    ids = b.input("ids", (1, 5), TensorProto.INT64)
    q = b.node("Gather", [table, ids], "gather")
    x = b.dq(q, grid)
    w = b.stored("w", (6, 3), axis=1)
    b.output(b.node("MatMul", [b.pair(x, 0.02), w], "matmul"))
    return b.proto()


def prepared_weights():
    """Weights that Transpose and Identity prepare, on either side of DequantizeLinear."""
    b = QdqModel()
    x = b.pair(b.input("x", (2, 6)), 0.03)
    grid = b.grid("w", b.random.uniform(0.001, 0.01, 4))
    b.integers("w_quantized", b.random.integers(-128, 128, (4, 6)))
    turned = b.node("Transpose", ["w_quantized"], "turn", perm=[1, 0])
    x = b.node("MatMul", [x, b.dq(turned, grid, axis=1)], "matmul")
    weight = b.reals("v", b.random.normal(0, 0.3, (5, 4)))
    v = b.pair(b.node("Identity", [weight], "same"), 0.01)
    v = b.node("Transpose", [v], "turn_back", perm=[1, 0])
    b.output(b.node("MatMul", [b.pair(x, 0.02, 5), v], "matmul_2"))
    return b.proto()


def shared_integers():
    """One stored constant under two grids, and twice under one of them (tied weights)."""
    b = QdqModel()
    x = b.pair(b.input("x", (1, 3, 6, 6)), 0.03)
    b.integers("w_quantized", b.random.integers(-128, 128, (3, 3, 3, 3)))
    one, two = b.grid("one", 0.002), b.grid("two", 0.003, 5)
    for index, grid in enumerate((one, two, one)):
        w = b.dq("w_quantized", grid, f"w_DequantizeLinear_{index}")
        x = b.node("Conv", [x, w], f"conv_{index}", kernel_shape=[3, 3], pads=[1] * 4)
        x = b.pair(x, 0.05, index)
    b.output(x)
    return b.proto()


def integer_ends():
    """The user feeds integers; they are dequantized first."""
    b = QdqModel()
    grid = b.grid("x", 0.02, 128, TensorProto.UINT8)
    x = b.dq(b.input("x", (1, 3, 8, 8), TensorProto.UINT8), grid)
    b.output(b.pair(b.conv(x, (3, 2), "one"), 0.05))
    return b.proto()


def blocks():
    """Weights and an activation in blocks, the last one shorter (opset 21)."""
    b = QdqModel(21)
    x = b.input("x", (2, 40))
    grid = b.grid("x", b.random.uniform(0.01, 0.05, (2, 3)), 2)
    x = b.dq(b.q(x, grid, axis=1, block_size=16), grid, axis=1, block_size=16)
    grid = b.grid("w", b.random.uniform(0.01, 0.05, (5, 6)), 3, INT4)
    b.integers("w_quantized", b.random.integers(-8, 8, (40, 6)), INT4)
    w = b.dq("w_quantized", grid, axis=0, block_size=8)
    b.output(b.node("MatMul", [x, w], "matmul"))
    return b.proto()


def half_precision():
    """Scales and real numbers of type float16 (opset 19)."""
    b = QdqModel(19, real=TensorProto.FLOAT16)
    x = b.pair(b.input("x", (1, 40), TensorProto.FLOAT16), 0.03, 5)
    w = b.stored("w", (40, 6), axis=1)
    x = b.pair(b.node("MatMul", [x, w], "matmul"), 0.05, -7)
    b.output(b.node("Relu", [x], "relu"), TensorProto.FLOAT16)
    return b.proto()


def no_zero_points():
    """Without a zero point the type is uint8, or that of the integers."""
    b = QdqModel(10)
    scale = [b.reals("scale", 0.02)]
    x = b.dq(b.q(b.input("x", (2, 6)), scale), scale)
    b.integers("w_quantized", b.random.integers(-128, 128, (6, 4)))
    b.output(b.node("MatMul", [x, b.dq("w_quantized", scale)], "matmul"))
    return b.proto()


def odd_scales():
    """Channels with a scale of zero, as pruned models have them, and a tiny one."""
    b = QdqModel()
    x = b.pair(b.input("x", (2, 6)), 0.02)
    grid = b.grid("w", [0.01, 0.0, 1e-30, 0.02], 0)
    b.integers("w_quantized", b.random.integers(-128, 128, (6, 4)))
    x = b.node("MatMul", [x, b.dq("w_quantized", grid, axis=1)], "matmul")
    b.output(b.pair(x, [0.01, 0.0, 1e-30, 0.02], 0, axis=1))
    return b.proto()


def captured():
    """A branch reads, from outside, what a pair makes."""
    b = QdqModel()
    x = b.pair(b.input("x", (1, 4)), 0.02, 3)
    outer = b.pair(b.node("Neg", [x], "neg"), 0.05)
    flag = b.node("Greater", [b.node("ReduceMax", [x], "max", keepdims=0), b.reals("zero", 0.0)])
    branches = {
        side: helper.make_graph(
            [helper.make_node(op_type, [outer], [side], name=f"in_{side}")],
            side,
            [],
            [helper.make_tensor_value_info(side, TensorProto.FLOAT, None)],
        )
        for side, op_type in (("then", "Exp"), ("else", "Abs"))
    }
    made = b.node("If", [flag], "if", then_branch=branches["then"], else_branch=branches["else"])
    b.output(b.pair(made, 0.03))
    return b.proto()


def contrib_16_bit():
    """ONNX Runtime's own domain, with 16 bits before opset 21 had them (case 32)."""
    return convolution(TensorProto.INT16, 0, domain=CONTRIB)


def relu_in_16_bit():
    """Relu in front of an int16 pair, at the size of the report (case 30)."""
    b = QdqModel()
    x = b.node("Relu", [b.input("x", (1, 64, 64, 128))], "relu")
    b.output(b.pair(x, 0.0001, 100, TensorProto.INT16, CONTRIB))
    return b.proto()


def as_pairs(calibrated: onnx.ModelProto, model) -> onnx.ModelProto:
    """Return a calibrated model with pairs of the same grids in place of its points.

    Args:
        calibrated: A model with HzCalibration nodes and without the vendor's other operators.
        model: The same, loaded; its grids are taken.
    """
    b = GraphBuilder()
    for node in calibrated.graph.node:
        if node.op_type != "HzCalibration":
            b.nodes.append(node)
            continue
        params = model.point_by_name[node.name].params
        names = [b.constant(f"{node.name}_scale", params.scale)]
        zero = np.zeros(params.scale.shape, params.dtype)
        names.append(b.constant(f"{node.name}_zero_point", zero))
        attributes = {"axis": params.axis} if params.per_channel else {}
        between = f"{node.name}_integers"
        for op_type, ends in (
            ("QuantizeLinear", (node.input[0], between)),
            ("DequantizeLinear", (between, node.output[0])),
        ):
            b.nodes.append(
                helper.make_node(
                    op_type, [ends[0], *names], [ends[1]], f"{node.name}_{op_type}", **attributes
                )
            )
    graph = helper.make_graph(
        b.nodes,
        "pairs",
        calibrated.graph.input,
        calibrated.graph.output,
        [*calibrated.graph.initializer, *b.initializers],
    )
    # Quantize of int16 came with opset 21; nothing else in these graphs changed since 11.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


FORMS = {
    "uint8": convolution,
    "uint8_symmetric_127": lambda: convolution(zero_point=127),
    "uint8_symmetric_128": lambda: convolution(zero_point=128),
    "int8": lambda: convolution(TensorProto.INT8, 0),
    "int8_asymmetric": lambda: convolution(TensorProto.INT8, -37),
    "int8_per_tensor": lambda: convolution(TensorProto.INT8, 11, channels=False),
    "uint8_weights": lambda: convolution(weight=TensorProto.UINT8),
    "int16": lambda: convolution(TensorProto.INT16, 5, opset=21),
    "uint16": lambda: convolution(TensorProto.UINT16, 30001, opset=21),
    "int4_weights": lambda: convolution(weight=INT4, opset=21),
    "uint4_weights": lambda: convolution(weight=UINT4, opset=21),
    "opset_23": lambda: convolution(opset=23),
    "contrib_16_bit": contrib_16_bit,
    "relu_in_16_bit": relu_in_16_bit,
    "removed_activations": removed_activations,
    "double_pairs": double_pairs,
    "several_consumers": several_consumers,
    "dedicated_pairs": dedicated_pairs,
    "far_apart": far_apart,
    "clipped_integers": clipped_integers,
    "products": products,
    "recurrent": recurrent,
    "seven_bits": seven_bits,
    "per_channel_turned": per_channel_turned,
    "embedding": embedding,
    "prepared_weights": prepared_weights,
    "shared_integers": shared_integers,
    "integer_ends": integer_ends,
    "blocks": blocks,
    "half_precision": half_precision,
    "no_zero_points": no_zero_points,
    "odd_scales": odd_scales,
    "captured": captured,
}
"""Name of a form -> the function that makes a model of it."""

# Of float16, ONNX Runtime 1.17 rounds some values otherwise than later versions do.
OPSETS = dict.fromkeys(
    (
        "int16",
        "uint16",
        "int4_weights",
        "uint4_weights",
        "blocks",
        "half_precision",
    ),
    21,
) | {"opset_23": 23}
"""Forms that need a newer opset than every supported onnx and ONNX Runtime has -> that opset."""


def forms():
    """Return the forms as parameters of a test; what the installed onnx cannot hold is skipped."""
    newest = onnx.defs.onnx_opset_version()
    return [
        pytest.param(
            form,
            marks=pytest.mark.skipif(
                OPSETS.get(form, 0) > newest, reason=f"this onnx has no opset {OPSETS.get(form)}"
            ),
        )
        for form in FORMS
    ]


def feeds(model: onnx.ModelProto, count: int = 2, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Return inputs for a model: normal numbers, or integers that any input here may hold."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        sample = {}
        for item in model.graph.input:
            tensor = item.type.tensor_type
            shape = [size.dim_value for size in tensor.shape.dim]
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            real = dtype in (np.float32, np.float16)
            values = random.normal(0, 2, shape) if real else random.integers(0, 20, shape)
            sample[item.name] = values.astype(dtype)
        found.append(sample)
    return found
