"""The walk: run the model one step at a time under an assignment.

A point fake-quantizes in NumPy; a node runs in a one-node ONNX Runtime session without
optimizations that span nodes, or in a NumPy kernel that gives the same bits, so that every tensor
is bit-equal to that of the unoptimized whole model. Constants that a node reads, quantized
weights included, are built into its session, but for the large ones of a large model: those are
fed (`hbdebug.slices`). Sessions with more than a few constants, and quantized weights that are fed,
are kept as long as they fit a budget, and made again when they are needed again.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import ModelError, UnsupportedError, first_line
from hbdebug.keep import Kept
from hbdebug.kernels.floating import KERNELS
from hbdebug.model import Assignment, Node, Point
from hbdebug.plan import last_uses
from hbdebug.quant import fake_quantize, float_passthrough

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from hbdebug.model import QuantModel
    from hbdebug.quant import QuantParams
    from hbdebug.slices import Runner, Slicer

Arrays: TypeAlias = "dict[str, NDArray[Any]]"

FLOAT = Assignment()
"""The empty assignment: everything in float."""

DEFAULT_KEPT = 1 << 28
"""Bytes of constants that the sessions of a walk may hold, unless the engine says."""

# A session takes some 50 KiB itself; what holds less in constants is not counted.
_LIGHT = 1 << 16
_TIMED = 2  # runs of a step whose time is taken
_COPIES = 2  # of its constants that a session may hold: as they came, and as its kernels want them


NOTHING = -1
"""What `Watch.evaluating` is told when no evaluation runs."""


class Watch:
    """Is told what is about to run, so that a crash can be told from where it happened."""

    def evaluating(self, index: int) -> None:
        """Be told which assignment is evaluated from now on; `NOTHING` for none."""

    def stepping(self, index: int) -> None:
        """Be told which step of the model is about to run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What one float walk over one sample showed.

    Attributes:
        seconds: Time of each step.
        made_bytes: Bytes that each step made anew.
        specs: Tensor -> (dtype name, shape) of everything that exists at run time.
    """

    seconds: tuple[float, ...]
    made_bytes: tuple[int, ...]
    specs: Mapping[str, tuple[str, tuple[int, ...]]]

    def bytes_of(self, name: str) -> int:
        """Return the size of a tensor."""
        return self.elements_of(name) * np.dtype(self.specs[name][0]).itemsize

    def elements_of(self, name: str) -> int:
        """Return the number of elements of a tensor."""
        return math.prod(self.specs[name][1])


class Walker:
    """Runs one model step by step.

    Args:
        model: The float graph and its points.
        slicer: Makes the sessions.
        kept: Bytes of constants that sessions may hold until they are needed again.

    Attributes:
        watch: Is told of every step; None for nobody.
    """

    def __init__(self, model: QuantModel, slicer: Slicer, *, kept: int = DEFAULT_KEPT) -> None:
        self.model = model
        self.watch: Watch | None = None
        self._slicer = slicer
        self._kept: Kept[Any] = Kept(kept)
        fed = (slicer.shared | slicer.unpacked) & model.static
        self._fed_weights = tuple(tuple(fed.intersection(step.inputs)) for step in model.steps)
        self._output_names = tuple(spec.name for spec in model.outputs)
        self._drops = last_uses(model, self._output_names)
        self._late_drops = last_uses(model, self._output_names, around_points=True)
        self._weight_points = tuple(self._points_inside(index) for index in range(len(model.steps)))
        self._float_runners: list[Runner | None] = [None] * len(model.steps)
        self._profile: Profile | None = None

    def forward(
        self,
        inputs: Mapping[str, NDArray[Any]],
        assignment: Assignment = FLOAT,
        *,
        keep: Callable[[str, NDArray[Any]], None] | None = None,
    ) -> Arrays:
        """Walk the whole model.

        Args:
            inputs: One array for each graph input.
            assignment: What is quantized.
            keep: Called with every tensor that is made, under its name, before it is forgotten.

        Returns:
            The graph outputs by name.
        """
        values: Arrays = dict(inputs)
        drops = self.drops(assignment)
        for index, step in enumerate(self.model.steps):
            values.update(self.execute(index, values, assignment))
            if keep is not None:
                for name in step.outputs:
                    if name in values:
                        keep(name, values[name])
            for name in drops[index]:
                values.pop(name, None)
        return {name: values[name] for name in self._output_names}

    def drops(self, assignment: Assignment) -> tuple[tuple[str, ...], ...]:
        """Return, for every step, the tensors that nothing reads after it."""
        return self._late_drops if assignment.bypassed else self._drops

    @property
    def is_profiled(self) -> bool:
        """Whether `profile` has run."""
        return self._profile is not None

    @property
    def measured_profile(self) -> Profile:
        """The result of `profile`.

        Raises:
            RuntimeError: It has not run yet.
        """
        if self._profile is None:
            raise RuntimeError("profile must run before anything is planned")
        return self._profile

    def adopt(self, profile: Profile) -> None:
        """Take the profile that another process measured."""
        self._profile = profile

    def profile(self, inputs: Mapping[str, NDArray[Any]]) -> Profile:
        """Return what the first float walk showed; take that walk if there was none.

        Args:
            inputs: One array for each graph input.
        """
        if self._profile is None:
            self.baseline(inputs)
        return self.measured_profile

    def baseline(self, inputs: Mapping[str, NDArray[Any]]) -> Arrays:
        """Walk the whole model in float; the first time, take times and sizes on the way.

        Args:
            inputs: One array for each graph input.

        Returns:
            The graph outputs by name.
        """
        if self._profile is not None:
            return self.forward(inputs)
        values: Arrays = dict(inputs)
        specs = {name: (array.dtype.name, array.shape) for name, array in values.items()}
        seconds, made_bytes = [], []
        for index, step in enumerate(self.model.steps):
            made, taken = self._timed(index, values)
            seconds.append(taken)
            passed = values.get(step.inputs[0]) if isinstance(step, Point) else None
            fresh = [array for array in made.values() if array is not passed]
            made_bytes.append(sum(array.nbytes for array in fresh))
            specs.update((name, (array.dtype.name, array.shape)) for name, array in made.items())
            values.update(made)
            for name in self._drops[index]:
                values.pop(name, None)
        self._profile = Profile(seconds=tuple(seconds), made_bytes=tuple(made_bytes), specs=specs)
        return {name: values[name] for name in self._output_names}

    def execute(
        self, index: int, values: Mapping[str, NDArray[Any]], assignment: Assignment
    ) -> Arrays:
        """Run one step.

        Args:
            index: Index into ``model.steps``.
            values: The tensors it reads, constants left out.
            assignment: What is quantized.

        Returns:
            Its outputs by name; nothing for a point on a constant, whose value is built into the
            sessions of the nodes that read it.

        Raises:
            ModelError: ONNX Runtime can not run the node on these tensors.
        """
        step = self.model.steps[index]
        if self.watch is not None:
            self.watch.stepping(index)
        if isinstance(step, Point):
            if step.output in self.model.static:
                return {}
            x = values[step.input] if step.input in values else self.model.constants[step.input]
            return {step.output: apply_point(step, x, assignment.get(step.name))}
        feeds = self._around(step, values, assignment) if assignment.bypassed else values
        kernel = KERNELS.get((step.domain, step.op_type))
        if kernel is not None and step.inputs[0] in feeds:
            return {step.outputs[0]: kernel(feeds[step.inputs[0]])}
        if self._fed_weights[index]:
            weights = self._fed_weights[index]
            feeds = {**feeds, **{name: self._fed_weight(name, assignment) for name in weights}}
        runner = self._runner(index, feeds, assignment)
        try:
            return dict(zip(runner.outputs, runner.run(feeds), strict=True))
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime failed: {first_line(error)}",
                where=f"node {step.name} ({step.op_type})",
            ) from error

    def _around(
        self, node: Node, values: Mapping[str, NDArray[Any]], assignment: Assignment
    ) -> Mapping[str, NDArray[Any]]:
        """Return the values with those of bypassed inputs taken from in front of their points."""
        feeds = None
        for input_index, name in enumerate(node.inputs):
            if (node.name, input_index) in assignment.bypassed:
                feeds = dict(values) if feeds is None else feeds
                feeds[name] = values[self.model.in_front_of_points(name)]
        return values if feeds is None else feeds

    def _timed(self, index: int, values: Mapping[str, NDArray[Any]]) -> tuple[Arrays, float]:
        """Run a step in float, and say how long it takes."""
        # The first run makes the session and fills its caches, which no later one does.
        self.execute(index, values, FLOAT)
        started = time.perf_counter()
        for _ in range(_TIMED):
            made = self.execute(index, values, FLOAT)
        return made, (time.perf_counter() - started) / _TIMED

    def _fed_weight(self, name: str, assignment: Assignment) -> NDArray[Any]:
        """Return what a point on a shared constant gives, from what is kept if it was quantized."""
        points = self._points_in_front(name)
        params = tuple(assignment.get(point) for point in points)

        def make() -> tuple[tuple[NDArray[Any], tuple[Any, ...]], int]:
            value = self.static_value(name, assignment)
            constant = self.model.constants.get(self.model.in_front_of_points(name))
            # The constant itself takes no memory of ours; there is no need to keep it.
            return (value, params), 0 if value is constant else value.nbytes

        # The parameters' identities are safe as a key: the entry keeps the objects alive.
        value: NDArray[Any]
        value, _ = self._kept.get((name, *map(id, params)), make)
        return value

    def _runner(
        self, index: int, values: Mapping[str, NDArray[Any]], assignment: Assignment
    ) -> Runner:
        """Return the session of a node with its constants quantized as the assignment says."""
        points = self._weight_points[index]
        if not points or not assignment or not any(name in assignment for name in points):
            runner = self._float_runners[index]
            if runner is not None:
                return runner

            def make_float() -> tuple[Runner, int]:
                made, held = self._make_runner(index, values, FLOAT)
                if held > _LIGHT:
                    return made, held
                self._float_runners[index] = made
                return made, 0

            found: Runner = self._kept.get(index, make_float)
            return found
        params = tuple(assignment.get(name) for name in points)

        def make() -> tuple[tuple[Runner, tuple[Any, ...]], int]:
            made, held = self._make_runner(index, values, assignment)
            return (made, params), held + _LIGHT

        # The parameters' identities are safe as a key: the entry keeps the objects alive.
        quantized: Runner
        quantized, _ = self._kept.get((index, *map(id, params)), make)
        return quantized

    def _make_runner(
        self, index: int, values: Mapping[str, NDArray[Any]], assignment: Assignment
    ) -> tuple[Runner, int]:
        """Return a node's session and the bytes of constants that it holds."""
        node = self.model.steps[index]
        if not isinstance(node, Node):
            raise TypeError(f"step {index} is not a node")
        constants: Arrays = {}
        fed: dict[str, str] = {}
        for name in node.inputs:
            if name in self.model.static and name not in self._fed_weights[index]:
                constants[name] = self.static_value(name, assignment)
            elif name and name not in self.model.constants:
                fed[name] = values[name].dtype.name
        held = sum(array.nbytes for array in constants.values())
        held += self._slicer.owned_bytes({name for op in node.body for name in op.inputs})
        return self._slicer.node(node, fed, constants), _COPIES * held

    def static_value(self, name: str, assignment: Assignment) -> NDArray[Any]:
        """Return a constant, or the value behind the points that read one.

        Args:
            name: A constant, or a tensor of `QuantModel.static`.
            assignment: What is quantized.
        """
        constant = self.model.constants.get(name)
        if constant is not None:
            return constant
        point = self.model.producer_of[name]
        if not isinstance(point, Point):
            raise TypeError(f"{name} is not behind a point")
        value = self.static_value(point.input, assignment)
        return apply_point(point, value, assignment.get(point.name))

    def _points_inside(self, index: int) -> tuple[str, ...]:
        """Return the points on constants that are built into a node's session, chains included."""
        step = self.model.steps[index]
        names = step.inputs if isinstance(step, Node) else ()
        found = [
            point
            for name in names
            if name not in self._fed_weights[index]
            for point in self._points_in_front(name)
        ]
        return tuple(dict.fromkeys(found))

    def _points_in_front(self, name: str) -> tuple[str, ...]:
        """Return the points between a constant and a tensor, the last one first."""
        found = []
        while name in self.model.static:
            point = self.model.producer_of[name]
            found.append(point.name)
            name = point.inputs[0]
        return tuple(found)


def apply_point(point: Point, x: NDArray[Any], params: QuantParams | None) -> NDArray[Any]:
    """Return what a point gives: quantized by ``params``, or passed on in float when None."""
    if params is None and point.params is None:
        return x
    if x.dtype.kind != "f":
        raise ModelError(
            f"it quantizes {point.input}, a tensor of {x.dtype.name}, which holds no real numbers",
            where=f"point {point.name}",
        )
    y: NDArray[Any] = x
    try:
        if params is None and point.params is not None:
            y = float_passthrough(x, point.params)
        elif point.stored is not None and params is point.params:
            y = point.stored
        elif params is not None:
            y = fake_quantize(x, params)
    except UnsupportedError as error:
        raise UnsupportedError(error.message, where=f"point {point.name}") from error
    # A point hands on the type that it is given, and NumPy makes scalars of arrays of rank 0.
    return y if y.dtype == x.dtype and isinstance(y, np.ndarray) else np.asarray(y, x.dtype)
