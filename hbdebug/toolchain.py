"""What a march allows, and what a type setting on one node really changes.

A user who writes ``{'ON': 'CPU'}`` or ``{'InputType': 'int16'}`` for a node does not get that node
in float or int16, but a change of the quantization points around it. Which points change depends
on the operator that makes the node's input, and on who else reads it. The rules here were
measured with HMCT 1.1.0 on bayes-e; ``docs/lift_rules.md`` tells how, and what is assumed.

The rules are stated for a *set* of settings, so the order of lifting nodes does not matter::

    lifted(model, as_calibrated, {"Conv_3": "cpu", "Mul_7": "int16"}, "bayes-e")
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from hbdebug.errors import UsageError
from hbdebug.model import Assignment, Node, Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hbdebug.model import QuantModel
    from hbdebug.quant import QuantParams

Target: TypeAlias = Literal["int16", "cpu"]

MARCHES: Mapping[str, str] = {
    "bernoulli2": "X3",
    "bayes": "J5, Ultra",
    "bayes-e": "X5",
    "nash-e": "J6E, S100",
    "nash-m": "J6M, S100P",
    "nash-p": "J6P, S600",
    "nash-h": "J6H",
    "nash-b": "J6B",
}
"""Every march -> the chips that have it."""

# Tables: the output is int16 only if the input is. Measured as producers in front of a node that
# is set to int16.
_TABLES = frozenset(
    [
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "Ceil",
        "Cos",
        "Cosh",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "HardSigmoid",
        "HzGelu",
        "HzHardSwish",
        "HzMish",
        "HzRsqrt",
        "HzSwish",
        "Log",
        "Reciprocal",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Tan",
        "Tanh",
    ]
)

# Tables that go to the CPU together with a node behind them, but not by themselves. Pow is the
# exception: it can also be set to the CPU.
_WILLING_TABLES = frozenset({"Clip", "LeakyRelu", "Pow", "PRelu"})

# Operators whose output has the type of their input and that can be int16 themselves. A change
# of type spreads through them both ways.
_CARRIERS = frozenset(
    [
        "Concat",
        "DepthToSpace",
        "Expand",
        "Gather",
        "HzChannelShuffle",
        "HzPad",
        "MaxPool",
        "Pad",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "HzSpaceToDepth",
        "Split",
        "Squeeze",
        "Flatten",
        "Tile",
        "Transpose",
        "Unsqueeze",
    ]
)

# Carriers for int16, which stay on the BPU when a node behind them goes to the CPU.
_STAYING = frozenset({"Gather", "ReduceMax", "Relu"})

_ELEMENTWISE = frozenset({"Add", "Mul", "Sub"})
_SUMS = frozenset({"ReduceMean", "ReduceSum"})

# Operators with an int32 accumulator that the BPU can hand out as float.
_ACCUMULATORS = frozenset({"Conv", "GlobalAveragePool", "HzPreprocess", "MatMul"})

# An activation input that one of these reads stays int8 for everybody.
_INT8_FOR_ALL = frozenset({"GlobalAveragePool", "GlobalMaxPool", "MatMul"})

# These cannot ask for int16, but read it when somebody else asks.
_INT8_BY_ITSELF = frozenset({"ConvTranspose", "Resize"})

_OTHER_INT16 = frozenset({"ArgMax", "Conv", "Equal", "Greater", "GridSample", "TopK"})

_IN_FLOAT = frozenset(
    ["LogSoftmax", "Max", "Min", "Neg", "ReduceMin", "Softmax", "HzSoftmax", "ThresholdedRelu"]
)

_INT16_CAPABLE = (
    _TABLES | _WILLING_TABLES | _CARRIERS | _STAYING | _ELEMENTWISE | _SUMS | _OTHER_INT16
)

# A wish for int16 on these is stronger than an int8-only reader of the same point.
_FORCING_INPUT = _TABLES | {"PRelu"}
_FORCING_OUTPUT = frozenset({"Gather", "HardSigmoid", "ReduceMax", "Sigmoid", "Tanh"})

# These take int16 themselves also when their own output has to stay int8.
_HALFWAY = (_TABLES | {"LeakyRelu", "Pow"}) - _FORCING_OUTPUT

# Types spread from a point on the input of these to the points on their output.
_SPREADING = (_CARRIERS | _STAYING | _SUMS | {"Clip", "PRelu", "Resize"}) - {"ReduceSum"}

# ``{'ON': 'CPU'}`` was measured to move these.
_MOVABLE = frozenset(_TABLES | _ELEMENTWISE | _SUMS | _ACCUMULATORS | {"ConvTranspose", "Pow"}) - {
    "HzPreprocess"
}

# A CPU node of these kinds reads a point that stays for others; the rest read the tensor in front
# of it, where the toolchain lets them.
_COUPLED = frozenset({"Add", "Conv", "ConvTranspose"})

# ... and to leave these where they are, without a word in the log.
_IMMOVABLE = (_CARRIERS | _STAYING | _WILLING_TABLES | {"GlobalMaxPool", "Resize"}) - {"Pow"}

_NOT_MEASURED = {
    "nash": "nash rules are documented by the vendor, not measured; assumed to be those of bayes-e",
    "bernoulli2": "spot-checked on bernoulli2 only; assumed to follow the rules of bayes-e",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Lift:
    """What one more setting changes.

    Attributes:
        node: The node that is set.
        to: ``int16`` or ``cpu``.
        changes: Point name -> new parameters, or None where the point goes.
        bypassed: Inputs (node name, input index) that read the tensor in front of a point which
            stays for its other readers.
        described: The same in words, one entry a point; empty when nothing changes.
        notes: What about it follows no measured rule or is not simulated, in words.
    """

    node: str
    to: Target
    changes: Mapping[str, QuantParams | None]
    bypassed: frozenset[tuple[str, int]] = frozenset()
    described: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def check_march(name: str) -> str:
    """Return the march's name.

    Raises:
        UsageError: There is no such march.
    """
    if name in MARCHES:
        return name
    close = difflib.get_close_matches(name.lower(), MARCHES, n=3, cutoff=0.5)
    known = ", ".join(f"{march} ({chips})" for march, chips in MARCHES.items())
    hint = f"Did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(f"no such march: {name!r}", hint=f"{hint}Known: {known}.")


def int16_refusal(node: Node, model: QuantModel, march: str) -> str:
    """Say why a node's activation inputs cannot be int16 when the user asks for it.

    Args:
        node: A node of the model.
        model: The model.
        march: A key of `MARCHES`.

    Returns:
        The reason in words; empty when they can. An operator that was not measured is refused
        with a reason that says so.
    """
    check_march(march)
    if march == "bernoulli2":
        return "bernoulli2 has no int16"
    op = node.op_type
    if op == "Conv" and _spatial_rank(node, model) == 1:
        return "1-D Conv runs in float on the CPU"
    if op == "ReduceSum" and _reduces_only_space(node):
        return "ReduceSum over H and W runs in float on the CPU"
    if op in _IN_FLOAT:
        return f"{op} runs in float on the CPU"
    if op in _INT16_CAPABLE:
        return ""
    if march.startswith("nash") and op in {"MatMul", "Gemm"}:
        return ""
    if op == "MatMul":
        return f"MatMul of two activations takes int8 only on {march}"
    if op in _INT8_FOR_ALL or op in _INT8_BY_ITSELF:
        return f"{op} takes int8 only on {march}"
    return f"whether {op} can take int16 on {march} was not measured"


def int16_where_allowed(model: QuantModel, assignment: Assignment, march: str) -> Assignment:
    """Set to int16 every point that the march lets become int16.

    That is the outcome of asking for int16 on every node at once. A point that GlobalAveragePool
    or MatMul reads stays int8 for all its readers.
    """
    wanted: dict[str, Target] = {node.name: "int16" for node in model.nodes}
    outcome = _resolve(model, march, wanted, everything=True)
    return assignment.changed(_changes(model, assignment, outcome))


def all_int16(model: QuantModel, assignment: Assignment) -> Assignment:
    """Set to int16 every activation point of the assignment, whether or not a march allows it."""
    changes = {
        point.name: assignment[point.name].to_int16()
        for point in model.points
        if point.role == "activation" and point.name in assignment
    }
    return assignment.changed(changes)


def lifted(
    model: QuantModel, assignment: Assignment, nodes: Mapping[str, Target], march: str
) -> Assignment:
    """Apply a set of settings, as the toolchain would when it converts with all of them.

    Args:
        model: The model.
        assignment: What holds without the settings.
        nodes: Node name -> ``int16`` or ``cpu``.
        march: A key of `MARCHES`.

    Raises:
        UsageError: No such node, march or setting.
    """
    outcome = _resolve(model, march, nodes)
    return assignment.changed(_changes(model, assignment, outcome), bypassed=outcome.bypassed)


def lift(
    model: QuantModel,
    assignment: Assignment,
    node: str,
    march: str,
    *,
    to: Target | None = None,
    after: Mapping[str, Target] | None = None,
) -> Lift:
    """Work out what setting one more node changes.

    ``assignment.changed(lift.changes, bypassed=lift.bypassed)`` is the assignment that holds
    with the setting. With ``after`` given it is the one that `lifted` returns for all settings
    together, whatever their order.

    Args:
        model: The model.
        assignment: What holds before.
        node: Name of the node to set.
        march: A key of `MARCHES`.
        to: What to set; None chooses int16 where march and operator allow it and it changes a
            point, else the CPU.
        after: The nodes that are set already, in ``assignment``: a point that two nodes read
            goes only when both are on the CPU.

    Raises:
        UsageError: No such node or march, or ``int16`` where it is refused.
    """
    before = {name: setting for name, setting in (after or {}).items() if name != node}
    _check_nodes(model, [node])
    refusal = int16_refusal(model.node_by_name[node], model, march)
    if to == "int16" and refusal:
        raise UsageError(
            f"{node} cannot be set to int16: {refusal}", where=model.path, hint="Set it to cpu."
        )
    if to is None:
        to = "cpu" if refusal else "int16"
        found = _lift(model, assignment, node, march, to, before)
        if found.changes or found.bypassed or to == "cpu":
            return found
        to = "cpu"
    return _lift(model, assignment, node, march, to, before)


def suggested_action(node: Node, model: QuantModel, march: str) -> tuple[str, str]:
    """Say what the user can set a node to, without measuring.

    Returns:
        ``int16``, ``cpu`` or ``keep``, and a note: why, or what it does not cure.
    """
    assignment = Assignment.as_calibrated(model)
    refusal = int16_refusal(node, model, march)
    if not refusal:
        raised = _lift(model, assignment, node.name, march, "int16", {})
        if raised.changes:
            return "int16", "; ".join(raised.notes)
    moved = _lift(model, assignment, node.name, march, "cpu", {})
    if moved.changes or moved.bypassed:
        return "cpu", refusal or "its input stays int8 when set to int16"
    return "keep", refusal or "neither int16 nor CPU changes a point"


@dataclass(kw_only=True, slots=True)
class _Outcome:
    """What a set of settings comes to. Filled by `_CpuRules` and `_Int16Rules`."""

    cpu: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    int16: set[str] = field(default_factory=set)
    bypassed: set[tuple[str, int]] = field(default_factory=set)
    wishes: set[str] = field(default_factory=set)
    notes: dict[str, None] = field(default_factory=dict)


def _resolve(
    model: QuantModel, march: str, nodes: Mapping[str, Target], *, everything: bool = False
) -> _Outcome:
    """Apply the rules: first what moves to the CPU, then who gets int16."""
    check_march(march)
    _check_nodes(model, nodes)
    outcome = _Outcome()
    graph = _Graph(model)
    _CpuRules(graph, outcome, march).apply(
        name for name, setting in nodes.items() if setting == "cpu"
    )
    rules = _Int16Rules(graph, outcome)
    rules.raise_points(point for point in model.points if point.input in outcome.wishes)
    for node in model.nodes:
        if nodes.get(node.name) == "int16" and not int16_refusal(node, model, march):
            rules.request(node)
    if everything and march != "bernoulli2":
        rules.raise_points(p for p in model.points if not any(model.consuming_nodes(p)))
    return outcome


class _Graph:
    """Lookups around points that both sets of rules need."""

    def __init__(self, model: QuantModel) -> None:
        self.model = model

    def activation_points(self, tensor: str) -> Iterator[Point]:
        """Yield the activation points that a reader of a tensor reads through, nearest first."""
        step = self.model.producer_of.get(tensor)
        while isinstance(step, Point):
            if step.role == "activation":
                yield step
            step = self.model.producer_of.get(step.input)

    def maker(self, tensor: str) -> Node | None:
        """Return the node that computes a tensor, points in between looked through."""
        step = self.model.producer_of.get(tensor)
        while isinstance(step, Point):
            step = self.model.producer_of.get(step.input)
        return step

    def data_inputs(self, node: Node) -> list[tuple[int, str]]:
        """Return index and tensor of the inputs that are not plain constants."""
        return [
            (index, tensor)
            for index, tensor in enumerate(node.inputs)
            if tensor and not self._is_weight(tensor)
        ]

    def _is_weight(self, tensor: str) -> bool:
        """Whether a tensor is a plain constant, or one behind a weight point."""
        step = self.model.producer_of.get(tensor)
        if isinstance(step, Point):
            return step.role == "weight"
        return tensor in self.model.constants

    def has_points(self, node: Node) -> bool:
        """Whether any input is read through an activation point."""
        return any(next(self.activation_points(tensor), None) for tensor in node.inputs if tensor)


class _CpuRules:
    """``{'ON': 'CPU'}``: a CPU node's input keeps the precision that its maker can deliver."""

    def __init__(self, graph: _Graph, outcome: _Outcome, march: str) -> None:
        self.graph = graph
        self.model = graph.model
        self.outcome = outcome
        self.asked: set[str] = set()
        self.elementwise = "int8" if march == "bernoulli2" else "int16"

    def apply(self, names: Iterable[str]) -> None:
        """Move nodes to the CPU and settle the points around them."""
        for name in names:
            node = self.model.node_by_name[name]
            at_input = all(
                self.graph.maker(tensor) is None for _, tensor in self.graph.data_inputs(node)
            )
            if node.op_type in _IMMOVABLE and not at_input:
                self.outcome.notes[f"{name}: the toolchain ignores CPU for {node.op_type}"] = None
                continue
            if node.op_type not in _MOVABLE:
                self.outcome.notes[f"{name}: CPU was not measured for {node.op_type}"] = None
            self.outcome.cpu.add(name)
            self.asked.add(name)
        before = -1
        while before != len(self.outcome.cpu) + len(self.outcome.gone):
            before = len(self.outcome.cpu) + len(self.outcome.gone)
            for name in sorted(self.outcome.cpu):
                self._settle(self.model.node_by_name[name])

    def _settle(self, node: Node) -> None:
        """Drop or change the points on the inputs of a node that is on the CPU."""
        for index, tensor in enumerate(node.inputs):
            if not tensor:
                continue
            step = self.model.producer_of.get(tensor)
            if not isinstance(step, Point):
                self._supply(tensor, node)
                continue
            while isinstance(step, Point):
                if all(self._on_cpu(reader) for reader, _ in self.model.consuming_nodes(step)):
                    self._set(step, self._supply(step.input, node))
                elif self._reads_in_front(node, step):
                    self.outcome.bypassed.add((node.name, index))
                step = self.model.producer_of.get(step.input)

    def _reads_in_front(self, node: Node, point: Point) -> bool:
        """Whether a CPU node reads the tensor in front of a point that stays for others."""
        if node.op_type in _WILLING_TABLES and node.name not in self.asked:
            return True
        if self.graph.maker(point.input) is None:
            return node.op_type not in _COUPLED
        if node.op_type not in _MOVABLE - _COUPLED:
            return False
        return all(
            self._on_cpu(reader) or reader.op_type in {"Concat", "LeakyRelu", "PRelu"}
            for reader, _ in self.model.consuming_nodes(point)
        )

    def _set(self, point: Point, supply: str) -> None:
        if supply == "float" or point.role == "weight":
            self.outcome.gone.add(point.name)
            self.outcome.int16.discard(point.name)
        elif supply == "int16":
            self.outcome.int16.add(point.name)

    def _on_cpu(self, node: Node) -> bool:
        return node.name in self.outcome.cpu or node.op_type in _IN_FLOAT

    def _supply(self, tensor: str, reader: Node) -> str:
        """Return what a tensor's maker can deliver to the CPU: float, int16 or int8.

        A maker that only moves data goes to the CPU as well where that frees its input.
        """
        maker = self.graph.maker(tensor)
        if reader.op_type in _WILLING_TABLES:
            return "float"
        if maker is None or maker.name in self.outcome.cpu or maker.op_type in _ACCUMULATORS:
            return "float"
        op = maker.op_type
        free = [t for _, t in self.graph.data_inputs(maker) if not self._read_through_point(t)]
        if op == "Add" and free:
            return "float"
        if op in _SUMS and reader.op_type in _ELEMENTWISE:
            return "int8"
        if op in _ELEMENTWISE | _SUMS and not free:
            return self._elementwise(tensor)
        if op in (_CARRIERS - _STAYING) or op in {"Resize", "GlobalMaxPool"}:
            return self._carry(maker)
        if op == "Relu" and free:
            return self._supply(free[0], maker)
        if op in _TABLES | _WILLING_TABLES | {"Relu", "ReduceMax"} and self._is_tail(reader):
            return self._tail(tensor)
        if op == "Clip" and free:
            return self._supply(free[0], maker)
        if op in _WILLING_TABLES:
            return self._willing(maker)
        return "int8" if op in _TABLES | _STAYING or not free else "float"

    def _is_tail(self, node: Node) -> bool:
        """Whether no node on the BPU follows."""
        return all(
            self._on_cpu(reader) and self._is_tail(reader)
            for tensor in node.outputs
            for reader in self._readers(tensor)
        )

    def _readers(self, tensor: str) -> Iterator[Node]:
        for step, _ in self.model.consumers_of.get(tensor, ()):
            if isinstance(step, Point):
                yield from (reader for reader, _ in self.model.consuming_nodes(step))
            else:
                yield step

    def _tail(self, tensor: str) -> str:
        """Return what a table delivers at the end of the BPU's part: int16, as a model output."""
        if self.elementwise == "int16":
            self.outcome.wishes.add(self._raw(tensor))
        return "int8"

    def _willing(self, maker: Node) -> str:
        """Move a table that goes along; one that shares the graph's input stays as it is."""
        shares = any(
            self.graph.maker(point.input) is None
            and any(reader.name != maker.name for reader, _ in self.model.consuming_nodes(point))
            for _, tensor in self.graph.data_inputs(maker)
            for point in self.graph.activation_points(tensor)
        )
        if not shares:
            self.outcome.cpu.add(maker.name)
        return "float"

    def _read_through_point(self, tensor: str) -> bool:
        return next(self.graph.activation_points(tensor), None) is not None

    def _elementwise(self, tensor: str) -> str:
        """Return what an elementwise operator delivers: int16 if a reader could take int16."""
        point = next(
            (
                step
                for step, _ in self.model.consumers_of.get(self._raw(tensor), ())
                if isinstance(step, Point)
            ),
            None,
        )
        if point is None:
            return self.elementwise
        readers = [reader.op_type for reader, _ in self.model.consuming_nodes(point)]
        takes = any(op in _INT16_CAPABLE | _IN_FLOAT for op in readers)
        return self.elementwise if takes else "int8"

    def _raw(self, tensor: str) -> str:
        """Return the tensor in front of all points in series."""
        step = self.model.producer_of.get(tensor)
        while isinstance(step, Point):
            tensor = step.input
            step = self.model.producer_of.get(tensor)
        return tensor

    def _carry(self, maker: Node) -> str:
        """Return what an operator that only moves data can deliver, moving it if that helps."""
        supplies = [
            self._private_supply(maker, tensor) for _, tensor in self.graph.data_inputs(maker)
        ]
        if "float" in supplies:
            self.outcome.cpu.add(maker.name)
            return "float"
        if supplies == ["int16"] and maker.op_type in _INT16_CAPABLE:
            for point in self.graph.activation_points(maker.inputs[0]):
                self._set(point, "int16")
            return "int16"
        return "int8"

    def _private_supply(self, maker: Node, tensor: str) -> str:
        """Return what a carrier's input could be, int8 where somebody on the BPU reads it too."""
        for point in self.graph.activation_points(tensor):
            readers = (reader for reader, _ in self.model.consuming_nodes(point))
            if not all(reader.name == maker.name or self._on_cpu(reader) for reader in readers):
                return "int8"
        return self._supply(tensor, maker)


