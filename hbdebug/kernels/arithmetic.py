"""Fixed-point arithmetic of the chip, on floats that hold exact integers.

The chip sums products in int32, wrapping around; shifts right; saturates to int16; multiplies by a
scale; shifts right again; saturates to the output type. Here the sum is a float32 or float64 array
with a known bound, because BLAS and vector units are fastest on floats: every integer up to 2^24
(2^53) is a float32 (float64), so sums that stay below are exact in any order, and a product with a
power of two and `floor` are the chip's shift. A bound that is not met is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels.outcome import AccumulatorReport, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

INT_TYPES = {8: np.int8, 16: np.int16, 32: np.int32}
"""Type of an output of so many bits."""

_MIDDLE_MIN, _MIDDLE_MAX = -(1 << 15), (1 << 15) - 1
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_WORD = float(1 << 32)

# Elements that all passes of a rescaling go over before the next ones: they stay in the cache.
_BLOCK = 1 << 15


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Accumulator:
    """Sums before they wrap to 32 bits.

    Attributes:
        values: float32 or float64 array of integers, exact; the last axis holds the channels.
        bound: No absolute value exceeds it, whatever the input.
    """

    values: NDArray[Any]
    bound: int

    def __post_init__(self) -> None:
        """Refuse a type that cannot hold the bound exactly."""
        assert self.values.dtype in {np.dtype(exact_float(self.bound)), np.dtype(np.float64)}

    def plus(self, values: NDArray[Any], bound: int) -> Accumulator:
        """Add values that broadcast and whose absolute value does not exceed ``bound``."""
        total = exact_float(self.bound + bound)
        wide = self.values.astype(total, copy=False)
        return Accumulator(values=wide + values.astype(total, copy=False), bound=self.bound + bound)

    def wrapped(self) -> NDArray[Any]:
        """Return the values modulo 2^32, in the range of int32."""
        if self.bound <= _INT32_MAX:
            return self.values
        turns: NDArray[np.float64] = np.floor((self.values + float(1 << 31)) / _WORD)
        turns *= _WORD
        return self.values - turns


def exact_float(bound: int) -> type[np.float32 | np.float64]:
    """Return the narrowest float type that holds every integer up to ``bound``.

    Raises:
        UnsupportedError: There is none. No file of the converter comes near.
    """
    if bound <= 1 << 24:
        return np.float32
    if bound <= 1 << 53:
        return np.float64
    raise UnsupportedError(f"sums up to {bound:.3g} are too large for exact arithmetic")


def magnitude(x: NDArray[Any]) -> int:
    """Return the largest absolute value that the integer type of an array can hold."""
    return -int(np.iinfo(x.dtype).min)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Stage:
    """The way from the accumulator to the output.

    Attributes:
        shift: Right shift of the accumulator, per channel or one.
        scale: Multiplier of the int16 in the middle, |scale| <= 2^15, per channel or one.
        out_shift: Right shift of the product, per channel or one.
        bits: Width of the output, 8 or 16.
        round_shift: Whether the first shift rounds half up; it floors otherwise.
        round_out_shift: Whether the second does.
        relu: Whether negative results become 0.
    """

    shift: NDArray[np.int64]
    scale: NDArray[np.int64]
    out_shift: NDArray[np.int64]
    bits: int
    round_shift: bool = False
    round_out_shift: bool = False
    relu: bool = False


def stage(
    name: str,
    shift: Sequence[int] | None,
    scale: Sequence[int] | None,
    out_shift: Sequence[int] | None,
    bits: int,
    **rounding: bool,
) -> Stage:
    """Build a `Stage` from attributes, checked.

    Raises:
        UnsupportedError: An attribute is missing, or a value is beyond what the chip takes.
    """
    if shift is None or scale is None or out_shift is None or bits not in {8, 16}:
        raise UnsupportedError(f"{name} cannot give {bits} bits with the attributes it has")
    factors = np.asarray(scale, np.int64).reshape(-1)
    if np.abs(factors).max() > 1 << 15:
        raise UnsupportedError(f"{name} has a scale beyond 16 bits: {np.abs(factors).max()}")
    return Stage(
        shift=shifts(name, shift),
        scale=factors,
        out_shift=shifts(name, out_shift),
        bits=bits,
        **rounding,
    )


def shifts(name: str, values: Sequence[int] | int) -> NDArray[np.int64]:
    """Return shift counts as an array of one dimension.

    Raises:
        UnsupportedError: One is negative or above 31.
    """
    counts = np.asarray(values, np.int64).reshape(-1)
    if counts.min() < 0 or counts.max() > 31:
        raise UnsupportedError(f"{name} shifts by {counts.min()}...{counts.max()} bits, not 0...31")
    return counts


def check_channels(values: NDArray[Any], channels: int) -> None:
    """Refuse a list that has neither one value nor one for each channel.

    Raises:
        UnsupportedError: It has another number of values.
    """
    if values.size not in {1, channels}:
        raise UnsupportedError(f"{values.size} scales or shifts do not fit {channels} channels")


def power_of_two(exponents: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 2^exponents, exact."""
    powers: NDArray[np.float64] = np.ldexp(1.0, exponents)
    return powers


