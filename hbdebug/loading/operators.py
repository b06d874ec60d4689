"""The vendor's float operators, written with stock ONNX operators.

`LOWERINGS` lists them. A function gets a `Body` and adds operators whose last ones write the
node's outputs. Where single precision is not what the vendor computes with, the body goes through
float64, as measured against HMCT 1.1.0 (largest differences stand with each function).

ONNX Runtime rewrites ``Mul(x, Div(1, d))`` to ``Div(x, d)``, one rounding less, from its BASIC
level on; the bodies use Reciprocal where the vendor rounds twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.loading import spatial
from hbdebug.loading.body import FLOAT32, FLOAT64, INT8, INT16, INT32, LAST, Body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HORIZON = "horizon"
"""Domain of the vendor's operators."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lowering:
    """How a custom operator becomes stock operators.

    Attributes:
        write: Adds the operators to a body.
        attributes: Attributes that the operator may have.
        write_quick: Adds fewer or cheaper operators that compute the same but for float32
            rounding; None where there are none.
    """

    write: Callable[[Body], None]
    attributes: frozenset[str]
    write_quick: Callable[[Body], None] | None = None


def hard_swish(body: Body) -> None:
    """``(x * clip(x + 3, 0, 6)) / 6`` in float32, in that order: bit exact.

    ONNX's own HardSwish multiplies by 1/6 and is off by up to 7.6e-6.
    """
    x = body.input(0)
    gate = body.clip(body.op("Add", x, body.floats(3)), 0, 6)
    product = body.op("Mul", x, gate)
    body.op("Div", product, body.floats(6), to=body.outputs[0])


def quick_hard_swish(body: Body) -> None:
    """``x * clip(x / 6 + 0.5, 0, 1)``: two passes over memory instead of four."""
    x = body.input(0)
    gate = body.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    body.op("Mul", x, gate, to=body.outputs[0])


def quick_swish(body: Body) -> None:
    """``x * sigmoid(x)``, without the way through float64."""
    x = body.input(0)
    body.op("Mul", x, body.op("Sigmoid", x), to=body.outputs[0])


def swish(body: Body) -> None:
    """``x * (1 / (1 + exp(-x)))``, each step rounded to float32; at most 2 ulp off."""
    x = body.input(0)
    exponential = _rounded(body, "Exp", body.op("Neg", x))
    gate = body.op("Reciprocal", body.op("Add", exponential, body.floats(1)))
    body.op("Mul", x, gate, to=body.outputs[0])


def mish(body: Body) -> None:
    """``x * tanh(log(1 + exp(x)))`` with tanh from exponentials, rounded after each step.

    Like the vendor's it is NaN above 88.72, where ``exp`` overflows; at most 3.7e-7 off below.
    """
    x = body.input(0)
    exponential = _rounded(body, "Exp", x)
    softplus = _rounded(body, "Log", body.op("Add", exponential, body.floats(1)))
    up = _rounded(body, "Exp", softplus)
    down = _rounded(body, "Exp", body.op("Neg", softplus))
    tanh = body.op("Div", body.op("Sub", up, down), body.op("Add", up, down))
    body.op("Mul", x, tanh, to=body.outputs[0])


def _rounded(body: Body, op_type: str, x: str) -> str:
    """Apply a function in float64 and round to float32, as a good float32 function gives it."""
    return body.cast(body.op(op_type, body.cast(x, FLOAT64)), FLOAT32)


def gelu(body: Body) -> None:
    """Gelu; ``approximate`` is ``tanh`` or, for every other word, the error function.

    The vendor computes both in float64. ONNX Runtime has no Erf in float64: 5e-7 off there.
    """
    if body.attribute("approximate", "none") == "tanh":
        _gelu_tanh(body)
        return
    x = body.input(0)
    erf = body.op("Erf", body.op("Div", x, body.floats(np.sqrt(2.0))))
    half = body.op("Mul", x, body.floats(0.5))
    body.op("Mul", half, body.op("Add", erf, body.floats(1)), to=body.outputs[0])


