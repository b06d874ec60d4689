"""The integer form of an assignment, step by step, for the walk.

`hbdebug.lowering.graph.lower` writes one graph for the whole model. To measure what a few points
do, only what they turn into integers has to be written: a `Program` says, for those steps of the
calibrated model, what runs in their place. All other steps run in float as they are.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from hbdebug.errors import UnsupportedError
from hbdebug.lowering.graph import StepLowering, check_known
from hbdebug.lowering.writer import GraphWriter
from hbdebug.model import Node, Point

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hbdebug.lowering.writer import Shape
    from hbdebug.model import Assignment, QuantModel, Step

Action: TypeAlias = "Node | int"
"""An integer node, or the index of a step that runs in float."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """A step whose integer form is not known, so that it runs as the calibrated model says.

    Attributes:
        name: Node or point name.
        op_type: Its operator.
        reason: Why, in words for the user.
    """

    name: str
    op_type: str
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """What runs in place of a model's steps under an assignment.

    Float tensors have the names of the calibrated model; those in integers have names of their
    own, in the layout that their operators take.

    Attributes:
        assignment: What is quantized.
        actions: Index into ``model.steps`` -> what runs there, in order. A step without an entry
            runs in float as it is; one with an empty entry has become part of another.
        constants: Constants of the integer nodes, by name.
        fallbacks: Steps that could not be put into integers.
    """

    assignment: Assignment
    actions: Mapping[int, tuple[Action, ...]]
    constants: Mapping[str, NDArray[np.generic]]
    fallbacks: tuple[Fallback, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All integer nodes, in order."""
        return tuple(
            action
            for index in sorted(self.actions)
            for action in self.actions[index]
            if isinstance(action, Node)
        )

    @property
    def end(self) -> int:
        """The position behind the last step that does not run as it is; 0 without any."""
        return max(self.actions, default=-1) + 1

    @cached_property
    def last_reads(self) -> Mapping[str, int]:
        """Tensor -> index of the last step where an integer node reads it."""
        return {
            name: index
            for index in sorted(self.actions)
            for action in self.actions[index]
            if isinstance(action, Node)
            for name in action.inputs
            if name
        }


class ProgramWriter(StepLowering):
    """Derives the program of an assignment.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized, and how.
        seeds: The steps that this changes on their own account, from `hbdebug.plan.seed_steps`.
        shapes: Shapes of the model's tensors.
        march: bayes or bayes-e.
        derived: Weights and tables of other programs of the same model and march; new ones are
            added.

    Raises:
        UnsupportedError: The march is not known.
    """

    def __init__(
        self,
        model: QuantModel,
        assignment: Assignment,
        *,
        seeds: Collection[int],
        shapes: Mapping[str, Shape],
        march: str,
        derived: dict[Hashable, Any] | None = None,
    ) -> None:
        check_known(march)
        steps = model.steps
        # A convolution that runs in integers reads a quantized weight, which makes it a seed.
        nodes = (step for index in sorted(seeds) if isinstance(step := steps[index], Node))
        super().__init__(model, assignment, GraphWriter(shapes, derived), nodes)
        self._actions: dict[int, tuple[Action, ...]] = {}
        self._fallbacks: list[Fallback] = []
        self._in_float = False
        self._write(seeds)

    @property
    def end(self) -> int:
        """The position behind which everything is in float."""
        return max(self._actions, default=-1) + 1

    def program(self, wanted: Iterable[str]) -> Program:
        """Return the program.

        Args:
            wanted: Tensors of the calibrated model that must be there in float at its end.
        """
        actions = dict(self._actions)
        before = len(self._out.nodes)
        for name in sorted(wanted):
            self._out.in_float(name)
        written = self._out.nodes[before:]
        if written:
            last = max(actions)
            actions[last] = (*actions[last], *written)
        return Program(
            assignment=self._assignment,
            actions=actions,
            constants=self._out.constants,
            fallbacks=tuple(self._fallbacks),
        )

    def step(self, step: Step) -> None:
        """Write what a step becomes, as far as what it reads is in integers.

        Raises:
            UnsupportedError: Its integer form is not known.
        """
        fusion = self._fusions.get(step.name)
        if fusion and not self._held_in_integers(fusion.nodes):
            raise UnsupportedError("something that it takes in runs in float")
        super().step(step)

    def float_node(self, node: Node) -> None:
        """Write what a node that computes in float reads from integers."""
        for index, name in enumerate(node.inputs):
            if name:
                self._out.in_float(self.float_source(node, index))
        self._in_float = True

    def _quantized(self, node: Node) -> bool:
        return super()._quantized(node) and self._held_in_integers([node])

    def _held_in_integers(self, nodes: Sequence[Node]) -> bool:
        """Whether what nodes read is in integers, which it is not where a step fell back."""
        model = self._model
        made = {name for node in nodes for name in node.outputs}
        return all(
            self._out.held(name).bits
            for node in nodes
            for name in node.inputs
            if name and name not in made | model.static and name not in model.constants
        )

    def _write(self, seeds: Collection[int]) -> None:
        """Write the seeds and whatever reads integers, in the order of the model."""
        model = self._model
        waiting = list(seeds)
        heapq.heapify(waiting)
        done = -1
        while waiting:
            index = heapq.heappop(waiting)
            step = model.steps[index]
            if index == done or step.outputs[0] in model.static:
                continue
            done = index
            actions = self._lowered(index, step)
            if actions == (index,):
                continue  # It is in float and reads floats.
            self._actions[index] = actions
            for name in step.outputs:
                if not actions or self._out.held(name).bits:
                    for reader, _ in model.consumers_of.get(name, ()):
                        heapq.heappush(waiting, model.position_of[reader.name])

    def _lowered(self, index: int, step: Step) -> tuple[Action, ...]:
        """Return what runs in place of a step."""
        fusion = self._fusions.get(step.name)
        floats: Sequence[Step] = fusion.nodes if fusion else (step,)
        before = len(self._out.nodes)
        self._in_float = False
        try:
            if isinstance(step, Point) and self._passes_float(step):
                return (index,)
            self.step(step)
        except UnsupportedError as error:
            self._fall_back(floats, error)
        written = tuple(self._out.nodes[before:])
        if not self._in_float:
            return written
        return (*written, *(self._model.position_of[each.name] for each in floats))

    def _passes_float(self, point: Point) -> bool:
        """Whether a point hands a float on, so that there is nothing to write."""
        return point.name not in self._assignment and not self._out.held(point.input).bits

    def _fall_back(self, steps: Sequence[Step], error: UnsupportedError) -> None:
        """Note that steps run in float after all."""
        for step in steps:
            self._fallbacks.append(
                Fallback(
                    name=step.name,
                    op_type=step.op_type if isinstance(step, Node) else "HzCalibration",
                    reason=error.message,
                )
            )
        made = {name for step in steps for name in step.outputs}
        for step in steps:
            for index, name in enumerate(step.inputs):
                if name and name not in made:
                    source = name if isinstance(step, Point) else self.float_source(step, index)
                    self._out.in_float(source)
        for name in made:
            self._out.keep_float(name)
        self._in_float = True
