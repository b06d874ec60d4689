"""Operators on one element at a time: Mul, Add, Sub, Requantize, the PRelu family, BitShift.

Inputs broadcast as in NumPy; lists of shifts and scales run along the last axis of the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.kernels.arithmetic import (
    Accumulator,
    Stage,
    add_rounding_bias,
    check_channels,
    exact_float,
    magnitude,
    power_of_two,
    rescale,
    shifts,
    stage,
)
from hbdebug.kernels.outcome import Outcome, kernel, unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@kernel(types={"X0": "int8 int16", "X1": "int8 int16"}, ignores=("data_format",))
def HzSElementwiseMul(
    X0: NDArray[Any],
    X1: NDArray[Any],
    *,
    accu_right_shift: Sequence[int],
    output_scale: Sequence[int],
    output_right_shift: Sequence[int],
    output_bit: int = 8,
    rounding_method: str = "FLOOR",
    add_rounding_bias: int = 0,
    report: bool = False,
) -> Outcome:
    """Rescale ``wrap32(X0 * X1)``.

    Args:
        X0: First factor.
        X1: Second factor.
        accu_right_shift: First shift, which floors.
        output_scale: Multiplier.
        output_right_shift: Second shift.
        output_bit: 8 or 16.
        rounding_method: ``ROUND`` (the second shift rounds half up) or ``FLOOR``.
        add_rounding_bias: 1 to add half an output step to the product and floor twice.
        report: Whether to say what the accumulator did.
    """
    bound = magnitude(X0) * magnitude(X1)
    dtype = exact_float(bound)
    accumulator = Accumulator(values=np.multiply(X0, X1, dtype=dtype), bound=bound)
    way = _way(
        "HzSElementwiseMul",
        (accu_right_shift, output_scale, output_right_shift),
        output_bit,
        rounding_method,
    )
    return _finish(accumulator, way, biased=bool(add_rounding_bias), report=report)


@kernel(types={"X0": "int8 int16", "X1": "int8 int16"}, ignores=("data_format",))
def HzSElementwiseAdd(
    X0: NDArray[Any],
    X1: NDArray[Any],
    *,
    x_shift: Sequence[int],
    e_scale: Sequence[int],
    e_shift: Sequence[int],
    accu_right_shift: Sequence[int],
    output_scale: Sequence[int],
    output_right_shift: Sequence[int],
    output_bit: int = 8,
    rounding_method: str = "FLOOR",
    add_rounding_bias: int = 0,
    report: bool = False,
) -> Outcome:
    """Rescale ``wrap32((X0 << x_shift) + ((X1 * e_scale) << e_shift))``.

    Args:
        X0: Summand of the larger scale.
        X1: Summand of the smaller scale.
        x_shift: Left shift of X0.
        e_scale: Multiplier of X1.
        e_shift: Left shift of the product.
        accu_right_shift: First shift, which floors.
        output_scale: Multiplier.
        output_right_shift: Second shift.
        output_bit: 8 or 16.
        rounding_method: ``ROUND`` (the second shift rounds half up) or ``FLOOR``.
        add_rounding_bias: 1 to add half an output step to the sum and floor twice.
        report: Whether to say what the accumulator did.
    """
    name = "HzSElementwiseAdd"
    factor = np.asarray(e_scale, np.int64) * power_of_two(shifts(name, e_shift))
    accumulator = _sum(X0, power_of_two(shifts(name, x_shift)), X1, factor)
    way = _way(
        name, (accu_right_shift, output_scale, output_right_shift), output_bit, rounding_method
    )
    return _finish(accumulator, way, biased=bool(add_rounding_bias), report=report)


@kernel(types={"X0": "int8 int16", "X1": "int8 int16"}, ignores=("data_format",))
def HzSElementwiseSub(
    X0: NDArray[Any],
    X1: NDArray[Any],
    *,
    x_shift: Sequence[int],
    e_scale: Sequence[int],
    accu_right_shift: Sequence[int],
    output_scale: Sequence[int],
    output_right_shift: Sequence[int],
    output_bit: int = 8,
    rounding_method: str = "FLOOR",
    report: bool = False,
) -> Outcome:
    """Rescale ``wrap32((X0 << x_shift) - X1 * e_scale)``.

    Args:
        X0: Operand of the larger scale.
        X1: Operand of the smaller scale.
        x_shift: Left shift of X0.
        e_scale: Multiplier of X1.
        accu_right_shift: First shift, which floors.
        output_scale: Multiplier; negative where the converter swapped the operands.
        output_right_shift: Second shift.
        output_bit: 8 or 16.
        rounding_method: ``ROUND`` (the second shift rounds half up) or ``FLOOR``.
        report: Whether to say what the accumulator did.
    """
    name = "HzSElementwiseSub"
    factor = -np.asarray(e_scale, np.float64)
    accumulator = _sum(X0, power_of_two(shifts(name, x_shift)), X1, factor)
    way = _way(
        name, (accu_right_shift, output_scale, output_right_shift), output_bit, rounding_method
    )
    return _finish(accumulator, way, biased=False, report=report)


@kernel(types={"X": "int8 int16"}, ignores=("axis", "data_format"))
def HzRequantize(
    X: NDArray[Any],
    *,
    output_scale: Sequence[int],
    output_right_shift: Sequence[int],
    bits: int = 8,
    method: str = "",
    add_rounding_bias: int = 0,
    report: bool = False,
) -> Outcome:
    """Change the scale: ``saturate(round_half_up(X * output_scale / 2^output_right_shift))``.

    Args:
        X: Values.
        output_scale: Multiplier.
        output_right_shift: Shift.
        bits: Width of the output, 8 or 16.
        method: Must be ``Rescale``.
        add_rounding_bias: Must be 0.
        report: Whether to say what the accumulator did.
    """
    name = "HzRequantize"
    if method != "Rescale":
        raise unsupported(name, "method", method, "Rescale")
    if add_rounding_bias:
        raise unsupported(name, "add_rounding_bias", add_rounding_bias, "0")
    # No first shift: the input fits the int16 between the shifts as it is.
    way = stage(name, (0,), output_scale, output_right_shift, bits, round_out_shift=True)
    return rescale(_plain(X), way, report=report)


@kernel(types={"X": "int8 int16", "slope": "int16"}, ignores=("data_format",))
def HzSPRelu(
    X: NDArray[Any],
    slope: NDArray[np.int16],
    *,
    accu_right_shift: Sequence[int],
    negative_scale: Sequence[int],
    negative_right_shift: Sequence[int],
    positive_scale: Sequence[int],
    positive_right_shift: Sequence[int],
    report: bool = False,
) -> Outcome:
    """Rescale X where it is positive, and ``X * slope`` elsewhere; results have X's type.

    The positive side has no first shift. The report covers the other side.

    Args:
        X: Values.
        slope: Slopes, which broadcast against X; the converter writes ``[1, 1, 1, C]``.
        accu_right_shift: First shift of the negative side, which floors.
        negative_scale: Multiplier of the negative side.
        negative_right_shift: Second shift of the negative side, which rounds half up.
        positive_scale: Multiplier of the positive side.
        positive_right_shift: Shift of the positive side, which rounds half up.
        report: Whether to say what the accumulator did.
    """
    name, bits = "HzSPRelu", X.dtype.itemsize * 8
    up = stage(name, (0,), positive_scale, positive_right_shift, bits, round_out_shift=True)
    positive = rescale(_plain(X), up, report=False)
    bound = magnitude(X) * magnitude(slope)
    products = np.multiply(np.minimum(X, 0), slope, dtype=exact_float(bound))
    down = stage(
        name,
        accu_right_shift,
        negative_scale,
        negative_right_shift,
        bits,
        round_out_shift=True,
    )
    negative = rescale(Accumulator(values=products, bound=bound), down, report=report)
    y = np.where(X > 0, positive.outputs[0], negative.outputs[0])
    return Outcome(outputs=(y,), accumulator=negative.accumulator)


@kernel(types={"x": "int8"}, ignores=("data_format",))
def HzPRelu(
    x: NDArray[np.int8],
    *,
    alpha_scale: Sequence[int] | int,
    alpha_shift: Sequence[int] | int,
) -> Outcome:
    """Add ``saturate8(round_half_away(min(x, 0) * k / 2^alpha_shift))`` to x, saturating.

    ``k = alpha_scale - 2^alpha_shift``, which stands for the slope minus 1.

    Args:
        x: Values.
        alpha_scale: Slopes in steps of ``2^-alpha_shift``, along the last axis.
        alpha_shift: Their shifts.
    """
    powers = power_of_two(shifts("HzPRelu", alpha_shift))
    factor = np.asarray(alpha_scale, np.float64) / powers - 1
    check_channels(factor, x.shape[-1])
    change = np.minimum(x, 0) * factor
    change = np.copysign(np.floor(np.abs(change) + 0.5), change)
    y = np.clip(x + np.clip(change, -128, 127), -128, 127)
    return Outcome(outputs=(y.astype(np.int8),))


@kernel(types={"x": "int8"}, ignores=("data_format",))
def HzLeakyRelu(x: NDArray[np.int8], *, alpha_scale: int, alpha_shift: int) -> Outcome:
    """Compute `HzPRelu` with one slope.

    Args:
        x: Values.
        alpha_scale: Slope in steps of ``2^-alpha_shift``.
        alpha_shift: Its shift.
    """
    return HzPRelu(x, alpha_scale=alpha_scale, alpha_shift=alpha_shift)


@kernel(types={"X": "int8 int16"}, ignores=("data_format", "output_bit"))
def HzQuantizedBitShift(X: NDArray[Any], *, direction: str, shift: Sequence[int]) -> Outcome:
    """Shift left, saturating, or right, flooring; the type stays.

    Args:
        X: Values.
        direction: ``LEFT`` or ``RIGHT``.
        shift: Number of bits, along the last axis.
    """
    name = "HzQuantizedBitShift"
    if direction not in {"LEFT", "RIGHT"}:
        raise unsupported(name, "direction", direction, "LEFT and RIGHT")
    counts = shifts(name, shift)
    check_channels(counts, X.shape[-1])
    wide = X.astype(np.int64)
    wide = wide << counts if direction == "LEFT" else wide >> counts
    limits = np.iinfo(X.dtype)
    return Outcome(outputs=(np.clip(wide, limits.min, limits.max).astype(X.dtype),))


def _plain(x: NDArray[Any]) -> Accumulator:
    return Accumulator(values=x.astype(np.float32), bound=magnitude(x))


def _sum(
    x0: NDArray[Any], factor0: NDArray[np.float64], x1: NDArray[Any], factor1: NDArray[np.float64]
) -> Accumulator:
    """Return the weighted sum of two integer arrays; the weights are integers."""
    channels = np.broadcast_shapes(x0.shape, x1.shape)[-1]
    for factor in (factor0, factor1):
        check_channels(factor, channels)
    bound = int(magnitude(x0) * factor0.max() + magnitude(x1) * np.abs(factor1).max())
    dtype = exact_float(bound)
    first = np.multiply(x0, factor0.astype(dtype), dtype=dtype)
    second = np.multiply(x1, factor1.astype(dtype), dtype=dtype)
    return Accumulator(values=first + second, bound=bound)


def _way(
    name: str,
    attributes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    bits: int,
    rounding_method: str,
) -> Stage:
    if rounding_method not in {"ROUND", "FLOOR"}:
        raise unsupported(name, "rounding_method", rounding_method, "ROUND and FLOOR")
    return stage(name, *attributes, bits, round_out_shift=rounding_method == "ROUND")


def _finish(accumulator: Accumulator, way: Stage, *, biased: bool, report: bool) -> Outcome:
    if not biased:
        return rescale(accumulator, way, report=report)
    floors = Stage(shift=way.shift, scale=way.scale, out_shift=way.out_shift, bits=way.bits)
    return rescale(add_rounding_bias(accumulator, floors), floors, report=report)
