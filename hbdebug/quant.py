"""Quantization parameters and their arithmetic, bit for bit that of the vendor's HzCalibration.

All arithmetic is IEEE float32 with the default rounding (measured against HMCT 1.1.0, 75
configurations, no differing bit)::

    q = clip(rint(x / scale + zero_point), qmin, qmax)      # a true division; ties to even
    y = (q - zero_point) * scale                            # or * dequantize_scale, see below

The zero point is added *before* rounding. ``-128`` is reachable although ``scale`` is
``threshold / 127``. NaN stays NaN, infinities saturate, and the zero point's addition turns
``-0.0`` into ``+0.0``.

QuantizeLinear and DequantizeLinear differ in one thing (measured against ONNX Runtime 1.32 on
x86-64): their zero point is an integer that is added *after* rounding, so that a tie goes to the
even multiple of ``scale``, whatever the zero point::

    q = clip(rint(x / scale) + zero_point, qmin, qmax)      # QuantParams.rounds_first
    y = (q - zero_point) * scale

There NaN becomes ``qmin``. A float16 tensor is computed in float32 and rounded once at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

INT_RANGES = {
    "int4": (-8, 7),
    "uint4": (0, 15),
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int32": (-(1 << 31), (1 << 31) - 1),
}
"""Smallest and largest representable integer of each quantized type."""

FLOAT_DTYPES = ("float16", "bfloat16")
"""Types that round to a narrower float instead of to an integer grid."""

PASSING_DTYPE = "float32"
"""A type that passes values on; a `QuantParams` of it exists only to hold `dequantize_scale`."""

_FLOAT16_MAX = np.float32(65504.0)
_BFLOAT16_MASK = np.uint32(0xFFFF0000)

# Elements that several passes go over before the next ones: few enough for the second-level cache,
# and enough that two threads do not spend their time handing the interpreter lock to each other.
_BLOCK = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class QuantParams:
    """How one tensor is quantized.

    Compare with `same_as`; ``==`` is identity, because the fields hold arrays.

    Attributes:
        dtype: A key of `INT_RANGES`, one of `FLOAT_DTYPES`, or `PASSING_DTYPE`.
        scale: float32, shape ``()`` per tensor or ``(n,)`` per channel, in real units per step.
            Unused by the float types, except through ``dequantize_scale``.
        zero_point: float32, shape ``()`` or ``(n,)``; the integer that stands for 0.0.
        threshold: float64, shape ``(k,)``: the calibrated absolute maxima (one per scale), or
            ``[min, max]`` when the scheme is asymmetric. What an int16 twin is derived from.
        axis: Channel axis (0-based, non-negative) when there is more than one scale.
        group: Group count of a grouped ConvTranspose weight ``[Cin, Cout/group, ...]``, whose
            ``Cout`` scales run over both of its first two axes; 1 otherwise.
        dequantize_scale: Multiplier used in place of ``scale`` on the way back; only with more
            than one scale (per-channel equalisation rescales the weights behind it).
        asymmetric: Whether ``threshold`` is ``[min, max]``.
        rounds_first: Whether the zero point is added after rounding, as QuantizeLinear does.
        limits: Smallest and largest integer in use where a type's own are not, as with 7 bits out
            of 8; None otherwise.
        block: Length along ``axis`` that shares one scale, with ``scale`` and ``zero_point`` of
            the tensor's rank (QuantizeLinear's ``block_size``); 0 otherwise.
    """

    dtype: str
    scale: NDArray[np.float32]
    zero_point: NDArray[np.float32]
    threshold: NDArray[np.float64]
    axis: int = 1
    group: int = 1
    dequantize_scale: float | None = None
    asymmetric: bool = False
    rounds_first: bool = False
    limits: tuple[int, int] | None = None
    block: int = 0

    @property
    def is_integer(self) -> bool:
        """Whether values land on an integer grid (False for float16 and bfloat16)."""
        return self.dtype in INT_RANGES

    @property
    def per_channel(self) -> bool:
        """Whether there is more than one scale."""
        return self.scale.size > 1

    @property
    def qmin(self) -> int:
        """Smallest representable integer."""
        return (self.limits or INT_RANGES[self.dtype])[0]

    @property
    def qmax(self) -> int:
        """Largest representable integer."""
        return (self.limits or INT_RANGES[self.dtype])[1]

    @property
    def key(self) -> tuple[object, ...]:
        """A hashable value, equal exactly for parameters that compute the same function."""
        return (
            self.dtype,
            self.scale.tobytes(),
            self.zero_point.tobytes(),
            self.axis if self.per_channel else None,
            self.group,
            self.dequantize_scale,
            self.rounds_first,
            self.limits,
            (self.block, self.scale.shape) if self.block else None,
        )

    def same_as(self, other: QuantParams) -> bool:
        """Whether both sets of parameters compute the same function."""
        return self.key == other.key

    def to_int16(self) -> QuantParams:
        """Return the symmetric int16 twin: same thresholds, ``scale = threshold / 32767``.

        The division is done in double precision and rounded to float32 once, as the vendor's
        loader does. An asymmetric range becomes the symmetric one that contains it. A float type
        has no grid to refine and stays what it is, and so does QuantizeLinear's of 16 bits.
        """
        sixteen_bits = self.rounds_first and self.dtype in {"int16", "uint16"}
        if not self.is_integer or sixteen_bits:
            return self
        threshold = np.abs(self.threshold)
        if self.asymmetric:
            threshold = threshold.max(keepdims=True)
        scale = (threshold / INT_RANGES["int16"][1]).astype(np.float32)
        shape = self.scale.shape if scale.size == self.scale.size else scale.shape
        if scale.size == 1:
            shape = ()
        return QuantParams(
            dtype="int16",
            scale=scale.reshape(shape),
            zero_point=np.zeros((), np.float32),
            threshold=threshold,
            axis=self.axis,
            group=self.group,
            dequantize_scale=self.dequantize_scale,
            rounds_first=self.rounds_first,
            block=self.block,
        )

    def spread(self, values: NDArray[np.float32], shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Arrange scales or zero points so that they broadcast against a tensor.

        Raises:
            UnsupportedError: Their number does not fit the shape.
        """
        if self.block and values.size > 1:
            return _broadcast_blocks(values, shape, self.axis, self.block)
        return broadcast_channels(values, shape, self.axis, self.group)


