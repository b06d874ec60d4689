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
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import DataError, ModelError, UnsupportedError, UsageError
from hbdebug.npy import Want, describe, npz_keys, read_npy, read_npz, require_finite

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
    Parts: TypeAlias = Mapping[str, Path]

# After so many unusable samples the rest need not be read to know that the data are wrong.
_MOST_REPORTED = 10


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
            f"is no sample: {first.reason}{f'; nor is {_listed(others)}' if others else ''}",
            where=str(Path(path) / first.name),
            hint="Keep nothing else beside the samples: move it away, or give --skip-bad.",
        )
    return _check(os.fspath(path), specs, files, strays, limit=limit, skip_bad=skip_bad)


def _require_readable_types(specs: Sequence[TensorSpec]) -> None:
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
            _require_partners(parts, specs)
            stamps.update((file, _stamp(file)) for file in set(parts.values()))
            arrays = _read_sample(parts, specs, foreign)
            for spec in specs:
                require_finite(arrays[spec.name], f"input '{spec.name}'", str(parts[spec.name]))
        except DataError as error:
            bad.append((name, error))
            continue
        names.append(name)
        _add_to_digest(digest, name, arrays)
    if bad and (not skip_bad or not names):
        raise _unusable(bad, found=len(files), usable=len(names))
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


