"""What becomes of the biases and of nearly dead channels when a convolution is lowered.

A bias is an int32 that counts in steps of input times weight, ``x w``. Where the weights of a
channel are tiny, so are these steps, and the bias may need more than 32 bits. In the plain scheme,
that of QDQ and QLinearConv models, it is clipped, and the channel loses it. The vendor's converter
counts the weights of such a channel in larger steps instead (measured against HMCT 1.1.0, see
``docs/lowering.md``): the bias stays, and the weights vanish.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hbdebug.lowering.convolution import SumIntegers
from hbdebug.lowering.mantissa import half_away
from hbdebug.lowering.steps import step_of_threshold
from hbdebug.results import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from hbdebug.analysis.tally import Tally
    from hbdebug.lowering.convolution import Derivation
    from hbdebug.model import Node

INT32_MAX = (1 << 31) - 1
"""Largest bias of the plain scheme, in steps of input times weight."""

CHIP_MAX = (1 << 30) - 1
"""Largest bias that the converter writes, rounding term included."""

# What is off by less is not seen: half a step, which is what rounding is off by. The steps of int16
# are so small that a thousandth of its range is what counts there.
_VISIBLE_STEPS = {8: 0.5, 16: 32.0, 32: np.inf}


def bias_in_steps(
    bias: ArrayLike, input_step: float, weight_step: ArrayLike
) -> NDArray[np.float64]:
    """Count biases in steps of input times weight, whole numbers in float64.

    Args:
        bias: Real values, per output channel.
        input_step: Step of the input.
        weight_step: Step of the weights, per output channel or one.

    Returns:
        float64; infinite where the product of the steps is no float32 above zero.
    """
    product = np.float32(input_step) * np.asarray(weight_step, np.float32)
    values = np.asarray(bias, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = np.where(values == 0, 0.0, values / product.astype(np.float64))
    return half_away(exact)


def overflowing(
    bias: ArrayLike, input_step: float, weight_step: ArrayLike, *, limit: int = INT32_MAX
) -> NDArray[np.bool_]:
    """Say of which channels the bias does not fit, counted in steps of input times weight.

    Args:
        bias: Real values, per output channel.
        input_step: Step of the input.
        weight_step: Step of the weights, per output channel or one.
        limit: Largest bias that can be held: of the plain scheme unless given.
    """
    found: NDArray[np.bool_] = np.abs(bias_in_steps(bias, input_step, weight_step)) > limit
    return found


def nearly_dead(derivation: Derivation) -> NDArray[np.bool_]:
    """Say which channels' weights were counted in larger steps than their thresholds say."""
    found: NDArray[np.bool_] = derivation.integers.requantized & (
        weight_steps(derivation) > plain_steps(derivation)
    )
    return found


def clipped(derivation: Derivation) -> NDArray[np.bool_]:
    """Say which channels' biases the converter clips."""
    if derivation.bias is None:
        return np.zeros(len(weight_steps(derivation)), bool)
    found = bias_in_steps(derivation.bias, derivation.input_step, weight_steps(derivation))
    return np.abs(found + _rounding_term(derivation)) > CHIP_MAX


def bias_error(derivation: Derivation) -> NDArray[np.float64]:
    """Return by how much the bias of each channel is off, in steps of the output.

    Where the output is an int32 sum, a bias is rounded to its step, and nothing else is lost.
    """
    integers = derivation.integers
    if isinstance(integers, SumIntegers) or derivation.bias is None:
        return np.zeros(len(weight_steps(derivation)))
    written = np.ldexp(integers.bias.astype(np.float64), integers.bias_shift.astype(np.int32))
    kept = (written - _rounding_term(derivation)) * _sum_steps(derivation)
    return np.abs(kept - derivation.bias) / np.float64(np.float32(derivation.output_step))


def weight_steps(derivation: Derivation) -> NDArray[np.float32]:
    """Return the steps that the weights of each channel are counted in."""
    integers = derivation.integers
    if isinstance(integers, SumIntegers):
        return integers.step / np.float32(derivation.input_step)
    return integers.weight_step


def convolution_diagnostics(
    node: Node, derivation: Derivation, tally: Tally, samples: int, march: str
) -> Iterator[Diagnostic]:
    """Yield what the integers of a convolution lose.

    Args:
        node: The calibrated node.
        derivation: Its integers.
        tally: How far its output was from the calibrated one.
        samples: On how many samples.
        march: For the words of the remedies.
    """
    for name, found in (
        ("bias_overflow", _overflow(derivation, tally, march)),
        ("bias_rounded_away", _rounded_away(derivation)),
        ("near_dead_channels", _near_dead(derivation, tally, samples)),
    ):
        if found is not None:
            evidence, remedy = found
            yield Diagnostic(
                name=name, node=node.name, op_type=node.op_type, evidence=evidence, remedy=remedy
            )


def _overflow(derivation: Derivation, tally: Tally, march: str) -> tuple[str, str] | None:
    if derivation.bias is None:
        return None
    lost = clipped(derivation)
    if lost.any():
        return _clipped_text(derivation, lost)
    plain = overflowing(derivation.bias, derivation.input_step, plain_steps(derivation))
    return _saved_text(derivation, plain, tally, march) if plain.any() else None