def fake_quantize(x: NDArray[Any], params: QuantParams) -> NDArray[Any]:
    """Quantize and dequantize, as a point that is switched on computes it.

    Args:
        x: Values, float32 or float16, any shape whose channel axis fits the number of scales. Not
            modified.
        params: The grid.

    Returns:
        New array of the same shape and dtype.

    Raises:
        UnsupportedError: The number of scales does not fit the shape.
    """
    if x.dtype == np.float16:
        with np.errstate(over="ignore"):
            wide = fake_quantize(x.astype(np.float32), params)
            return wide.astype(np.float16)
    if not params.is_integer:
        return _narrow(x, params)
    if not params.per_channel:
        return _fake_quantize_per_tensor(x, params)
    scale = params.spread(params.scale, x.shape)
    zero_point = params.spread(params.zero_point, x.shape)
    if params.rounds_first:
        with np.errstate(all="ignore"):
            y: NDArray[np.float32] = np.divide(x, scale, dtype=np.float32)
            _round_and_saturate(y, params.qmin - zero_point, params.qmax - zero_point)
            y *= scale
        return y
    step = scale if params.dequantize_scale is None else np.float32(params.dequantize_scale)
    with np.errstate(all="ignore"):
        y = np.divide(x, scale, dtype=np.float32)
        y += zero_point
        np.rint(y, out=y)
        _saturate(y, np.float32(params.qmin), np.float32(params.qmax))
        y -= zero_point
        y *= step
    return y


def _fake_quantize_per_tensor(x: NDArray[np.float32], params: QuantParams) -> NDArray[np.float32]:
    """Run the four passes block by block, so that they stay in the cache."""
    scale = np.float32(params.scale.reshape(-1)[0])
    zero_point = np.float32(params.zero_point.reshape(-1)[0])
    low, high = np.float32(params.qmin), np.float32(params.qmax)
    source = np.ascontiguousarray(x, np.float32).reshape(-1)
    y = np.empty(x.shape, np.float32)
    flat = y.reshape(-1)
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            out = flat[start : start + _BLOCK]
            np.divide(source[start : start + _BLOCK], scale, out=out)
            if params.rounds_first:
                _round_and_saturate(out, low - zero_point, high - zero_point)
                np.multiply(out, scale, out=out)
                continue
            # Also with a zero point of 0: the addition is what makes -0.0 come out as +0.0.
            np.add(out, zero_point, out=out)
            np.rint(out, out=out)
            _saturate(out, low, high)
            if zero_point:
                np.subtract(out, zero_point, out=out)
            np.multiply(out, scale, out=out)
    return y


def _round_and_saturate(q: NDArray[np.float32], low: Any, high: Any) -> None:
    """Round in place to integers between two bounds, from which the zero point was subtracted.

    Bounds and integers are below 2^24, or 2^31 for int32 with a zero point of 0, so that nothing is
    lost in float32. What integers cannot hold goes: ``-0.0`` becomes ``+0.0``, NaN the lower bound.
    """
    np.rint(q, out=q)
    # The larger of a number and NaN is the number.
    np.fmax(q, low, out=q)
    np.minimum(q, high, out=q)
    np.add(q, np.float32(0.0), out=q)


def _saturate(q: NDArray[np.float32], low: np.float32, high: np.float32) -> None:
    """Limit values in place, leaving a ``-0.0`` that is in range as it is."""
    if low == 0:
        # Whether the larger of -0.0 and 0.0 is -0.0 differs between NumPy versions and CPUs.
        np.copyto(q, low, where=q < low)
        np.minimum(q, high, out=q)
    else:
        np.clip(q, low, high, out=q)


