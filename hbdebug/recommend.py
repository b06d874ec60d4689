"""Suggest nodes to lift, and measure what that gives.

This is the straight way: nodes are lifted in the order of the damage that they do alone, and the
whole model is measured after every step. Damage does not simply add up, so the curve may go down
as well as up; the shortest prefix that is best is suggested, and the curve is shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from hbdebug.analysis import ceilings
from hbdebug.analysis.scores import worst_of
from hbdebug.errors import RuntimeCrash
from hbdebug.metrics import badness
from hbdebug.model import Assignment
from hbdebug.results import CurveStep, Suggestion
from hbdebug.toolchain import lift, lifted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hbdebug.engine import Engine
    from hbdebug.observer import Observer
    from hbdebug.results import NodeResult
    from hbdebug.samples import Samples
    from hbdebug.toolchain import Lift, Target

METRIC = "cosine_similarity"
"""Metric of the target."""

MOST_LIFTS = 64
"""Lifts after which the search ends; a longer list is no list of nodes any more."""

_PATIENCE = 12  # lifts without a new best, after which a curve counts as flat


@dataclass(kw_only=True, slots=True)
class _Curve:
    """Measured steps, and the state that the last of them left."""

    assignment: Assignment
    settings: dict[str, Target] = field(default_factory=dict)
    steps: list[CurveStep] = field(default_factory=list)
    states: list[tuple[Assignment, dict[str, Target]]] = field(default_factory=list)
    top: int = 0  # index of the step that the next lift adds to
    planned: int = 0  # index of the last step that was planned

    def value(self, index: int) -> float:
        """Return the target's metric after a step."""
        return worst_of(self.steps[index].outputs, METRIC)

    def drop_behind(self, index: int) -> None:
        """Forget the steps behind one: they were measured beside it, for nothing."""
        del self.steps[index + 1 :], self.states[index + 1 :]

    def best(self, target: float) -> int:
        """Return the last step that reaches the target, or the best when none does.

        Behind the first that does, there are only steps that put nodes back.
        """
        for index in reversed(range(len(self.steps))):
            if self.value(index) >= target:
                return index
        return min(range(len(self.steps)), key=lambda index: badness(METRIC, self.value(index)))


def suggest(
    engine: Engine,
    samples: Samples,
    nodes: Sequence[NodeResult],
    *,
    march: str,
    target: float,
    observer: Observer,
) -> Suggestion:
    """Lift nodes in the order of damage until the target holds or the curve stops improving.

    First every node goes to int16 where march and operator allow it, else to the CPU. If that is
    not enough, the search goes on from the best point of the curve with the nodes whose weights
    do damage: weights stay int8 however wide the activations are, so those go to the CPU. Where
    the target is reached, nodes that it does not need are put back, one by one, each measured.

    Args:
        engine: The engine.
        samples: Samples to measure on, the same that ranked.
        nodes: The ranking, worst first.
        march: The march to lift for.
        target: Cosine that the worst output is to reach.
        observer: Is told of progress.

    Returns:
        The suggestion, its curve starting with the model as calibrated. After an interrupt
        (Ctrl-C) it holds what was measured until then.
    """
    curve = _Curve(assignment=Assignment.as_calibrated(engine.model))
    search = _Search(engine, samples, curve, march, target, observer)
    observer.phase("suggestion", 1 + MOST_LIFTS)
    damaging = [node for node in nodes if not node.alone.exact]
    try:
        search.measure_start()
        stopped = search.extend([(node.name, None) for node in damaging])
        best = curve.best(target)
        if curve.value(best) < target:
            by_weights = _by_weights(damaging)
            if by_weights:
                search.restart(best)
                stopped = search.extend([(name, "cpu") for name in by_weights])
        if curve.value(curve.best(target)) >= target:
            search.put_back()
    except KeyboardInterrupt:
        stopped = "interrupted"
    except RuntimeCrash as error:
        stopped = f"{error.message}, {error.where}" if error.where else error.message
    if not curve.steps:
        return Suggestion(
            metric=METRIC, target=target, reached=False, curve=(), nodes={}, stopped=stopped
        )
    best = curve.best(target)
    reached = curve.value(best) >= target
    return Suggestion(
        metric=METRIC,
        target=target,
        reached=reached,
        curve=tuple(curve.steps),
        nodes=curve.states[best][1],
        stopped="the target is reached" if reached else stopped,
        step=best,
    )