def _gelu_tanh(body: Body) -> None:
    """``0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`` in float64 but for the cube."""
    x = body.input(0)
    cube = body.cast(body.op("Mul", body.op("Mul", x, x), x), FLOAT64)
    wide = body.cast(x, FLOAT64)
    inner = body.op("Add", wide, body.op("Mul", cube, body.doubles(0.044715)))
    tanh = body.op("Tanh", body.op("Mul", inner, body.doubles(np.sqrt(2.0 / np.pi))))
    half = body.op("Mul", wide, body.doubles(0.5))
    body.cast(
        body.op("Mul", half, body.op("Add", tanh, body.doubles(1))), FLOAT32, to=body.outputs[0]
    )


def rsqrt(body: Body) -> None:
    """``1 / sqrt(x + epsilon)``, or ``1 / (sqrt(x) + epsilon)`` by flag: bit exact.

    In the first form the addition is float32 and the rest float64; the second is float64.
    """
    x = body.input(0)
    epsilon = float(body.attribute("epsilon", 0.0))
    if body.attribute("is_sqrt_add_reciprocal", 0):
        root = body.op("Sqrt", body.cast(x, FLOAT64))
        divisor = body.op("Add", root, body.doubles(epsilon))
    else:
        shifted = body.op("Add", x, body.floats(epsilon))
        divisor = body.op("Sqrt", body.cast(shifted, FLOAT64))
    body.cast(body.op("Div", body.doubles(1), divisor), FLOAT32, to=body.outputs[0])


def softmax(body: Body) -> None:
    """Softmax along one axis; before opset 13 ONNX's own flattens everything behind it."""
    x = body.input(0)
    axis = int(body.required("axis", 0))
    if body.opset >= 13:
        body.op("Softmax", x, to=body.outputs[0], axis=axis)
        return
    largest = body.reduce("ReduceMax", x, [axis], keep=True)
    exponential = body.op("Exp", body.op("Sub", x, largest))
    total = body.reduce("ReduceSum", exponential, [axis], keep=True)
    body.op("Div", exponential, total, to=body.outputs[0])


def layer_norm(body: Body) -> None:
    """Normalise over the axes from ``axis`` on; at most 5e-7 off.

    Raises:
        UnsupportedError: Neither the input's nor the scale's rank is known.
    """
    x, scale, bias = body.input(0), body.input(1), body.input(2)
    axes = _trailing_axes(body, x, scale)
    centred = body.op("Sub", x, body.reduce("ReduceMean", x, axes, keep=True))
    squares = body.op("Mul", centred, centred)
    variance = body.reduce("ReduceMean", squares, axes, keep=True)
    epsilon = body.floats(body.attribute("epsilon", 1e-5))
    deviation = body.op("Sqrt", body.op("Add", variance, epsilon))
    normal = body.op("Div", centred, deviation)
    body.op("Add", body.op("Mul", normal, scale), bias, to=body.outputs[0])


def _trailing_axes(body: Body, x: str, scale: str) -> list[int]:
    """Return the normalised axes, counted from the end."""
    axis = int(body.attribute("axis", -1))
    if axis < 0:
        return list(range(axis, 0))
    shape = body.shape_of(x)
    if shape is not None:
        return list(range(axis - len(shape), 0))
    scale_shape = body.shape_of(scale)
    if scale_shape is not None:
        return list(range(-len(scale_shape), 0))
    raise UnsupportedError("its rank is not known; run ONNX shape inference on the model first")


def quantize(body: Body) -> None:
    """``clip(rint(x / s) + z)``; NaN, infinities and quotients past int32 give the minimum.

    The vendor rounds to int32 before it clips, which is where the last rule comes from.
    """
    x = body.input(0)
    bits = int(body.attribute("bits", 8))
    if bits not in (8, 16, 32):
        raise UnsupportedError(f"its attribute bits is {bits}; known are 8, 16 and 32")
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    quotient = body.op("Div", x, _along_axis(body, x, body.input(1)))
    fits = body.op("Less", body.op("Abs", quotient), body.floats(2.0**31))
    whole = body.op("Where", fits, quotient, body.floats(-(2.0**31)))
    # Adding and subtracting 1.5 * 2^52 rounds a float64 to an integer, ties to even. (Round
    # exists from opset 11 on only.)
    magic = body.doubles(1.5 * 2.0**52)
    wide = body.op("Sub", body.op("Add", body.cast(whole, FLOAT64), magic), magic)
    if len(body.inputs) > 2 and body.inputs[2]:
        zero_point = body.cast(_along_axis(body, x, body.inputs[2]), FLOAT64)
        wide = body.op("Add", wide, zero_point)
    for op_type, limit in (("Min", high), ("Max", low)):
        wide = body.op(op_type, wide, body.doubles(limit))
    body.cast(wide, {8: INT8, 16: INT16, 32: INT32}[bits], to=body.outputs[0])


