"""Collects the stock operators that stand for one custom node, for any ai.onnx opset from 10 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.model import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    Shape = tuple[int | None, ...]

LAST = np.iinfo(np.int64).max
"""As the end of a Slice: up to the end of the axis."""

_LARGEST = 1 << 31

# onnx.TensorProto's numbers, written out because they are part of the file format.
FLOAT32, INT8, INT16, INT32, FLOAT64 = 1, 3, 5, 6, 11


def _is_like(value: Any, like: Any) -> bool:
    """Whether an attribute's value is of a type, and no integer beyond what any tensor has."""
    if isinstance(like, float):
        return isinstance(value, (int, float))
    if isinstance(like, int):
        return isinstance(value, int) and abs(value) <= _LARGEST
    return isinstance(value, type(like))


class Body:
    """The operators of one node, in the making.

    Args:
        name: Node name; what is made inside is called ``<name>/...``.
        inputs: The node's input tensors.
        outputs: The node's output tensors.
        attributes: The node's attributes.
        opset: ai.onnx opset that the operators must be valid in.
        shape_of: Tensor -> shape as far as the file states it, or None.
        taken: Tensor names already in use; what is made inside is added.
        known: The model's constants.
    """

    def __init__(
        self,
        *,
        name: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        attributes: Mapping[str, Any],
        opset: int,
        shape_of: Callable[[str], Shape | None],
        taken: set[str],
        known: Mapping[str, NDArray[np.generic]],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.opset = opset
        self.shape_of = shape_of
        self.ops: list[Op] = []
        self.constants: dict[str, NDArray[np.generic]] = {}
        self._name = name
        self._attributes = attributes
        self._taken = taken
        self._known = known

    def attribute(self, name: str, default: Any) -> Any:
        """Return an attribute of the custom node, or the schema's default.

        Raises:
            UnsupportedError: It is of another type than the default, or an absurd number.
        """
        value = self._attributes.get(name, default)
        items, likes = (value, default) if isinstance(default, list) else ([value], [default])
        if not isinstance(items, list) or not all(_is_like(item, likes[0]) for item in items):
            raise UnsupportedError(f"its attribute {name} is {value!r:.60}, which makes no sense")
        return value

    def required(self, name: str, like: Any) -> Any:
        """Return an attribute that the schema gives no default.

        Args:
            name: Its name.
            like: A value of its type.

        Raises:
            UnsupportedError: It is missing, or as for `attribute`.
        """
        if name not in self._attributes:
            raise UnsupportedError(f"its attribute {name} is missing")
        return self.attribute(name, like)

    def input(self, index: int) -> str:
        """Return an input that the operator cannot do without."""
        if index >= len(self.inputs) or not self.inputs[index]:
            raise UnsupportedError(f"its input {index} is missing")
        return self.inputs[index]

    def op(
        self, op_type: str, *inputs: str, to: str = "", domain: str = "", **attributes: Any
    ) -> str:
        """Add an operator with one output and return the output's name.

        Args:
            op_type: ONNX operator.
            inputs: Its input tensors.
            to: Name of its output; a new inner tensor when empty.
            domain: Operator domain.
            attributes: Its attributes.
        """
        return self._add(op_type, inputs, to, domain, attributes)

    def _add(
        self,
        op_type: str,
        inputs: tuple[str, ...],
        to: str,
        domain: str,
        attributes: Mapping[str, Any],
    ) -> str:
        output = to or self._fresh(op_type)
        op = Op(
            op_type=op_type,
            inputs=inputs,
            outputs=(output,),
            attributes=attributes,
            domain=domain,
        )
        self.ops.append(op)
        return output

    def floats(self, values: ArrayLike) -> str:
        """Add a float32 constant."""
        return self._constant(np.asarray(values, np.float32))

    def doubles(self, values: ArrayLike) -> str:
        """Add a float64 constant."""
        return self._constant(np.asarray(values, np.float64))

    def integers(self, values: ArrayLike) -> str:
        """Add an int64 constant."""
        return self._constant(np.asarray(values, np.int64))

    def cast(self, x: str, dtype: int, *, to: str = "") -> str:
        """Convert to another type, given by ONNX's number."""
        # Cast's attribute has the name of this method's argument, so `op` cannot take it.
        return self._add("Cast", (x,), to, "", {"to": dtype})

    def slice(self, x: str, start: int, end: int, *, axis: int = 0, to: str = "") -> str:
        """Cut one axis."""
        one = [self.integers([value]) for value in (start, end, axis)]
        return self.op("Slice", x, *one, to=to)

    def concat(self, *parts: str) -> str:
        """Join one-dimensional tensors."""
        return self.op("Concat", *parts, axis=0)

    def clip(self, x: str, low: float, high: float, *, to: str = "") -> str:
        """Limit float32 values; the limits became inputs in opset 11."""
        if self.opset < 11:
            return self.op("Clip", x, to=to, min=float(low), max=float(high))
        return self.op("Clip", x, self.floats(low), self.floats(high), to=to)

    def pad(self, x: str, pads: Sequence[int], mode: str, value: str = "", *, to: str = "") -> str:
        """Pad; opset 11 made inputs of ``pads`` and ``value``."""
        if self.opset >= 11:
            tail = (value,) if value else ()
            return self.op("Pad", x, self.integers(pads), *tail, to=to, mode=mode)
        number = 0.0
        if value:
            if value not in self._known:
                raise UnsupportedError("padding with a computed value needs opset 11 or newer")
            number = float(self._known[value].reshape(-1)[0])
        return self.op("Pad", x, to=to, mode=mode, pads=list(pads), value=number)

    def reduce(self, op_type: str, x: str, axes: Sequence[int], *, keep: bool, to: str = "") -> str:
        """Reduce over axes; they became an input in opset 18 (of ReduceSum in 13)."""
        keepdims = int(keep)
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.op(op_type, x, self.integers(axes), to=to, keepdims=keepdims)
        return self.op(op_type, x, to=to, axes=list(axes), keepdims=keepdims)

    def _constant(self, values: NDArray[np.generic]) -> str:
        name = self._fresh("constant")
        self.constants[name] = values
        return name

    def _fresh(self, label: str) -> str:
        """Return a name that nothing in the model has."""
        index = len(self.ops) + len(self.constants)
        name = f"{self._name}/{label}_{index}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
