"""Pooling: maximum and average of windows and of whole images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels.arithmetic import (
    Accumulator,
    Stage,
    add_rounding_bias,
    raw,
    rescale,
    stage,
)
from hbdebug.kernels.outcome import Outcome, kernel, require_nhwc, unsupported
from hbdebug.kernels.reductions import total

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


@kernel(types={"X": "int8 int16"}, ignores=("output_bit", "storage_order"))
def HzQuantizedMaxPool(
    X: NDArray[Any],
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    ceil_mode: int = 0,
    data_format: str = "NCHW",
) -> Outcome:
    """Take the largest value of each window; padding never wins.

    Args:
        X: Values, NHWC.
        kernel_shape: Height and width of the window.
        strides: Along height and width.
        pads: Top, left, bottom, right.
        ceil_mode: 1 for a last window that reaches beyond the padding.
        data_format: Must be NHWC.

    Raises:
        UnsupportedError: A window holds nothing but padding, for which the vendor's executor
            returns whatever its memory held.
    """
    name = "HzQuantizedMaxPool"
    require_nhwc(name, data_format)
    lowest = int(np.iinfo(X.dtype).min)
    counts = _window_counts(X, kernel_shape, strides, pads, ceil_mode)
    for axis in (0, 1):
        last = (counts[axis] - 1) * strides[axis]
        if last >= pads[axis] + X.shape[axis + 1] or pads[axis] >= kernel_shape[axis]:
            raise UnsupportedError(f"{name} has a window that lies wholly in the padding")
    windows = _windows(X, kernel_shape, strides, pads, counts, lowest)
    y = next(windows).copy()
    for window in windows:
        np.maximum(y, window, out=y)
    return Outcome(outputs=(y,))


@kernel(types={"X": "int8"}, ignores=("count_include_pad",))
def HzQuantizedAveragePool(
    X: NDArray[np.int8],
    *,
    kernel_shape: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    ceil_mode: int = 0,
    scale: int = 9,
    data_format: str = "NCHW",
) -> Outcome:
    """Average each window: ``saturate8((sum * (2^scale // (kh * kw))) >> scale)``.

    The divisor is that of the full window, padding counted, whatever ``count_include_pad`` says,
    and the shift floors.

    Args:
        X: Values, NHWC.
        kernel_shape: Height and width of the window.
        strides: Along height and width.
        pads: Top, left, bottom, right.
        ceil_mode: 1 for a last window that reaches beyond the padding.
        scale: Number of bits of the reciprocal.
        data_format: Must be NHWC.
    """
    require_nhwc("HzQuantizedAveragePool", data_format)
    counts = _window_counts(X, kernel_shape, strides, pads, ceil_mode)
    sums = np.zeros((X.shape[0], *counts, X.shape[3]), np.int64)
    for window in _windows(X, kernel_shape, strides, pads, counts, 0):
        sums += window
    reciprocal = (1 << scale) // (kernel_shape[0] * kernel_shape[1])
    y = np.clip((sums * reciprocal) >> scale, -128, 127)
    return Outcome(outputs=(y.astype(np.int8),))


@kernel(types={"X": "int8"})
def HzSQuantizedGlobalAveragePool(
    X: NDArray[np.int8],
    *,
    accu_right_shift: Sequence[int] | None = None,
    output_scale: Sequence[int] | None = None,
    output_right_shift: Sequence[int] | None = None,
    output_bit: int = 8,
    rounding_method: str = "ROUND",
    add_rounding_bias: int = 0,
    data_format: str = "NCHW",
    report: bool = False,
) -> Outcome:
    """Sum over height and width and rescale; the division is part of the scale.

    Args:
        X: Values, NHWC.
        accu_right_shift: First shift, per channel.
        output_scale: Multiplier, per channel.
        output_right_shift: Second shift, per channel.
        output_bit: 8, 16, or 32 for the sum itself.
        rounding_method: ``ROUND`` (here both shifts round half up) or ``FLOOR``.
        add_rounding_bias: 1 to add half an output step to the sum and floor twice.
        data_format: Must be NHWC.
        report: Whether to say what the accumulator did.
    """
    name = "HzSQuantizedGlobalAveragePool"
    require_nhwc(name, data_format)
    if rounding_method not in {"ROUND", "FLOOR"}:
        raise unsupported(name, "rounding_method", rounding_method, "ROUND and FLOOR")
    accumulator = total(X, (1, 2))
    if output_bit == 32:
        return raw(accumulator, relu=False, report=report)
    rounds = rounding_method == "ROUND" and not add_rounding_bias
    way = stage(
        name,
        accu_right_shift,
        output_scale,
        output_right_shift,
        output_bit,
        round_shift=rounds,
        round_out_shift=rounds,
    )
    if add_rounding_bias:
        accumulator = _with_bias(accumulator, way)
    return rescale(accumulator, way, report=report)


def _with_bias(accumulator: Accumulator, way: Stage) -> Accumulator:
    # The attribute of that name hides the function in the kernel above.
    return add_rounding_bias(accumulator, way)


@kernel(types={"X": "int8"})
def HzQuantizedGlobalMaxPool(X: NDArray[np.int8], *, data_format: str = "NCHW") -> Outcome:
    """Take the maximum over height and width, which stay with length 1.

    Args:
        X: Values, NHWC.
        data_format: Must be NHWC.
    """
    require_nhwc("HzQuantizedGlobalMaxPool", data_format)
    return Outcome(outputs=(X.max(axis=(1, 2), keepdims=True),))


def _window_counts(
    x: NDArray[Any],
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    ceil_mode: int,
) -> tuple[int, int]:
    """Return how many windows there are along height and width."""
    rooms = (
        x.shape[axis + 1] + pads[axis] + pads[axis + 2] - kernel_shape[axis] for axis in (0, 1)
    )
    height, width = (
        (-(-room // stride) if ceil_mode else room // stride) + 1
        for room, stride in zip(rooms, strides, strict=True)
    )
    return height, width


def _windows(
    x: NDArray[Any],
    kernel_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    counts: tuple[int, int],
    fill: int,
) -> Iterator[NDArray[Any]]:
    """Yield, for each place in the window, its values in all windows, as a view."""
    ends = [(counts[axis] - 1) * strides[axis] + kernel_shape[axis] for axis in (0, 1)]
    sizes = [max(ends[axis], pads[axis] + x.shape[axis + 1]) for axis in (0, 1)]
    padded = np.full((x.shape[0], *sizes, x.shape[3]), fill, x.dtype)
    padded[:, pads[0] : pads[0] + x.shape[1], pads[1] : pads[1] + x.shape[2]] = x
    for row in range(kernel_shape[0]):
        for column in range(kernel_shape[1]):
            rows = slice(row, row + (counts[0] - 1) * strides[0] + 1, strides[0])
            columns = slice(column, column + (counts[1] - 1) * strides[1] + 1, strides[1])
            yield padded[:, rows, columns]
