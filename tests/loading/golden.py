"""The cases of fixtures/golden_calibration.tar.xz: what the vendor's executor computed."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from numpy.typing import NDArray

FIXTURES = Path(__file__).parents[2] / "fixtures"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model with what the vendor computed from its inputs."""

    name: str
    record: dict[str, Any]

    @property
    def model(self) -> onnx.ModelProto:
        return onnx.load_from_string(_files()[self.record["model"]])

    @property
    def inputs(self) -> dict[str, NDArray[Any]]:
        # The two folders that were packed name their arrays in__x and in0.
        return self._arrays("in__") or self._arrays("", "in")

    @property
    def outputs(self) -> dict[str, NDArray[Any]]:
        return self._arrays("out__") or self._arrays("", "out")

    @property
    def outputs_all_off(self) -> dict[str, NDArray[Any]]:
        return self._arrays("off__")

    def _arrays(self, prefix: str, start: str = "") -> dict[str, NDArray[Any]]:
        return {
            key[len(prefix) :]: np.load(io.BytesIO(_files()[file]))
            for key, file in self.record["arrays"].items()
            if key.startswith(prefix + start)
        }


@cache
def _files() -> dict[str, bytes]:
    with tarfile.open(FIXTURES / "golden_calibration.tar.xz") as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def cases(start: str) -> list[Case]:
    """Return the cases whose names start in a certain way, such as ``ops/HzGelu``."""
    records = json.loads(_files()["cases.json"])
    found = [Case(name=r["file"], record=r) for r in records if r["file"].startswith(start)]
    assert found, f"no golden case starts with {start}"
    return found


def by_name(case: Case) -> str:
    """Return a test id."""
    return case.name


def differing_bits(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return where two float32 arrays differ in any bit, the payload of NaN excluded."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype == np.float32
    both_nan = np.isnan(actual) & np.isnan(expected)
    same = np.ascontiguousarray(actual).view(np.uint32) == expected.view(np.uint32)
    return np.argwhere(~(same | both_nan))


def largest_error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest absolute difference; shapes, dtypes, NaN and infinities must agree."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if expected.dtype.kind != "f":
        return float(not np.array_equal(actual, expected))
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    unequal = ~((actual == expected) | np.isnan(expected))
    errors = np.abs(actual[unequal].astype(np.float64) - expected[unequal])
    return float(errors.max(initial=0.0))
