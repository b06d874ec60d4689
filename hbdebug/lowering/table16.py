"""Piecewise tables for int16: what HzLut2Layer computes with.

The range of the input is divided at seven borders. Between two of them lies a table of 64 entries,
interpolated; in front of the first and behind the last the function goes on as a straight line.
Borders lie close where the function bends: each of the six tables gets a sixth of the sum of its
second differences.

This is a reconstruction (measured against HMCT 1.1.0), not a formula that the vendor states. Of 87
vendor tables of 27 functions that it was compared with, 82 give the same output for all 65,536
inputs, and 5 one that differs by 1 for a few. ``docs/lowering.md`` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import numpy as np

from hbdebug.lowering.borders import borders
from hbdebug.lowering.curves import curve
from hbdebug.lowering.mantissa import half_away

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hbdebug.lowering.curves import Attributes, Constants, Curve

Symmetry: TypeAlias = Literal["NONE", "ORIGIN_SYMMETRIC", "Y_SYMMETRIC"]

_LOW, _HIGH = -32768, 32767
_ENTRIES = 64
# An index into a table has 8 fractional bits.
_INDEX_STEPS = (_ENTRIES - 1) * 256

_ODD = frozenset({"Atan", "Erf", "Reciprocal", "Sign", "Sin", "Sinh", "Softsign", "Tanh"})
_EVEN = frozenset({"Cos"})

# These are drawn from zero on: the mirrored ones, and those that are used there only.
_FROM_ZERO = frozenset(
    {"Atan", "Cos", "Erf", "Pow", "Sign", "Sin", "Sinh", "Softsign", "Sqrt", "Tanh"}
)

# These have a pole at zero: the line in front of the first border begins beside it.
_WITH_POLE = frozenset({"HzRsqrt", "Log", "Reciprocal"})
_BESIDE_POLE = np.float32(1e-6)

# Where the bends of a function end; what is beyond is straight enough.
_RANGES: dict[str, tuple[float, float]] = {
    "Elu": (-np.inf, 0),
    "Exp": (-np.inf, 20),
    "HardSigmoid": (-3, 3),
    "HzGelu": (-5, 5),
    "HzHardSwish": (-3, 3),
    "HzMish": (-10, 7),
    "HzSwish": (-13, 13),
    "Selu": (-np.inf, 0),
    "Softplus": (-np.inf, 20),
}

_TWO_LINES = frozenset({"Abs", "LeakyRelu", "Relu"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PiecewiseTable:
    """The attributes of an HzLut2Layer.

    Attributes:
        bound: int64 ``(8,)``: the seven borders in input steps, and the end of the range, which
            the chip does not use.
        scale: int64 ``(8,)``: slope of each segment's line, times ``2**right_shift``.
        bias: int64 ``(8,)``: its intercept, likewise, over ``2**left_shift``.
        left_shift: int64 ``(8,)``.
        right_shift: int64 ``(8,)``.
        table: int16 ``(384,)``: six tables of 64 entries.
        symmetry: How negative inputs follow from positive ones.

    The lines of segments 0 and 7 give the output itself, those between an index into a table in
    1/256 of an entry.
    """

    bound: NDArray[np.int64]
    scale: NDArray[np.int64]
    bias: NDArray[np.int64]
    left_shift: NDArray[np.int64]
    right_shift: NDArray[np.int64]
    table: NDArray[np.int16]
    symmetry: Symmetry


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A straight line in integers: ``(scale * q + (bias << left_shift)) >> right_shift``."""

    scale: int
    bias: int
    left_shift: int
    right_shift: int


class Steps(NamedTuple):
    """The steps of input and output."""

    x: np.float32
    y: np.float32

    def count(self, x: np.float32) -> int:
        """Count a place in input steps, rounded half away from zero and saturated to int16."""
        return int(np.clip(half_away(np.float64(x) / np.float64(self.x)), _LOW, _HIGH))


