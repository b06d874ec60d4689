"""Slow, obvious twins of the kernels: loops over Python's integers, which never wrap or round.

Each is called like its kernel and returns a tuple of arrays. Layout is NHWC. No kernel code is
used here, and no vectorized arithmetic: what is wrong in one is not wrong in the other alike.
"""

# ruff: noqa: N802 - twins are called as their kernels are

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np


def wrap32(value):
    return (value + 2**31) % 2**32 - 2**31


def saturate(value, bits):
    return max(-(2 ** (bits - 1)), min(2 ** (bits - 1) - 1, value))


def shift_floor(value, count):
    return math.floor(Fraction(value, 2**count))


def shift_round(value, count):
    return math.floor(Fraction(value, 2**count) + Fraction(1, 2))


def pick(values, channel):
    """Return the value of a channel from a list of one or of all."""
    return int(values[channel]) if len(values) > 1 else int(values[0])


def post(accumulator, shift, scale, out_shift, bits, first=shift_floor, second=shift_floor):
    middle = saturate(first(wrap32(accumulator), shift), 16)
    return saturate(second(middle * scale, out_shift), bits)


def rounding_bias(shift, scale, out_shift):
    return round(Fraction(2 ** (shift + out_shift), 2 * scale))


def elements(shape, function, dtype):
    """Build an array from a function of its index."""
    y = np.empty(shape, dtype)
    for index in np.ndindex(*shape):
        y[index] = function(*index)
    return (y,)


def integer(bits):
    return np.dtype(f"int{bits}")


def out_length(length, size, stride, before, behind, dilation=1, *, ceil=False):
    room = Fraction(length + before + behind - (size - 1) * dilation - 1, stride)
    return (math.ceil(room) if ceil else math.floor(room)) + 1


def pixel(x, n, row, column, channel, outside=0):
    inside = 0 <= row < x.shape[1] and 0 <= column < x.shape[2]
    return int(x[n, row, column, channel]) if inside else outside


def conv(x, w, b, b_shift, s, *, strides, pads, dilations, group, finish, e=None, dtype):
    outputs, kernel_height, kernel_width, depth = w.shape
    height = out_length(x.shape[1], kernel_height, strides[0], pads[0], pads[2], dilations[0])
    width = out_length(x.shape[2], kernel_width, strides[1], pads[1], pads[3], dilations[1])

    def element(n, row, column, channel):
        first = channel // (outputs // group) * depth
        total = sum(
            int(w[channel, i, j, c])
            * pixel(
                x,
                n,
                row * strides[0] - pads[0] + i * dilations[0],
                column * strides[1] - pads[1] + j * dilations[1],
                first + c,
            )
            for i, j, c in product(range(kernel_height), range(kernel_width), range(depth))
        )
        if b is not None:
            left = 0 if b_shift is None else max(0, int(b_shift[channel]))
            total += wrap32(int(b[channel]) * 2**left)
        if s is not None:
            scale, shift = (pick(values, channel) for values in e)
            extra = int(s[n, row, column, channel]) * scale
            total += wrap32(extra * 2**shift) if shift >= 0 else shift_floor(extra, -shift)
        return finish(total, channel)

    return elements((x.shape[0], height, width, outputs), element, dtype)


def HzSQuantizedConv(x, w, b=None, b_shift=None, s=None, **a):
    relu = a.get("activation") == "relu"

    def finish(total, channel):
        if a.get("high_precision_output"):
            return max(0, wrap32(total)) if relu else wrap32(total)
        way = (pick(a[key], channel) for key in ("right_shift", "scale", "out_shift"))
        y = post(total, *way, a["output_bit"])
        return max(0, y) if relu else y

    return conv(
        x,
        w,
        b,
        b_shift,
        s,
        strides=a["strides"],
        pads=a["pads"],
        dilations=a["dilations"],
        group=a["group"],
        finish=finish,
        e=(a.get("e_scale"), a.get("e_shift")),
        dtype=integer(32 if a.get("high_precision_output") else a["output_bit"]),
    )


