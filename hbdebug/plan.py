"""Pure planning: what an assignment makes stale, where to cut the graph, what to keep.

No arrays and no sessions here. A *position* is an index into ``model.steps``: position ``k``
lies in front of step ``k``. A *boundary* is a position at which the walk forgets what is no
longer needed; a *cut* is a boundary from which a jump to the outputs exists.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.model import Point

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from hbdebug.model import Assignment, Node, QuantModel, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """What the choice of cuts is weighed by, in seconds per sample unless stated.

    Attributes:
        walk: One entry per step: its time in the walk.
        jump: One entry per position, the last being the end of the graph: the time of the jump
            from there to the outputs.
        create: One entry per position: the time to make that jump's session, once per run.
        compare: One entry per position: the time to compare what crosses there with its float
            value.
    """

    walk: Sequence[float]
    jump: Sequence[float]
    create: Sequence[float]
    compare: Sequence[float]


def seed_steps(model: QuantModel, assignment: Assignment) -> frozenset[int]:
    """Return the steps that an assignment changes on their own account.

    These are its quantized points, and the nodes that read a quantized constant or around a
    point (`Assignment.bypassed`). A point on a constant is no seed itself: its value is built
    into the sessions of the nodes that read it.
    """
    found = {model.position_of[node] for node, _ in assignment.bypassed}
    for name in assignment:
        point = model.point_by_name[name]
        if point.output in model.static:
            found.update(_static_readers(model, point))
        else:
            found.add(model.position_of[name])
    return frozenset(found)


def _static_readers(model: QuantModel, point: Point) -> Iterator[int]:
    """Yield the steps that take in a static point's value, through static points behind it."""
    for step, _ in model.consumers_of.get(point.output, ()):
        if isinstance(step, Point) and step.output in model.static:
            yield from _static_readers(model, step)
        else:
            yield model.position_of[step.name]


def stale_steps(model: QuantModel, seeds: Collection[int], stop: int) -> tuple[int, ...]:
    """Return, in order, the steps whose outputs may differ from the float baseline.

    Args:
        model: The model.
        seeds: From `seed_steps`.
        stop: Position to stop at.

    Returns:
        The seeds and all steps that depend on one, those at or behind ``stop`` left out.
    """
    stale: set[str] = set()
    found = []
    for index in range(min(seeds, default=stop), stop):
        step = model.steps[index]
        if index in seeds or not stale.isdisjoint(step.inputs):
            found.append(index)
            stale.update(step.outputs)
    return tuple(found)


def quantized_span(
    model: QuantModel, assignment: Assignment, seeds: Collection[int]
) -> tuple[int, int]:
    """Return the positions between which an assignment must be walked.

    Args:
        model: The model.
        assignment: What is quantized.
        seeds: From `seed_steps`.

    Returns:
        ``(first, last)``: the position of the first seed, and that behind the last one, from
        which on everything is in float and a jump is right. An assignment that reads around a
        point can not jump: ``last`` is the end of the graph. ``(0, 0)`` when nothing is
        quantized.
    """
    if not seeds:
        return 0, 0
    return min(seeds), len(model.steps) if assignment.bypassed else max(seeds) + 1


def crossing(
    model: QuantModel, bypassed: Collection[tuple[str, int]] = ()
) -> tuple[frozenset[str], ...]:
    """Return, for every position, the tensors made before it and needed behind it.

    Args:
        model: The model.
        bypassed: Inputs, as node name and index, that may be read in front of their points; then
            both tensors are needed.

    Returns:
        One set for each position; that of the last one holds the graph outputs. Graph inputs
        count as made before position 0; constants are at hand everywhere and never cross.
    """
    steps = model.steps
    needed = {spec.name for spec in model.outputs}
    behind: list[set[str]] = [set()] * len(steps) + [set(needed)]
    for index in range(len(steps) - 1, -1, -1):
        needed = needed.difference(steps[index].outputs)
        needed.update(name for name in steps[index].inputs if name)
        needed.update(read_around(model, steps[index], bypassed))
        behind[index] = needed
    made = {spec.name for spec in model.inputs}
    found = []
    for index, wanted in enumerate(behind):
        found.append(frozenset(wanted & made))
        if index < len(steps):
            made.update(name for name in steps[index].outputs if name not in model.static)
    return tuple(found)