def _by_weights(nodes: Sequence[NodeResult]) -> list[str]:
    """Return the nodes with damaging weights, the worst weights first.

    Where weights were not measured apart, the order of the whole nodes stands in for it.
    """
    apart = [node for node in nodes if node.weights is not None]
    if not apart:
        return [node.name for node in nodes]
    damaging = [node for node in apart if node.weights is not None and not node.weights.exact]
    return [
        node.name
        for node in sorted(
            damaging,
            key=lambda node: badness(METRIC, node.weights.values[METRIC]) if node.weights else 0.0,
            reverse=True,
        )
    ]


class _Search:
    """Extends a curve, measuring as many steps side by side as there are cores."""

    def __init__(
        self,
        engine: Engine,
        samples: Samples,
        curve: _Curve,
        march: str,
        target: float,
        observer: Observer,
    ) -> None:
        self._engine = engine
        self._samples = samples
        self._curve = curve
        self._march = march
        self._target = target
        self._observer = observer

    def measure_start(self) -> None:
        """Measure the model as calibrated, the first step of the curve."""
        self._measure([(CurveStep(lifted="", to="", outputs={}), self._curve.assignment, {})])

    def restart(self, step: int) -> None:
        """Go on from the state that a step left; the steps behind it stay on the curve."""
        assignment, settings = self._curve.states[step]
        self._curve.assignment, self._curve.settings = assignment, dict(settings)
        self._curve.top, self._curve.planned = step, len(self._curve.steps) - 1

    def extend(self, wanted: Sequence[tuple[str, Target | None]]) -> str:
        """Lift nodes in order until the target holds or the curve stops improving.

        Args:
            wanted: Node and where to lift it to; None chooses int16 where possible.

        Returns:
            Why it ended, in words.
        """
        curve = self._curve
        best = max(curve.value(index) for index in range(len(curve.steps)))
        since_best = 0
        lifts = self._lifts(wanted)
        while curve.value(len(curve.steps) - 1) < self._target:
            batch = list(islice(lifts, self._engine.jobs))
            if not batch:
                return "every node that can be lifted was"
            first = len(curve.steps)
            self._measure(batch)
            for index in range(first, len(curve.steps)):
                if curve.value(index) >= self._target:
                    curve.drop_behind(index)
                    return "the target is reached"
                since_best += 1
                if curve.value(index) > best:
                    best = curve.value(index)
                    since_best = 0
            if since_best >= _PATIENCE:
                return f"no improvement in {since_best} lifts"
            if len(curve.steps) > MOST_LIFTS:
                return f"{MOST_LIFTS} nodes were lifted"
        return "the target is reached"

    def put_back(self) -> None:
        """Take nodes out of the list while the target holds without them.

        Afterwards it holds without none of those that are left. The least damaging are tried
        first.
        """
        model, curve = self._engine.model, self._curve
        calibrated = Assignment.as_calibrated(model)
        settings = curve.states[-1][1]
        refused: set[str] = set()
        while names := [name for name in reversed(settings) if name not in refused]:
            name = names[0]
            left = {other: to for other, to in settings.items() if other != name}
            step = CurveStep(lifted=name, to="keep", outputs={}, on=len(curve.steps) - 1)
            self._measure([(step, lifted(model, calibrated, left, self._march), left)])
            if curve.value(len(curve.steps) - 1) >= self._target:
                settings = left
                refused.clear()
            else:
                refused.add(name)
                curve.drop_behind(len(curve.steps) - 2)

    def _lifts(
        self, wanted: Sequence[tuple[str, Target | None]]
    ) -> Iterator[tuple[CurveStep, Assignment, dict[str, Target]]]:
        """Yield the steps to measure, leaving out lifts that change nothing."""
        curve = self._curve
        for name, to in wanted:
            if name in curve.settings and to is None:
                continue
            change = self._lift(name, to)
            if not change.changes and not change.bypassed:
                continue
            curve.assignment = curve.assignment.changed(change.changes, bypassed=change.bypassed)
            curve.settings = {**curve.settings, name: change.to}
            step = CurveStep(
                lifted=name,
                to=change.to,
                outputs={},
                on=curve.top,
                changes=change.described,
                notes=change.notes,
            )
            curve.top = curve.planned = curve.planned + 1
            yield step, curve.assignment, curve.settings

    def _lift(self, name: str, to: Target | None) -> Lift:
        model, march = self._engine.model, self._march
        curve = self._curve
        return lift(model, curve.assignment, name, march, to=to, after=curve.settings)

    def _measure(self, batch: Sequence[tuple[CurveStep, Assignment, dict[str, Target]]]) -> None:
        assignments = [assignment for _, assignment, _ in batch]
        found = ceilings.measure(self._engine, self._samples, assignments)
        for (step, assignment, settings), outputs in zip(batch, found, strict=True):
            self._curve.steps.append(replace(step, outputs=outputs))
            self._curve.states.append((assignment, dict(settings)))
            self._observer.advance(1)
