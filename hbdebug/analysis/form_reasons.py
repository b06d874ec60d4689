"""Why the integer form of a node differs from its calibrated form, and what the user can do.

Reasons are facts about the operator, its integers, and what happened to its accumulators on the
samples. A node without any has no known reason, and the report says so.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.analysis.biases import clipped, convolution_diagnostics, nearly_dead
from hbdebug.analysis.diagnostics import diagnose
from hbdebug.analysis.tally import ROUNDING
from hbdebug.results import Diagnostic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from hbdebug.analysis.tally import Seen, Tally
    from hbdebug.analysis.units import Unit
    from hbdebug.lowering.convolution import Derivation
    from hbdebug.lowering.graph import Lowered
    from hbdebug.model import Assignment, Node, QuantModel

UNKNOWN = "no known reason"

# A cause is named if it is behind at least this share of the noise.
_MOST = 0.5

# Where halves go up in one form and to even in the other, half of the ties differ by one. With
# this share of ties, that alone is as much noise as rounding to the step.
REMARKABLE_TIES = 2 * ROUNDING

# Calibration clips on purpose, where that costs less than larger steps would. What is remarkable is
# a hundredth of the signal's power: less than the rounding of 4 bits leaves.
REMARKABLE_CLIPPING_DB = 20.0
"""Power of the signal over that of what is clipped, below which it is reported."""

_STATIC = {
    "hardsigmoid_alpha_ignored": "the table ignores alpha and beta of HardSigmoid",
    "prelu_slope_wraps": "PRelu slopes wrap around at 16 bits",
    "averagepool_padding_divisor": "the average counts the padding",
}

# What the multiplier and the middle of the rescaling, 15 bits each, can move an int16 by.
_INT16_RESCALING = 4.0

# An int16 output has one or two steps for each integer in the middle of the rescaling. (A Conv with
# an int16 input shifts by 8 bits at least, so that there can be many.)
_COARSE = 2.0

# The attributes that hold multiplier and second shift, by operator.
_RESCALING = (
    ("scale", "out_shift"),
    ("output_scale", "output_right_shift"),
    ("y_quant_scale", "y_right_shift"),
)


class Context:
    """What all units of a comparison share.

    Args:
        model: The calibrated model.
        lowered: Its integer form.
        assignment: What is quantized.
        march: The march, for the words of remedies.
        samples: Number of samples that were compared.
    """

    def __init__(
        self,
        model: QuantModel,
        lowered: Lowered,
        assignment: Assignment,
        march: str,
        samples: int,
    ) -> None:
        self.lowered = lowered
        self.march = march
        self.samples = samples
        self._model = model
        self._assignment = assignment

    @cached_property
    def static(self) -> Mapping[str, str]:
        """Reasons that stand in the calibrated model itself, by node."""
        return {
            item.node: _STATIC[item.name] for item in diagnose(self._model) if item.name in _STATIC
        }

    def derivation(self, unit: Unit) -> Derivation | None:
        """Return how the convolution of a unit was derived."""
        return self.lowered.convolutions.get(unit.nodes[0].name)

    def main(self, unit: Unit) -> Node | None:
        """Return the integer node that does the work of a unit."""
        return next((node for node in unit.steps if node.name in unit.names), None)

    def narrowed(self, unit: Unit) -> str:
        """Say where a unit uses int8 although its point is int16: ``reads``, ``gives`` or empty."""
        main = self.main(unit)
        # A Concat counts its operands in the steps of its output, whatever these are.
        if main is None or unit.nodes[0].op_type == "Concat":
            return ""
        front = unit.steps[: unit.steps.index(main)]
        if any(node.op_type == "HzRequantize" and _bits(node) == 8 for node in front):
            return "reads"
        held = self.lowered.tensors[unit.nodes[-1].outputs[0]]
        wide = any(target.held.bits == 16 for target in unit.targets)
        return "gives" if held.bits == 8 and wide else ""

    def threshold(self, unit: Unit) -> float:
        """Return the threshold of the point behind a unit."""
        point = unit.targets[0].point
        if point is None:
            return 0.0
        return float(self._assignment[point.name].threshold.max())


def reason(context: Context, unit: Unit, seen: Seen) -> str:
    """Return why a unit differs, in words; all reasons that are known to apply."""
    found = list(_reasons(context, unit, seen))
    if not found:
        found = list(_rounding_reasons(context, unit, seen.worst))
    return "; ".join(found) or UNKNOWN


def _reasons(context: Context, unit: Unit, seen: Seen) -> Iterator[str]:
    tally, main = seen.worst, context.main(unit)
    yield from (context.static[node.name] for node in unit.nodes if node.name in context.static)
    derivation = context.derivation(unit)
    if derivation is not None:
        yield from _convolution_reasons(derivation, tally)
    if seen.wrapped:
        yield f"{seen.wrapped} of {seen.accumulators} accumulators wrap around at 32 bits"
    if main is not None and seen.saturated_middles and _capped(main).any():
        yield "the int16 between the two shifts saturates before the output does"
    narrowed = context.narrowed(unit)
    if narrowed:
        yield f"int16 falls back to int8: {unit.nodes[0].op_type} {narrowed} no int16 on the chip"
    if main is None:
        return
    if main.op_type == "HzQuantizedAveragePool" and unit.nodes[0].name not in context.static:
        area = int(np.prod(main.attributes["kernel_shape"]))
        yield _average_reason(area, int(main.attributes.get("scale", 9)))
    coarsest = _coarsest(main)
    if coarsest > _COARSE and tally.largest <= coarsest + _INT16_RESCALING:
        yield (
            f"the first shift leaves accumulators in multiples of up to {coarsest:.0f} output steps"
        )
    yield from _operator_reasons(main)


def _average_reason(area: int, shift: int) -> str:
    factor = (1 << shift) // area
    words = f"the average is the sum times {factor}, shifted right by {shift}: it is rounded down"
    short = 1 - factor * area / (1 << shift)
    return f"{words} and {short:.1%} too small" if short else words


def _operator_reasons(main: Node) -> Iterator[str]:
    """Yield what an operator does by itself, whatever its numbers are."""
    if main.op_type == "HzLut2Layer":
        yield "the int16 table has 6 x 64 entries, and lines between them"
    if main.op_type == "HzQuantizedRoiResize":
        bits = int(main.attributes["step_decimal_bit"])
        yield f"positions between pixels have {bits} bits, and their weights 8"
        if main.attributes["is_interpolate_twice"]:
            yield "the interpolation is rounded down twice"
    if main.op_type in {"HzLeakyRelu", "HzPRelu"}:
        yield "slopes have 7 bits, and negative ones saturate on the way"
    if main.attributes.get("rounding_method") == "FLOOR":
        yield "the result is rounded down"


def _convolution_reasons(derivation: Derivation, tally: Tally) -> Iterator[str]:
    for mask, words in (
        (clipped(derivation), "{} with a bias that is clipped"),
        (nearly_dead(derivation), "{} nearly dead, with weights in larger steps"),
    ):
        fits = mask.any() and tally.channel_noise.size == mask.size
        if fits and tally.channel_noise[mask].sum() >= _MOST * tally.noise:
            yield words.format(f"{int(mask.sum())} of {mask.size} channels")


def _rounding_reasons(context: Context, unit: Unit, tally: Tally) -> Iterator[str]:
    if _ties_differ(tally):
        yield "halves are rounded up (tables: away from 0), not to even or as float32 errors fall"
    main = context.main(unit)
    behind = unit.steps[unit.steps.index(main) + 1 :] if main is not None else ()
    if any(node.op_type == "HzRequantize" for node in behind):
        yield "it is rounded twice: an HzRequantize is behind it"
    wide = any(target.held.bits == 16 for target in unit.targets)
    if wide and tally.largest <= _INT16_RESCALING:
        yield "the multiplier and the middle of the rescaling have 15 bits, like the output"


def form_diagnostics(context: Context, unit: Unit, seen: Seen) -> Iterator[Diagnostic]:
    """Yield what the integers of a unit, and what happened to them, show."""
    node, tally = unit.nodes[0], seen.worst
    derivation = context.derivation(unit)
    if derivation is not None:
        yield from convolution_diagnostics(node, derivation, tally, context.samples, context.march)
    for name, found in (
        ("accumulator_wraps", _wraps(context, seen)),
        ("middle_saturates", _middle(context, unit, seen)),
        ("output_saturates", _clips(context, unit, tally)),
        ("lut_input_on_tie", _ties(context, tally)),
        ("int16_falls_back_to_int8", _falls_back(context, unit, tally)),
    ):
        if found is not None:
            evidence, remedy = found
            yield Diagnostic(
                name=name, node=node.name, op_type=node.op_type, evidence=evidence, remedy=remedy
            )


def _wraps(context: Context, seen: Seen) -> tuple[str, str] | None:
    if not seen.wrapped:
        return None
    evidence = (
        f"{_share(seen.wrapped, seen.accumulators)} of the accumulators wrap around at 32 bits on "
        f"{_samples(context)}; they reach from {seen.smallest:.3g} to {seen.largest:.3g}"
    )
    remedy = (
        "give it int8 inputs, or its output a larger threshold: a Conv wraps around only where its "
        "output is beyond twice the threshold; else use the CPU"
    )
    return evidence, remedy


def _middle(context: Context, unit: Unit, seen: Seen) -> tuple[str, str] | None:
    main = context.main(unit)
    if main is None or not seen.saturated_middles:
        return None
    capped = _capped(main)
    if not capped.any():
        return None
    evidence = (
        f"{_share(seen.saturated_middles, seen.accumulators)} of the values between its two "
        f"shifts are beyond int16 on {_samples(context)}, in front of a multiplier that leaves "
        f"{int(capped.sum())} of {capped.size} channels below the largest output"
    )
    return evidence, "give its output a larger threshold, or put it on the CPU"


def _clips(context: Context, unit: Unit, tally: Tally) -> tuple[str, str] | None:
    if tally.clipping_db >= REMARKABLE_CLIPPING_DB:
        return None
    evidence = (
        f"{_share(tally.clipped, tally.elements)} of its outputs are beyond the threshold "
        f"{context.threshold(unit):.4g} on {_samples(context)} and are clipped, in both forms; "
        f"what is cut off is {tally.clipping_db:.1f} dB below the signal"
    )
    remedy = (
        "calibrate with a larger threshold (max, or a higher percentile), unless the node behind "
        "clips there anyway"
    )
    return evidence, remedy


def _ties(context: Context, tally: Tally) -> tuple[str, str] | None:
    if tally.ties < REMARKABLE_TIES * tally.elements or not _ties_differ(tally):
        return None
    evidence = (
        f"{_share(tally.ties, tally.elements)} of its outputs lie halfway between two integers on "
        f"{_samples(context)}; the chip rounds halves up (in tables: away from zero), the "
        "calibrated model to even, or as its float32 errors fall; "
        f"{_share(tally.moved_ties, tally.elements)} of all come out one step higher or lower"
    )
    remedy = (
        "change the threshold of its output by 1 %, so that its step is no simple multiple of the "
        "steps in front of it"
    )
    return evidence, remedy


def _ties_differ(tally: Tally) -> bool:
    return tally.moved_ties > 0 and tally.moved_ties >= _MOST * tally.noise


def _falls_back(context: Context, unit: Unit, tally: Tally) -> tuple[str, str] | None:
    narrowed = context.narrowed(unit)
    if not narrowed:
        return None
    side = "input" if narrowed == "reads" else "output"
    evidence = (
        f"its {side} is int16 by its point, and {unit.nodes[0].op_type} {narrowed} int8 only on "
        f"{context.march}: off by up to {tally.largest:g} steps on {_samples(context)}"
    )
    return evidence, f"leave its {side} in int8, which computes the same, or use the CPU"


def _capped(main: Node) -> NDArray[np.bool_]:
    """Say in which channels a saturated middle gives less than the largest output."""
    bits = _bits(main)
    scale, shift = _rescaling(main)
    # One step below the largest is what a multiplier of 32766 for a factor of 1 gives (int16: two).
    slack = 1 if bits == 8 else 2
    capped: NDArray[np.bool_] = (np.abs(scale) * 32767 >> shift) < (1 << (bits - 1)) - 1 - slack
    return capped


def _coarsest(main: Node) -> float:
    """Return how many output steps one in front of the multiplier is worth, at most."""
    scale, shift = _rescaling(main)
    return float(np.abs(scale * 2.0**-shift).max(initial=0))


def _rescaling(main: Node) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return multipliers and second shifts of a node; empty where it has none."""
    for names in _RESCALING:
        if _bits(main) != 32 and all(name in main.attributes for name in names):
            scale, shift = (np.asarray(main.attributes[name], np.int64).ravel() for name in names)
            return scale, shift
    return np.zeros(0, np.int64), np.zeros(0, np.int64)


def _bits(node: Node) -> int:
    return int(node.attributes.get("bits", node.attributes.get("output_bit", 8)))


def _share(part: int, whole: int) -> str:
    return f"{part / max(whole, 1):.2%}"


def _samples(context: Context) -> str:
    return f"{context.samples} sample{'' if context.samples == 1 else 's'}"
