"""The vendor's float operators on images, written with stock ONNX operators.

Shapes are taken at run time (Shape, Slice, Concat), so none of these needs a shape in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.loading.body import FLOAT32, LAST

if TYPE_CHECKING:
    from hbdebug.loading.body import Body

_SAMPLING_MODES = ("bilinear", "nearest", "bicubic")

# How far a bicubic tap reaches past an image whose coordinates run from -0.5 to size - 0.5.
_MARGIN = 2

# Beyond so many channels, a Conv is an ulp off and takes a sensible time.
_MOST_COLOURS = 16


def grid_sample(body: Body) -> None:
    """ONNX's GridSample; at most 2.4e-7 off.

    Raises:
        UnsupportedError: The mode is none of bilinear, nearest and bicubic.
    """
    _sample(body, body.input(0), body.input(1))


def grid_sample_offsets(body: Body) -> None:
    """GridSample with a grid of pixel offsets ``(dx, dy)`` from the place that is written.

    The offsets become ordinary normalised coordinates, ``n = 2 p / (size - 1) - 1`` whatever
    ``align_corners`` says (measured).
    """
    x, offsets = body.input(0), body.input(1)
    here = body.op("Add", _pixel_indices(body, offsets), offsets)
    last = body.op("Sub", _width_height(body, x), body.floats(1))
    scaled = body.op("Div", body.op("Mul", here, body.floats(2)), last)
    _sample(body, x, body.op("Sub", scaled, body.floats(1)))


def _sample(body: Body, x: str, grid: str) -> None:
    mode = body.attribute("mode", "bilinear")
    padding = body.attribute("padding_mode", "zeros")
    align_corners = int(body.attribute("align_corners", 0))
    if mode not in _SAMPLING_MODES:
        raise UnsupportedError(f"its mode {mode!r} is not known")
    if mode == "bicubic" and padding == "border":
        x, grid = _bicubic_border(body, x, grid, align_corners=bool(align_corners))
        padding, align_corners = "zeros", 1
    # ai.onnx has GridSample from opset 16 on, ONNX Runtime's own domain in every opset.
    body.op(
        "GridSample",
        x,
        grid,
        to=body.outputs[0],
        domain="com.microsoft",
        mode=mode,
        padding_mode=padding,
        align_corners=align_corners,
    )


def _bicubic_border(body: Body, x: str, grid: str, *, align_corners: bool) -> tuple[str, str]:
    """Return image and grid for which plain sampling gives the vendor's bicubic border.

    A place outside of the image in either direction is moved to the nearest pixel centre in both;
    one inside, the half pixel around the outermost centres included, stays and its taps read the
    nearest pixel (found by trying rules against HMCT 1.1.0: 1.7e-6 off). ONNX Runtime moves none
    and is 0.4 off. So the image is widened by its edge, and the places are moved here.
    """
    size = _width_height(body, x)
    one, half, two = body.floats(1), body.floats(0.5), body.floats(2)
    last = body.op("Sub", size, one)
    shifted = body.op("Add", grid, one)
    if align_corners:
        place = body.op("Mul", body.op("Div", shifted, two), last)
        low, high = body.floats(0), last
    else:
        place = body.op("Div", body.op("Sub", body.op("Mul", shifted, size), one), two)
        low, high = body.floats(-0.5), body.op("Sub", size, half)
    beyond = body.op("Or", body.op("Less", place, low), body.op("Greater", place, high))
    # A cast and a maximum stand in for "any along the last axis", which ONNX lacks.
    outside = body.reduce("ReduceMax", body.cast(beyond, FLOAT32), [3], keep=True)
    moved = body.op("Min", body.op("Max", place, body.floats(0)), last)
    place = body.op("Where", body.op("Greater", outside, half), moved, place)
    wide_last = body.op("Add", last, body.floats(2 * _MARGIN))
    place = body.op("Mul", body.op("Add", place, body.floats(_MARGIN)), two)
    margins = [0, 0, _MARGIN, _MARGIN] * 2
    wide = body.pad(x, margins, "edge")
    return wide, body.op("Sub", body.op("Div", place, wide_last), one)


def _width_height(body: Body, x: str) -> str:
    """Return ``[width, height]`` of an NCHW tensor in float32: the order of a grid's last axis."""
    sizes = body.op("Gather", body.op("Shape", x), body.integers([3, 2]))
    return body.cast(sizes, FLOAT32)


