"""How long a run will take, said again when it turns out otherwise."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_OFF = 1.5  # times too long or too short, from which on an estimate is corrected
_SETTLED = 0.05  # share of the work after which the time so far says something
_SHORTEST = 5.0  # seconds; before that nobody looks at the clock


class Pace:
    """Compares the time that passes with what was said.

    Args:
        told: Seconds that the user was told.
        planned: Sum of the costs of what is left to do.
        clock: Seconds from any start.
    """

    def __init__(
        self, told: float, planned: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._told = told
        self._planned = planned
        self._clock = clock
        self._started = clock()
        self._done = 0.0
        self._look = _SETTLED

    def advance(self, cost: float) -> str:
        """Count something as done.

        Returns:
            A better estimate, in words, when the last one is far off; empty otherwise.
        """
        self._done += cost
        share = self._done / self._planned if self._planned > 0 else 1.0
        if share < self._look or share >= 1:
            return ""
        elapsed = self._clock() - self._started
        if elapsed < _SHORTEST:
            return ""
        self._look = 2 * share
        total = elapsed / share
        if 1 / _OFF < total / max(self._told, 1e-9) < _OFF:
            return ""
        self._told = total
        return f"about {duration(total - elapsed)} left, as it turns out"


def duration(seconds: float) -> str:
    """Return a duration in words, such as ``12 s``, ``3 min`` or ``1.5 h``."""
    if seconds < 1:
        return "1 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
