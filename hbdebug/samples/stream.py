"""Calibration data on disk as a re-iterable stream of named arrays, checked once.

A *sample* is one array for each input of the model. These layouts hold them:

* ``calib/<input>/``: a folder for each input, paired by file stem (what the vendor dumps);
* ``calib/``, or a single file: a model with one input;
* ``calib/*.npz``, or a single ``.npz`` file: its keys are the inputs' names.

Files are ``.npy``, images, or raw numbers, one sample each, or ``.npy`` and ``.npz`` with several
samples along their first axis. Names of inputs may hold ``/`` or ``:``. A folder or a key fits an
input whose name is equal, else one whose name is equal once every character outside
``A-Za-z0-9._-`` is replaced by ``_``.

Samples come in natural order (2 before 10). Nothing is left out silently: a file or folder that
is no sample is an error, or listed in `Samples.skipped` with ``skip_bad``. Only names that begin
with a dot (``.DS_Store``, ``.gitignore``) are passed over.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import DataError, UsageError
from hbdebug.npy import require_finite
from hbdebug.samples.layout import find
from hbdebug.samples.parts import Part, kind_of, read_sample, stacks_of
from hbdebug.samples.preparation import Preparation
from hbdebug.samples.spec import Skipped, listed, require_readable_types, wanted_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.npy import Stacking
    from hbdebug.samples.parts import Parts
    from hbdebug.samples.spec import TensorSpec

    Array: TypeAlias = NDArray[Any]

# After so many unusable samples the rest need not be read to know that the data are wrong.
_MOST_REPORTED = 10


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
        notes: What was done to the files on their way, in words for the user.
        preparation: What is done to images and raw files.
    """

    path: str
    inputs: tuple[TensorSpec, ...]
    names: tuple[str, ...]
    found: int
    skipped: tuple[Skipped, ...]
    digest: str
    notes: tuple[str, ...]
    preparation: Preparation
    _parts: Mapping[str, Parts]
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
        parts = self._parts[self.names[index]]
        for file in {part.file for part in parts.values()}:
            if _stamp(file) != self._stamps[file]:
                raise DataError(
                    "the file changed after it was checked",
                    where=str(file),
                    hint="Start again when nothing writes to the calibration data.",
                )
        return read_sample(
            parts, self.inputs, self.preparation, foreign=Counter(), say=lambda *_: None
        )


