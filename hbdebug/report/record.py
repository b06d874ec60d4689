"""The JSON record: to text, to a file that is whole or absent, and back."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from hbdebug.errors import DataError, UsageError
from hbdebug.results import SensitivityResult


class Recorded(Protocol):
    """A result that has a JSON form."""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready dictionaries, lists, strings and finite numbers."""


def dumps_result(result: Recorded) -> str:
    """Return the JSON text of a result, indented, with a final newline.

    Names keep their own script. Only when one holds bytes that are no text (a path that is not
    UTF-8) is everything outside ASCII escaped, because such a name has no UTF-8 form.

    Raises:
        ValueError: A number is not finite, which `to_json` rules out.
    """
    record = result.to_json()
    text = json.dumps(record, allow_nan=False, ensure_ascii=False, indent=2)
    if any("\ud800" <= char <= "\udfff" for char in text):
        text = json.dumps(record, allow_nan=False, ensure_ascii=True, indent=2)
    return f"{text}\n"


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write a UTF-8 file; line ends are written as they are. See `write_bytes_atomic`."""
    write_bytes_atomic(path, text.encode("utf-8"))


def refuse_overwriting(source: str | os.PathLike[str], output: str | os.PathLike[str]) -> None:
    """Refuse to write to the file that was read, by whatever name it goes.

    Raises:
        UsageError: They are one file.
    """
    read, written = Path(source), Path(output)
    same = read.resolve() == written.resolve()
    if same or (read.exists() and written.exists() and read.samefile(written)):
        raise UsageError(
            "the model would be overwritten", where=str(output), hint="Choose another -o."
        )


def write_bytes_atomic(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new.

    The content goes to a temporary file in the same directory, is flushed to the disk, and takes
    the place of ``path`` in one step. A symbolic link is written through, not replaced.

    Args:
        path: File to write; directories above it are created.
        content: All of it.

    Raises:
        UsageError: The file cannot be written there.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, content)
    except OSError as error:
        raise UsageError(
            f"cannot write the file: {error.strerror or error}",
            where=os.fspath(path),
            hint="Choose a directory that you may write to and that has room, with -o DIR.",
        ) from error


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".hbdebug-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        # Exclusive creation with the usual mode: the process's umask applies, as it would to a
        # file that is opened the plain way, and nobody's file is overwritten.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        # Ctrl-C included: nothing may be left behind.
        with suppress(OSError):
            temporary.unlink()
        raise


def read_result(path: str | os.PathLike[str]) -> SensitivityResult:
    """Read a ``sensitivity.json`` back.

    Args:
        path: The file.

    Raises:
        DataError: There is no such file, it is no JSON, it was not written by hbdebug or by a
            newer one, or a field is malformed.
    """
    where = os.fspath(path)
    hint = "Give the sensitivity.json that `hbdebug sensitivity` wrote."
    try:
        record = json.loads(Path(path).read_bytes())
    except IsADirectoryError as error:
        raise DataError("this is a directory, not a result", where=where, hint=hint) from error
    except OSError as error:
        raise DataError(
            f"cannot read the result: {error.strerror or error}", where=where, hint=hint
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"not a JSON file: {error.msg} at line {error.lineno}, column {error.colno}",
            where=where,
            hint=hint,
        ) from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise DataError("not a JSON file", where=where, hint=hint) from error
    try:
        return SensitivityResult.from_json(record)
    except DataError as error:
        error.where = where
        raise