def dequantize(body: Body) -> None:
    """``(q - z) * s`` in float32, the integer rounded to float32 first: exact."""
    q = body.input(0)
    scale = _along_axis(body, q, body.input(1))
    values = body.cast(q, FLOAT32)
    if len(body.inputs) > 2 and body.inputs[2]:
        zero_point = body.cast(_along_axis(body, q, body.inputs[2]), FLOAT32)
        values = body.op("Sub", values, zero_point)
    body.op("Mul", values, scale, to=body.outputs[0])


def _along_axis(body: Body, x: str, values: str) -> str:
    """Arrange per-channel values along the attribute ``axis`` of a tensor of any rank."""
    if body.shape_of(values) in ((), (1,)):
        return values
    axis = int(body.attribute("axis", 1))
    rank = body.op("Shape", body.op("Shape", x))
    ones = body.op("ConstantOfShape", rank, value=np.ones(1, np.int64))
    # Behind a negative axis -1 there is nothing, and the slice from 0 on would be everything.
    head = body.slice(ones, 0, axis)
    tail = (body.slice(ones, axis + 1, LAST),) if axis != -1 else ()
    return body.op("Reshape", values, body.concat(head, body.integers([-1]), *tail))


def _lowering(
    write: Callable[[Body], None],
    *attributes: str,
    quick: Callable[[Body], None] | None = None,
) -> Lowering:
    return Lowering(write=write, attributes=frozenset(attributes), write_quick=quick)


_SAMPLING = ("align_corners", "mode", "padding_mode")

LOWERINGS: Mapping[tuple[str, str], Lowering] = {
    (HORIZON, "GridSample"): _lowering(spatial.grid_sample, *_SAMPLING),
    (HORIZON, "GridSamplePlugin"): _lowering(spatial.grid_sample_offsets, *_SAMPLING),
    (HORIZON, "HzChannelShuffle"): _lowering(spatial.channel_shuffle, "data_format", "group"),
    (HORIZON, "HzDequantize"): _lowering(dequantize, "axis"),
    (HORIZON, "HzFilter"): _lowering(spatial.keep_above, "idx_range", "threshold"),
    (HORIZON, "HzGelu"): _lowering(gelu, "approximate"),
    (HORIZON, "HzHardSwish"): _lowering(hard_swish, quick=quick_hard_swish),
    (HORIZON, "HzLayerNorm"): _lowering(layer_norm, "axis", "epsilon"),
    (HORIZON, "HzMish"): _lowering(mish),
    (HORIZON, "HzPad"): _lowering(spatial.pad, "data_format", "mode", "pads"),
    (HORIZON, "HzPreprocess"): _lowering(
        spatial.preprocess, "channel_group", "data_format", "input_type", "weight_thresholds"
    ),
    (HORIZON, "HzQuantize"): _lowering(quantize, "axis", "bits"),
    (HORIZON, "HzResize11"): _lowering(
        spatial.resize,
        "coordinate_transformation_mode",
        "cubic_coeff_a",
        "exclude_outside",
        "extrapolation_value",
        "mode",
        "nearest_mode",
    ),
    (HORIZON, "HzRsqrt"): _lowering(rsqrt, "epsilon", "is_sqrt_add_reciprocal"),
    (HORIZON, "HzSoftmax"): _lowering(softmax, "axis"),
    (HORIZON, "HzSpaceToDepth"): _lowering(
        spatial.space_to_depth, "block_height", "block_width", "data_format"
    ),
    (HORIZON, "HzSwish"): _lowering(swish, quick=quick_swish),
}
"""(domain, operator) -> its lowering; the whole list of custom operators that are known."""