def open_samples(
    path: str | os.PathLike[str],
    inputs: Sequence[TensorSpec],
    *,
    limit: int | None = None,
    skip_bad: bool = False,
    preparation: Preparation | None = None,
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
        preparation: What to do to images and raw files, and whether batches are taken apart.

    Raises:
        UsageError: ``limit`` is less than 1, or an option does not fit the data.
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
    require_readable_types(specs)
    files, strays = find(Path(path), specs)
    if strays and not skip_bad:
        first, others = strays[0], [stray.name for stray in strays[1:]]
        raise DataError(
            f"is no sample: {first.reason}{f'; nor is {listed(others)}' if others else ''}",
            where=str(Path(path) / first.name),
            hint="Keep nothing else beside the samples: move it away, or give --skip-bad.",
        )
    check = _Check(os.fspath(path), specs, preparation or Preparation(), skip_bad=skip_bad)
    return check.run(files, strays, limit)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A sample to be: where its inputs lie, or what is wrong with it already."""

    name: str
    parts: Parts
    error: DataError | None = None


class _Check:
    """Reads the samples once, one at a time: refuses or drops the bad ones, hashes the others."""

    def __init__(
        self,
        path: str,
        specs: tuple[TensorSpec, ...],
        preparation: Preparation,
        *,
        skip_bad: bool,
    ) -> None:
        self._path = path
        self._specs = specs
        self._preparation = preparation
        self._skip_bad = skip_bad
        self._bad: list[tuple[str, DataError]] = []
        self._skipped: list[Skipped] = []
        self._foreign: Counter[str] = Counter()
        self._said: dict[str, None] = {}

    def run(
        self, files: Mapping[str, Mapping[str, Path]], strays: Sequence[Skipped], limit: int | None
    ) -> Samples:
        """Return the samples in use."""
        self._require_purpose(files)
        found = [item for stem, parts in files.items() for item in self._taken_apart(stem, parts)]
        used: dict[str, Parts] = {}
        stamps: dict[Path, tuple[int, int]] = {}
        digest = hashlib.sha256()
        for item in found:
            enough = len(used) == limit or (len(self._bad) == _MOST_REPORTED and not self._skip_bad)
            if enough:
                break
            arrays = self._read(item, stamps)
            if arrays is not None:
                used[item.name] = item.parts
                _add_to_digest(digest, item.name, arrays)
        if self._bad and (not self._skip_bad or not used):
            raise _unusable(self._bad, found=len(found), usable=len(used))
        if self._foreign and not self._skip_bad:
            raise _foreign_arrays(self._path, self._foreign, self._specs)
        bad = [Skipped(name=name, reason=error.message) for name, error in self._bad]
        foreign = [
            Skipped(name=key, reason=f"an array, in {count} of the files, that is no input")
            for key, count in self._foreign.items()
        ]
        return Samples(
            path=self._path,
            inputs=self._specs,
            names=tuple(used),
            found=len(found),
            skipped=(*strays, *self._skipped, *bad, *foreign),
            digest=digest.hexdigest(),
            notes=tuple(self._said),
            preparation=self._preparation,
            _parts=used,
            _stamps=stamps,
        )

    def _require_purpose(self, files: Mapping[str, Mapping[str, Path]]) -> None:
        """Refuse options that would change nothing."""
        kinds = {kind_of(file) for parts in files.values() for file in parts.values()}
        preparation = self._preparation
        computes = preparation.computes and not kinds & {"image", "raw"}
        if computes or (preparation.for_images and not kinds & {"image", "raw"}):
            raise UsageError(
                "images and raw files are prepared, and there are none",
                where=self._path,
                hint=".npy and .npz files hold what the model is to receive: leave --mean, "
                "--scale, --offset, --color, --resize and --layout out.",
            )
        if preparation.dtypes and "raw" not in kinds:
            raise UsageError("--dtype is for raw files, and there are none", where=self._path)
        unknown = preparation.dtypes.keys() - {"", *(spec.name for spec in self._specs)}
        if unknown:
            raise UsageError(
                f"--dtype: no input is called {listed(sorted(unknown))}",
                hint=wanted_inputs(self._specs),
            )

    def _taken_apart(self, stem: str, files: Mapping[str, Path]) -> list[_Found]:
        """Return the samples that lie in the files of one name."""
        whole = {name: Part(file=file) for name, file in files.items()}
        try:
            stacks = stacks_of(files, self._specs, self._preparation)
            self._require_equal_counts(files, stacks)
        except DataError as error:
            return [_Found(name=stem, parts=whole, error=error)]
        count = max((stack.count for stack in stacks.values()), default=1)
        self._say_of(stem, stacks, count)
        if count == 1:
            return [_Found(name=stem, parts=whole)]
        return [
            _Found(
                name=f"{stem}[{index}]",
                parts={name: Part(file=file, index=index) for name, file in files.items()},
            )
            for index in range(count)
        ]

    def _require_equal_counts(
        self, files: Mapping[str, Path], stacks: Mapping[str, Stacking]
    ) -> None:
        counts = {name: stack.count for name, stack in stacks.items()}
        if len(set(counts.values())) > 1 or (
            len(counts) < len(files) and max(counts.values(), default=1) > 1
        ):
            described = ", ".join(f"{counts.get(name, 1)} of {name}" for name in files)
            raise DataError(
                f"the files hold unequal numbers of samples: {described}",
                where=str(next(iter(files.values()))),
                hint="Save as many of one input as of the other, in the same order.",
            )

    def _say_of(self, stem: str, stacks: Mapping[str, Stacking], count: int) -> None:
        if count > 1:
            self._said[
                "files with several samples along their first axis are taken apart; the "
                "model runs one batch at a time, as it was exported"
            ] = None
        for name, stack in stacks.items():
            if stack.adds_axis:
                self._said[f"{name}: the batch axis is added to files without it"] = None
            if stack.left_over:
                self._skipped.append(
                    Skipped(
                        name=f"{stem}[{count}]",
                        reason=f"{stack.left_over} entries left over: the model takes {stack.each} "
                        "at a time",
                    )
                )

    def _read(self, item: _Found, stamps: dict[Path, tuple[int, int]]) -> dict[str, Array] | None:
        try:
            if item.error is not None:
                raise item.error
            _require_partners(item.parts, self._specs)
            files = {part.file for part in item.parts.values()}
            stamps.update((file, _stamp(file)) for file in files)
            arrays = read_sample(
                item.parts, self._specs, self._preparation, foreign=self._foreign, say=self._say
            )
            for spec in self._specs:
                where = str(item.parts[spec.name].file)
                require_finite(arrays[spec.name], f"input '{spec.name}'", where)
        except DataError as error:
            self._bad.append((item.name, error))
            return None
        return arrays

    def _say(self, name: str, words: str) -> None:
        self._said[f"{name}: {words}"] = None


def _require_partners(parts: Parts, specs: Sequence[TensorSpec]) -> None:
    missing = [spec.name for spec in specs if spec.name not in parts]
    if missing:
        raise DataError(
            f"no file for input {listed(missing)}",
            where=str(next(iter(parts.values())).file),
            hint="The files of one sample must have the same name in every input's folder.",
        )


def _add_to_digest(digest: hashlib._Hash, name: str, arrays: Mapping[str, Array]) -> None:
    described = [(key, array.dtype.str, array.shape) for key, array in arrays.items()]
    digest.update(repr((name, described)).encode("utf-8", "backslashreplace"))
    for array in arrays.values():
        digest.update(array.reshape(-1).view(np.uint8).data)


def _unusable(bad: Sequence[tuple[str, DataError]], *, found: int, usable: int) -> DataError:
    """Return the first error, with the other unusable samples named and what to do about all."""
    first, error = bad[0]
    others = [name for name, _ in bad[1:]]
    if others and not usable:
        more = "Of all samples none" if len(bad) == found else f"Of the first {len(bad)} none"
        more += " is usable."
    else:
        more = f"Not usable either: {listed(others)}." if others else ""
    skip = "--skip-bad leaves unusable samples out." if usable else ""
    return DataError(
        error.message,
        where=f"{error.where} (sample '{first}')",
        hint=" ".join(filter(None, (error.hint, more, skip))),
    )


def _stamp(file: Path) -> tuple[int, int]:
    """Return what changes when a file is written again: its size and time, in ns."""
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(file)) from error
    return status.st_size, status.st_mtime_ns


def _foreign_arrays(
    path: str, foreign: Mapping[str, int], specs: Sequence[TensorSpec]
) -> DataError:
    return DataError(
        f"arrays that are no input of the model: {listed(list(foreign))}",
        where=path,
        hint=f"{wanted_inputs(specs)} Leave the others out when saving, or give --skip-bad.",
    )