def _pixel_indices(body: Body, grid: str) -> str:
    """Return ``[1, H, W, 2]`` whose entry at row i, column j is ``(j, i)``, for a grid's shape."""
    sizes = body.slice(body.op("Shape", grid), 1, 3)
    ones = body.op("ConstantOfShape", sizes, value=np.ones(1, np.int64))
    rows_columns = body.op("NonZero", ones)
    columns_rows = body.op("Gather", rows_columns, body.integers([1, 0]), axis=0)
    pairs = body.cast(body.op("Transpose", columns_rows, perm=[1, 0]), FLOAT32)
    shape = body.concat(body.integers([1]), sizes, body.integers([2]))
    return body.op("Reshape", pairs, shape)


def channel_shuffle(body: Body) -> None:
    """Swap the two factors of the channel axis, ``C = group x C/group``: exact.

    Raises:
        UnsupportedError: The layout is neither NCHW nor NHWC.
    """
    x, group = body.input(0), int(body.attribute("group", 2))
    if _is_nhwc(body):
        channels = body.slice(body.op("Shape", x), -1, LAST)
        per_group = body.op("Div", channels, body.integers([group]))
        shape = body.concat(body.integers([-1, group]), per_group)
        swapped = body.op("Transpose", body.op("Reshape", x, shape), perm=[0, 2, 1])
    else:
        flat = body.op("Reshape", x, body.integers([0, 0, -1]))
        pixels = body.slice(body.op("Shape", flat), 2, 3)
        shape = body.concat(body.integers([0, group, -1]), pixels)
        swapped = body.op("Transpose", body.op("Reshape", flat, shape), perm=[0, 2, 1, 3])
    body.op("Reshape", swapped, body.op("Shape", x), to=body.outputs[0])


def space_to_depth(body: Body) -> None:
    """Move blocks into channels, output channels ordered (block row, block column, C): exact.

    Raises:
        UnsupportedError: The layout is neither NCHW nor NHWC.
    """
    x = body.input(0)
    blocks = [int(body.required(f"block_{side}", 0)) for side in ("height", "width")]
    nhwc = _is_nhwc(body)
    first = 1 if nhwc else 2
    shape = body.op("Shape", x)
    batch = body.slice(shape, 0, 1)
    channels = body.slice(shape, 3, 4) if nhwc else body.slice(shape, 1, 2)
    small, split = [], []
    for axis, block in enumerate(blocks, start=first):
        size = body.op("Div", body.slice(shape, axis, axis + 1), body.integers([block]))
        small.append(size)
        split += [size, body.integers([block])]
    deep = body.op("Mul", channels, body.integers([blocks[0] * blocks[1]]))
    if nhwc:
        parts, perm, result = [batch, *split, channels], [0, 1, 3, 2, 4, 5], [batch, *small, deep]
    else:
        parts, perm, result = [batch, channels, *split], [0, 3, 5, 1, 2, 4], [batch, deep, *small]
    moved = body.op("Transpose", body.op("Reshape", x, body.concat(*parts)), perm=perm)
    body.op("Reshape", moved, body.concat(*result), to=body.outputs[0])


def _is_nhwc(body: Body) -> bool:
    layout = body.attribute("data_format", "NCHW")
    if layout not in ("NCHW", "NHWC"):
        raise UnsupportedError(f"its data_format {layout!r} is not known")
    return bool(layout == "NHWC")


def pad(body: Body) -> None:
    """ONNX's Pad, the value being the second input: exact."""
    mode = body.attribute("mode", "constant")
    # The other modes ignore the value, and opset 10 has no input for it.
    value = body.input(1) if mode == "constant" else ""
    pads = body.attribute("pads", [0] * 8)
    body.pad(body.input(0), pads, mode, value, to=body.outputs[0])


