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
"""An integer node, or the index of the step itself, which runs in float."""


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


def write_program(
    model: QuantModel,
    assignment: Assignment,
    *,
    seeds: Collection[int],
    shapes: Mapping[str, Shape],
    march: str,
    derived: dict[Hashable, Any] | None = None,
) -> ProgramWriter:
    """Derive what an assignment turns into integers.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized, and how.
        seeds: The steps that this changes on their own account, from `hbdebug.plan.seed_steps`.
        shapes: Shapes of the model's tensors.
        march: bayes, bayes-e or bernoulli2.
        derived: Weights and tables of other programs of the same model and march; new ones are
            added.

    Returns:
        The written program, to be finished by `ProgramWriter.program`.

    Raises:
        UnsupportedError: The march is not known.
    """
    check_known(march)
    given_up: dict[str, str] = {}
    while True:
        try:
            writer = GraphWriter(shapes, march, derived)
            return ProgramWriter(model, assignment, writer, seeds=seeds, given_up=given_up)
        except _FusionFailedError as failed:  # noqa: PERF203 - hardly ever more than once
            given_up.update(failed.reasons)


class _FusionFailedError(Exception):
    """A fused convolution turned out to have no integer form, some of its nodes passed already.

    Attributes:
        reasons: Each of its nodes, with the reason.
    """

    def __init__(self, nodes: Iterable[Node], reason: str) -> None:
        super().__init__(reason)
        self.reasons = {node.name: reason for node in nodes}


class ProgramWriter(StepLowering):
    """One attempt at a program; use `write_program`.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized, and how.
        writer: Where nodes and constants go.
        seeds: The steps that this changes on their own account.
        given_up: Nodes that have no integer form, with the reason.
    """

    def __init__(
        self,
        model: QuantModel,
        assignment: Assignment,
        writer: GraphWriter,
        *,
        seeds: Collection[int],
        given_up: Mapping[str, str],
    ) -> None:
        steps = model.steps
        # A convolution that runs in integers reads a quantized weight, which makes it a seed.
        super().__init__(
            model,
            assignment,
            writer,
            [
                step
                for index in sorted(seeds)
                if isinstance(step := steps[index], Node) and step.name not in given_up
            ],
        )
        self._given_up = given_up
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
        if step.name in self._given_up:
            raise UnsupportedError(self._given_up[step.name])
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
            if actions == (index,) and not self._reads_around(step):
                continue  # It is in float and reads floats, those that the model says.
            self._actions[index] = actions
            for name in step.outputs:
                if not actions or self._out.held(name).bits:
                    for reader, _ in model.consumers_of.get(name, ()):
                        heapq.heappush(waiting, model.position_of[reader.name])

    def _reads_around(self, step: Step) -> bool:
        """Whether a step reads in front of a point, so that what it reads is not its input."""
        bypassed = self._assignment.bypassed
        return any((step.name, index) in bypassed for index in range(len(step.inputs)))

    def _lowered(self, index: int, step: Step) -> tuple[Action, ...]:
        """Return what runs in place of a step."""
        before = len(self._out.nodes)
        self._in_float = False
        try:
            if isinstance(step, Point) and self._passes_float(step):
                return (index,)
            self.step(step)
        except UnsupportedError as error:
            if step.name in self._fusions:
                nodes = self._fusions[step.name].nodes
                raise _FusionFailedError(nodes, error.message) from error
            self._fall_back(step, error.message)
        written = tuple(self._out.nodes[before:])
        return (*written, index) if self._in_float else written

    def _passes_float(self, point: Point) -> bool:
        """Whether a point hands a float on, so that there is nothing to write."""
        return point.name not in self._assignment and not self._out.held(point.input).bits

    def _fall_back(self, step: Step, reason: str) -> None:
        """Let a step run in float after all, and note why."""
        op_type = step.op_type
        self._fallbacks.append(Fallback(name=step.name, op_type=op_type, reason=reason))
        if isinstance(step, Node):
            self.float_node(step)
        else:
            self._out.in_float(step.input)
        for name in step.outputs:
            self._out.keep_float(name)
        self._in_float = True
