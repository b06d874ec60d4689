"""Parameters of operators that are attributes in one opset of ONNX and inputs in another.

The vendor's converter writes opset 11; models of other opsets are read all the same.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hbdebug.model import Node, QuantModel


def clip_bounds(model: QuantModel, node: Node) -> tuple[float, float]:
    """Return the bounds of a Clip; an infinite one where it has none, or none that is constant."""
    found = []
    for index, (name, missing) in enumerate((("min", -math.inf), ("max", math.inf)), start=1):
        value = model.constants.get(_input(node, index), node.attributes.get(name, missing))
        found.append(float(np.reshape(np.asarray(value, np.float64), -1)[0]))
    return found[0], found[1]


def reduced_axes(model: QuantModel, node: Node, rank: int) -> tuple[int, ...]:
    """Return the axes of a reduction, counted from the front; none if it names none.

    Args:
        model: The model.
        node: The reduction.
        rank: Number of dimensions of its input.
    """
    given = model.constants.get(_input(node, 1), node.attributes.get("axes", ()))
    return tuple(int(axis) % rank for axis in np.reshape(given, -1))


def padding(model: QuantModel, node: Node) -> tuple[NDArray[np.int64], float]:
    """Return the pads of a Pad, ``(2, rank)``: begins and ends; and the value, 0 if not given."""
    pads = model.constants.get(_input(node, 1), node.attributes.get("pads"))
    value = model.constants.get(_input(node, 2), node.attributes.get("value", 0.0))
    return np.asarray(pads, np.int64).reshape(2, -1), float(np.reshape(value, -1)[0])


def resize_attributes(model: QuantModel, node: Node) -> Mapping[str, Any]:
    """Return the attributes of a Resize as opset 11 has them: opset 10 knows one mode only."""
    if model.opset >= 11:
        return node.attributes
    return {"coordinate_transformation_mode": "asymmetric", **node.attributes}


def _input(node: Node, index: int) -> str:
    """Return the name of an input; empty if it has none."""
    return node.inputs[index] if len(node.inputs) > index else ""
