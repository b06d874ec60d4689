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
    if node.op_type in ("Cast", "Dropout", "Identity"):
        # Casts of float constants lead to other float types; nothing else is read as a weight.
        return source
    if node.op_type == "Transpose":
        axes = node.attributes.get("perm") or range(source.values.ndim)[::-1]
        return source.transposed(tuple(int(axis) for axis in axes))
    given = constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    shape = _shape_behind(node, source.values, None if given is None else given.reshape(-1))
    return None if shape is None else source.reshaped(shape)


def _shape_behind(node: Node, values: Array, given: Array | None) -> tuple[int, ...] | None:
    """Return the shape that a node gives to values; None where it does something else.

    Args:
        node: The node.
        values: What it reads.
        given: Its second input, flat: sizes or axes.
    """
    shape = values.shape
    if node.op_type == "Flatten":
        return (int(np.prod(shape[: int(node.attributes.get("axis", 1))])), -1)
    if node.op_type == "Reshape" and given is not None:
        sizes = [int(size) for size in given]
        if not int(node.attributes.get("allowzero", 0)):
            kept = zip(sizes, (*shape, *[0] * len(sizes)), strict=False)
            sizes = [before if size == 0 else size for size, before in kept]
        return tuple(sizes)
    listed = node.attributes.get("axes") if given is None else given
    if node.op_type not in ("Squeeze", "Unsqueeze") or listed is None:
        return None
    axes = tuple(int(axis) for axis in listed)
    change = np.squeeze if node.op_type == "Squeeze" else np.expand_dims
    return tuple(change(values, axes).shape)
