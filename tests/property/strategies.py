"""Hypothesis strategies that several law files share."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

# Wide enough to span rounding, narrow enough that scaling by a few powers of two stays normal.
MAGNITUDE = 1e6


def finite_floats(width=32):
    """Numbers without NaN, infinities and subnormals, which scaling by powers of two would hit."""
    return st.floats(
        -MAGNITUDE, MAGNITUDE, allow_nan=False, allow_subnormal=False, width=width
    ).map(lambda value: 0.0 if abs(value) < 1e-30 else value)


def tensors(shape=None, dtype=np.float32):
    """Small finite tensors ``[rows, classes]`` with at least two classes."""
    shapes = npst.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=6)
    return npst.arrays(dtype, shape or shapes, elements=finite_floats(np.dtype(dtype).itemsize * 8))


def pairs():
    """Two finite tensors of one shape, often equal in many places, sometimes all zero."""
    return npst.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=6).flatmap(
        lambda shape: st.tuples(tensors(shape), tensors(shape))
    )


@st.composite
def long_pairs(draw):
    """Two tensors around the sizes at which a pass in blocks starts another block."""
    blocks = draw(st.integers(0, 3))
    size = max(2, 8192 * blocks + draw(st.integers(-2, 2)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    reference = rng.standard_normal(size).astype(np.float32)
    test = reference.copy()
    touched = rng.integers(0, size, draw(st.integers(1, 20)))
    test[touched] += rng.standard_normal(touched.size).astype(np.float32)
    return reference, test
