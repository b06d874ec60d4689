"""Constants that a graph moves about before it uses them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hbdebug.model import Node

    Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Held:
    """A float constant as an operator reads it.

    Attributes:
        constant: Its tensor name.
        values: Its values behind the moves.
        back: What undoes the moves, the last one first: ``("axes", permutation)`` or
            ``("shape", shape)``.
    """

    constant: str
    values: Array
    back: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def transposed(self, axes: tuple[int, ...]) -> Held:
        """Return it with its axes in another order."""
        inverse = tuple(int(item) for item in np.argsort(axes))
        back = (("axes", inverse), *self.back)
        return replace(self, values=self.values.transpose(axes), back=back)

    def reshaped(self, shape: tuple[int, ...]) -> Held:
        """Return it in another shape with as many elements."""
        back = (("shape", self.values.shape), *self.back)
        return replace(self, values=self.values.reshape(shape), back=back)

    def as_stored(self, values: Array) -> Array:
        """Return values that have the layout read here in the layout of the constant."""
        for kind, argument in self.back:
            values = values.transpose(argument) if kind == "axes" else values.reshape(argument)
        return values


def moved(node: Node, held: Mapping[str, Held], constants: Mapping[str, Array]) -> Held | None:
    """Return what a node makes of a constant, if it only moves it.

    Args:
        node: The node.
        held: Constants known so far, by the name of the tensor that is read.
        constants: Values by tensor name, for shapes and axes.

    Returns:
        The constant behind the node; None when the node reads none or computes with it.
    """
    source = held.get(node.inputs[0]) if node.inputs else None
    if source is None or len(node.outputs) != 1:
        return None
    try:
        return _moved(node, source, constants)
    except (TypeError, ValueError):
        # A shape or axes that do not fit: ONNX Runtime will say so, matching goes on without.
        return None


def _moved(node: Node, source: Held, constants: Mapping[str, Array]) -> Held | None:
    shape = source.values.shape
    if node.op_type in ("Cast", "Dropout", "Identity"):
        # Casts of float constants lead to other float types; nothing else is read as a weight.
        return source
    if node.op_type == "Transpose":
        axes = node.attributes.get("perm") or range(len(shape))[::-1]
        return source.transposed(tuple(int(axis) for axis in axes))
    if node.op_type == "Flatten":
        axis = int(node.attributes.get("axis", 1))
        return source.reshaped((int(np.prod(shape[:axis])), -1))
    given = constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if node.op_type == "Reshape" and given is not None:
        wanted = [int(size) for size in given.reshape(-1)]
        if not int(node.attributes.get("allowzero", 0)):
            wanted = [
                shape[index] if size == 0 and index < len(shape) else size
                for index, size in enumerate(wanted)
            ]
        return source.reshaped(tuple(wanted))
    if node.op_type in ("Squeeze", "Unsqueeze"):
        listed = node.attributes.get("axes") if given is None else given.reshape(-1)
        if listed is None:
            return None
        axes = tuple(int(axis) for axis in listed)
        if node.op_type == "Squeeze":
            return source.reshaped(np.squeeze(source.values, axes).shape)
        return source.reshaped(np.expand_dims(source.values, axes).shape)
    return None
