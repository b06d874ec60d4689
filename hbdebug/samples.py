"""Calibration data on disk as a re-iterable stream of named arrays, checked once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """What a graph input or output looks like.

    Attributes:
        name: Tensor name.
        dtype: NumPy dtype name, such as ``float32``.
        shape: One entry per dimension; None where the size is not fixed by the model.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
