"""Run assignments: walk the model step by step, then jump to the outputs.

The *walk* (`hbdebug.walk`) is bit-equal to the unoptimized model. The *jump* is one fully
optimized session from a cut of the graph to its outputs; it is taken as soon as nothing behind it
is quantized any more. The reference of a jump is the float baseline through the same jump, so an
assignment that changes nothing has exactly no error. With ``exact`` the jump is unoptimized too;
without, what proves too faint for an optimized jump is measured again through an unoptimized one.

Evaluations run in a pool of threads; each session is single-threaded, and both ONNX Runtime and
NumPy release the interpreter lock while they compute.
"""

from __future__ import annotations

import copy
import os
from bisect import bisect_left, bisect_right
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from hbdebug.costing import Costing
from hbdebug.jump import Evaluation, Jumps, SampleRun, Schedule, T, Variant
from hbdebug.model import Assignment
from hbdebug.plan import (
    Costs,
    choose_boundaries,
    choose_cuts,
    crossing,
    cut_of,
    quantized_span,
    seed_steps,
    split_rounds,
    stale_steps,
    thin_cuts,
)
from hbdebug.slices import Slicer
from hbdebug.threads import one_blas_thread
from hbdebug.trail import Trail, Trails
from hbdebug.walk import FLOAT, Walker

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.integer_walk import IntegerWalk
    from hbdebug.jump import Judge, Measure
    from hbdebug.lowering.program import Fallback, ProgramWriter
    from hbdebug.model import QuantModel
    from hbdebug.slices import Runner
    from hbdebug.walk import Arrays, Profile, Watch

Fidelity: TypeAlias = Literal["calibrated", "integer"]
"""How what is quantized computes: fake-quantized in float32, or in the chip's integers."""

DEFAULT_MEMORY = 1 << 30
"""Bytes that intermediate tensors and sessions' constants may take together, unless the user says.

A quarter each is for the sessions of the walk, for those of the jumps, and for those of unoptimized
jumps, where they are needed; or, in a search in integers, for trails. An eighth each is for the
float tensors of two stretches, and for what evaluations carry over and work on.
"""

# Share of the work that threads do one after the other: Python runs one at a time, and all wait for
# the same memory.
_SERIAL = 0.35
# More samples would pay for still more jumps, little time for a session's memory each.
_SAMPLES_PLANNED = 8
_MARKS = 16  # parts of a walk in integers, between which it can be taken up again


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Plan:
    """What an assignment changes: its seeds, its span, and its integers if they are asked for."""

    seeds: frozenset[int]
    span: tuple[int, int]
    writer: ProgramWriter | None


