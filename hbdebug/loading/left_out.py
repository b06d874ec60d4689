"""Relu and Clip that a quantizer took out, because the range of the point behind does their work.

ONNX Runtime's static quantizer, and others, remove a Relu or Clip in front of a QuantizeLinear
whose zero point is its smallest integer: what is below 0 saturates at 0. In the float twin nothing
saturates, so the activation has to be put back, or the float baseline is another network. A lower
end of 0 says that there was one (where values are never negative, it changes nothing). Of the upper
end only 6 is put back, where the range ends there to a float's accuracy: any other end may as well
be the largest value that was seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hbdebug.quant import QuantParams

NEVER_NEGATIVE = frozenset(
    {"Abs", "Clip", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt"}
)
"""Operators behind which no Relu is missing: they make nothing negative, or are one."""

KEEPS_SIGNS = frozenset({"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean"})
"""Operators that make nothing negative of what is not; beside those that only move values."""

_SIX = 6.0
# Six out of 255 steps, a float32 each, is off by less than this.
_ACCURACY = 1e-6


def begins_at_zero(params: QuantParams) -> bool:
    """Whether a grid has no negative numbers."""
    return bool((params.zero_point == params.qmin).all())


def left_out(params: QuantParams) -> tuple[float, float] | None:
    """Return the limits of the activation that a point may stand for, beside rounding.

    Args:
        params: The grid of the point.

    Returns:
        Lower and upper limit, the upper one infinite for a Relu; None where there is none.
    """
    if params.per_channel or not begins_at_zero(params):
        return None
    with np.errstate(all="ignore"):
        top = float(params.scale) * (params.qmax - params.qmin)
    return 0.0, _SIX if abs(top - _SIX) <= _ACCURACY * _SIX else np.inf
