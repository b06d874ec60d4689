"""Operators as plain functions of arrays.

`KERNELS` holds what the chip computes in integers, bit for bit (docs/kernels.md has the formulas);
`hbdebug.kernels.floating` holds float operators.

A kernel is called with the operator's inputs by position, None for one that is absent, and the
node's attributes by name; what is missing takes the schema's default::

    from hbdebug.kernels import KERNELS

    outcome = KERNELS["horizon", "HzRequantize"](
        x, method="Rescale", output_scale=[17000], output_right_shift=[15], report=True
    )
    outcome.outputs[0]      # int8 array
    outcome.accumulator     # AccumulatorReport: range, what wrapped, what saturated
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.kernels.convolution import (
    HzSQuantizedConv,
    HzSQuantizedConvTranspose,
    HzSQuantizedMatmul,
    HzSQuantizedPreprocess,
)
from hbdebug.kernels.elementwise import (
    HzLeakyRelu,
    HzPRelu,
    HzQuantizedBitShift,
    HzRequantize,
    HzSElementwiseAdd,
    HzSElementwiseMul,
    HzSElementwiseSub,
    HzSPRelu,
)
from hbdebug.kernels.outcome import AccumulatorReport, Outcome
from hbdebug.kernels.pooling import (
    HzQuantizedAveragePool,
    HzQuantizedGlobalMaxPool,
    HzQuantizedMaxPool,
    HzSQuantizedGlobalAveragePool,
)
from hbdebug.kernels.quantization import HzDequantize, HzQuantize
from hbdebug.kernels.rearrange import HzChannelShuffle, HzDepthToSpace, HzPad, HzSpaceToDepth
from hbdebug.kernels.reductions import (
    HzQuantizedArgMax,
    HzQuantizedReduceMax,
    HzQuantizedTopK,
    HzSQuantizedReduceMean,
    HzSQuantizedReduceSum,
)
from hbdebug.kernels.resize import HzQuantizedResizeUpsample, HzQuantizedRoiResize
from hbdebug.kernels.tables import HzLut, HzLut2Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["KERNELS", "AccumulatorReport", "Outcome"]

KERNELS: Mapping[tuple[str, str], Callable[..., Outcome]] = {
    ("horizon", "HzChannelShuffle"): HzChannelShuffle,
    ("horizon", "HzDepthToSpace"): HzDepthToSpace,
    ("horizon", "HzDequantize"): HzDequantize,
    ("horizon", "HzLeakyRelu"): HzLeakyRelu,
    ("horizon", "HzLut"): HzLut,
    ("horizon", "HzLut2Layer"): HzLut2Layer,
    ("horizon", "HzPRelu"): HzPRelu,
    ("horizon", "HzPad"): HzPad,
    ("horizon", "HzQuantize"): HzQuantize,
    ("horizon", "HzQuantizedArgMax"): HzQuantizedArgMax,
    ("horizon", "HzQuantizedAveragePool"): HzQuantizedAveragePool,
    ("horizon", "HzQuantizedBitShift"): HzQuantizedBitShift,
    ("horizon", "HzQuantizedGlobalMaxPool"): HzQuantizedGlobalMaxPool,
    ("horizon", "HzQuantizedMaxPool"): HzQuantizedMaxPool,
    ("horizon", "HzQuantizedReduceMax"): HzQuantizedReduceMax,
    ("horizon", "HzQuantizedResizeUpsample"): HzQuantizedResizeUpsample,
    ("horizon", "HzQuantizedRoiResize"): HzQuantizedRoiResize,
    ("horizon", "HzQuantizedTopK"): HzQuantizedTopK,
    ("horizon", "HzRequantize"): HzRequantize,
    ("horizon", "HzSElementwiseAdd"): HzSElementwiseAdd,
    ("horizon", "HzSElementwiseMul"): HzSElementwiseMul,
    ("horizon", "HzSElementwiseSub"): HzSElementwiseSub,
    ("horizon", "HzSPRelu"): HzSPRelu,
    ("horizon", "HzSQuantizedConv"): HzSQuantizedConv,
    ("horizon", "HzSQuantizedConvTranspose"): HzSQuantizedConvTranspose,
    ("horizon", "HzSQuantizedGlobalAveragePool"): HzSQuantizedGlobalAveragePool,
    ("horizon", "HzSQuantizedMatmul"): HzSQuantizedMatmul,
    ("horizon", "HzSQuantizedPreprocess"): HzSQuantizedPreprocess,
    ("horizon", "HzSQuantizedReduceMean"): HzSQuantizedReduceMean,
    ("horizon", "HzSQuantizedReduceSum"): HzSQuantizedReduceSum,
    ("horizon", "HzSpaceToDepth"): HzSpaceToDepth,
}
"""(domain, operator) -> its function; each also takes ``report=True`` for the accumulator's range.

They raise `UnsupportedError` for types, attributes and attribute values outside of what the
converter writes.
"""
