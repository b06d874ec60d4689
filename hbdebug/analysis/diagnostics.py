"""Where the chip is known to compute something else than the calibrated model.

The facts were measured with HMCT 1.1.0's quantizer and the instruction simulator; each function
says which. What is found here needs no run: it stands in the model's operators and parameters.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.model import Point
from hbdebug.quant import broadcast_channels
from hbdebug.results import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.model import Node, QuantModel
    from hbdebug.quant import QuantParams

# The table's steps are 1/127 of its output's range of 1; half a step is what rounding hides.
_VISIBLE = 0.5 / 127


def diagnose(model: QuantModel) -> tuple[Diagnostic, ...]:
    """Return every known difference between the model and the chip, in graph order."""
    return tuple(
        found
        for node in model.nodes
        if node.op_type in _CHECKS
        for found in _CHECKS[node.op_type](model, node)
    )


def _weighted(model: QuantModel, node: Node) -> Iterator[Diagnostic]:
    """Channels whose threshold leaves nothing of their weights.

    The converter gives a channel that has only zeros the smallest threshold that float32 has
    (measured, HMCT 1.1.0); other files have 0.
    """
    point = model.producer_of.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if not isinstance(point, Point) or point.params is None or not point.enabled:
        return
    params = point.params
    weight = model.constants.get(model.in_front_of_points(point.output))
    limits = params.threshold
    if weight is None or limits.size != params.scale.size or not params.is_integer:
        return
    spent = np.flatnonzero(limits <= np.finfo(np.float32).tiny)
    if not spent.size:
        return
    largest = _largest_weights(np.asarray(weight), params)
    dead = [int(channel) for channel in spent if largest[channel] == 0]
    lost = [int(channel) for channel in spent if largest[channel] > 0]
    if dead:
        yield Diagnostic(
            name="dead_channel",
            node=node.name,
            op_type=node.op_type,
            evidence=f"only zero weights in {len(dead)} of {limits.size} channels "
            f"(index {_some_numbers(dead)})",
            remedy="nothing is lost; a channel that gives only its bias can be pruned",
        )
    if lost:
        yield Diagnostic(
            name="extinguished_channel",
            node=node.name,
            op_type=node.op_type,
            evidence=f"a threshold of 0 for weights up to {largest[lost].max():.4g} in {len(lost)} "
            f"of {limits.size} channels (index {_some_numbers(lost)}): they become 0",
            remedy="calibrate the weights again",
        )


def _largest_weights(weight: NDArray[Any], params: QuantParams) -> NDArray[np.float64]:
    """Return the largest absolute weight of each scale's channel."""
    number = np.arange(params.scale.size, dtype=np.float32)
    channel = broadcast_channels(number, weight.shape, params.axis, params.group).astype(np.int64)
    largest = np.zeros(params.scale.size)
    np.maximum.at(largest, np.broadcast_to(channel, weight.shape), np.abs(weight))
    return largest


def _some_numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in numbers[:5])
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"


def _hard_sigmoid(model: QuantModel, node: Node) -> Iterator[Diagnostic]:
    """The chip's table is ``clip(x / 6 + 0.5, 0, 1)``, whatever alpha and beta say."""
    alpha = float(node.attributes.get("alpha", 0.2))
    beta = float(node.attributes.get("beta", 0.5))
    points = _points_in_front(model, node)
    if not points:
        return  # in float on the CPU, where alpha and beta count
    x = np.linspace(-8, 8, 4001)
    difference = np.abs(np.clip(alpha * x + beta, 0, 1) - np.clip(x / 6 + 0.5, 0, 1))
    if difference.max() <= _VISIBLE:
        return
    at = float(x[int(difference.argmax())])
    remedy = "export HardSigmoid with alpha 1/6 and beta 0.5"
    if beta == 0.5:
        remedy = (
            f"multiply weight and bias of the Conv in front by {6 * alpha:g} (6 x alpha) and "
            f"{remedy}: the same function in float, and what the chip computes; "
            "`hbdebug repair FLOAT.onnx -o FIXED.onnx` does it"
        )
    yield Diagnostic(
        name="hardsigmoid_alpha_ignored",
        node=node.name,
        op_type=node.op_type,
        evidence=(
            f"alpha {alpha:g}, beta {beta:g}; the chip's table takes 1/6 and 0.5, off by up to "
            f"{difference.max():.3f} (at {at:.2f})"
        ),
        remedy=remedy,
    )


