"""A worker process: runs parts of one model for the process that started it.

It is ``python -c`` of `main` with two pipes: tasks come in on stdin, messages go out on what was
stdout; each is a pickle. In a small file that both processes have mapped, it writes what it is
about to do, which the other one reads when the worker died of it.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from hbdebug.engine import Engine
from hbdebug.model import Assignment
from hbdebug.walk import NOTHING, Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from hbdebug.engine import Fidelity
    from hbdebug.jump import Evaluation, Judge, Schedule
    from hbdebug.model import QuantModel
    from hbdebug.samples import Samples

PROGRAM = "from hbdebug.worker import main; main()"

STATUS = struct.Struct("<qq")
"""What is in the file: index of the evaluation that runs, and of the step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What a worker needs to know once; it is pickled.

    Attributes:
        model: Loads the model.
        samples: The calibration data.
        options: Arguments of its `Engine`.
        status: File for `STATUS`.
        begin: Called with the engine before anything is run; None for nothing.
    """

    model: Callable[[], QuantModel]
    samples: Samples
    options: Mapping[str, Any]
    status: str
    begin: Callable[[Engine], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileTask:
    """Walk the first sample in float, and return the profile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeTask:
    """Measure assignments on the whole model, on one sample."""

    fidelity: Fidelity
    sample: int
    assignments: tuple[Assignment, ...]
    judge: Judge[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is evaluated; the tasks of one plan are about its assignments."""

    fidelity: Fidelity
    assignments: tuple[Assignment, ...]
    samples: int
    cuts: tuple[int, ...]
    judge: Judge[Any]
    faint: Callable[[Any], bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluateTask:
    """Evaluate some assignments of the plan that was sent last, on one sample."""

    sample: int
    indices: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """The task is finished."""

    value: Any = None


class StatusFile(Watch):
    """Writes what is about to run where another process can read it.

    Args:
        path: The file; it exists and has the size of `STATUS`.
    """

    def __init__(self, path: str) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), STATUS.size)
        self._evaluation = self._step = NOTHING

    def evaluating(self, index: int) -> None:
        """Write which assignment is evaluated."""
        self._evaluation = index
        STATUS.pack_into(self._map, 0, index, self._step)

    def stepping(self, index: int) -> None:
        """Write which step runs."""
        self._step = index
        STATUS.pack_into(self._map, 0, self._evaluation, index)


class Worker:
    """Runs tasks.

    Args:
        setup: What it works on.
    """

    def __init__(self, setup: Setup) -> None:
        self._watch = StatusFile(setup.status)
        self._engine = Engine(setup.model(), **setup.options, watch=self._watch)
        self._samples = setup.samples
        self._plan: tuple[Plan, Engine, Schedule] | None = None
        if setup.begin is not None:
            setup.begin(self._engine)

    def run(self, task: object) -> Iterator[object]:
        """Run one task.

        Yields:
            What it gives, `Done` last.
        """
        if isinstance(task, Plan):
            self._engine.profile(self._samples.sample(0))
            engine = self._engine.at(task.fidelity)
            assignments = [self._own(each) for each in task.assignments]
            schedule = engine.schedule(assignments, task.samples, cuts=task.cuts)
            self._plan = task, engine, schedule
        elif isinstance(task, EvaluateTask):
            yield from self._evaluate(task)
        elif isinstance(task, WholeTask):
            yield from self._whole(task)
        else:
            yield Done(value=self._engine.profile(self._samples.sample(0)))
            return
        yield Done()

    def _evaluate(self, task: EvaluateTask) -> Iterator[Evaluation[Any]]:
        if self._plan is None:
            raise RuntimeError("there is no plan")
        plan, engine, schedule = self._plan
        left_out = {
            (task.sample, item.index)
            for item in schedule.variants
            if item.index not in task.indices
        }
        inputs = self._samples.sample(task.sample)
        yield from engine.evaluate(
            [inputs], schedule, plan.judge, faint=plan.faint, done=left_out, first=task.sample
        )

    def _whole(self, task: WholeTask) -> Iterator[Evaluation[Any]]:
        self._engine.profile(self._samples.sample(0))
        engine = self._engine.at(task.fidelity)
        assignments = [self._own(each) for each in task.assignments]
        inputs = self._samples.sample(task.sample)
        yield from engine.whole([inputs], assignments, task.judge, first=task.sample)

    def _own(self, assignment: Assignment) -> Assignment:
        """Return an assignment with the model's own parameters, which sessions are kept by."""
        points = self._engine.model.point_by_name
        params = {}
        for name, given in assignment.items():
            own = points[name].params
            params[name] = own if own is not None and own.key == given.key else given
        return Assignment(params, bypassed=assignment.bypassed, in_float=assignment.in_float)


def send(stream: BinaryIO, message: object) -> None:
    """Write one message."""
    content = pickle.dumps(message)
    stream.write(struct.pack("<Q", len(content)) + content)
    stream.flush()


def receive(stream: BinaryIO) -> object:
    """Read one message.

    Raises:
        EOFError: There is none any more.
    """
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    (size,) = struct.unpack("<Q", head)
    content = stream.read(size)
    if len(content) < size:
        raise EOFError
    # The other end is the process that started this one, or was started by it.
    return pickle.loads(content)  # noqa: S301


def main() -> None:
    """Work until there is nothing more to read."""
    # What a library prints must not get among the messages.
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    source = sys.stdin.buffer
    with suppress(EOFError, BrokenPipeError):
        found = receive(source)
        # What is pickled by name must be found where the other process found it.
        sys.path[:] = found if isinstance(found, list) else []
        try:
            worker = Worker(cast("Setup", receive(source)))
            while True:
                for message in worker.run(receive(source)):
                    send(channel, message)
        except (EOFError, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again in the other process
            send(channel, _picklable(error))


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - it was made a moment ago
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
