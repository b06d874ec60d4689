"""Where the samples are: the layouts of calibration data, and what is no sample in them."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from hbdebug.errors import DataError
from hbdebug.samples.sources import kind_of
from hbdebug.samples.specs import Skipped, listed, meant, sanitise, wanted_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hbdebug.samples.specs import TensorSpec

    Parts: TypeAlias = Mapping[str, Path]

# In this order where there are equally many.
_KINDS = (".npy", ".npz", "image", "raw")


def find(root: Path, specs: Sequence[TensorSpec]) -> tuple[dict[str, Parts], list[Skipped]]:
    """Tell the layout of calibration data.

    Returns:
        Sample name -> input -> file, in natural order; and what is no sample.

    Raises:
        DataError: There is no sample, or an input has none.
    """
    if not root.exists():
        raise DataError(
            "there is no such file or folder",
            where=str(root),
            hint="Give a folder that holds a folder of .npy files for each input. "
            f"{wanted_inputs(specs)}",
        )
    if not root.is_dir():
        return _single_file(root, specs), []
    matched = _match_folders(root, specs)
    if matched:
        return _by_folder(root, matched, specs)
    entries = _entries(root)
    files, reasons = _pick(entries, _KINDS)
    if not files:
        raise _nothing_found(root, entries, specs)
    if kind_of(files[0]) != ".npz" and len(specs) > 1:
        raise _one_array_only(root, specs)
    strays = [_stray(root, entry, reason) for entry, reason in reasons.items()]
    return {file.stem: {spec.name: file for spec in specs} for file in files}, strays


def _single_file(file: Path, specs: Sequence[TensorSpec]) -> dict[str, Parts]:
    kind = kind_of(file)
    if not kind:
        raise DataError(
            "neither a folder nor a file of samples",
            where=str(file),
            hint="Give a folder, or a .npy, .npz, image or raw file (.bin, .rgb, .f32, ...).",
        )
    if kind != ".npz" and len(specs) > 1:
        raise _one_array_only(file, specs)
    return {file.stem: {spec.name: file for spec in specs}}


def _pick(entries: Sequence[Path], kinds: Sequence[str]) -> tuple[list[Path], dict[Path, str]]:
    """Choose the samples in a folder: most are of one kind, and raw files of one suffix.

    Returns:
        The samples, and for every other entry why it is none.
    """
    by_kind: dict[str, list[Path]] = {kind: [] for kind in kinds}
    for entry in entries:
        # A link to nowhere was meant to be something.
        if not entry.is_dir() and kind_of(entry) in by_kind:
            by_kind[kind_of(entry)].append(entry)
    kind = max(kinds, key=lambda key: len(by_kind[key]))
    files, what = by_kind[kind], kind
    if kind == "raw" and files:
        what = Counter(entry.suffix for entry in files).most_common(1)[0][0]
        files = [entry for entry in files if entry.suffix == what]
    what = "an image" if kind == "image" else what
    first: dict[str, Path] = {}
    for entry in files:
        first.setdefault(entry.stem, entry)
    chosen = set(first.values())
    reasons = {
        entry: f"called like '{first[entry.stem].name}', which is the sample '{entry.stem}'"
        if entry in files
        else f"not {what}, as the samples are"
        for entry in entries
        if entry not in chosen
    }
    return list(first.values()), reasons


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
        files = []
        for entry in _entries(folder):
            # A folder inside the folder of an input may be the folder of another one.
            if entry.is_dir() and any(owned.is_relative_to(entry) for owned in owners):
                pending.append(entry)
            elif entry.is_dir():
                strays.append(_stray(root, entry, "a folder with the name of no input"))
            elif folder in owners:
                files.append(entry)
            else:
                strays.append(_stray(root, entry, "not in the folder of an input"))
        chosen, reasons = _pick(files, [kind for kind in _KINDS if kind != ".npz"])
        for entry in chosen:
            found.setdefault(entry.stem, {})[owners[folder]] = entry
        strays += [_stray(root, entry, reason) for entry, reason in reasons.items()]
    for name, folder in matched.items():
        if not any(name in parts for parts in found.values()):
            raise DataError(
                f"no .npy file, image or raw file for input '{name}'",
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
    matched = match([spec.name for spec in specs], list(folders), where=root)
    return {name: folders[key] for name, key in matched.items()}


def match(names: Sequence[str], keys: Sequence[str], *, where: Path) -> dict[str, str]:
    """Pair names with keys: equal ones first, then those whose sanitised forms are equal.

    Raises:
        DataError: A key can be meant for more than one name, or the other way round.
    """
    matched = {name: name for name in names if name in keys}
    for name in names:
        if name in matched:
            continue
        fits = [key for key in keys if key not in matched and sanitise(key) == sanitise(name)]
        rivals = [other for other in names if sanitise(other) == sanitise(name)]
        rivals = [other for other in rivals if other not in keys]
        if fits and len(fits) + len(rivals) > 2:
            raise DataError(
                f"{listed(fits)} can be meant for input {listed(rivals)}",
                where=str(where),
                hint="Name each exactly as the input that it is for.",
            )
        matched.update(dict.fromkeys([name], fits[0]) if fits else {})
    return matched


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


# What the user is told.


def _stray(root: Path, entry: Path, reason: str) -> Skipped:
    return Skipped(name=str(entry.relative_to(root)), reason=reason)


def _one_array_only(path: Path, specs: Sequence[TensorSpec]) -> DataError:
    return DataError(
        f"the files hold one array each, and the model has {len(specs)} inputs",
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
        f"no folder for input {listed(missing)}",
        where=str(root),
        hint=(
            f"{wanted_inputs(specs)} Folders found: {listed(found)}.{meant(missing, free)}{alone}"
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
        f"no sample among {listed([entry.name for entry in entries])}",
        where=str(root),
        hint="Samples are .npy, .npz, image or raw files (.bin, .rgb, .f32, ...).",
    )
