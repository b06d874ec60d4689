"""Resizing: repeated pixels, and linear interpolation in fixed point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.kernels.outcome import Outcome, kernel, require_nhwc, unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_FRACTION_BITS = 8
_ONE = 1 << _FRACTION_BITS


@kernel(types={"x": "int8"})
def HzQuantizedResizeUpsample(
    x: NDArray[np.int8],
    *,
    scale: Sequence[int],
    mode: str = "nearest",
    data_format: str = "NCHW",
) -> Outcome:
    """Repeat each pixel.

    Args:
        x: Values, NHWC.
        scale: How often, along height and width.
        mode: Must be ``nearest``.
        data_format: Must be NHWC.
    """
    name = "HzQuantizedResizeUpsample"
    require_nhwc(name, data_format)
    if mode != "nearest":
        raise unsupported(name, "mode", mode, "nearest")
    return Outcome(outputs=(x.repeat(scale[0], axis=1).repeat(scale[1], axis=2),))


@kernel(types={"X": "int8"})
def HzQuantizedRoiResize(
    X: NDArray[np.int8],
    *,
    sizes: Sequence[int],
    align_mode: str = "origin",
    step_decimal_bit: int = 8,
    step: Sequence[int] | None = None,
    is_interpolate_twice: int = 1,
    pad_mode: str = "boundary",
    roi: Sequence[int] | None = None,
    start_offset: Sequence[int] = (0, 0),
    data_format: str = "NCHW",
) -> Outcome:
    """Interpolate linearly between the four nearest pixels.

    Positions have ``step_decimal_bit`` bits behind the point; the top eight of them are the
    weight. Interpolating once rounds half up at the end; interpolating twice, along the width
    first, floors each time.

    Args:
        X: Values, NHWC.
        sizes: Height and width of the output.
        align_mode: ``center`` (half pixel), ``origin``, or ``given_step`` (aligned corners).
        step_decimal_bit: Bits behind the point of a position, at least 8.
        step: Distance of neighbouring outputs, along height and width, for ``given_step``.
        is_interpolate_twice: 0 or 1.
        pad_mode: Must be ``boundary``: positions outside move to the border.
        roi: Must be absent.
        start_offset: Must be 0, 0.
        data_format: Must be NHWC.
    """
    name = "HzQuantizedRoiResize"
    require_nhwc(name, data_format)
    if align_mode not in {"center", "origin", "given_step"}:
        raise unsupported(name, "align_mode", align_mode, "center, origin and given_step")
    if align_mode == "given_step" and step is None:
        raise unsupported(name, "step", step, "a step for each axis")
    if step_decimal_bit < _FRACTION_BITS:
        raise unsupported(name, "step_decimal_bit", step_decimal_bit, "8 and more")
    if pad_mode != "boundary":
        raise unsupported(name, "pad_mode", pad_mode, "boundary")
    if roi:
        raise unsupported(name, "roi", roi, "none")
    if any(start_offset):
        raise unsupported(name, "start_offset", start_offset, "0, 0")
    steps = step if align_mode == "given_step" and step is not None else (None, None)
    top, bottom, down = _positions(
        X.shape[1], sizes[0], steps[0], step_decimal_bit, centred=align_mode == "center"
    )
    left, right, across = _positions(
        X.shape[2], sizes[1], steps[1], step_decimal_bit, centred=align_mode == "center"
    )
    across, down = across[:, np.newaxis], down[:, np.newaxis, np.newaxis]
    wide = X.astype(np.int32)
    # 256 times the value, at most 2^15; the second pass takes it to 2^23.
    rows = wide[:, :, left] * (_ONE - across) + wide[:, :, right] * across
    if is_interpolate_twice:
        rows >>= _FRACTION_BITS
    y = rows[:, top] * (_ONE - down) + rows[:, bottom] * down
    if is_interpolate_twice:
        y >>= _FRACTION_BITS
    else:
        y = (y + (1 << 15)) >> 16
    return Outcome(outputs=(y.astype(np.int8),))


def _positions(
    length: int, size: int, step: int | None, bits: int, *, centred: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return, for each output, both neighbours and the weight of the second in 256ths."""
    distance = (length << bits) // size if step is None else step
    start = (distance - (1 << bits)) >> 1 if centred else 0
    places = np.clip(start + np.arange(size, dtype=np.int64) * distance, 0, (length - 1) << bits)
    first = places >> bits
    weight = (places - (first << bits)) >> (bits - _FRACTION_BITS)
    return first, np.minimum(first + 1, length - 1), weight.astype(np.int32)
