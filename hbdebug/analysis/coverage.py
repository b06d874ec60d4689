"""What is analysed: which points a node stands for, which nodes are left out and why."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import numpy as np

import hbdebug
from hbdebug.errors import UsageError
from hbdebug.model import IN_SUBGRAPH, JOINED, Node, Point
from hbdebug.names import close_matches
from hbdebug.results import ListedNode, ListedPoint, ModelListing, NotAnalysed
from hbdebug.samples import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hbdebug.model import QuantModel
    from hbdebug.results import ModelInfo

# Operators that hand a point's values on, so that a node behind them stands for that point
# (measured against HMCT 1.1.0: the debugger's own list).
_HANDS_ON = frozenset(
    {
        "MaxPool",
        "GlobalMaxPool",
        "Relu",
        "Reshape",
        "Transpose",
        "ReduceMax",
        "Split",
        "Slice",
        "Gather",
        "ScatterND",
    }
)

_SELECTOR = "HzFilter"

_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})

_FUSING = frozenset({"Relu", "Clip", "Add", "Conv", "ConvTranspose"})

FUSED = "fused into the node in front of it: no point between them"
RUNS_IN_FLOAT = "runs in float: no point on its inputs"
INTEGER_TYPED = "integer-typed: computes no real numbers"
SELECTS = "selects candidates: its outputs vary in length from run to run"
ASSUMED = "not in the file: the quantizer left it to the range of the point behind it"
DEAD_END = "does not reach the measured outputs"
CONTROL_FLOW = "control flow: runs in float as a whole, with what is inside of it"

# Reasons that the coverage line states in fewer words.
_SHORT = {
    FUSED: "fused",
    RUNS_IN_FLOAT: "run in float",
    INTEGER_TYPED: "integer-typed",
    SELECTS: "select candidates",
    ASSUMED: "assumed for the float baseline",
    DEAD_END: "do not reach the measured outputs",
    CONTROL_FLOW: "run as a whole",
    IN_SUBGRAPH: "inside of subgraphs",
    JOINED: "run with others",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """What will be analysed.

    Attributes:
        node_points: Analysed node -> the points it stands for, in graph order.
        not_analysed: Everything else, with the reason.
    """

    node_points: Mapping[str, tuple[Point, ...]]
    not_analysed: tuple[NotAnalysed, ...]


def points_of(model: QuantModel, node: Node) -> tuple[Point, ...]:
    """Return the points that a node stands for.

    These are the points on its inputs (all of them where points lie in series). An input made by
    an operator that only hands values on stands for the first point in front of that operator
    (measured against HMCT 1.1.0).
    """
    found: list[Point] = []
    for name in node.inputs:
        found.extend(_points_behind(model, name))
    return tuple(dict.fromkeys(found))


def _points_behind(model: QuantModel, name: str) -> list[Point]:
    producer = model.producer_of.get(name)
    if isinstance(producer, Point):
        return _series(model, producer)
    if producer is None or producer.op_type not in _HANDS_ON:
        return []
    inputs = producer.inputs[:1] if producer.op_type == "ScatterND" else producer.inputs
    makers = [(tensor, model.producer_of.get(tensor)) for tensor in inputs]
    for _, maker in makers:
        if isinstance(maker, Point):
            return _series(model, maker)
    for tensor, maker in makers:
        if isinstance(maker, Node) and maker.op_type in _HANDS_ON:
            return _points_behind(model, tensor)
    return []


def _series(model: QuantModel, point: Point) -> list[Point]:
    """Return a point and those directly in front of it, in graph order."""
    found = [point]
    while isinstance(in_front := model.producer_of.get(found[-1].input), Point):
        found.append(in_front)
    return found[::-1]


def cover(
    model: QuantModel, dtypes: Mapping[str, str], *, whole: QuantModel | None = None
) -> Coverage:
    """Sort a model's nodes into those that are analysed and those that are not.

    Args:
        model: The model, perhaps cut off at an inner node.
        dtypes: Tensor -> dtype name at run time, as far as known.
        whole: The model before it was cut off; its other nodes are listed as not analysed.
    """
    node_points = {}
    left_out = list(model.skipped)
    for node in model.nodes:
        points = points_of(model, node)
        enabled = tuple(point for point in points if point.enabled)
        if enabled and node.op_type != _SELECTOR and not node.assumed:
            node_points[node.name] = enabled
        else:
            reason = _reason(model, node, points, dtypes)
            left_out.append(NotAnalysed(name=node.name, op_type=node.op_type, reason=reason))
        left_out += node.inside
    if whole is not None:
        left_out += [
            NotAnalysed(
                name=node.name,
                op_type=node.op_type,
                reason=SELECTS if node.op_type == _SELECTOR else DEAD_END,
            )
            for node in whole.nodes
            if node.name not in model.node_by_name
        ]
    return Coverage(node_points=node_points, not_analysed=tuple(left_out))


def measurable(model: QuantModel) -> tuple[QuantModel, tuple[str, ...]]:
    """Replace outputs that can not be compared by the tensors that they are picked from.

    HzFilter picks candidates by a threshold, so its outputs have another length from run to run.
    The tensors that it picks from are measured in their place, as the vendor's debugger does.

    Returns:
        The model, with other outputs where needed, and what the user should know about it.
    """
    outputs: dict[str, TensorSpec] = {}
    notes = []
    for spec in model.outputs:
        maker = model.producer_of.get(model.in_front_of_points(spec.name))
        if not isinstance(maker, Node) or maker.op_type != _SELECTOR:
            outputs[spec.name] = spec
            continue
        for name in maker.inputs:
            outputs[name] = TensorSpec(name=name, dtype="float32", shape=())
        notes.append(
            f"output {spec.name} of {maker.name} ({_SELECTOR}) varies in length; measured instead: "
            f"{', '.join(maker.inputs)}"
        )
    if not notes:
        return model, ()
    return model.upto(tuple(outputs.values())), tuple(notes)


def points_left_out(model: QuantModel) -> tuple[NotAnalysed, ...]:
    """Return the points that the file does not quantize, with the reason."""
    return tuple(
        NotAnalysed(name=point.name, op_type=point.op_type, reason=point.reason)
        for point in model.points
        if not point.enabled
    )


def _reason(
    model: QuantModel, node: Node, points: Sequence[Point], dtypes: Mapping[str, str]
) -> str:
    if node.op_type == _SELECTOR:
        return SELECTS
    if node.assumed:
        return ASSUMED
    if points:
        return points[0].reason
    return CONTROL_FLOW if node.op_type in _CONTROL_FLOW else _without_points(model, node, dtypes)


def _without_points(model: QuantModel, node: Node, dtypes: Mapping[str, str]) -> str:
    known = [dtypes[name] for name in (*node.inputs, *node.outputs) if name in dtypes]
    if known and not any(name.startswith(("float", "bfloat")) for name in known):
        return INTEGER_TYPED
    producers = [model.producer_of.get(name) for name in node.inputs]
    if node.op_type in {"Relu", "Clip"} and any(
        isinstance(item, Node) and item.op_type in _FUSING for item in producers
    ):
        return FUSED
    return RUNS_IN_FLOAT


def coverage_line(noun: str, analysed: int, left_out: Sequence[NotAnalysed]) -> str:
    """Return a line such as ``112 nodes analysed; 15 not: 15 fused (Relu)``."""
    line = f"{analysed} {noun}{'' if analysed == 1 else 's'} analysed"
    if not left_out:
        return line + "; none left out"
    groups: dict[str, Counter[str]] = {}
    for item in left_out:
        groups.setdefault(_SHORT.get(item.reason, item.reason), Counter())[item.op_type] += 1
    parts = []
    for reason, op_types in sorted(groups.items(), key=lambda item: -item[1].total()):
        shown = [op_type for op_type, _ in op_types.most_common(3)]
        dots = ", ..." if len(op_types) > len(shown) else ""
        parts.append(f"{op_types.total()} {reason} ({', '.join(shown)}{dots})")
    return f"{line}; {len(left_out)} not: {', '.join(parts)}"


def list_model(model: QuantModel, info: ModelInfo) -> ModelListing:
    """List every point and node of a model, without running it."""
    # In a twin of pairs, tensors of integers hold real numbers.
    coverage = cover(model, {} if model.has_pairs else model.dtypes)
    reasons = {item.name: item.reason for item in coverage.not_analysed}
    points = []
    for point in model.points:
        params = point.params
        points.append(
            ListedPoint(
                name=point.name,
                name_in_file=model.renamed.get(point.name, point.name),
                role=point.role,
                dtype="" if params is None else params.dtype,
                granularity=granularity(point),
                threshold=largest_threshold([point]),
                scale=None if params is None else float(params.scale.max()),
                tensor=point.input,
                consumers=consumer_names(model, point),
                enabled=point.enabled,
                reason=point.reason,
                original=point.original,
            )
        )
    nodes = [
        ListedNode(
            name=node.name,
            name_in_file=model.renamed.get(node.name, node.name),
            op_type=node.op_type,
            points=tuple(point.name for point in coverage.node_points.get(node.name, ())),
            analysed=node.name in coverage.node_points,
            reason=reasons.get(node.name, ""),
        )
        for node in model.nodes
    ]
    nodes += [
        ListedNode(
            name=item.name,
            name_in_file=model.renamed.get(item.name, item.name),
            op_type=item.op_type,
            points=(),
            analysed=False,
            reason=item.reason,
        )
        for item in (*model.skipped, *(item for node in model.nodes for item in node.inside))
    ]
    return ModelListing(
        hbdebug_version=hbdebug.__version__,
        model=info,
        coverage=coverage_line("node", len(coverage.node_points), coverage.not_analysed),
        points=tuple(points),
        nodes=tuple(nodes),
    )


def granularity(point: Point) -> str:
    """Return ``per-tensor``, ``per-channel`` or ``blocks of 32``; empty for one without a grid."""
    if point.params is None:
        return ""
    if point.params.block:
        return f"blocks of {point.params.block}"
    return "per-channel" if point.params.per_channel else "per-tensor"


def largest_threshold(points: Sequence[Point]) -> float | None:
    """Return the largest calibrated threshold of some points; None when none has one."""
    found = [
        float(np.abs(point.params.threshold).max())
        for point in points
        if point.params is not None and point.params.threshold.size
    ]
    return max(found, default=None)


def answers_to(model: QuantModel, name: str) -> tuple[str, ...]:
    """Return the names by which a user may select a node or point: ours, and the file's."""
    return tuple(dict.fromkeys(filter(None, (name, model.renamed.get(name, "")))))