def piecewise_table(
    op_type: str,
    attributes: Attributes,
    constants: Constants,
    *,
    input_step: float,
    output_step: float,
    upper: float = np.inf,
) -> PiecewiseTable:
    """Compute the table of an HzLut2Layer. All arithmetic is float32 unless it says otherwise.

    Args:
        op_type: Operator of the calibrated model.
        attributes: Its attributes.
        constants: Its constant inputs: the exponent of a Pow, the bounds of a Clip.
        input_step: Step of the int16 input.
        output_step: Step of the output.
        upper: Largest input that occurs; 0 for the Exp that a quantized Softmax is made of.

    Raises:
        UnsupportedError: No table of this operator has been seen.
    """
    function = curve(op_type, attributes, constants)
    steps = Steps(np.float32(input_step), np.float32(output_step))
    if op_type in _TWO_LINES:
        return _two_lines(function, steps)
    low, high = domain(op_type, attributes, constants, input_step=steps.x, output_step=steps.y)
    if op_type == "Sign":
        # All it does lies within the first step.
        edges = np.array([0] * 6 + [steps.x], np.float32)
    else:
        edges = borders(function, low, min(high, np.float32(upper)))
    entries, lines = [], []
    for left, right in pairwise(edges):
        entries.append(_entries(function, left, right, steps))
        lines.append(_index_line(left, right, steps))
    top = min(np.float32(_HIGH) * steps.x, np.float32(upper))
    first, last = _end_lines(
        function, edges, steps, top=top, pole=op_type in _WITH_POLE, mirrored=op_type in _FROM_ZERO
    )
    return _packed(
        [first, *lines, last],
        np.concatenate(entries),
        [*(steps.count(edge) for edge in edges), steps.count(top)],
        _symmetry(op_type, constants),
    )


def domain(
    op_type: str,
    attributes: Attributes,
    constants: Constants,
    *,
    input_step: np.float32,
    output_step: np.float32,
) -> tuple[np.float32, np.float32]:
    """Return the float32 range over which the six tables are spread.

    That is what int16 reaches, limited to where the function bends. Of functions with a pole at
    zero, it begins where the output reaches int16's end.
    """
    low = np.float32(_LOW) * input_step
    high = np.float32(_HIGH) * input_step
    if op_type in _FROM_ZERO:
        low = np.float32(0)
    top = np.float32(_HIGH) * output_step
    one = np.float32(1)
    if op_type == "Log":
        return np.float32(np.exp(-np.float64(top))), high
    if op_type == "Reciprocal":
        return one / top, high
    if op_type == "HzRsqrt":
        begin = (one / top) * (one / top) - np.float32(attributes.get("epsilon", 0.0))
        return max(begin, np.float32(0)), high
    limits = _RANGES.get(op_type, (-np.inf, np.inf))
    if op_type == "Clip":
        limits = (constants[0], constants[1])
    return max(low, np.float32(limits[0])), min(high, np.float32(limits[1]))


def line(slope: float, intercept: float) -> Line:
    """Write ``slope * q + intercept`` in integers, in float64, rounding half away from zero.

    The shift to the right is the largest at which scale and bias fit, 16 at most (15 for a
    constant); the bias is then shifted until it has 15 bits. What fits at no shift, infinities
    included, saturates: the scale at 32767 and -32767, the bias at the ends of int16.
    """
    shift = 16.0 if slope else 15.0
    if slope:
        shift = min(shift, np.floor(np.log2(_HIGH / abs(slope))))
    if intercept:
        shift = min(shift, np.floor(np.log2(_HIGH * 2.0**15 / abs(intercept))))
    right = max(int(shift), 0) if np.isfinite(shift) else 0
    scale = int(np.clip(half_away(slope * 2.0**right), -_HIGH, _HIGH))
    if not intercept:
        return Line(scale=scale, bias=0, left_shift=0, right_shift=right)
    exact = intercept * 2.0**right
    left = int(np.clip(np.floor(np.log2(abs(exact))) - 14, 0, 15))
    if abs(half_away(exact / 2.0**left)) > _HIGH and left < 15:
        left += 1
    bias = int(np.clip(half_away(exact / 2.0**left), _LOW, _HIGH))
    return Line(scale=scale, bias=bias, left_shift=left, right_shift=right)


