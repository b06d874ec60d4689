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

from hbdebug.loading.integer_moves import MOVES

if TYPE_CHECKING:
    from hbdebug.loading.quantize_linear import Grid

_NEVER_NEGATIVE = frozenset(
    {"Abs", "Clip", "Exp", "HardSigmoid", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt"}
)
_COMPLETE = _NEVER_NEGATIVE | MOVES.keys() | {"DequantizeLinear", "HzDequantize"}
"""Operators behind which no Relu is missing: they make nothing negative, or nothing of their own."""

_SIX = 6.0
# Six out of 255 steps, a float32 each, is off by less than this.
_ACCURACY = 1e-6


def left_out(grid: Grid, maker: str) -> tuple[float, float] | None:
    """Return the limits of the activation that a point stands for, beside rounding.

    Args:
        grid: The grid of the point.
        maker: Operator type of the node that makes its input; empty for what the user feeds.

    Returns:
        Lower and upper limit, the upper one infinite for a Relu; None when nothing was left out.
    """
    params = grid.params
    if not maker or maker in _COMPLETE or params.per_channel or params.zero_point != params.qmin:
        return None
    with np.errstate(all="ignore"):
        top = float(params.scale) * (params.qmax - params.qmin)
    return 0.0, _SIX if abs(top - _SIX) <= _ACCURACY * _SIX else np.inf