def consumer_names(model: QuantModel, point: Point) -> tuple[str, ...]:
    """Return the names of the nodes that read a point's values, each once."""
    return tuple(dict.fromkeys(node.name for node, _ in model.consuming_nodes(point)))


def select(
    names: Mapping[str, Iterable[str]],
    op_types: Mapping[str, Iterable[str]],
    *,
    patterns: Sequence[str],
    ops: Sequence[str],
    left_out: Sequence[NotAnalysed] = (),
) -> tuple[str, ...]:
    """Return the items that the user's selectors name, in the given order.

    Args:
        names: Item -> the names it answers to.
        op_types: Item -> the operator types it answers to.
        patterns: Exact names or shell wildcards; any match selects.
        ops: Operator types; any match selects.
        left_out: What is known but not analysed, for a better message.

    Raises:
        UsageError: A selector matches nothing.
    """
    if not patterns and not ops:
        return tuple(names)
    chosen: set[str] = set()
    for pattern in patterns:
        matched = {
            item
            for item, answers in names.items()
            if any(name == pattern or fnmatchcase(name, pattern) for name in answers)
        }
        if not matched:
            raise _unmatched(pattern, names, left_out)
        chosen |= matched
    for op in ops:
        matched = {item for item, answers in op_types.items() if op in answers}
        if not matched:
            known = sorted({name for answers in op_types.values() for name in answers})
            raise UsageError(
                f"no analysed node is a {op!r}", hint=f"There are: {', '.join(known)}."
            )
        chosen |= matched
    return tuple(item for item in names if item in chosen)


def _unmatched(
    pattern: str, names: Mapping[str, Iterable[str]], left_out: Sequence[NotAnalysed]
) -> UsageError:
    for item in left_out:
        if fnmatchcase(item.name, pattern) or item.name == pattern:
            return UsageError(f"{item.name} ({item.op_type}) is not analysed: {item.reason}")
    known = sorted({name for answers in names.values() for name in answers})
    return UsageError(
        f"0 of {len(names)} matched {pattern!r}",
        hint=close_matches(pattern, known)
        or "Names are those of the given file; `hbdebug info MODEL` lists them.",
    )
