"""Sums of products: convolution, transposed convolution, matrix product.

They are computed in floats, exactly. The bound of a sum comes from the weights themselves: the
largest sum of absolute weights of one output channel, times the largest input. Trained int8
weights keep it below 2^24 almost always, and float32 then is exact; int16 inputs take float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels.arithmetic import Accumulator, exact_float, magnitude
from hbdebug.kernels.depthwise import depthwise_products

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# Elements of a depthwise sum that all taps go over before the next ones, so that it stays cached.
_BLOCK = 1 << 15


# Products from which on a session of ONNX Runtime, which is made once, pays for itself.
_WORTH_A_SESSION = 1 << 19

_BYTE = 1 << 8


def multiply_matrices(a: NDArray[Any], b: NDArray[Any]) -> Accumulator:
    """Return the sums of products of ``numpy.matmul``.

    Args:
        a: Integers, ``[..., M, K]``.
        b: Integers, ``[..., K, N]``.
    """
    bound = a.shape[-1] * magnitude(a) * magnitude(b)
    dtype = exact_float(bound)
    return Accumulator(values=np.matmul(a.astype(dtype), b.astype(dtype)), bound=bound)


def convolve(
    x: NDArray[Any],
    w: NDArray[np.int8],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int,
) -> Accumulator:
    """Return the sums of products of a convolution.

    Args:
        x: int8 or int16, NHWC.
        w: Weights, ``[Cout, kh, kw, Cin / group]``.
        strides: Along height and width.
        pads: Zeros around the input: top, left, bottom, right.
        dilations: Along height and width.
        group: Number of groups.

    Returns:
        Sums, NHWC.

    Raises:
        UnsupportedError: Input and weights do not fit each other.
    """
    outputs, *kernel_shape, depth = w.shape
    if x.ndim != 4 or x.shape[-1] != depth * group or outputs % group:
        raise UnsupportedError(
            f"weights {list(w.shape)} in {group} groups do not fit an input {list(x.shape)}"
        )
    weights = w.astype(np.float32)
    reach = np.abs(weights).reshape(outputs, -1).sum(axis=1, dtype=np.float64)
    bound = int(reach.max()) * magnitude(x)
    if depth == 1 and group > 1 and x.size * kernel_shape[0] * kernel_shape[1] >= _WORTH_A_SESSION:
        values = _quick_depthwise(x, weights, int(reach.max()), (strides, pads, dilations))
        if values is not None:
            return Accumulator(values=values, bound=bound)
    dtype = exact_float(bound)
    top, left, bottom, right = pads
    padded = np.zeros(
        (x.shape[0], x.shape[1] + top + bottom, x.shape[2] + left + right, x.shape[3]), dtype
    )
    padded[:, top : top + x.shape[1], left : left + x.shape[2]] = x
    height, width = (
        (padded.shape[axis] - dilation * (size - 1) - 1) // stride + 1
        for axis, dilation, size, stride in zip(
            (1, 2), dilations, kernel_shape, strides, strict=True
        )
    )
    weights = weights.astype(dtype, copy=False)
    if depth == 1 and group > 1:
        values = _depthwise(padded, weights, strides, dilations, (height, width))
    else:
        columns = _columns(padded, tuple(kernel_shape), strides, dilations, (height, width))
        values = _grouped(columns, weights, group)
    return Accumulator(values=values, bound=bound)


def _quick_depthwise(
    x: NDArray[Any],
    weights: NDArray[np.float32],
    reach: int,
    geometry: tuple[Sequence[int], Sequence[int], Sequence[int]],
) -> NDArray[Any] | None:
    """Return the sums by ONNX Runtime in float32, or None where they would not be exact.

    An int16 is split in bytes, ``256 * high + low``, whose sums are float32 each.
    """
    if reach * _BYTE > 1 << 24:
        return None
    if x.dtype == np.int8:
        return depthwise_products(x.astype(np.float32), weights, *geometry)
    high = depthwise_products((x >> 8).astype(np.float32), weights, *geometry)
    low = depthwise_products((x & (_BYTE - 1)).astype(np.float32), weights, *geometry)
    sums: NDArray[Any] = high.astype(exact_float(reach * _BYTE * _BYTE // 2))
    sums *= _BYTE
    sums += low
    return sums


def _columns(
    padded: NDArray[Any],
    kernel_shape: tuple[int, ...],
    strides: Sequence[int],
    dilations: Sequence[int],
    size: tuple[int, int],
) -> NDArray[Any]:
    """Return a view ``[N, height, width, kh, kw, C]`` of the windows."""
    batch, row, column, channel = padded.strides
    return np.lib.stride_tricks.as_strided(
        padded,
        shape=(padded.shape[0], *size, *kernel_shape, padded.shape[3]),
        strides=(
            batch,
            row * strides[0],
            column * strides[1],
            row * dilations[0],
            column * dilations[1],
            channel,
        ),
        writeable=False,
    )


def _grouped(columns: NDArray[Any], weights: NDArray[Any], group: int) -> NDArray[Any]:
    """Multiply windows by weights, group by group; the product is BLAS's."""
    outputs, *_, depth = weights.shape
    spots = columns.shape[:3]
    each = outputs // group
    y = np.empty((*spots, outputs), weights.dtype)
    rows = y.reshape(-1, outputs)
    for index in range(group):
        part = columns[..., index * depth : (index + 1) * depth].reshape(rows.shape[0], -1)
        matrix = weights[index * each : (index + 1) * each].reshape(each, -1)
        np.matmul(part, matrix.T, out=rows[:, index * each : (index + 1) * each])
    return y


