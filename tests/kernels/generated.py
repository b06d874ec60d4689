"""Random calls of each kernel: small tensors, all attributes, extremes and rounding ties."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

SCALES = st.one_of(
    # Powers of two put results on rounding ties.
    st.sampled_from([1, 1 << 13, 1 << 14, 32767, 0, -1, -(1 << 14), -32767]),
    st.integers(1 << 14, 32767),
    st.integers(-32767, 32767),
)
SMALL_SCALES = st.one_of(st.sampled_from([1, 2, 3, 1 << 14]), st.integers(1, 32767))


@st.composite
def arrays(draw, shape, dtype):
    """Draw integers of the whole range, of its ends only, or near zero."""
    limits = np.iinfo(dtype)
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    kind = draw(st.sampled_from(["any", "ends", "smallest", "near zero"]))
    if kind == "any":
        return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if kind == "smallest":
        return np.full(shape, limits.min, dtype)
    values = [limits.min, limits.max] if kind == "ends" else [-2, -1, 0, 1, 2]
    return random.choice(np.array(values, dtype), shape)


def per_channel(values, channels):
    """Draw a list of one value, or of one for each channel."""
    return st.sampled_from([1, channels]).flatmap(
        lambda n: st.lists(values, min_size=n, max_size=n)
    )


@st.composite
def ways(draw, channels, names, scales=SCALES):
    """Draw first shift, scale and second shift under the names they have in an operator."""
    return {
        names[0]: draw(per_channel(st.integers(0, 17), channels)),
        names[1]: draw(per_channel(scales, channels)),
        names[2]: draw(per_channel(st.integers(0, 31), channels)),
    }


def dtypes(*names):
    return st.sampled_from([np.dtype(name) for name in names])


def pair(low, high):
    return st.tuples(st.integers(low, high), st.integers(low, high)).map(list)


@st.composite
def biases(draw, channels):
    """Draw a bias, some of them so large that the accumulator wraps."""
    values = st.one_of(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-500, 500))
    drawn = draw(st.lists(values, min_size=channels, max_size=channels))
    return np.array(drawn, np.int32)


@st.composite
def convolutions(draw, *, depthwise=False):
    group = draw(st.integers(2, 4) if depthwise else st.integers(1, 3))
    depth, each = (1 if depthwise else draw(st.integers(1, 3))), draw(st.integers(1, 3))
    kernel_shape, dilations, strides = draw(pair(1, 3)), draw(pair(1, 2)), draw(pair(1, 3))
    pads = draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    # At least one whole window.
    height, width = (
        max(1, dilations[i] * (kernel_shape[i] - 1) + 1 - pads[i] - pads[i + 2])
        + draw(st.integers(0, 3))
        for i in (0, 1)
    )
    outputs = group * each
    x = draw(
        arrays(
            (draw(st.integers(1, 2)), height, width, depth * group), draw(dtypes("int8", "int16"))
        )
    )
    w = draw(arrays((outputs, *kernel_shape, depth), np.int8))
    attributes = {
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "group": group,
        "activation": draw(st.sampled_from(["linear", "relu"])),
        **draw(ways(outputs, ("right_shift", "scale", "out_shift"))),
    }
    output_bit = attributes["output_bit"] = draw(st.sampled_from([8, 16, 32]))
    attributes["high_precision_output"] = int(output_bit == 32)
    b = draw(st.none() | biases(outputs))
    b_shift = None
    if b is not None and draw(st.booleans()):
        b_shift = draw(arrays((outputs,), np.int8)) // 5
    s = None
    if draw(st.booleans()):
        size = [
            (x.shape[i + 1] + pads[i] + pads[i + 2] - dilations[i] * (kernel_shape[i] - 1) - 1)
            // strides[i]
            + 1
            for i in (0, 1)
        ]
        s = draw(arrays((x.shape[0], *size, outputs), np.int8))
        attributes["e_scale"] = draw(per_channel(SMALL_SCALES, outputs))
        attributes["e_shift"] = draw(per_channel(st.integers(-15, 12), outputs))
    return (x, w, b, b_shift, s), attributes


@st.composite
def transposed_convolutions(draw):
    group, depth, each = (draw(st.integers(1, 2)) for _ in range(3))
    kernel_shape, dilations, strides = draw(pair(2, 3)), draw(pair(1, 2)), draw(pair(1, 3))
    x = draw(arrays((1, *draw(pair(2, 4)), depth * group), np.int8))
    w = draw(arrays((depth * group, *kernel_shape, each), np.int8))
    outputs = group * each
    names = ("accu_right_shift", "y_quant_scale", "y_right_shift")
    attributes = {
        "strides": strides,
        # Every size is at least 3, so that something is left.
        "pads": draw(st.lists(st.integers(0, 1), min_size=4, max_size=4)),
        "dilations": dilations,
        "group": group,
        "output_padding": draw(pair(0, 1)),
        "activation": draw(st.sampled_from(["linear", "relu"])),
        "output_type": draw(st.sampled_from(["int8", "int16"])),
        "b_left_shift": draw(per_channel(st.integers(0, 20), outputs)),
        **draw(ways(outputs, names)),
    }
    return (x, w, draw(st.none() | biases(outputs))), attributes


@st.composite
def matrix_products(draw):
    batch = tuple(draw(st.lists(st.integers(1, 2), max_size=2)))
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    inputs = draw(arrays((*batch, m, k), np.int8)), draw(arrays((*batch, k, n), np.int8))
    return inputs, {
        "output_bit": draw(st.sampled_from([8, 16, 32])),
        "rounding_method": draw(st.sampled_from(["ROUND", "FLOOR"])),
        **draw(ways(n, ("right_shift", "scale", "out_shift"))),
    }


@st.composite
def shapes(draw, *, low=1, high=4):
    return tuple(draw(st.lists(st.integers(1, 4), min_size=low, max_size=high)))


@st.composite
def broadcast_pairs(draw):
    shape = draw(shapes())
    thinner = tuple(
        1 if draw(st.booleans()) else n for n in shape[draw(st.integers(0, len(shape) - 1)) :]
    )
    both = [draw(arrays(shape, draw(dtypes("int8", "int16"))))]
    both.append(draw(arrays(thinner, draw(dtypes("int8", "int16")))))
    if draw(st.booleans()):
        both.reverse()
    return tuple(both), shape[-1]


@st.composite
def elementwise(draw, operator):
    inputs, channels = draw(broadcast_pairs())
    biased = operator != "HzSElementwiseSub" and draw(st.booleans())
    names = ("accu_right_shift", "output_scale", "output_right_shift")
    attributes = {
        # A bias of half an output step needs a positive scale.
        **draw(ways(channels, names, SMALL_SCALES if biased else SCALES)),
        "output_bit": draw(st.sampled_from([8, 16])),
        "rounding_method": draw(st.sampled_from(["ROUND", "FLOOR"])),
    }
    if operator != "HzSElementwiseSub":
        attributes["add_rounding_bias"] = int(biased)
    if operator != "HzSElementwiseMul":
        attributes["x_shift"] = draw(per_channel(st.integers(0, 24), channels))
        attributes["e_scale"] = draw(per_channel(SMALL_SCALES, channels))
    if operator == "HzSElementwiseAdd":
        attributes["e_shift"] = draw(per_channel(st.integers(0, 6), channels))
    return inputs, attributes


@st.composite
def one_by_one(draw, operator):
    """Draw a call of an operator with one input and lists along its last axis."""
    narrow = operator in {"HzPRelu", "HzLeakyRelu"}
    x = draw(arrays(draw(shapes()), np.int8 if narrow else draw(dtypes("int8", "int16"))))
    channels = x.shape[-1]
    shift = st.integers(0, 24)
    if operator == "HzRequantize":
        return (x,), {
            "method": "Rescale",
            "bits": draw(st.sampled_from([8, 16])),
            "output_scale": draw(per_channel(SCALES, channels)),
            "output_right_shift": draw(per_channel(shift, channels)),
        }
    if operator == "HzSPRelu":
        slope = draw(arrays((1,) * (x.ndim - 1) + (channels,), np.int16))
        names = ("accu_right_shift", "negative_scale", "negative_right_shift")
        return (x, slope), {
            **draw(ways(channels, names)),
            "positive_scale": draw(per_channel(SCALES, channels)),
            "positive_right_shift": draw(per_channel(shift, channels)),
        }
    if operator == "HzQuantizedBitShift":
        counts = draw(per_channel(st.integers(0, 15), channels))
        return (x,), {"direction": draw(st.sampled_from(["LEFT", "RIGHT"])), "shift": counts}
    slopes = st.integers(-300, 300)
    if operator == "HzLeakyRelu":
        return (x,), {"alpha_scale": draw(slopes), "alpha_shift": draw(st.integers(0, 8))}
    return (x,), {
        "alpha_scale": draw(per_channel(slopes, channels)),
        "alpha_shift": draw(per_channel(st.integers(0, 8), channels)),
    }
