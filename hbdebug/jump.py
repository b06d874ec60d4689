"""Walk, then jump: evaluate assignments from the first quantized step to the outputs.

A sample is walked in float once, stretch by stretch. Every assignment goes on from the float
tensors with what it changed, its *overlay*, up to the cut from which it jumps to the outputs.
"""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from hbdebug.errors import ModelError, first_line
from hbdebug.walk import FLOAT, NOTHING, Arrays, Walker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from hbdebug.integer_walk import IntegerWalk
    from hbdebug.model import Assignment
    from hbdebug.slices import Runner

T = TypeVar("T")

Measure: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], T]"
"""Measures outputs (name -> array) against a baseline."""

Judge: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], Measure[T]]"
"""Given the float baseline's outputs, returns the function that measures other outputs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation(Generic[T]):
    """What one assignment gave on one sample.

    Attributes:
        sample: Index of the sample in the stream.
        assignment: Index of the assignment in the list that was given.
        value: What the judge's function returned.
        cost: Seconds that were expected, on one core, for progress bars.
    """

    sample: int
    assignment: int
    value: T
    cost: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Variant:
    """One assignment with its plan.

    Attributes:
        index: Index in the list that was given.
        assignment: What is quantized.
        stale: Indices of the steps that must be walked anew, in order.
        seeds: Those of them that differ on their own account: quantized points, and nodes that
            read a quantized weight or around a point. The others are walked only when what they
            read did change.
        first: Position at which its walk starts.
        cut: Position from which it jumps.
        cost: Seconds that it is expected to take on one sample, on one core.
        integers: Runs what the chip computes in integers; None at calibrated fidelity.
    """

    index: int
    assignment: Assignment
    stale: tuple[int, ...]
    seeds: frozenset[int]
    first: int
    cut: int
    cost: float
    integers: IntegerWalk | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Schedule:
    """Where the graph is cut for a list of assignments.

    Attributes:
        cuts: Positions from which a jump exists, the end of the graph last.
        boundaries: Positions at which the walk forgets; a superset of the cuts.
        seconds_per_sample: Expected time for all assignments on one sample, on one core.
        seconds_once: Planned time that does not depend on the number of samples.
        variants: The assignments with their plans.
        rounds: The same, shared out among walks of a sample; one unless memory is short.
        threads: Number of evaluations that may run side by side.
        shortfall: Why the memory budget cannot be kept, in words; empty when it can.
    """

    cuts: tuple[int, ...]
    boundaries: tuple[int, ...]
    seconds_per_sample: float
    seconds_once: float
    variants: tuple[Variant, ...]
    rounds: tuple[tuple[Variant, ...], ...]
    threads: int
    shortfall: str = ""


class Jumps:
    """The sessions of the jumps of one kind, each made once.

    Args:
        make: Makes the session from a cut to the outputs.
        cuts: Positions from which there are jumps, the end of the graph last.
    """

    def __init__(self, make: Callable[[int], Runner], cuts: Sequence[int]) -> None:
        self._make = make
        self._end = cuts[-1]
        self._locks = {cut: Lock() for cut in cuts}
        self._runners: dict[int, Runner] = {}

    def prepare(self, position: int, pool: Executor) -> None:
        """Have the next two sessions at or behind a position made in the background."""
        for cut in [cut for cut in self._locks if position <= cut < self._end][:2]:
            if cut not in self._runners:
                pool.submit(self._runner, cut)

    def __call__(
        self, cut: int, values: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> Arrays:
        """Return the outputs ``names`` out of the tensors that cross at a cut.

        Raises:
            ModelError: ONNX Runtime can not run the graph behind the cut on these tensors.
        """
        outputs = {name: values[name] for name in names if name in values}
        # Behind the last output there may be nodes that nothing reads.
        if cut < self._end and len(outputs) < len(names):
            runner = self._runner(cut)
            try:
                outputs.update(zip(runner.outputs, runner.run(values), strict=True))
            except Exception as error:
                raise ModelError(
                    f"ONNX Runtime failed: {first_line(error)}",
                    where=f"the graph from step {cut} on",
                ) from error
        return outputs

    def _runner(self, cut: int) -> Runner:
        with self._locks[cut]:
            if cut not in self._runners:
                self._runners[cut] = self._make(cut)
            return self._runners[cut]


class _Once(Generic[T]):
    """A value that is made when it is first asked for."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: list[T] = []

    def get(self, make: Callable[[], T]) -> T:
        """Return the value."""
        with self._lock:
            if not self._values:
                self._values.append(make())
            return self._values[0]


