"""Mul, Add, Sub and MatMul of two activations: multipliers and shifts per tensor.

Measured against HMCT 1.1.0: Mul, Add and Sub on 3,600 pairs of vendor input and output, many of
them aimed at ties (the tests hold 180). Multipliers are rounded half up, which is half away as all
factors are positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.lowering.mantissa import MULTIPLIER_MAX, Rescale, channel_rescale, tensor_rescale

BERNOULLI2 = "bernoulli2"
"""The march without int16, whose Add and Mul round differently."""

RoundingMethod: TypeAlias = Literal["ROUND", "FLOOR"]

# How far the larger-stepped operand of an Add may be shifted, by its width: as far as its
# accumulator stays within int32.
_OPERAND_SHIFT_MAX = {8: 23, 16: 15}

_BERNOULLI2_SHIFT = 6


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ProductIntegers:
    """The integers of a Mul or MatMul.

    Attributes:
        rescale: From product to output, shape ``()``.
        add_rounding_bias: Whether half an output step is added to the product and both shifts
            round down (bernoulli2), instead of the second shift rounding to nearest.
    """

    rescale: Rescale
    add_rounding_bias: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SumOfTwoIntegers:
    """The integers of an Add or Sub: ``rescale((X << x_shift) +- E * e_scale)``.

    Attributes:
        swapped: Whether X is the second operand. It is the one with the larger step.
        x_shift: Shift of X to the left.
        e_scale: Multiplier of the other operand.
        e_shift: Its shift to the left; always 0.
        rescale: From sum to output, shape ``()``. The multiplier of a swapped Sub is negative.
        rounding_method: How the second shift rounds: ROUND to nearest, halves up; FLOOR down.
    """

    swapped: bool
    x_shift: int
    e_scale: int
    rescale: Rescale
    rounding_method: RoundingMethod
    e_shift: int = 0


def product_step(first_step: float, second_step: float) -> np.float32:
    """Return what one of a product is worth, in float32: the scale behind an int32 MatMul."""
    return np.float32(first_step) * np.float32(second_step)


def multiplication(
    first_step: float,
    second_step: float,
    output_step: float,
    *,
    output_bits: int = 8,
    march: str = "bayes-e",
) -> ProductIntegers:
    """Derive a Mul.

    ``factor = float32(first * second) / output`` in float64, divided as `tensor_rescale` does.

    Args:
        first_step: Step of one operand.
        second_step: Step of the other.
        output_step: Step of the output.
        output_bits: 8 or 16.
        march: bernoulli2 rounds by a bias.
    """
    factor = np.float64(product_step(first_step, second_step)) / _double(output_step)
    return ProductIntegers(
        rescale=tensor_rescale(factor, output_bits), add_rounding_bias=march == BERNOULLI2
    )


def matrix_product(
    first_step: float, second_step: float, output_step: float, *, output_bits: int = 8
) -> ProductIntegers:
    """Derive a MatMul of two activations, both int8 whatever their neighbours are.

    The factor of a Mul, divided as `channel_rescale` does.

    Args:
        first_step: Step of the left matrix in int8.
        second_step: Step of the right one in int8.
        output_step: Step of the output.
        output_bits: 8 or 16.
    """
    factor = np.float64(product_step(first_step, second_step)) / _double(output_step)
    return ProductIntegers(rescale=channel_rescale(factor, output_bits))


def addition(
    first_step: float,
    second_step: float,
    output_step: float,
    *,
    first_bits: int = 8,
    second_bits: int = 8,
    output_bits: int = 8,
    march: str = "bayes-e",
) -> SumOfTwoIntegers:
    """Derive an Add that no convolution takes in.

    With the larger step L, the smaller one S and ``q = S / L`` in float64, X is shifted by the
    largest ``k`` at which ``q * 2**k`` is at most 32767, the logarithm rounded to float32, and by
    at most 23 (X int8) or 15 (int16). ``e_scale = q * 2**k``, rounded half up. The sum counts in
    ``L / 2**k``. On bernoulli2 ``k`` is 6 and the output is rounded down.

    Args:
        first_step: Step of the first operand.
        second_step: Step of the second.
        output_step: Step of the output.
        first_bits: Width of the first operand, 8 or 16.
        second_bits: Width of the second.
        output_bits: Width of the output.
        march: The march.
    """
    swapped = bool(np.float32(second_step) > np.float32(first_step))
    large, small = _double(first_step), _double(second_step)
    bits = first_bits
    if swapped:
        large, small, bits = small, large, second_bits
    ratio = small / large
    if march == BERNOULLI2:
        shift = _BERNOULLI2_SHIFT
    else:
        exact = np.floor(np.float32(np.log2(MULTIPLIER_MAX / ratio)))
        shift = min(int(exact), _OPERAND_SHIFT_MAX[bits])
    return SumOfTwoIntegers(
        swapped=swapped,
        x_shift=shift,
        e_scale=int(np.floor(np.ldexp(ratio, shift) + 0.5)),
        rescale=tensor_rescale(np.ldexp(large, -shift) / _double(output_step), output_bits),
        rounding_method="FLOOR" if march == BERNOULLI2 else "ROUND",
    )


def subtraction(
    first_step: float,
    second_step: float,
    output_step: float,
    *,
    first_bits: int = 8,
    second_bits: int = 8,
    output_bits: int = 8,
    march: str = "bayes-e",
) -> SumOfTwoIntegers:
    """Derive a Sub: an Add whose output multiplier is negative if the operands are swapped.

    Args: as `addition` has them.

    Raises:
        UnsupportedError: On bernoulli2, where a Sub stays float.
    """
    if march == BERNOULLI2:
        raise UnsupportedError(
            "Sub has no integer form on bernoulli2", hint="There it is computed in float."
        )
    plain = addition(
        first_step,
        second_step,
        output_step,
        first_bits=first_bits,
        second_bits=second_bits,
        output_bits=output_bits,
    )
    if not plain.swapped:
        return plain
    return SumOfTwoIntegers(
        swapped=True,
        x_shift=plain.x_shift,
        e_scale=plain.e_scale,
        rescale=Rescale(
            accumulator_shift=plain.rescale.accumulator_shift,
            multiplier=-plain.rescale.multiplier,
            output_shift=plain.rescale.output_shift,
        ),
        rounding_method=plain.rounding_method,
    )


def _double(step: float) -> np.float64:
    """Widen a step, which is float32 however it comes."""
    return np.float64(np.float32(step))
