"""What a model takes, and words about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.npy import describe

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """What a graph input or output looks like.

    Attributes:
        name: Tensor name.
        dtype: NumPy dtype name, such as ``float32``.
        shape: One entry per dimension; None where the size is not fixed by the model.
        batched: Whether an open first dimension is known to count samples, by its name or because
            the tensor is an image. One of length 1 counts them anyway.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    batched: bool = False

    @property
    def counts_samples(self) -> bool:
        """Whether the first dimension is the batch."""
        first = self.shape[:1]
        return first == (1,) or (self.batched and bool(first))


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """Something in the calibration data that is not used.

    Attributes:
        name: Sample name, or path relative to the data, or key in an ``.npz`` file.
        reason: Why, in words for the user.
    """

    name: str
    reason: str


def require_readable_types(specs: Sequence[TensorSpec]) -> None:
    """Check that a model has inputs, and that files can hold what they take.

    Raises:
        ModelError: There are no inputs.
        UnsupportedError: An input takes what no file can hold.
    """
    if not specs:
        raise ModelError("the model has no inputs, so no data can be given to it")
    for spec in specs:
        require_readable_type(spec)


def require_readable_type(spec: TensorSpec) -> None:
    """Check that ``.npy`` files can hold what an input takes.

    Raises:
        UnsupportedError: They cannot; the message names the input.
    """
    try:
        readable = np.dtype(spec.dtype).kind in "fiub"
    except TypeError:
        readable = False
    if not readable:
        raise UnsupportedError(
            f"its type is {spec.dtype}, which .npy files cannot hold",
            where=f"input '{spec.name}'",
        )


def listed(names: Sequence[str]) -> str:
    """Quote at most five names, and say how many more there are."""
    quoted = ", ".join(f"'{name}'" for name in names[:5])
    return f"{quoted} and {len(names) - 5} more" if len(names) > 5 else quoted or "nothing"


def wanted_inputs(specs: Sequence[TensorSpec]) -> str:
    """Say in a sentence which inputs a model takes."""
    wants = ", ".join(f"{spec.name} ({describe(spec.dtype, spec.shape)})" for spec in specs)
    return f"The model wants {wants}."
