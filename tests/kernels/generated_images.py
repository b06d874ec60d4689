"""Random calls of the kernels without weights, as in `tests.kernels.generated`."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.kernels.generated import SCALES, SMALL_SCALES, arrays, dtypes, pair, shapes, ways


@st.composite
def images(draw, *types):
    shape = (draw(st.integers(1, 2)), *draw(pair(1, 5)), draw(st.integers(1, 3)))
    return draw(arrays(shape, draw(dtypes(*types))))


@st.composite
def pools(draw, operator):
    x = draw(images("int8", "int16") if operator == "HzQuantizedMaxPool" else images("int8"))
    kernel_shape = [draw(st.integers(1, x.shape[i + 1])) for i in (0, 1)]
    ceil_mode = draw(st.integers(0, 1))
    # No window may lie wholly in the padding; with ceil_mode, a stride beyond the window, or
    # padding at the end, could push one there.
    highest = [1 if ceil_mode and operator == "HzQuantizedMaxPool" else 2 for _ in (0, 1)]
    before = [draw(st.integers(0, min(highest[i], kernel_shape[i] - 1))) for i in (0, 1)]
    behind = [0, 0] if ceil_mode else [draw(st.integers(0, kernel_shape[i] - 1)) for i in (0, 1)]
    strides = [draw(st.integers(1, max(1, kernel_shape[i] - before[i]))) for i in (0, 1)]
    return (x,), {
        "kernel_shape": kernel_shape,
        "strides": strides,
        "pads": [*before, *behind],
        "ceil_mode": ceil_mode,
    }


@st.composite
def global_averages(draw):
    x = draw(images("int8"))
    biased = draw(st.booleans())
    names = ("accu_right_shift", "output_scale", "output_right_shift")
    return (x,), {
        **draw(ways(x.shape[-1], names, SMALL_SCALES if biased else SCALES)),
        "output_bit": draw(st.sampled_from([8, 16, 32])),
        "rounding_method": draw(st.sampled_from(["ROUND", "FLOOR"])),
        "add_rounding_bias": int(biased),
    }


@st.composite
def reductions(draw, operator):
    x = draw(arrays(draw(shapes()), draw(dtypes("int8", "int16"))))
    attributes = {"axis": draw(st.integers(0, x.ndim - 1))}
    if operator.startswith("HzSQuantized"):
        attributes["output_bit"] = draw(st.sampled_from([8, 16]))
        # Only the first element counts, however many there are.
        attributes |= draw(ways(3, ("accu_right_shift", "scale", "out_shift")))
    if operator == "HzQuantizedTopK":
        attributes["k"] = draw(st.integers(1, x.shape[attributes["axis"]]))
        attributes["largest"] = draw(st.integers(0, 1))
        attributes["output_indices_bit"] = draw(st.sampled_from([16, 32]))
    return (x,), attributes


@st.composite
def global_maxima(draw):
    return (draw(images("int8")),), {}


@st.composite
def lookups(draw):
    return (draw(arrays(draw(shapes()), np.int8)), draw(arrays((256,), np.int8))), {}


@st.composite
def two_layer_tables(draw):
    x = draw(arrays(draw(shapes()), np.int16))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))

    def eight(low, high):
        return random.integers(low, high, 8, endpoint=True).tolist()

    bound = sorted(eight(-32768, 32767))
    if draw(st.booleans()):
        # Inputs that lie on a border, and segments without inputs.
        bound[:3] = [int(x.flat[0])] * 3
        bound.sort()
    table = np.clip(np.cumsum(random.integers(-900, 900, 384)), -32768, 32767)
    if draw(st.booleans()):
        # Neighbours so far apart that their difference wraps.
        table = random.integers(-32768, 32767, 384, endpoint=True)
    return (x,), {
        "table_param": table.tolist(),
        "scale": eight(-32768, 32767),
        "bias": eight(-32768, 32767),
        "left_shift": eight(0, 15),
        "right_shift": eight(0, 16),
        "bound": bound,
        "output_bit": draw(st.sampled_from([8, 16])),
        "symmetry_mode": draw(st.sampled_from(["NONE", "ORIGIN_SYMMETRIC", "Y_SYMMETRIC"])),
    }


@st.composite
def upsamples(draw):
    return (draw(images("int8")),), {"scale": draw(pair(1, 3)), "mode": "nearest"}


@st.composite
def roi_resizes(draw):
    x = draw(images("int8"))
    attributes = {
        "sizes": draw(pair(1, 9)),
        "align_mode": draw(st.sampled_from(["center", "origin", "given_step"])),
        "step_decimal_bit": draw(st.sampled_from([8, 16])),
        "is_interpolate_twice": draw(st.integers(0, 1)),
    }
    if attributes["align_mode"] == "given_step":
        attributes["step"] = draw(pair(1, 2 << attributes["step_decimal_bit"]))
    return (x,), attributes


@st.composite
def moves(draw, operator):
    if operator == "HzPad":
        x = draw(arrays(draw(shapes()), draw(dtypes("int8", "int16"))))
        count = 2 * x.ndim
        pads = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
        return (x, draw(st.none() | arrays((1,), x.dtype))), {"pads": pads}
    height, width, channels = (draw(st.integers(1, 3)) for _ in range(3))
    first, second = draw(pair(1, 3))
    dtype = draw(dtypes("int8", "int16"))
    if operator == "HzSpaceToDepth":
        x = draw(arrays((1, height * first, width * second, channels), dtype))
        return (x,), {"block_height": first, "block_width": second}
    if operator == "HzDepthToSpace":
        x = draw(arrays((1, height, width, channels * first * first), dtype))
        return (x,), {"blocksize": first, "mode": draw(st.sampled_from(["DCR", "CRD"]))}
    x = draw(arrays((1, height, width, channels * first), dtype))
    return (x,), {"group": first}


@st.composite
def quantizations(draw, operator):
    shape = draw(shapes(low=2))
    axis = draw(st.integers(0, len(shape) - 1))
    count = draw(st.sampled_from([1, shape[axis]]))
    # Powers of two put quotients on ties.
    steps = st.one_of(st.sampled_from([0.25, 0.5, 2.0]), st.floats(2.0**-20, 8, width=32))
    scale = np.array(draw(st.lists(steps, min_size=count, max_size=count)), np.float32)
    if operator == "HzDequantize":
        x = draw(arrays(shape, draw(dtypes("int8", "int16", "int32"))))
        return (x, scale), {"axis": axis}
    size = int(np.prod(shape))
    values = st.one_of(
        st.floats(width=32),
        st.integers(-300, 300).map(lambda n: n / 8),
        st.sampled_from([2.0**31, -(2.0**31), 2.0**31 - 128, np.nan, np.inf, -np.inf]),
    )
    x = np.array(draw(st.lists(values, min_size=size, max_size=size)), np.float32)
    return (x.reshape(shape), scale), {
        "axis": axis,
        "bits": draw(st.sampled_from([8, 16, 32])),
    }