def _depthwise(
    padded: NDArray[Any],
    weights: NDArray[Any],
    strides: Sequence[int],
    dilations: Sequence[int],
    size: tuple[int, int],
) -> NDArray[Any]:
    """Sum shifted copies of the input, a whole row of pixels and channels at a time."""
    outputs, kernel_height, kernel_width, _ = weights.shape
    if outputs != padded.shape[3]:
        padded = np.repeat(padded, outputs // padded.shape[3], axis=3)
    height, width = size
    row = width * outputs
    taps = np.tile(weights[..., 0].transpose(1, 2, 0), (1, 1, width))
    # Columns that one stride apart lie side by side in a copy of their own.
    offsets = [column * dilations[1] for column in range(kernel_width)]
    phases = {
        phase: np.ascontiguousarray(padded[:, :, phase :: strides[1]]).reshape(
            *padded.shape[:2], -1
        )
        for phase in {offset % strides[1] for offset in offsets}
    }
    y = np.zeros((padded.shape[0], height, row), padded.dtype)
    step = max(1, _BLOCK // max(1, row))
    for top in range(0, height, step):
        target = y[:, top : top + step]
        for line in range(kernel_height):
            first = top * strides[0] + line * dilations[0]
            lines = slice(first, first + (target.shape[1] - 1) * strides[0] + 1, strides[0])
            for column, offset in enumerate(offsets):
                start = offset // strides[1] * outputs
                part = phases[offset % strides[1]][:, lines, start : start + row]
                target += part * taps[line, column]
    return y.reshape(padded.shape[0], height, width, outputs)


def convolve_transposed(
    x: NDArray[np.int8],
    w: NDArray[np.int8],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    group: int,
    output_padding: Sequence[int],
) -> Accumulator:
    """Return the sums of products of a transposed convolution.

    Args:
        x: int8, NHWC.
        w: Weights, ``[Cin, kh, kw, Cout / group]``.
        strides: Along height and width.
        pads: What is cut off: top, left, bottom, right.
        dilations: Along height and width.
        group: Number of groups.
        output_padding: Rows and columns added at the bottom and at the right, before the cut.

    Returns:
        Sums, NHWC.

    Raises:
        UnsupportedError: Input and weights do not fit each other.
    """
    inputs, *kernel_shape, each = w.shape
    if x.ndim != 4 or x.shape[-1] != inputs or inputs % group:
        raise UnsupportedError(
            f"weights {list(w.shape)} in {group} groups do not fit an input {list(x.shape)}"
        )
    depth = inputs // group
    reach = np.abs(w.astype(np.int64)).reshape(group, depth, -1, each).sum(axis=(1, 2))
    bound = int(reach.max()) * magnitude(x)
    dtype = exact_float(bound)
    height, width = (
        (x.shape[axis + 1] - 1) * strides[axis]
        + dilations[axis] * (kernel_shape[axis] - 1)
        + 1
        + output_padding[axis]
        for axis in (0, 1)
    )
    y = np.zeros((x.shape[0], height, width, each * group), dtype)
    for index in range(group):
        part = x[..., index * depth : (index + 1) * depth].astype(dtype)
        matrix = w[index * depth : (index + 1) * depth].reshape(depth, -1).astype(dtype)
        products = np.matmul(part, matrix).reshape(*x.shape[:3], *kernel_shape, each)
        for line in range(kernel_shape[0]):
            for column in range(kernel_shape[1]):
                top, left = line * dilations[0], column * dilations[1]
                rows = slice(top, top + (x.shape[1] - 1) * strides[0] + 1, strides[0])
                columns = slice(left, left + (x.shape[2] - 1) * strides[1] + 1, strides[1])
                target = y[:, rows, columns, index * each : (index + 1) * each]
                target += products[..., line, column, :]
    top, left, bottom, right = pads
    return Accumulator(values=y[:, top : height - bottom, left : width - right], bound=bound)
