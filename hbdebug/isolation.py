"""Evaluations in worker processes, so that a crash inside a runtime costs one node, not the run.

The process of the user plans, and runs nothing of the model. Each worker loads the model once
(mapped weights are in memory once for all of them) and evaluates what it is told, one thing after
the other, so that it is known what a worker died of. What was being evaluated then is given up; a
new worker goes on with the rest.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import tempfile
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, cast

from hbdebug.engine import Engine
from hbdebug.errors import RuntimeCrash
from hbdebug.jump import Evaluation
from hbdebug.walk import NOTHING
from hbdebug.worker import (
    PROGRAM,
    STATUS,
    Done,
    EvaluateTask,
    Plan,
    ProfileTask,
    Setup,
    WholeTask,
    receive,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.jump import Judge, Schedule, T
    from hbdebug.model import Assignment, QuantModel
    from hbdebug.samples import Samples
    from hbdebug.walk import Profile

# A task whose worker died while nothing was evaluated is tried so often: the system may have
# killed it for want of memory.
_ATTEMPTS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """How evaluations are kept apart.

    Attributes:
        worker: Called in each worker with its engine before anything is run; a function that can
            be imported. None for nothing.
    """

    worker: Callable[[Engine], None] | None = None


class IsolatedEngine(Engine):
    """An engine that has everything run by worker processes.

    Args:
        model: The model.
        recipe: Loads the same model, in a worker; it is pickled.
        samples: What the methods are given samples of.
        isolation: How evaluations are kept apart.
        options: Further arguments of `Engine`.
    """

    def __init__(
        self,
        model: QuantModel,
        *,
        recipe: Callable[[], QuantModel],
        samples: Samples,
        isolation: Isolation,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        # Each has its share of the budget; where to cut is decided here, by all of it.
        own = options | {"jobs": 1, "memory": max(1, self.memory // self.jobs)}
        own["fidelity"] = "calibrated"
        self._workers = _Workers(self.jobs, self.model, recipe, samples, own, isolation)
        self._samples = samples

    def close(self) -> None:
        """End the workers."""
        self._workers.close()

    def profile(self, inputs: Mapping[str, NDArray[Any]]) -> Profile:
        """Have a worker walk the first sample; later calls return the first result."""
        del inputs
        if not self.walker.is_profiled:
            tasks = [_Task(ProfileTask())]
            (found,) = (item for item in self._workers.run(tasks) if isinstance(item, Done))
            self.walker.adopt(cast("Profile", found.value))
        return self.walker.measured_profile

    def whole(
        self,
        samples: Iterable[Mapping[str, NDArray[Any]]],
        assignments: Sequence[Assignment],
        judge: Judge[T],
        *,
        first: int = 0,
    ) -> Iterator[Evaluation[T]]:
        """Measure assignments on the whole model, see `Engine.whole`.

        Raises:
            RuntimeCrash: A worker died of it.
        """
        del samples
        self.profile({})
        tasks = [
            _Task(
                WholeTask(
                    fidelity=self.fidelity,
                    sample=number,
                    assignments=tuple(assignments),
                    judge=judge,
                )
            )
            for number in range(first, len(self._samples))
        ]
        for item in self._workers.run(tasks):
            if isinstance(item, Evaluation):
                yield item

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
        """Measure the assignments of a schedule, see `Engine.evaluate`.

        An assignment whose evaluation a worker died of is left out from then on; `failures` says
        why.

        Raises:
            RuntimeCrash: A worker died while it ran the float model, which all evaluations need.
        """
        del samples
        failures: dict[int, str] = {}
        self.failures = failures
        plan = Plan(
            fidelity=self.fidelity,
            assignments=tuple(item.assignment for item in schedule.variants),
            samples=len(self._samples),
            cuts=schedule.cuts,
            judge=judge,
            faint=cast("Callable[[Any], bool]", faint),
        )
        # In the order of the graph, so that those that jump from one cut have one reference.
        order = [item.index for item in sorted(schedule.variants, key=lambda item: item.cut)]
        parts = -(-self.jobs // len(self._samples))
        tasks = []
        for number in range(first, len(self._samples)):
            todo = [index for index in order if (number, index) not in done]
            size = max(1, -(-len(todo) // parts))
            tasks += [
                _Task(EvaluateTask(sample=number, indices=frozenset(todo[start : start + size])))
                for start in range(0, len(todo), size)
            ]
        for item in self._workers.run(tasks, plan=plan, failures=failures):
            if isinstance(item, Evaluation):
                yield item


@dataclass(slots=True, eq=False)
class _Task:
    """Something to run, and how often that was tried.

    Attributes:
        task: What a worker is told.
        attempts: Number of workers that died of it while nothing was evaluated.
    """

    task: ProfileTask | WholeTask | EvaluateTask
    attempts: int = 0

    def without(self, indices: Container[int], finished: Container[tuple[int, int]]) -> bool:
        """Leave evaluations out; return whether any is left."""
        if not isinstance(self.task, EvaluateTask):
            return True
        sample = self.task.sample
        left = frozenset(
            index
            for index in self.task.indices
            if index not in indices and (sample, index) not in finished
        )
        self.task = EvaluateTask(sample=sample, indices=left)
        return bool(left)


class _Workers:
    """As many workers as there is work for, started when they are needed."""

    def __init__(
        self,
        count: int,
        model: QuantModel,
        recipe: Callable[[], QuantModel],
        samples: Samples,
        options: Mapping[str, Any],
        isolation: Isolation,
    ) -> None:
        self._count = count
        self._model = model
        self._folder = tempfile.TemporaryDirectory(prefix="hbdebug-")
        self._started = 0
        self._messages: queue.Queue[tuple[_Process, object]] = queue.Queue()
        self._idle: list[_Process] = []
        self._busy: dict[_Process, _Task] = {}
        self._setup = (recipe, samples, options, isolation.worker)
        self._finalizer = weakref.finalize(self, _end, self._idle, self._busy, self._folder)

    def close(self) -> None:
        """End all of them."""
        self._finalizer()

    def run(
        self,
        tasks: Sequence[_Task],
        *,
        plan: Plan | None = None,
        failures: dict[int, str] | None = None,
    ) -> Iterator[object]:
        """Run tasks side by side, and yield what they give.

        Args:
            tasks: What to run.
            plan: What they are about.
            failures: Takes in the evaluations that workers died of; None if that ends the run.

        Raises:
            RuntimeCrash: A worker died, and no evaluation is to blame.
            HbdebugError: What a worker raised.
        """
        waiting = deque(tasks)
        finished: set[tuple[int, int]] = set()
        try:
            while self._fill(waiting, plan, failures or {}, finished):
                process, message = self._messages.get()
                if process not in self._busy:
                    continue  # the end of one that was killed
                if isinstance(message, Exception):
                    raise message
                if message is None:
                    task = self._busy.pop(process)
                    self._blame(process, task, failures)
                    waiting.appendleft(task)
                elif isinstance(message, Done) and process.planning:
                    process.planning = False
                else:
                    if isinstance(message, Evaluation):
                        finished.add((message.sample, message.assignment))
                    elif isinstance(message, Done):
                        self._idle.append(process)
                        del self._busy[process]
                    yield message
        finally:
            # Whoever stops early does not want to wait for what runs.
            for process in list(self._busy):
                process.kill()
                self._busy.pop(process)

    def _fill(
        self,
        waiting: deque[_Task],
        plan: Plan | None,
        failed: Container[int],
        finished: Container[tuple[int, int]],
    ) -> bool:
        """Give every worker something to do, and return whether anything is being done."""
        while waiting and len(self._busy) < self._count:
            task = waiting.popleft()
            if task.without(failed, finished):
                self._begin(task, plan)
        return bool(self._busy)

    def _begin(self, task: _Task, plan: Plan | None) -> None:
        process = self._idle.pop() if self._idle else self._start()
        self._busy[process] = task
        if plan is not None and process.plan is not plan:
            process.plan = plan
            process.planning = True
            process.tell(plan)
        process.tell(task.task)

    def _start(self) -> _Process:
        self._started += 1
        status = Path(self._folder.name) / f"{self._started}"
        status.write_bytes(STATUS.pack(NOTHING, NOTHING))
        recipe, samples, options, begin = self._setup
        setup = Setup(
            model=recipe, samples=samples, options=options, status=str(status), begin=begin
        )
        return _Process(setup, self._messages)

    def _blame(self, process: _Process, task: _Task, failures: dict[int, str] | None) -> None:
        """Find out what a worker died of.

        Raises:
            RuntimeCrash: It was nothing that could be left out.
        """
        evaluation, step = process.status()
        cause = _words(process.wait())
        where = self._model.steps[step].name if 0 <= step < len(self._model.steps) else ""
        at = f", at {where}" if where else ""
        if evaluation != NOTHING and failures is not None:
            failures[evaluation] = f"the runtime crashed ({cause}{at}) while it was measured"
            return
        task.attempts += 1
        if task.attempts < _ATTEMPTS:
            return
        what = "the float model" if isinstance(task.task, EvaluateTask) else "the whole model"
        raise RuntimeCrash(
            f"the runtime crashed ({cause}) while {what} ran",
            where=f"node {where}" if where else "",
            hint="It was running, or had just run, the node that is named. Give another version of "
            "onnxruntime or another --provider, or --output-node in front of it; when memory is "
            "short, a smaller --memory and fewer --jobs.",
        )


class _Process:
    """One worker process.

    Args:
        setup: What it is told first.
        messages: Takes what it says, with itself; None when it died.

    Attributes:
        plan: The plan that it was sent last.
        planning: Whether it has not answered to that yet.
    """

    def __init__(self, setup: Setup, messages: queue.Queue[tuple[_Process, object]]) -> None:
        self.plan: Plan | None = None
        self.planning = False
        self._setup = setup
        # Ctrl-C is for the process that the user started; it ends this one.
        apart: dict[str, Any] = (
            {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}  # type: ignore[attr-defined]
            if sys.platform == "win32"
            else {"start_new_session": True}
        )
        folder = str(Path(__file__).parent.parent)
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH", ""))))
        self._popen = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            **apart,
        )
        self._listener = Thread(target=self._listen, args=(messages,), daemon=True)
        self._listener.start()
        self.tell(list(sys.path))
        self.tell(setup)

    def tell(self, message: object) -> None:
        """Send a message; that it died already shows elsewhere."""
        with suppress(BrokenPipeError):
            if self._popen.stdin is not None:
                send(cast("Any", self._popen.stdin), message)

    def _listen(self, messages: queue.Queue[tuple[_Process, object]]) -> None:
        with suppress(EOFError, OSError, ValueError):
            while self._popen.stdout is not None:
                messages.put((self, receive(cast("Any", self._popen.stdout))))
        messages.put((self, None))

    def status(self) -> tuple[int, int]:
        """Return the evaluation and the step that it ran last."""
        evaluation, step = STATUS.unpack(Path(self._setup.status).read_bytes())
        return evaluation, step

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        code = self._popen.wait()
        self._listener.join()
        for stream in (self._popen.stdin, self._popen.stdout):
            # What it did not read any more is lost.
            with suppress(OSError):
                if stream is not None:
                    stream.close()
        return code

    def kill(self) -> None:
        """End it at once."""
        self._popen.kill()
        self.wait()


def _end(
    idle: list[_Process],
    busy: dict[_Process, _Task],
    folder: tempfile.TemporaryDirectory[str],
) -> None:
    for process in (*idle, *busy):
        process.kill()
    idle.clear()
    busy.clear()
    folder.cleanup()


def _words(code: int) -> str:
    """Say how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {-code}, {signal.Signals(-code).name}"
    return f"signal {-code}"