def read_around(
    model: QuantModel, step: Step, bypassed: Collection[tuple[str, int]]
) -> Iterator[str]:
    """Yield what a step reads in front of points."""
    for index, name in enumerate(step.inputs):
        if (step.name, index) in bypassed:
            yield model.in_front_of_points(name)


def last_uses(
    model: QuantModel, keep: Collection[str], *, around_points: bool = False
) -> tuple[tuple[str, ...], ...]:
    """Return, for every step, the tensors that nothing reads after it and that may be dropped.

    Args:
        model: The model.
        keep: Tensors that must stay (graph outputs).
        around_points: Whether a node may read what lies in front of a point instead of what lies
            behind it (`Assignment.bypassed`), so that both must stay until then.
    """
    last: dict[str, int] = {}
    for index, step in enumerate(model.steps):
        for name in (*step.inputs, *step.outputs):
            source = name
            while source:
                if source not in keep:
                    last[source] = index
                producer = model.producer_of.get(source)
                if not (around_points and isinstance(producer, Point)):
                    break
                source = producer.input
    dropped: list[list[str]] = [[] for _ in model.steps]
    for name, index in last.items():
        dropped[index].append(name)
    return tuple(tuple(names) for names in dropped)


def choose_cuts(costs: Costs, spans: Iterable[tuple[int, int]], samples: int) -> tuple[int, ...]:
    """Choose the cuts that make all evaluations together cheapest, by dynamic programming.

    An evaluation that is quantized from step ``first`` up to position ``last`` walks from
    ``first`` to the first cut at or behind ``last`` and jumps from there. A cut costs one session
    and, for each sample, one jump of the float baseline as the reference. The end of the graph is
    always a cut, free of charge.

    Args:
        costs: Times, see `Costs`.
        spans: One ``(first, last)`` per evaluation, from `quantized_span`.
        samples: Number of samples that will be evaluated.

    Returns:
        Cut positions in ascending order, the end of the graph last.
    """
    end = len(costs.walk)
    walked = np.concatenate([[0.0], np.cumsum(np.asarray(costs.walk, np.float64))])
    count = np.zeros(end + 1)
    start_sum = np.zeros(end + 1)
    for first, last in spans:
        if last:
            count[last] += 1
            start_sum[last] += walked[first]
    # Number of evaluations that end at or before a position, and the sum of their walks' starts.
    ending, starts = np.cumsum(count), np.cumsum(start_sum)
    per_sample = np.asarray(costs.jump, np.float64) + np.asarray(costs.compare, np.float64)
    best = np.full(end + 1, np.inf)
    best[0] = 0.0
    previous = np.zeros(end + 1, np.int64)
    for position in range(1, end + 1):
        evaluations = ending[position] - ending[:position]
        spent = evaluations * (walked[position] + per_sample[position])
        spent -= starts[position] - starts[:position]
        total = best[:position] + samples * spent
        if position < end:
            total += samples * costs.jump[position] + costs.create[position]
        previous[position] = int(np.argmin(total))
        best[position] = total[previous[position]]
    cuts = [end]
    while previous[cuts[-1]] > 0:
        cuts.append(int(previous[cuts[-1]]))
    return tuple(reversed(cuts))


def thin_cuts(cuts: Sequence[int], weight: Mapping[int, int], budget: int) -> tuple[int, ...]:
    """Drop cuts until the sessions' weights fit a budget, keeping them spread out.

    Args:
        cuts: Ascending positions, the end of the graph last (which costs nothing and stays).
        weight: Bytes that the session of a cut holds.
        budget: Bytes allowed for all of them together.
    """
    kept = list(cuts[:-1])
    while kept and sum(weight[cut] for cut in kept) > budget:
        if len(kept) == 1:
            kept = []
            break
        kept = kept[1::2]
    return (*kept, cuts[-1])