def resize(body: Body) -> None:
    """Resize with aligned corners, whatever the node says; nearest rounds down (measured).

    Raises:
        UnsupportedError: The model's opset is 10, whose Resize cannot align corners.
    """
    if body.opset < 11:
        raise UnsupportedError("it needs opset 11 or newer")
    mode = body.attribute("mode", "nearest")
    attributes = {"mode": mode, "coordinate_transformation_mode": "align_corners"}
    if mode == "nearest":
        attributes["nearest_mode"] = "floor"
    elif mode == "cubic":
        attributes["cubic_coeff_a"] = body.attribute("cubic_coeff_a", -0.75)
        attributes["exclude_outside"] = body.attribute("exclude_outside", 0)
    body.op("Resize", *body.inputs, to=body.outputs[0], **attributes)


def preprocess(body: Body) -> None:
    """Colour conversion and normalisation: a 1x1 convolution on NCHW.

    The vendor adds the products in channel order and the bias last, each rounded to float32;
    written out like that it is bit exact, where a Conv is up to one ulp off. The layout
    attribute is a label only (measured).
    """
    x, weight, bias = body.input(0), body.input(1), body.input(2)
    group = int(body.attribute("channel_group", 1))
    shape = body.shape_of(weight)
    per_group = shape[1] if shape is not None and len(shape) == 4 else None
    if per_group is None or per_group > _MOST_COLOURS or (group > 1 and per_group > 1):
        body.op("Conv", x, weight, bias, to=body.outputs[0], group=group, kernel_shape=[1, 1])
        return
    total = ""
    for channel in range(per_group):
        # Column `channel` of the matrix as [C, 1, 1]; with one channel a group, x is used whole.
        column = body.op("Gather", weight, body.integers(channel), axis=1)
        plane = x if group > 1 else body.slice(x, channel, channel + 1, axis=1)
        product = body.op("Mul", plane, column)
        total = body.op("Add", total, product) if total else product
    column_shape = body.integers([-1, 1, 1])
    body.op("Add", total, body.op("Reshape", bias, column_shape), to=body.outputs[0])


def keep_above(body: Body) -> None:
    """HzFilter: keep the places whose largest score reaches a threshold; exact.

    Scores are channels ``lo <= c < hi`` of input 0 ``[N, C, H, W]``. Outputs, all with one row
    per kept place in raster order, batches joined: the largest score, its channel (int64), the
    place ``(row, column)`` in float32, and the channel vector of every input.
    """
    x = body.input(0)
    idx_range = body.required("idx_range", [0, 0])
    if len(idx_range) != 2:
        raise UnsupportedError(f"its idx_range {idx_range} is no pair")
    low, high = idx_range
    scores = body.slice(x, low, high, axis=1)
    largest = body.reduce("ReduceMax", scores, [1], keep=False)
    # "At least the threshold" is "above the next float below it"; GreaterOrEqual is opset 12.
    threshold = np.float32(body.required("threshold", 0.0))
    below = np.nextafter(threshold, np.float32(-np.inf))
    kept = body.op("Greater", largest, body.floats(below))
    rows = body.op("Reshape", kept, body.integers([-1]))
    # Outputs that nobody reads may be left out in the file.
    values, channels, places = (*body.outputs, "", "", "")[:3]
    body.op("Compress", largest, rows, to=values)
    best = body.op("Compress", body.op("ArgMax", scores, axis=1, keepdims=0), rows)
    body.op("Add", best, body.integers(low), to=channels)
    row_column = body.slice(body.op("NonZero", kept), 1, 3)
    body.cast(body.op("Transpose", row_column, perm=[1, 0]), FLOAT32, to=places)
    for source, output in zip(body.inputs, body.outputs[3:], strict=False):
        last = body.op("Transpose", source, perm=[0, 2, 3, 1])
        depth = body.slice(body.op("Shape", source), 1, 2)
        flat = body.op("Reshape", last, body.concat(body.integers([-1]), depth))
        body.op("Compress", flat, rows, to=output, axis=0)
