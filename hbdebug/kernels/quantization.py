"""The borders of the integer part: from float32 to integers and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels.arithmetic import INT_TYPES
from hbdebug.kernels.outcome import Outcome, kernel, unsupported

if TYPE_CHECKING:
    from numpy.typing import NDArray

_INTEGERS = "int8 int16 int32"
_LIMIT = np.float32(1 << 31)


@kernel(types={"x": "float32", "y_scale": "float32", "y_zero_point": _INTEGERS})
def HzQuantize(
    x: NDArray[np.float32],
    y_scale: NDArray[np.float32] | None = None,
    y_zero_point: NDArray[Any] | None = None,
    *,
    axis: int = 1,
    bits: int = 8,
) -> Outcome:
    """Return ``clip(int32(rint(x / y_scale)))``, the division in float32, ties to even.

    The conversion to int32 comes before the limits of the output type: NaN, infinities and
    quotients from 2^31 on, positive ones too, become the smallest int32 and so the smallest output.

    Args:
        x: Values.
        y_scale: One scale, or one for each index of ``axis``.
        y_zero_point: Must be absent or 0.
        axis: Channel axis if there is more than one scale.
        bits: Width of the output: 8, 16 or 32.
    """
    name = "HzQuantize"
    if bits not in INT_TYPES:
        raise unsupported(name, "bits", bits, "8, 16 and 32")
    scale = _scale(name, y_scale, y_zero_point, x, axis)
    highest = (1 << (bits - 1)) - 1
    with np.errstate(all="ignore"):
        q = x / scale
    np.rint(q, out=q)
    # Not `>=`, which NaN would pass.
    q[~(np.abs(q) < _LIMIT)] = -_LIMIT
    # float32 has no 2^31 - 1, but what is below the limit is at most 2^31 - 128.
    np.clip(q, np.float32(-highest - 1), np.float32(min(highest, (1 << 31) - 128)), out=q)
    return Outcome(outputs=(q.astype(INT_TYPES[bits]),))


@kernel(types={"x": _INTEGERS, "x_scale": "float32", "x_zero_point": _INTEGERS})
def HzDequantize(
    x: NDArray[Any],
    x_scale: NDArray[np.float32] | None = None,
    x_zero_point: NDArray[Any] | None = None,
    *,
    axis: int = 1,
) -> Outcome:
    """Return ``float32(x) * x_scale`` in float32; an int32 is rounded to float32 first.

    Args:
        x: Integers.
        x_scale: One scale, or one for each index of ``axis``.
        x_zero_point: Must be absent or 0.
        axis: Channel axis if there is more than one scale.
    """
    scale = _scale("HzDequantize", x_scale, x_zero_point, x, axis)
    return Outcome(outputs=(x.astype(np.float32) * scale,))


def _scale(
    name: str,
    scale: NDArray[np.float32] | None,
    zero_point: NDArray[Any] | None,
    x: NDArray[Any],
    axis: int,
) -> NDArray[np.float32]:
    """Return scales that broadcast against x."""
    if scale is None:
        raise UnsupportedError(f"{name} has no scale; the vendor's executor needs one, too")
    if zero_point is not None and zero_point.any():
        raise UnsupportedError(f"{name} has a zero point; the converter writes none but 0")
    if scale.size == 1:
        return scale.reshape(())
    if not -x.ndim <= axis < x.ndim or scale.size != x.shape[axis]:
        raise UnsupportedError(
            f"{name} has {scale.size} scales, which do not fit a tensor of shape {list(x.shape)}"
            f" along axis {axis}"
        )
    shape = [1] * x.ndim
    shape[axis] = scale.size
    return scale.reshape(shape)
