"""Where the converter puts Transposes and Clips: convert small nets with it, keep both stages.

    python benchmarks/measure_layout.py fixtures/golden_layout.tar.xz
    python benchmarks/measure_layout.py fixtures/golden_layout_bernoulli2.tar.xz --march bernoulli2

Needs HMCT's Python package (``horizon_nn``) and its ``bin`` directory on PATH. Each net is made
for one question, such as a Slice in front of a convolution, or two Transposes behind one. The
archive holds ``NAME.calibrated.onnx`` and ``NAME.quantized.onnx`` as the converter wrote them
for a march; for a net with settings (a node on the CPU, or set to int16), the calibrated stage
is that without them. ``cases.json`` in it says which settings: NAME -> {"cpu": [...], "int16":
[...]}. Thresholds come from noise.
"""

# ruff: noqa: ANN001, ANN002, ANN003, ANN201, ANN202, TID251
# Runs beside the vendor's package, with Python 3.10 and without hbdebug's own dependencies, and
# makes ONNX models itself.

from __future__ import annotations

import argparse
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

import numpy as np
import onnx
from measure_lift_rules import _silence, _working_folder
from onnx import TensorProto, helper, numpy_helper

IMAGE = [1, 4, 16, 12]
LAST = [0, 2, 3, 1]
FIRST = [0, 3, 1, 2]
TURNED = [0, 1, 3, 2]
KEYS = {"cpu": {"ON": "CPU"}, "int16": {"InputType": "int16"}, "bpu": {"ON": "BPU"}}


