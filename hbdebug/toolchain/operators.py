"""How operators take a type setting: the table that the rules read, and what int16 is refused to.

Measured with HMCT 1.1.0 on bayes-e (``docs/lift_rules.md``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.model import Point

if TYPE_CHECKING:
    from hbdebug.model import Node, QuantModel

# Tables: the output is int16 only if the input is. Measured as producers in front of a node that
# is set to int16.
TABLES = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "Ceil",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "HardSigmoid",
        "HzGelu",
        "HzHardSwish",
        "HzMish",
        "HzRsqrt",
        "HzSwish",
        "Log",
        "Reciprocal",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tan",
        "Tanh",
    ]
)

# Tables that go to the CPU together with a node behind them, but not by themselves. Pow is the
# exception: it can also be set to the CPU.
WILLING_TABLES = frozenset({"Clip", "LeakyRelu", "Pow", "PRelu"})

# Operators whose output has the type of their input and that can be int16 themselves. A change
# of type spreads through them both ways.
CARRIERS = frozenset(
    [
        "Concat",
        "DepthToSpace",
        "Expand",
        "Gather",
        "HzChannelShuffle",
        "HzPad",
        "MaxPool",
        "Pad",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "HzSpaceToDepth",
        "Split",
        "Squeeze",
        "Flatten",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ]
)

# Carriers for int16, which stay on the BPU when a node behind them goes to the CPU.
STAYING = frozenset({"Gather", "ReduceMax", "Relu"})

ELEMENTWISE = frozenset({"Add", "Mul", "Sub"})
SUMS = frozenset({"ReduceMean", "ReduceSum"})

# Operators with an int32 accumulator that the BPU can hand out as float.
ACCUMULATORS = frozenset({"Conv", "GlobalAveragePool", "HzPreprocess", "MatMul"})

# An activation input that one of these reads stays int8 for everybody.
INT8_FOR_ALL = frozenset({"GlobalAveragePool", "GlobalMaxPool", "MatMul"})

# These cannot ask for int16, but read it when somebody else asks.
INT8_BY_ITSELF = frozenset({"ConvTranspose", "Resize"})

OTHER_INT16 = frozenset({"ArgMax", "Conv", "Equal", "Greater", "GridSample", "TopK"})

IN_FLOAT = frozenset(
    ["LogSoftmax", "Max", "Min", "Neg", "ReduceMin", "Softmax", "HzSoftmax", "ThresholdedRelu"]
)

INT16_CAPABLE = TABLES | WILLING_TABLES | CARRIERS | STAYING | ELEMENTWISE | SUMS | OTHER_INT16

# A reader of one of these kinds is stronger than an int8-only reader that comes after it.
STRONG_READERS = TABLES | ELEMENTWISE | {"PRelu"}

# Makers whose output becomes int16 whatever reads it.
FORCING_OUTPUT = frozenset({"Gather", "HardSigmoid", "ReduceMax", "Sigmoid", "Tanh"})

# These take int16 themselves also when their own output has to stay int8.
HALFWAY = (TABLES | {"LeakyRelu", "Pow"}) - FORCING_OUTPUT

# Types spread from a point on the input of these to the points on their output.
SPREADING = (CARRIERS | STAYING | SUMS | {"Clip", "PRelu", "Resize"}) - {"ReduceSum"}

# ``{'ON': 'CPU'}`` was measured to move these.
MOVABLE = frozenset(TABLES | ELEMENTWISE | SUMS | ACCUMULATORS | {"ConvTranspose", "Pow"}) - {
    "HzPreprocess"
}

# A CPU node of these kinds reads a point that stays for others; the rest read the tensor in front
# of it, where the toolchain lets them.
COUPLED = frozenset({"Add", "Clip", "Conv", "ConvTranspose", "MaxPool", "Resize"})

# ... and to leave these where they are, without a word in the log.
IMMOVABLE = (CARRIERS | STAYING | WILLING_TABLES | {"GlobalMaxPool", "Resize"}) - {"Pow"}


def int16_refusal(node: Node, model: QuantModel, march: str) -> str:
    """Say why a node's activation inputs cannot be int16 when the user asks for it.

    Args:
        node: A node of the model.
        model: The model.
        march: A key of `MARCHES`.

    Returns:
        The reason in words; empty when they can. An operator that was not measured is refused
        with a reason that says so.
    """
    op = node.op_type
    one_dimensional = op == "Conv" and _spatial_rank(node, model) == 1
    over_space = op == "ReduceSum" and _reduces_only_space(node)
    dual = march.startswith("nash") and op in {"Gemm", "MatMul"}
    if march == "bernoulli2":
        reason = "bernoulli2 has no int16"
    elif one_dimensional or over_space or op in IN_FLOAT:
        what = "1-D Conv" if one_dimensional else f"{op} over H and W" if over_space else op
        reason = f"{what} runs in float on the CPU"
    elif op in INT16_CAPABLE or dual:
        reason = ""
    elif op in INT8_FOR_ALL or op in INT8_BY_ITSELF:
        what = "MatMul of two activations" if op == "MatMul" else op
        reason = f"{what} takes int8 only on {march}"
    else:
        reason = f"whether {op} can take int16 on {march} was not measured"
    return reason


def brought_back(node: Node) -> str:
    """Say where the integer model brings an int16 input back to int8; empty when it does not.

    Measured in quantized models: Conv with dilation, and depthwise Conv with a stride.
    """
    if node.op_type != "Conv":
        return ""
    dilated = any(step > 1 for step in node.attributes.get("dilations") or ())
    strided = any(step > 1 for step in node.attributes.get("strides") or ())
    if not dilated and not (strided and node.attributes.get("group", 1) > 1):
        return ""
    why = "dilation" if dilated else "groups and a stride"
    return f"{node.name}: the integer model brings its input back to int8 (Conv with {why})"


def _spatial_rank(node: Node, model: QuantModel) -> int:
    """Return the number of spatial dimensions of a convolution; 2 when nothing tells."""
    kernel = node.attributes.get("kernel_shape")
    if kernel:
        return len(kernel)
    weight = model.constants.get(_raw(model, node.inputs[1]))
    return weight.ndim - 2 if weight is not None else 2


def _reduces_only_space(node: Node) -> bool:
    """Whether a reduction leaves the channel axis of an NCHW tensor alone."""
    axes = node.attributes.get("axes") or ()
    return bool(axes) and all(axis in {2, 3, -1, -2} for axis in axes)


def _raw(model: QuantModel, tensor: str) -> str:
    """Return the tensor in front of all points in series."""
    step = model.producer_of.get(tensor)
    while isinstance(step, Point):
        tensor = step.input
        step = model.producer_of.get(tensor)
    return tensor
