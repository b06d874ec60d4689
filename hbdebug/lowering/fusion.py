"""What a convolution takes in: the Relu and the residual Add behind it.

Measured against HMCT 1.1.0 on bayes-e: nodes fuse where nothing between them is quantized. A Clip
from 0 on counts as a Relu, whatever its upper bound: the integers of its output end there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.model import Node, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hbdebug.model import Assignment, QuantModel


MOVERS = frozenset(
    {"Flatten", "Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""They move data, whatever its type is."""

STEP_KEEPERS = frozenset(
    {
        "ArgMax",
        "AveragePool",
        "DepthToSpace",
        "GlobalMaxPool",
        "HzChannelShuffle",
        "HzPad",
        "HzSpaceToDepth",
        "Max",
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


def quantizing_point(
    model: QuantModel, assignment: Assignment, node: Node, index: int
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
    if step is None or step.op_type not in MOVERS | STEP_KEEPERS:
        return None
    return quantizing_point(model, assignment, step, 0)


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
    model: QuantModel, assignment: Assignment, nodes: Iterable[Node]
) -> Mapping[str, Fusion]:
    """Find the convolutions that run in integers.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized.
        nodes: The nodes to look among.

    Returns:
        By the name of the last fused node: where all inputs exist.
    """
    found = {}
    for node in nodes:
        if node.op_type == "Conv" and all(
            quantizing_point(model, assignment, node, index) is not None for index in (0, 1)
        ):
            fusion = _fusion(model, assignment, node)
            found[fusion.nodes[-1].name] = fusion
    return found


def clip_bounds(model: QuantModel, node: Node) -> tuple[float, float]:
    """Return the bounds of a Clip; an infinite one where it has none, or none that is constant."""
    found = []
    for index, (name, missing) in enumerate((("min", -math.inf), ("max", math.inf)), start=1):
        constant = node.inputs[index] if len(node.inputs) > index else ""
        value = model.constants.get(constant, node.attributes.get(name, missing))
        found.append(float(np.reshape(np.asarray(value, np.float64), -1)[0]))
    return found[0], found[1]


def _fusion(model: QuantModel, assignment: Assignment, node: Node) -> Fusion:
    add = _only_reader(model, node, "Add")
    if add is not None:
        other = 1 - add.inputs.index(node.outputs[0])
        point = quantizing_point(model, assignment, add, other)
        whole = _with_relu(model, (node, add), other)
        # An accumulator that is the output takes no residual in, and none takes int16 in. (For an
        # int16 Add the converter writes a point in front of it. Where there is none, nothing says
        # in which steps to count what the Conv gives, so that the Add stays float.)
        rescaled = grid_point(model, assignment, whole.output) is not None
        taken_in = (
            point is not None
            and point.output not in model.static
            and assignment[point.name].dtype == "int8"
        )
        if rescaled and taken_in:
            return whole
    return _with_relu(model, (node,), None)


def _with_relu(model: QuantModel, nodes: tuple[Node, ...], residual: int | None) -> Fusion:
    relu = _only_reader(model, nodes[-1], "Relu")
    if relu is None:
        relu = _only_reader(model, nodes[-1], "Clip")
        if relu is not None and clip_bounds(model, relu)[0] != 0:
            relu = None
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
