"""What the tests of warnings about data share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hbdebug.analysis.inputs import check_inputs
from hbdebug.loading import load
from tests import models

FIXTURES = Path(__file__).parents[2] / "fixtures"
COUNT = 8


def model_for(samples, threshold=None, **point):
    """A model that reads inputs of these shapes, each through one point."""
    b = models.CalibratedModel()
    for name, array in samples[0].items():
        kind = models.TensorProto.INT64 if array.dtype.kind in "iu" else models.TensorProto.FLOAT
        x = b.input(name, array.shape, kind)
        limit = threshold if threshold is not None else float(np.abs(array).max()) or 1.0
        if kind == models.TensorProto.FLOAT:
            x = b.point(x, limit, **point)
        b.output(b.node("Identity", [x], f"{name}_node"), kind)
    return load(b.proto())


def warnings_of(samples, threshold=None, model=None, **point):
    named = [
        (str(index), {name: as_input(array) for name, array in sample.items()})
        for index, sample in enumerate(samples)
    ]
    return check_inputs(model or model_for([item for _, item in named], threshold, **point), named)


def as_input(array):
    return array if array.dtype.kind in "iu" else array.astype(np.float32)


def images(make, count=COUNT):
    return [{"x": make(seed)} for seed in range(count)]


def kinds(found):
    return [item.name for item in found]
