"""What things cost: estimates from shapes, and what this machine takes for them.

Where the graph is cut follows from shapes alone, so that two runs cut alike. How long a run will
take also follows from the times of one float walk.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from hbdebug.kernels.floating import KERNELS
from hbdebug.model import Point
from hbdebug.plan import Costs, computing_seconds, jump_seconds, walk_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hbdebug.model import Assignment, Node, QuantModel
    from hbdebug.slices import Slicer
    from hbdebug.walk import Profile

# Time of the jump's session over that of the walk, for the same computing, measured on the two
# text-line models: with all of ONNX Runtime's optimizations, and with those that keep every bit.
_JUMP_RATIO = 0.35
_EXACT_RATIO = 0.6
_KERNEL_PASSES = 0.5  # a NumPy kernel works in the cache, so it hardly goes over memory
_CREATE_PER_STEP = 30e-6  # seconds of making a session
_CREATE_PER_BYTE = 3.5e-9  # seconds per byte of its weights
# A session keeps its constants as they came, and in an order that suits its kernels. Measured on
# the text-line recognizer and on a model of 1,000 nodes.
_COPIES = 2
_BYTES_PER_STEP = 6 << 10
_COMPARE_PER_BYTE = 1e-10  # seconds to compare two arrays, per byte
_FED_PER_BYTE = 2e-10  # seconds per byte of a weight that is fed: it comes from memory each time

# What only the expected time counts, because it is the same wherever the graph is cut. Seconds on
# one core, measured as those of `hbdebug.plan` were; ``benchmarks/eta.py`` shows how right they
# are.
_PER_EVALUATION = 5e-4
_PER_STEP = 5e-6
_PER_QUANTIZED = 4e-9  # an element that a point quantizes
_PER_MEASURED = 4e-9  # an element of an output that is measured
_PER_REFERENCE = 2.4e-8  # the same of one that others are measured against, often twice


class Costing:
    """The costs of one model.

    Args:
        model: The model.
        slicer: Makes its sessions.
        profile: What a float walk showed.
        crossing: For every position, the tensors that cross there.
        exact: Whether jumps run without optimizations.
    """

    def __init__(
        self,
        model: QuantModel,
        slicer: Slicer,
        profile: Profile,
        crossing: Sequence[frozenset[str]],
        *,
        exact: bool,
    ) -> None:
        self._model = model
        self._slicer = slicer
        self._profile = profile
        self._crossing = crossing
        self._exact = exact

    @cached_property
    def costs(self) -> Costs:
        """What the cuts are chosen by: estimates from shapes, the same in every run."""
        profile = self._profile
        walk, jump, ops = [], [], []
        ratio = _EXACT_RATIO if self._exact else _JUMP_RATIO
        for step in self._model.steps:
            if isinstance(step, Point):
                walk.append(0.0)
                jump.append(0.0)
                ops.append(0)
                continue
            shape = self._shape_of_work(step, profile)
            kernel = (step.domain, step.op_type) in KERNELS
            passes = _KERNEL_PASSES if kernel else len(step.body)
            fetched = self._fed_bytes(step) * _FED_PER_BYTE
            walk.append(walk_seconds(step, computing_seconds(step, passes, *shape)) + fetched)
            written = step.body if self._exact else step.quick or step.body
            jump.append(computing_seconds(step, len(written), *shape) + fetched / ratio)
            ops.append(len(written))
        positions = len(self._model.steps) + 1
        return Costs(
            walk=walk,
            jump=jump_seconds(jump, ops, ratio),
            create=[
                (positions - 1 - position) * _CREATE_PER_STEP + held * _CREATE_PER_BYTE
                for position, held in enumerate(self.constant_bytes)
            ],
            compare=[
                sum(profile.bytes_of(name) for name in names) * _COMPARE_PER_BYTE
                for names in self._crossing
            ],
        )

    def _fed_bytes(self, node: Node) -> int:
        """Return the bytes of the weights that a node is fed."""
        names = {self._model.in_front_of_points(name) for name in node.inputs if name}
        names &= self._slicer.shared
        return sum(self._model.constants[name].nbytes for name in names)

    def _shape_of_work(self, node: Node, profile: Profile) -> tuple[int, tuple[int, ...], int]:
        """Return elements made, shape of the weight, and length of the inner dimension."""
        made = sum(profile.elements_of(name) for name in node.outputs if name in profile.specs)
        weight: tuple[int, ...] = ()
        inner = 0
        if len(node.inputs) > 1:
            constant = self._model.constants.get(self._model.in_front_of_points(node.inputs[1]))
            weight = () if constant is None else constant.shape
        if node.op_type in {"MatMul", "Gemm"} and node.inputs[0] in profile.specs:
            inner = profile.specs[node.inputs[0]][1][-1]
        return made, weight, inner

    @cached_property
    def session_bytes(self) -> tuple[int, ...]:
        """Bytes that a session takes from each position on to the outputs."""
        last = len(self.constant_bytes) - 1
        return tuple(
            _COPIES * held + _BYTES_PER_STEP * (last - position)
            for position, held in enumerate(self.constant_bytes)
        )

    @cached_property
    def constant_bytes(self) -> tuple[int, ...]:
        """Bytes of the constants that a session holds from each position on."""
        totals = [0]
        seen: set[str] = set()
        for step in reversed(self._model.steps):
            new = set(step.inputs) - seen
            seen |= new
            totals.append(totals[-1] + self._slicer.owned_bytes(new))
        return tuple(reversed(totals))

    @cached_property
    def pace(self) -> float:
        """Seconds that this machine takes for a planned second."""
        planned = sum(self.costs.walk)
        return sum(self._profile.seconds) / planned if planned else 1.0

    def around_computing(self, assignment: Assignment, steps: int) -> float:
        """Return the seconds of an evaluation that are no operator's."""
        profile = self._profile
        points = (self._model.point_by_name[name].output for name in assignment)
        quantized = sum(profile.elements_of(name) for name in points if name in profile.specs)
        seconds = quantized * _PER_QUANTIZED + self._measured * _PER_MEASURED
        return seconds + _PER_EVALUATION + steps * _PER_STEP

    @property
    def reference_seconds(self) -> float:
        """Seconds to prepare the float baseline's outputs for measuring others."""
        return self._measured * _PER_REFERENCE

    @cached_property
    def _measured(self) -> int:
        """Number of elements of the outputs."""
        specs = self._profile.specs
        names = (spec.name for spec in self._model.outputs if spec.name in specs)
        return sum(self._profile.elements_of(name) for name in names)