def choose_boundaries(
    cuts: Sequence[int], made_bytes: Sequence[int], budget: int
) -> tuple[int, ...]:
    """Add boundaries between the cuts so that what one stretch makes fits a budget.

    Args:
        cuts: Ascending cut positions, the end of the graph last.
        made_bytes: Bytes that each step makes anew.
        budget: Bytes that one stretch between two boundaries may make. A single step that makes
            more is a stretch of its own.

    Returns:
        Ascending positions, a superset of ``cuts``.
    """
    found = []
    total = 0
    for position in range(1, len(made_bytes) + 1):
        made = made_bytes[position - 1]
        if total and total + made > budget and position - 1 not in found:
            found.append(position - 1)
            total = 0
        total += made
        if position in cuts:
            found.append(position)
            total = 0
    return tuple(found)


def split_rounds(carried: Sequence[Mapping[int, int]], budget: int) -> tuple[tuple[int, ...], ...]:
    """Share evaluations out among walks of a sample, so that what they carry over fits a budget.

    Args:
        carried: For each evaluation, position of a boundary -> bytes that it carries over it.
        budget: Bytes that may be carried over any boundary at a time. An evaluation that carries
            more is a round of its own.

    Returns:
        Indices of the evaluations of each round.
    """
    rounds: list[list[int]] = []
    loads: list[dict[int, int]] = []

    def fits(load: dict[int, int], each: Mapping[int, int]) -> bool:
        return all(load.get(place, 0) + size <= budget for place, size in each.items())

    for index, each in enumerate(carried):
        place = next((place for place, load in enumerate(loads) if fits(load, each)), len(rounds))
        if place == len(rounds):
            rounds.append([])
            loads.append({})
        rounds[place].append(index)
        for position, size in each.items():
            loads[place][position] = loads[place].get(position, 0) + size
    return tuple(tuple(chosen) for chosen in rounds)


def cut_of(cuts: Sequence[int], last: int) -> int:
    """Return the first cut at or behind a position."""
    return cuts[bisect_left(cuts, last)]


# Seconds on one core of a desktop processor, measured on the two text-line models. They decide
# where the graph is cut, so they must not come from a clock: two runs would cut differently, and
# their last digits differ.
_CALL = 12e-6  # any call of a session
_PER_OPERATOR = 2e-6  # any operator inside one
_PER_ELEMENT = 0.7e-9  # an element that an operator makes
_PER_PRODUCT = 2e-11  # a product of a convolution or matrix product
_PER_LONE_PRODUCT = 2.4e-10  # the same where each channel is convolved by itself


def computing_seconds(
    node: Node, passes: float, made: int, weight: tuple[int, ...], inner: int
) -> float:
    """Estimate what a node takes to compute.

    Args:
        node: The node.
        passes: Number of times that it goes over what it makes: its number of operators.
        made: Number of elements that it makes.
        weight: Shape of its constant weight; empty without one.
        inner: Length of the inner dimension of a matrix product; 0 for other operators.
    """
    seconds = made * _PER_ELEMENT * passes
    if len(weight) > 2:
        alone = node.op_type == "Conv" and weight[1] == 1
        seconds += made * math.prod(weight[1:]) * (_PER_LONE_PRODUCT if alone else _PER_PRODUCT)
    return seconds + made * inner * _PER_PRODUCT


def walk_seconds(node: Node, computing: float) -> float:
    """Estimate what a node takes in the walk: a call, its operators, and the computing."""
    return _CALL + _PER_OPERATOR * len(node.body) + computing


def jump_seconds(computing: Sequence[float], ops: Sequence[int], ratio: float) -> tuple[float, ...]:
    """Estimate the jump's time from every position.

    Args:
        computing: Seconds of computing of each step in the walk.
        ops: Number of operators of each step.
        ratio: Time of the jump's session over that of the walk, for the same computing.

    Returns:
        Seconds per position, 0 at the end of the graph.
    """
    found = [0.0]
    total = _CALL
    for seconds, count in zip(reversed(computing), reversed(ops), strict=True):
        total += seconds * ratio + count * _PER_OPERATOR
        found.append(total)
    return tuple(reversed(found))
