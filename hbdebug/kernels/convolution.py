"""Operators with weights: convolution, transposed convolution, colour conversion, MatMul."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels.arithmetic import (
    Accumulator,
    check_channels,
    magnitude,
    power_of_two,
    raw,
    rescale,
    shifts,
    stage,
)
from hbdebug.kernels.outcome import Outcome, kernel, require_nhwc, unsupported
from hbdebug.kernels.products import convolve, convolve_transposed, multiply_matrices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@kernel(
    types={"X": "int8 int16", "W": "int8", "B": "int32", "B_shift": "int8", "S": "int8"},
    ignores=(
        "input_bit",
        "input_scales",
        "kernel_shape",
        "output_scales",
        "sumin_bit",
        "sumin_scales",
        "use_bias",
        "use_sumin",
        "weight_bit",
        "weight_scales",
        "weight_thresholds",
    ),
)
def HzSQuantizedConv(
    X: NDArray[Any],
    W: NDArray[np.int8],
    B: NDArray[np.int32] | None = None,
    B_shift: NDArray[np.int8] | None = None,
    S: NDArray[np.int8] | None = None,
    *,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    activation: str = "linear",
    right_shift: Sequence[int] | None = None,
    scale: Sequence[int] | None = None,
    out_shift: Sequence[int] | None = None,
    output_bit: int = 8,
    high_precision_output: int = 0,
    e_scale: Sequence[int] | None = None,
    e_shift: Sequence[int] | None = None,
    data_format: str = "NCHW",
    report: bool = False,
) -> Outcome:
    """Convolve, add bias and residual, rescale; both shifts floor.

    ``acc = conv(X, W) + (B << max(B_shift, 0)) + shift(S * e_scale, e_shift)``, wrapped to 32
    bits; a positive ``e_shift`` shifts left, a negative one right (floor). Which optional parts
    there are is decided by the inputs, not by ``use_bias`` and ``use_sumin``.

    Args:
        X: Input, NHWC. Padding is 0.
        W: Weights, ``[Cout, kh, kw, Cin / group]``.
        B: Bias, ``[Cout]``, which holds the rounding of the output as well.
        B_shift: Left shift of each bias, ``[Cout]``.
        S: Fused residual, shaped like the output.
        strides: Along height and width.
        pads: Top, left, bottom, right.
        dilations: Along height and width.
        group: Number of groups.
        activation: ``linear`` or ``relu``.
        right_shift: First shift, per output channel.
        scale: Multiplier, per output channel.
        out_shift: Second shift, per output channel.
        output_bit: 8, 16 or 32.
        high_precision_output: 1 for the int32 accumulator itself; scales are not used then.
        e_scale: Multiplier of the residual, per output channel.
        e_shift: Left shift of the residual, per output channel.
        data_format: Must be NHWC.
        report: Whether to say what the accumulator did.
    """
    name = "HzSQuantizedConv"
    require_nhwc(name, data_format)
    relu = _is_relu(name, activation)
    accumulator = convolve(X, W, strides, pads, dilations, group)
    if B is not None:
        accumulator = _plus_bias(name, accumulator, B, B_shift)
    if S is not None:
        if e_scale is None or e_shift is None:
            raise UnsupportedError(f"{name} has a residual but no e_scale and e_shift")
        accumulator = _plus_residual(name, accumulator, S, e_scale, e_shift)
    if high_precision_output:
        return raw(accumulator, relu=relu, report=report)
    way = stage(name, right_shift, scale, out_shift, output_bit, relu=relu)
    return rescale(accumulator, way, report=report)


@kernel(
    types={"X": "int8", "W": "int8", "B": "int32", "B_shift": "int8"},
    ignores=("input_type", "weight_thresholds"),
)
def HzSQuantizedPreprocess(
    X: NDArray[np.int8],
    W: NDArray[np.int8],
    B: NDArray[np.int32],
    B_shift: NDArray[np.int8],
    *,
    channel_group: int = 1,
    right_shift: Sequence[int] | None = None,
    scale: Sequence[int] | None = None,
    out_shift: Sequence[int] | None = None,
    output_bit: int = 8,
    high_precision_output: int = 0,
    data_format: str = "NCHW",
    report: bool = False,
) -> Outcome:
    """Convert colours, subtract a mean and scale: a 1x1 convolution of ``channel_group`` groups.

    Args:
        X: Pixels minus 128, NHWC.
        W: Weights, ``[Cout, 1, 1, Cin / channel_group]``.
        B: Bias, ``[Cout]``.
        B_shift: Left shift of each bias, ``[Cout]``.
        channel_group: Number of groups.
        right_shift: First shift, per output channel.
        scale: Multiplier, per output channel.
        out_shift: Second shift, per output channel.
        output_bit: 8, 16 or 32.
        high_precision_output: 1 for the int32 accumulator itself; scales are not used then.
        data_format: Must be NHWC.
        report: Whether to say what the accumulator did.
    """
    return HzSQuantizedConv(
        X,
        W,
        B,
        B_shift,
        group=channel_group,
        right_shift=right_shift,
        scale=scale,
        out_shift=out_shift,
        output_bit=output_bit,
        high_precision_output=high_precision_output,
        data_format=data_format,
        report=report,
    )


@kernel(
    types={"X": "int8", "W": "int8", "B": "int32", "E": "int8"},
    ignores=("e_left_shift", "e_quant_scale", "kernel_shape", "use_bias", "weight_thresholds"),
)
def HzSQuantizedConvTranspose(
    X: NDArray[np.int8],
    W: NDArray[np.int8],
    B: NDArray[np.int32] | None = None,
    E: NDArray[np.int8] | None = None,
    *,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    group: int = 1,
    output_padding: Sequence[int] = (0, 0),
    activation: str = "linear",
    accu_right_shift: Sequence[int] | None = None,
    y_quant_scale: Sequence[int] | None = None,
    y_right_shift: Sequence[int] | None = None,
    b_left_shift: Sequence[int] | None = None,
    output_type: str = "int8",
    use_sumin: int = 0,
    data_format: str = "NCHW",
    report: bool = False,
) -> Outcome:
    """Convolve transposed, add ``B << b_left_shift``, rescale; both shifts floor.

    Args:
        X: Input, NHWC.
        W: Weights, ``[Cin, kh, kw, Cout / group]``.
        B: Bias, ``[Cout]``.
        E: Residual, which no converter writes; must be absent.
        strides: Along height and width.
        pads: Rows and columns cut off: top, left, bottom, right.
        dilations: Along height and width.
        group: Number of groups.
        output_padding: Rows and columns added at the bottom and at the right, before the cut.
        activation: ``linear`` or ``relu``.
        accu_right_shift: First shift, per output channel.
        y_quant_scale: Multiplier, per output channel.
        y_right_shift: Second shift, per output channel.
        b_left_shift: Left shift of the bias, per output channel.
        output_type: ``int8`` or ``int16``.
        use_sumin: Must be 0.
        data_format: Must be NHWC.
        report: Whether to say what the accumulator did.
    """
    name = "HzSQuantizedConvTranspose"
    require_nhwc(name, data_format)
    if E is not None or use_sumin:
        raise unsupported(name, "use_sumin", use_sumin, "no residual input")
    if output_type not in {"int8", "int16"}:
        raise unsupported(name, "output_type", output_type, "int8 and int16")
    accumulator = convolve_transposed(X, W, strides, pads, dilations, group, output_padding)
    if B is not None:
        left = np.zeros(1, np.int64) if b_left_shift is None else np.asarray(b_left_shift)
        accumulator = _plus_bias(name, accumulator, B, left)
    bits = int(output_type[len("int") :])
    relu = _is_relu(name, activation)
    way = stage(name, accu_right_shift, y_quant_scale, y_right_shift, bits, relu=relu)
    return rescale(accumulator, way, report=report)


@kernel(types={"A": "int8", "B": "int8"}, ignores=("data_format",))
def HzSQuantizedMatmul(
    A: NDArray[np.int8],
    B: NDArray[np.int8],
    *,
    right_shift: Sequence[int] | None = None,
    scale: Sequence[int] | None = None,
    out_shift: Sequence[int] | None = None,
    output_bit: int = 8,
    rounding_method: str = "FLOOR",
    is_transa: int = 0,
    is_transb: int = 0,
    report: bool = False,
) -> Outcome:
    """Multiply matrices, batched and broadcast as ``numpy.matmul`` does, and rescale.

    Args:
        A: ``[..., M, K]``.
        B: ``[..., K, N]``.
        right_shift: First shift, which floors.
        scale: Multiplier.
        out_shift: Second shift.
        output_bit: 8, 16, or 32 for the accumulator itself.
        rounding_method: ``ROUND`` (the second shift rounds half up) or ``FLOOR``.
        is_transa: Must be 0.
        is_transb: Must be 0.
        report: Whether to say what the accumulator did.
    """
    name = "HzSQuantizedMatmul"
    for attribute, value in (("is_transa", is_transa), ("is_transb", is_transb)):
        if value:
            raise unsupported(name, attribute, value, "0")
    accumulator = multiply_matrices(A, B)
    if output_bit == 32:
        return raw(accumulator, relu=False, report=report)
    rounds = rounding_method == "ROUND"
    way = stage(name, right_shift, scale, out_shift, output_bit, round_out_shift=rounds)
    return rescale(accumulator, way, report=report)


def _is_relu(name: str, activation: str) -> bool:
    if activation not in {"linear", "relu"}:
        raise unsupported(name, "activation", activation, "linear and relu")
    return activation == "relu"


def _plus_bias(
    name: str, accumulator: Accumulator, bias: NDArray[np.int32], left: NDArray[Any] | None
) -> Accumulator:
    """Add the bias, shifted left within 32 bits."""
    values = bias.astype(np.int64)
    check_channels(values, accumulator.values.shape[-1])
    if left is not None:
        counts = shifts(name, np.maximum(left.astype(np.int64), 0).tolist())
        check_channels(counts, values.size)
        values = ((values << counts) + (1 << 31)) % (1 << 32) - (1 << 31)
    return accumulator.plus(values, int(np.abs(values).max()))


def _plus_residual(
    name: str,
    accumulator: Accumulator,
    residual: NDArray[np.int8],
    e_scale: Sequence[int],
    e_shift: Sequence[int],
) -> Accumulator:
    """Add the residual in units of the accumulator; what a right shift cuts off is lost."""
    scale, shift = np.asarray(e_scale, np.int64), np.asarray(e_shift, np.int64)
    shifts(name, np.abs(shift).tolist())
    if residual.shape != accumulator.values.shape:
        raise UnsupportedError(
            f"{name} has a residual of shape {list(residual.shape)} for an output of shape"
            f" {list(accumulator.values.shape)}"
        )
    for values in (scale, shift):
        check_channels(values, residual.shape[-1])
    factor = scale * power_of_two(shift)
    bound = int(np.ceil(magnitude(residual) * np.abs(factor).max()))
    # The wide type also holds the bits below 1, at most 31 of them, until they are cut off.
    shifted = np.floor(residual.astype(np.float64) * factor)
    return accumulator.plus(shifted, bound)
