"""What reads integers, and what a convolution takes in: the Relu and residual Add behind it.

Measured against HMCT 1.1.0: nodes fuse where nothing between them is quantized. A Clip from 0 on
counts as a Relu, whatever its upper bound: the integers of its output end there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.lowering.elementwise import BERNOULLI2
from hbdebug.lowering.islands import stays_float
from hbdebug.lowering.parameters import clip_bounds
from hbdebug.model import Node, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hbdebug.lowering.writer import GraphWriter
    from hbdebug.model import Assignment, QuantModel


MOVERS = frozenset(
    {"Flatten", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""They move data, whatever its type is."""

STEP_KEEPERS = frozenset(
    {
        "AveragePool",
        "DepthToSpace",
        "GlobalMaxPool",
        "HzChannelShuffle",
        "HzPad",
        "HzSpaceToDepth",
        "MaxPool",
        "Min",
        "PRelu",
        "Pad",
        "ReduceMax",
        "Resize",
        "SpaceToDepth",
        "TopK",
    }
)
"""They run in integers whether or not a point is behind them: the output counts like the input."""

BERNOULLI2_STEP_KEEPERS = STEP_KEEPERS | {"LeakyRelu"}
"""Those of bernoulli2, where a LeakyRelu is no table."""


# A constant that these read without a point, as on the CPU, is float and so are they.
_OPERATORS = frozenset({"Add", "Concat", "Div", "MatMul", "Max", "Min", "Mul", "Sub"})
_WEIGHTED = frozenset({"Conv", "ConvTranspose"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Fusion:
    """A convolution and what runs in it.

    Attributes:
        nodes: The convolution, then the Add and the Relu (or Clip) if there are.
        residual: Index of the Add's input that is the residual; None without Add.
        relu: Whether the last node is a Relu.
    """

    nodes: tuple[Node, ...]
    residual: int | None
    relu: bool

    @property
    def convolution(self) -> Node:
        """The convolution."""
        return self.nodes[0]

    @property
    def output(self) -> str:
        """The tensor that the whole gives."""
        return self.nodes[-1].outputs[0]


INTEGER_MAKERS = frozenset({"ArgMax", "GlobalAveragePool", "MatMul"})
"""They run in integers whether or not a point is behind them: they give indices or sums."""


def keeps_steps(node: Node, march: str) -> bool:
    """Whether a node gives integers without a point behind it, in the steps of what it reads."""
    return node.op_type in (BERNOULLI2_STEP_KEEPERS if march == BERNOULLI2 else STEP_KEEPERS)


def has_form(model: QuantModel, assignment: Assignment, node: Node, writer: GraphWriter) -> bool:
    """Whether a node that reads integers runs in integers."""
    if stays_float(model, node, writer):
        return False
    if node.op_type in MOVERS | INTEGER_MAKERS or keeps_steps(node, writer.march):
        return True
    return grid_point(model, assignment, node.outputs[0]) is not None


def quantizing_point(
    model: QuantModel, assignment: Assignment, node: Node, index: int, writer: GraphWriter
) -> Point | None:
    """Return the point in whose integers a node reads an input; None if that input is float.

    What only moves data, or keeps the steps of its input, passes the integers on.
    """
    if node.name in assignment.in_float:
        return None
    step = model.producer_of.get(node.inputs[index])
    if isinstance(step, Point):
        quantized = step.name in assignment and (node.name, index) not in assignment.bypassed
        return step if quantized else None
    if step is None or not (step.op_type in MOVERS or keeps_steps(step, writer.march)):
        return None
    if step.op_type == "TopK" and node.inputs[index] != step.outputs[0]:
        return None  # Indices.
    if not reads_integers(model, assignment, step, writer) or stays_float(model, step, writer):
        return None
    # A Min counts like the operand with the largest steps, all others like their first input.
    operands = range(len(step.inputs)) if step.op_type == "Min" else (0,)
    points = [quantizing_point(model, assignment, step, each, writer) for each in operands]
    return max(
        (point for point in points if point is not None),
        key=lambda point: float(assignment[point.name].scale.max()),
        default=None,
    )


def reads_integers(
    model: QuantModel, assignment: Assignment, node: Node, writer: GraphWriter
) -> bool:
    """Whether everything a node reads is quantized, but for its parameters."""
    return all(
        quantizing_point(model, assignment, node, index, writer) is not None
        for index, name in enumerate(node.inputs)
        if name and (name not in model.constants or _is_operand(node, index))
    )


def _is_operand(node: Node, index: int) -> bool:
    """Whether an input holds values like those of the output, not a parameter of the operator."""
    return node.op_type in _OPERATORS or (node.op_type in _WEIGHTED and index < 2)


def grid_point(model: QuantModel, assignment: Assignment, tensor: str) -> Point | None:
    """Return the first quantized point that reads a tensor: it says how a node writes it."""
    for step, _ in model.consumers_of.get(tensor, ()):
        if isinstance(step, Point):
            if step.name in assignment:
                return step
            behind = grid_point(model, assignment, step.output)
            if behind is not None:
                return behind
    return None


def fusions(
    model: QuantModel, assignment: Assignment, nodes: Iterable[Node], writer: GraphWriter
) -> Mapping[str, Fusion]:
    """Find the convolutions that run in integers.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized.
        nodes: The nodes to look among.
        writer: Knows the march and the shapes.

    Returns:
        By the name of the last fused node: where all inputs exist.
    """
    found = {}
    for node in nodes:
        if node.op_type == "Conv" and all(
            quantizing_point(model, assignment, node, index, writer) is not None for index in (0, 1)
        ):
            fusion = _fusion(model, assignment, node, writer)
            found[fusion.nodes[-1].name] = fusion
    return found


def _fusion(model: QuantModel, assignment: Assignment, node: Node, writer: GraphWriter) -> Fusion:
    nodes: tuple[Node, ...] = (node,)
    residual = None
    add = _only_reader(model, node, "Add")
    if add is not None:
        other = 1 - add.inputs.index(node.outputs[0])
        point = quantizing_point(model, assignment, add, other, writer)
        # None takes int16 in. (For an int16 Add the converter writes a point in front of it. Where
        # there is none, nothing says in which steps to count what the Conv gives, so that the Add
        # stays float.)
        if point is not None and assignment[point.name].dtype == "int8":
            nodes, residual = (node, add), other
    relu = _only_reader(model, nodes[-1], "Relu")
    if relu is None:
        relu = _only_reader(model, nodes[-1], "Clip")
        if relu is not None and clip_bounds(model, relu)[0] != 0:
            relu = None
    if relu is not None and writer.march == BERNOULLI2:
        # There, an accumulator that is the output takes no Relu in.
        rescaled = grid_point(model, assignment, relu.outputs[0]) is not None
        relu = relu if rescaled else None
    if relu is not None:
        nodes = (*nodes, relu)
    return Fusion(nodes=nodes, residual=residual, relu=relu is not None)


def _only_reader(model: QuantModel, node: Node, op_type: str) -> Node | None:
    """Return the one reader of a node's output if it is of this type and nothing is between."""
    (output,) = node.outputs
    if any(spec.name == output for spec in model.outputs):
        return None
    readers = model.consumers_of.get(output, ())
    if len(readers) != 1:
        return None
    reader = readers[0][0]
    return reader if isinstance(reader, Node) and reader.op_type == op_type else None
