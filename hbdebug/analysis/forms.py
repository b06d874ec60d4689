"""How far the integer form of each node is from its calibrated form, each node compared alone.

The calibrated model is walked as it is calibrated. At each node that runs in integers, the
integer kernels get exactly the integers that the calibrated node's quantized inputs stand for, and
what they give is compared with what the calibrated model gives. So no difference is passed on
from node to node, unlike in a comparison of two whole runs.

The unit of a difference is the step of the output, what one of its integers is worth. Rounding
to a step alone is noise of 1/12 of its square; a node *differs much* when the difference of the
two forms is stronger than that, and stronger than 60 dB below the signal. The second condition
is for int16 and int32, whose steps are so small that a few of them say nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.analysis.ceilings import inputs_of
from hbdebug.analysis.form_reasons import (
    REMARKABLE_CLIPPING_DB,
    Context,
    form_diagnostics,
    reason,
)
from hbdebug.analysis.tally import Seen, Tally
from hbdebug.analysis.units import find_units
from hbdebug.integer_run import IntegerRunner
from hbdebug.lowering.graph import lower_traced
from hbdebug.model import Assignment
from hbdebug.observer import Observer
from hbdebug.results import FormDifference

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from numpy.typing import NDArray

    from hbdebug.analysis.units import Target, Unit
    from hbdebug.engine import Engine
    from hbdebug.kernels import Outcome
    from hbdebug.lowering.graph import Lowered
    from hbdebug.lowering.writer import Tensor
    from hbdebug.model import Node
    from hbdebug.results import Diagnostic, NotAnalysed
    from hbdebug.samples import Samples

SAMPLES = 4
"""How many samples are compared: a difference of forms is one of arithmetic and shows on few."""

_TYPES = {8: np.int8, 16: np.int16, 32: np.int32}


@dataclass(frozen=True, kw_only=True, slots=True)
class Forms:
    """What `compare_forms` found.

    Attributes:
        differences: One for each node that was compared, worst first.
        not_compared: The other nodes, with the reason.
        diagnostics: What the integers of the nodes, and what happened to them, show.
    """

    differences: tuple[FormDifference, ...]
    not_compared: tuple[NotAnalysed, ...]
    diagnostics: tuple[Diagnostic, ...]


def compare_forms(
    engine: Engine,
    samples: Samples,
    march: str,
    *,
    assignment: Assignment | None = None,
    limit: int = SAMPLES,
    observer: Observer | None = None,
) -> Forms:
    """Compare the integer form of every node with its calibrated form.

    Args:
        engine: Runs the calibrated model; its profile is taken on the first sample if it has none.
        samples: Samples to compare on.
        march: bayes, bayes-e or bernoulli2.
        assignment: What is quantized; what the file says unless given.
        limit: Use the first so many samples.
        observer: Is told of progress.

    Returns:
        What differs, what cannot be compared, and what the integers show.

    Raises:
        UnsupportedError: The march, or an operator's integer form, is not known.
    """
    watch = observer or Observer()
    engine.profile(next(inputs_of(samples)))
    wanted = Assignment.as_calibrated(engine.model) if assignment is None else assignment
    lowered = lower_traced(engine.model, wanted, shapes=engine.shapes, march=march)
    count = min(limit, len(samples))
    watch.phase("integer forms", count)
    inputs = islice(inputs_of(samples), count)
    return compare_lowered(engine, lowered, inputs, wanted, march=march, observer=watch)


def compare_lowered(
    engine: Engine,
    lowered: Lowered,
    inputs: Iterable[Mapping[str, NDArray[Any]]],
    assignment: Assignment,
    *,
    march: str = "bayes-e",
    observer: Observer | None = None,
) -> Forms:
    """Compare the nodes of a calibrated model with those of an integer model of it.

    Args:
        engine: Runs the calibrated model.
        lowered: The integer model, derived from it under the assignment.
        inputs: Inputs of one sample each.
        assignment: What is quantized.
        march: For the words of the remedies.
        observer: Is told of every sample.
    """
    units, not_compared = find_units(engine.model, assignment, lowered)
    walk = _Comparison(engine, lowered, assignment, units)
    count = 0
    for arrays in inputs:
        walk.run(arrays)
        count += 1
        if observer is not None:
            observer.advance(1)
    context = Context(engine.model, lowered, assignment, march, count)
    pairs = list(zip(units, walk.seen, strict=True))
    found = [_difference(context, unit, seen, count) for unit, seen in pairs]
    found.sort(key=_goodness)
    # In the order of the graph; where much is clipped, the worst come first.
    pairs.sort(key=lambda pair: min(pair[1].worst.clipping_db, REMARKABLE_CLIPPING_DB))
    return Forms(
        differences=tuple(found),
        not_compared=not_compared,
        diagnostics=tuple(
            item for unit, seen in pairs for item in form_diagnostics(context, unit, seen)
        ),
    )


def _goodness(item: FormDifference) -> tuple[bool, float]:
    return not item.differs_much, math.inf if item.sqnr_db is None else item.sqnr_db


def _difference(context: Context, unit: Unit, seen: Seen, samples: int) -> FormDifference:
    worst = seen.worst
    elements = max(worst.elements, 1)
    return FormDifference(
        node=unit.nodes[0].name,
        op_type=unit.nodes[0].op_type,
        fused=tuple(node.name for node in unit.nodes[1:]),
        samples=samples,
        max_steps=worst.largest,
        mean_steps=worst.total / elements,
        share_beyond_one=worst.beyond / elements,
        sqnr_db=None if math.isinf(worst.sqnr_db) else worst.sqnr_db,
        differs_much=worst.differs_much,
        reason=reason(context, unit, seen) if worst.differs_much else "",
    )


class _Comparison:
    """Walks the calibrated model and compares each unit as soon as its tensors exist."""

    def __init__(
        self, engine: Engine, lowered: Lowered, assignment: Assignment, units: tuple[Unit, ...]
    ) -> None:
        self._engine = engine
        self._assignment = assignment
        self._runner = IntegerRunner(lowered.model, provider=engine.provider)
        self._units = units
        self.seen = tuple(Seen(tallies=tuple(Tally() for _ in unit.targets)) for unit in units)
        self._due: dict[int, list[int]] = {}
        for index, unit in enumerate(units):
            self._due.setdefault(unit.position, []).append(index)
        self._drops = self._last_uses()

    def _last_uses(self) -> tuple[tuple[str, ...], ...]:
        """Return, for every step, the tensors that neither the walk nor a unit needs after it."""
        steps = self._engine.model.steps
        last: dict[str, int] = {}
        for index, step in enumerate(steps):
            last.update((name, index) for name in (*step.inputs, *step.outputs) if name)
        for unit in self._units:
            for name in unit.tensors:
                last[name] = max(last.get(name, 0), unit.position)
        drops: list[list[str]] = [[] for _ in steps]
        for name, index in last.items():
            drops[index].append(name)
        return tuple(tuple(names) for names in drops)

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> None:
        """Compare all units on one sample."""
        values = dict(inputs)
        for index, dropped in enumerate(self._drops):
            values.update(self._engine.walker.execute(index, values, self._assignment))
            for number in self._due.get(index, ()):
                self._compare(self._units[number], self.seen[number], values)
            for name in dropped:
                values.pop(name, None)

    def _compare(self, unit: Unit, seen: Seen, values: Mapping[str, NDArray[Any]]) -> None:
        made = {held.name: as_integers(values[name], held) for name, held in unit.inputs.items()}

        def watch(node: Node, outcome: Outcome) -> None:
            if node.name in unit.names:
                seen.note(outcome)

        for node in unit.steps:
            made.update(self._runner.execute(node, made, watch=watch))
        for target, tally in zip(unit.targets, seen.tallies, strict=True):
            front = None if target.point is None else values[target.point.input]
            _count(tally, target, made[target.held.name], values[target.tensor], front)


def as_integers(values: NDArray[Any], held: Tensor) -> NDArray[Any]:
    """Return the integers that stand for a tensor, in the layout of the integer model.

    Args:
        values: What the calibrated model holds: whole numbers of steps, if a point gave it.
        held: How the integer model holds it.
    """
    limit = 1 << (held.bits - 1)
    found = np.rint(values / _along_channels(held, values.ndim))
    np.nan_to_num(found, copy=False, nan=-limit, posinf=np.inf, neginf=-np.inf)
    # float32 has no 2^31 - 1, which no accumulator of a model comes near.
    kept = np.clip(found.astype(np.float64), -limit, limit - 1).astype(_TYPES[held.bits])
    return np.ascontiguousarray(kept.transpose(0, 2, 3, 1)) if held.last else kept


def _along_channels(held: Tensor, rank: int) -> NDArray[np.float32]:
    """Arrange the steps of a tensor so that they broadcast against it, channels first."""
    if held.step.size == 1:
        return held.step.reshape(())
    shape = [1] * rank
    shape[1 if rank == 4 else rank - 1] = held.step.size
    return held.step.reshape(shape)


def _count(
    tally: Tally,
    target: Target,
    made: NDArray[Any],
    values: NDArray[Any],
    front: NDArray[Any] | None,
) -> None:
    held = target.held
    given = made.transpose(0, 3, 1, 2) if held.last else made
    scale = _along_channels(held, values.ndim)
    if held.bits == 32:
        steps = given.astype(np.float64) - values / scale.astype(np.float64)
    else:
        wanted = as_integers(values, held)
        wanted = wanted.transpose(0, 3, 1, 2) if held.last else wanted
        # int16 differences fit float32.
        steps = np.subtract(given, wanted, dtype=np.float32)
    tally.add(steps, scale, values)
    if front is not None and held.bits != 32:
        tally.add_front(front, scale, steps, held.bits)
