"""Where samples lie on disk: folders, files, and what among them is no sample."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from hbdebug.errors import DataError
from hbdebug.samples.matching import match, meant
from hbdebug.samples.parts import kind_of
from hbdebug.samples.spec import Skipped, listed, wanted_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from hbdebug.samples.spec import TensorSpec

    Files: TypeAlias = Mapping[str, Path]

# Suffixes of raw files, as the toolchain's documentation and its users call them.
_RAW = frozenset(
    {
        ".bgr",
        ".bgrchw",
        ".bin",
        ".data",
        ".f32",
        ".feature",
        ".gray",
        ".nv12",
        ".raw",
        ".rgb",
        ".rgbchw",
        ".rgbhwc",
        ".yuv",
        ".yuv444",
    }
)

# Suffixes of what lies about in folders and is never data.
_TEXT = frozenset(
    {
        "",
        ".cfg",
        ".csv",
        ".html",
        ".ini",
        ".json",
        ".log",
        ".md",
        ".onnx",
        ".pdf",
        ".py",
        ".sh",
        ".toml",
        ".txt",
        ".xml",
        ".yaml",
        ".yml",
    }
)

# In a folder with several kinds of files, the samples are of the first of these.
_KINDS = ("npy", "npz", "image", "raw")
_KINDS_OF_ONE_INPUT = ("npy", "image", "raw")


def find(root: Path, specs: Sequence[TensorSpec]) -> tuple[dict[str, Files], list[Skipped]]:
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
    files = _of_one_kind(entries, _KINDS)
    if not files:
        raise _nothing_found(root, entries, specs)
    if kind_of(files[0]) != "npz" and len(specs) > 1:
        raise _one_array_only(root, specs)
    known = set(files)
    reason = f"not {_called(files[0])}, as the samples are"
    strays = [_stray(root, entry, reason) for entry in entries if entry not in known]
    return {file.stem: {spec.name: file for spec in specs} for file in files}, strays


def _of_one_kind(entries: Sequence[Path], kinds: Sequence[str]) -> list[Path]:
    """Return the files that are samples: those of the first kind that there is.

    Raises:
        DataError: Two of them differ in their suffixes only.
    """
    # A link to nowhere is a file that cannot be read.
    files = [entry for entry in entries if not entry.is_dir()]
    for kind in kinds:
        found = [file for file in files if kind_of(file) == kind]
        if kind == "raw":
            found = _raw_files(found)
        stems: dict[str, Path] = {}
        for file in found:
            twin = stems.setdefault(file.stem, file)
            if twin != file:
                raise DataError(
                    f"{twin.name} and {file.name} would be one sample",
                    where=str(file.parent),
                    hint="Keep one file of each name.",
                )
        if found:
            return found
    return []


def _raw_files(files: Sequence[Path]) -> list[Path]:
    """Return the files that can be raw ones: their suffix says so, or all have a strange one."""
    known = [file for file in files if file.suffix.lower() in _RAW]
    suffixes = {file.suffix.lower() for file in files}
    return known or (list(files) if len(suffixes) == 1 and not suffixes & _TEXT else [])


def _called(file: Path) -> str:
    kind = kind_of(file)
    return {"image": "an image", "raw": "raw data"}.get(kind, f".{kind}")


def _single_file(file: Path, specs: Sequence[TensorSpec]) -> dict[str, Files]:
    if kind_of(file) == "raw" and file.suffix.lower() not in _RAW:
        raise DataError(
            "neither a folder nor a file of samples",
            where=str(file),
            hint="Give a folder, or a .npy, .npz or image file; a raw file must be called .bin, "
            ".raw or the like.",
        )
    if kind_of(file) != "npz" and len(specs) > 1:
        raise _one_array_only(file, specs)
    return {file.stem: {spec.name: file for spec in specs}}


def _by_folder(
    root: Path, matched: Mapping[str, Path], specs: Sequence[TensorSpec]
) -> tuple[dict[str, Files], list[Skipped]]:
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
        entries = _entries(folder)
        files = _of_one_kind(entries, _KINDS_OF_ONE_INPUT) if folder in owners else []
        chosen = set(files)
        what = _called(files[0]) if files else "a .npy file"
        for entry in entries:
            if entry.is_dir():
                # A folder inside the folder of an input may be the folder of another one.
                if any(owned.is_relative_to(entry) for owned in owners):
                    pending.append(entry)
                else:
                    strays.append(_stray(root, entry, "a folder with the name of no input"))
            elif entry in chosen:
                found.setdefault(entry.stem, {})[owners[folder]] = entry
            else:
                strays.append(_stray(root, entry, f"not {what} in the folder of an input"))
    for name, folder in matched.items():
        if not any(name in parts for parts in found.values()):
            raise DataError(
                f"no data file for input '{name}'",
                where=str(folder),
                hint="Save one file per sample with numpy.save; raw files must be called .bin, "
                ".raw or the like.",
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


def _stray(root: Path, entry: Path, reason: str) -> Skipped:
    return Skipped(name=str(entry.relative_to(root)), reason=reason)


def _one_array_only(path: Path, specs: Sequence[TensorSpec]) -> DataError:
    return DataError(
        f"files hold one array each, and the model has {len(specs)} inputs",
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
        f"no samples among {listed([entry.name for entry in entries])}",
        where=str(root),
        hint="Samples are .npy, .npz or image files, or raw ones called .bin, .raw or the like.",
    )
