"""Real factors as an integer multiplier and shifts to the right.

The chip scales an accumulator in two shifts with a product between them, saturating to int16
before the product::

    y = saturate(saturate16(accumulator >> accumulator_shift) * multiplier >> output_shift)

So a factor ``r`` becomes ``multiplier * 2**-(accumulator_shift + output_shift)`` with a multiplier
of 15 bits. How the total shift is divided differs between operators; the two ways are
`channel_rescale` and `tensor_rescale` (measured against HMCT 1.1.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Doubles: TypeAlias = NDArray[np.float64]
    Integers: TypeAlias = NDArray[np.int64]

LARGEST = {8: 127, 16: 32767}
"""Largest integer of each width that activations have."""

MULTIPLIER_MAX = 32767
"""Largest multiplier of per-channel operators."""

_TENSOR_MULTIPLIER_MAX = 32766

_ACCUMULATOR_SHIFT_MAX = 17
_OUTPUT_SHIFT_MAX = 31

# Elementwise operators shift before the product what does not fit behind it.
_TENSOR_OUTPUT_SHIFT = {8: 22, 16: 14}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rescale:
    """How accumulators become outputs.

    Attributes:
        accumulator_shift: int64, first shift to the right.
        multiplier: int64, factor between the shifts.
        output_shift: int64, second shift to the right.

    All have one shape: ``()`` per tensor or ``(channels,)``.
    """

    accumulator_shift: Integers
    multiplier: Integers
    output_shift: Integers

    @property
    def factor(self) -> Doubles:
        """The real factor that the integers stand for, exact in float64."""
        total = self.accumulator_shift + self.output_shift
        return np.ldexp(self.multiplier.astype(np.float64), -total.astype(np.int32))


def half_away(values: ArrayLike) -> Doubles:
    """Round to the nearest integer, halves away from zero, in float64; NaN stays NaN."""
    exact = np.asarray(values, np.float64)
    return np.copysign(np.floor(np.abs(exact) + 0.5), exact)


def mantissa(factor: ArrayLike) -> tuple[Integers, Integers]:
    """Return (m, t) with ``factor`` close to ``m * 2**-t`` and m in 16384 ... 32768.

    The multiplier is rounded half up, which is half away as factors are positive. One that rounds
    to 32768 carries over into no smaller shift: callers limit it, as the converter does.

    Args:
        factor: Positive numbers, taken as float64.
    """
    fraction, exponent = np.frexp(np.asarray(factor, np.float64))
    multiplier = np.floor(fraction * 32768 + 0.5).astype(np.int64)
    return multiplier, 15 - exponent.astype(np.int64)


def channel_rescale(factor: ArrayLike, output_bits: int, *, least_shift: int = 0) -> Rescale:
    """Divide the shift as Conv, ConvTranspose, MatMul and the reductions do.

    The first shift is the smallest at which an accumulator whose output is the largest integer
    fits int16: ``ceil(log2(largest / (32767 * factor)))``, within ``least_shift`` ... 17.

    Args:
        factor: Real factors, positive, shape ``()`` or ``(channels,)``.
        output_bits: 8 or 16.
        least_shift: The first shift is never below it.
    """
    factors = np.asarray(factor, np.float64)
    multiplier, total = mantissa(factors)
    needed = np.ceil(np.log2(LARGEST[output_bits] / (MULTIPLIER_MAX * factors)))
    first = np.clip(needed, least_shift, _ACCUMULATOR_SHIFT_MAX).astype(np.int64)
    return Rescale(
        accumulator_shift=first,
        multiplier=np.minimum(multiplier, MULTIPLIER_MAX),
        output_shift=np.clip(total - first, 0, _OUTPUT_SHIFT_MAX),
    )


def tensor_rescale(factor: ArrayLike, output_bits: int) -> Rescale:
    """Divide the shift as Mul, Add, Sub and PRelu do.

    The second shift is at most 22 (int8 output) or 14 (int16 output) as long as the first can
    take what is beyond, which is 17 at most. The multiplier ends at 32766; a factor that the first
    shift makes exactly 1 becomes ``32766 * 2**-15``.

    Args:
        factor: Real factors, positive.
        output_bits: 8 or 16.
    """
    factors = np.asarray(factor, np.float64)
    multiplier, total = mantissa(factors)
    first = np.clip(total - _TENSOR_OUTPUT_SHIFT[output_bits], 0, _ACCUMULATOR_SHIFT_MAX)
    second = np.clip(total - first, 0, _OUTPUT_SHIFT_MAX)
    one = np.ldexp(factors, first.astype(np.int32)) == 1.0
    return Rescale(
        accumulator_shift=first,
        multiplier=np.where(one, _TENSOR_MULTIPLIER_MAX, np.minimum(multiplier, 32766)),
        output_shift=np.where(one, 15, second),
    )
