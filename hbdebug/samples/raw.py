"""Raw files: numbers without a header, as ``numpy.ndarray.tofile`` writes them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import DataError
from hbdebug.npy import convert, describe
from hbdebug.samples.preparation import arithmetic_in_words, compute

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from hbdebug.npy import Want
    from hbdebug.samples.preparation import Preparation

# First bytes of files that are something else, and what to do.
_HEADERS = (
    (b"\x93NUMPY", "a NumPy file: its header would be read as values", "Name it {stem}.npy."),
    (b"PK\x03\x04", "a zip or .npz archive", "Name it {stem}.npz if numpy.savez wrote it."),
    (b"\x89PNG", "a PNG image", "Name it {stem}.png."),
    (b"\xff\xd8\xff", "a JPEG image", "Name it {stem}.jpg."),
)

_GUESSES = ("uint8", "int8", "float16", "int16", "float32", "float64", "int64")


def read_raw(
    file: Path, name: str, want: Want, preparation: Preparation
) -> tuple[NDArray[Any], str]:
    """Read the one sample of a raw file.

    Args:
        file: The file.
        name: The model's input.
        want: What the input takes.
        preparation: Type of the numbers, and what is computed of them.

    Returns:
        The array in the wanted type and shape, and in words what was done.

    Raises:
        DataError: The file is no raw one, its size does not fit, or values would change.
    """
    dtype = np.dtype(preparation.dtype_of(name, want.dtype))
    shape = _shape(file, dtype, want)
    try:
        values = np.fromfile(file, dtype.newbyteorder("<")).reshape(shape)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}", where=str(file)) from error
    offset = preparation.offset_for(name, pixels=dtype == np.uint8)
    words = [f"raw files are read as {dtype.name}", *arithmetic_in_words(preparation, offset)]
    if offset or preparation.mean or preparation.scale:
        values = compute(values, preparation, offset, _channel_axis(shape, preparation))
    return np.array(convert(values, want, str(file)), order="C"), ", ".join(words)


def _channel_axis(shape: Sequence[int], preparation: Preparation) -> int:
    """Return the axis of the channels, counted from the end."""
    if len(shape) < 3:
        return -1
    if preparation.layout:
        return -3 if preparation.layout == "nchw" else -1
    return -3 if shape[-3] in {1, 3} or shape[-1] not in {1, 3} else -1


def _shape(file: Path, dtype: np.dtype[Any], want: Want) -> tuple[int, ...]:
    """Return the shape of the sample; one open dimension follows from the file's size.

    More samples than one are no reading of a longer file: it may as well be of another type.
    """
    size = _size(file)
    # A batch that is open is one sample long.
    unit = [
        1 if want.stacks and not axis and length is None else length
        for axis, length in enumerate(want.shape)
    ]
    open_axes = [axis for axis, length in enumerate(unit) if length is None]
    if len(open_axes) > 1:
        raise DataError(
            f"{want.what} is {describe(want.dtype, want.shape)}, and a raw file does not say how "
            "long its open dimensions are",
            where=str(file),
            hint="Save the samples with numpy.save, which keeps their shape.",
        )
    known = math.prod(length for length in unit if length is not None) * dtype.itemsize
    times = size // known if known else 0
    if times * known != size or (times != 1 and not open_axes):
        raise _wrong_size(file, size, dtype, want, known)
    return tuple(times if length is None else length for length in unit)


def _size(file: Path) -> int:
    try:
        with file.open("rb") as stream:
            head = stream.read(8)
        size = file.stat().st_size
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(file)) from error
    for magic, what, remedy in _HEADERS:
        if head.startswith(magic):
            raise DataError(
                f"is no raw file but {what}",
                where=str(file),
                hint=remedy.format(stem=file.stem),
            )
    return size


def _wrong_size(file: Path, size: int, dtype: np.dtype[Any], want: Want, known: int) -> DataError:
    fitting = [
        guess
        for guess in _GUESSES
        if known and size == known // dtype.itemsize * np.dtype(guess).itemsize
    ]
    hint = (
        f"Its size is that of one sample of {' or '.join(fitting)}: if that is what it holds, give "
        f"--dtype {fitting[0]}."
        if fitting
        else "Write one sample with array.tofile in the model's shape, or give its type: --dtype."
    )
    return DataError(
        f"it has {size} bytes, and one sample of {want.what}, "
        f"{describe(dtype.name, want.shape)}, has {known or 'an open number'}",
        where=str(file),
        hint=hint,
    )