def _prelu(model: QuantModel, node: Node) -> Iterator[Diagnostic]:
    """Slopes are scaled by their signed maximum, and wrap around at 16 bits (bayes, bayes-e)."""
    slope = model.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if slope is None or not _points_in_front(model, node):
        return
    values = np.asarray(slope, np.float64).reshape(-1)
    largest = float(values.max())
    wrapping = int((-values > max(largest, 0.0)).sum())
    if not wrapping:
        return
    yield Diagnostic(
        name="prelu_slope_wraps",
        node=node.name,
        op_type=node.op_type,
        evidence=(
            f"{wrapping} of {values.size} slopes are negative and larger than the largest "
            f"({values.min():.4g} against {largest:.4g}): their 16-bit form wraps around"
        ),
        remedy="put the node on the CPU, or train with slopes that are not negative",
    )


def _average_pool(model: QuantModel, node: Node) -> Iterator[Diagnostic]:
    """The chip divides by the full window, padding counted, and rounds down."""
    pads = [int(pad) for pad in node.attributes.get("pads", [])]
    if not any(pads) or not _points_in_front(model, node):
        return
    if node.attributes.get("count_include_pad", 0):
        return
    yield Diagnostic(
        name="averagepool_padding_divisor",
        node=node.name,
        op_type=node.op_type,
        evidence=f"pads {pads}, count_include_pad 0; the chip divides by the whole window",
        remedy="pool without padding, pad before a pool that counts the padding, or use the CPU",
    )


def _clip(model: QuantModel, node: Node) -> Iterator[Diagnostic]:
    """A Clip with bounds of one size is left out: its input's integers count as its output's."""
    # Half of the package is for integers; what has no Clip does not load it.
    from hbdebug.lowering.parameters import clip_bounds  # noqa: PLC0415

    low, high = clip_bounds(model, node)
    taken, given = _points_in_front(model, node), _points_behind(model, node)
    if low != -high or not math.isfinite(high) or not taken or not given:
        return
    before, after = (points[0].params for points in (taken, given))
    if before is None or after is None or before.dtype != after.dtype:
        return
    factor = float(after.scale.max()) / float(before.scale.max())
    limit = float(before.threshold.max())
    # A step of int8 is what rounding hides.
    if abs(factor - 1) * 127 < 1 and limit <= high * (1 + 1 / 127):
        return
    yield Diagnostic(
        name="clip_left_out",
        node=node.name,
        op_type=node.op_type,
        evidence=(
            f"bounds {low:g} and {high:g}; the converter leaves the Clip out, so that the chip "
            f"multiplies by {factor:.4g} and limits at {limit:.4g} in front of it"
        ),
        remedy="bounds that differ in size, such as -1 and 0.999, or put the node on the CPU",
    )


def _int16_pad(model: QuantModel, node: Node) -> Iterator[Diagnostic]:
    """A Pad of int16 values is not what the quantized ONNX computes (simulator)."""
    if _int16_in_front(model, node):
        yield Diagnostic(
            name="int16_pad",
            node=node.name,
            op_type=node.op_type,
            evidence="its input is int16; the chip's int16 Pad differs from the quantized ONNX",
            remedy="keep its input int8, or verify on the board",
        )


def _int16_max_pool(model: QuantModel, node: Node) -> Iterator[Diagnostic]:
    """An int16 MaxPool whose last window exceeds the feature differs (simulator)."""
    if node.attributes.get("ceil_mode", 0) and _int16_in_front(model, node):
        yield Diagnostic(
            name="int16_maxpool_ceil_mode",
            node=node.name,
            op_type=node.op_type,
            evidence="int16 with ceil_mode: the chip's last row and column differ from the "
            "quantized ONNX where the window exceeds the feature",
            remedy="keep its input int8, or pool without ceil_mode",
        )


_CHECKS: Mapping[str, Callable[[QuantModel, Node], Iterator[Diagnostic]]] = {
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Conv": _weighted,
    "ConvTranspose": _weighted,
    "Gemm": _weighted,
    "HardSigmoid": _hard_sigmoid,
    "HzPad": _int16_pad,
    "MatMul": _weighted,
    "MaxPool": _int16_max_pool,
    "PRelu": _prelu,
    "Pad": _int16_pad,
}


def _points_in_front(model: QuantModel, node: Node) -> list[Point]:
    """Return the enabled points directly on a node's first input."""
    found = []
    maker = model.producer_of.get(node.inputs[0])
    while isinstance(maker, Point):
        if maker.enabled:
            found.append(maker)
        maker = model.producer_of.get(maker.input)
    return found


def _points_behind(model: QuantModel, node: Node) -> list[Point]:
    """Return the enabled points that read a node's output."""
    readers = model.consumers_of.get(node.outputs[0], ())
    return [step for step, _ in readers if isinstance(step, Point) and step.enabled]


def _int16_in_front(model: QuantModel, node: Node) -> bool:
    points = _points_in_front(model, node)
    return bool(points) and points[0].params is not None and points[0].params.dtype == "int16"
