"""Builders of calibrated models with the structures that real exports have; all tiny."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests.models import CalibratedModel

FLOAT, INT64, BOOL, HALF = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.BOOL,
    TensorProto.FLOAT16,
)


def value_info(name: str, dtype: int = FLOAT, shape=None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def integers(b: CalibratedModel, name: str, *values: int) -> str:
    return b.constant(name, np.array(values, np.int64))


def without_points(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return the float model: every point is an Identity."""
    plain = onnx.ModelProto()
    plain.CopyFrom(proto)
    for node in plain.graph.node:
        if node.op_type == "HzCalibration":
            node.op_type, node.domain = "Identity", ""
            del node.attribute[:]
    return plain


def plain_outputs(proto: onnx.ModelProto, inputs: dict, names=None) -> dict:
    """Run the float model whole in stock ONNX Runtime, with what keeps every bit."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        without_points(proto).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    wanted = names or [item.name for item in session.get_outputs()]
    return dict(zip(wanted, session.run(wanted, inputs), strict=True))


def mask_and_shape() -> onnx.ModelProto:
    """Greater makes a mask for Where; Shape, Gather, Concat make the sizes of a Reshape."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 3, 6, 6))
    y = b.conv(x, (3, 4), "conv")
    mask = b.node("Greater", [y, b.constant("zero", np.float32(0))], "mask")
    y = b.node("Where", [mask, b.point(y), b.constant("low", np.float32(-0.5))], "where")
    shape = b.node("Shape", [y], "shape")
    batch = b.node("Gather", [shape, integers(b, "first", 0)], "batch")
    sizes = b.node("Concat", [batch, integers(b, "rest", -1)], "sizes", axis=0)
    flat = b.node("Reshape", [y, sizes], "flat")
    weight = b.weight("head_w", b.random.normal(0, 0.1, (144, 5)), axis=1)
    b.output(b.node("MatMul", [b.point(flat), weight], "head"))
    return b.proto()


def resized(*, dynamic: bool = False, zeros: bool = False) -> onnx.ModelProto:
    """Shape, Slice and Concat make the int64 sizes of a Resize."""
    b = CalibratedModel(opset=13)
    shape = ("N", 3, "H", "W") if dynamic else (1, 3, 6, 8)
    x = b.input("x", shape)
    if zeros:
        for size in (0, 2, 3):
            b.inputs[0].type.tensor_type.shape.dim[size].dim_value = 0
    y = b.conv(x, (3, 4), "conv")
    small = b.node("MaxPool", [b.point(y)], "pool", kernel_shape=[2, 2], strides=[2, 2])
    small = b.conv(small, (4, 4), "deep")
    size = b.node("Shape", [y], "shape")
    tail = b.node("Slice", [size, integers(b, "s", 2), integers(b, "e", 4)], "tail")
    head = b.node(
        "Slice",
        [b.node("Shape", [small], "shape2"), integers(b, "s2", 0), integers(b, "e2", 2)],
        "head",
    )
    sizes = b.node("Concat", [head, tail], "sizes", axis=0)
    big = b.node("Resize", [small, "", "", sizes], "resize", mode="nearest")
    b.output(b.node("Add", [b.point(big), b.point(y)], "sum"))
    return b.proto()


def branch(name: str, x: str, shape: tuple[int, ...], seed: int) -> onnx.GraphProto:
    """A Conv that reads ``x`` from outside."""
    weight = np.random.default_rng(seed).normal(0, 0.3, shape).astype(np.float32)
    return helper.make_graph(
        [
            helper.make_node("Conv", [x, f"{name}_w"], [f"{name}_c"], name="conv", pads=[1] * 4),
            helper.make_node("Relu", [f"{name}_c"], [f"{name}_y"]),
        ],
        name,
        [],
        [value_info(f"{name}_y")],
        [onnx.numpy_helper.from_array(weight, f"{name}_w")],
    )


