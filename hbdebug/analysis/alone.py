"""What is quantized to measure one node alone, at integer fidelity.

The calibrated model can quantize what a node reads and leave what it gives in float. A node in
integers gives integers: its rounding to the steps of its output is part of what it computes, and
so is whatever runs fused with it. So the points that count are those that make the chip run this
one kernel as it does in the whole model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.lowering.fusion import fusions, grid_point, quantizing_point
from hbdebug.lowering.writer import GraphWriter
from hbdebug.model import Assignment, Node, Point

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hbdebug.lowering.fusion import Fusion
    from hbdebug.lowering.program import Fallback
    from hbdebug.model import QuantModel


class KernelPoints:
    """The points of every node's kernel.

    Args:
        model: The model.
        fallbacks: Steps of the model as calibrated whose integer form is not known.
        shapes: Shapes of the model's tensors.
        march: What the integers are for.
    """

    def __init__(
        self,
        model: QuantModel,
        fallbacks: Sequence[Fallback],
        *,
        shapes: Mapping[str, tuple[int, ...]],
        march: str,
    ) -> None:
        self._model = model
        self._reasons = {step.name: step.reason for step in fallbacks}
        self._calibrated = Assignment.as_calibrated(model)
        self._writer = GraphWriter(shapes, march)
        found = fusions(model, self._calibrated, model.nodes, self._writer)
        self._fusion_of: Mapping[str, Fusion] = {
            node.name: fusion for fusion in found.values() for node in fusion.nodes
        }

    def note(self, node: Node) -> str:
        """Return what the user should know about a node's integer form; empty if nothing."""
        if node.name in self._reasons:
            return f"measured as calibrated, not in integers: {self._reasons[node.name]}"
        fusion = self._fusion_of.get(node.name)
        others = () if fusion is None else fusion.nodes
        # A Relu is no line of the ranking, so that nobody wonders about its numbers.
        names = ", ".join(
            other.name for other in others if other.op_type != "Relu" and other.name != node.name
        )
        return f"one kernel with {names}" if names else ""

    def points(self, node: Node, own: Sequence[Point]) -> tuple[Point, ...]:
        """Return what is quantized to run a node as its kernel.

        Args:
            node: The node.
            own: The points that it stands for in the calibrated model.

        Returns:
            These and, in graph order, those of what is fused with it, those whose integers
            reach it through operators that pass them on, and the one that counts its output.
        """
        fusion = self._fusion_of.get(node.name)
        nodes = (node,) if fusion is None else fusion.nodes
        found = {point.name for point in own}
        for each in nodes:
            found.update(point.name for point in self._read(each))
        for output in nodes[-1].outputs:
            grid = grid_point(self._model, self._calibrated, output)
            if grid is not None:
                found.add(grid.name)
        position_of = self._model.position_of
        ordered = sorted(found, key=position_of.__getitem__)
        return tuple(self._model.point_by_name[name] for name in ordered)

    def _read(self, node: Node) -> Iterator[Point]:
        for index, name in enumerate(node.inputs):
            if not name or name in self._model.constants:
                continue
            point = quantizing_point(self._model, self._calibrated, node, index, self._writer)
            while point is not None:
                yield point
                in_front = self._model.producer_of.get(point.input)
                enabled = isinstance(in_front, Point) and in_front.enabled
                point = in_front if enabled and isinstance(in_front, Point) else None
