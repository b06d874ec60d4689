"""Run assignments: walk the model step by step, then jump to the outputs.

The *walk* (`hbdebug.walk`) is bit-equal to the unoptimized model. The *jump* is one fully
optimized session from a cut of the graph to its outputs; it is taken as soon as nothing behind it
is quantized any more. The reference of a jump is the float baseline through the same jump, so an
assignment that changes nothing has exactly no error. With ``exact`` the jump is unoptimized too.

Evaluations run in a pool of threads; each session is single-threaded, and both ONNX Runtime and
NumPy release the interpreter lock while they compute.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from hbdebug.plan import (
    Costs,
    choose_boundaries,
    choose_cuts,
    crossing,
    cut_of,
    jump_profile,
    quantized_span,
    seed_steps,
    stale_steps,
    thin_cuts,
)
from hbdebug.slices import Runner, Slicer
from hbdebug.walk import FLOAT, Arrays, Profile, Walker

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.model import Assignment, QuantModel

T = TypeVar("T")

Measure: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], T]"
"""Measures outputs (name -> array) against a baseline."""

Judge: TypeAlias = "Callable[[Mapping[str, NDArray[Any]]], Measure[T]]"
"""Given the float baseline's outputs, returns the function that measures other outputs."""

DEFAULT_MEMORY = 1 << 30
"""Bytes that intermediate tensors and jump sessions may take together, unless the user says."""

# ONNX Runtime's full optimizations run the models measured 1.4 to 2.1 times faster than the walk.
_JUMP_RATIO = 0.65
_JUMP_OVERHEAD = 30e-6  # seconds for any call of a session
_CREATE_PER_STEP = 150e-6  # seconds of making a session, measured on the text recognizer
_CREATE_PER_BYTE = 2e-9  # seconds per byte of its weights, likewise
_COMPARE_PER_BYTE = 1e-10  # seconds to compare two arrays, per byte


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation(Generic[T]):
    """What one assignment gave on one sample.

    Attributes:
        sample: Index of the sample in the stream.
        assignment: Index of the assignment in the list that was given.
        value: What the judge's function returned.
        cost: Planned seconds, for progress bars; comparable only within a run.
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
        cost: Planned seconds on one sample.
    """

    index: int
    assignment: Assignment
    stale: tuple[int, ...]
    seeds: frozenset[int]
    first: int
    cut: int
    cost: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Schedule:
    """Where the graph is cut for a list of assignments.

    Attributes:
        cuts: Positions from which a jump exists, the end of the graph last.
        boundaries: Positions at which the walk forgets; a superset of the cuts.
        seconds_per_sample: Planned computing time for all assignments on one sample, on one core.
        seconds_once: Planned computing time that does not depend on the number of samples.
        variants: The assignments with their plans.
    """

    cuts: tuple[int, ...]
    boundaries: tuple[int, ...]
    seconds_per_sample: float
    seconds_once: float
    variants: tuple[Variant, ...]


