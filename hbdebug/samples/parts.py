"""Where one input of one sample lies, and how it is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hbdebug.errors import DataError
from hbdebug.npy import (
    Want,
    npy_header,
    npz_headers,
    npz_keys,
    read_npy,
    read_npz,
    stacking,
)
from hbdebug.samples import images
from hbdebug.samples.matching import match, meant
from hbdebug.samples.raw import read_raw
from hbdebug.samples.spec import listed, wanted_inputs

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hbdebug.npy import Stacking
    from hbdebug.samples.preparation import Preparation
    from hbdebug.samples.spec import TensorSpec

    Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One input of one sample.

    Attributes:
        file: Where it lies.
        index: Which sample of the file's array it is, see `hbdebug.npy.stacking`.
    """

    file: Path
    index: int = 0


Parts: TypeAlias = "Mapping[str, Part]"
"""Input name -> where it lies."""


def kind_of(file: Path) -> str:
    """Return ``npy``, ``npz``, ``image`` or ``raw``, by the file's suffix."""
    suffix = file.suffix.lower()
    if suffix in {".npy", ".npz"}:
        return suffix[1:]
    return "image" if suffix in images.SUFFIXES else "raw"


def wants_of(specs: Sequence[TensorSpec], preparation: Preparation) -> dict[str, Want]:
    """Return what each input takes, for the readers of files."""
    return {
        spec.name: Want(
            what=f"input '{spec.name}'",
            dtype=spec.dtype,
            shape=spec.shape,
            stacks=spec.counts_samples and not preparation.keep_batch,
        )
        for spec in specs
    }


def stacks_of(
    files: Mapping[str, Path], specs: Sequence[TensorSpec], preparation: Preparation
) -> dict[str, Stacking]:
    """Tell, from the heads of files, how samples lie in them.

    Args:
        files: Input -> file.
        specs: The model's inputs.
        preparation: Whether batches are taken apart.

    Returns:
        By input; what does not fit or cannot be read is left out, and refused when it is read.

    Raises:
        DataError: A file is unreadable.
    """
    wants = wants_of(specs, preparation)
    found = {}
    archives: dict[Path, Mapping[str, Any]] = {}
    for name, file in files.items():
        header = None
        if kind_of(file) == "npy":
            header = npy_header(file)
        elif kind_of(file) == "npz":
            if file not in archives:
                archives[file] = npz_headers(file)
            keys = match(list(wants), list(archives[file]), where=file)
            header = archives[file].get(keys.get(name, ""))
        stack = None if header is None else stacking(header.shape, wants[name])
        if stack is not None:
            found[name] = stack
    return found


def read_sample(
    parts: Parts,
    specs: Sequence[TensorSpec],
    preparation: Preparation,
    *,
    foreign: Counter[str],
    say: Callable[[str, str], None],
) -> dict[str, Array]:
    """Read a sample's arrays.

    Args:
        parts: Where they lie.
        specs: The model's inputs.
        preparation: What is done to images and raw files.
        foreign: Counts the keys of archives that are no input.
        say: Called with an input and what was done to its files, in words.

    Returns:
        Input name -> array of the model's type and shape.

    Raises:
        DataError: A file is unreadable, or not what its input takes.
        UsageError: An option does not fit.
    """
    wants = wants_of(specs, preparation)
    file = next(iter(parts.values())).file
    if kind_of(file) == "npz":
        return _read_archive(parts, specs, wants, foreign)
    arrays = {}
    for name, want in wants.items():
        part = parts[name]
        kind = kind_of(part.file)
        if kind == "npy":
            arrays[name] = _read_npy(part, name, want, preparation)
            continue
        if kind == "image":
            array, words = images.read_image(part.file, name, want, preparation)
        else:
            array, words = read_raw(part.file, name, want, preparation)
        say(name, words)
        arrays[name] = array
    return arrays


def _read_npy(part: Part, name: str, want: Want, preparation: Preparation) -> Array:
    if name in preparation.image_offsets and npy_header(part.file).dtype == "uint8":
        offset = preparation.image_offsets[name]
        raise DataError(
            f"{want.what} takes pixels {offset:+d}, as the model's HzPreprocess node expects them, "
            "and the file holds uint8 values, which cannot be negative",
            where=str(part.file),
            hint=f"Save array.astype(numpy.float32) {offset:+d}, or give the images themselves.",
        )
    return read_npy(part.file, want, part.index)


def _read_archive(
    parts: Parts, specs: Sequence[TensorSpec], wants: Mapping[str, Want], foreign: Counter[str]
) -> dict[str, Array]:
    part = next(iter(parts.values()))
    keys = npz_keys(part.file)
    matched = match(list(wants), keys, where=part.file)
    missing = [name for name in wants if name not in matched]
    if missing:
        raise DataError(
            f"no array for input {listed(missing)}",
            where=str(part.file),
            hint=f"{wanted_inputs(specs)} It holds {listed(keys)}.{meant(missing, keys)}",
        )
    foreign.update(key for key in keys if key not in matched.values())
    by_key = {matched[name]: want for name, want in wants.items()}
    arrays = read_npz(part.file, by_key, part.index)
    return {name: arrays[matched[name]] for name in wants}
