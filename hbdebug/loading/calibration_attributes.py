"""Attributes of an HzCalibration node: as they stand, and as the vendor's loader rewrites them.

The vendor has two steps: its *loader* rewrites the attributes once (`after_load`), its *kernel*
then takes them as they stand (`hbdebug.loading.grid`). Both were measured against HMCT 1.1.0.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.quant import INT_RANGES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hbdebug.model import Role

GRID_QTYPES = frozenset(INT_RANGES) - {"uint4"}
"""Values of ``qtype`` that mean an integer grid to HzCalibration (measured, HMCT 1.1.0)."""

# Bits of `quant_attrs` that matter for the numbers or for the role. The others (static, dynamic,
# per-tensor, per-block) were measured to have no effect.
_SCALE, _SHIFT = 0x1, 0x2
ASYMMETRIC = 0x20
_PER_TENSOR, PER_CHANNEL, _PER_BLOCK = 0x1000, 0x2000, 0x4000
_FEATURE, _WEIGHT = 0x10000, 0x20000

# Words in the legacy attribute `info_strings` -> the bit each sets and the bits that it clears.
_INFO_BITS = {
    "scale": (_SCALE, _SHIFT),
    "shift": (_SHIFT, _SCALE),
    "per-tensor": (_PER_TENSOR, PER_CHANNEL | _PER_BLOCK),
    "per-channel": (PER_CHANNEL, _PER_TENSOR | _PER_BLOCK),
    "feature": (_FEATURE, _WEIGHT),
    "weight": (_WEIGHT, _FEATURE),
}

# Attributes without a numeric effect: bookkeeping of per-channel calibration, the settings of
# statistics collection, and a leftover of old files that the vendor's loader drops.
_IGNORED = frozenset(
    {"cali_attrs", "channel_scales", "max_num_bins", "num_bins", "percentiles", "pre_op"}
)

_KINDS = {
    "axis": "int",
    "bits": "int",
    "constant": "int",
    "dequantize_scale": "float",
    "group": "int",
    "info_strings": "strs",
    "qtype": "str",
    "quant_attrs": "int",
    "scales": "floats",
    "switch": "str",
    "thresholds": "floats",
    "zero_point": "ints",
}

_PYTHON_TYPES = {"int": int, "float": float, "str": str}


def _no_values() -> NDArray[np.float64]:
    return np.zeros(0)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CalibrationAttributes:
    """The attributes of one HzCalibration node; an absent one has its default.

    Attributes:
        qtype: Quantized type; empty when the attribute is missing.
        scales: float64, shape ``(n,)``, real units per step; float32 values widened.
        thresholds: float64, shape ``(k,)``: absolute maxima, or minimum and maximum.
        zero_point: float64, shape ``(m,)``, integers.
        axis: Channel axis as written; `to_grid` says when it counts.
        group: Group count of a grouped ConvTranspose weight.
        constant: 0 statistics are still being collected, 1 quantize, 2 quantize with this scale.
        switch: Exactly ``OFF`` switches the node off.
        flags: The bit field ``quant_attrs``.
        dequantize_scale: Multiplier on the way back, with more than one scale.
        bits: Legacy form of ``qtype``.
        info_strings: Legacy form of ``quant_attrs``.
    """

    qtype: str = ""
    scales: NDArray[np.float64] = field(default_factory=_no_values)
    thresholds: NDArray[np.float64] = field(default_factory=_no_values)
    zero_point: NDArray[np.float64] = field(default_factory=_no_values)
    axis: int = 1
    group: int = 1
    constant: int = 0
    switch: str = "ON"
    flags: int = 0
    dequantize_scale: float | None = None
    bits: int | None = None
    info_strings: tuple[str, ...] = ()

    @property
    def role(self) -> Role | None:
        """What the role bits say; None when they say nothing, or both."""
        if bool(self.flags & _WEIGHT) == bool(self.flags & _FEATURE):
            return None
        return "weight" if self.flags & _WEIGHT else "activation"


def parse(attributes: Mapping[str, Any]) -> CalibrationAttributes:
    """Read the attributes as they stand in the file.

    Args:
        attributes: Attribute name -> plain Python value.

    Returns:
        The attributes, with defaults for those that are missing.

    Raises:
        UnsupportedError: An attribute is not known, or has another type than it should.
    """
    unknown = sorted(attributes.keys() - _KINDS.keys() - _IGNORED)
    if unknown:
        names = ", ".join(unknown)
        raise UnsupportedError(f"attribute {names} of HzCalibration is not known")
    values: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        if name in attributes:
            field_name = "flags" if name == "quant_attrs" else name
            values[field_name] = _checked(name, kind, attributes[name])
    return CalibrationAttributes(**values)


def _checked(name: str, kind: str, value: Any) -> Any:
    """Return a value in the form that `CalibrationAttributes` holds."""
    if kind in _PYTHON_TYPES:
        if isinstance(value, _PYTHON_TYPES[kind]):
            return value
    elif isinstance(value, list):
        if kind == "strs":
            return tuple(str(item) for item in value)
        # ONNX lists are all of one type.
        if not isinstance(value[0] if value else 0, (str, bytes)):
            return np.array(value, np.float64)
    raise UnsupportedError(
        f"attribute {name} of HzCalibration is {value!r:.60}, which is no {kind.rstrip('s')}"
        + (" list" if kind.endswith("s") else "")
    )


def after_load(raw: CalibrationAttributes) -> CalibrationAttributes:
    """Normalise attributes as the vendor's loader does before anything runs.

    Legacy attributes are translated, defaults filled in, and, unless ``constant`` is 2, scales
    and zero points recomputed from the thresholds in double precision and rounded to float32
    once. (Where the two disagree, the thresholds win here, the scales in the kernel.)

    Raises:
        ModelError: The attributes contradict each other.
    """
    attributes = _without_legacy(raw)
    if not attributes.qtype:
        attributes = replace(attributes, qtype="int8")
    if attributes.qtype not in GRID_QTYPES:
        # The kernel uses the scales of other types only beside `dequantize_scale`, where the
        # file's own are taken; which limit the vendor would divide by was never observed.
        return attributes
    limit = INT_RANGES[attributes.qtype][1]
    if attributes.constant == 2:
        if attributes.scales.size:
            return replace(attributes, thresholds=attributes.scales * limit)
        return attributes
    if not attributes.thresholds.size:
        return attributes
    if attributes.flags & ASYMMETRIC:
        return _asymmetric(attributes)
    with np.errstate(all="ignore"):
        scales = attributes.thresholds / limit
        if attributes.flags & _SHIFT:
            scales = np.exp2(-np.rint(-np.log2(scales)))
    return replace(attributes, scales=_rounded(scales))


def _without_legacy(raw: CalibrationAttributes) -> CalibrationAttributes:
    """Translate ``bits`` and ``info_strings``, which the kernel does not know."""
    qtype = raw.qtype
    if raw.bits is not None and not qtype:
        qtype = f"int{raw.bits}"
    thresholds, zero_point = raw.thresholds, raw.zero_point
    if "asymq" in raw.info_strings:
        if not raw.scales.size == thresholds.size == zero_point.size > 0:
            raise ModelError(
                "info_strings says asymq, which needs scales, thresholds and zero_point of one "
                f"length; they have {raw.scales.size}, {thresholds.size} and {zero_point.size}"
            )
        thresholds = _rounded(thresholds - zero_point * raw.scales)
        zero_point = _no_values()
        qtype = qtype if qtype.startswith("u") else f"u{qtype or 'int8'}"
    flags = raw.flags
    for word in raw.info_strings:
        if word in _INFO_BITS:
            set_bit, cleared = _INFO_BITS[word]
            flags = (flags & ~cleared) | set_bit
        elif word != "asymq":
            raise UnsupportedError(f"info_strings of HzCalibration holds {word!r}, not known")
    return replace(
        raw,
        qtype=qtype,
        thresholds=thresholds,
        zero_point=zero_point,
        flags=flags,
        bits=None,
        info_strings=(),
    )


def _asymmetric(attributes: CalibrationAttributes) -> CalibrationAttributes:
    """Derive scale and zero point from a minimum and a maximum."""
    if attributes.thresholds.size != 2:
        raise ModelError(
            f"its scheme is asymmetric, which needs two thresholds, and it has "
            f"{attributes.thresholds.size}"
        )
    low, high = attributes.thresholds
    qmin, qmax = INT_RANGES[attributes.qtype]
    scale = _rounded((high - low) / (qmax - qmin))
    if not (np.isfinite(scale) and scale > 0):
        raise ModelError(f"its range from {low:g} to {high:g} is empty, so it has no scale")
    zero_point = qmax - np.rint(high / scale)
    return replace(attributes, scales=scale.reshape(1), zero_point=zero_point.reshape(1))


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to float32, kept in float64."""
    rounded: NDArray[np.float64] = np.asarray(values).astype(np.float32).astype(np.float64)
    return rounded
