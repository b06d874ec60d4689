"""The rankings are the vendor's: same sets, same numbers, same order, on the same samples.

The numbers of the vendor's debugger (HMCT 1.1.0) are in fixtures/golden_sensitivity.json.xz.
"""

from __future__ import annotations

import functools
import json
import lzma
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from hbdebug.metrics import resolve_metric
from hbdebug.pipeline import sensitivity

from tests.recognizer import FIXTURES, recognizer_folder

KINDS = ("node", "weight", "activation")
MODELS = ("cls", pytest.param("rec", marks=pytest.mark.slow))


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far our numbers may be from the vendor's."""

    cosine: float
    relative: float
    absolute: float = 1e-9
    sqnr: float


# By default what lies behind the last quantized tensor runs in ONNX Runtime's fastest order of
# summation, which differs from the vendor's by about 1e-6 relative per convolution.
DEFAULT = Tolerance(cosine=2e-6, relative=1e-3, sqnr=2e-2)
EXACT = Tolerance(cosine=1e-6, relative=1e-4, sqnr=2e-3)


@functools.cache
def golden(model: str, kind: str) -> dict:
    packed = (FIXTURES / "golden_sensitivity.json.xz").read_bytes()
    return json.loads(lzma.decompress(packed))[f"{model}_{kind}"]