class _Int16Rules:
    """``{'InputType': 'int16'}``: a type spreads to where it can be read and made."""

    def __init__(self, graph: _Graph, outcome: _Outcome) -> None:
        self.graph = graph
        self.model = graph.model
        self.outcome = outcome
        self.tried: set[str] = set()

    def request(self, node: Node) -> None:
        """Ask for int16 on all activation inputs of a node."""
        self.tried.clear()
        pointed = False
        for _, tensor in self.graph.data_inputs(node):
            for point in self._nearest(tensor):
                pointed = True
                self._raise(point)
        fused = not pointed
        if fused and node.op_type in {"Clip", "Relu"}:
            for tensor in node.outputs:
                self._spread(tensor)

    def raise_points(self, points: Iterable[Point]) -> None:
        """Ask for int16 on activation points themselves."""
        for point in points:
            if point.role == "activation":
                self.tried.clear()
                self._raise(point)

    def _nearest(self, tensor: str) -> Iterator[Point]:
        """Yield the points a tensor comes from, operators that only move data looked through."""
        points = list(self.graph.activation_points(tensor))
        maker = self.graph.maker(tensor)
        if points:
            yield from points
        elif maker is not None and maker.op_type in _CARRIERS | _STAYING:
            for _, inner in self.graph.data_inputs(maker):
                yield from self._nearest(inner)

    def _fused_input(self, node: Node) -> str:
        """Return the input of an Add that comes straight from the convolution it is fused with."""
        for _, tensor in self.graph.data_inputs(node):
            if next(self.graph.activation_points(tensor), None) is None:
                return tensor
        return ""

    def _raise(self, point: Point, *, forced: bool = False) -> bool:
        """Make a point int16 if its readers and its maker let it; return whether it is."""
        if point.name in self.outcome.int16:
            return True
        if point.name in self.outcome.gone or point.name in self.tried:
            return False
        self.tried.add(point.name)
        readers = [
            reader
            for reader, _ in self.model.consuming_nodes(point)
            if reader.name not in self.outcome.cpu
        ]
        allowed = self._allowed(point, readers, forced=forced)
        if allowed:
            self.outcome.int16.add(point.name)
            self._spread(point.input)
        for reader in readers:
            if allowed:
                self._note_unfused(reader)
            # A refused wish still goes on: a Concat behind can get int16 for its other inputs.
            if reader.op_type in _SPREADING:
                for tensor in reader.outputs:
                    self._spread(tensor)
        return allowed

    def _allowed(self, point: Point, readers: list[Node], *, forced: bool) -> bool:
        """Whether readers and maker of a point let it become int16; asks the points in front."""
        maker = self.graph.maker(point.input)
        forced = forced or (maker is not None and self._forces(maker))
        if not forced and any(reader.op_type in _INT8_FOR_ALL for reader in readers):
            if maker is not None and maker.op_type in _HALFWAY:
                self._raise_behind(maker)
            return False
        return maker is None or self._raise_behind(maker)

    def _forces(self, maker: Node) -> bool:
        if maker.op_type == "Relu":
            return self.graph.has_points(maker)
        return maker.op_type in _FORCING_OUTPUT

    def _is_table(self, node: Node) -> bool:
        if node.op_type in _TABLES | _WILLING_TABLES:
            return True
        return node.op_type == "Relu" and self.graph.has_points(node)

    def _raise_behind(self, maker: Node) -> bool:
        """Let a maker's inputs follow its output; return whether the output can be int16."""
        op = maker.op_type
        inputs = [list(self._nearest(tensor)) for _, tensor in self.graph.data_inputs(maker)]
        points = [point for found in inputs for point in found]
        if op == "GlobalMaxPool":
            return False
        if op == "Resize" and not self._resize_passes(maker, points):
            return False
        if self._is_table(maker):
            for point in points:
                self._raise(point, forced=op in _FORCING_INPUT)
            return True
        if op in _CARRIERS | _STAYING or op == "Resize":
            return not points or any([self._raise(point) for point in points])
        return True

    def _resize_passes(self, resize: Node, points: list[Point]) -> bool:
        """Whether a Resize hands a wish for int16 on to the points in front of it."""
        for point in points:
            maker = self.graph.maker(point.input)
            if point.name in self.outcome.int16:
                continue
            if maker is not None and self._is_table(maker):
                return False
            if any(reader.name != resize.name for reader, _ in self.model.consuming_nodes(point)):
                return False
        return True

    def _spread(self, tensor: str) -> None:
        """Raise the points behind a tensor."""
        for step, _ in self.model.consumers_of.get(tensor, ()):
            if isinstance(step, Point):
                self._raise(step)
            elif step.op_type in _SPREADING and not self.graph.has_points(step):
                for inner in step.outputs:
                    self._spread(inner)

    def _note_unfused(self, reader: Node) -> None:
        """Note what an int16 summand does to a convolution that the sum was fused with."""
        fused = self._fused_input(reader) if reader.op_type == "Add" else ""
        if fused:
            self.outcome.notes[
                f"{reader.name} is no longer fused with its convolution: the toolchain adds a "
                f"point on {fused}, which is not simulated"
            ] = None