def _require_partners(parts: Parts, specs: Sequence[TensorSpec]) -> None:
    missing = [spec.name for spec in specs if spec.name not in parts]
    if missing:
        raise DataError(
            f"no file for input {_listed(missing)}",
            where=str(next(iter(parts.values()))),
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
        more = f"Not usable either: {_listed(others)}." if others else ""
    skip = "--skip-bad leaves unusable samples out." if usable else ""
    return DataError(
        error.message,
        where=f"{error.where} (sample '{first}')",
        hint=" ".join(filter(None, (error.hint, more, skip))),
    )


# Where the samples are.


def _find(root: Path, specs: Sequence[TensorSpec]) -> tuple[dict[str, Parts], list[Skipped]]:
    """Tell the layout; return sample name -> input -> file, in order, and what is no sample."""
    if not root.exists():
        raise DataError(
            "there is no such file or folder",
            where=str(root),
            hint="Give a folder that holds a folder of .npy files for each input. "
            f"{wanted_inputs(specs)}",
        )
    if not root.is_dir():
        return _single_file(root, specs), []
    entries = _entries(root)
    matched = _match_folders(root, specs)
    if matched:
        return _by_folder(root, matched, specs)
    arrays, archives = (
        [entry for entry in entries if entry.suffix == suffix and entry.is_file()]
        for suffix in (".npy", ".npz")
    )
    if arrays and len(specs) > 1:
        raise _one_array_only(root, specs)
    files = arrays or archives
    if not files:
        raise _nothing_found(root, entries, specs)
    kind, known = files[0].suffix, set(files)
    reason = f"not {kind}, as the samples are"
    strays = [_stray(root, entry, reason) for entry in entries if entry not in known]
    return {file.stem: {spec.name: file for spec in specs} for file in files}, strays


def _single_file(file: Path, specs: Sequence[TensorSpec]) -> dict[str, Parts]:
    if file.suffix not in {".npy", ".npz"}:
        raise DataError(
            "neither a folder nor a .npy or .npz file",
            where=str(file),
            hint="Save samples with numpy.save; raw files do not say what they hold.",
        )
    if file.suffix == ".npy" and len(specs) > 1:
        raise _one_array_only(file, specs)
    return {file.stem: {spec.name: file for spec in specs}}


def _by_folder(
    root: Path, matched: Mapping[str, Path], specs: Sequence[TensorSpec]
) -> tuple[dict[str, Parts], list[Skipped]]:
    """Pair the files of the inputs' folders by stem, and collect whatever else is in there."""
    missing = [spec.name for spec in specs if spec.name not in matched]
    if missing:
        raise _no_folder(root, missing, set(matched.values()), specs)
    owners = {folder: name for name, folder in matched.items()}
    found: dict[str, dict[str, Path]] = {}
    strays: list[Skipped] = []
    pending = [root]
    while pending:
        folder = pending.pop()
        for entry in _entries(folder):
            if entry.is_dir():
                # A folder inside the folder of an input may be the folder of another one.
                if any(owned.is_relative_to(entry) for owned in owners):
                    pending.append(entry)
                else:
                    strays.append(_stray(root, entry, "a folder with the name of no input"))
            elif folder in owners and entry.suffix == ".npy":
                found.setdefault(entry.stem, {})[owners[folder]] = entry
            else:
                strays.append(_stray(root, entry, "not a .npy file in the folder of an input"))
    for name, folder in matched.items():
        if not any(name in parts for parts in found.values()):
            raise DataError(
                f"no .npy file for input '{name}'",
                where=str(folder),
                hint="Save one file per sample with numpy.save.",
            )
    return {stem: found[stem] for stem in sorted(found, key=_natural)}, strays


def _match_folders(root: Path, specs: Sequence[TensorSpec]) -> dict[str, Path]:
    """Return input -> folder for those inputs that have one.

    An input ``a/b`` also fits the folder ``b`` inside ``a``: that is where a program that joins
    paths without a thought puts it.
    """
    folders = {entry.name: entry for entry in _entries(root) if entry.is_dir()}
    for spec in specs:
        inner = [part for part in spec.name.split("/") if part not in {"", ".", ".."}]
        nested = root.joinpath(*inner)
        if len(inner) > 1 and nested.is_dir():
            folders[spec.name] = nested
    matched = _match([spec.name for spec in specs], list(folders), where=root)
    return {name: folders[key] for name, key in matched.items()}


def _match(names: Sequence[str], keys: Sequence[str], *, where: Path) -> dict[str, str]:
    """Pair names with keys: equal ones first, then those whose sanitised forms are equal."""
    matched = {name: name for name in names if name in keys}
    for name in names:
        if name in matched:
            continue
        fits = [key for key in keys if key not in matched and _sanitise(key) == _sanitise(name)]
        rivals = [other for other in names if _sanitise(other) == _sanitise(name)]
        rivals = [other for other in rivals if other not in keys]
        if fits and len(fits) + len(rivals) > 2:
            raise DataError(
                f"{_listed(fits)} can be meant for input {_listed(rivals)}",
                where=str(where),
                hint="Name each exactly as the input that it is for.",
            )
        matched.update(dict.fromkeys([name], fits[0]) if fits else {})
    return matched


def _sanitise(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _entries(folder: Path) -> list[Path]:
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(
            f"the folder cannot be read: {error.strerror}", where=str(folder)
        ) from error
    return sorted(entries, key=lambda entry: _natural(entry.name))


def _natural(name: str) -> tuple[list[tuple[str, int]], str]:
    """Return a sort key under which ``img2`` precedes ``img10``."""
    pieces = re.split(r"([0-9]+)", name)
    numbers = [int(piece) for piece in pieces[1::2]] + [0]
    return list(zip(pieces[::2], numbers, strict=True)), name


# One sample.


def _read_sample(
    parts: Parts, specs: Sequence[TensorSpec], foreign: Counter[str]
) -> dict[str, Array]:
    """Read a sample's arrays; count in ``foreign`` the keys of an archive that are no input."""
    wants = {
        spec.name: Want(what=f"input '{spec.name}'", dtype=spec.dtype, shape=spec.shape)
        for spec in specs
    }
    file = next(iter(parts.values()))
    if file.suffix == ".npy":
        return {name: read_npy(parts[name], want) for name, want in wants.items()}
    keys = npz_keys(file)
    matched = _match(list(wants), keys, where=file)
    missing = [name for name in wants if name not in matched]
    if missing:
        raise DataError(
            f"no array for input {_listed(missing)}",
            where=str(file),
            hint=f"{wanted_inputs(specs)} It holds {_listed(keys)}.{_meant(missing, keys)}",
        )
    foreign.update(key for key in keys if key not in matched.values())
    arrays = read_npz(file, {matched[name]: want for name, want in wants.items()})
    return {name: arrays[matched[name]] for name in wants}


def _stamp(file: Path) -> tuple[int, int]:
    """Return what changes when a file is written again: its size and time, in ns."""
    try:
        status = file.stat()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(file)) from error
    return status.st_size, status.st_mtime_ns


# What the user is told.


def _listed(names: Sequence[str]) -> str:
    """Quote at most five names, and say how many more there are."""
    quoted = ", ".join(f"'{name}'" for name in names[:5])
    return f"{quoted} and {len(names) - 5} more" if len(names) > 5 else quoted or "nothing"


def wanted_inputs(specs: Sequence[TensorSpec]) -> str:
    """Say in a sentence which inputs a model takes."""
    wants = ", ".join(f"{spec.name} ({describe(spec.dtype, spec.shape)})" for spec in specs)
    return f"The model wants {wants}."


def _meant(missing: Sequence[str], there: Sequence[str]) -> str:
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


def _stray(root: Path, entry: Path, reason: str) -> Skipped:
    return Skipped(name=str(entry.relative_to(root)), reason=reason)


def _one_array_only(path: Path, specs: Sequence[TensorSpec]) -> DataError:
    return DataError(
        f".npy files hold one array each, and the model has {len(specs)} inputs",
        where=str(path),
        hint="Make a folder for each input, with files of the same name for one sample. "
        f"{wanted_inputs(specs)}",
    )


def _no_folder(
    root: Path, missing: Sequence[str], taken: set[Path], specs: Sequence[TensorSpec]
) -> DataError:
    free = [entry.name for entry in _entries(root) if entry.is_dir() and entry not in taken]
    found = [entry.name for entry in _entries(root) if entry.is_dir()]
    alone = f" Or give {root / free[0]}." if len(free) == len(specs) == 1 else ""
    return DataError(
        f"no folder for input {_listed(missing)}",
        where=str(root),
        hint=(
            f"{wanted_inputs(specs)} Folders found: {_listed(found)}.{_meant(missing, free)}{alone}"
        ),
    )


def _nothing_found(root: Path, entries: Sequence[Path], specs: Sequence[TensorSpec]) -> DataError:
    """Say why a folder without any sample holds none, as far as can be told."""
    folders = [entry for entry in entries if entry.is_dir()]
    deeper = [folder for folder in folders if _match_folders(folder, specs)]
    if deeper:
        return DataError(
            f"the folders of the inputs are inside '{deeper[0].name}'",
            where=str(root),
            hint=f"Give {deeper[0]}.",
        )
    if folders:
        return _no_folder(root, [spec.name for spec in specs], set(), specs)
    if not entries:
        return DataError(
            "the folder is empty",
            where=str(root),
            hint=f"Put samples into it. {wanted_inputs(specs)}",
        )
    return DataError(
        f"no .npy or .npz file among {_listed([entry.name for entry in entries])}",
        where=str(root),
        hint="Raw files, such as the toolchain reads, do not say what they hold: save the "
        "preprocessed samples with numpy.save.",
    )


def _foreign_arrays(
    path: str, foreign: Mapping[str, int], specs: Sequence[TensorSpec]
) -> DataError:
    return DataError(
        f"arrays that are no input of the model: {_listed(list(foreign))}",
        where=path,
        hint=f"{wanted_inputs(specs)} Leave the others out when saving, or give --skip-bad.",
    )