def add_rounding_bias(accumulator: Accumulator, stage: Stage) -> Accumulator:
    """Add half an output step, as ``add_rounding_bias = 1`` of bernoulli2 does.

    The bias is ``rint(0.5 * 2^(shift + out_shift) / scale)``, ties to even, and both shifts floor.
    """
    channels = accumulator.values.shape[-1]
    for values in (stage.shift, stage.scale, stage.out_shift):
        check_channels(values, channels)
    steps = power_of_two(stage.shift + stage.out_shift)
    bias = np.rint(0.5 * steps / stage.scale.astype(np.float64))
    return accumulator.plus(bias, int(np.abs(bias).max()))


def rescale(accumulator: Accumulator, stage: Stage, *, report: bool) -> Outcome:
    """Wrap, shift, saturate to int16, scale, shift, saturate.

    ``saturate(shift(saturate16(shift(wrap32(acc), shift)) * scale, out_shift))``, with the
    rounding of the stage; Relu comes before the last saturation. Measured against HMCT 1.1.0.

    Args:
        accumulator: The sums.
        stage: Shifts and scales; lists of more than one value run along the last axis.
        report: Whether to count what saturates; costs a few passes more.
    """
    values = np.ascontiguousarray(accumulator.wrapped())
    y = np.empty(values.shape, INT_TYPES[stage.bits])
    source, target = values.reshape(-1), y.reshape(-1)
    channels = values.shape[-1] if values.ndim else 1
    rows = max(1, min(_BLOCK, source.size) // max(1, channels))
    down = _pattern(power_of_two(-stage.shift), channels, rows).astype(values.dtype)
    factor = _pattern(stage.scale * power_of_two(-stage.out_shift), channels, rows)
    highest = (1 << (stage.bits - 1)) - 1
    lowest = 0 if stage.relu else -highest - 1
    counts = [0, 0]
    for start in range(0, source.size, rows * channels):
        part = source[start : start + rows * channels]
        middle = part * _head(down, part.size)
        _shifted(middle, rounds=stage.round_shift)
        if report:
            counts[0] += _outside(middle, _MIDDLE_MIN, _MIDDLE_MAX)
        np.clip(middle, _MIDDLE_MIN, _MIDDLE_MAX, out=middle)
        wide = np.multiply(middle, _head(factor, part.size), dtype=np.float64)
        _shifted(wide, rounds=stage.round_out_shift)
        if report:
            counts[1] += _outside(wide, -np.inf if stage.relu else lowest, highest)
        np.clip(wide, lowest, highest, out=wide)
        np.copyto(target[start : start + part.size], wide, casting="unsafe")
    return Outcome(outputs=(y,), accumulator=_report(accumulator, counts) if report else None)


def raw(accumulator: Accumulator, *, relu: bool, report: bool) -> Outcome:
    """Return the accumulator itself, wrapped to int32; scales are not used."""
    values = accumulator.wrapped()
    if relu:
        values = np.maximum(values, 0)
    return Outcome(
        outputs=(values.astype(np.int32),),
        accumulator=_report(accumulator, [0, 0]) if report else None,
    )


def _pattern(values: NDArray[np.float64], channels: int, rows: int) -> NDArray[np.float64]:
    """Repeat per-channel values for a block of rows; one value stays one."""
    if values.size == 1:
        return values
    check_channels(values, channels)
    # The same as np.tile, which takes several times as long on few elements.
    return np.broadcast_to(values, (rows, channels)).reshape(-1)


def _head(pattern: NDArray[Any], size: int) -> NDArray[Any]:
    return pattern if pattern.size == 1 else pattern[:size]


def _shifted(values: NDArray[Any], *, rounds: bool) -> None:
    if rounds:
        # Half up, for negative values too; without a shift the sum floors to what it was. Where
        # float32 cannot hold the half, from 2^23 on, int16 saturates anyway.
        values += 0.5
    np.floor(values, out=values)


def _outside(values: NDArray[Any], lowest: float, highest: float) -> int:
    # Most blocks hold no such value, and two reductions cost less than two masks.
    if values.min() >= lowest and values.max() <= highest:
        return 0
    return int(np.count_nonzero((values < lowest) | (values > highest)))


def _report(accumulator: Accumulator, counts: list[int]) -> AccumulatorReport:
    values = accumulator.values
    wraps = accumulator.bound > _INT32_MAX
    return AccumulatorReport(
        smallest=int(values.min(initial=np.inf)) if values.size else 0,
        largest=int(values.max(initial=-np.inf)) if values.size else 0,
        wrapped=_outside(values, _INT32_MIN, _INT32_MAX) if wraps and values.size else 0,
        saturated_middles=counts[0],
        saturated_outputs=counts[1],
        elements=values.size,
    )