class Net:
    """A float graph of images; nodes are called after their operator and their number."""

    def __init__(self, **inputs) -> None:
        self.inputs = inputs or {"x": IMAGE}
        self.random = np.random.default_rng(3)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value) -> str:
        """Add a constant; integers are int64, everything else float32."""
        value = np.asarray(value)
        value = value.astype(np.int64 if value.dtype.kind == "i" else np.float32)
        self.constants.append(numpy_helper.from_array(value, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.normal(size=shape) * 0.3)

    def op(self, op_type: str, *inputs, outputs: int = 1, **attributes):
        """Add a node; of several outputs, return all. What is no name becomes a constant."""
        names = [item if isinstance(item, str) else self.constant(item) for item in inputs]
        name = f"{op_type}_{len(self.nodes)}"
        made = [f"{name}_out{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, names, made, name=name, **attributes))
        return made[0] if outputs == 1 else made

    def conv(self, x: str = "x", channels: int = 4, kernel: int = 3) -> str:
        weights = self.weight(4, channels, kernel, kernel), self.weight(4)
        pads = [kernel // 2] * 4
        return self.op("Conv", x, *weights, kernel_shape=[kernel, kernel], pads=pads)

    def turn(self, x: str, perm: list[int]) -> str:
        return self.op("Transpose", x, perm=perm)

    def slice(self, x: str, start: int, end: int, axis: int) -> str:
        return self.op("Slice", x, [start], [end], [axis])

    def split(self, x: str, axis: int) -> list[str]:
        return self.op("Split", x, outputs=2, axis=axis, split=[2, 2])

    def pooled(self) -> str:
        return self.op("GlobalAveragePool", self.conv())

    def squared(self, x: str, perm: list[int] = TURNED) -> str:
        return self.op("MatMul", x, self.turn(x, perm))

    def softmax(self, x: str, axis: int = 3) -> str:
        return self.op("Softmax", x, axis=axis)

    def model(self, outputs) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [
                helper.make_tensor_value_info(k, TensorProto.FLOAT, v)
                for k, v in self.inputs.items()
            ],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.constants,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
        return onnx.shape_inference.infer_shapes(made)


def moving(n: Net):
    """Yield nets of what moves data: name, graph outputs."""
    yield "slice_first", lambda: [n.conv(n.slice("x", 2, 10, 2))]
    yield "slice_last", lambda: [n.slice(n.conv(), 2, 10, 2)]
    yield "slice_negative", lambda: [n.conv(n.slice("x", 0, 2, -3), 2)]

    def slice_shared():
        image, axis = n.conv(), n.constant([2])
        parts = [n.op("Slice", image, [k], [k + 8], axis) for k in (0, 8)]
        return [n.conv(part) for part in parts]

    yield "slice_shared", slice_shared
    yield "slice_beside", lambda: [n.conv(n.slice(t := n.conv(), 0, 2, 1), 2), t]

    def slice_steps():
        corners = [(i, j) for i in (0, 1) for j in (0, 1)]
        parts = [n.op("Slice", "x", corner, [16, 12], [2, 3], [2, 2]) for corner in corners]
        return [n.conv(n.op("Concat", *parts, axis=1), 16)]

    yield "slice_steps", slice_steps
    yield "split_out", lambda: [n.conv((s := n.split(n.conv(), 1))[0], 2), s[1]]
    yield "split_first", lambda: [n.conv(part, 2) for part in n.split("x", 1)]
    yield (
        "split_turned",
        lambda: [n.op("Sigmoid", (s := n.split(n.turn(n.conv(), LAST), 3))[0]), s[1]],
    )
    yield "concat_last", lambda: [n.op("Concat", n.conv(), n.conv(), axis=1)]
    yield "concat_mixed", lambda: [n.conv(n.op("Concat", n.conv(), "x", axis=2))]
    yield "concat_twice", lambda: [n.conv(n.op("Concat", t := n.conv(), t, axis=1), 8)]
    yield (
        "concat_turned",
        lambda: [n.conv(n.op("Concat", t := n.turn(n.conv(), [0, 3, 2, 1]), t, axis=2), 12)],
    )
    yield (
        "concat_float",
        lambda: [n.conv(n.op("Concat", n.softmax(n.conv()), n.conv(), axis=1), 8)],
    )
    yield "gather", lambda: [n.conv(n.op("Gather", n.conv(), [1, 0, 3], axis=1), 3)]
    yield "pooled_slice", lambda: [n.slice(n.pooled(), 0, 2, 1)]


def turning(n: Net):
    """Yield nets of Transposes."""
    yield "turn_last", lambda: [n.turn(n.conv(), LAST)]
    yield "turn_last_other", lambda: [n.turn(n.conv(), TURNED)]
    yield "turn_between", lambda: [n.conv(n.turn(n.conv(), TURNED))]
    yield "turn_first", lambda: [n.conv(n.turn("x", [0, 3, 2, 1]), 12)]
    yield (
        "turn_shared",
        lambda: [
            n.turn(t := n.conv(), LAST),
            n.softmax(t),
            n.conv(t),
        ],
    )
    yield (
        "turn_read_twice",
        lambda: [n.op("Sigmoid", t := n.turn(n.conv(), LAST)), n.softmax(t)],
    )
    yield (
        "turn_read_thrice",
        lambda: [t := n.turn(n.conv(), LAST), n.softmax(t), n.op("Exp", t)],
    )
    yield "turn_both", lambda: [n.conv(t := n.turn(c := n.conv(), TURNED)), n.op("MatMul", c, t)]
    yield (
        "turn_product",
        lambda: [n.op("Mul", n.turn(n.conv(), LAST), n.turn(n.conv(), LAST))],
    )
    yield "turn_matmul", lambda: [n.turn(n.squared(n.conv()), [0, 2, 1, 3])]
    yield (
        "turn_matmul_reshape",
        lambda: [n.op("Reshape", n.turn(n.squared(n.conv()), [0, 2, 1, 3]), [1, 16, 64])],
    )


def floating(n: Net):
    """Yield nets with float nodes in between."""
    yield "float_between", lambda: [n.conv(n.softmax(n.conv()))]
    yield "float_channels", lambda: [n.conv(n.softmax(n.conv(), 1))]
    yield "float_turned", lambda: [n.softmax(n.turn(n.conv(), LAST))]
    yield "float_then_turned", lambda: [n.conv(n.turn(n.softmax(n.conv()), TURNED))]
    yield (
        "float_beside_turned",
        lambda: [n.conv(n.turn(t := n.softmax(n.conv()), FIRST), 12), t],
    )

    def float_turned_back():
        t = n.turn(n.softmax(n.turn(n.conv(), LAST)), FIRST)
        return [n.conv(t), n.conv(t), n.squared(t)]

    yield "float_turned_back", float_turned_back
    yield (
        "float_turned_matmul",
        lambda: [n.op("MatMul", c := n.conv(), n.turn(n.softmax(c), TURNED))],
    )
    yield (
        "float_turned_shared",
        lambda: [n.op("Exp", t := n.turn(n.softmax(n.conv()), [0, 2, 1, 3])), n.conv(t, 16)],
    )
    yield "float_two", lambda: [n.softmax(n.turn(c := n.conv(), LAST)), n.softmax(c)]
    yield (
        "float_two_turned",
        lambda: [n.softmax(n.turn(c := n.conv(), LAST)), n.softmax(n.turn(c, TURNED))],
    )
    yield "float_out_turned", lambda: [n.turn(c := n.conv(), LAST), c]


def reshaping(n: Net):
    """Yield nets of Reshapes and what becomes one."""
    yield "reshape_image", lambda: [n.conv(n.op("Reshape", n.conv(), [1, 4, 8, 24]))]
    yield "reshape_channels", lambda: [n.conv(n.op("Reshape", n.conv(), [1, 8, 8, 12]), 8)]
    yield (
        "reshape_first",
        lambda: [
            n.op("MatMul", t := n.op("Reshape", "x", [1, 4, 8, 24]), n.turn(n.conv(t), TURNED))
        ],
    )
    yield "reshape_squared", lambda: [n.squared(n.op("Reshape", n.conv(), [1, 4, 192, 1]))]
    yield (
        "reshape_shared",
        lambda: [n.conv(t := n.op("Reshape", n.conv(), [1, 4, 8, 24])), n.squared(t)],
    )
    yield (
        "reshape_twice",
        lambda: [
            n.conv(n.op("Reshape", c := n.conv(), [1, 4, 8, 24])),
            n.conv(n.op("Reshape", c, [1, 4, 192, 1])),
        ],
    )
    yield "reshape_out", lambda: [n.op("Sigmoid", n.op("Reshape", n.conv(), [1, 4, 192]))]
    yield "reshape_pooled", lambda: [n.conv(n.op("Reshape", n.pooled(), [1, 1, 4, 1]), 1)]
    yield (
        "reshape_pooled_gemm",
        lambda: [
            n.op("Gemm", n.op("Sigmoid", n.op("Reshape", n.pooled(), [1, 4])), n.weight(4, 6))
        ],
    )
    yield "reshape_head", lambda: [n.op("Reshape", n.turn(n.conv(), LAST), [1, -1, 4])]

    def reshape_heads():
        images = [n.conv(n.conv()), n.conv(n.conv())]
        rows = [n.op("Reshape", n.turn(image, LAST), [1, -1, 4]) for image in images]
        return [n.op("Concat", *rows, axis=1)]

    yield "reshape_heads", reshape_heads
    yield (
        "reshape_head_table",
        lambda: [n.op("Reshape", n.turn(n.op("Sigmoid", n.conv()), LAST), [1, -1, 4])],
    )

    def reshape_five():
        parts = n.slice(n.op("Reshape", n.conv(), [1, 4, 8, 2, 12]), 0, 1, 3)
        return [n.conv(n.op("Reshape", parts, [1, 4, 8, 12]))]

    yield "reshape_five", reshape_five

    def windows():
        tiles = n.op("Reshape", n.turn(n.conv(), LAST), [1, 4, 4, 3, 4, 4])
        rows = n.op("Reshape", n.turn(tiles, [0, 1, 3, 2, 4, 5]), [12, 16, 4])
        return [n.op("MatMul", rows, n.weight(4, 4))]

    yield "reshape_windows", windows
    yield (
        "reshape_attention",
        lambda: [
            n.op(
                "MatMul",
                n.op("Reshape", n.conv(), [1, 4, 192]),
                n.turn(n.op("Reshape", n.conv(), [1, 4, 192]), [0, 2, 1]),
            )
        ],
    )
    yield "squeeze", lambda: [n.op("Squeeze", n.pooled(), axes=[2, 3])]
    yield (
        "reductions",
        lambda: [
            n.op("ReduceMax", t := n.conv(), axes=[1]),
            n.op("ReduceMean", t, axes=[1]),
            n.op("ReduceMean", t, axes=[2, 3], keepdims=0),
        ],
    )


def leaving(n: Net):
    """Yield nets of what float nodes and graph outputs read of integers, or integers of those."""
    yield "made_in_float", lambda: [t := n.softmax(n.conv()), n.conv(t)]
    yield "made_in_float_beside", lambda: [t := n.softmax(n.conv()), n.conv(t), n.softmax(t)]
    yield "made_in_float_turned", lambda: [t := n.turn(n.softmax(n.conv()), TURNED), n.conv(t, 4)]
    yield "input_beside", lambda: [n.conv(), n.softmax("x")]
    yield "input_turned", lambda: [n.conv(), n.turn("x", LAST)]
    yield "input_turned_beside", lambda: [n.conv(), n.softmax(n.turn("x", LAST))]
    yield "input_turned_back", lambda: [n.conv(n.turn("x", FIRST), 12), n.softmax("x")]
    yield (
        "read_in_float",
        lambda: [
            n.softmax(n.turn(c := n.conv(), LAST)),
            n.softmax(n.turn(c, TURNED)),
            n.op("Reshape", c, [1, 4, 192]),
        ],
    )
    yield "output_beside", lambda: [c := n.conv(), n.conv(c), n.softmax(c)]
    yield "output_turned", lambda: [c := n.op("Sigmoid", n.conv()), n.turn(c, LAST), n.conv(c)]
    yield "output_turned_twice", lambda: [n.turn(c := n.conv(), LAST), n.turn(c, [3, 0, 1, 2])]
    yield (
        "turned_in_float",
        lambda: [n.softmax(n.turn(n.softmax(n.turn(n.softmax(n.conv()), LAST)), FIRST))],
    )
    yield (
        "turned_twice_in_float",
        lambda: [n.softmax(n.turn(t := n.softmax(n.conv()), LAST)), n.softmax(n.turn(t, LAST))],
    )
    yield (
        "reshaped_twice_in_float",
        lambda: [
            n.softmax(
                n.op("Reshape", n.op("Reshape", n.softmax(n.conv()), [1, 4, 192]), [1, 1, 4, 192])
            )
        ],
    )
    yield (
        "reshaped_turned_in_float",
        lambda: [n.op("Reshape", n.turn(n.softmax(n.pooled()), FIRST), [1, 4])],
    )
    yield (
        "split_in_float",
        lambda: [n.conv((s := n.split(n.conv(), 1))[0], 2), n.softmax(s[1]), n.softmax(s[0])],
    )

    def one_channel():
        return n.op("Conv", "x", n.weight(1, 4, 3, 3), n.weight(1), pads=[1] * 4)

    yield "one_channel_reshaped", lambda: [n.op("Reshape", one_channel(), [1, 192])]
    yield "one_channel_turned", lambda: [n.turn(one_channel(), TURNED)]
    yield "one_channel_sliced", lambda: [n.slice(one_channel(), 2, 10, 2)]
    yield "concat_output", lambda: [n.op("Concat", n.op("Sigmoid", n.conv()), "x", axis=1)]

    def concat_beside():
        t = n.op("Concat", n.op("Sigmoid", c := n.conv()), c, axis=1)
        return [n.conv(t, 8), n.softmax(t), n.turn(t, LAST)]

    yield "concat_beside", concat_beside

    def heads():
        images = [n.conv(n.conv()), n.conv(n.conv())]
        rows = [n.op("Reshape", n.turn(image, LAST), [1, 192, 4]) for image in images]
        joined = n.op("Concat", *rows, axis=1)
        return [n.softmax(joined, 2)]

    yield "heads_in_float", heads

    def classes():
        flat = n.op("Reshape", n.pooled(), [1, 4])
        return [n.softmax(n.op("Add", n.op("MatMul", flat, n.weight(4, 2)), n.weight(2)), 1)]

    yield "classes", classes
    yield "difference", lambda: [n.softmax(n.op("Sub", n.conv(), n.weight(1, 4, 1, 1)))]
    rows = lambda: n.op("Reshape", n.softmax(n.conv()), [1, 4, 192])  # noqa: E731
    yield "sum_of_rows", lambda: [n.op("Add", rows(), n.weight(1, 4, 192))]
    yield "product_of_rows", lambda: [n.softmax(n.op("Mul", rows(), n.weight(1, 4, 1)), 2)]
    image = lambda: n.op("Reshape", n.softmax(n.conv()), [1, 4, 8, 24])  # noqa: E731
    yield "float_reshaped", lambda: [n.conv(image())]
    yield "float_reshaped_turned", lambda: [n.conv(n.turn(image(), TURNED))]
    yield "float_reshaped_table", lambda: [n.op("Sigmoid", rows())]
    yield "matrix_product", lambda: [n.op("MatMul", rows(), n.weight(192, 8))]
    yield (
        "maximum",
        lambda: [n.op("Max", n.op("Sigmoid", c := n.conv()), n.op("Tanh", c))],
    )
    yield (
        "maximum_beside",
        lambda: [m := n.op("Max", n.op("Sigmoid", c := n.conv()), n.op("Tanh", c)), n.conv(m)],
    )


def elementwise(n: Net):
    """Yield nets of operands that differ in rank, or are swapped."""
    yield "rank_2", lambda: [n.conv(n.op("Add", n.conv(), "rows"))]
    yield "rank_1", lambda: [n.op("Sub", "row", n.conv())]
    yield "rank_2_product", lambda: [n.op("Mul", n.conv(), "rows")]
    yield "swapped", lambda: [n.conv(n.op("Add", "x", "large"))]
    yield "swapped_one", lambda: [n.conv(n.op("Add", "x", n.op("Mul", "large", "large")))]
    large = np.linspace(90, 100, 4).reshape(1, 4, 1, 1)
    yield "swapped_constant", lambda: [n.conv(n.op("Add", "x", large))]
    yield "swapped_difference", lambda: [n.conv(n.op("Sub", "x", large))]
    yield (
        "residual_of_one",
        lambda: [n.conv(n.op("Add", n.conv(c := n.conv()), n.op("GlobalAveragePool", c)))],
    )


def clipping(n: Net):
    """Yield nets of a Clip, which may run in a convolution, as a table, or not at all."""

    def clipped(x, low, high):
        return n.op("Clip", x, np.float32(low), np.float32(high))

    yield "clip_from_0", lambda: [n.conv(clipped(n.conv(n.conv()), 0, 6))]
    yield "clip_from_0_little", lambda: [n.conv(clipped(n.conv(n.conv()), 0, 0.5))]
    yield (
        "clip_from_0_of_sum",
        lambda: [n.conv(clipped(n.op("Add", n.conv(c := n.conv()), c), 0, 6))],
    )
    yield "clip_even", lambda: [n.conv(clipped(n.conv(), -1, 1))]
    yield "clip_even_wide", lambda: [n.conv(clipped(n.conv(), -50, 50))]
    yield (
        "clip_even_shared",
        lambda: [n.conv(clipped(c := n.op("Add", "x", n.conv()), -0.5, 0.5)), n.conv(c)],
    )
    yield "clip_even_first", lambda: [n.conv(clipped("x", -0.5, 0.5)), n.conv()]
    yield "clip_uneven", lambda: [n.conv(clipped(n.conv(), -1, 6))]


def hard_swish(n: Net, x: str) -> str:
    inner = n.op("Clip", n.op("Add", x, np.float32([3])), np.float32(0), np.float32(6))
    return n.op("Div", n.op("Mul", x, inner), np.float32([6]))


def with_settings(n: Net):
    """Yield nets with settings: name, graph outputs, settings of the optimized model's nodes."""
    yield "cpu_conv", lambda: [n.conv(n.conv(n.conv()))], {"Conv_1": "cpu"}
    yield "int16_conv", lambda: [n.conv(n.conv(n.conv()))], {"Conv_1": "int16"}
    swish = lambda: [n.conv(n.op("Mul", t := n.conv(), n.op("Sigmoid", t)))]  # noqa: E731
    yield "cpu_swish", swish, {"Sigmoid_1": "cpu", "Mul_2": "cpu"}
    hard = [f"{name}_{k}" for k, name in enumerate(("Add", "Clip", "Mul", "Div"), start=1)]
    yield "cpu_hard_swish", lambda: [n.conv(hard_swish(n, n.conv()))], dict.fromkeys(hard, "cpu")

    def shuffle():
        t = n.op("Reshape", n.conv(), [1, 2, 2, 16, 12])
        return [n.conv(n.op("Reshape", n.turn(t, [0, 2, 1, 3, 4]), IMAGE))]

    yield "cpu_shuffle", shuffle, {"Reshape_3": "cpu"}
    pads = [0, 0, 1, 1, 0, 0, 1, 1]
    pad = lambda: [n.conv(n.op("Pad", n.conv(), pads, np.float32(0.5)))]  # noqa: E731
    yield "cpu_pad", pad, {"Pad_1": "cpu"}


def softmaxes(n: Net):
    """Yield nets whose Softmax is quantized, in int8."""
    yield "softmax_last", lambda: [n.softmax(n.turn(n.conv(), LAST))], {"Softmax_2": "bpu"}
    squared = lambda: [n.squared(n.softmax(n.turn(n.conv(), LAST)))]  # noqa: E731
    yield "softmax_turned", squared, {"Softmax_2": "bpu"}
    behind = lambda: [n.squared(n.turn(n.softmax(n.conv()), LAST))]  # noqa: E731
    yield "softmax_then_turned", behind, {"Softmax_1": "bpu"}
    channels = lambda: [n.conv(n.turn(n.softmax(n.turn(n.conv(), FIRST), 1), LAST))]  # noqa: E731
    yield "softmax_of_channels", channels, {"Softmax_2": "bpu"}


FAMILIES = (
    moving,
    turning,
    floating,
    reshaping,
    leaving,
    elementwise,
    clipping,
    softmaxes,
    with_settings,
)
EXTRA_INPUTS = {"rows": [16, 12], "row": [12], "large": IMAGE}


STAGES = ("calibrated", "quantized")


def nets():
    """Yield every net: name, model, settings."""
    for family in FAMILIES:
        for index, _ in enumerate(family(Net())):
            net = Net()
            name, build, *settings = list(family(net))[index]
            outputs = build()
            read = {tensor for node in net.nodes for tensor in node.input}
            extra = {k: v for k, v in EXTRA_INPUTS.items() if k in read}
            net.inputs = {**({"x": IMAGE} if "x" in read else {}), **extra}
            yield name, net.model(outputs), settings[0] if settings else {}


def convert(model: onnx.ModelProto, settings, march: str) -> dict[str, bytes]:
    """Return the calibrated and the quantized stage that the vendor's converter makes."""
    from horizon_nn.api import build_onnx  # noqa: PLC0415 - optional peer

    random = np.random.default_rng(1)
    shapes = {
        item.name: [dim.dim_value for dim in item.type.tensor_type.shape.dim]
        for item in model.graph.input
    }
    samples = {
        name: [
            (random.normal(size=shape) * (5 if name == "large" else 1)).astype(np.float32)
            for _ in range(2)
        ]
        for name, shape in shapes.items()
    }
    kind = {"expected_input_type": "FEATURE", "original_input_type": "FEATURE"}
    with _working_folder(), _silence():
        onnx.save(model, "float.onnx")
        failure: Exception | None = None
        try:
            build_onnx(
                "float.onnx",
                march,
                name_prefix="net",
                input_dict={name: {"input_shape": shape, **kind} for name, shape in shapes.items()},
                cali_dict={"calibration_type": "max", "calibration_data": samples},
                node_dict={name: KEYS[setting] for name, setting in settings.items()},
                debug_mode=["dump_all_models"],
            )
        except Exception as error:  # noqa: BLE001 - its errors have no common class
            # On bernoulli2 some nets fail behind the stages that count here, in the compiler.
            failure = error
        files = {stage: list(Path().glob(f"*{stage}_model.onnx")) for stage in STAGES}
        if not all(files.values()):
            raise RuntimeError("the converter wrote no quantized model") from failure
        return {stage: found[0].read_bytes() for stage, found in files.items()}


def measure(file: Path, march: str) -> None:
    """Convert every net and write the archive."""
    content: dict[str, bytes] = {}
    cases = {}
    for name, model, settings in nets():
        if march == "bernoulli2" and "int16" in settings.values():
            continue
        try:
            stages = convert(model, settings, march)
        except RuntimeError as error:
            print(f"{name}: {error}: {error.__cause__}")
            continue
        wanted = {key: [k for k, v in settings.items() if v == key] for key in ("cpu", "int16")}
        if any(wanted.values()):
            # What the converter's optimizer fused is not there to be set.
            plain = convert(model, {}, march)["calibrated"]
            present = {node.name for node in onnx.load_from_string(plain).graph.node}
            wanted = {key: [k for k in names if k in present] for key, names in wanted.items()}
            stages["calibrated"] = plain
        cases[name] = wanted
        content |= {f"{name}.{stage}.onnx": data for stage, data in stages.items()}
    content["cases.json"] = json.dumps(cases, indent=1).encode()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    file.write_bytes(lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(cases)} nets; {file.stat().st_size / 1e3:.0f} kB")


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="archive to write")
    parser.add_argument("--march", default="bayes-e", choices=["bayes-e", "bernoulli2"])
    options = parser.parse_args()
    measure(options.file.resolve(), options.march)
    return 0


if __name__ == "__main__":
    sys.exit(main())