def _symmetry(op_type: str, constants: Constants) -> Symmetry:
    even_power = op_type == "Pow" and constants[0] % 2 == 0
    if op_type in _EVEN or even_power:
        return "Y_SYMMETRIC"
    return "ORIGIN_SYMMETRIC" if op_type in _ODD or op_type == "Pow" else "NONE"


def _entries(
    function: Curve, left: np.float32, right: np.float32, steps: Steps
) -> NDArray[np.float64]:
    """Sample the function at 64 equidistant points, in output steps.

    What no int32 can hold becomes the smallest int16, whatever its sign.
    """
    places = np.arange(_ENTRIES).astype(np.float32)
    x = left + (right - left) / np.float32(_ENTRIES - 1) * places
    with np.errstate(all="ignore"):
        y = (function(x) / steps.y).astype(np.float64)
        lost = ~(np.abs(y) < 2.0**31)
    return np.where(lost, _LOW, np.clip(half_away(y), _LOW, _HIGH))


def _index_line(left: np.float32, right: np.float32, steps: Steps) -> Line:
    """Return the line from input steps to 1/256 entries of the table between two borders."""
    density = np.float32(_INDEX_STEPS) / (right - left) if right > left else np.float32(0)
    return line(float(density * steps.x), float(-density * left))


def _two_lines(function: Curve, steps: Steps) -> PiecewiseTable:
    """Tabulate a function that is straight on both sides of zero."""
    ratio = np.float64(steps.x) / np.float64(steps.y)
    ends = function(np.array([-1.0, 1.0]))
    constant = Line(scale=0, bias=0, left_shift=0, right_shift=15)
    first, last = line(-float(ends[0]) * ratio, 0.0), line(float(ends[1]) * ratio, 0.0)
    return _packed(
        [first, *[constant] * 6, last], np.zeros(6 * _ENTRIES), [0] * 7 + [_HIGH], "NONE"
    )


def _end_lines(
    function: Curve,
    edges: NDArray[np.float32],
    steps: Steps,
    *,
    top: np.float32,
    pole: bool,
    mirrored: bool,
) -> tuple[Line, Line]:
    """Return the lines in front of the first border and behind the last.

    Each goes through the function at its border. Where the range goes on there, it leads to the
    function at the end of the range; else it is the secant of the outermost table interval.

    Args:
        function: The function.
        edges: float32 ``(7,)``, the borders.
        steps: Steps of the input and the output.
        top: Where the range ends.
        pole: Whether the function has a pole at zero, where the line in front begins.
        mirrored: Whether the range begins at zero.
    """
    intervals = np.float32(_ENTRIES - 1)
    first, second, before, last = edges[0], edges[1], edges[5], edges[6]
    bottom = np.float32(_LOW) * steps.x
    if pole:
        left = _BESIDE_POLE, first
    elif not mirrored and steps.count(first) > _LOW:
        left = bottom, first
    else:
        left = first, first + (second - first) / intervals
    right = last, top
    if steps.count(last) == steps.count(top):
        right = last - (last - before) / intervals, last
    return _secant(function, left, first, steps), _secant(function, right, last, steps)


def _secant(
    function: Curve, between: tuple[np.float32, np.float32], through: np.float32, steps: Steps
) -> Line:
    """Return the line with the slope between two places, through the function at a third."""
    x = np.array([*between, through], np.float32)
    y = function(x)
    with np.errstate(all="ignore"):
        slope = (y[1] - y[0]) / (x[1] - x[0]) if x[1] > x[0] else np.float32(0)
        intercept = y[2] - slope * x[2]
        return line(float(slope * steps.x / steps.y), float(intercept / steps.y))


def _packed(
    lines: list[Line],
    entries: NDArray[np.float64],
    bounds: Sequence[float],
    symmetry: Symmetry,
) -> PiecewiseTable:
    return PiecewiseTable(
        bound=np.array(bounds).astype(np.int64),
        scale=np.array([each.scale for each in lines]),
        bias=np.array([each.bias for each in lines]),
        left_shift=np.array([each.left_shift for each in lines]),
        right_shift=np.array([each.right_shift for each in lines]),
        table=entries.astype(np.int16),
        symmetry=symmetry,
    )
