"""How an analysis tells the outside how far it is; the default listens to nothing."""

from __future__ import annotations

import sys


class Observer:
    """Receives what a long run has to say while it runs. Subclass and override."""

    def estimate(self, text: str) -> None:
        """Be told, before the long part starts, what it will cost."""

    def phase(self, name: str, total: float) -> None:
        """Be told that a part of the run starts.

        Args:
            name: In words.
            total: Sum of the amounts that `advance` will be told.
        """

    def advance(self, amount: float) -> None:
        """Be told that some of the current part is done."""

    def note(self, text: str) -> None:
        """Be told something the user should know now."""


class LineObserver(Observer):
    """Prints on stderr what the user should know, and no progress: for pipes and files."""

    def estimate(self, text: str) -> None:
        """Print what the run will cost."""
        sys.stderr.write(f"{text}\n")

    def note(self, text: str) -> None:
        """Print something the user should know now."""
        sys.stderr.write(f"{text}\n")
