"""Calibration data: what the model takes, where it lies, how it is prepared and checked."""

from hbdebug.samples.preparation import COLORS, LAYOUTS, Preparation, parse_preparation
from hbdebug.samples.spec import Skipped, TensorSpec, require_readable_type, wanted_inputs
from hbdebug.samples.stream import Samples, open_samples

__all__ = [
    "COLORS",
    "LAYOUTS",
    "Preparation",
    "Samples",
    "Skipped",
    "TensorSpec",
    "open_samples",
    "parse_preparation",
    "require_readable_type",
    "wanted_inputs",
]
