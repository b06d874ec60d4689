"""The float graph and its quantization points; no protobuf type appears here.

A model is a list of *steps* in topological order. A step is a `Node`, which computes, or a
`Point`, which passes its input on unless an assignment quantizes it. Tensors keep the names of
the file, those behind a point included, so that two points in series, one point with several
consumers and a calibrated graph output need no special case.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from hbdebug.quant import QuantParams
    from hbdebug.results import NotAnalysed
    from hbdebug.samples import TensorSpec

CALIBRATION = "HzCalibration"
"""The vendor's operator for one quantization point."""

Role: TypeAlias = Literal["weight", "activation"]

IN_SUBGRAPH = "inside of a subgraph: runs in float as a part of its If, Loop or Scan"
JOINED = "hands on values that are no arrays of numbers: runs as a part of the node that begins it"
"""Why a node is no step of its own, see `Node.inside`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Op:
    """One stock ONNX operator call.

    Attributes:
        op_type: ONNX operator name.
        inputs: Tensor names; an absent optional input is the empty string.
        outputs: Tensor names.
        attributes: Attribute values as plain Python numbers, strings, bytes, lists, NumPy arrays
            (tensors), or an opaque object (subgraphs).
        domain: Operator domain; empty for ai.onnx.
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Node:
    """A computing node under the name the user knows.

    Attributes:
        name: Unique name, as in the file.
        op_type: Operator as in the file, custom operators included.
        domain: Operator domain as in the file; empty for ai.onnx.
        inputs: Tensor names as in the file; an absent optional input is the empty string.
        outputs: Tensor names.
        attributes: The node's own attributes, plain Python values.
        body: Stock ONNX operators that compute the node in float32, in order. Tensors that exist
            only inside start with the node's name and a slash.
        quick: Stock ONNX operators that compute the same but for float32 rounding, and faster;
            for where nothing behind the node is quantized. Empty when ``body`` is as fast.
        inside: The nodes that run inside of this one and are no steps of their own, with the
            reason: those of its subgraphs, and those that it was joined with.
        assumed: Whether the file does not hold the node, see `hbdebug.loading.left_out`.
    """

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    body: tuple[Op, ...]
    quick: tuple[Op, ...] = ()
    inside: tuple[NotAnalysed, ...] = ()
    assumed: bool = False

    def reading(self, names: Mapping[str, str]) -> Node:
        """Return the node reading other tensors, its body included.

        What is inside of a subgraph goes on reading the old names: an Identity hands the new
        tensors on under these.

        Args:
            names: Tensor name -> the name to read instead; others stay.
        """
        changed = {name: names[name] for name in self.inputs if names.get(name, name) != name}
        if self.inside and changed:
            bridges = tuple(
                Op(op_type="Identity", inputs=(new,), outputs=(old,))
                for old, new in changed.items()
            )
            return replace(
                self,
                inputs=tuple(changed.get(name, name) for name in self.inputs),
                body=(*bridges, *self.body),
            )

        def renamed(inputs: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(names.get(name, name) for name in inputs)

        def rewired(ops: tuple[Op, ...]) -> tuple[Op, ...]:
            return tuple(replace(op, inputs=renamed(op.inputs)) for op in ops)

        return replace(
            self,
            inputs=renamed(self.inputs),
            body=rewired(self.body),
            quick=rewired(self.quick),
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Point:
    """One place where a tensor is quantized.

    That is an HzCalibration node, or a pair of QuantizeLinear and DequantizeLinear.

    Attributes:
        name: The node's name, as in the file; of a pair, that of its QuantizeLinear, and of a
            constant that the file holds in integers, that of its DequantizeLinear.
        role: ``weight`` or ``activation``.
        input: Tensor that is quantized.
        output: Tensor behind the point.
        params: How it is quantized; None when it never is (unknown or passing type).
        enabled: Whether the file quantizes here (switched on and calibrated).
        reason: Why ``enabled`` is False, in words for the user; empty otherwise.
        op_type: Operator of the node that ``name`` is of.
        stored: What a constant is behind the point under ``params``, where the file holds its
            integers itself: they may have been chosen otherwise than by rounding. None elsewhere.
        original: Which constant of the float model the value in front of the point is, in words;
            empty where the file has it.
    """

    name: str
    role: Role
    input: str
    output: str
    params: QuantParams | None
    enabled: bool = True
    reason: str = ""
    op_type: str = CALIBRATION
    stored: NDArray[np.generic] | None = None
    original: str = ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The one input, in the shape that `Node.inputs` has."""
        return (self.input,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The one output, in the shape that `Node.outputs` has."""
        return (self.output,)


Step: TypeAlias = Node | Point


@dataclass(frozen=True, kw_only=True, eq=False)
class QuantModel:
    """A float graph with its quantization points.

    Attributes:
        path: File it was read from, as the user gave it.
        sha256: Digest of the file's content, hexadecimal.
        kind: Kind of file, for the report, such as ``HMCT calibrated``.
        producer: Producer name and version as the file states them.
        opset: ai.onnx opset version of the node bodies.
        inputs: Graph inputs that the user feeds.
        outputs: Graph outputs; they may be outputs of points.
        steps: Nodes and points in topological order.
        constants: Initializers by tensor name, constants that node bodies need included.
        skipped: What was left out on loading (``--skip-unsupported``).
        warnings: What about the float form of the file the user should know.
        notes: What was assumed of the file, in words for the user.
        renamed: Node or point -> its name in the file, perhaps empty, where several have that.
        dtypes: Tensor -> dtype name, as far as the file states it.
    """

    path: str
    sha256: str
    kind: str
    producer: str
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    steps: tuple[Step, ...]
    constants: Mapping[str, NDArray[np.generic]]
    skipped: tuple[NotAnalysed, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Computing nodes in topological order."""
        return tuple(step for step in self.steps if isinstance(step, Node))

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """Points in topological order."""
        return tuple(step for step in self.steps if isinstance(step, Point))

    @cached_property
    def node_by_name(self) -> Mapping[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def point_by_name(self) -> Mapping[str, Point]:
        """Points by name."""
        return {point.name: point for point in self.points}

    @cached_property
    def producer_of(self) -> Mapping[str, Step]:
        """The step that makes a tensor; graph inputs and constants have none."""
        return {output: step for step in self.steps for output in step.outputs if output}

    @cached_property
    def consumers_of(self) -> Mapping[str, tuple[tuple[Step, int], ...]]:
        """Steps that read a tensor directly, with the index of the input, in graph order."""
        found: dict[str, list[tuple[Step, int]]] = {}
        for step in self.steps:
            for index, tensor in enumerate(step.inputs):
                if tensor:
                    found.setdefault(tensor, []).append((step, index))
        return {tensor: tuple(steps) for tensor, steps in found.items()}

    @property
    def has_pairs(self) -> bool:
        """Whether points are pairs of QuantizeLinear and DequantizeLinear, not HzCalibration."""
        return any(point.op_type != CALIBRATION for point in self.points)

    def in_front_of_points(self, tensor: str) -> str:
        """Return the tensor in front of the points that a tensor is behind; itself without any."""
        while isinstance(point := self.producer_of.get(tensor), Point):
            tensor = point.input
        return tensor

    @cached_property
    def position_of(self) -> Mapping[str, int]:
        """Index into `steps` of every node and point, by its name."""
        return {step.name: index for index, step in enumerate(self.steps)}

    @cached_property
    def static(self) -> frozenset[str]:
        """The tensors behind points that read a constant: quantized weights and the like.

        They never change from sample to sample and are no part of the walk's state. A graph
        output is never one of them.
        """
        outputs = {spec.name for spec in self.outputs}
        found: set[str] = set()
        for point in self.points:
            constant = point.input in self.constants or point.input in found
            if constant and point.output not in outputs:
                found.add(point.output)
        return frozenset(found)

    def upto(self, outputs: tuple[TensorSpec, ...]) -> QuantModel:
        """Return the part of the model that some tensors depend on, with them as its outputs."""
        needed = {spec.name for spec in outputs}
        kept: list[Step] = []
        for step in reversed(self.steps):
            if not needed.isdisjoint(step.outputs):
                kept.append(step)
                needed.update(name for name in step.inputs if name)
        return replace(self, steps=tuple(reversed(kept)), outputs=outputs)

    def consuming_nodes(self, point: Point) -> Iterator[tuple[Node, int]]:
        """Yield the nodes that read a point's values, with the input's index.

        A point in series behind it is looked through.
        """
        for step, index in self.consumers_of.get(point.output, ()):
            if isinstance(step, Point):
                yield from self.consuming_nodes(step)
            else:
                yield step, index


@dataclass(frozen=True, kw_only=True, eq=False)
class IntegerModel(QuantModel):
    """A graph that computes in integers, as the chip does.

    It has no points: scales are attributes of its operators and constants. Integer nodes of the
    vendor's domain have no body, because `hbdebug.kernels` computes them; stock ones have
    themselves as their only body operator, and work on integer tensors or, between HzDequantize
    and HzQuantize, on float32 ones. There, nodes of the vendor's domain have their float body.
    """


class Assignment(Mapping[str, "QuantParams"]):
    """Which points are quantized and how; a point that is absent is in float. Immutable.

    Args:
        params: Point name -> parameters.
        bypassed: Consumers that read the tensor in front of a point although the point itself is
            quantized for others: pairs (node name, input index).
        in_float: Names of nodes that have no integer form even where all that they read is
            quantized, because they are on the CPU. At calibrated fidelity this changes nothing.
    """

    __slots__ = ("_params", "bypassed", "in_float")

    def __init__(
        self,
        params: Mapping[str, QuantParams] | None = None,
        *,
        bypassed: Iterable[tuple[str, int]] = (),
        in_float: Iterable[str] = (),
    ) -> None:
        self._params = dict(params or {})
        self.bypassed = frozenset(bypassed)
        self.in_float = frozenset(in_float)

    @classmethod
    def as_calibrated(cls, model: QuantModel) -> Assignment:
        """Return the assignment that the file itself holds: every enabled point."""
        return cls.of(point for point in model.points if point.enabled)

    @classmethod
    def of(cls, points: Iterable[Point]) -> Assignment:
        """Quantize exactly these points, with the parameters of the file."""
        return cls({point.name: point.params for point in points if point.params is not None})

    def __getitem__(self, point: str) -> QuantParams:
        """Return how a point is quantized."""
        return self._params[point]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the quantized points."""
        return iter(self._params)

    def __len__(self) -> int:
        """Return the number of quantized points."""
        return len(self._params)

    def changed(
        self,
        changes: Mapping[str, QuantParams | None],
        *,
        bypassed: Iterable[tuple[str, int]] = (),
    ) -> Assignment:
        """Return a copy with some points changed.

        Args:
            changes: Point name -> new parameters, or None to put the point in float.
            bypassed: Further consumers that read the tensor in front of a point.
        """
        params = dict(self._params)
        for point, new in changes.items():
            if new is None:
                params.pop(point, None)
            else:
                params[point] = new
        return Assignment(params, bypassed=self.bypassed.union(bypassed), in_float=self.in_float)

    @property
    def key(self) -> tuple[object, ...]:
        """A hashable value, equal exactly for assignments that compute the same."""
        params = tuple(sorted((name, item.key) for name, item in self._params.items()))
        return (params, tuple(sorted(self.bypassed)), tuple(sorted(self.in_float)))
