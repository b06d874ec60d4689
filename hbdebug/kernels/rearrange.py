"""Operators that move values: padding, depth to space and back, channel shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels.outcome import Outcome, kernel, require_nhwc, unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@kernel(
    types={"X": "float32 int8 int16", "Value": "float32 int8 int16"},
    ignores=("data_format",),
)
def HzPad(
    X: NDArray[Any],
    Value: NDArray[Any] | None = None,
    *,
    pads: Sequence[int] = (0, 0, 0, 0, 0, 0, 0, 0),
    mode: str = "constant",
) -> Outcome:
    """Surround a tensor by one value.

    Args:
        X: Values, any number of axes.
        Value: The value, in the integers of X; 0 if absent.
        pads: How much before each axis, then how much behind each.
        mode: Must be ``constant``.
    """
    if mode != "constant":
        raise unsupported("HzPad", "mode", mode, "constant")
    if len(pads) != 2 * X.ndim or min(pads) < 0:
        raise unsupported("HzPad", "pads", pads, f"{2 * X.ndim} values, none negative")
    fill = 0 if Value is None else Value.reshape(-1)[0]
    widths = list(zip(pads[: X.ndim], pads[X.ndim :], strict=True))
    return Outcome(outputs=(np.pad(X, widths, constant_values=fill),))


@kernel(types={"X": "int8 int16"})
def HzDepthToSpace(
    X: NDArray[Any], *, blocksize: int, mode: str = "DCR", data_format: str = "NCHW"
) -> Outcome:
    """Turn channels into blocks of pixels, as ONNX DepthToSpace does.

    Args:
        X: Values, NHWC.
        blocksize: Height and width of a block.
        mode: ``DCR`` (channels hold block row, block column, channel) or ``CRD`` (channel first).
        data_format: Must be NHWC.
    """
    name = "HzDepthToSpace"
    require_nhwc(name, data_format)
    if mode not in {"DCR", "CRD"}:
        raise unsupported(name, "mode", mode, "DCR and CRD")
    batch, height, width, channels = X.shape
    depth = _divided(name, channels, blocksize * blocksize)
    if mode == "DCR":
        split = X.reshape(batch, height, width, blocksize, blocksize, depth)
        moved = split.transpose(0, 1, 3, 2, 4, 5)
    else:
        split = X.reshape(batch, height, width, depth, blocksize, blocksize)
        moved = split.transpose(0, 1, 4, 2, 5, 3)
    return Outcome(outputs=(moved.reshape(batch, height * blocksize, width * blocksize, depth),))


@kernel(types={"X": "float32 int8 int16"})
def HzSpaceToDepth(
    X: NDArray[Any], *, block_height: int, block_width: int, data_format: str = "NCHW"
) -> Outcome:
    """Turn blocks of pixels into channels: block row, block column, channel.

    Args:
        X: Values, NHWC.
        block_height: Height of a block.
        block_width: Width of a block.
        data_format: Must be NHWC.
    """
    name = "HzSpaceToDepth"
    require_nhwc(name, data_format)
    batch, height, width, channels = X.shape
    rows, columns = _divided(name, height, block_height), _divided(name, width, block_width)
    split = X.reshape(batch, rows, block_height, columns, block_width, channels)
    return Outcome(outputs=(split.transpose(0, 1, 3, 2, 4, 5).reshape(batch, rows, columns, -1),))


@kernel(types={"X": "float32 int8 int16"})
def HzChannelShuffle(X: NDArray[Any], *, group: int = 2, data_format: str = "NCHW") -> Outcome:
    """Interleave the channels of the groups.

    Args:
        X: Values, NHWC.
        group: Number of groups.
        data_format: Must be NHWC.
    """
    name = "HzChannelShuffle"
    require_nhwc(name, data_format)
    each = _divided(name, X.shape[-1], group)
    split = X.reshape(*X.shape[:-1], group, each)
    return Outcome(outputs=(split.swapaxes(-1, -2).reshape(X.shape),))


def _divided(name: str, length: int, parts: int) -> int:
    if length % parts:
        raise UnsupportedError(f"{name} cannot divide {length} by {parts}")
    return length // parts
