"""What a model wants of its data, what was left out, and the words to say so."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.npy import Want, describe

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """What a graph input or output looks like.

    Attributes:
        name: Tensor name.
        dtype: NumPy dtype name, such as ``float32``.
        shape: One entry per dimension; None where the size is not fixed by the model.
        leading: What the model calls its first dimension, such as ``batch``; empty if nothing.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    leading: str = field(default="", compare=False)

    @property
    def want(self) -> Want:
        """The same, as arrays are checked against it."""
        return Want(what=f"input '{self.name}'", dtype=self.dtype, shape=self.shape)


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
        ModelError: There is none.
        UnsupportedError: As `require_readable_type`.
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


def sanitise(name: str) -> str:
    """Return a name as the vendor writes it to disk."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def listed(names: Sequence[str]) -> str:
    """Quote at most five names, and say how many more there are."""
    quoted = ", ".join(f"'{name}'" for name in names[:5])
    return f"{quoted} and {len(names) - 5} more" if len(names) > 5 else quoted or "nothing"


def wanted_inputs(specs: Sequence[TensorSpec]) -> str:
    """Say in a sentence which inputs a model takes."""
    wants = ", ".join(f"{spec.name} ({describe(spec.dtype, spec.shape)})" for spec in specs)
    return f"The model wants {wants}."


def meant(missing: Sequence[str], there: Sequence[str]) -> str:
    """Suggest for each missing input what is there under a similar name, or as the only one."""
    lower = {name.lower(): name for name in there}
    pairs = []
    for name in missing:
        close = difflib.get_close_matches(name.lower(), lower, n=1)
        if close:
            pairs.append((name, lower[close[0]]))
        elif len(there) == len(missing) == 1:
            pairs.append((name, there[0]))
    return "".join(f" If '{close}' is meant, rename it to '{name}'." for name, close in pairs)
