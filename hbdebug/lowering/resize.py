"""Resize: which of its forms the chip has, and their numbers.

Measured against HMCT 1.1.0. Nearest neighbours are repeated whatever the attributes say about
coordinates and rounding; all that counts is that the factors are powers of two. Interpolation
runs along positions in fixed point, whose distance is the ratio of the sizes, rounded down.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.lowering.elementwise import BERNOULLI2

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Size = tuple[int, int]

# Repeated more often, pixels stay float on bayes and bayes-e; bernoulli2 has no such limit.
_FACTOR_MAX = 32

# Bits behind the point of a position.
_POSITION_BITS = 16
_BERNOULLI2_POSITION_BITS = 8

_ALIGN_MODES = {
    "align_corners": "given_step",
    "asymmetric": "origin",
    "half_pixel": "center",
    "pytorch_half_pixel": "center",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Resizing:
    """An integer operator that resizes.

    Attributes:
        op_type: HzQuantizedResizeUpsample or HzQuantizedRoiResize.
        attributes: Its attributes, layout left out.
    """

    op_type: str
    attributes: Mapping[str, Any]


def resizing(
    attributes: Mapping[str, Any], source: Size, target: Size, *, march: str = "bayes-e"
) -> Resizing | None:
    """Derive a Resize.

    Args:
        attributes: Attributes of the Resize.
        source: Height and width that come in.
        target: Height and width that go out.
        march: bernoulli2 repeats no more often along the height than along the width, counts
            positions with 8 bits behind the point instead of 16, and rounds down twice.

    Returns:
        None if the chip has no such form: the converter leaves the Resize in float.
    """
    mode = attributes.get("mode", "nearest")
    if mode == "nearest":
        return _repetition(source, target, march)
    coordinates = attributes.get("coordinate_transformation_mode", "half_pixel")
    align_mode = _ALIGN_MODES.get(coordinates)
    # A length of one has other coordinates in these modes.
    other = coordinates in {"align_corners", "pytorch_half_pixel"} and 1 in target
    if mode != "linear" or align_mode is None or other:
        return None
    bits = _BERNOULLI2_POSITION_BITS if march == BERNOULLI2 else _POSITION_BITS
    found: dict[str, Any] = {
        "align_mode": align_mode,
        "sizes": list(target),
        "pad_mode": "boundary",
        "step_decimal_bit": bits,
        "is_interpolate_twice": int(march == BERNOULLI2),
    }
    if align_mode == "given_step":
        ends = zip(source, target, strict=True)
        found["step"] = [((before - 1) << bits) // (after - 1) for before, after in ends]
    return Resizing(op_type="HzQuantizedRoiResize", attributes=found)


def _repetition(source: Size, target: Size, march: str) -> Resizing | None:
    factors = []
    for before, after in zip(source, target, strict=True):
        factor, rest = divmod(after, before)
        if rest or factor & (factor - 1):
            return None
        factors.append(factor)
    height, width = factors
    if height > width if march == BERNOULLI2 else max(factors) > _FACTOR_MAX:
        return None
    return Resizing(
        op_type="HzQuantizedResizeUpsample", attributes={"mode": "nearest", "scale": factors}
    )