def conditional() -> onnx.ModelProto:
    """An If with a Conv in each branch, both of which read a quantized tensor from outside."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 3, 6, 6))
    y = b.conv(x, (3, 3), "stem")
    mean = b.node("ReduceMean", [y], "mean", keepdims=0)
    positive = b.node("Greater", [mean, b.constant("zero", np.float32(0))], "positive")
    point = b.point(y)
    chosen = b.node(
        "If",
        [positive],
        "choose",
        then_branch=branch("yes", point, (4, 3, 3, 3), 1),
        else_branch=branch("no", point, (4, 3, 3, 3), 2),
    )
    b.output(b.conv(chosen, (4, 2), "head"))
    return b.proto()


def looped(seed: int = 3) -> onnx.ModelProto:
    """A Loop whose body multiplies by a matrix and adds a tensor from outside, four times."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (2, 5))
    weight = b.weight("first_w", b.random.normal(0, 0.4, (5, 5)), axis=1)
    start = b.node("MatMul", [b.point(x), weight], "first")
    outer = b.point(start)
    matrix = np.random.default_rng(seed).normal(0, 0.4, (5, 5)).astype(np.float32)
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["state", "w"], ["product"], name="mul"),
            helper.make_node("Add", ["product", outer], ["next"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("ReduceSum", ["next"], ["trace"], keepdims=0),
        ],
        "body",
        [value_info("i", INT64, []), value_info("go", BOOL, []), value_info("state")],
        [value_info("go_on", BOOL), value_info("next"), value_info("trace")],
        [onnx.numpy_helper.from_array(matrix, "w")],
    )
    trips = b.constant("trips", np.int64(4))
    last = b.node("Loop", [trips, "", start], "loop", outputs=2, body=body)
    b.output("loop_out1")
    weight = b.weight("head_w", b.random.normal(0, 0.4, (5, 3)), axis=1)
    b.output(b.node("MatMul", [b.point(last), weight], "head"))
    return b.proto()


def scanned() -> onnx.ModelProto:
    """A Scan that accumulates the rows of what a MatMul gives."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (4, 5))
    weight = b.weight("first_w", b.random.normal(0, 0.4, (5, 5)), axis=1)
    rows = b.point(b.node("MatMul", [b.point(x), weight], "first"))
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "row"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("Identity", ["next"], ["out"]),
        ],
        "body",
        [value_info("state", FLOAT, [5]), value_info("row", FLOAT, [5])],
        [value_info("next", FLOAT, [5]), value_info("out", FLOAT, [5])],
    )
    start = b.constant("start", np.zeros(5, np.float32))
    b.node("Scan", [start, rows], "scan", outputs=2, body=body, num_scan_inputs=1)
    weight = b.weight("head_w", b.random.normal(0, 0.4, (5, 3)), axis=1)
    b.output(b.node("MatMul", [b.point("scan_out1"), weight], "head"))
    return b.proto()


def of_sequences(*, graph_output: bool = False) -> onnx.ModelProto:
    """SplitToSequence, SequenceAt, ConcatFromSequence and an Optional between two Convs."""
    b = CalibratedModel(opset=18)
    x = b.input("x", (1, 3, 6, 6))
    y = b.conv(x, (3, 4), "stem")
    parts = b.node("SplitToSequence", [y, integers(b, "two", 2, 2)], "parts", axis=1)
    first = b.node("SequenceAt", [parts, b.constant("zero", np.int64(0))], "first")
    turned = b.node("Neg", [first], "turned")
    longer = b.node("SequenceInsert", [parts, turned], "longer")
    joined = b.node("ConcatFromSequence", [longer], "joined", axis=1)
    perhaps = b.node("Optional", [joined], "perhaps")
    sure = b.node("OptionalGetElement", [perhaps], "sure")
    b.output(b.conv(sure, (6, 2), "head"))
    if graph_output:
        kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
        b.outputs.append(helper.make_value_info(longer, kind))
    return b.proto()


def of_strings() -> onnx.ModelProto:
    """A number becomes a string, is compared with a constant and becomes a number again."""
    b = CalibratedModel(opset=19)
    x = b.input("x", (1, 4))
    weight = b.weight("first_w", b.random.normal(0, 0.4, (4, 4)), axis=1)
    y = b.node("MatMul", [b.point(x), weight], "first")
    word = b.node("Cast", [b.node("Floor", [y], "floor")], "word", to=TensorProto.STRING)
    one = b.node("Constant", [], "words", value_strings=["-1"])
    same = b.node("Equal", [b.node("Identity", [word], "copy"), one], "same")
    number = b.node("Cast", [same], "number", to=FLOAT)
    weight = b.weight("head_w", b.random.normal(0, 0.4, (4, 3)), axis=1)
    mixed = b.node("Add", [number, y], "mixed")
    b.output(b.node("MatMul", [b.point(mixed), weight], "head"))
    return b.proto()


def with_functions() -> onnx.ModelProto:
    """A function that calls another, with an attribute handed on, one left to its default."""
    b = CalibratedModel(opset=17)
    x = b.input("x", (1, 3, 6, 6))
    y = b.conv(x, (3, 4), "stem")
    y = b.node("Block", [y], "block", domain="own", slope=0.25)
    y = b.node("Block", [b.point(y)], "", domain="own")
    b.output(b.conv(y, (4, 2), "head"))
    proto = b.proto()
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    leaky = helper.make_node("LeakyRelu", ["x"], ["y"])
    leaky.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    inner = helper.make_function("own", "Act", ["x"], ["y"], [leaky], opset, ["slope"])
    call = helper.make_node("Act", ["half"], ["y"], name="act", domain="own")
    call.attribute.add(name="slope", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    outer = helper.make_function(
        "own",
        "Block",
        ["x"],
        ["y"],
        [
            helper.make_node("Constant", [], ["scale"], value_float=0.5),
            helper.make_node("Mul", ["x", "scale"], ["half"], name="mul"),
            call,
        ],
        opset,
        attribute_protos=[helper.make_attribute("slope", 0.1)],
    )
    proto.functions.extend([outer, inner])
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.ir_version = 8
    return proto


def unnamed() -> onnx.ModelProto:
    """Two nodes and two points of one name, and one of each without any."""
    b = CalibratedModel()
    x = b.input("x", (1, 3, 6, 6))
    y = b.conv(x, (3, 3), "bias_scale_node")
    y = b.conv(b.node("Relu", [y]), (3, 3), "second")
    y = b.conv(b.node("Relu", [y]), (3, 3), "third")
    b.output(y)
    proto = b.proto()
    for node in proto.graph.node:
        if node.name == "second":
            node.name = "bias_scale_node"
        elif node.name == "third" or node.op_type == "Relu":
            node.name = ""
        elif node.op_type == "HzCalibration":
            node.name = "" if node.input[0] == "x" else "point"
    return proto


def classes_only(*, logits: bool = False) -> onnx.ModelProto:
    """A classifier that gives the index of the largest score, and perhaps the scores."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 3, 6, 6))
    y = b.node("Relu", [b.conv(x, (3, 4), "stem")], "relu")
    pooled = b.node("GlobalAveragePool", [b.point(y)], "pool")
    scores = b.node("Flatten", [b.conv(pooled, (4, 5), "head", kernel=1)], "flat")
    b.output(b.node("ArgMax", [scores], "top", axis=1, keepdims=0), INT64)
    if logits:
        b.output(scores)
    return b.proto()


