"""What an HzCalibration node does with its attributes: the kernel's side.

Measured against HMCT 1.1.0; the golden kernel cases hold it bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading.calibration_attributes import ASYMMETRIC, GRID_QTYPES, PER_CHANNEL
from hbdebug.quant import FLOAT_DTYPES, INT_RANGES, PASSING_DTYPE, QuantParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hbdebug.loading.calibration_attributes import CalibrationAttributes

PASSING_QTYPES = frozenset(
    {
        "float",
        "float32",
        "float8e3m4fn",
        "float8e4m3fn",
        "float8e5m2",
        "float8e2m5fn",
        "int2",
        "mxint8",
        "uint4",
    }
)
"""Values of ``qtype`` whose nodes hand their input on unchanged (measured, HMCT 1.1.0)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """What an HzCalibration node does.

    Attributes:
        params: How it quantizes; None when its values pass in every case.
        enabled: Whether it quantizes as the attributes stand.
        reason: Why not, in words for the user; empty when it does.
    """

    params: QuantParams | None
    enabled: bool
    reason: str


def to_grid(attributes: CalibrationAttributes, rank: int | None) -> Grid:
    """Say what the kernel does with these attributes, which it takes as they stand.

    Args:
        attributes: The attributes, normally those of `after_load`.
        rank: Number of dimensions of the tensor, when it is known: what a negative axis needs.

    Returns:
        Parameters, and whether they are in use.

    Raises:
        UnsupportedError: The quantized type is not known.
        ModelError: The channel axis does not exist.
    """
    qtype = attributes.qtype
    if qtype in PASSING_QTYPES or not qtype:
        reason = f"type {qtype} is not quantized" if qtype else "it has no quantized type"
        equalised = attributes.dequantize_scale is not None and attributes.scales.size > 1
        params = _params(attributes, PASSING_DTYPE, rank) if equalised else None
        return Grid(params=params, enabled=False, reason=reason)
    if qtype not in GRID_QTYPES and qtype not in FLOAT_DTYPES:
        raise UnsupportedError(f"quantized type {qtype!r} is not known")
    if qtype in GRID_QTYPES and not attributes.scales.size:
        return Grid(params=None, enabled=False, reason="it has no scales: never calibrated")
    params = _params(attributes, qtype, rank)
    if attributes.switch == "OFF":
        return Grid(params=params, enabled=False, reason="it is switched off (switch=OFF)")
    if attributes.constant == 0 and qtype in GRID_QTYPES:
        # The float types round all the same (measured).
        return Grid(params=params, enabled=False, reason="its calibration is open (constant=0)")
    return Grid(params=params, enabled=True, reason="")


def _params(attributes: CalibrationAttributes, dtype: str, rank: int | None) -> QuantParams:
    scale = attributes.scales.astype(np.float32)
    zero_point = attributes.zero_point.astype(np.float32)
    # `dequantize_scale` counts scales as they are written, in front of the spreading below.
    dequantize_scale = attributes.dequantize_scale if scale.size > 1 else None
    if scale.size == 1 and zero_point.size > 1:
        scale = np.repeat(scale, zero_point.size)
    per_channel = max(scale.size, zero_point.size) > 1
    return QuantParams(
        dtype=dtype,
        scale=_scalar_or_vector(scale, 1.0),
        zero_point=_scalar_or_vector(zero_point, 0.0),
        threshold=_threshold(attributes),
        axis=_axis(attributes, rank) if per_channel else 1,
        group=attributes.group if per_channel else 1,
        dequantize_scale=dequantize_scale,
        asymmetric=_is_asymmetric(attributes),
    )


def _scalar_or_vector(values: NDArray[np.float32], default: float) -> NDArray[np.float32]:
    if values.size > 1:
        return values
    return np.array(values[0] if values.size else default, np.float32)


def _axis(attributes: CalibrationAttributes, rank: int | None) -> int:
    """Return the channel axis: the attribute counts only beside the per-channel bit."""
    if not attributes.flags & PER_CHANNEL:
        return 1
    axis = attributes.axis
    if axis < 0:
        if rank is None:
            raise ModelError(
                f"its axis {axis} counts from the end of a tensor of unknown rank",
                hint="Run ONNX shape inference on the model first.",
            )
        axis += rank
    if axis < 0 or (rank is not None and axis >= max(rank, 2)):
        raise ModelError(f"its axis {attributes.axis} does not exist in a rank-{rank} tensor")
    return axis


def _is_asymmetric(attributes: CalibrationAttributes) -> bool:
    if attributes.scales.size != 1 or attributes.qtype not in GRID_QTYPES:
        return False
    if attributes.thresholds.size:
        return bool(attributes.flags & ASYMMETRIC) and attributes.thresholds.size == 2
    return attributes.zero_point.size == 1 and bool(attributes.zero_point[0])


def _threshold(attributes: CalibrationAttributes) -> NDArray[np.float64]:
    """Return the thresholds; where the file has none, the range that the grid spans."""
    if attributes.thresholds.size:
        return attributes.thresholds
    if attributes.qtype not in GRID_QTYPES:
        return np.zeros(0)
    low, high = INT_RANGES[attributes.qtype]
    if not attributes.zero_point.any():
        return attributes.scales * high
    ends: Sequence[NDArray[np.float64]] = [
        (end - attributes.zero_point) * attributes.scales for end in (low, high)
    ]
    if ends[0].size == 1:
        return np.concatenate(ends)
    return np.maximum(np.abs(ends[0]), np.abs(ends[1]))
