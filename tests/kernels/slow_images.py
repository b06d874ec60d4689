"""Slow, obvious twins of the kernels without weights: pools, reductions, tables, resizing, moves.

As in `tests.kernels.slow`: loops over Python's integers.
"""

# ruff: noqa: N802 - twins are called as their kernels are

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np

from tests.kernels.slow import (
    elements,
    integer,
    out_length,
    pick,
    pixel,
    post,
    rounding_bias,
    saturate,
    shift_floor,
    shift_round,
    wrap32,
)


def pool(x, outside, combine, *, kernel_shape, strides, pads, ceil_mode=0, **_):
    ceil = bool(ceil_mode)
    height = out_length(x.shape[1], kernel_shape[0], strides[0], pads[0], pads[2], ceil=ceil)
    width = out_length(x.shape[2], kernel_shape[1], strides[1], pads[1], pads[3], ceil=ceil)

    def element(n, row, column, channel):
        top, left = row * strides[0] - pads[0], column * strides[1] - pads[1]
        places = product(range(kernel_shape[0]), range(kernel_shape[1]))
        return combine([pixel(x, n, top + i, left + j, channel, outside) for i, j in places])

    return elements((x.shape[0], height, width, x.shape[3]), element, x.dtype)


def HzQuantizedMaxPool(x, **a):
    return pool(x, np.iinfo(x.dtype).min, max, **a)


