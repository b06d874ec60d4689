"""Arrays in ``.npy`` and raw files: what they are, and all of them or one row.

Headers are judged before data are read, so that a wrong or damaged file costs no memory, and a
row is read without the others. Pickled objects are never loaded: unpickling runs code.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.lib import format as npy_format

from hbdebug.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

MAGIC = b"\x93NUMPY"
"""What every ``.npy`` file begins with."""

# Elements looked at in one go when values that are not finite are searched for.
_BLOCK = 1 << 16

# NumPy writes headers of some hundred bytes, and refuses to read any above 10,000.
_LONGEST_HEADER = 1 << 16

_HEADERS = {
    (1, 0): (2, npy_format.read_array_header_1_0),
    (2, 0): (4, npy_format.read_array_header_2_0),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Want:
    """What an array must be.

    Attributes:
        what: What it is for, in words for the user, such as ``input 'x'``.
        dtype: NumPy name of a float, integer or bool type.
        shape: One entry per dimension; None where any size will do.
    """

    what: str
    dtype: str
    shape: tuple[int | None, ...]


def describe(dtype: object, shape: Sequence[int | None]) -> str:
    """Return ``float32[1,3,?]``; the question mark stands for any size."""
    return f"{dtype}[{','.join('?' if size is None else str(size) for size in shape)}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredArray:
    """An array that lies in a file as it is, behind ``offset`` bytes.

    Attributes:
        file: The file.
        shape: Its shape.
        dtype: Its type.
        fortran: Whether the first index runs fastest.
        offset: Where in the file it begins, bytes.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool = False
    offset: int = 0

    @property
    def where(self) -> str:
        """Where the array is, for messages."""
        return str(self.file)

    def read(self, row: int | None = None) -> Array:
        """Read the array, or one row along its first dimension, without the others.

        Returns:
            New C-contiguous array of the file's dtype, without the first dimension for a row.

        Raises:
            DataError: The file cannot be read.
        """
        try:
            if self.fortran and row is not None:
                # The values of a row lie far apart; a map reads only the pages that hold them.
                whole = np.memmap(
                    self.file, self.dtype, "r", self.offset, shape=self.shape, order="F"
                )
                return np.array(whole[row], order="C")
            shape = self.shape if row is None else self.shape[1:]
            size = math.prod(shape) * self.dtype.itemsize
            with self.file.open("rb") as stream:
                stream.seek(self.offset + (row or 0) * size)
                return filled(stream, shape, self.dtype, self.where, fortran=self.fortran)
        except OSError as error:
            raise _unreadable(self.file, error) from error
        except (ValueError, OverflowError) as error:  # from the map, as in `filled`
            raise _not_an_array(self.where, error) from error


def open_npy(file: Path) -> StoredArray:
    """Read the header of a ``.npy`` file.

    Raises:
        DataError: The file is unreadable or damaged, or holds no numbers.
    """
    try:
        with file.open("rb") as stream:
            shape, fortran, dtype, offset = read_header(stream, file.stat().st_size, str(file))
    except OSError as error:
        raise _unreadable(file, error) from error
    return StoredArray(file=file, shape=shape, dtype=dtype, fortran=fortran, offset=offset)


def filled(
    stream: IO[bytes],
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    where: str,
    *,
    fortran: bool = False,
) -> Array:
    """Read an array of known shape and type from where a stream is.

    Raises:
        DataError: The stream ends before.
    """
    expected = math.prod(shape) * dtype.itemsize
    try:
        data = bytearray(expected)
        present = stream.readinto(data)  # type: ignore[attr-defined]
        if present != expected:
            raise DataError(
                f"{expected} bytes are missing: {present} are there",
                where=where,
                hint="The file was cut short: make it again.",
            )
        array: Array = np.ndarray(shape, dtype, data, order="F" if fortran else "C")
    except (ValueError, OverflowError, MemoryError) as error:  # sizes beyond any memory
        raise _not_an_array(where, error) from error
    return np.asarray(array, order="C")


