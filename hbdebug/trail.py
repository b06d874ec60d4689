"""Where integer walks came by, so that the next one need not begin at the inputs.

A search measures assignments that differ from each other in a node or two. In front of that, two
walks of the same sample hold the same integers. So the last walk of every sample leaves what it
held in front of some steps, its *trail*; the next one takes up the last of these states that its
own program leads to as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.model import Assignment, Node
from hbdebug.plan import read_around, seed_steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.lowering.program import Action, Program
    from hbdebug.model import QuantModel
    from hbdebug.walk import Arrays


@dataclass(kw_only=True, slots=True, eq=False)
class Trail:
    """What one walk of one sample held on its way.

    Attributes:
        program: What ran.
        inputs: The sample.
        states: Position -> every tensor that was alive there.
    """

    program: Program
    inputs: Mapping[str, NDArray[Any]]
    states: dict[int, Arrays] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, each counted once."""
        held = (self.inputs, *self.states.values())
        arrays = {id(array): array for state in held for array in state.values()}
        return sum(array.nbytes for array in arrays.values())


class Trails:
    """The trails of samples, as many as fit a budget.

    Args:
        budget: Bytes that they may hold.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._trails: dict[int, Trail] = {}
        self._sizes: dict[int, int] = {}
        self._lock = Lock()

    def of(self, sample: int, inputs: Mapping[str, NDArray[Any]]) -> Trail | None:
        """Return the trail of a sample, if there is one and its inputs are these."""
        trail = self._trails.get(sample)
        if trail is None or trail.inputs.keys() != inputs.keys():
            return None
        same = all(np.array_equal(array, trail.inputs[name]) for name, array in inputs.items())
        return trail if same else None

    def put(self, sample: int, trail: Trail) -> None:
        """Keep a trail in place of the sample's last one, if it fits."""
        size = trail.nbytes
        with self._lock:
            self._trails.pop(sample, None)
            self._sizes.pop(sample, None)
            if sum(self._sizes.values()) + size <= self._budget:
                self._trails[sample] = trail
                self._sizes[sample] = size


class Resumption:
    """Where one program can go on from the trails of others.

    Args:
        model: The model.
        program: What will run.
    """

    def __init__(self, model: QuantModel, program: Program) -> None:
        self._model = model
        self._program = program
        # The programs are kept, so that their identities stay theirs.
        self._shared: dict[int, tuple[Program, int]] = {}
        self._needed: dict[int, frozenset[str]] = {}

    def state(self, trail: Trail | None) -> tuple[int, Arrays]:
        """Return the last position of a trail that the program comes by as well, and its state.

        Args:
            trail: What an earlier walk of the same sample left; None for nothing.

        Returns:
            ``(0, {})`` if there is none.
        """
        if trail is None:
            return 0, {}
        other = trail.program
        if id(other) not in self._shared:
            self._shared[id(other)] = other, common_prefix(self._model, other, self._program)
        _, shared = self._shared[id(other)]
        for position in sorted(trail.states, reverse=True):
            if position <= shared and self._needs(position) <= trail.states[position].keys():
                return position, dict(trail.states[position])
        return 0, {}

    def _needs(self, position: int) -> frozenset[str]:
        if position not in self._needed:
            self._needed[position] = needed(self._model, self._program, position)
        return self._needed[position]


def common_prefix(model: QuantModel, first: Program, second: Program) -> int:
    """Return the position up to which two programs do the same."""
    one, other = first.assignment, second.assignment
    changed = {
        name: params
        for each in (one, other)
        for name, params in each.items()
        if not _same_params(one.get(name), other.get(name))
    }
    bypassed = one.bypassed ^ other.bypassed
    end = min(seed_steps(model, Assignment(changed, bypassed=bypassed)), default=len(model.steps))
    for index in sorted(first.actions.keys() | second.actions.keys()):
        if index >= end:
            break
        ours, theirs = first.actions.get(index), second.actions.get(index)
        if ours is None or theirs is None or not _same_actions(first, ours, second, theirs):
            return index
    return end


def _same_params(one: Any, other: Any) -> bool:
    return one is other or (one is not None and other is not None and one.key == other.key)


def _same_actions(
    first: Program, ours: Sequence[Action], second: Program, theirs: Sequence[Action]
) -> bool:
    return len(ours) == len(theirs) and all(
        _same_node(first, one, second, other)
        if isinstance(one, Node) and isinstance(other, Node)
        else one == other
        for one, other in zip(ours, theirs, strict=True)
    )


def _same_node(first: Program, one: Node, second: Program, other: Node) -> bool:
    if (one.op_type, one.inputs, one.outputs) != (other.op_type, other.inputs, other.outputs):
        return False
    if one.attributes.keys() != other.attributes.keys():
        return False
    pairs = [(value, other.attributes[name]) for name, value in one.attributes.items()]
    pairs += [(first.constants.get(name), second.constants.get(name)) for name in one.inputs]
    return all(a is b or np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def needed(model: QuantModel, program: Program, position: int) -> frozenset[str]:
    """Return what is read behind a position and was made in front of it."""
    found: set[str] = set()
    made: set[str] = set()
    for index in range(position, len(model.steps)):
        for action in program.actions.get(index, (index,)):
            if isinstance(action, Node):
                read, given = action.inputs, action.outputs
            else:
                step = model.steps[index]
                if step.outputs[0] in model.static:
                    continue
                read = (*step.inputs, *read_around(model, step, program.assignment.bypassed))
                given = step.outputs
            found.update(
                name
                for name in read
                if name and name not in made and not _is_constant(model, program, name)
            )
            made.update(given)
    return frozenset(found)


def _is_constant(model: QuantModel, program: Program, name: str) -> bool:
    return name in model.constants or name in program.constants or name in model.static
