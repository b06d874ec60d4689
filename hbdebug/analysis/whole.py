"""The whole model, or the part of it up to an inner node: what is measured of it at once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hbdebug.analysis import ceilings
from hbdebug.errors import UsageError
from hbdebug.model import Assignment
from hbdebug.names import close_matches
from hbdebug.results import Ceiling
from hbdebug.samples import TensorSpec
from hbdebug.toolchain import lifted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hbdebug.analysis.sensitivity import Request
    from hbdebug.engine import Engine
    from hbdebug.integer_run import IntegerRunner
    from hbdebug.model import QuantModel
    from hbdebug.observer import Observer
    from hbdebug.results import Suggestion
    from hbdebug.samples import Samples
    from hbdebug.toolchain import Target


SUGGESTED = "as_suggested"
"""Name of the ceiling that holds the model with the suggested nodes lifted."""


def cut_off(model: QuantModel, node_name: str, *, counted: bool = False) -> QuantModel:
    """Return the part of a model that an inner node's outputs depend on, with them as outputs.

    Args:
        model: The model.
        node_name: The inner node.
        counted: Whether the points behind it stay, though nothing reads them: they say in which
            steps a node in integers counts its output.

    Raises:
        UsageError: There is no such node.
    """
    node = model.node_by_name.get(node_name)
    if node is None:
        raise UsageError(
            f"no node is called {node_name!r}",
            hint=close_matches(node_name, model.node_by_name)
            or "`hbdebug info MODEL` lists the nodes.",
        )
    outputs = tuple(
        TensorSpec(name=name, dtype=model.dtypes.get(name, "float32"), shape=())
        for name in node.outputs
        if name
    )
    part = model.upto(outputs)
    if not counted:
        return part
    behind = (point for point in model.points if point.input in node.outputs)
    return replace(part, steps=(*part.steps, *behind))


def measure_ceilings(
    engine: Engine,
    samples: Samples,
    request: Request,
    observer: Observer,
    names: Sequence[str] = (),
) -> tuple[Ceiling, ...]:
    """Measure the whole model under assignments of `hbdebug.analysis.ceilings.NAMES`.

    Args:
        engine: The engine; its fidelity is that of the ceilings.
        samples: Samples to measure on.
        request: Its march is the one that int16 is allowed by.
        observer: Is told of progress.
        names: Which to measure; those that say something about the model when empty.

    Raises:
        UnsupportedError: The engine is to compute in integers of a march that are not known.
    """
    wanted = ceilings.assignments(engine.model, request.march)
    names = names or ceilings.names_for(engine.model)
    in_integers = engine.fidelity == "integer"
    observer.phase(
        "whole model in integers" if in_integers else "whole model", len(names) * len(samples)
    )
    assignments = [wanted[name] for name in names]
    found = ceilings.measure(engine, samples, assignments, lambda: observer.advance(1))
    return tuple(
        Ceiling(name=name, fidelity=engine.fidelity, outputs=outputs)
        for name, outputs in zip(names, found, strict=True)
    )


def measure_suggested(
    engine: Engine, samples: Samples, suggestion: Suggestion, march: str
) -> Ceiling:
    """Measure the model with the suggested nodes lifted, at the engine's fidelity."""
    settings: dict[str, Target] = {
        name: "int16" if to == "int16" else "cpu" for name, to in suggestion.nodes.items()
    }
    assignment = lifted(engine.model, Assignment.as_calibrated(engine.model), settings, march)
    (outputs,) = ceilings.measure(engine, samples, [assignment])
    return Ceiling(name=SUGGESTED, fidelity=engine.fidelity, outputs=outputs)


def measure_integer_ceiling(
    engine: Engine,
    runner: IntegerRunner,
    samples: Samples,
    observer: Observer,
) -> Ceiling:
    """Measure the integer model of a file, as calibrated, against the float baseline."""
    observer.phase("integer model", len(samples))
    outputs = ceilings.measure_integers(engine, runner, samples)
    return Ceiling(name="as_calibrated", fidelity="integer", outputs=outputs)
