"""What the tests of isolated runs do to their workers. It is imported there, so it is a module."""

from __future__ import annotations

import os
import signal

from hbdebug.errors import ModelError


def die_at(engine, *, node, point="", with_signal=signal.SIGSEGV):
    """Kill the worker when it runs a node, if a point is quantized; without a point, always."""
    execute = engine.walker.execute

    def deadly(index, values, assignment):
        if engine.model.steps[index].name == node and (not point or point in assignment):
            engine.walker.watch.stepping(index)
            os.kill(os.getpid(), with_signal)
        return execute(index, values, assignment)

    engine.walker.execute = deadly


def die_of_one_int16(engine):
    """Kill the worker when one point is int16 and others are not, as in a search."""
    execute = engine.walker.execute

    def deadly(index, values, assignment):
        wide = [params.dtype == "int16" for params in assignment.values()]
        if sum(wide) == 1 and len(wide) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute(index, values, assignment)

    engine.walker.execute = deadly


def exit_at(engine, *, node, point):
    """End the worker without a signal."""
    execute = engine.walker.execute

    def deadly(index, values, assignment):
        if engine.model.steps[index].name == node and point in assignment:
            os._exit(3)
        return execute(index, values, assignment)

    engine.walker.execute = deadly


def fail_at(engine, *, node, point):
    """Raise an error of the package."""
    execute = engine.walker.execute

    def failing(index, values, assignment):
        if engine.model.steps[index].name == node and point in assignment:
            raise ModelError("it does not work", where=f"node {node}", hint="Do something.")
        return execute(index, values, assignment)

    engine.walker.execute = failing


def write_pid(engine, *, folder):
    """Leave a file that is called like the process."""
    del engine
    (folder / str(os.getpid())).touch()