class Engine:
    """Runs one model under assignments.

    Args:
        model: The float graph and its points.
        jobs: Evaluations that run side by side; None for one per core.
        exact: Whether jumps, too, run without optimizations that change the summation order.
        provider: ONNX Runtime provider, see `hbdebug.slices.PROVIDERS`.
        memory: Bytes that intermediate tensors and the constants in sessions may take together.
        fidelity: ``calibrated`` fake-quantizes in float32, as the calibrated model does;
            ``integer`` runs what is quantized in the chip's integers.
        march: Whose integers.
        watch: Is told what is about to run; then one thing runs after the other, in the thread
            that asks for it.

    Attributes:
        failures: Index of an assignment -> why its evaluation failed, where that does not end the
            run; see `hbdebug.isolation`.

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
        fidelity: Fidelity = "calibrated",
        march: str = "bayes-e",
        watch: Watch | None = None,
    ) -> None:
        self.model = model
        self.jobs = jobs or available_cores()
        self.exact = exact
        self.memory = memory
        self.provider = provider
        self.fidelity = fidelity
        self.march = march
        self._derived: dict[Hashable, Any] = {}
        self._trails = Trails(memory // 4)
        self._slicer = Slicer(model, provider=provider)
        self._fixed_shapes = all(None not in spec.shape for spec in model.inputs)
        self.walker = Walker(model, self._slicer, kept=memory // 4)
        self.walker.watch = watch
        self.failures: Mapping[int, str] = {}
        self._crossings: dict[Fidelity, tuple[frozenset[str], ...]] = {}

    def at(self, fidelity: Fidelity) -> Engine:
        """Return an engine of another fidelity that shares everything else with this one."""
        if fidelity == self.fidelity:
            return self
        other = copy.copy(self)
        other.fidelity = fidelity
        return other

    def close(self) -> None:
        """Give back what outlives a run; nothing here."""

    def forward(self, inputs: Mapping[str, NDArray[Any]], assignment: Assignment = FLOAT) -> Arrays:
        """Walk the whole model and return its outputs by name."""
        walk = self._walk_in_integers(assignment)
        return self.walker.forward(inputs, assignment) if walk is None else walk.forward(inputs)

    @property
    def crossing(self) -> tuple[frozenset[str], ...]:
        """For every position, the tensors that cross there; at integer fidelity after `profile`."""
        if self.fidelity not in self._crossings:
            self._crossings[self.fidelity] = crossing(self.model, self._read_around())
        return self._crossings[self.fidelity]

    def _read_around(self) -> frozenset[tuple[str, int]]:
        """Return the inputs that are read in front of points, whatever the assignment."""
        if self.fidelity == "calibrated":
            return frozenset()
        from hbdebug.lowering.placement import on_chip  # noqa: PLC0415 - as all that lowers
        from hbdebug.lowering.writer import GraphWriter  # noqa: PLC0415

        writer = GraphWriter(self.shapes, self.march, self._derived)
        return on_chip(self.model, Assignment.as_calibrated(self.model), writer).bypassed

    def _walk_in_integers(self, assignment: Assignment) -> IntegerWalk | None:
        """Return what walks the whole model in integers; None where the float walk does."""
        writer = self._program_writer(assignment, seed_steps(self.model, assignment))
        return None if writer is None else self._integer_walk(writer, len(self.model.steps))

    def _run_of(
        self, assignment: Assignment, *, leaves: bool
    ) -> Callable[[int, Mapping[str, NDArray[Any]]], Arrays]:
        """Return the function that runs the whole model on a sample of some number.

        Args:
            assignment: What is quantized.
            leaves: Whether its walk leaves a trail for the next.
        """
        walk = self._walk_in_integers(assignment)

        def run(number: int, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
            if walk is None:
                return self.walker.forward(inputs, assignment)
            trail = self._trails.of(number, inputs)
            left = Trail(program=walk.program, inputs=inputs) if leaves else None
            outputs = walk.forward(inputs, trail=trail, leaving=left, marks=self._marks)
            if left is not None:
                self._trails.put(number, left)
            return outputs

        return run

    @cached_property
    def _marks(self) -> frozenset[int]:
        """Positions at which a trail is left: about as much work lies between any two."""
        walked = list(accumulate(self._costing.costs.walk))
        shares = (walked[-1] * share / _MARKS for share in range(1, _MARKS))
        return frozenset(bisect_left(walked, share) + 1 for share in shares)

    def fallbacks(self, assignment: Assignment) -> tuple[Fallback, ...]:
        """Return what an assignment quantizes and has no integer form here; needs `profile`.

        At calibrated fidelity nothing needs one.

        Raises:
            UnsupportedError: The march's integers are not known.
        """
        writer = self._program_writer(assignment, seed_steps(self.model, assignment))
        return () if writer is None else writer.program(()).fallbacks

    def _program_writer(
        self, assignment: Assignment, seeds: frozenset[int]
    ) -> ProgramWriter | None:
        """Derive what an assignment turns into integers; None where that is nothing."""
        if self.fidelity == "calibrated" or not assignment:
            return None
        # Half of the package is for integers; what does not use them does not load it.
        from hbdebug.lowering.program import write_program  # noqa: PLC0415

        return write_program(
            self.model,
            assignment,
            seeds=seeds,
            shapes=self.shapes,
            march=self.march,
            derived=self._derived,
        )

    def _integer_walk(self, writer: ProgramWriter, stop: int) -> IntegerWalk:
        from hbdebug.integer_walk import IntegerWalk  # noqa: PLC0415

        program = writer.program(self.crossing[stop])
        return IntegerWalk(self.walker, program, provider=self.provider)

    @cached_property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of the model's tensors by name; needs `profile`."""
        specs = self.walker.measured_profile.specs
        return {name: shape for name, (_, shape) in specs.items()}

    def profile(self, inputs: Mapping[str, NDArray[Any]]) -> Profile:
        """Walk the float model once, taking times; later calls return the first result."""
        return self.walker.profile(inputs)

    def whole(
        self,
        samples: Iterable[Mapping[str, NDArray[Any]]],
        assignments: Sequence[Assignment],
        judge: Judge[T],
        *,
        first: int = 0,
    ) -> Iterator[Evaluation[T]]:
        """Measure assignments by walking the whole model, against the float baseline's walk.

        Args:
            samples: Inputs of one sample each.
            assignments: What to measure.
            judge: Given the float outputs, returns the function that measures others.
            first: Index of the first sample.

        Yields:
            One evaluation for each sample and assignment, in that order.
        """

        def reference(inputs: Mapping[str, NDArray[Any]]) -> Measure[T]:
            return judge(self.walker.baseline(inputs))

        def evaluate(
            number: int,
            inputs: Mapping[str, NDArray[Any]],
            baseline: Future[Measure[T]],
            run: Callable[[int, Mapping[str, NDArray[Any]]], Arrays],
        ) -> T:
            outputs = run(number, inputs)
            return baseline.result()(outputs)

        samples = self._profiled_by_first(samples)
        in_flight: list[list[Future[T]]] = []
        finished = first
        with self._pool(self._walks_at_once()) as pool:
            last = len(assignments) - 1
            jobs = [
                pool.submit(self._run_of, assignment, leaves=index == last)
                for index, assignment in enumerate(assignments)
            ]
            runs = [job.result() for job in jobs]
            for number, inputs in enumerate(samples, first):
                # The baseline goes first in the queue, so that nobody waits for it in vain.
                baseline = pool.submit(reference, inputs)
                in_flight.append(
                    [pool.submit(evaluate, number, inputs, baseline, run) for run in runs]
                )
                if len(in_flight) > 1:
                    yield from _evaluations(finished, in_flight.pop(0))
                    finished += 1
            for futures in in_flight:
                yield from _evaluations(finished, futures)
                finished += 1

    def _profiled_by_first(
        self, samples: Iterable[Mapping[str, NDArray[Any]]]
    ) -> Iterator[Mapping[str, NDArray[Any]]]:
        """Take the profile before anything runs beside it; return all samples."""
        rest = iter(samples)
        ahead = list(islice(rest, 1))
        for inputs in ahead:
            self.profile(inputs)
        return chain(ahead, rest)

    def _walks_at_once(self) -> int:
        """Return how many walks of the whole model fit the budget side by side; at least one."""
        if not self.walker.is_profiled:
            return self.jobs
        together, each = self._needs((), ())
        return max(1, min(self.jobs, self.memory // max(1, together + each)))

    def schedule(
        self,
        assignments: Sequence[Assignment],
        samples: int,
        *,
        cuts: tuple[int, ...] | None = None,
    ) -> Schedule:
        """Plan where to cut the graph for these assignments.

        Args:
            assignments: What will be measured.
            samples: Number of samples it will be measured on.
            cuts: Where to cut; None chooses.

        Raises:
            RuntimeError: `profile` has not run yet; its times are what the plan is made of.
        """
        profile = self.walker.measured_profile
        plans = [self._plan(assignment) for assignment in assignments]
        spans = [plan.span for plan in plans]
        costs = self._costing.costs
        if cuts is None:
            cuts = choose_cuts(costs, spans, min(samples, _SAMPLES_PLANNED))
            held = {cut: self._costing.session_bytes[cut] for cut in cuts}
            cuts = thin_cuts(cuts, held, self.memory // 4)
        # Two stretches are alive at a time: one is evaluated while the next is walked.
        boundaries = choose_boundaries(cuts, profile.made_bytes, self.memory // 16)
        variants = tuple(
            self._variant(index, assignment, plan, cuts, costs)
            for index, (assignment, plan) in enumerate(zip(assignments, plans, strict=True))
        )
        carried = [self._carried(variant, boundaries) for variant in variants]
        rounds = split_rounds(carried, self.memory // 8)
        together, each = self._needs(boundaries, carried)
        references = self._costing.pace * (sum(costs.walk) + sum(costs.jump[cut] for cut in cuts))
        references += len(cuts) * self._costing.reference_seconds
        return Schedule(
            cuts=cuts,
            boundaries=boundaries,
            seconds_per_sample=references + sum(variant.cost for variant in variants),
            seconds_once=sum(costs.create[cut] for cut in cuts[:-1]),
            variants=variants,
            rounds=tuple(tuple(variants[index] for index in chosen) for chosen in rounds),
            threads=max(1, min(self.jobs, (self.memory - together) // max(1, each))),
            shortfall=self._shortfall(together, each),
        )

    def _carried(self, variant: Variant, boundaries: Sequence[int]) -> dict[int, int]:
        """Return the bytes that an evaluation carries over each boundary on its way to its cut."""
        profile = self.walker.measured_profile
        between = boundaries[
            bisect_right(boundaries, variant.first) : bisect_left(boundaries, variant.cut)
        ]
        if not between:
            return {}
        made = {name: index for index in variant.stale for name in self.model.steps[index].outputs}
        return {
            position: sum(
                profile.bytes_of(name)
                for name in self.crossing[position]
                if made.get(name, position) < position
            )
            for position in between
        }

    def _needs(
        self, boundaries: Sequence[int], carried: Sequence[Mapping[int, int]]
    ) -> tuple[int, int]:
        """Return the bytes that evaluations need together, and each one that runs beside others.

        They follow from the largest tensors; ``benchmarks/memory.py`` compares with what is used.
        """
        profile = self.walker.measured_profile
        stretch = max(
            (
                sum(profile.made_bytes[start:stop])
                for start, stop in zip((0, *boundaries), boundaries, strict=False)
            ),
            default=0,
        )
        crossing_bytes = max(
            sum(profile.bytes_of(name) for name in names)
            for names in self.at("calibrated").crossing
        )
        alone = max((max(each.values(), default=0) for each in carried), default=0)
        outputs = sum(
            profile.bytes_of(spec.name) for spec in self.model.outputs if spec.name in profile.specs
        )
        # A reference holds an output twice more, in float64; an exact one may be there, too. A
        # step has its input, its output, and what it or a quantization puts down in between.
        together = 2 * (stretch + crossing_bytes) + alone + 6 * outputs
        return together, 4 * max(profile.made_bytes, default=0) + outputs

    def _shortfall(self, together: int, each: int) -> str:
        """Say that the budget is too small for one evaluation at a time; empty if it is not."""
        if together + each <= self.memory:
            return ""
        made = self.walker.measured_profile.made_bytes
        largest = self.model.steps[made.index(max(made))]
        return (
            f"the memory budget of {byte_words(self.memory)} cannot be kept: about "
            f"{byte_words(together + each)} are needed even one evaluation at a time (the largest "
            f"tensors are those of {largest.name}, {byte_words(max(made))})"
        )

    def _plan(self, assignment: Assignment) -> _Plan:
        seeds = seed_steps(self.model, assignment)
        first, last = quantized_span(self.model, assignment, seeds)
        writer = self._program_writer(assignment, seeds)
        if writer is not None:
            # What is in integers may go on behind the last point, until an operator needs floats.
            last = max(last, writer.end)
        return _Plan(seeds=seeds, span=(first, last), writer=writer)

    def _variant(
        self,
        index: int,
        assignment: Assignment,
        plan: _Plan,
        cuts: tuple[int, ...],
        costs: Costs,
    ) -> Variant:
        cut = cut_of(cuts, plan.span[1])
        stale = stale_steps(self.model, plan.seeds, cut)
        walked = sum(costs.walk[step] for step in stale)
        computing = walked + costs.jump[cut] + costs.compare[cut]
        around = self._costing.around_computing(assignment, len(stale))
        return Variant(
            index=index,
            assignment=assignment,
            stale=stale,
            seeds=plan.seeds,
            first=plan.span[0],
            cut=cut,
            cost=self._costing.pace * computing + around,
            integers=None if plan.writer is None else self._integer_walk(plan.writer, cut),
        )

    def _side_by_side(self, seconds: float) -> float:
        return seconds * (_SERIAL + (1 - _SERIAL) / self.jobs)

    def expected_seconds(self, schedule: Schedule, samples: int) -> float:
        """Return the wall time that the evaluations of a schedule will take."""
        once = self._costing.pace * schedule.seconds_once
        return self._side_by_side(schedule.seconds_per_sample * samples + once)

    def expected_walks(self, count: int) -> float:
        """Return the wall time of so many walks of the whole model, as calibrated."""
        costing, calibrated = self._costing, Assignment.as_calibrated(self.model)
        around = costing.around_computing(calibrated, len(self.model.steps))
        return self._side_by_side(count * (costing.pace * sum(costing.costs.walk) + around))

    def evaluate(
        self,
        samples: Iterable[Mapping[str, NDArray[Any]]],
        schedule: Schedule,
        judge: Judge[T],
        *,
        faint: Callable[[T], bool] = lambda _: False,
        done: Container[tuple[int, int]] = (),
        first: int = 0,
    ) -> Iterator[Evaluation[T]]:
        """Measure the assignments of a schedule, sample by sample.

        Args:
            samples: Inputs of one sample each.
            schedule: From `schedule`.
            judge: Given the float outputs, returns the function that measures others.
            faint: Says of a measurement that it is so small that the rounding of an optimized
                jump shows in it; it is then taken again through an unoptimized one.
            done: Pairs (sample index, assignment index) to leave out.
            first: Index of the first sample.

        Yields:
            Evaluations, stretch by stretch of the graph and sample by sample.
        """
        jumps = Jumps(partial(self.suffix, optimized=not self.exact), schedule.cuts)
        exact_jumps = Jumps(partial(self.suffix, optimized=False), schedule.cuts)
        in_flight: list[list[Future[Evaluation[T]]]] = []
        with self._pool(schedule.threads) as pool:
            for number, inputs in enumerate(samples, first):
                for variants in schedule.rounds:
                    todo = [item for item in variants if (number, item.index) not in done]
                    if not todo:
                        continue
                    sample = SampleRun(
                        walker=self.walker,
                        crossing=self.crossing,
                        boundaries=schedule.boundaries,
                        jumps=jumps,
                        exact_jumps=exact_jumps,
                        pool=pool,
                        judge=judge,
                        faint=faint if not self.exact else lambda _: False,
                        number=number,
                    )
                    for futures in sample.stretches(inputs, todo):
                        in_flight.append(futures)
                        if len(in_flight) > 1:
                            yield from (future.result() for future in in_flight.pop(0))
            for futures in in_flight:
                yield from (future.result() for future in futures)

    @contextmanager
    def _pool(self, threads: int) -> Iterator[Executor]:
        """Return where evaluations run; what has not begun at the end is given up."""
        pool = ThreadPoolExecutor(threads) if self.walker.watch is None else _Inline()
        try:
            with one_blas_thread() if self.fidelity == "integer" else nullcontext():
                yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def suffix(self, cut: int, *, optimized: bool) -> Runner:
        """Make the session of the jump from a cut; needs `profile` to have run.

        Args:
            cut: Position in ``model.steps``.
            optimized: Whether ONNX Runtime may use all of its optimizations.
        """
        return self._slicer.suffix(
            cut,
            sorted(self.crossing[cut]),
            self.walker.measured_profile.specs,
            optimized=optimized,
            fixed_shapes=self._fixed_shapes,
        )

    @cached_property
    def _costing(self) -> Costing:
        profile = self.walker.measured_profile
        return Costing(self.model, self._slicer, profile, self.crossing, exact=self.exact)


class _Inline(Executor):
    """Runs what is submitted at once, in the thread that submits it."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a function, and return its outcome."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - who asks for the result gets it
            future.set_exception(error)
        return future


def available_cores() -> int:
    """Return the number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def byte_words(size: int) -> str:
    """Return a number of bytes in words, such as ``3.5 MiB``."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size} bytes"


def _evaluations(sample: int, futures: Sequence[Future[T]]) -> Iterator[Evaluation[T]]:
    for index, future in enumerate(futures):
        yield Evaluation(sample=sample, assignment=index, value=future.result())
