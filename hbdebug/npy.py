"""One array out of a ``.npy`` or ``.npz`` file, exactly as a model wants it, or a clear refusal.

Headers are judged before data are read, so that a wrong or damaged file costs no memory. Pickled
objects are never loaded: unpickling runs code.
"""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.lib import format as npy_format

from hbdebug.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import IO

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

# Elements looked at in one go when values that are not finite are searched for.
_BLOCK = 1 << 16

# Bytes of an archive's member that are passed over at a time.
_PIECE = 1 << 20

_MAGIC_FAILS = "magic string"

_HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Want:
    """What an array must be.

    Attributes:
        what: What it is for, in words for the user, such as ``input 'x'``.
        dtype: NumPy name of a float, integer or bool type.
        shape: One entry per dimension; None where any size will do.
        stacks: Whether the first dimension counts samples, so that a longer array holds several.
    """

    what: str
    dtype: str
    shape: tuple[int | None, ...]
    stacks: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What a file says of an array without its data.

    Attributes:
        shape: Its shape.
        dtype: NumPy name of its type.
    """

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Stacking:
    """How samples lie in a stored array.

    Attributes:
        count: Number of samples.
        each: Entries of the first axis that make one; 0 where the array is the one sample.
        adds_axis: Whether a sample lacks the model's first axis, which has length 1.
        left_over: Entries of the first axis behind the last whole sample.
    """

    count: int
    each: int = 0
    adds_axis: bool = False
    left_over: int = 0


def stacking(shape: Sequence[int], want: Want) -> Stacking | None:
    """Tell how samples lie in an array of some shape; None where it fits in no way.

    An array is one sample if its shape is the wanted one. Otherwise it holds several along its
    first axis, in front of the sample's own axes or as the model's batch, or one without the
    batch's axis.
    """
    rest, first = want.shape[1:], want.shape[:1]
    if want.stacks and len(shape) == len(want.shape) and shape[0] and _fits(shape[1:], rest):
        each = first[0] or 1
        if shape[0] >= each:
            count, left_over = divmod(shape[0], each)
            return Stacking(count=count, each=each, left_over=left_over)
    if _fits(shape, want.shape):
        return Stacking(count=1)
    if first in {(1,), (None,)} and want.stacks and _fits(shape, rest):
        return Stacking(count=1, adds_axis=True)
    if len(shape) == len(want.shape) + 1 and shape[0] and _fits(shape[1:], want.shape):
        return Stacking(count=shape[0], each=1, adds_axis=False)
    return None


def describe(dtype: object, shape: Sequence[int | None]) -> str:
    """Return ``float32[1,3,?]``; the question mark stands for any size."""
    return f"{dtype}[{','.join('?' if size is None else str(size) for size in shape)}]"


def npy_header(file: Path) -> Header:
    """Read what a ``.npy`` file says of its array.

    Raises:
        DataError: The file is unreadable.
    """
    try:
        with file.open("rb") as stream:
            return _header_of(stream, str(file))[0]
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(file)) from error


def npz_headers(file: Path) -> dict[str, Header]:
    """Read what a ``.npz`` file says of its arrays, by key.

    Raises:
        DataError: The file, or the head of an array in it, is unreadable.
    """
    found = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                key = name.removesuffix(".npy")
                with archive.open(name) as stream:
                    found[key] = _header_of(stream, f"{file}, '{key}'")[0]
    except DataError:
        raise
    except Exception as error:  # a damaged archive makes zipfile raise almost anything
        raise _not_an_archive(file, error) from error
    return found


def read_npy(file: Path, want: Want, index: int = 0) -> Array:
    """Read one sample out of a ``.npy`` file; of several, no more than that one.

    Args:
        file: The file.
        want: What the sample must be.
        index: Which sample, where the array holds several, see `stacking`.

    Returns:
        New C-contiguous array of the wanted dtype and shape.

    Raises:
        DataError: The file is unreadable, or of another shape, or of a dtype whose values do
            not all survive the conversion.
    """
    try:
        with file.open("rb") as stream:
            return _read(stream, file.stat().st_size, want, str(file), index)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", where=str(file)) from error


def npz_keys(file: Path) -> list[str]:
    """Return the names of the arrays in a ``.npz`` file.

    Raises:
        DataError: The file is unreadable.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except Exception as error:  # a damaged archive makes zipfile raise almost anything
        raise _not_an_archive(file, error) from error


def read_npz(file: Path, wants: Mapping[str, Want], index: int = 0) -> dict[str, Array]:
    """Read the arrays of one sample out of a ``.npz`` file.

    Args:
        file: An archive that holds them.
        wants: By key, as `npz_keys` returns it.
        index: Which sample, where the arrays hold several, see `stacking`.

    Returns:
        Key -> array, as `read_npy` returns it.

    Raises:
        DataError: As `read_npy` does.
    """
    arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            for key, want in wants.items():
                info = archive.getinfo(members[key])
                with archive.open(info) as stream:
                    arrays[key] = _read(stream, info.file_size, want, f"{file}, '{key}'", index)
    except DataError:
        raise
    except Exception as error:  # as above, and whatever decompression raises
        raise _not_an_archive(file, error) from error
    return arrays


