"""GlobalAveragePool, ReduceMean and ReduceSum: the division by the count is in the multiplier.

Measured against HMCT 1.1.0 on 6,000 pairs of vendor input and output, many of them aimed at ties
(the tests hold 150).
"""

from __future__ import annotations

import numpy as np

from hbdebug.lowering.mantissa import Rescale, channel_rescale


def reduction(
    input_step: float, output_step: float, *, count: int = 1, output_bits: int = 8
) -> Rescale:
    """Derive a reduction that gives int8 or int16.

    ``factor = input / float32(output * count)``, the quotient in float64, divided as
    `channel_rescale` does; the multiplier is rounded half up.

    Args:
        input_step: Step of the input.
        output_step: Step of the output.
        count: How many elements a mean is over; 1 for a sum. An integer below 2**24.
        output_bits: 8 or 16.

    Returns:
        Integers of shape ``()``. GlobalAveragePool repeats them for each channel in the file,
        ReduceMean and ReduceSum have one of each.
    """
    divisor = np.float32(output_step) * np.float32(count)
    return channel_rescale(np.float64(np.float32(input_step)) / np.float64(divisor), output_bits)


def sum_step(input_step: float, count: int) -> np.float32:
    """Return what one of an int32 GlobalAveragePool is worth: ``input / count`` in float32."""
    return np.float32(input_step) / np.float32(count)