class SampleRun(Generic[T]):
    """All variants on one sample, stretch by stretch.

    A stretch lies between two boundaries. Its float tensors are walked first; then every variant
    that is quantized inside it goes on from them.

    Args:
        walker: Runs single steps.
        crossing: For every position, the tensors that cross there.
        boundaries: Positions at which the walk forgets.
        jumps: From the cuts to the outputs.
        exact_jumps: The same without optimizations, for faint measurements.
        pool: Where evaluations run.
        judge: Given the float outputs, returns the function that measures others.
        faint: Says of a measurement that it must be taken through an exact jump.
        number: Index of the sample.
    """

    def __init__(
        self,
        *,
        walker: Walker,
        crossing: Sequence[frozenset[str]],
        boundaries: Sequence[int],
        jumps: Jumps,
        exact_jumps: Jumps,
        pool: Executor,
        judge: Judge[T],
        faint: Callable[[T], bool],
        number: int,
    ) -> None:
        self._walker = walker
        self._crossing = crossing
        self._boundaries = boundaries
        self._jumps = jumps
        self._exact_jumps = exact_jumps
        self._pool = pool
        self._judge = judge
        self._faint = faint
        self._number = number
        self._names = [spec.name for spec in walker.model.outputs]

    def stretches(
        self, inputs: Mapping[str, NDArray[Any]], variants: Sequence[Variant]
    ) -> Iterator[list[Future[Evaluation[T]]]]:
        """Yield, for each stretch, the evaluations that finish in it."""
        last = max(variant.cut for variant in variants)
        base: Arrays = dict(inputs)
        going: list[tuple[Variant, Arrays]] = []
        waiting = sorted(variants, key=lambda variant: variant.first, reverse=True)
        start = 0
        for stop in self._boundaries:
            self._jumps.prepare(stop, self._pool)
            for index in range(start, stop):
                base.update(self._walker.execute(index, base, FLOAT))
            while waiting and waiting[-1].first < stop:
                going.append((waiting.pop(), {}))
            # Those that go on come first: the next stretch can not be walked before they arrive.
            carried = [
                (variant, self._pool.submit(self._carry, variant, overlay, base, (start, stop)))
                for variant, overlay in going
                if variant.cut > stop
            ]
            finishing = [item for item in going if item[0].cut == stop]
            yield self._submit(base, (start, stop), finishing)
            if stop >= last:
                break
            going = [(variant, future.result()) for variant, future in carried]
            base = {name: base[name] for name in self._crossing[stop]}
            start = stop

    def _submit(
        self, base: Arrays, stretch: tuple[int, int], finishing: Sequence[tuple[Variant, Arrays]]
    ) -> list[Future[Evaluation[T]]]:
        if not finishing:
            return []
        # The reference goes first in the queue, so that nobody waits for it in vain.
        reference = self._pool.submit(self._reference, base, stretch[1])
        # It goes with the last of these evaluations: a large output's reference is large, too.
        exact: _Once[Measure[T]] = _Once()
        return [
            self._pool.submit(self._finish, variant, overlay, base, stretch, (reference, exact))
            for variant, overlay in finishing
        ]

    def _reference(self, base: Arrays, cut: int) -> tuple[Arrays, Measure[T]]:
        outputs = self._jumps(cut, base, self._names)
        return outputs, self._judge(outputs)

    def _finish(
        self,
        variant: Variant,
        overlay: Arrays,
        base: Arrays,
        stretch: tuple[int, int],
        references: tuple[Future[tuple[Arrays, Measure[T]]], _Once[Measure[T]]],
    ) -> Evaluation[T]:
        reference, exact = references
        with self._evaluating(variant):
            changed = self._advance(variant, overlay, base, stretch)
            outputs, measure = reference.result()
            if changed:
                outputs = self._jumps(variant.cut, {**base, **changed}, self._names)
            value = measure(outputs)
            if changed and self._faint(value):
                value = self._measure_exactly(variant.cut, base, changed, exact)
        return Evaluation(
            sample=self._number, assignment=variant.index, value=value, cost=variant.cost
        )

    def _measure_exactly(
        self, cut: int, base: Arrays, changed: Arrays, reference: _Once[Measure[T]]
    ) -> T:
        """Measure through the unoptimized jump, against the float baseline through the same."""
        measure = reference.get(lambda: self._judge(self._exact_jumps(cut, base, self._names)))
        return measure(self._exact_jumps(cut, {**base, **changed}, self._names))

    def _carry(
        self, variant: Variant, overlay: Arrays, base: Arrays, stretch: tuple[int, int]
    ) -> Arrays:
        with self._evaluating(variant):
            return self._advance(variant, overlay, base, stretch)

    @contextmanager
    def _evaluating(self, variant: Variant) -> Iterator[None]:
        """Tell who watches which evaluation runs."""
        watch = self._walker.watch
        if watch is None:
            yield
            return
        watch.evaluating(variant.index)
        yield
        watch.evaluating(NOTHING)

    def _advance(
        self, variant: Variant, overlay: Arrays, base: Arrays, stretch: tuple[int, int]
    ) -> Arrays:
        """Walk what a variant makes stale in a stretch.

        Returns:
            What crosses at the stretch's end and differs from the float baseline in some bit, and
            what integers are read behind it.
        """
        start, stop = stretch
        values = {**base, **overlay}
        changed = dict(overlay)
        steps = self._walker.model.steps
        integers = variant.integers
        # What the chip quantizes of an assignment may be less, see `hbdebug.lowering.placement`.
        assignment = variant.assignment if integers is None else integers.program.assignment
        drops = self._walker.drops(assignment) if integers is None else None
        for index in variant.stale[bisect_left(variant.stale, start) :]:
            if index >= stop:
                break
            if integers is not None and index in integers.program.actions:
                made = integers.execute(index, values)
            elif index in variant.seeds or not changed.keys().isdisjoint(steps[index].inputs):
                made = self._walker.execute(index, values, assignment)
            else:
                continue
            values.update(made)
            changed.update(made)
            for name in () if drops is None else drops[index]:
                values.pop(name, None)
                changed.pop(name, None)
        kept = self._crossing[stop]
        alive = frozenset() if integers is None else integers.alive(stop)
        return {
            name: array
            for name, array in changed.items()
            if (name in kept and not same_bits(array, base[name]))
            or (name in alive and name not in base)
        }


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays are equal bit for bit; NaN equals the same NaN, -0.0 is not +0.0."""
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    left = np.ascontiguousarray(a).reshape(-1).view(np.uint8)
    right = np.ascontiguousarray(b).reshape(-1).view(np.uint8)
    width = 8 if left.size % 8 == 0 else 1
    dtype = np.uint64 if width == 8 else np.uint8
    return bool(np.array_equal(left.view(dtype), right.view(dtype)))
