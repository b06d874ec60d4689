"""Constants that a graph moves about before it uses them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import ModelError
from hbdebug.loading.integer_moves import folded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.model import Node

    Array = NDArray[Any]

# float32, float16, float64 and bfloat16, as ONNX counts types.
_FLOAT_TYPES = (1, 10, 11, 16)


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
    except (ModelError, TypeError, ValueError):
        # A shape or axes that do not fit: ONNX Runtime will say so, matching goes on without.
        return None


# Operators that give a constant another shape and move none of its values.
_RESHAPING = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})

_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Div": np.divide,
    "Exp": np.exp,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
}


def computed(node: Node, held: Mapping[str, Held], constants: Mapping[str, Array]) -> Held | None:
    """Return what a node computes of float constants alone, as constant folding would.

    Args:
        node: The node.
        held: As for `moved`.
        constants: Values by tensor name, for where a Slice starts and ends.

    Returns:
        A constant under the name of the node's output; None when it is not known how, or when
        the result would be larger than what it is made of.
    """
    values = [held[name].values for name in node.inputs if name in held]
    if not values or len(node.outputs) != 1:
        return None
    try:
        result = _computed(node, values, constants)
    except (LookupError, TypeError, ValueError):
        # As for moves.
        return None
    return None if result is None else Held(constant=node.outputs[0], values=result)


def _computed(node: Node, values: Sequence[Array], constants: Mapping[str, Array]) -> Array | None:
    if node.op_type == "Slice" and len(values) == 1 and len(node.inputs) > 2:
        source, given = values[0], [constants[name].reshape(-1) for name in node.inputs[1:] if name]
        axes = given[2] if len(given) > 2 else range(len(given[0]))
        steps = given[3] if len(given) > 3 else np.ones(len(given[0]), np.int64)
        cut = [slice(None)] * source.ndim
        for axis, start, end, step in zip(axes, given[0], given[1], steps, strict=True):
            if step < 1:
                return None
            cut[int(axis)] = slice(int(start), int(end), int(step))
        return source[tuple(cut)]
    if len(values) != len(node.inputs):
        return None
    if node.op_type == "Concat":
        return np.concatenate(values, int(numeric(node, "axis", 0)))
    operator = _ARITHMETIC.get(node.op_type)
    shape = np.broadcast_shapes(*(item.shape for item in values))
    if operator is None or np.prod(shape) > max(item.size for item in values):
        return None
    return np.asarray(operator(*values), values[0].dtype)


def numeric(node: Node, attribute: str, default: float) -> float:
    """Return an attribute that is a number; an integer where its default is one.

    Raises:
        ModelError: It is something else.
    """
    value = node.attributes.get(attribute, default)
    if not isinstance(value, int if isinstance(default, int) else (int, float)):
        raise ModelError(f"attribute {attribute} is no number", where=f"node {node.name}")
    return value


def _moved(node: Node, source: Held, constants: Mapping[str, Array]) -> Held | None:
    to_float = node.op_type == "Cast" and node.attributes.get("to") in _FLOAT_TYPES
    if to_float or node.op_type in ("Dropout", "Identity"):
        return source
    if node.op_type == "Transpose":
        axes = node.attributes.get("perm") or range(source.values.ndim)[::-1]
        return source.transposed(tuple(int(axis) for axis in axes))
    if node.op_type not in _RESHAPING:
        return None
    given = constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    inputs = [source.values] if given is None else [source.values, given]
    return source.reshaped(folded(node.op_type, inputs, node.attributes).shape)