def of_any_rank() -> onnx.ModelProto:
    """Inputs of rank 5, 1 and 0 and of type int64 and bool; outputs of rank 0, 1 and 5."""
    b = CalibratedModel(opset=13)
    video = b.input("video", (1, 2, 3, 4, 4))
    row = b.input("row", (3,))
    gain = b.input("gain", ())
    index = b.input("index", (2,), INT64)
    flip = b.input("flip", (1,), BOOL)
    y = b.node("Mul", [b.point(video), b.point(gain, 4.0)], "scaled")
    y = b.node("Where", [flip, b.node("Neg", [y], "minus"), y], "flipped")
    weight = b.weight("w", b.random.normal(0, 0.3, (4, 2, 1, 3, 3)))
    conv = b.node("Conv", [b.point(y), weight], "conv", pads=[0, 1, 1, 0, 1, 1])
    b.output(conv)
    picked = b.node("Gather", [b.point(row), index], "picked")
    b.output(picked)
    mean = b.node("ReduceMean", [conv], "mean", keepdims=0)
    b.output(
        b.node("Add", [b.point(mean), b.node("ReduceSum", [picked], "total", keepdims=0)], "both")
    )
    return b.proto()


def samples_of_any_rank(count: int = 3) -> list[dict]:
    random = np.random.default_rng(0)
    return [
        {
            "video": random.normal(0, 1, (1, 2, 3, 4, 4)).astype(np.float32),
            "row": random.normal(0, 1, 3).astype(np.float32),
            "gain": np.array(random.normal(0, 1), np.float32),
            "index": np.array([number % 3, 2], np.int64),
            "flip": np.array([number % 2 == 0]),
        }
        for number in range(count)
    ]


