"""What a long run has finished, on disk, so that it can be resumed.

A journal is a text file of JSON lines. The first line holds the key: a digest of everything the
numbers depend on. Every other line is one finished evaluation. Lines are only ever appended, and
a last line that was cut short is ignored.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from hbdebug.analysis.scores import Scored
from hbdebug.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

_FLUSH_EVERY = 64


class Journal:
    """Appends finished evaluations to a file and reads them back.

    Args:
        path: The file; its folder must exist.
        settings: Everything that the numbers depend on, JSON-ready.
        resume: Whether to keep what a journal with the same settings holds; otherwise it is
            started anew.

    Raises:
        UsageError: The file can not be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        self.path = path
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        self.found: dict[tuple[int, int], Scored] = {}
        self._existed = path.is_file()
        lines = path.read_text("utf-8", "replace").split("\n") if resume and self._existed else [""]
        self._fits = _key_of(lines[0]) == key
        if self._fits:
            self.found = dict(_entries(lines[1:]))
        try:
            self._file = path.open("a" if self._fits else "w", encoding="utf-8")
            # A line that was cut short must not swallow the next one.
            self._file.write("\n" if self._fits else json.dumps({"key": key}) + "\n")
            self._file.flush()
        except OSError as error:
            raise UsageError(
                f"cannot be written: {error.strerror}",
                where=str(path),
                hint="Choose another folder with -o.",
            ) from error
        self._unflushed = 0

    def resumption(self) -> str:
        """Say in a line what was found to go on from."""
        if self._fits:
            return f"resuming: {len(self.found)} evaluations found in {self.path}"
        if self._existed:
            return (
                f"starting anew: {self.path} was measured with another model, data, options or "
                "version"
            )
        return f"starting anew: there is no {self.path}"

    def add(self, sample: int, assignment: int, scored: Scored) -> None:
        """Append one finished evaluation."""
        self._file.write(_line(sample, assignment, scored))
        self._unflushed += 1
        if self._unflushed >= _FLUSH_EVERY:
            self._file.flush()
            self._unflushed = 0

    def __enter__(self) -> Self:
        """Return the journal itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file, and keep it."""
        self._file.close()


def _key_of(line: str) -> str:
    try:
        return str(json.loads(line)["key"])
    except (ValueError, KeyError, TypeError):
        return ""


def _line(sample: int, assignment: int, scored: Scored) -> str:
    values = [[_to_json(value) for value in output] for output in scored.values]
    return json.dumps([sample, assignment, values, scored.exact, scored.flags]) + "\n"


def _entries(lines: list[str]) -> Iterator[tuple[tuple[int, int], Scored]]:
    for line in lines:
        try:
            sample, assignment, values, exact, flags = json.loads(line)
        except ValueError:
            continue
        scored = Scored(
            values=tuple(tuple(_from_json(value) for value in output) for output in values),
            exact=exact,
            flags=tuple(flags),
        )
        yield (sample, assignment), scored


def _to_json(value: float) -> float | str:
    return value if math.isfinite(value) else repr(value)


def _from_json(value: float | str) -> float:
    return float(value)
