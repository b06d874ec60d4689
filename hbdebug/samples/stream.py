"""Checked samples, read again from their files whenever they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import DataError
from hbdebug.npy import convert

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hbdebug.samples.batches import Fit
    from hbdebug.samples.preparation import Arithmetic, Preparation
    from hbdebug.samples.specs import Skipped, TensorSpec

    Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """Where a sample lies: how its files fit the inputs, and which row of them it is."""

    fits: Mapping[str, Fit]
    files: frozenset[Path]
    row: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Samples:
    """Checked calibration data; made by `open_samples`.

    Arrays are read from disk each time they are asked for, one sample at a time, and never
    kept, so memory does not grow with the number of samples. Iterating again reads again.

    Attributes:
        path: As the user gave it.
        inputs: What each sample was checked against.
        names: Names of the samples in use (file stems; ``stem[2]`` for the third of those that
            one file holds), in order.
        found: Number of samples found, those skipped or beyond the limit included.
        skipped: What was left out; empty unless ``skip_bad``.
        digest: SHA-256, hexadecimal, of the names and of the arrays as the model receives them:
            equal for equal content, whatever the layout and the files' own dtypes.
        preparation: What was done to the data.
        notes: What the user should know of how the files were taken, a sentence each.
    """

    path: str
    inputs: tuple[TensorSpec, ...]
    names: tuple[str, ...]
    found: int
    skipped: tuple[Skipped, ...]
    digest: str
    preparation: Preparation
    notes: tuple[str, ...]
    _located: tuple[Located, ...]
    _arithmetic: Mapping[str, Arithmetic]
    _stamps: Mapping[Path, tuple[int, int]]

    def __len__(self) -> int:
        """Return the number of samples in use."""
        return len(self.names)

    def __iter__(self) -> Iterator[tuple[str, dict[str, Array]]]:
        """Yield each sample's name and its arrays, as `sample` returns them."""
        for index, name in enumerate(self.names):
            yield name, self.sample(index)

    def sample(self, index: int) -> dict[str, Array]:
        """Read one sample.

        Args:
            index: Position in `names`; negative counts from the end.

        Returns:
            Input name -> new C-contiguous array of the model's dtype and shape.

        Raises:
            IndexError: There is no such sample.
            DataError: A file cannot be read any more, or changed since it was checked.
        """
        located = self._located[index]
        for file in located.files:
            if stamp(file) != self._stamps[file]:
                raise DataError(
                    "the file changed after it was checked",
                    where=str(file),
                    hint="Start again when nothing writes to the calibration data.",
                )
        return read_arrays(located.fits, located.row, self.inputs, self._arithmetic)


def read_arrays(
    fits: Mapping[str, Fit],
    row: int,
    specs: Sequence[TensorSpec],
    arithmetic: Mapping[str, Arithmetic],
) -> dict[str, Array]:
    """Read one sample, and make of it what the model takes.

    Args:
        fits: How the files fit the inputs, by input.
        row: Which of the samples they hold.
        specs: The inputs.
        arithmetic: What is computed with the values, by input.

    Raises:
        DataError: A file cannot be read, or does not hold what the model takes.
    """
    arrays = {}
    for spec in specs:
        held = fits[spec.name]
        array = arithmetic[spec.name].apply(held.read(row), spec, held.source.where)
        arrays[spec.name] = np.asarray(convert(array, spec.want, held.source.where), order="C")
    return arrays


def stamp(file: Path) -> tuple[int, int]:
    """Return what changes when a file is written again: its size and time, in ns.

    Raises:
        DataError: There is no such file.
    """
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(file)) from error
    return status.st_size, status.st_mtime_ns
