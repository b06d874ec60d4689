"""Steps of a calibrated model in their integer form, inside the walk.

What an assignment quantizes runs as the chip computes it, kernel by kernel; everything else is
the walk's own float step. So one assignment can be measured beside another on the same tensors.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from hbdebug.integer_run import IntegerRunner
from hbdebug.model import IntegerModel, Node
from hbdebug.trail import Resumption

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

    from hbdebug.lowering.program import Program
    from hbdebug.model import QuantModel
    from hbdebug.trail import Trail
    from hbdebug.walk import Arrays, Walker


class IntegerWalk:
    """Runs one program.

    Args:
        walker: Runs the steps that stay in float.
        program: What runs in place of the others.
        provider: ONNX Runtime provider of what moves integers.
    """

    def __init__(self, walker: Walker, program: Program, *, provider: str = "cpu") -> None:
        model = walker.model
        self.program = program
        self._walker = walker
        self._resumption = Resumption(model, program)
        self._runner = IntegerRunner(
            IntegerModel(
                path=model.path,
                sha256=model.sha256,
                kind=model.kind,
                producer=model.producer,
                opset=model.opset,
                inputs=(),
                outputs=(),
                steps=program.nodes,
                constants=_constants(program, model),
            ),
            provider=provider,
        )

    def execute(self, index: int, values: Mapping[str, NDArray[Any]]) -> Arrays:
        """Run what stands in place of a step.

        Args:
            index: Index into ``model.steps``.
            values: The tensors it reads, constants left out.

        Returns:
            Everything that it makes, by name, integers included.

        Raises:
            ModelError: A node cannot compute these tensors.
        """
        if self._walker.watch is not None:
            self._walker.watch.stepping(index)
        actions = self.program.actions.get(index)
        if actions is None:
            return self._walker.execute(index, values, self.program.assignment)
        at_hand = dict(values)
        made: Arrays = {}
        for action in actions:
            if isinstance(action, Node):
                found = self._runner.execute(action, at_hand)
            else:
                found = self._walker.execute(action, at_hand, self.program.assignment)
            at_hand.update(found)
            made.update(found)
        return made

    def forward(
        self,
        inputs: Mapping[str, NDArray[Any]],
        *,
        trail: Trail | None = None,
        leaving: Trail | None = None,
        marks: Collection[int] = (),
    ) -> Arrays:
        """Run the whole model.

        Args:
            inputs: One array for each graph input of the calibrated model.
            trail: What an earlier walk of the same sample left, to go on from.
            leaving: The trail that this walk leaves.
            marks: Positions at which it does.

        Returns:
            The graph outputs by name, in float.
        """
        model = self._walker.model
        start, values = self._resumption.state(trail)
        values = values or dict(inputs)
        if leaving is not None and trail is not None:
            states = trail.states.items()
            leaving.states.update((mark, state) for mark, state in states if mark <= start)
        for index in range(start, len(model.steps)):
            if leaving is not None and index in marks:
                leaving.states[index] = dict(values)
            values.update(self.execute(index, values))
            for name in self._drops[index]:
                values.pop(name, None)
        return {spec.name: values[spec.name] for spec in model.outputs}

    @cached_property
    def _drops(self) -> list[list[str]]:
        """Return, for every step, what nothing reads after it, in float or in integers."""
        model = self._walker.model
        last = dict(self.program.last_reads)
        for index, names in enumerate(self._walker.drops(self.program.assignment)):
            for name in names:
                last[name] = max(index, last.get(name, -1))
        dropped: list[list[str]] = [[] for _ in model.steps]
        kept = {spec.name for spec in model.outputs}
        for name, index in last.items():
            if name not in kept:
                dropped[index].append(name)
        return dropped

    def alive(self, position: int) -> frozenset[str]:
        """Return the integer tensors, and what else the program reads, at or behind a position."""
        return frozenset(
            name for name, index in self.program.last_reads.items() if index >= position
        )


def _constants(program: Program, model: QuantModel) -> dict[str, NDArray[np.generic]]:
    """Return what the integer nodes read: constants of their own, and shapes, axes and the like."""
    return {
        name: constants[name]
        for node in program.nodes
        for name in node.inputs
        for constants in (model.constants, program.constants)
        if name in constants
    }
