"""Order of the steps, and what remains of a graph when some of them are left out."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.errors import ModelError
from hbdebug.model import Point
from hbdebug.results import NotAnalysed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from hbdebug.model import Node, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Remainder:
    """What is left of a graph.

    Attributes:
        steps: The steps that can be computed, in order.
        skipped: The others, with the reason.
        frontier: Tensors, made by steps that remain, that the others would have read.
    """

    steps: tuple[Step, ...]
    skipped: tuple[NotAnalysed, ...]
    frontier: tuple[str, ...]


def in_order(
    steps: Sequence[Step], inputs: Collection[str], constants: Collection[str]
) -> tuple[Step, ...]:
    """Sort steps topologically, otherwise in the order given.

    A point on a graph input comes first, one on an activation directly behind its producer, one
    on a constant directly in front of the first node that reads it.

    Args:
        steps: Nodes and points, in file order.
        inputs: Graph inputs.
        constants: Tensors with fixed values.

    Returns:
        The same steps.

    Raises:
        ModelError: A tensor is read that nothing makes, or made twice, or the graph has a cycle.
    """
    _check_tensors(steps, inputs, constants)
    ordering = _Ordering(steps, constants)
    ordering.run(inputs)
    left = len(steps) - len(ordering.done)
    if left:
        done = {step.name for step in ordering.done}
        names = [step.name for step in steps if step.name not in done]
        raise ModelError(
            f"the graph has a cycle; its {left} nodes cannot be ordered: {some(names)}"
        )
    return tuple(ordering.done)


def _check_tensors(
    steps: Sequence[Step], inputs: Collection[str], constants: Collection[str]
) -> None:
    made: dict[str, str] = {}
    for step in steps:
        for name in filter(None, step.outputs):
            if name in made or name in inputs or name in constants:
                other = f"made by node {made[name]}" if name in made else "an input or a constant"
                raise ModelError(
                    f"it writes tensor {name!r}, which is {other}", where=f"node {step.name}"
                )
            made[name] = step.name
    for step in steps:
        for name in filter(None, step.inputs):
            if name not in made and name not in inputs and name not in constants:
                raise ModelError(
                    f"it reads tensor {name!r}, which nothing makes", where=f"node {step.name}"
                )


class _Ordering:
    """One run of the sort.

    Attributes:
        done: Steps in their final order.
    """

    def __init__(self, steps: Sequence[Step], constants: Collection[str]) -> None:
        self.done: list[Step] = []
        self._nodes: list[Node] = [step for step in steps if not isinstance(step, Point)]
        self._points_on: dict[str, list[Point]] = {}
        for step in steps:
            if isinstance(step, Point):
                self._points_on.setdefault(step.input, []).append(step)
        # Tensor behind a point on a constant -> that point, until it has been placed.
        self._fixed: dict[str, Point] = {}
        tensors = list(constants)
        for tensor in tensors:
            for point in self._points_on.pop(tensor, ()):
                self._fixed[point.output] = point
                tensors.append(point.output)
        ready = set(tensors)
        self._missing: list[int] = []
        self._readers: dict[str, list[int]] = {}
        self._ready: list[int] = []
        for index, node in enumerate(self._nodes):
            awaited = {name for name in node.inputs if name and name not in ready}
            self._missing.append(len(awaited))
            for name in awaited:
                self._readers.setdefault(name, []).append(index)
            if not awaited:
                self._ready.append(index)
        heapq.heapify(self._ready)

    def run(self, inputs: Iterable[str]) -> None:
        """Place every step that can be placed."""
        for name in inputs:
            self._made(name)
        while self._ready:
            node = self._nodes[heapq.heappop(self._ready)]
            for name in node.inputs:
                self._place_fixed(name)
            self.done.append(node)
            for name in node.outputs:
                self._made(name)
        # Points on constants that only feed graph outputs.
        for name in list(self._fixed):
            self._place_fixed(name)

    def _made(self, tensor: str) -> None:
        """Note that a tensor exists, and place the points on it."""
        tensors = [tensor]
        for name in tensors:
            for index in self._readers.pop(name, ()):
                self._missing[index] -= 1
                if not self._missing[index]:
                    heapq.heappush(self._ready, index)
            for point in self._points_on.pop(name, ()):
                self.done.append(point)
                tensors.append(point.output)

    def _place_fixed(self, tensor: str) -> None:
        """Place the points between a constant and a tensor."""
        chain = []
        while tensor in self._fixed:
            point = self._fixed.pop(tensor)
            chain.append(point)
            tensor = point.input
        self.done.extend(reversed(chain))


def leave_out(
    steps: Sequence[Step],
    reasons: Mapping[str, str],
    outputs: Collection[str],
    constants: Collection[str],
) -> Remainder:
    """Take steps out of a graph, with everything that depends on them.

    Args:
        steps: The whole graph, in order.
        reasons: Name of a step to leave out -> why.
        outputs: Graph outputs.
        constants: Tensors with fixed values.

    Returns:
        What remains. A step that only prepares a constant for steps that are left out, such as a
        point on their weights, goes with them.
    """
    lost: dict[str, str] = {}
    why = dict(reasons)
    fixed = set(constants)
    for step in steps:
        cause = next((lost[name] for name in step.inputs if name in lost), "")
        if cause and step.name not in why:
            why[step.name] = f"it depends on {cause}, which is left out"
        if step.name in why:
            lost.update(dict.fromkeys(filter(None, step.outputs), cause or step.name))
        if fixed.issuperset(filter(None, step.inputs)):
            fixed.update(step.outputs)
    used = set(outputs)
    wanted: set[str] = set()
    for step in reversed(steps):
        only_lost = used.isdisjoint(step.outputs) and not wanted.isdisjoint(step.outputs)
        if step.name not in why and only_lost and fixed.issuperset(step.outputs):
            why[step.name] = "it only feeds nodes that are left out"
        (wanted if step.name in why else used).update(filter(None, step.inputs))
    kept = tuple(step for step in steps if step.name not in why)
    made = [name for step in kept for name in step.outputs if name]
    return Remainder(
        steps=kept,
        skipped=tuple(_not_analysed(step, why[step.name]) for step in steps if step.name in why),
        frontier=tuple(
            name for name in made if name in wanted and name not in fixed and name not in outputs
        ),
    )


def _not_analysed(step: Step, reason: str) -> NotAnalysed:
    return NotAnalysed(name=step.name, op_type=step.op_type, reason=reason)


def some(names: Sequence[str], limit: int = 3) -> str:
    """Join the first few names and count the rest."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