def _not_an_archive(file: Path, error: Exception) -> DataError:
    return DataError(
        f"cannot be read as .npz: {error}",
        where=str(file),
        hint="The file is damaged, or was not made by numpy.savez: make it again.",
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


def _header_of(stream: IO[bytes], where: str) -> tuple[Header, bool, np.dtype[Any]]:
    """Read an array's head: shape and type, whether its order is Fortran's, and the full type."""
    try:
        version = npy_format.read_magic(stream)
        shape, fortran_order, dtype = _HEADERS[version](stream)
    except OSError:
        raise
    except Exception as error:  # a damaged header makes NumPy raise almost anything
        raise _not_an_array(where, error) from error
    return Header(shape=tuple(shape), dtype=dtype.name), fortran_order, dtype


def _read(stream: IO[bytes], size: int, want: Want, where: str, index: int) -> Array:
    """Read one sample from a stream of ``size`` bytes."""
    header, fortran_order, dtype = _header_of(stream, where)
    shape = header.shape
    _require_numbers(dtype, want, where)
    stack = stacking(shape, want)
    if stack is None:
        raise _misfit(shape, dtype, want, where)
    expected = math.prod(shape) * dtype.itemsize
    present = size - stream.tell()
    if expected != present:
        raise DataError(
            f"the header promises {expected} bytes of data, and {present} follow",
            where=where,
            hint="The file was cut short, or something was appended to it: make it again.",
        )
    if not 0 <= index < stack.count:
        raise DataError(f"it holds {stack.count} samples, and no sample {index}", where=where)
    rows = slice(index * stack.each, (index + 1) * stack.each)
    apart = stack.count > 1 and not fortran_order
    if apart:
        row_bytes = expected // shape[0]
        _skip(stream, rows.start * row_bytes)
        data = bytearray(stack.each * row_bytes)
        shape = (stack.each, *shape[1:])
    else:
        data = bytearray(expected)
    stream.readinto(data)  # type: ignore[attr-defined]
    # The checksum of an archive's member is compared when its end is met.
    stream.read(1)
    try:
        array: Array = np.ndarray(shape, dtype, data, order="F" if fortran_order else "C")
    except (ValueError, OverflowError) as error:  # sizes below zero or beyond any memory
        raise _not_an_array(where, error) from error
    if stack.each and not apart:
        array = array[rows]
    return np.asarray(convert(as_sample(array, want, stack), want, where), order="C")


def _skip(stream: IO[bytes], count: int) -> None:
    """Go forward; in an archive by small pieces, of which zipfile itself would read large ones."""
    if not isinstance(stream, zipfile.ZipExtFile):
        stream.seek(count, 1)
        return
    while count > 0 and (piece := stream.read(min(count, _PIECE))):
        count -= len(piece)


def as_sample(array: Array, want: Want, stack: Stacking) -> Array:
    """Give the entries of one sample the model's axes."""
    if stack.adds_axis:
        return array[None]
    return array[0] if array.ndim > len(want.shape) else array


def _not_an_array(where: str, error: Exception) -> DataError:
    return DataError(
        f"cannot be read as .npy: {error}",
        where=where,
        hint=(
            "It does not begin as numpy.save begins a file: if it holds raw numbers, call it .bin; "
            "else make it again."
            if _MAGIC_FAILS in str(error)
            else "The file is damaged, or was not made by numpy.save: make it again."
        ),
    )


def _require_numbers(dtype: np.dtype[Any], want: Want, where: str) -> None:
    if dtype.kind not in "fiub":
        what = "pickled Python objects" if dtype.hasobject else f"values of type {dtype}"
        raise DataError(
            f"{want.what} is {want.dtype}, and the file holds {what}",
            where=where,
            hint=f"Save one plain array of numbers, numpy.asarray(x, numpy.{want.dtype}).",
        )


def _misfit(shape: tuple[int, ...], dtype: np.dtype[Any], want: Want, where: str) -> DataError:
    return DataError(
        f"the model wants {describe(want.dtype, want.shape)} for {want.what}, "
        f"the file has {describe(dtype.name, shape)}",
        where=where,
        hint=shape_hint(shape, want.shape),
    )


def _fits(shape: Sequence[int], want: Sequence[int | None]) -> bool:
    return len(shape) == len(want) and all(
        wanted in {None, size} for size, wanted in zip(shape, want, strict=True)
    )


def shape_hint(shape: tuple[int, ...], want: tuple[int | None, ...]) -> str:
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
    for tried, text in tries:
        if _fits(tried, want):
            return text
    if None not in want and math.prod(shape) == math.prod(size or 0 for size in want):
        return "The number of values is right: is a reshape or a transpose missing?"
    return "Prepare the samples exactly as the model's input expects them."


def convert(array: Array, want: Want, where: str) -> Array:
    """Return the array in the wanted dtype, if every value stays what it is.

    Integers become floats up to the size (2^24 for float32) below which all are representable.
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
