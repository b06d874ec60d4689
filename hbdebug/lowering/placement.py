"""Points that the converter leaves out, because both sides of them are float on the chip.

Measured against HMCT 1.1.0: where a node without integer form makes a tensor, only the integer
nodes behind the tensor's point read it quantized. A float node reads it as it is, and a point
that no integer node reads is not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.lowering.fusion import fusions, has_form, reads_integers
from hbdebug.model import Assignment, Point

if TYPE_CHECKING:
    from hbdebug.lowering.writer import GraphWriter
    from hbdebug.model import QuantModel, Step


def on_chip(model: QuantModel, assignment: Assignment, writer: GraphWriter) -> Assignment:
    """Return what is left of an assignment on the chip.

    Which nodes have an integer form is a matter of the model as calibrated: a node that is float
    because the assignment leaves its inputs in float does not change what is quantized.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized, and how.
        writer: Knows the march and the shapes.

    Raises:
        UnsupportedError: That depends on a shape, which is not known.
    """
    islands = _islands(model, writer)
    left_out = dict.fromkeys(name for name in islands.points if name in assignment)
    if not left_out and not islands.around:
        return assignment
    return assignment.changed(left_out, bypassed=islands.around)


def outputs_in_float(model: QuantModel, writer: GraphWriter) -> frozenset[str]:
    """Return the points whose output is one of the graph's, and is not quantized as such.

    A float node gives it as it is, even where integer nodes read it on the point's grid.
    """
    return _islands(model, writer).outputs


def _islands(model: QuantModel, writer: GraphWriter) -> _Islands:
    """Return what depends on the model as calibrated alone, found once."""
    return writer.once(("on chip",), lambda: _Islands(model, writer))


class _Islands:
    """The float nodes of a model as calibrated, and the points at them.

    Attributes:
        points: Points with float nodes on both sides.
        around: Float nodes that read around points behind float nodes, with the input's index.
        outputs: Points behind float nodes that give graph outputs.
    """

    def __init__(self, model: QuantModel, writer: GraphWriter) -> None:
        calibrated = Assignment.as_calibrated(model)
        found = fusions(model, calibrated, model.nodes, writer)
        fused = {node.name for each in found.values() for node in each.nodes}
        floats = {
            node.name
            for node in model.nodes
            if node.name not in fused
            and not (
                reads_integers(model, calibrated, node, writer)
                and has_form(model, calibrated, node, writer)
            )
        }
        points: set[str] = set()
        around: set[tuple[str, int]] = set()
        ends = {spec.name for spec in model.outputs}
        outputs: set[str] = set()
        for point in model.points:
            readers = model.consumers_of.get(point.output, ())
            behind = [(step, index) for step, index in readers if _is_float(step, floats)]
            if point.output in model.static:
                if behind and len(behind) == len(readers):
                    points.add(point.name)
                continue
            if not _is_float(model.producer_of.get(point.input), floats):
                continue
            rescales = point.params is not None and point.params.dequantize_scale is not None
            if point.output in ends and not rescales:
                outputs.add(point.name)
            if len(behind) < len(readers):
                around.update((step.name, index) for step, index in behind)
            elif not rescales:
                points.add(point.name)
        self.points = frozenset(points)
        self.around = frozenset(around)
        self.outputs = frozenset(outputs)


def _is_float(step: Step | None, floats: set[str]) -> bool:
    """Whether a step is a float node; without one, the tensor comes in from outside."""
    return step is None or (not isinstance(step, Point) and step.name in floats)