def _clipped_text(derivation: Derivation, lost: NDArray[np.bool_]) -> tuple[str, str]:
    evidence = (
        f"the bias of {_channels(lost)} does not fit the accumulator and is clipped at 2^30: "
        + _largest_bias(derivation, weight_steps(derivation))
    )
    remedy = (
        "raise these steps: a larger threshold of the input, or larger weights in the channel and "
        "a smaller factor behind it; else put the node on the CPU"
    )
    return evidence, remedy


def _saved_text(
    derivation: Derivation, plain: NDArray[np.bool_], tally: Tally, march: str
) -> tuple[str, str]:
    evidence = (
        f"counted in steps of input times weight, the bias of {_channels(plain)} overflows int32: "
        + _largest_bias(derivation, plain_steps(derivation))
        + "; a QDQ or QLinearConv model clips it, the converter counts the weights of the channel "
        "in larger steps: the bias stays, and weights vanish"
    )
    remedy = (
        "fold the dead channel (zero its weights, keep its bias) or lift its weight scale; int16 "
        "activations make it worse, and with int8 weights (A16W8) are all that the BPU has"
    )
    seen = tally.channel_largest
    if seen.size == plain.size and seen[plain].max() <= _harmless(derivation):
        remedy = f"nothing is lost on {march}; for other runtimes, {remedy}"
    return evidence, remedy


def _largest_bias(derivation: Derivation, steps: NDArray[np.float32]) -> str:
    assert derivation.bias is not None
    found = bias_in_steps(derivation.bias, derivation.input_step, steps)
    channel = int(np.argmax(np.abs(found)))
    return (
        f"{derivation.bias[channel]:.4g} of channel {channel} is {found[channel]:.3g} steps "
        f"({derivation.input_step:.3g} x {steps[channel]:.3g})"
    )


def _rounded_away(derivation: Derivation) -> tuple[str, str] | None:
    error = np.where(clipped(derivation), 0.0, bias_error(derivation))
    lost = error >= _VISIBLE_STEPS[derivation.output_bits]
    if not lost.any() or derivation.bias is None:
        return None
    channel = int(np.argmax(error))
    remedy = "give the output a larger threshold, or smaller steps to the input: int16 if it can be"
    evidence = (
        f"the bias of {_channels(lost)} is lost in part: {derivation.bias[channel]:.4g} of channel "
        f"{channel} is off by {error[channel]:.3g} steps of the output, because a step of the "
        "accumulator is worth more than one of the output"
    )
    return evidence, remedy


def _near_dead(derivation: Derivation, tally: Tally, samples: int) -> tuple[str, str] | None:
    dead = nearly_dead(derivation)
    if not dead.any():
        return None
    thresholds = np.broadcast_to(derivation.threshold.reshape(-1), dead.shape)
    in_steps = half_away(thresholds / weight_steps(derivation).astype(np.float64))
    vanished = int((dead & (in_steps == 0)).sum())
    evidence = (
        f"{_channels(dead)} nearly dead (largest weight {thresholds[dead].max():.2g}), so that "
        "their weights are counted in larger steps"
    )
    if vanished:
        evidence += f"; {vanished} without any weight left, which give the bias alone"
    if derivation.output_bits == 32 or tally.channel_largest.size != dead.size:
        return evidence, "fold the bias of these channels into the node behind, and prune them"
    off = float(tally.channel_largest[dead].max())
    evidence += (
        f"; on {samples} sample{'' if samples == 1 else 's'} their outputs are off by {off:g} "
        f"step{'' if off == 1 else 's'} at most"
    )
    if off <= _harmless(derivation):
        return evidence, "nothing is lost; without these channels the node would be faster"
    remedy = (
        "give the node an int8 output, whose limit is 256 times lower; or scale the weights of the "
        "channel up and those of the node behind down; or prune it"
    )
    return evidence, remedy


def _harmless(derivation: Derivation) -> float:
    """Return by how many steps an output may be off without harm: by one, or what is invisible."""
    return 0.0 if derivation.output_bits == 32 else max(1.0, _VISIBLE_STEPS[derivation.output_bits])


def _channels(mask: NDArray[np.bool_]) -> str:
    return f"{int(mask.sum())} of {mask.size} channels"


def plain_steps(derivation: Derivation) -> NDArray[np.float32]:
    """Return the steps that the thresholds of the weights say."""
    steps = step_of_threshold(derivation.threshold, 8).reshape(-1)
    return np.broadcast_to(steps, derivation.integers.requantized.shape)


def _sum_steps(derivation: Derivation) -> NDArray[np.float64]:
    if isinstance(derivation.integers, SumIntegers):
        return derivation.integers.step.astype(np.float64)
    product: NDArray[np.float32] = np.float32(derivation.input_step) * weight_steps(derivation)
    return product.astype(np.float64)


def _rounding_term(derivation: Derivation) -> NDArray[np.float64]:
    """Return the half output step that the bias of a quantized output holds."""
    sums = _sum_steps(derivation)
    if derivation.output_bits == 32:
        return np.zeros(len(sums))
    factor = sums / np.float64(np.float32(derivation.output_step))
    return np.floor(0.5 / factor + 0.5)
