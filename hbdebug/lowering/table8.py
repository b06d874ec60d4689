"""Tables of 256 entries: what HzLut looks int8 values up in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hbdebug.lowering.mantissa import half_away

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hbdebug.lowering.curves import Curve


def table8(function: Curve, input_step: float, output_step: float) -> NDArray[np.int8]:
    """Compute the table of an HzLut.

    For q in -128 ... 127: ``x = float32(q * input_step)``, ``y = float32(f(float64(x)))``,
    ``v = float32(y / output_step)``; entries are v rounded half away from zero and saturated, and
    -128 where f is not a number (measured against HMCT 1.1.0: 1,640 tables, no entry differs).

    Args:
        function: f, from `hbdebug.lowering.curves.curve`.
        input_step: Step of the input.
        output_step: Step of the output.

    Returns:
        int8 ``(256,)``; the entry of q is at ``q + 128``.
    """
    x = np.arange(-128, 128).astype(np.float32) * np.float32(input_step)
    with np.errstate(all="ignore"):
        y = np.asarray(function(x.astype(np.float64)), np.float64).astype(np.float32)
        whole = half_away(y / np.float32(output_step))
    return np.where(np.isnan(whole), -128, np.clip(whole, -128, 127)).astype(np.int8)
