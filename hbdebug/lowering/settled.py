"""A calibrated model as it would be, had the converter made it with an assignment's settings."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.model import Assignment, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hbdebug.model import IntegerModel, Node, QuantModel, Step


def settled(
    model: QuantModel, assignment: Assignment, *, cpu: Iterable[str] = ()
) -> tuple[QuantModel, Assignment]:
    """Take out the points that an assignment leaves in float.

    The converter places no points where nothing is quantized, so that what reads there reads the
    tensor in front of the point. Points of constants stay, as do graph outputs and those that
    rescale channels.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized.
        cpu: Nodes that shall be float even where all that they read is quantized.

    Returns:
        The model without these points, and an assignment that quantizes the same in it.
    """
    outputs = {spec.name for spec in model.outputs}
    replaced: dict[str, str] = {}
    steps: list[Step] = []
    for step in model.steps:
        if isinstance(step, Point):
            point = replace(step, input=replaced.get(step.input, step.input))
            kept = step.name in assignment or step.output in outputs | model.static
            if kept or _rescales(step):
                steps.append(point)
            else:
                replaced[step.output] = point.input
        else:
            steps.append(_rewired(model, assignment, step, replaced))
    params = {name: assignment[name] for name in assignment}
    return replace(model, steps=tuple(steps)), Assignment(params, in_float=cpu)


def _rescales(point: Point) -> bool:
    return point.params is not None and point.params.dequantize_scale is not None


def _rewired(
    model: QuantModel, assignment: Assignment, node: Node, replaced: Mapping[str, str]
) -> Node:
    """Return a node that reads what it reads under the assignment."""
    names = {}
    for index, name in enumerate(node.inputs):
        around = (node.name, index) in assignment.bypassed
        source = model.in_front_of_points(name) if around else name
        names[name] = replaced.get(source, source)
    return node.reading(names)


def with_original_constants(lowered: IntegerModel, model: QuantModel) -> IntegerModel:
    """Let float nodes read a constant that is not quantized under the name it has in the file.

    Args:
        lowered: The integer model.
        model: The calibrated model that it was made of.
    """
    names = {
        point.output: point.input
        for point in model.points
        if point.output in lowered.constants
        and np.array_equal(lowered.constants[point.output], model.constants.get(point.input, ()))
    }

    nodes = tuple(node.reading(names) for node in lowered.nodes)
    return replace(lowered, steps=nodes)