def HzQuantizedAveragePool(x, **a):
    size, scale = a["kernel_shape"][0] * a["kernel_shape"][1], a.get("scale", 9)
    return pool(x, 0, lambda v: saturate(shift_floor(sum(v) * (2**scale // size), scale), 8), **a)


def HzSQuantizedGlobalAveragePool(x, *, output_bit, rounding_method="ROUND", **a):
    rounding = shift_round if rounding_method == "ROUND" else shift_floor

    def element(n, _row, _column, channel):
        total = sum(int(v) for v in x[n, :, :, channel].ravel())
        if output_bit == 32:
            return wrap32(total)
        keys = ("accu_right_shift", "output_scale", "output_right_shift")
        way = [pick(a[key], channel) for key in keys]
        if a.get("add_rounding_bias"):
            return post(total + rounding_bias(*way), *way, output_bit)
        return post(total, *way, output_bit, rounding, rounding)

    return elements((x.shape[0], 1, 1, x.shape[3]), element, integer(output_bit))


def lines(x, axis, combine, dtype):
    """Reduce along one axis, which stays with length 1."""
    shape = list(x.shape)
    shape[axis] = 1

    def element(*index):
        line = x[(*index[:axis], slice(None), *index[axis + 1 :])]
        return combine([int(value) for value in line])

    return elements(tuple(shape), element, dtype)


def HzSQuantizedReduceSum(x, *, axis, output_bit, **a):
    way = [a[key][0] for key in ("accu_right_shift", "scale", "out_shift")]
    return lines(
        x, axis, lambda v: post(sum(v), *way, output_bit, second=shift_round), integer(output_bit)
    )


HzSQuantizedReduceMean = HzSQuantizedReduceSum


def HzQuantizedGlobalMaxPool(x, **_):
    def element(n, _row, _column, channel):
        return max(int(value) for value in x[n, :, :, channel].ravel())

    return elements((x.shape[0], 1, 1, x.shape[3]), element, x.dtype)


def HzQuantizedReduceMax(x, *, axis, **_):
    return lines(x, axis, max, x.dtype)


def HzQuantizedArgMax(x, *, axis, **_):
    return lines(x, axis, lambda values: values.index(max(values)), x.dtype)


def HzQuantizedTopK(x, *, k, axis, largest=1, output_indices_bit=32, **_):
    shape = list(x.shape)
    shape[axis] = k

    def best(*index):
        line = [int(v) for v in x[(*index[:axis], slice(None), *index[axis + 1 :])]]
        # Python's sort keeps the order of equals.
        order = sorted(range(len(line)), key=lambda i: -line[i] if largest else line[i])
        chosen = order[index[axis]]
        return line[chosen], chosen

    (values,) = elements(tuple(shape), lambda *index: best(*index)[0], x.dtype)
    (places,) = elements(tuple(shape), lambda *index: best(*index)[1], integer(output_indices_bit))
    return values, places


def HzLut(x, table, **_):
    return elements(x.shape, lambda *index: table.ravel()[int(x[index]) + 128], np.int8)


def HzLut2Layer(x, *, output_bit, symmetry_mode, **a):
    def inner(raw, right, table):
        place = shift_floor(raw, right + 8)
        fraction = shift_round(raw - place * 2 ** (right + 8), right)
        if place < 0:
            return table[0]
        if place >= 63:
            return table[63]
        step = (table[place + 1] - table[place] + 2**15) % 2**16 - 2**15
        return saturate(table[place] + shift_floor(step * fraction + 128, 8), 16)

    def element(*index):
        value = int(x[index])
        place = value if symmetry_mode == "NONE" else min(abs(value), 32767)
        s = sum(bound < place for bound in a["bound"][:7])
        raw = a["scale"][s] * place + a["bias"][s] * 2 ** a["left_shift"][s]
        if s in {0, 7}:
            y = saturate(shift_round(raw, a["right_shift"][s]), output_bit)
        else:
            y = inner(raw, a["right_shift"][s], a["table_param"][64 * (s - 1) : 64 * s])
        y = -y if symmetry_mode == "ORIGIN_SYMMETRIC" and value < 0 else y
        return saturate(y, output_bit)

    return elements(x.shape, element, integer(output_bit))


def HzQuantizedResizeUpsample(x, *, scale, **_):
    shape = (x.shape[0], x.shape[1] * scale[0], x.shape[2] * scale[1], x.shape[3])
    return elements(shape, lambda n, i, j, c: x[n, i // scale[0], j // scale[1], c], x.dtype)


def HzQuantizedRoiResize(x, *, sizes, align_mode, step_decimal_bit, is_interpolate_twice, **a):
    one = 2**step_decimal_bit

    def position(index, axis):
        length = x.shape[axis + 1]
        step = length * one // sizes[axis] if align_mode != "given_step" else a["step"][axis]
        start = math.floor(Fraction(step - one, 2)) if align_mode == "center" else 0
        place = max(0, min((length - 1) * one, start + index * step))
        weight = (place % one) * 256 // one
        return place // one, min(place // one + 1, length - 1), weight

    def element(n, row, column, channel):
        top, bottom, down = position(row, 0)
        left, right, across = position(column, 1)

        def mixed(line):
            first, second = int(x[n, line, left, channel]), int(x[n, line, right, channel])
            return first * (256 - across) + second * across

        if is_interpolate_twice:
            upper, lower = shift_floor(mixed(top), 8), shift_floor(mixed(bottom), 8)
            return shift_floor(upper * (256 - down) + lower * down, 8)
        return shift_round(mixed(top) * (256 - down) + mixed(bottom) * down, 16)

    return elements((x.shape[0], *sizes, x.shape[3]), element, np.int8)


def HzPad(x, value=None, *, pads, **_):
    fill = 0 if value is None else value.ravel()[0]
    shape = tuple(n + pads[i] + pads[i + x.ndim] for i, n in enumerate(x.shape))

    def element(*index):
        place = tuple(index[i] - pads[i] for i in range(x.ndim))
        inside = all(0 <= p < n for p, n in zip(place, x.shape, strict=True))
        return x[place] if inside else fill

    return elements(shape, element, x.dtype)


def HzDepthToSpace(x, *, blocksize, mode, **_):
    n, height, width, channels = x.shape
    depth = channels // blocksize**2

    def element(batch, row, column, channel):
        i, j = row % blocksize, column % blocksize
        place = (i * blocksize + j) * depth + channel
        if mode == "CRD":
            place = (channel * blocksize + i) * blocksize + j
        return x[batch, row // blocksize, column // blocksize, place]

    return elements((n, height * blocksize, width * blocksize, depth), element, x.dtype)


def HzSpaceToDepth(x, *, block_height, block_width, **_):
    n, height, width, channels = x.shape

    def element(batch, row, column, place):
        block, channel = divmod(place, channels)
        i, j = divmod(block, block_width)
        return x[batch, row * block_height + i, column * block_width + j, channel]

    shape = (n, height // block_height, width // block_width, channels * block_height * block_width)
    return elements(shape, element, x.dtype)


def HzChannelShuffle(x, *, group, **_):
    each = x.shape[-1] // group
    return elements(
        x.shape,
        lambda *index: x[(*index[:-1], index[-1] % group * each + index[-1] // group)],
        x.dtype,
    )


def HzQuantize(x, scale, *, axis=1, bits=8):
    def element(*index):
        step = scale.ravel()[index[axis] if scale.size > 1 else 0]
        with np.errstate(all="ignore"):
            quotient = float(np.float32(x[index]) / np.float32(step))
        if not abs(quotient) < 2**31:
            return -(2 ** (bits - 1))
        # Python rounds ties to even, as the chip's toolchain does.
        return saturate(round(quotient), bits)

    return elements(x.shape, element, integer(bits))


def HzDequantize(x, scale, *, axis=1):
    def element(*index):
        return np.float32(int(x[index])) * scale.ravel()[index[axis] if scale.size > 1 else 0]

    return elements(x.shape, element, np.float32)