def HzSQuantizedConvTranspose(x, w, b=None, **a):
    inputs, kernel_height, kernel_width, each = w.shape
    group, strides, pads, dilations = a["group"], a["strides"], a["pads"], a["dilations"]
    sizes = [
        (x.shape[axis + 1] - 1) * strides[axis]
        + dilations[axis] * (w.shape[axis + 1] - 1)
        + 1
        + a["output_padding"][axis]
        for axis in (0, 1)
    ]
    totals = {}
    for n, row, column, c in np.ndindex(*x.shape):
        for i, j, o in product(range(kernel_height), range(kernel_width), range(each)):
            channel = c // (inputs // group) * each + o
            key = (
                n,
                row * strides[0] + i * dilations[0] - pads[0],
                column * strides[1] + j * dilations[1] - pads[1],
                channel,
            )
            totals[key] = totals.get(key, 0) + int(x[n, row, column, c]) * int(w[c, i, j, o])

    def element(n, row, column, channel):
        total = totals.get((n, row, column, channel), 0)
        if b is not None:
            total += wrap32(int(b[channel]) * 2 ** pick(a["b_left_shift"], channel))
        keys = ("accu_right_shift", "y_quant_scale", "y_right_shift")
        y = post(total, *(pick(a[key], channel) for key in keys), int(a["output_type"][3:]))
        return max(0, y) if a["activation"] == "relu" else y

    shape = (
        x.shape[0],
        sizes[0] - pads[0] - pads[2],
        sizes[1] - pads[1] - pads[3],
        each * group,
    )
    return elements(shape, element, np.dtype(a["output_type"]))


def HzSQuantizedMatmul(x, y, *, output_bit, rounding_method="FLOOR", **a):
    second = shift_round if rounding_method == "ROUND" else shift_floor

    def element(*index):
        *_, row, column = index
        n = index[:-2]
        total = sum(int(x[(*n, row, k)]) * int(y[(*n, k, column)]) for k in range(x.shape[-1]))
        if output_bit == 32:
            return wrap32(total)
        way = (pick(a[key], column) for key in ("right_shift", "scale", "out_shift"))
        return post(total, *way, output_bit, second=second)

    return elements((*x.shape[:-1], y.shape[-1]), element, integer(output_bit))


def elementwise(x0, x1, accumulate, a):
    second = shift_round if a["rounding_method"] == "ROUND" else shift_floor
    left, right = np.broadcast_arrays(x0, x1)

    def element(*index):
        channel = index[-1]
        keys = ("accu_right_shift", "output_scale", "output_right_shift")
        way = [pick(a[key], channel) for key in keys]
        total = accumulate(int(left[index]), int(right[index]), channel)
        if a.get("add_rounding_bias"):
            return post(total + rounding_bias(*way), *way, a["output_bit"])
        return post(total, *way, a["output_bit"], second=second)

    return elements(left.shape, element, integer(a["output_bit"]))


def HzSElementwiseMul(x0, x1, **a):
    return elementwise(x0, x1, lambda left, right, _: left * right, a)


def HzSElementwiseAdd(x0, x1, **a):
    def accumulate(left, right, channel):
        left = wrap32(left * 2 ** pick(a["x_shift"], channel))
        right = right * pick(a["e_scale"], channel) * 2 ** pick(a["e_shift"], channel)
        return left + wrap32(right)

    return elementwise(x0, x1, accumulate, a)


def HzSElementwiseSub(x0, x1, **a):
    def accumulate(left, right, channel):
        return left * 2 ** pick(a["x_shift"], channel) - right * pick(a["e_scale"], channel)

    return elementwise(x0, x1, accumulate, a)


def HzRequantize(x, *, output_scale, output_right_shift, bits, **_):
    def element(*index):
        value = int(x[index]) * pick(output_scale, index[-1])
        return saturate(shift_round(value, pick(output_right_shift, index[-1])), bits)

    return elements(x.shape, element, integer(bits))


def HzSPRelu(x, slope, **a):
    bits = x.dtype.itemsize * 8

    def element(*index):
        value, channel = int(x[index]), index[-1]
        if value > 0:
            value *= pick(a["positive_scale"], channel)
            return saturate(shift_round(value, pick(a["positive_right_shift"], channel)), bits)
        keys = ("accu_right_shift", "negative_scale", "negative_right_shift")
        way = (pick(a[key], channel) for key in keys)
        return post(value * int(slope.ravel()[channel]), *way, bits, second=shift_round)

    return elements(x.shape, element, x.dtype)


def HzPRelu(x, *, alpha_scale, alpha_shift, **_):
    def element(*index):
        shift = pick(alpha_shift, index[-1])
        factor = pick(alpha_scale, index[-1]) - 2**shift
        change = min(int(x[index]), 0) * factor
        # Half away from zero.
        size = shift_round(abs(change), shift)
        return saturate(int(x[index]) + saturate(-size if change < 0 else size, 8), 8)

    return elements(x.shape, element, np.int8)


def HzLeakyRelu(x, *, alpha_scale, alpha_shift, **_):
    return HzPRelu(x, alpha_scale=[alpha_scale], alpha_shift=[alpha_shift])


def HzQuantizedBitShift(x, *, direction, shift, **_):
    def element(*index):
        value, count = int(x[index]), pick(shift, index[-1])
        y = value * 2**count if direction == "LEFT" else shift_floor(value, count)
        return saturate(y, x.dtype.itemsize * 8)

    return elements(x.shape, element, x.dtype)
