"""Rank nodes or points by the damage that each does alone at the model's outputs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from hbdebug.analysis import ceilings
from hbdebug.analysis.coverage import (
    answers_to,
    consumer_names,
    cover,
    coverage_line,
    granularity,
    largest_threshold,
    points_left_out,
    select,
)
from hbdebug.analysis.pace import Pace, duration
from hbdebug.analysis.scores import (
    Scorer,
    Scores,
    intervals,
    resampled_means,
    ties,
)
from hbdebug.errors import UsageError
from hbdebug.metrics import NOT_FINITE, badness
from hbdebug.model import Assignment
from hbdebug.results import NodeResult, NotAnalysed, PointResult
from hbdebug.toolchain import suggested_action

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from hbdebug.analysis.alone import KernelPoints
    from hbdebug.analysis.coverage import Coverage
    from hbdebug.analysis.journal import Journal
    from hbdebug.analysis.scores import Flags
    from hbdebug.engine import Engine
    from hbdebug.jump import Schedule
    from hbdebug.model import Node, Point, QuantModel
    from hbdebug.observer import Observer
    from hbdebug.results import Effect
    from hbdebug.samples import Samples

Kind: TypeAlias = Literal["node", "weight", "activation"]

ALWAYS_MEASURED = ("cosine_similarity", "sqnr_db")
"""Metrics that every ranking shows, whatever ranks."""

_NOUNS = {"node": "node", "weight": "weight point", "activation": "activation point"}

INTERRUPTED = "interrupted before it was measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to rank and how.

    Attributes:
        metrics: Metric names; the first ranks.
        kind: What is ranked.
        nodes: Names or shell wildcards of the items to rank; all when empty.
        ops: Operator types of the items to rank; all when empty.
        split: Whether a node's weights and activations are measured apart, too.
        march: The march that suggested actions are for.
        seed: Seed of the bootstrap.
        target: Cosine that counts as good enough.
    """

    metrics: tuple[str, ...] = ("cosine_similarity",)
    kind: Kind = "node"
    nodes: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    split: bool = True
    march: str = "bayes-e"
    seed: int = 0
    target: float = 0.999

    @property
    def measured(self) -> tuple[str, ...]:
        """The requested metrics and those that every ranking shows."""
        return tuple(dict.fromkeys((*self.metrics, *ALWAYS_MEASURED)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """What `rank` found.

    Attributes:
        nodes: The node ranking; empty for other kinds.
        points: The point ranking; empty for kind ``node``.
        not_analysed: What was left out, with the reason.
        coverage: The coverage line.
        complete_samples: Number of samples on which everything was measured.
        interrupted: Whether the run was stopped early.
        notes: What about the run the user should know.
        broken: Indices of the samples on which the float model gives NaN or infinity.
    """

    nodes: tuple[NodeResult, ...]
    points: tuple[PointResult, ...]
    not_analysed: tuple[NotAnalysed, ...]
    coverage: str
    complete_samples: int
    interrupted: bool
    notes: tuple[str, ...] = ()
    broken: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Item:
    """One line of the ranking to come: indices into the list of assignments."""

    name: str
    alone: int
    weights: int | None = None
    activations: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """What will be ranked, and the different assignments that it takes.

    Attributes:
        coverage: The nodes with the points that they stand for.
        quantized: Node -> the points that are quantized to measure it alone.
        notes: Node -> what about that the user should know.
        items: What will be ranked.
        assignments: The assignments that the items' indices stand for.
    """

    coverage: Coverage
    quantized: Mapping[str, tuple[Point, ...]]
    notes: Mapping[str, str]
    items: list[_Item]
    assignments: list[Assignment]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Line:
    """An item with its place."""

    item: _Item
    rank: int
    tied: bool
    interval: tuple[float, float] | None


def rank(
    engine: Engine,
    samples: Samples,
    request: Request,
    observer: Observer,
    *,
    journal: Callable[[int], Journal] | None = None,
    whole: QuantModel | None = None,
    lifts: int = 0,
) -> Ranking:
    """Measure every analysed node or point alone and rank them, worst first.

    Args:
        engine: The engine; its profile is taken on the first sample if it has none.
        samples: Calibration samples.
        request: What to rank.
        observer: Is told of progress.
        journal: Opens the journal of finished evaluations, given their number; None for none.
        whole: The model before it was cut off at an inner node.
        lifts: Number of lifts that a search after the ranking may try, for the estimate.

    Returns:
        The ranking. After an interrupt (Ctrl-C) it holds what was finished: the samples that are
        complete, or, when none is, what the first sample has.

    Raises:
        UsageError: A selector matches nothing.
        ModelError: ONNX Runtime can not run a node.
    """
    profile = engine.profile(next(ceilings.inputs_of(samples)))
    dtypes = {name: dtype for name, (dtype, _) in profile.specs.items()}
    plan = _plan(engine.model, request, dtypes, whole, _kernels(engine))
    scorer = Scorer(outputs=ceilings.output_names(engine.model), metrics=request.measured)
    scores = Scores.empty(len(plan.assignments), len(samples), scorer)
    schedule = engine.schedule(plan.assignments, len(samples))
    seconds = engine.expected_seconds(schedule, len(samples))
    observer.estimate(_estimate(engine, seconds, len(schedule.variants), len(samples), lifts))
    if schedule.shortfall:
        observer.note(schedule.shortfall)
    observer.phase("ranking", sum(item.cost for item in schedule.variants) * len(samples))
    opened: AbstractContextManager[Journal | None] = (
        nullcontext() if journal is None else journal(len(plan.assignments))
    )
    with opened as book:
        finished = _evaluate(engine, samples, schedule, scores, observer, book)
    ranking = _ranking(
        engine.model, request, plan, scores, interrupted=not finished, failures=engine.failures
    )
    return replace(ranking, notes=(schedule.shortfall,) if schedule.shortfall else ())


def check_request(model: QuantModel, request: Request) -> None:
    """Raise what is wrong with a request before anything is run for it.

    Raises:
        UsageError: A selector matches nothing, there is nothing to rank, or a value is out of
            its range.
    """
    if request.kind not in _NOUNS:
        raise UsageError(f"no such kind: {request.kind!r}", hint=f"There are: {', '.join(_NOUNS)}.")
    if not 0 <= request.target <= 1:
        raise UsageError(f"a cosine of {request.target:g} is no target", hint="Give 0 to 1.")
    _plan(model, request, {}, None, None)


def _kernels(engine: Engine) -> KernelPoints | None:
    if engine.fidelity == "calibrated":
        return None
    from hbdebug.analysis.alone import KernelPoints  # noqa: PLC0415 - as all that lowers

    fallbacks = engine.fallbacks(Assignment.as_calibrated(engine.model))
    return KernelPoints(engine.model, fallbacks, shapes=engine.shapes, march=engine.march)


def _plan(
    model: QuantModel,
    request: Request,
    dtypes: Mapping[str, str],
    whole: QuantModel | None,
    kernels: KernelPoints | None,
) -> _Plan:
    coverage = cover(model, dtypes, whole=whole)
    quantized, notes = coverage.node_points, {}
    if kernels is not None:
        nodes = [(model.node_by_name[name], own) for name, own in coverage.node_points.items()]
        quantized = {node.name: kernels.points(node, own) for node, own in nodes}
        notes = {node.name: kernels.note(node) for node, _ in nodes}
    items, assignments = _plan_items(model, coverage, request, quantized)
    return _Plan(
        coverage=coverage, quantized=quantized, notes=notes, items=items, assignments=assignments
    )


def _ranking(
    model: QuantModel,
    request: Request,
    plan: _Plan,
    scores: Scores,
    *,
    interrupted: bool,
    failures: Mapping[int, str],
) -> Ranking:
    """Put what was measured in order."""
    broken = tuple(int(index) for index in np.flatnonzero(scores.broken))
    # What failed on one sample counts on none.
    scores.done[list(failures)] = False
    scores, complete = _usable(scores, failures)
    measured = [item for item in plan.items if scores.done[item.alone].any()]
    order, bounds, tied = _order(scores, measured, request)
    lines = [
        _Line(item=measured[place], rank=rank, tied=tied[rank - 1], interval=bounds[place])
        for rank, place in enumerate(order, start=1)
    ]
    nodes: list[NodeResult] = []
    points: list[PointResult] = []
    left_out = list(plan.coverage.not_analysed)
    if request.kind == "node":
        nodes = [_node_result(model, plan, request, scores, line) for line in lines]
    else:
        points = [_point_result(model, request, scores, line) for line in lines]
        left_out = list(points_left_out(model))
    left_out += _unmeasured(model, plan.items, measured, failures)
    return Ranking(
        nodes=tuple(nodes),
        points=tuple(points),
        not_analysed=tuple(left_out),
        coverage=coverage_line(_NOUNS[request.kind], len(measured), left_out),
        complete_samples=complete,
        interrupted=interrupted,
        broken=broken,
    )


def _evaluate(
    engine: Engine,
    samples: Samples,
    schedule: Schedule,
    scores: Scores,
    observer: Observer,
    book: Journal | None,
) -> bool:
    """Fill the scores; return False when the user interrupted."""
    found = {} if book is None else book.found
    for (sample, index), scored in found.items():
        scores.add(index, sample, scored)
        observer.advance(schedule.variants[index].cost)
    total = sum(item.cost for item in schedule.variants) * len(samples)
    left = total - sum(schedule.variants[index].cost for _, index in found)
    seconds = engine.expected_seconds(schedule, len(samples))
    pace = Pace(seconds * left / total if total else 0.0, left)
    try:
        scorer = Scorer.like(scores)
        for item in engine.evaluate(
            ceilings.inputs_of(samples), schedule, scorer, faint=scorer.faint, done=found
        ):
            scores.add(item.assignment, item.sample, item.value)
            observer.advance(item.cost)
            correction = pace.advance(item.cost)
            if correction:
                observer.estimate(correction)
            if book is not None:
                book.add(item.sample, item.assignment, item.value)
    except KeyboardInterrupt:
        return False
    return True


def _plan_items(
    model: QuantModel,
    coverage: Coverage,
    request: Request,
    quantized: Mapping[str, tuple[Point, ...]],
) -> tuple[list[_Item], list[Assignment]]:
    """Return what will be ranked, and the different assignments that it takes."""
    indices: dict[tuple[str, ...], int] = {}

    def index_of(points: Sequence[Point]) -> int:
        return indices.setdefault(tuple(point.name for point in points), len(indices))

    items = []
    if request.kind == "node":
        for name in _selected_nodes(model, coverage, request):
            points = coverage.node_points[name]
            halves: dict[str, int | None] = {"weight": None, "activation": None}
            if request.split:
                for role in halves:
                    half = [point for point in points if point.role == role]
                    halves[role] = index_of(half) if half else None
            items.append(
                _Item(
                    name=name,
                    alone=index_of(quantized[name]),
                    weights=halves["weight"],
                    activations=halves["activation"],
                )
            )
    else:
        items = [
            _Item(name=point.name, alone=index_of([point]))
            for point in _selected_points(model, request)
        ]
    assignments = [Assignment.of(model.point_by_name[name] for name in names) for names in indices]
    return items, assignments


def _selected_nodes(model: QuantModel, coverage: Coverage, request: Request) -> tuple[str, ...]:
    if not coverage.node_points:
        raise UsageError(
            "no node has a point that is switched on", where=model.path, hint="Nothing to rank."
        )
    return select(
        {name: answers_to(model, name) for name in coverage.node_points},
        {name: (model.node_by_name[name].op_type,) for name in coverage.node_points},
        patterns=request.nodes,
        ops=request.ops,
        left_out=coverage.not_analysed,
    )


def _selected_points(model: QuantModel, request: Request) -> list[Point]:
    """Return the points of the requested role; a selector names them or their consumers."""
    points = {
        point.name: point for point in model.points if point.enabled and point.role == request.kind
    }
    if not points:
        reasons = dict.fromkeys(
            point.reason for point in model.points if point.role == request.kind
        )
        raise UsageError(
            f"no {request.kind} point is switched on",
            where=model.path,
            hint="; ".join(filter(None, reasons)),
        )
    consumers = {
        name: [node for node, _ in model.consuming_nodes(point)] for name, point in points.items()
    }
    chosen = select(
        {
            name: tuple(
                answer
                for item in (name, *(node.name for node in consumers[name]))
                for answer in answers_to(model, item)
            )
            for name in points
        },
        {name: tuple(node.op_type for node in consumers[name]) for name in points},
        patterns=request.nodes,
        ops=request.ops,
        left_out=points_left_out(model),
    )
    return [points[name] for name in chosen]


def _usable(scores: Scores, failures: Mapping[int, str]) -> tuple[Scores, int]:
    """Return the scores of the complete samples, or of the first one when none is complete."""
    tried = np.ones(len(scores.done), np.bool_)
    tried[list(failures)] = False
    complete: Flags = np.asarray(scores.done[tried].all(axis=0))
    if complete.any():
        return scores.only(complete), int(complete.sum())
    first = np.zeros_like(complete)
    first[0] = True
    return scores.only(first), 0


def _order(
    scores: Scores, items: Sequence[_Item], request: Request
) -> tuple[list[int], list[tuple[float, float] | None], list[bool]]:
    """Return places in ``items`` worst first, the items' intervals, and the ties in that order."""
    rows = [item.alone for item in items]
    values = scores.ranking_values()[rows]
    metric = request.metrics[0]
    effects = [scores.effect(row, None, (metric,)).values[metric] for row in rows]

    def key(place: int) -> tuple[bool, float]:
        # What quantization turns into NaN or infinity has no number and is worst of all.
        broken = NOT_FINITE in scores.flags[rows[place]]
        return not broken, -badness(metric, effects[place])

    # Sorting is stable, so that equals stay in graph order.
    order = sorted(range(len(items)), key=key)
    # A sample without a float result says nothing about anybody.
    means = resampled_means(values[:, ~scores.broken], request.seed)
    return order, intervals(means, len(items)), ties(means, order)


def _unmeasured(
    model: QuantModel,
    items: Sequence[_Item],
    measured: Sequence[_Item],
    failures: Mapping[int, str],
) -> list[NotAnalysed]:
    done = {item.name for item in measured}
    op_types = {step.name: step.op_type for step in model.steps}
    return [
        NotAnalysed(
            name=item.name,
            op_type=op_types[item.name],
            reason=failures.get(item.alone, INTERRUPTED),
        )
        for item in items
        if item.name not in done
    ]


def _node_result(
    model: QuantModel, plan: _Plan, request: Request, scores: Scores, line: _Line
) -> NodeResult:
    item = line.item
    node = model.node_by_name[item.name]
    points = plan.coverage.node_points[item.name]
    activations = [point for point in points if point.role == "activation"]
    action, note = suggested_action(node, model, request.march)
    return NodeResult(
        rank=line.rank,
        tied=line.tied,
        name=item.name,
        op_type=node.op_type,
        points=tuple(point.name for point in plan.quantized[item.name]),
        dtype=",".join(dict.fromkeys(_dtype(point) for point in activations or points)),
        threshold=largest_threshold(activations),
        alone=scores.effect(item.alone, line.interval, request.measured),
        weights=_half(scores, item.weights, request),
        activations=_half(scores, item.activations, request),
        suggestion=action,
        note="; ".join(filter(None, (note, plan.notes.get(item.name, ""), _own_name(model, node)))),
    )


def _own_name(model: QuantModel, node: Node) -> str:
    """Say that a node cannot be named in a configuration, where that is so."""
    name = model.renamed.get(node.name)
    if name is None:
        return ""
    called = f"shares the name {name} with others" if name else "has no name"
    return f"it {called} in the file, so that no configuration can name it alone"


def _point_result(model: QuantModel, request: Request, scores: Scores, line: _Line) -> PointResult:
    point = model.point_by_name[line.item.name]
    params = point.params
    return PointResult(
        rank=line.rank,
        tied=line.tied,
        name=point.name,
        role=point.role,
        tensor=point.input,
        dtype=_dtype(point),
        granularity=granularity(point),
        threshold=largest_threshold([point]),
        scale=None if params is None else float(params.scale.max()),
        consumers=consumer_names(model, point),
        alone=scores.effect(line.item.alone, line.interval, request.measured),
    )


def _half(scores: Scores, index: int | None, request: Request) -> Effect | None:
    if index is None or not scores.done[index].any():
        return None
    return scores.effect(index, None, request.measured)


def _dtype(point: Point) -> str:
    return "float32" if point.params is None else point.params.dtype


def _estimate(engine: Engine, seconds: float, evaluations: int, samples: int, lifts: int) -> str:
    words = (
        f"{evaluations} evaluations x {samples} sample{'' if samples == 1 else 's'}: "
        f"about {duration(seconds)} on {engine.jobs} core{'' if engine.jobs == 1 else 's'}"
    )
    if not lifts:
        return words
    search = duration(engine.expected_walks(lifts * samples))
    return f"{words}, then up to about {search} for the suggestion"
