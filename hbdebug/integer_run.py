"""Run an integer model node by node: kernels in integers, stock operators in ONNX Runtime.

A stock operator that moves or compares integers runs on them as they are. Where ONNX Runtime has
no kernel for that type, it runs on floats wide enough to hold every value, which is exact.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import HbdebugError, ModelError
from hbdebug.kernels import KERNELS
from hbdebug.model import Op
from hbdebug.plan import last_uses
from hbdebug.slices import Slicer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from hbdebug.kernels import Outcome
    from hbdebug.model import IntegerModel, Node
    from hbdebug.slices import Runner

Arrays: TypeAlias = "dict[str, NDArray[Any]]"

# ONNX's numbers of the types, and the float type in which every value of an integer type is exact.
_NUMBERS = {"float32": 1, "float64": 11, "int8": 3, "int16": 5, "int32": 6, "uint8": 2}
_WIDER = {"int8": "float32", "int16": "float32", "uint8": "float32", "int32": "float64"}

# Attributes with a number for each channel, or each entry of a table.
_PER_CHANNEL = frozenset(
    {
        "accu_right_shift",
        "e_scale",
        "e_shift",
        "out_shift",
        "output_right_shift",
        "output_scale",
        "right_shift",
        "scale",
        "table_param",
        "x_shift",
        "y_quant_scale",
        "y_right_shift",
    }
)

_ALL = None
# Stock operators whose results are values that they read (or comparisons of them), so that they
# may run in any type that holds these: positions of the inputs that hold values, and of the
# outputs that do; the others hold indices, sizes or truth values.
_VALUES_OF: Mapping[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = {
    "ArgMax": ((0,), ()),
    "ArgMin": ((0,), ()),
    "Clip": (_ALL, _ALL),
    "Concat": (_ALL, _ALL),
    "DepthToSpace": ((0,), _ALL),
    "Equal": (_ALL, ()),
    "Expand": ((0,), _ALL),
    "Flatten": ((0,), _ALL),
    "Gather": ((0,), _ALL),
    "GatherElements": ((0,), _ALL),
    "GatherND": ((0,), _ALL),
    "Greater": (_ALL, ()),
    "Identity": (_ALL, _ALL),
    "Less": (_ALL, ()),
    "Max": (_ALL, _ALL),
    "MaxPool": ((0,), (0,)),
    "Min": (_ALL, _ALL),
    "Pad": ((0, 2), _ALL),
    "ReduceMax": ((0,), _ALL),
    "ReduceMin": ((0,), _ALL),
    "Relu": (_ALL, _ALL),
    "Reshape": ((0,), _ALL),
    "Slice": ((0,), _ALL),
    "SpaceToDepth": ((0,), _ALL),
    "Split": ((0,), _ALL),
    "Squeeze": ((0,), _ALL),
    "Tile": ((0,), _ALL),
    "TopK": ((0,), (0,)),
    "Transpose": ((0,), _ALL),
    "Unsqueeze": ((0,), _ALL),
    "Where": ((1, 2), _ALL),
}


class IntegerRunner:
    """Runs one integer model; sessions of stock operators are made once.

    Args:
        model: The model.
        provider: ONNX Runtime provider of the stock operators, see `hbdebug.slices.PROVIDERS`.

    Raises:
        UsageError: There is no such provider here.
    """

    def __init__(self, model: IntegerModel, *, provider: str = "cpu") -> None:
        self.model = model
        self._slicer = Slicer(model, provider=provider)
        self._outputs = tuple(spec.name for spec in model.outputs)
        self._drops = last_uses(model, self._outputs)
        self._runners: dict[str, Runner] = {}
        self._attributes: dict[str, Mapping[str, Any]] = {}
        self._lock = Lock()

    def forward(
        self,
        inputs: Mapping[str, NDArray[Any]],
        *,
        keep: Callable[[str, NDArray[Any]], None] | None = None,
        watch: Callable[[Node, Outcome], None] | None = None,
    ) -> Arrays:
        """Run the whole model on one sample.

        Args:
            inputs: One array for each graph input, of its dtype.
            keep: Called with every tensor that is made, under its name, before it is forgotten.
            watch: Called with what each kernel gave: its outputs, and what happened to its
                accumulator, which takes time to find out.

        Returns:
            The graph outputs by name.

        Raises:
            ModelError: A node cannot compute these tensors.
        """
        values: Arrays = dict(inputs)
        for node, dropped in zip(self.model.nodes, self._drops, strict=True):
            made = self.execute(node, values, watch=watch)
            values.update(made)
            if keep is not None:
                for name, array in made.items():
                    keep(name, array)
            for name in dropped:
                values.pop(name, None)
        return {name: self._value(name, values) for name in self._outputs}

    def execute(
        self,
        node: Node,
        values: Mapping[str, NDArray[Any]],
        *,
        watch: Callable[[Node, Outcome], None] | None = None,
    ) -> Arrays:
        """Run one node.

        Args:
            node: A node of the model.
            values: The tensors it reads, constants left out.
            watch: As for `forward`.

        Returns:
            Its outputs by name.

        Raises:
            ModelError: It cannot compute these tensors.
        """
        kernel = KERNELS.get((node.domain, node.op_type))
        # What has a body is a stock operator, or one of the vendor's that stays float.
        if kernel is None or node.body:
            runner = self._runner(node, values)
            with _located(node, "ONNX Runtime"):
                return dict(zip(runner.outputs, runner.run(values), strict=True))
        inputs = [self._value(name, values) if name else None for name in node.inputs]
        with _located(node, f"the kernel of {node.op_type}"):
            outcome = kernel(*inputs, **self._attributes_of(node), report=watch is not None)
        if watch is not None:
            watch(node, outcome)
        # An operator may have more outputs than the node has names for.
        made = zip(node.outputs, outcome.outputs, strict=False)
        return {name: array for name, array in made if name}

    def _attributes_of(self, node: Node) -> Mapping[str, Any]:
        """Return a node's attributes, with arrays for the lists that a kernel makes arrays of."""
        found = self._attributes.get(node.name)
        if found is None:
            found = {
                name: np.asarray(value, np.int64)
                if name in _PER_CHANNEL and isinstance(value, list)
                else value
                for name, value in node.attributes.items()
            }
            self._attributes[node.name] = found
        return found

    def _value(self, name: str, values: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        return values[name] if name in values else self.model.constants[name]

    def _runner(self, node: Node, values: Mapping[str, NDArray[Any]]) -> Runner:
        """Return the session of a stock operator, in the types of the tensors that it reads."""
        with self._lock:
            runner = self._runners.get(node.name)
            if runner is None:
                runner = self._runners[node.name] = self._make_runner(node, values)
            return runner

    def _make_runner(self, node: Node, values: Mapping[str, NDArray[Any]]) -> Runner:
        fed = {name: values[name].dtype.name for name in node.inputs if name in values}
        try:
            return self._slicer.node(node, fed, {}, unread=True)
        except ModelError:
            dtypes = {name: self._value(name, values).dtype.name for name in node.inputs if name}
            wide = widened(node, dtypes)
            if wide is None:
                raise
            return self._slicer.node(wide, fed, {}, unread=True)


@contextmanager
def _located(node: Node, who: str) -> Iterator[None]:
    """Turn whatever goes wrong with a node's tensors into an error that names the node."""
    where = f"node {node.name} ({node.op_type})"
    try:
        yield
    except HbdebugError as error:
        error.where = error.where or where
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"{who} failed: {lines[0]}", where=where) from error


