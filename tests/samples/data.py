"""Small calibration data, and what is said about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hbdebug.errors import DataError
from hbdebug.samples import TensorSpec, open_samples

IMAGE = TensorSpec(name="x", dtype="float32", shape=(1, 3, 4, 5))
LENGTH = TensorSpec(name="length", dtype="int64", shape=(1, None))
FIXTURES = Path(__file__).parents[2] / "fixtures"


def image(seed=0):
    return np.random.default_rng(seed).random((1, 3, 4, 5), np.float32)


def length(seed=0):
    return np.arange(seed % 4 + 1).reshape(1, -1)


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **array)
    else:
        np.save(path, array)


def refused(path, inputs, **options):
    with pytest.raises(DataError) as caught:
        open_samples(path, inputs, **options)
    return caught.value