class Engine:
    """Runs one model under assignments.

    Args:
        model: The float graph and its points.
        jobs: Evaluations that run side by side; None for one per core.
        exact: Whether jumps, too, run without optimizations that change the summation order.
        provider: ONNX Runtime provider, see `hbdebug.slices.PROVIDERS`.
        memory: Bytes that intermediate tensors and jump sessions may take together.

    Raises:
        UsageError: There is no such provider here.
    """

    def __init__(
        self,
        model: QuantModel,
        *,
        jobs: int | None = None,
        exact: bool = False,
        provider: str = "cpu",
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        self.model = model
        self.jobs = jobs or available_cores()
        self.exact = exact
        self.memory = memory
        self.provider = provider
        self._slicer = Slicer(model, provider=provider)
        self._fixed_shapes = all(None not in spec.shape for spec in model.inputs)
        self.walker = Walker(model, self._slicer)
        self.crossing = crossing(model)

    def forward(self, inputs: Mapping[str, NDArray[Any]], assignment: Assignment = FLOAT) -> Arrays:
        """Walk the whole model and return its outputs by name."""
        return self.walker.forward(inputs, assignment)

    def profile(self, inputs: Mapping[str, NDArray[Any]]) -> Profile:
        """Walk the float model once, taking times; later calls return the first result."""
        return self.walker.profile(inputs)

    def whole(
        self,
        samples: Iterable[Mapping[str, NDArray[Any]]],
        assignments: Sequence[Assignment],
        judge: Judge[T],
    ) -> Iterator[Evaluation[T]]:
        """Measure assignments by walking the whole model, against the float baseline's walk.

        Args:
            samples: Inputs of one sample each.
            assignments: What to measure.
            judge: Given the float outputs, returns the function that measures others.

        Yields:
            One evaluation for each sample and assignment, in that order.
        """

        def reference(inputs: Mapping[str, NDArray[Any]]) -> Measure[T]:
            return judge(self.forward(inputs))

        def evaluate(
            inputs: Mapping[str, NDArray[Any]], baseline: Future[Measure[T]], item: Assignment
        ) -> T:
            outputs = self.forward(inputs, item)
            return baseline.result()(outputs)

        pool = ThreadPoolExecutor(self.jobs)
        in_flight: list[list[Future[T]]] = []
        finished = 0
        try:
            for inputs in samples:
                # The baseline goes first in the queue, so that nobody waits for it in vain.
                baseline = pool.submit(reference, inputs)
                in_flight.append(
                    [pool.submit(evaluate, inputs, baseline, item) for item in assignments]
                )
                if len(in_flight) > 1:
                    yield from _evaluations(finished, in_flight.pop(0))
                    finished += 1
            for futures in in_flight:
                yield from _evaluations(finished, futures)
                finished += 1
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def schedule(self, assignments: Sequence[Assignment], samples: int) -> Schedule:
        """Plan where to cut the graph for these assignments.

        Args:
            assignments: What will be measured.
            samples: Number of samples it will be measured on.

        Raises:
            RuntimeError: `profile` has not run yet; its times are what the plan is made of.
        """
        profile = self.walker.measured_profile
        seeds = [seed_steps(self.model, assignment) for assignment in assignments]
        spans = [
            quantized_span(self.model, assignment, own)
            for assignment, own in zip(assignments, seeds, strict=True)
        ]
        costs = self._costs(profile)
        cuts = choose_cuts(costs, spans, samples)
        held = {cut: self._constant_bytes[cut] for cut in cuts}
        cuts = thin_cuts(cuts, held, self.memory // 2)
        # Two stretches are alive at a time: one is evaluated while the next is walked.
        boundaries = choose_boundaries(cuts, profile.made_bytes, self.memory // 4)
        variants = tuple(
            self._variant(index, assignment, seeds[index], spans[index], cuts, costs)
            for index, assignment in enumerate(assignments)
        )
        references = sum(costs.walk) + sum(costs.jump[cut] for cut in cuts)
        return Schedule(
            cuts=cuts,
            boundaries=boundaries,
            seconds_per_sample=references + sum(variant.cost for variant in variants),
            seconds_once=sum(costs.create[cut] for cut in cuts[:-1]),
            variants=variants,
        )

    def _variant(
        self,
        index: int,
        assignment: Assignment,
        seeds: frozenset[int],
        span: tuple[int, int],
        cuts: tuple[int, ...],
        costs: Costs,
    ) -> Variant:
        cut = cut_of(cuts, span[1])
        stale = stale_steps(self.model, seeds, cut)
        walked = sum(costs.walk[step] for step in stale)
        return Variant(
            index=index,
            assignment=assignment,
            stale=stale,
            seeds=seeds,
            first=span[0],
            cut=cut,
            cost=walked + costs.jump[cut] + costs.compare[cut],
        )

    def evaluate(
        self,
        samples: Iterable[Mapping[str, NDArray[Any]]],
        schedule: Schedule,
        judge: Judge[T],
        *,
        done: Container[tuple[int, int]] = (),
    ) -> Iterator[Evaluation[T]]:
        """Measure the assignments of a schedule, sample by sample.

        Args:
            samples: Inputs of one sample each.
            schedule: From `schedule`.
            judge: Given the float outputs, returns the function that measures others.
            done: Pairs (sample index, assignment index) to leave out.

        Yields:
            Evaluations, stretch by stretch of the graph and sample by sample.
        """
        pool = ThreadPoolExecutor(self.jobs)
        jumps = _Jumps(self, schedule, pool)
        in_flight: list[list[Future[Evaluation[T]]]] = []
        try:
            for number, inputs in enumerate(samples):
                todo = [item for item in schedule.variants if (number, item.index) not in done]
                if not todo:
                    continue
                sample = _SampleRun(self, schedule, jumps, pool, judge, number)
                for futures in sample.stretches(inputs, todo):
                    in_flight.append(futures)
                    if len(in_flight) > 1:
                        yield from (future.result() for future in in_flight.pop(0))
            for futures in in_flight:
                yield from (future.result() for future in futures)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def suffix(self, cut: int) -> Runner:
        """Make the session of the jump from a cut; needs `profile` to have run."""
        return self._slicer.suffix(
            cut,
            sorted(self.crossing[cut]),
            self.walker.measured_profile.specs,
            optimized=not self.exact,
            fixed_shapes=self._fixed_shapes,
        )

    def _costs(self, profile: Profile) -> Costs:
        ratio = 1.0 if self.exact else _JUMP_RATIO
        jump = jump_profile(profile.seconds, ratio, _JUMP_OVERHEAD)
        steps = len(profile.seconds)
        create = [
            (steps - position) * _CREATE_PER_STEP + held * _CREATE_PER_BYTE
            for position, held in enumerate(self._constant_bytes)
        ]
        compare = [
            sum(profile.bytes_of(name) for name in names) * _COMPARE_PER_BYTE
            for names in self.crossing
        ]
        return Costs(walk=profile.seconds, jump=jump.tolist(), create=create, compare=compare)

    @cached_property
    def _constant_bytes(self) -> tuple[int, ...]:
        """Bytes of the constants that the graph reads from each position on."""
        constants = self.model.constants
        totals = [0]
        seen: set[str] = set()
        for step in reversed(self.model.steps):
            new = (constants.keys() & set(step.inputs)) - seen
            seen |= new
            totals.append(totals[-1] + sum(constants[name].nbytes for name in new))
        return tuple(reversed(totals))


class _Jumps:
    """The sessions of the jumps, made in the pool shortly before they are needed."""

    def __init__(self, engine: Engine, schedule: Schedule, pool: ThreadPoolExecutor) -> None:
        self._engine = engine
        self._pool = pool
        self._cuts = [cut for cut in schedule.cuts if cut < len(engine.model.steps)]
        self._futures: dict[int, Future[Runner]] = {}

    def prepare(self, position: int) -> None:
        """Have the next two sessions at or behind a position made."""
        for cut in [cut for cut in self._cuts if cut >= position][:2]:
            if cut not in self._futures:
                self._futures[cut] = self._pool.submit(self._engine.suffix, cut)

    def __call__(
        self, cut: int, values: Mapping[str, NDArray[Any]], names: Sequence[str]
    ) -> Arrays:
        """Return the outputs ``names`` out of the tensors that cross at a cut."""
        outputs = {name: values[name] for name in names if name in values}
        if cut in self._futures:
            runner = self._futures[cut].result()
            outputs.update(zip(runner.outputs, runner.run(values), strict=True))
        return outputs


class _SampleRun(Generic[T]):
    """All variants on one sample, stretch by stretch.

    A stretch lies between two boundaries. Its float tensors are walked first; then every variant
    that is quantized inside it goes on from them with what it changed, its *overlay*.
    """

    def __init__(
        self,
        engine: Engine,
        schedule: Schedule,
        jumps: _Jumps,
        pool: ThreadPoolExecutor,
        judge: Judge[T],
        number: int,
    ) -> None:
        self._engine = engine
        self._walker = engine.walker
        self._boundaries = schedule.boundaries
        self._jumps = jumps
        self._pool = pool
        self._judge = judge
        self._number = number
        self._names = [spec.name for spec in engine.model.outputs]

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
            self._jumps.prepare(stop)
            for index in range(start, stop):
                base.update(self._walker.execute(index, base, FLOAT))
            while waiting and waiting[-1].first < stop:
                going.append((waiting.pop(), {}))
            # Those that go on come first: the next stretch can not be walked before they arrive.
            carried = [
                (variant, self._pool.submit(self._advance, variant, overlay, base, (start, stop)))
                for variant, overlay in going
                if variant.cut > stop
            ]
            finishing = [item for item in going if item[0].cut == stop]
            yield self._submit(base, (start, stop), finishing)
            if stop >= last:
                break
            going = [(variant, future.result()) for variant, future in carried]
            base = {name: base[name] for name in self._engine.crossing[stop]}
            start = stop

    def _submit(
        self, base: Arrays, stretch: tuple[int, int], finishing: Sequence[tuple[Variant, Arrays]]
    ) -> list[Future[Evaluation[T]]]:
        if not finishing:
            return []
        # The reference goes first in the queue, so that nobody waits for it in vain.
        reference = self._pool.submit(self._reference, base, stretch[1])
        return [
            self._pool.submit(self._finish, variant, overlay, base, stretch, reference)
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
        reference: Future[tuple[Arrays, Measure[T]]],
    ) -> Evaluation[T]:
        changed = self._advance(variant, overlay, base, stretch)
        outputs, measure = reference.result()
        if changed:
            outputs = self._jumps(variant.cut, {**base, **changed}, self._names)
        return Evaluation(
            sample=self._number,
            assignment=variant.index,
            value=measure(outputs),
            cost=variant.cost,
        )

    def _advance(
        self, variant: Variant, overlay: Arrays, base: Arrays, stretch: tuple[int, int]
    ) -> Arrays:
        """Walk what a variant makes stale in a stretch.

        Returns:
            What crosses at the stretch's end and differs from the float baseline in some bit.
        """
        start, stop = stretch
        values = {**base, **overlay}
        changed = dict(overlay)
        steps = self._engine.model.steps
        for index in variant.stale[bisect_left(variant.stale, start) :]:
            if index >= stop:
                break
            if index in variant.seeds or not changed.keys().isdisjoint(steps[index].inputs):
                made = self._walker.execute(index, values, variant.assignment)
                values.update(made)
                changed.update(made)
        kept = self._engine.crossing[stop]
        return {
            name: array
            for name, array in changed.items()
            if name in kept and not same_bits(array, base[name])
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


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _evaluations(sample: int, futures: Sequence[Future[T]]) -> Iterator[Evaluation[T]]:
    for index, future in enumerate(futures):
        yield Evaluation(sample=sample, assignment=index, value=future.result())