def run(
    model: IntegerModel,
    inputs: Mapping[str, NDArray[Any]],
    *,
    keep: Callable[[str, NDArray[Any]], None] | None = None,
) -> Arrays:
    """Run an integer model on one sample; for several, keep an `IntegerRunner`.

    Args:
        model: What `hbdebug.loading.integer.load_integer` returned.
        inputs: One array for each graph input, of its dtype.
        keep: Called with every tensor that is made, under its name, before it is forgotten.

    Returns:
        The graph outputs by name.

    Raises:
        ModelError: A node cannot compute these tensors.
    """
    return IntegerRunner(model).forward(inputs, keep=keep)


def widened(node: Node, dtypes: Mapping[str, str]) -> Node | None:
    """Return a stock node that computes the same integers on floats.

    Args:
        node: A node with one stock operator as its body.
        dtypes: Dtype name of every tensor that it reads.

    Returns:
        The node with casts around its operator; None when that would not be exact, or nothing in
        it is an integer to be cast.
    """
    known = _VALUES_OF.get(node.op_type)
    if known is None or node.domain:
        return None
    (op,) = node.body
    read, written = known
    held = [
        index for index, name in enumerate(op.inputs) if name and (read is None or index in read)
    ]
    narrow = {dtypes[op.inputs[index]] for index in held}
    if len(narrow) != 1 or not narrow <= _WIDER.keys():
        return None
    (dtype,) = narrow
    inputs, outputs = list(op.inputs), list(op.outputs)
    before, after = [], []
    for index in held:
        inputs[index] = f"{node.name}/input_{index}"
        before.append(_cast(op.inputs[index], inputs[index], _WIDER[dtype]))
    for index, name in enumerate(op.outputs):
        if name and (written is None or index in written):
            outputs[index] = f"{node.name}/output_{index}"
            after.append(_cast(outputs[index], name, dtype))
    middle = replace(op, inputs=tuple(inputs), outputs=tuple(outputs))
    return replace(node, body=(*before, middle, *after))


def _cast(source: str, target: str, dtype: str) -> Op:
    return Op(
        op_type="Cast", inputs=(source,), outputs=(target,), attributes={"to": _NUMBERS[dtype]}
    )
