"""QuantizeLinear and DequantizeLinear nodes, of any domain that has them -> grids.

The ONNX operators (opset 10 to 25), those of ONNX Runtime's domain ``com.microsoft``, and the
vendor's HzQuantize and HzDequantize, which models trained with fake quantization hold, compute the
same: ONNX operator documentation, QuantizeLinear-21 and DequantizeLinear-21; measured against ONNX
Runtime 1.32. (HzQuantize turns infinities and what is beyond 2^31 steps into the smallest integer
instead of saturating; here it saturates.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import protobuf
from hbdebug.loading.operators import HORIZON
from hbdebug.quant import INT_RANGES, QuantParams

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hbdebug.loading.body import Shape

QUANTIZE = frozenset(
    {
        ("", "QuantizeLinear"),
        ("com.microsoft", "QuantizeLinear"),
        (HORIZON, "HzQuantize"),
    }
)
"""(domain, operator) of what turns real numbers into integers."""

DEQUANTIZE = frozenset(
    {
        ("", "DequantizeLinear"),
        ("com.microsoft", "DequantizeLinear"),
        (HORIZON, "HzDequantize"),
    }
)
"""(domain, operator) of what turns integers into real numbers."""

_SCALE_TYPES = {"float32", "float16"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Grid:
    """What a node quantizes or dequantizes by.

    Attributes:
        params: The grid.
        real: dtype name of the real numbers: ``float32`` or ``float16``.
    """

    params: QuantParams
    real: str

    def within(self, low: int, high: int) -> Grid:
        """Return the grid with other limits, as a Clip between the two nodes sets them."""
        params = self.params
        limits = max(low, params.qmin), min(high, params.qmax)
        threshold = _threshold(params.dtype, params.scale, params.zero_point, limits)
        return replace(self, params=replace(params, limits=limits, threshold=threshold))

    def differs_from(self, other: Grid, *, moved: bool) -> str:
        """Say in words what keeps a pair of nodes from being one point; empty when nothing does.

        Args:
            other: The grid of the other node.
            moved: Whether nodes between the two may have moved the channels to another axis.
        """
        one, two = self.params, other.params
        comparisons = (
            (one.dtype == two.dtype, f"types {one.dtype} and {two.dtype}"),
            (np.array_equal(one.scale, two.scale, equal_nan=True), "other scales"),
            (np.array_equal(one.zero_point, two.zero_point), "other zero points"),
            (self.real == other.real, f"real numbers of types {self.real} and {other.real}"),
            (one.block == two.block, "other blocks"),
            (moved or one.axis == two.axis, f"axes {one.axis} and {two.axis}"),
        )
        return next((words for same, words in comparisons if not same), "")


def read_grid(
    proto: onnx.NodeProto,
    constants: Mapping[str, NDArray[np.generic]],
    shape: Shape | None,
    stored_as: str = "",
) -> Grid:
    """Read what a node of `QUANTIZE` or `DEQUANTIZE` quantizes by.

    Args:
        proto: The node.
        constants: The model's constants.
        shape: Shape of its input 0, as far as it is known.
        stored_as: Type of the integers that it dequantizes.

    Raises:
        UnsupportedError: The grid is computed at run time, or of a type that is not known.
        ModelError: Its parts do not fit together.
    """
    attributes = protobuf.attributes(proto)
    scale = _constant(proto, 1, constants, "scale")
    real = str(scale.dtype.name)
    if real not in _SCALE_TYPES:
        raise UnsupportedError(f"its scale has type {real}; {_known(_SCALE_TYPES)}")
    if len(proto.input) > 2 and proto.input[2]:
        zero_point = _constant(proto, 2, constants, "zero point")
        dtype = integer_type(zero_point)
    else:
        zero_point = np.zeros((), np.int32)
        dtype = stored_as or _type_without_zero_point(proto.op_type, attributes)
    if dtype not in INT_RANGES:
        raise UnsupportedError(f"quantized type {dtype} is not known; {_known(INT_RANGES)}")
    precision = attributes.get("precision", 0)
    if precision not in {0, onnx.TensorProto.FLOAT}:
        raise UnsupportedError(f"it divides with precision {precision}, and not in float32")
    block = int(attributes.get("block_size", 0))
    return Grid(params=_params(dtype, scale, zero_point, attributes, shape, block), real=real)


def _params(
    dtype: str,
    scale: NDArray[np.generic],
    zero_point: NDArray[np.generic],
    attributes: Mapping[str, Any],
    shape: Shape | None,
    block: int,
) -> QuantParams:
    per_tensor = scale.size == 1 and not block
    if not block and scale.ndim > 1:
        raise ModelError(f"its scale has shape {list(scale.shape)}, and no block_size says why")
    real = scale.astype(np.float32).reshape(() if per_tensor else scale.shape)
    # Through int32: the 4-bit types of ml_dtypes convert to few others.
    zero = zero_point.astype(np.int32).astype(np.float32)
    if zero.size not in {1, real.size}:
        raise ModelError(f"it has {real.size} scales and {zero.size} zero points")
    zero = np.broadcast_to(zero.reshape(real.shape if zero.size == real.size else ()), real.shape)
    axis = 1 if per_tensor else _axis(int(attributes.get("axis", 1)), shape, real.ndim)
    return QuantParams(
        dtype=dtype,
        scale=real,
        zero_point=np.ascontiguousarray(zero).reshape(real.shape),
        threshold=_threshold(dtype, real, zero, INT_RANGES[dtype]),
        axis=axis,
        asymmetric=per_tensor and _is_asymmetric(dtype, zero),
        rounds_first=True,
        block=block,
    )


def integer_type(array: NDArray[np.generic]) -> str:
    """Return the name of an array's type, of 4 bits included.

    Until onnx 1.18 a 4-bit type was int8 with its name in a field.
    """
    return str(array.dtype.descr[0][0] or array.dtype.name)


def _constant(
    proto: onnx.NodeProto, index: int, constants: Mapping[str, NDArray[np.generic]], what: str
) -> NDArray[np.generic]:
    name = proto.input[index] if index < len(proto.input) else ""
    if not name:
        raise ModelError(f"it has no {what}")
    if name not in constants:
        raise UnsupportedError(
            f"its {what} {name} is computed at run time: dynamic quantization has no fixed grid "
            "that could be analysed, nor does a BPU have it"
        )
    return constants[name]


def _type_without_zero_point(op_type: str, attributes: Mapping[str, Any]) -> str:
    if op_type == "HzQuantize":
        return f"int{attributes.get('bits', 8)}"
    number = int(attributes.get("output_dtype", 0)) or onnx.TensorProto.UINT8
    return str(onnx.TensorProto.DataType.Name(number).lower())


def _axis(axis: int, shape: Shape | None, scale_rank: int) -> int:
    rank = len(shape) if shape is not None else (scale_rank if scale_rank > 1 else None)
    if axis >= 0:
        if rank is not None and axis >= max(rank, 2):
            raise ModelError(f"its axis {axis} does not exist in a rank-{rank} tensor")
        return axis
    if rank is None:
        raise ModelError(
            f"its axis {axis} counts from the end of a tensor of unknown rank",
            hint="Run ONNX shape inference on the model first.",
        )
    if axis < -rank:
        raise ModelError(f"its axis {axis} does not exist in a rank-{rank} tensor")
    return axis + rank


def _middle(dtype: str) -> int:
    """Return the zero point of a symmetric range: 0, or half-way up an unsigned type."""
    low, high = INT_RANGES[dtype]
    return 0 if low else (high + 1) // 2


def _is_asymmetric(dtype: str, zero_point: NDArray[np.float32]) -> bool:
    return bool((zero_point != _middle(dtype)).any())


def _threshold(
    dtype: str,
    scale: NDArray[np.float32],
    zero_point: NDArray[np.float32],
    limits: tuple[int, int],
) -> NDArray[np.float64]:
    """Return the range that a grid spans, as `QuantParams.threshold` has it."""
    low, high = limits
    steps = scale.astype(np.float64).reshape(-1)
    zero = zero_point.astype(np.float64).reshape(-1)
    if not _is_asymmetric(dtype, zero_point):
        return steps * (high - _middle(dtype))
    ends = (low - zero) * steps, (high - zero) * steps
    if steps.size == 1:
        return np.concatenate(ends)
    return np.maximum(np.abs(ends[0]), np.abs(ends[1]))


def _known(names: Any) -> str:
    return f"known are {', '.join(sorted(names))}"