def with_empty_tensor() -> onnx.ModelProto:
    """A Slice gives a tensor of shape [1, 1, 1, 0, 1], which is quantized and joined again."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 1, 1, 2, 1))
    y = b.node("Relu", [b.point(x)], "relu")
    nothing = b.node(
        "Slice",
        [y, integers(b, "s", 0), integers(b, "e", 0), integers(b, "a", 3)],
        "nothing",
    )
    b.output(b.node("Sigmoid", [b.point(nothing)], "still_nothing"))
    whole = b.node("Concat", [b.point(y), "nothing_out_calibrated"], "whole", axis=3)
    b.output(b.node("Neg", [whole], "minus"))
    return b.proto()


def dead_channel(*, threshold: float = 0.0, alive: int = 0) -> onnx.ModelProto:
    """A Conv one of whose output channels has only zero weights and threshold 0."""
    b = CalibratedModel()
    x = b.input("x", (1, 3, 6, 6))
    weight = b.random.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32)
    weight[1] = alive
    b.constant("conv_w", weight)
    limits = [float(limit) for limit in np.abs(weight).max(axis=(1, 2, 3))]
    limits[1] = threshold
    w = b.point(
        "conv_w",
        quant_attrs=0x22111,
        thresholds=limits,
        scales=[float(np.float32(limit / 127)) for limit in limits],
        axis=0,
    )
    y = b.node("Conv", [b.point(x), w], "conv", pads=[1] * 4)
    b.output(b.conv(b.node("Relu", [y], "relu"), (4, 2), "head"))
    return b.proto()


def overflowing() -> onnx.ModelProto:
    """A block that squares its input: values beyond 1.8e19 become infinite, and then NaN."""
    b = CalibratedModel()
    x = b.input("x", (1, 3, 4, 4))
    y = b.conv(x, (3, 3), "stem")
    square = b.node("Mul", [y, y], "square")
    quotient = b.node("Div", [square, square], "quotient")
    b.output(b.conv(quotient, (3, 2), "head"))
    b.output(b.conv(b.node("Relu", [y], "relu"), (3, 2), "side"))
    return b.proto()


def of_half(*, points: bool = True) -> onnx.ModelProto:
    """A float16 graph in which one constant is compared with and added."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 4), HALF)
    y = b.point(x) if points else x
    weight = b.random.normal(0, 0.4, (4, 4)).astype(np.float16)
    y = b.node("MatMul", [y, b.constant("w", weight)], "first")
    shared = b.constant("half", np.float16(0.25))
    less = b.node("Less", [y, shared], "less")
    more = b.node("Add", [y, shared], "more")
    y = b.node("Where", [less, y, more], "where")
    wide = b.node("Cast", [y], "wide", to=FLOAT)
    b.output(b.node("Sigmoid", [b.point(wide)], "end"))
    b.output(b.node("Tanh", [b.point(y) if points else y], "half_end"), HALF)
    return b.proto()


def sequence_of_any_length() -> onnx.ModelProto:
    """A MatMul over as many steps as a sample has."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, "T", 4))
    weight = b.weight("w", b.random.normal(0, 0.4, (4, 3)), axis=1)
    y = b.node("MatMul", [b.point(x), weight], "first")
    b.output(b.node("Softmax", [b.point(y)], "scores", axis=-1))
    return b.proto()


def tied_weights() -> onnx.ModelProto:
    """One weight behind one point read by two nodes, and behind a second point by a third."""
    b = CalibratedModel()
    x = b.input("x", (1, 3, 6, 6))
    weight = b.random.normal(0, 0.3, (3, 3, 3, 3))
    shared = b.weight("w", weight)
    own = b.point("w", float(np.abs(weight).max()), quant_attrs=0x21111)
    bias = b.constant("bias", b.random.normal(0, 0.1, 3).astype(np.float32))
    y = b.node("Conv", [b.point(x), shared, bias], "one", pads=[1] * 4)
    y = b.node("Conv", [b.point(y), shared, bias], "two", pads=[1] * 4)
    y = b.node("Conv", [b.point(y), own, bias], "three", pads=[1] * 4)
    flat = b.node("Reshape", [y, b.constant("flat", np.array([1, -1]))], "flatten")
    b.output(flat)
    return b.proto()


def vendors_operators() -> onnx.ModelProto:
    """Operators of the vendor's domain, some with attributes."""
    b = CalibratedModel()
    x = b.input("x", (1, 4, 6, 6))
    y = b.hz("HzSwish", [b.point(x)], "swish")
    y = b.hz("HzHardSwish", [y], "hard")
    y = b.hz("HzChannelShuffle", [y], "shuffle", group=2)
    y = b.hz("HzGelu", [b.point(y, dtype="int16")], "gelu", approximate="tanh")
    y = b.hz("HzRsqrt", [b.node("Exp", [y], "exp")], "rsqrt", epsilon=0.1)
    grid = b.constant("grid", np.zeros((1, 6, 6, 2), np.float32))
    y = b.hz("GridSample", [b.point(y), grid], "sample", mode="bilinear", padding_mode="zeros")
    y = b.hz("HzMish", [y], "mish")
    value = b.constant("value", np.zeros(1, np.float32))
    y = b.hz("HzPad", [y, value], "pad", pads=[0, 0, 1, 1, 0, 0, 1, 1], mode="constant")
    y = b.hz("HzSpaceToDepth", [y], "deep", block_height=2, block_width=2, data_format="NCHW")
    weight = b.constant("colours", b.random.normal(0, 0.3, (16, 16, 1, 1)).astype(np.float32))
    bias = b.constant("shift", np.zeros(16, np.float32))
    y = b.hz("HzPreprocess", [y, weight, bias], "colour", channel_group=1, data_format="NCHW")
    sizes = b.constant("sizes", np.array([1, 16, 6, 6]))
    nothing = b.constant("nothing", np.zeros(0, np.float32))
    y = b.hz("HzResize11", [y, nothing, nothing, sizes], "resize", mode="linear")
    y = b.hz("HzSoftmax", [y], "soft", axis=1)
    step, zero = b.constant("step", np.float32(0.1)), b.constant("zero", np.int8(0))
    y = b.hz("HzDequantize", [b.hz("HzQuantize", [y, step, zero], "q", bits=8), step, zero], "dq")
    y = b.conv(y, (16, 3), "head")
    b.output(y)
    b.output(b.hz("HzFilter", [y], "filter", idx_range=[0, 2], threshold=0.1))
    return b.proto()