def _narrow(x: NDArray[np.float32], params: QuantParams) -> NDArray[np.float32]:
    """Round to float16 (to nearest even, clamped) or bfloat16 (truncated), widened again."""
    y = float_passthrough(x, params)
    if params.dtype == PASSING_DTYPE:
        return y.copy() if y is x else y
    if params.dtype == "bfloat16":
        bits = np.ascontiguousarray(y).view(np.uint32) & _BFLOAT16_MASK
        return bits.view(np.float32)
    with np.errstate(all="ignore"):
        half = np.clip(y, -_FLOAT16_MAX, _FLOAT16_MAX).astype(np.float16).astype(np.float32)
        return np.where(np.isnan(y), np.copysign(np.float32(np.nan), y), half)


def float_passthrough(x: NDArray[np.float32], params: QuantParams) -> NDArray[np.float32]:
    """Return what an HzCalibration node that is switched off gives.

    That is ``x`` itself (the same object), unless per-channel equalisation left a
    ``dequantize_scale``: then ``x * (dequantize_scale / scale)``, the quotient first, which
    undoes the rescaling of the weights behind it.
    """
    if params.dequantize_scale is None or not params.per_channel:
        return x
    scale = broadcast_channels(params.scale, x.shape, params.axis, params.group)
    with np.errstate(all="ignore"):
        return x * (np.float32(params.dequantize_scale) / scale)


def quantize(x: NDArray[np.float32], params: QuantParams) -> NDArray[np.int64]:
    """Map real values to the integers of ``params``.

    Args:
        x: Values, any shape whose channel axis fits the number of scales.
        params: An integer grid.

    Returns:
        Integers in ``[qmin, qmax]``, kept in int64 so that a caller may subtract a zero point
        without wrapping. NaN, which no integer can hold, becomes ``qmin``.

    Raises:
        UnsupportedError: The number of scales does not fit the shape.
    """
    scale = params.spread(params.scale, x.shape)
    zero_point = params.spread(params.zero_point, x.shape)
    with np.errstate(all="ignore"):
        if params.rounds_first:
            q = np.rint(x / scale) + zero_point
        else:
            q = np.rint(x / scale + zero_point)
        q = np.where(np.isnan(q), np.float32(params.qmin), q)
        return np.clip(q.astype(np.float64), params.qmin, params.qmax).astype(np.int64)


def dequantize(q: NDArray[np.int64], params: QuantParams) -> NDArray[np.float32]:
    """Map integers of ``params`` back to real values: ``(q - zero_point) * scale`` in float32."""
    scale = params.spread(params.scale, q.shape)
    zero_point = params.spread(params.zero_point, q.shape)
    values: NDArray[np.float32] = (q.astype(np.float32) - zero_point) * scale
    return values


def _broadcast_blocks(
    values: NDArray[np.float32], shape: tuple[int, ...], axis: int, block: int
) -> NDArray[np.float32]:
    """Repeat one value for each block along an axis; the last block may be shorter."""
    wanted = tuple(-(-size // block) if index == axis else size for index, size in enumerate(shape))
    if values.shape != wanted:
        raise UnsupportedError(
            f"scales of shape {list(values.shape)} do not fit a tensor of shape {list(shape)} in "
            f"blocks of {block} along axis {axis}"
        )
    repeated = np.repeat(values, block, axis=axis)
    return repeated[(slice(None),) * axis + (slice(shape[axis]),)]


def broadcast_channels(
    values: NDArray[np.float32], shape: tuple[int, ...], axis: int, group: int
) -> NDArray[np.float32]:
    """Arrange per-channel values so that they broadcast against a tensor.

    The rules are HzCalibration's (measured): one value fits anything; ``n`` values run along
    ``axis``; ``n = shape[1] * group`` values on axis 1 belong to a grouped ConvTranspose weight
    ``[Cin, Cout/group, ...]``, where element ``(i, j)`` uses ``i // (Cin/group) * (Cout/group)
    + j``; on a rank-1 tensor they are equal contiguous chunks.

    Args:
        values: float32, shape ``()`` or ``(n,)``.
        shape: Shape of the tensor.
        axis: Channel axis, 0-based and non-negative.
        group: Group count of a ConvTranspose weight, 1 otherwise.

    Returns:
        float32 array that broadcasts against ``shape``.

    Raises:
        UnsupportedError: The number of values does not fit. The vendor reads past its buffer
            here, so there is no result to reproduce.
    """
    count = values.size
    if count == 1:
        return values.reshape(())
    if len(shape) == 1 and count <= shape[0] and shape[0] % count == 0:
        return np.repeat(values, shape[0] // count)
    if axis < len(shape) and len(shape) > 1:
        tail = (1,) * (len(shape) - axis - 1)
        channels = shape[axis]
        if count == channels:
            return values.reshape((channels, *tail))
        if axis == 1 and count == channels * group and shape[0] % group == 0:
            rows = np.repeat(values.reshape(group, channels), shape[0] // group, axis=0)
            return rows.reshape(rows.shape + tail)
    raise UnsupportedError(
        f"{count} scales do not fit a tensor of shape {list(shape)} along axis {axis}"
        + (f" in {group} groups" if group > 1 else "")
    )
