"""One input of the model with what was measured of it and what the model says of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.analysis.input_statistics import Interval
from hbdebug.model import Point
from hbdebug.results import InputWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hbdebug.analysis.input_statistics import InputStatistics, SampleStatistics
    from hbdebug.model import Node, QuantModel
    from hbdebug.quant import QuantParams

# Operators that pass every value on, and none else.
_MOVING = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})

# What these read has a threshold that does not come from its own values: the converter's own, or
# (Concat) one for all that is put together.
_OTHER_THRESHOLDS = frozenset(
    {"Concat", "GridSample", "GridSamplePlugin", "HardSigmoid", "HzPreprocess"}
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What the model says of an input.

    Attributes:
        point: Name of the per-tensor point directly on it that can represent most; else empty.
        interval: What that can represent; None without one.
        scale: Its scale; 0 without one.
        thresholds: Those of a point with one scale for each channel; empty without one.
        input_type: Of the HzPreprocess that reads the input, such as ``RGB_128``; else empty.
    """

    point: str = ""
    interval: Interval | None = None
    scale: float = 0.0
    thresholds: tuple[float, ...] = ()
    input_type: str = ""

    @property
    def takes_pixels(self) -> bool:
        """Whether the model itself normalizes pixels."""
        return bool(self.input_type) and not self.input_type.startswith("FEATURE")

    @property
    def represents(self) -> str:
        """What the point can represent, in words."""
        if self.interval is None:
            return ""
        if self.interval.symmetric:
            return f"the threshold {self.interval.limit:.4g} of {self.point}"
        return f"the range {self.interval.low:.4g} ... {self.interval.high:.4g} of {self.point}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One input to be judged.

    Attributes:
        data: What was measured.
        expects: What the model says.
        alone: Whether it is the model's only input.
    """

    data: InputStatistics
    expects: Expectation
    alone: bool

    def warning(
        self,
        name: str,
        evidence: str,
        remedy: str,
        *,
        samples: Sequence[SampleStatistics] | None = None,
        **numbers: float,
    ) -> InputWarning:
        """Return a warning about this input; about all samples unless some are given."""
        return InputWarning(
            name=name,
            input=self.data.spec.name,
            samples=tuple(item.name for item in samples or self.data.samples),
            evidence=evidence,
            remedy=remedy,
            numbers=numbers,
        )


def expectation_of(model: QuantModel, tensor: str) -> Expectation:
    """Return what a model says of one of its inputs."""
    widest = Expectation()
    thresholds: tuple[float, ...] = ()
    for point in _direct_points(model, tensor):
        params = point.params
        if params is None or not params.is_integer or not point.enabled:
            continue
        operators = {node.op_type for node in _nodes_behind(model, point.output)}
        if not operators.isdisjoint(_OTHER_THRESHOLDS):
            continue
        if params.per_channel:
            thresholds = tuple((params.scale.astype(np.float64) * params.qmax).tolist())
            continue
        interval = _interval(params)
        if widest.interval is None or interval.limit > widest.interval.limit:
            widest = Expectation(
                point=point.name, interval=interval, scale=float(params.scale.max())
            )
    return Expectation(
        point=widest.point,
        interval=widest.interval,
        scale=widest.scale,
        thresholds=thresholds,
        input_type=input_type(model, tensor),
    )


def _interval(params: QuantParams) -> Interval:
    """Return what a per-tensor point can represent."""
    scale, zero = float(params.scale.max()), float(params.zero_point.max())
    high = (params.qmax - zero) * scale
    # A symmetric grid has one step more below 0; what was calibrated is the threshold.
    symmetric = not zero and params.qmin < 0
    return Interval(low=-high if symmetric else (params.qmin - zero) * scale, high=high)


def input_type(model: QuantModel, tensor: str) -> str:
    """Return the ``input_type`` of the HzPreprocess that reads a graph input; empty without one."""
    for node in _nodes_behind(model, tensor):
        if node.op_type == "HzPreprocess":
            value: Any = node.attributes.get("input_type", "")
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return ""


def _direct_points(model: QuantModel, tensor: str) -> Iterator[Point]:
    """Yield the points that read exactly the values of a tensor, at most moved."""
    for step, index in model.consumers_of.get(tensor, ()):
        if isinstance(step, Point):
            yield step
        elif step.op_type in _MOVING and index == 0:
            yield from _direct_points(model, step.outputs[0])


def _nodes_behind(model: QuantModel, tensor: str) -> Iterator[Node]:
    """Yield the nodes that read a tensor, through points and operators that only move it."""
    for step, index in model.consumers_of.get(tensor, ()):
        if isinstance(step, Point) or (step.op_type in _MOVING and index == 0):
            yield from _nodes_behind(model, step.outputs[0])
        else:
            yield step
