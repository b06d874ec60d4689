"""Calibration data on disk as a re-iterable stream of named arrays, checked once.

A *sample* is one array for each input of the model. Four layouts hold them:

* ``calib/<input>/*.npy``: a folder for each input, paired by file stem (what the vendor dumps);
* ``calib/*.npy``, or a single ``.npy`` file: a model with one input;
* ``calib/*.npz``, or a single ``.npz`` file: one sample per file, its keys are the inputs' names.

Names of inputs may hold ``/`` or ``:``. A folder or a key fits an input whose name is equal, else
one whose name is equal once every character outside ``A-Za-z0-9._-`` is replaced by ``_``.

Samples come in natural order (2 before 10). Nothing is left out silently: a file or folder that
is no sample is an error, or listed in `Samples.skipped` with ``skip_bad``. Only names that begin
with a dot (``.DS_Store``, ``.gitignore``) are passed over.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import os
import re
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import DataError, ModelError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import IO

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
    Parts: TypeAlias = Mapping[str, Path]

# After so many unusable samples the rest need not be read to know that the data are wrong.
_MOST_REPORTED = 10

# Elements looked at in one go when values that are not finite are searched for.
_BLOCK = 1 << 16

_SKIP_BAD = "--skip-bad leaves it out."


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Skipped:
    """Something in the calibration data that is not used.

    Attributes:
        name: Sample name, or path relative to the data, or key in an ``.npz`` file.
        reason: Why, in words for the user.
    """

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Samples:
    """Checked calibration data; made by `open_samples`.

    Arrays are read from disk each time they are asked for, one sample at a time, and never
    kept, so memory does not grow with the number of samples. Iterating again reads again.

    Attributes:
        path: As the user gave it.
        inputs: What each sample was checked against.
        names: Names of the samples in use (file stems), in order.
        found: Number of samples found, those skipped or beyond the limit included.
        skipped: What was left out; empty unless ``skip_bad``.
        digest: SHA-256, hexadecimal, of the names and of the arrays as the model receives them:
            equal for equal content, whatever the layout and the files' own dtypes.
    """

    path: str
    inputs: tuple[TensorSpec, ...]
    names: tuple[str, ...]
    found: int
    skipped: tuple[Skipped, ...]
    digest: str
    _files: Mapping[str, Parts]
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
        parts = self._files[self.names[index]]
        for file in set(parts.values()):
            if _stamp(file) != self._stamps[file]:
                raise DataError(
                    "the file changed after it was checked",
                    where=str(file),
                    hint="Start again when nothing writes to the calibration data.",
                )
        return _read_sample(parts, self.inputs, Counter())


def open_samples(
    path: str | os.PathLike[str],
    inputs: Sequence[TensorSpec],
    *,
    limit: int | None = None,
    skip_bad: bool = False,
) -> Samples:
    """Find the samples, and check all that will be used before anything is run on them.

    A file of another dtype than the model's is converted if that changes no value, and refused
    if it does: uint8 to float32 always works, float64 to float32 only for values that float32
    can hold, integers to float32 up to 2^24.

    Args:
        path: A folder or file in one of the layouts of this module.
        inputs: The model's inputs.
        limit: Use only the first ``limit`` usable samples. If there are fewer, all are used,
            which ``len()`` and `Samples.found` show. What lies beyond is not read.
        skip_bad: Leave unusable samples and foreign files out, and list them in
            `Samples.skipped`, instead of raising.

    Raises:
        UsageError: ``limit`` is less than 1.
        DataError: The path is missing or empty; an input has no data; a sample lacks an input,
            is unreadable, of another shape or dtype, or not finite; a file is no data at all.
            With ``skip_bad``: no usable sample is left.
        ModelError: The model has no input.
        UnsupportedError: An input has a dtype that no ``.npy`` file can hold.
    """
    if limit is not None and limit < 1:
        raise UsageError(
            f"{limit} samples asked for", hint="Ask for at least 1; without a number, all are used."
        )
    specs = tuple(inputs)
    _require_readable_types(specs)
    files, strays = _find(Path(path), specs)
    if strays and not skip_bad:
        first, others = strays[0], [stray.name for stray in strays[1:]]
        raise DataError(
            f"{first.reason}{_also(others)}",
            where=os.path.join(path, first.name),  # noqa: PTH118 - keeps the path as given
            hint=f"Calibration data must stand alone: move it elsewhere, or {_SKIP_BAD}",
        )
    return _check(os.fspath(path), specs, files, strays, limit=limit, skip_bad=skip_bad)


def _require_readable_types(specs: Sequence[TensorSpec]) -> None:
    if not specs:
        raise ModelError("the model has no inputs, so no data can be given to it")
    for spec in specs:
        try:
            readable = np.dtype(spec.dtype).kind in "fiub"
        except TypeError:
            readable = False
        if not readable:
            raise UnsupportedError(
                f"its type is {spec.dtype}, which .npy files cannot hold",
                where=f"input '{spec.name}'",
            )


def _check(
    path: str,
    specs: tuple[TensorSpec, ...],
    files: Mapping[str, Parts],
    strays: Sequence[Skipped],
    *,
    limit: int | None,
    skip_bad: bool,
) -> Samples:
    """Read the samples once, one at a time: refuse or drop the bad ones, hash the others."""
    names: list[str] = []
    bad: list[tuple[str, DataError]] = []
    foreign: Counter[str] = Counter()
    stamps: dict[Path, tuple[int, int]] = {}
    digest = hashlib.sha256()
    for name, parts in files.items():
        if len(names) == limit or (len(bad) == _MOST_REPORTED and not skip_bad):
            break
        try:
            _require_partners(name, parts, specs)
            stamps.update((file, _stamp(file)) for file in set(parts.values()))
            arrays = _read_sample(parts, specs, foreign)
            for spec in specs:
                _require_finite(arrays[spec.name], f"sample '{name}', input '{spec.name}'", parts)
        except DataError as error:
            bad.append((name, error))
            continue
        names.append(name)
        _add_to_digest(digest, name, arrays)
    if bad and (not skip_bad or not names):
        raise _all_of(bad, usable=len(names))
    if foreign and not skip_bad:
        raise _foreign_arrays(path, foreign, specs)
    skipped = [Skipped(name=name, reason=error.message) for name, error in bad]
    skipped += [
        Skipped(name=key, reason=f"an array, in {count} of the files, that is no input")
        for key, count in foreign.items()
    ]
    return Samples(
        path=path,
        inputs=specs,
        names=tuple(names),
        found=len(files),
        skipped=(*strays, *skipped),
        digest=digest.hexdigest(),
        _files=files,
        _stamps=stamps,
    )


# Where the samples are.


def _find(root: Path, specs: Sequence[TensorSpec]) -> tuple[dict[str, Parts], list[Skipped]]:
    """Tell the layout; return sample name -> input -> file, in order, and what is no sample."""
    wanted = f"The model wants {_wanted(specs)}."
    if not root.exists():
        raise DataError(
            "there is no such file or folder",
            where=str(root),
            hint="Give a folder with a subfolder of .npy files for each input of the model. "
            + wanted,
        )
    if not root.is_dir():
        return _single_file(root, specs), []
    entries = _entries(root)
    matched = _match_folders(root, [entry for entry in entries if entry.is_dir()], specs)
    if matched:
        return _by_folder(root, matched, specs)
    for suffix in (".npy", ".npz"):
        files = [entry for entry in entries if entry.suffix == suffix and entry.is_file()]
        if not files:
            continue
        if suffix == ".npy":
            _require_one_input(root, specs)
        reason = f"neither a {suffix} file nor the folder of an input"
        rest = [Skipped(name=entry.name, reason=reason) for entry in entries if entry not in files]
        return {file.stem: {spec.name: file for spec in specs} for file in files}, rest
    raise _nothing_found(root, entries, specs)


def _single_file(file: Path, specs: Sequence[TensorSpec]) -> dict[str, Parts]:
    if file.suffix == ".npy":
        _require_one_input(file, specs)
    elif file.suffix != ".npz":
        raise DataError(
            "neither a folder nor a .npy or .npz file",
            where=str(file),
            hint="Raw files do not say what they hold: save samples with numpy.save.",
        )
    return {file.stem: {spec.name: file for spec in specs}}


def _require_one_input(path: Path, specs: Sequence[TensorSpec]) -> None:
    if len(specs) > 1:
        raise DataError(
            f"a .npy file holds one array, and the model has {len(specs)} inputs",
            where=str(path),
            hint="Make one folder per input, with files of the same name for one sample. "
            f"The model wants {_wanted(specs)}.",
        )


def _by_folder(
    root: Path, matched: Mapping[str, Path], specs: Sequence[TensorSpec]
) -> tuple[dict[str, Parts], list[Skipped]]:
    for spec in specs:
        if spec.name not in matched:
            raise _no_folder(root, spec.name, set(matched.values()), specs)
    arrays: dict[str, dict[str, Path]] = {}
    strays: list[Skipped] = []
    inner = {parent for folder in matched.values() for parent in folder.parents}
    for folder in {root: None, **dict.fromkeys(sorted(inner)), **dict.fromkeys(matched.values())}:
        if not folder.is_relative_to(root):
            continue
        holders = [name for name, match in matched.items() if match == folder]
        for entry in _entries(folder):
            if entry.is_dir():
                if entry not in inner and entry not in matched.values():
                    strays.append(_stray(root, entry, "a folder that fits no input of the model"))
            elif holders and entry.suffix == ".npy":
                arrays.setdefault(entry.stem, {}).update(dict.fromkeys(holders, entry))
            else:
                strays.append(_stray(root, entry, "a file that is no sample"))
    for name, folder in matched.items():
        if not any(name in parts for parts in arrays.values()):
            raise DataError(
                f"no .npy file for input '{name}'",
                where=str(folder),
                hint="Save one file per sample with numpy.save.",
            )
    return {stem: arrays[stem] for stem in sorted(arrays, key=_natural)}, strays


def _stray(root: Path, entry: Path, reason: str) -> Skipped:
    return Skipped(name=str(entry.relative_to(root)), reason=reason)