def read_header(
    stream: IO[bytes], size: int, where: str
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether in Fortran order, type and place of the data.

    Args:
        stream: At its beginning.
        size: Its length, bytes.
        where: File, for messages.

    Raises:
        DataError: It is no header, or does not fit the stream's length.
    """
    try:
        version = npy_format.read_magic(stream)
        width, read = _HEADERS[version]
        prefix = stream.read(width)
        length = int.from_bytes(prefix, "little")
        if length > min(size, _LONGEST_HEADER):
            raise ValueError(f"its header would take {length} bytes")  # noqa: TRY301
        shape, fortran, dtype = read(io.BytesIO(prefix + stream.read(length)))
        if any(not 0 <= axis < 1 << 63 for axis in shape):
            raise ValueError(f"its shape would be {shape}")  # noqa: TRY301
        np.broadcast_to(np.zeros((), dtype), shape)  # takes no memory, and refuses what none has
    except OSError:
        raise
    except Exception as error:  # a damaged header makes NumPy raise almost anything
        raise _not_an_array(where, error) from error
    if dtype.kind not in "fiub":
        what = "pickled Python objects" if dtype.hasobject else f"values of type {dtype}"
        raise DataError(
            f"the file holds {what}",
            where=where,
            hint="Save one plain array of numbers, numpy.asarray(x, numpy.float32).",
        )
    offset = len(MAGIC) + 2 + width + length
    expected = math.prod(shape) * dtype.itemsize
    if expected != size - offset:
        raise DataError(
            f"the header promises {expected} bytes of data, and {size - offset} follow",
            where=where,
            hint="The file was cut short, or something was appended to it: make it again.",
        )
    return shape, fortran, dtype, offset


def _unreadable(file: Path, error: OSError) -> DataError:
    return DataError(f"cannot be read: {error.strerror or error}", where=str(file))


def _not_an_array(where: str, error: Exception) -> DataError:
    return DataError(
        f"cannot be read as .npy: {error}",
        where=where,
        hint="The file is damaged, or was not made by numpy.save: make it again.",
    )


def wrong_shape(shape: tuple[int, ...], dtype: np.dtype[Any], want: Want, where: str) -> DataError:
    """Return the error for an array of another shape, with the likely cause."""
    return DataError(
        f"the model wants {describe(want.dtype, want.shape)} for {want.what}, "
        f"the file has {describe(dtype.name, shape)}",
        where=where,
        hint=_shape_hint(shape, want.shape),
    )


def require_finite(array: Array, what: str, where: str) -> None:
    """Refuse NaN and infinities; in blocks, so that no second array of that size is made.

    Raises:
        DataError: There are any; the message says how many, and where the first is.
    """
    if array.dtype.kind != "f":
        return
    flat = array.reshape(-1)
    count = first = 0
    for start in range(0, flat.size, _BLOCK):
        finite = np.isfinite(flat[start : start + _BLOCK])
        if not finite.all():
            first = first if count else start + int(finite.argmin())
            count += finite.size - int(np.count_nonzero(finite))
    if count:
        raise DataError(
            f"{what}: {count} of {flat.size} values not finite, "
            f"the first is {flat[first]} at {_position(first, array.shape)}",
            where=where,
            hint="Look at how the sample was made: a division by zero, a logarithm of zero?",
        )


def fits(shape: Sequence[int], want: Sequence[int | None]) -> bool:
    """Tell whether a shape is one that is wanted."""
    return len(shape) == len(want) and all(
        wanted in {None, size} for size, wanted in zip(shape, want, strict=True)
    )


def _shape_hint(shape: tuple[int, ...], want: tuple[int | None, ...]) -> str:
    """Recognize the commonest ways to save a sample wrongly, and say what to save instead."""
    batched = (1, *shape)
    tries = [(batched, "The batch dimension is missing: save array[None].")]
    if shape[:1] == (1,):
        tries.append((shape[1:], "There is a dimension too many in front: save array[0]."))
    for order, found, wanted in (((0, 3, 1, 2), "NHWC", "NCHW"), ((0, 2, 3, 1), "NCHW", "NHWC")):
        if len(shape) == 4:
            text = f"It looks like {found} for a model in {wanted}: save array.transpose{order}."
            tries.append((tuple(shape[axis] for axis in order), text))
        elif len(shape) == 3:
            text = (
                f"It looks like {found[1:]} for a model in {wanted}: "
                f"save array[None].transpose{order}."
            )
            tries.append((tuple(batched[axis] for axis in order), text))
    if shape and want[:1] == (1,):
        text = f"Save one sample per file; this one holds {shape[0]} along the first dimension."
        tries.append(((1, *shape[1:]), text))
    if shape and want and (want[0] or 0) > 1:
        text = (
            f"The model is built for batches of {want[0]}, and this one has {shape[0]}: fill it "
            "up, leave it out, or convert the model for a batch of 1."
        )
        tries.append(((want[0] or 0, *shape[1:]), text))
    for tried, text in tries:
        if fits(tried, want):
            return text
    if None not in want and math.prod(shape) == math.prod(size or 0 for size in want):
        return "The number of values is right: is a reshape or a transpose missing?"
    return "Prepare the samples exactly as the model's input expects them."


def convert(array: Array, want: Want, where: str) -> Array:
    """Return the array in the wanted dtype, if every value stays what it is.

    Integers become floats up to the size (2^24 for float32) below which all are representable.

    Raises:
        DataError: Some value would change; the first is named.
    """
    target = np.dtype(want.dtype)
    if array.dtype.newbyteorder("=") == target:
        return array.astype(target, copy=False)
    with np.errstate(all="ignore"):
        converted = array.astype(target)
        kept = np.asarray(_kept(array, converted))
    if kept.all():
        return converted
    first = int(kept.argmin())
    raise DataError(
        f"{want.what} is {target}, and {array.dtype.name} values in the file would change: "
        f"{array.reshape(-1)[first]} at {_position(first, array.shape)}",
        where=where,
        hint=f"Save what the model is to receive: array.astype(numpy.{target}).",
    )


def _kept(array: Array, converted: Array) -> Any:
    """Tell, value by value, whether a conversion changed nothing. NaN stays NaN."""
    source, target = array.dtype, converted.dtype
    if target.kind == "b":
        return (array == 0) | (array == 1)
    if source.kind == "b":
        return np.True_
    if source.kind == "f" and target.kind == "f":
        return (converted == array) | np.isnan(array)
    if source.kind == "f":
        # Both bounds are powers of two or zero, and so exact in float64 (and wider).
        wide = array.astype(np.promote_types(source, np.float64))
        limits = np.iinfo(target)
        inside = (wide >= float(limits.min)) & (wide < float(limits.max + 1))
        return inside & (wide == np.trunc(wide))
    if target.kind == "f":
        low = high = 1 << (np.finfo(target).nmant + 1)
        low = -low
    else:
        low, high = np.iinfo(target).min, np.iinfo(target).max
    limits = np.iinfo(source)
    # Bounds outside the source's own range cannot be compared with its values, nor need be.
    return (array >= max(low, limits.min)) & (array <= min(high, limits.max))


def _position(flat_index: int, shape: tuple[int, ...]) -> str:
    return str([int(index) for index in np.unravel_index(flat_index, shape)])
