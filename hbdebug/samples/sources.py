"""One file opened for one input: told apart by name and content, judged before data are read."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from hbdebug.errors import DataError
from hbdebug.npy import MAGIC, StoredArray, describe, open_npy
from hbdebug.samples.images import SUFFIXES, open_image

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from hbdebug.samples.preparation import Preparation
    from hbdebug.samples.specs import TensorSpec

    Array: TypeAlias = NDArray[Any]

# What is written beside samples and never holds one; a raw file may have any other suffix.
_TEXT = frozenset(
    {".cfg", ".csv", ".gz", ".htm", ".html", ".ini", ".json", ".jsonl", ".list", ".log", ".lst",
     ".md", ".onnx", ".pbtxt", ".pkl", ".prototxt", ".py", ".rst", ".sh", ".tar", ".toml", ".tsv",
     ".txt", ".xml", ".yaml", ".yml", ".zip"}
)  # fmt: skip

_DTYPES = ("uint8", "int8", "int16", "float16", "int32", "float32", "int64", "float64")

_OTHER_FORMATS = {b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"PK": "an archive"}


class Source(Protocol):
    """An array in a file, of known shape and type, that is read when it is wanted."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in the file."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its type in the file."""

    @property
    def where(self) -> str:
        """Where it is, for messages."""

    def read(self, row: int | None = None) -> Array:
        """Read all of it, or one row along its first dimension."""


def kind_of(file: Path) -> str:
    """Tell by a file's name what it holds.

    Returns:
        ``.npy``, ``.npz``, ``image``, ``raw``, or nothing if it holds no sample.
    """
    suffix = file.suffix
    if suffix in {".npy", ".npz"}:
        return suffix
    if suffix.lower() in SUFFIXES:
        return "image"
    return "" if suffix.lower() in _TEXT or not suffix else "raw"


def open_source(file: Path, spec: TensorSpec, preparation: Preparation) -> Source:
    """Open a file that holds one array.

    Args:
        file: A ``.npy`` file, an image or a raw file.
        spec: The input that it is for.
        preparation: Tells how to take raw files and images.

    Raises:
        DataError: It is damaged, or cannot be what the input wants.
    """
    kind = kind_of(file)
    if kind == ".npy":
        return _npy(file, spec, preparation)
    if kind == "image":
        return open_image(file, preparation.image(spec))
    return _raw(file, spec, preparation)


def _npy(file: Path, spec: TensorSpec, preparation: Preparation) -> StoredArray:
    try:
        return open_npy(file)
    except DataError as error:
        start, size = _beginning(file)
        if start.startswith(MAGIC):
            raise
        shape = _filled_in(size, spec, preparation)
        if shape is None:
            raise
        dtype = preparation.raw_dtype(spec)
        raise DataError(
            error.message,
            where=error.where,
            hint=f"It has no header of NumPy, and exactly the {size} bytes of raw "
            f"{describe(dtype.name, shape)}: rename it to {file.stem}.bin to have it read as "
            "that.",
        ) from error


def _raw(file: Path, spec: TensorSpec, preparation: Preparation) -> StoredArray:
    """Take a file without header for an array of the shape and dtype that are expected."""
    start, size = _beginning(file)
    if start.startswith(MAGIC):
        raise DataError(
            "the file begins with the header of a .npy file, and is called like a raw one",
            where=str(file),
            hint=f"Rename it to {file.stem}.npy; read as raw values, its header would become "
            "the first of them.",
        )
    shape, dtype = _filled_in(size, spec, preparation), preparation.raw_dtype(spec)
    if shape is not None:
        return StoredArray(file=file, shape=shape, dtype=dtype)
    open_shape = preparation.raw_shape(spec)
    unknown = _unknown(open_shape)
    if len(unknown) > 1:
        raise DataError(
            f"a raw file does not say its shape, and {describe(spec.dtype, open_shape)} leaves "
            f"{len(unknown)} sizes open",
            where=str(file),
            hint=f"Give the shape: --shape {spec.name}="
            f"{'x'.join(str(axis or '?') for axis in _batch_of_one(open_shape))} with numbers.",
        )
    known = math.prod(axis for axis in _batch_of_one(open_shape) if axis is not None)
    per = "a multiple of " if unknown else ""
    raise DataError(
        f"the file has {size} bytes, and raw {describe(dtype.name, open_shape)} takes "
        f"{per}{known * dtype.itemsize}",
        where=str(file),
        hint=_size_hint(start, size, known, spec, dtype, exact=not unknown, shape=open_shape),
    )


def _size_hint(
    start: bytes,
    size: int,
    count: int,
    spec: TensorSpec,
    dtype: np.dtype[Any],
    *,
    exact: bool,
    shape: tuple[int | None, ...],
) -> str:
    """Say what a file of that size can be."""
    for magic, what in _OTHER_FORMATS.items():
        if start.startswith(magic):
            return f"It begins like {what}: is its suffix wrong?"
    sizes = {name: np.dtype(name).itemsize for name in _DTYPES}
    fitting = [
        name
        for name, width in sizes.items()
        if count and width != dtype.itemsize and (size == count * width if exact else
                                                  size % (count * width) == 0 and size)
    ]  # fmt: skip
    if fitting:
        values = size // sizes[fitting[0]]
        return (
            f"{size} bytes are {values} values of {' or '.join(fitting)}: give "
            f"--dtype {spec.name}={fitting[0]} if that is what it holds."
        )
    one = count * dtype.itemsize
    if exact and one and size and size % one == 0 and shape[:1] == (1,):
        axes = "x".join(str(axis) for axis in (size // one, *shape[1:]))
        return f"These are {size // one} samples in one file: give --shape {spec.name}={axes}."
    return (
        f"It holds something else than {spec.name} wants, or was cut short. Raw files have no "
        "header and as many bytes as values times the size of one (--dtype, --shape)."
    )


def _filled_in(size: int, spec: TensorSpec, preparation: Preparation) -> tuple[int, ...] | None:
    """Return the shape of a raw file, the one open size inferred; None if it cannot be that."""
    itemsize = preparation.raw_dtype(spec).itemsize
    shape = preparation.raw_shape(spec)
    if len(_unknown(shape)) == 1 and shape.count(None) > 1:
        shape = _batch_of_one(shape)
    unknown = [axis for axis, length in enumerate(shape) if length is None]
    known = math.prod(length for length in shape if length is not None)
    if not unknown:
        return tuple(length or 0 for length in shape) if size == known * itemsize else None
    if len(unknown) > 1 or not known or not size or size % (known * itemsize):
        return None
    return tuple(size // (known * itemsize) if length is None else length for length in shape)


def _unknown(shape: tuple[int | None, ...]) -> list[int]:
    """Return the dimensions that a file's size must tell; a batch beside others is one."""
    unknown = [axis for axis, length in enumerate(shape) if length is None]
    return unknown[1:] if len(unknown) > 1 and unknown[0] == 0 and len(shape) > 1 else unknown


def _batch_of_one(shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Return the shape with an open batch taken for 1, if other sizes are open, too."""
    if shape.count(None) > 1 and shape[0] is None and len(shape) > 1:
        return (1, *shape[1:])
    return shape


def _beginning(file: Path) -> tuple[bytes, int]:
    """Return the first bytes of a file, and its size."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(MAGIC)), file.stat().st_size
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(file)) from error
