"""Arrays in ``.npz`` files: what they are, and all of them or one row after the other."""

from __future__ import annotations

import math
import os
import threading
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hbdebug.errors import DataError
from hbdebug.npy import filled, read_header

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]

# Bytes passed over in one go on the way to a row.
_STEP = 1 << 16

# Deflate makes nothing shorter than this part of it; a member that claims more is damaged.
_DEFLATED_AT_MOST = 1032


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemberArray:
    """An array in a ``.npz`` file.

    Rows are read as they come: the stream stays open between two rows that follow each other,
    so that a pass over all of them unpacks the member once and holds one row at a time.

    Attributes:
        file: The archive.
        key: The array's name in it.
        shape: Its shape.
        dtype: Its type.
        fortran: Whether the first index runs fastest.
        offset: Where in the member it begins, bytes.
    """

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    offset: int
    _cursor: _Cursor = field(repr=False)

    @property
    def where(self) -> str:
        """Where the array is, for messages."""
        return f"{self.file}, '{self.key}'"

    def read(self, row: int | None = None) -> Array:
        """Read the array, or one row of it, as `StoredArray.read` does.

        Raises:
            DataError: The archive cannot be read, or rows of a Fortran-ordered array are asked
                for, which do not follow each other.
        """
        if row is None:
            with self._cursor.at(self.offset) as stream:
                return filled(stream, self.shape, self.dtype, self.where, fortran=self.fortran)
        if self.fortran and len(self.shape) > 1:
            raise DataError(
                "the array is in Fortran order, in which its samples cannot be read one by one",
                where=self.where,
                hint="Save numpy.ascontiguousarray(array).",
            )
        shape = self.shape[1:]
        size = math.prod(shape) * self.dtype.itemsize
        with self._cursor.at(self.offset + row * size) as stream:
            array = filled(stream, shape, self.dtype, self.where)
            if row == self.shape[0] - 1:
                self._cursor.finish()
            return array


class _Cursor:
    """The open stream of an archive's member, at the place where the last reading ended."""

    def __init__(self, file: Path, member: str) -> None:
        self._file, self._member = file, member
        self._archive: zipfile.ZipFile | None = None
        self._stream: IO[bytes] | None = None
        self._process = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[_Cursor], tuple[Path, str]]:
        """Go to another process closed."""
        return _Cursor, (self._file, self._member)

    def at(self, position: int) -> _Cursor:
        """Go to a place, counted in bytes of the unpacked member, and keep others from it."""
        self._lock.acquire()
        try:
            self._go(position)
        except BaseException as error:
            self.close()
            self._lock.release()
            if isinstance(error, Exception):  # damaged archives make zipfile raise almost any
                raise _not_an_archive(self._file, error) from error
            raise
        return self

    def _go(self, position: int) -> None:
        # A process that was forked shares its parent's place in the file.
        forked = self._process != os.getpid()
        if self._stream is None or forked or self._stream.tell() > position:
            self.close()
            self._process = os.getpid()
            self._archive = zipfile.ZipFile(self._file)
            self._stream = self._archive.open(self._member)
        while self._stream.tell() < position:
            if not self._stream.read(min(_STEP, position - self._stream.tell())):
                break

    def __enter__(self) -> IO[bytes]:
        """Return the stream."""
        assert self._stream is not None
        return self._stream

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Let others read on; after an error, from a new stream."""
        if error is not None:
            self.close()
        self._lock.release()
        if isinstance(error, Exception) and not isinstance(error, DataError):
            raise _not_an_archive(self._file, error) from error

    def finish(self) -> None:
        """Meet the end of the member, where its checksum is compared, and close."""
        assert self._stream is not None
        self._stream.read(1)
        self.close()

    def close(self) -> None:
        """Close the archive, if it is open."""
        stream, archive = self._stream, self._archive
        self._stream = self._archive = None
        if stream is not None:
            stream.close()
        if archive is not None:
            archive.close()

    def __del__(self) -> None:
        """Leave no file open."""
        self.close()


def open_npz(file: Path, key: str) -> MemberArray:
    """Read the header of an array in a ``.npz`` file.

    Args:
        file: An archive that holds it.
        key: As `npz_keys` returns it.

    Raises:
        DataError: The archive is unreadable or damaged, or the array holds no numbers.
    """
    where = f"{file}, '{key}'"
    try:
        with zipfile.ZipFile(file) as archive:
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            info = archive.getinfo(members[key])
            _require_plausible(info, file)
            with archive.open(info) as stream:
                shape, fortran, dtype, offset = read_header(stream, info.file_size, where)
    except DataError:
        raise
    except Exception as error:  # as below, and whatever decompression raises
        raise _not_an_archive(file, error) from error
    cursor = _Cursor(file, members[key])
    return MemberArray(
        file=file,
        key=key,
        shape=shape,
        dtype=dtype,
        fortran=fortran,
        offset=offset,
        _cursor=cursor,
    )


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


def _not_an_archive(file: Path, error: Exception) -> DataError:
    return DataError(
        f"cannot be read as .npz: {error}",
        where=str(file),
        hint="The file is damaged, or was not made by numpy.savez: make it again.",
    )


def _require_plausible(info: zipfile.ZipInfo, file: Path) -> None:
    """Refuse a member that would unpack to more than it can hold."""
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise _not_an_archive(file, ValueError("it is packed in a way NumPy never uses"))
    packed = min(info.compress_size, file.stat().st_size)
    if info.file_size > packed * _DEFLATED_AT_MOST:
        raise _not_an_archive(file, ValueError(f"{packed} bytes cannot unpack to {info.file_size}"))