def sparse_and_constants() -> onnx.ModelProto:
    """A sparse initializer and Constant nodes of several forms."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (2, 3))
    y = b.node("Add", [b.point(x), "sparse"], "add")
    y = b.node("Mul", [y, b.node("Constant", [], "two", value_float=2.0)], "mul")
    y = b.node("Reshape", [y, b.node("Constant", [], "flat", value_ints=[1, 6])], "flatten")
    b.node("Constant", [], "word", value_string="unread")
    b.output(b.node("Relu", [b.point(y)], "relu"))
    proto = b.proto()
    values = helper.make_tensor("sparse", FLOAT, [2], [7.0, 8.0])
    indices = helper.make_tensor("indices", INT64, [2], [1, 5])
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    return proto


def _sequence_info(name: str) -> onnx.ValueInfoProto:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))
    return helper.make_value_info(name, kind)


def looped_sequence() -> onnx.ModelProto:
    """A Loop that appends to a sequence, which an If hands on or turns into another."""
    b = CalibratedModel(opset=16)
    x = b.input("x", (2, 5))
    weight = b.weight("first_w", b.random.normal(0, 0.4, (5, 5)), axis=1)
    y = b.node("MatMul", [b.point(x), weight], "first")
    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["state"], ["next"]),
            helper.make_node("SequenceInsert", ["list", "next"], ["longer"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [
            value_info("i", INT64, []),
            value_info("go", BOOL, []),
            value_info("state"),
            _sequence_info("list"),
        ],
        [value_info("go_on", BOOL), value_info("next"), _sequence_info("longer")],
    )
    empty = b.node("SequenceEmpty", [], "empty")
    trips = b.constant("trips", np.int64(3))
    b.node("Loop", [trips, "", y, empty], "loop", outputs=2, body=body)
    mean = b.node("ReduceMean", [y], "mean", keepdims=0)
    positive = b.node("Greater", [mean, b.constant("nought", np.float32(0))], "positive")
    same = helper.make_graph(
        [helper.make_node("Identity", ["loop_out1"], ["same"])],
        "same",
        [],
        [_sequence_info("same")],
    )
    other = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["loop_out", "loop_out"], ["other"])],
        "other",
        [],
        [_sequence_info("other")],
    )
    chosen = b.node("If", [positive], "choose", then_branch=same, else_branch=other)
    joined = b.node("ConcatFromSequence", [chosen], "joined", axis=1)
    total = b.node("ReduceMean", [b.point(joined)], "total", axes=[1], keepdims=1)
    b.output(b.node("Mul", [b.point(total), b.point(y)], "end"))
    return b.proto()


def picked() -> onnx.ModelProto:
    """As many values are picked as are positive, quantized, and added up; all sizes are stated."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 3, 6, 6))
    y = b.conv(x, (3, 4), "stem")
    mask = b.node("Greater", [y, b.constant("zero", np.float32(0))], "mask")
    places = b.node("Transpose", [b.node("NonZero", [mask], "nonzero")], "places", perm=[1, 0])
    values = b.node("GatherND", [y, places], "values")
    curve = b.node("Tanh", [b.point(values)], "curve")
    curve = b.node("Mul", [b.point(curve), b.point(values, 1.5)], "product")
    total = b.node("ReduceMean", [curve], "total", keepdims=0)
    b.output(b.node("Mul", [b.point(total), b.constant("two", np.float32(2))], "double"))
    b.output(curve)
    b.output(b.conv(y, (4, 2), "head"))
    return b.proto()
