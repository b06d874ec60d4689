"""The steps that integers count, constants counted in them, and changes from one to another.

A step is what the file calls a scale: the real value of one. Steps are float32, and every product
and quotient of steps is rounded to float32 where this says so (measured against HMCT 1.1.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.lowering.mantissa import LARGEST, MULTIPLIER_MAX, half_away, mantissa

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Two steps whose ratio is closer to one than this need no HzRequantize between them.
_SAME = 2.0**-17


@dataclass(frozen=True, kw_only=True, slots=True)
class Requantization:
    """The numbers of an HzRequantize: ``y = saturate(round_half_up(x * multiplier >> shift))``."""

    multiplier: int
    shift: int


def step_of_threshold(threshold: ArrayLike, bits: int) -> NDArray[np.float32]:
    """Return ``threshold / 127`` (or 32767), divided in float32.

    Weights use it, and tensors that an operator takes or gives in another width than their
    HzCalibration says. Other activations use the scale as the file states it.

    Args:
        threshold: Largest absolute values, any shape.
        bits: 8 or 16.
    """
    steps: NDArray[np.float32] = np.asarray(threshold, np.float32) / np.float32(LARGEST[bits])
    return steps


def same_step(first: float, second: float) -> bool:
    """Whether two steps are so close that the converter takes them as one."""
    return bool(abs(np.float64(first) / np.float64(second) - 1) < _SAME)


def requantization(input_step: float, output_step: float) -> Requantization:
    """Derive an HzRequantize.

    The ratio is divided in *float32*; its mantissa is rounded half away and limited to 32767.
    Ratios of 32768 and more, which no shift to the left would follow, end at a shift of 0.

    Args:
        input_step: Step of the integers that come in.
        output_step: Step of those that go out.
    """
    ratio = np.float32(input_step) / np.float32(output_step)
    multiplier, shift = mantissa(ratio)
    return Requantization(
        multiplier=min(int(multiplier), MULTIPLIER_MAX), shift=int(np.clip(shift, 0, 31))
    )


def constant_steps(values: ArrayLike, step: float, bits: int) -> NDArray[np.int64]:
    """Count a constant operand, or the value of a Pad, in steps.

    The quotient is taken in float32 and rounded half away from zero, unlike activations, which
    are rounded to even (`hbdebug.quant`).

    Args:
        values: float32 values, any shape.
        step: Their step.
        bits: 8 or 16.

    Returns:
        Integers of that width, in int64.
    """
    exact = np.asarray(values, np.float32) / np.float32(step)
    largest = LARGEST[bits]
    return np.clip(half_away(exact), -largest - 1, largest).astype(np.int64)