def _changes(
    model: QuantModel, assignment: Assignment, outcome: _Outcome
) -> dict[str, QuantParams | None]:
    """Turn an outcome into changes of an assignment."""
    changes: dict[str, QuantParams | None] = {}
    for point in model.points:
        params = assignment.get(point.name)
        if params is None:
            continue
        if point.name in outcome.gone:
            changes[point.name] = None
        elif point.name in outcome.int16 and params.dtype != "int16" and params.is_integer:
            changes[point.name] = params.to_int16()
    return changes


def _lift(
    model: QuantModel,
    assignment: Assignment,
    node: str,
    march: str,
    to: Target,
    after: Mapping[str, Target],
) -> Lift:
    """Compare the outcome with and without the setting."""
    outcome = _resolve(model, march, {**after, node: to})
    old = _resolve(model, march, after) if after else _Outcome()
    changes = _changes(model, assignment, outcome)
    undone = (old.gone - outcome.gone) | (old.int16 - outcome.int16 - outcome.gone)
    for name in undone:
        params = model.point_by_name[name].params
        if params is not None:
            changes[name] = params.to_int16() if name in outcome.int16 else params
    bypassed = frozenset(outcome.bypassed) - assignment.bypassed
    words = [_words(model, assignment, name, new) for name, new in changes.items()]
    words += [f"{reader} input {index} reads float" for reader, index in sorted(bypassed)]
    return Lift(
        node=node,
        to=to,
        changes=changes,
        bypassed=bypassed,
        described=tuple(words),
        notes=tuple(
            dict.fromkeys([*_march_notes(march), *(n for n in outcome.notes if n not in old.notes)])
        ),
    )


