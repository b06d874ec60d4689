"""Progress of a long run on a terminal: a bar with the time left, on stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hbdebug.observer import Observer

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class ProgressObserver(Observer):
    """Shows on the terminal what a run tells; use it as a context manager."""

    def __init__(self) -> None:
        self._console = Console(file=sys.stderr, highlight=False, markup=False)
        self._bar = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        """Start the bar."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar."""
        self._bar.stop()

    def estimate(self, text: str) -> None:
        """Print what the run will cost."""
        self._console.print(text)

    def note(self, text: str) -> None:
        """Print something the user should know now."""
        self._console.print(text)

    def phase(self, name: str, total: float) -> None:
        """Start a new bar."""
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(name, total=total)

    def advance(self, amount: float) -> None:
        """Move the bar."""
        if self._task is not None:
            self._bar.advance(self._task, amount)
