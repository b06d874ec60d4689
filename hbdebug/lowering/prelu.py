"""PRelu, and LeakyRelu on bernoulli2: slopes as integers.

Measured against HMCT 1.1.0. The step of the slopes comes from the *signed* maximum, so that a
negative slope of larger magnitude wraps around int16 and becomes another one, often of the other
sign. `PReluIntegers.wrapped` says where; the chip computes what wraps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.lowering.elementwise import multiplication
from hbdebug.lowering.mantissa import half_away

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hbdebug.lowering.mantissa import Rescale

_SHIFT_MAX = 15


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PReluIntegers:
    """The integers of a PRelu on bayes and bayes-e.

    Attributes:
        slope: int16, the shape given.
        rescale: From slope times x to output, shape ``()``. Positive x pass: ``x * 1 >> 0``.
        wrapped: bool, the shape given: slopes that came out as other ones.
    """

    slope: NDArray[np.int16]
    rescale: Rescale
    wrapped: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShiftSlopes:
    """The integers of a PRelu or LeakyRelu on bernoulli2.

    A negative x gets ``x * (scale - 2**shift) / 2**shift`` added, rounded half away from zero.

    Attributes:
        scale: int64, the shape of the slopes.
        shift: int64, likewise.
    """

    scale: NDArray[np.int64]
    shift: NDArray[np.int64]


def prelu(slope: NDArray[np.float32], input_step: float, bits: int = 8) -> PReluIntegers:
    """Derive a PRelu for bayes and bayes-e.

    ``step = float32(max(slope) / 32767)``; slopes are counted in it, the quotient in float32,
    rounded half away from zero and wrapped to int16. The output keeps the step of the input, and
    the factor is that of a Mul: ``float32(input * step) / input``, which is not quite ``step``.

    Args:
        slope: float32, any shape. The largest must be positive: what the converter makes of
            others is not known.
        input_step: Step of the input.
        bits: Width of the input and output, 8 or 16.

    Raises:
        ValueError: No slope is positive.
    """
    largest = np.float32(slope.max())
    if not largest > 0:
        raise ValueError("no slope is positive: there is no step to count them in")
    step = largest / np.float32(32767)
    whole = half_away(slope / step).astype(np.int64)
    integers = whole.astype(np.int16)
    return PReluIntegers(
        slope=integers,
        rescale=multiplication(input_step, float(step), input_step, output_bits=bits).rescale,
        wrapped=integers != whole,
    )


def shift_slopes(slope: NDArray[np.float32]) -> ShiftSlopes:
    """Derive a PRelu or LeakyRelu for bernoulli2.

    With ``k = slope - 1``: ``shift = min(floor(log2(127 / |k|)), 15)`` and ``scale =
    floor(k * 2**shift + 0.5) + 2**shift``: rounded half up, unlike other constants. A slope of 1
    has shift 0.

    Args:
        slope: float32, any shape.
    """
    change = slope.astype(np.float64) - 1
    with np.errstate(divide="ignore"):
        exact = np.floor(np.log2(127 / np.abs(change)))
    shift = np.where(change == 0, 0, np.minimum(exact, _SHIFT_MAX)).astype(np.int64)
    scale = np.floor(np.ldexp(change, shift.astype(np.int32)) + 0.5).astype(np.int64)
    return ShiftSlopes(scale=scale + (np.int64(1) << shift), shift=shift)