def _words(model: QuantModel, assignment: Assignment, name: str, new: QuantParams | None) -> str:
    old = assignment.get(name)
    return f"{name} {old.dtype if old else 'float'} -> {new.dtype if new else 'float'}"


def _march_notes(march: str) -> list[str]:
    return [text for family, text in _NOT_MEASURED.items() if march.startswith(family)]


def _check_nodes(model: QuantModel, names: Iterable[str]) -> None:
    for name in names:
        if name not in model.node_by_name:
            close = difflib.get_close_matches(name, model.node_by_name, n=3)
            raise UsageError(
                f"no node named {name!r}",
                where=model.path,
                hint=f"Did you mean {', '.join(close)}?" if close else "See `hbdebug info MODEL`.",
            )


def _spatial_rank(node: Node, model: QuantModel) -> int:
    """Return the number of spatial dimensions of a convolution; 2 when nothing tells."""
    kernel = node.attributes.get("kernel_shape")
    if kernel:
        return len(kernel)
    tensor = node.inputs[1]
    step = model.producer_of.get(tensor)
    while isinstance(step, Point):
        tensor = step.input
        step = model.producer_of.get(tensor)
    weight = model.constants.get(tensor)
    return weight.ndim - 2 if weight is not None else 2


def _reduces_only_space(node: Node) -> bool:
    """Whether a reduction leaves the channel axis of an NCHW tensor alone."""
    axes = node.attributes.get("axes") or ()
    return bool(axes) and all(axis in {2, 3, -1, -2} for axis in axes)
