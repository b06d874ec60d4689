"""Conv and ConvTranspose: weights, biases and shifts, per output channel.

With the steps ``x`` of the input, ``w`` of a channel's weights and ``y`` of the output, an
accumulator counts in ``x * w`` (rounded to float32), and ``r = x * w / y`` (float64) leads from
there to the output. Both shifts of the chip round down; what makes the result round to nearest is
half an output step that the converter adds to the bias. Weights and biases are rounded half away
from zero. Measured against HMCT 1.1.0 on all channels of 24 layers and of 131 models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from hbdebug.lowering.elementwise import BERNOULLI2
from hbdebug.lowering.mantissa import (
    MULTIPLIER_MAX,
    Rescale,
    channel_rescale,
    half_away,
    mantissa,
)
from hbdebug.lowering.steps import step_of_threshold

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats: TypeAlias = NDArray[np.float32]
    Doubles: TypeAlias = NDArray[np.float64]

# A channel whose factor is smaller would need shifts that the chip does not have: its weights are
# counted in larger steps instead, so that most of them become zero.
_FACTOR_MIN = {8: 2.0**-23, 16: 2.0**-15}
_FACTOR_MAX = 32767.0

# Likewise for accumulators that are the output: the step they count in, with and without bias.
_SUM_STEP_MIN = np.float32(2.0**-23)
_SUM_STEP_MIN_UNBIASED = np.float32(2.0**-24)
_SUM_STEP_MAX = np.float32(32767)

_BIAS_MIN, _BIAS_MAX = -(2.0**30), 2.0**30 - 1

# int16 inputs leave the accumulator this many bits that int8 inputs do not fill.
_INT16_SHIFT = 8

# What the bias of a ConvTranspose, or of any Conv on bernoulli2, keeps besides its sign.
_BIAS_BITS = 15


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResidualIntegers:
    """How a residual operand is added to the accumulator: ``S * multiplier << shift``.

    Attributes:
        multiplier: int64 ``(Cout,)``.
        shift: int64 ``(Cout,)``; negative shifts go to the right, rounding down.
    """

    multiplier: NDArray[np.int64]
    shift: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ConvIntegers:
    """The integers of one convolution with a quantized output.

    Attributes:
        weight: int8, the layout of the float weight.
        bias: int32 ``(Cout,)``, half an output step for rounding included. It is shifted to the
            left by ``bias_shift`` before it is added.
        bias_shift: int64 ``(Cout,)``; zero but for a ConvTranspose, and on bernoulli2.
        rescale: From accumulator to output.
        residual: How the residual operand is added; None without one.
        weight_step: float32 ``(Cout,)``, the steps the weights are counted in.
        requantized: bool ``(Cout,)``: channels whose weights had to be counted in other steps than
            their threshold says. All are close to dead, or explode.
    """

    weight: NDArray[np.int8]
    bias: NDArray[np.int32]
    bias_shift: NDArray[np.int64]
    rescale: Rescale
    residual: ResidualIntegers | None
    weight_step: Floats
    requantized: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SumIntegers:
    """The integers of a convolution that gives its int32 accumulators.

    Attributes:
        weight: int8, the layout of the float weight.
        bias: int32 ``(Cout,)``, without rounding term; None if the float node has none.
        bias_shift: int64 ``(Cout,)``, as in `ConvIntegers`.
        step: float32 ``(Cout,)``, what one of an accumulator is worth: the scale of the
            HzDequantize that follows.
        residual: How the residual operand is added; None without one.
        requantized: bool ``(Cout,)``, as in `ConvIntegers`.
    """

    weight: NDArray[np.int8]
    bias: NDArray[np.int32] | None
    bias_shift: NDArray[np.int64]
    step: Floats
    residual: ResidualIntegers | None
    requantized: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Derivation:
    """A convolution of the calibrated model with the integers that were derived for it.

    Attributes:
        weight: float32, as the node has it.
        bias: float32 ``(Cout,)``, or None.
        threshold: float32, largest absolute weight of each output channel, or of all.
        input_step: Step of X as the convolution reads it.
        input_bits: Width of X as the convolution reads it.
        output_step: Step of the output; 0 where that is an int32 sum.
        output_bits: Width of the output: 8, 16 or 32.
        integers: What was derived.
    """

    weight: Floats
    bias: Floats | None
    threshold: Floats
    input_step: float
    input_bits: int
    output_step: float
    output_bits: int
    integers: ConvIntegers | SumIntegers


def convolution(
    weight: Floats,
    bias: Floats | None,
    *,
    threshold: ArrayLike,
    input_step: float,
    output_step: float,
    input_bits: int = 8,
    output_bits: int = 8,
    residual_step: float | None = None,
    march: str = "bayes-e",
) -> ConvIntegers:
    """Derive a Conv with its Relu and residual Add, if it has them.

    Args:
        weight: float32 ``[Cout, Cin/group, *kernel]``.
        bias: float32 ``(Cout,)``, or None.
        threshold: Largest absolute weight of each output channel, or of all.
        input_step: Step of X.
        output_step: Step of the output behind Relu and Add.
        input_bits: Width of X, 8 or 16.
        output_bits: Width of the output, 8 or 16.
        residual_step: Step of the residual operand; None without one.
        march: bernoulli2 adds residuals with a multiplier alone, and its biases have 16 bits and
            a shift like those of a ConvTranspose.

    Returns:
        Weight in the layout given; transpose it to ``[Cout, *kernel, Cin/group]`` for the file.
    """
    steps = _channels(threshold, len(weight))
    weight_step, requantized = _weight_steps(steps, input_step, output_step, output_bits)
    sum_step = _sum_step(input_step, weight_step)
    factor = sum_step / np.float64(np.float32(output_step))
    integers, shift = _stored_bias(_bias(bias, sum_step, factor), narrow=march == BERNOULLI2)
    return ConvIntegers(
        weight=_weights(weight, weight_step),
        bias=integers,
        bias_shift=shift,
        rescale=channel_rescale(
            factor, output_bits, least_shift=_INT16_SHIFT if input_bits == 16 else 0
        ),
        residual=None if residual_step is None else _residual(residual_step, sum_step, march),
        weight_step=weight_step,
        requantized=requantized,
    )


def transposed_convolution(
    weight: Floats,
    bias: Floats | None,
    *,
    threshold: ArrayLike,
    input_step: float,
    output_step: float,
    group: int = 1,
) -> ConvIntegers:
    """Derive a ConvTranspose, which takes and gives int8 whatever its neighbours do.

    Output channel ``c`` of group ``g`` has threshold ``g * Cout/group + c``. The bias keeps 16
    bits and a shift; the bits below are cut off towards zero.

    Args:
        weight: float32 ``[Cin, Cout/group, *kernel]``.
        bias: float32 ``(Cout,)``, or None.
        threshold: Largest absolute weight of each output channel, or of all.
        input_step: Step of X in int8.
        output_step: Step of the output in int8.
        group: Number of groups.
    """
    rows, per_group = weight.shape[0] // group, weight.shape[1]
    kernel = weight.shape[2:]
    by_channel = weight.reshape(group, rows, per_group, *kernel).swapaxes(1, 2)
    plain = convolution(
        by_channel.reshape(group * per_group, rows, *kernel),
        bias,
        threshold=threshold,
        input_step=input_step,
        output_step=output_step,
    )
    restored = plain.weight.reshape(group, per_group, rows, *kernel).swapaxes(1, 2)
    integers, shift = _stored_bias(plain.bias.astype(np.float64), narrow=True)
    return ConvIntegers(
        weight=restored.reshape(weight.shape),
        bias=integers,
        bias_shift=shift,
        rescale=plain.rescale,
        residual=None,
        weight_step=plain.weight_step,
        requantized=plain.requantized,
    )


def convolution_sums(
    weight: Floats,
    bias: Floats | None,
    *,
    threshold: ArrayLike,
    input_step: float,
    residual_step: float | None = None,
    march: str = "bayes-e",
) -> SumIntegers:
    """Derive a Conv whose output nothing quantizes: a graph output, or a float operator's input.

    Args:
        weight: float32 ``[Cout, Cin/group, *kernel]``.
        bias: float32 ``(Cout,)``, or None.
        threshold: Largest absolute weight of each output channel, or of all.
        input_step: Step of X.
        residual_step: Step of the residual operand; None without one.
        march: bernoulli2 differs as in `convolution`.
    """
    step = np.float32(input_step)
    low = _SUM_STEP_MIN if bias is not None else _SUM_STEP_MIN_UNBIASED
    steps = _channels(threshold, len(weight))
    sums = step * steps
    too_small, too_large = sums < low, sums > _SUM_STEP_MAX
    steps = np.where(too_small, low / step, np.where(too_large, _SUM_STEP_MAX / step, steps))
    sums = step * steps
    integers, shift = None, np.zeros(len(weight), np.int64)
    if bias is not None:
        exact = half_away(bias.astype(np.float64) / sums.astype(np.float64))
        exact = np.clip(exact, _BIAS_MIN, _BIAS_MAX)
        integers, shift = _stored_bias(exact, narrow=march == BERNOULLI2)
    return SumIntegers(
        weight=_weights(weight, steps),
        bias=integers,
        bias_shift=shift,
        step=sums,
        residual=None
        if residual_step is None
        else _residual(residual_step, sums.astype(np.float64), march),
        requantized=too_small | too_large,
    )


def _channels(threshold: ArrayLike, count: int) -> Floats:
    """Return the int8 step of each output channel."""
    steps = step_of_threshold(threshold, 8).reshape(-1)
    return np.broadcast_to(steps, (count,)).copy()


def _weight_steps(
    steps: Floats, input_step: float, output_step: float, output_bits: int
) -> tuple[Floats, NDArray[np.bool_]]:
    """Limit the factor of each channel; return the steps of the weights, and which changed."""
    x, y = np.float64(np.float32(input_step)), np.float64(np.float32(output_step))
    factor = _sum_step(input_step, steps) / y
    least = _FACTOR_MIN[output_bits]
    low, high = factor < least, factor > _FACTOR_MAX
    limited = np.where(low, least * y / x, np.where(high, _FACTOR_MAX * y / x, steps))
    return limited.astype(np.float32), low | high


def _sum_step(input_step: float, weight_step: Floats) -> Doubles:
    """Return what one of an accumulator is worth: the float32 product, widened."""
    product: Floats = np.float32(input_step) * weight_step
    return product.astype(np.float64)


def _weights(weight: Floats, steps: Floats) -> NDArray[np.int8]:
    exact = weight.astype(np.float64)
    exact /= steps.astype(np.float64).reshape((-1,) + (1,) * (weight.ndim - 1))
    return np.clip(half_away(exact), -128, 127).astype(np.int8)


def _bias(bias: Floats | None, sum_step: Doubles, factor: Doubles) -> Doubles:
    """Count the bias in accumulator steps and add half an output step, in whole numbers."""
    values = np.zeros(len(sum_step)) if bias is None else bias.astype(np.float64)
    half_step = np.floor(0.5 / factor + 0.5)
    return np.clip(half_away(values / sum_step) + half_step, _BIAS_MIN, _BIAS_MAX)


def _stored_bias(wide: Doubles, *, narrow: bool) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return a bias as the file has it, and its shift: 16 bits where it is ``narrow``."""
    shift = np.zeros(len(wide), np.int64)
    if narrow:
        # Two's complement: -32768 needs no more bits than 32767.
        length = np.frexp(np.where(wide < 0, -wide - 1, wide))[1].astype(np.int64)
        shift = np.maximum(length - _BIAS_BITS, 0)
    return np.trunc(np.ldexp(wide, -shift.astype(np.int32))).astype(np.int32), shift


def _residual(step: float, sum_step: Doubles, march: str) -> ResidualIntegers:
    """Derive the factor from residual steps to accumulator steps."""
    factor = np.float64(np.float32(step)) / sum_step
    if march == BERNOULLI2:
        whole = half_away(factor).astype(np.int64)
        return ResidualIntegers(multiplier=whole, shift=np.zeros_like(whole))
    multiplier, total = mantissa(factor)
    return ResidualIntegers(multiplier=np.minimum(multiplier, MULTIPLIER_MAX), shift=-total)
