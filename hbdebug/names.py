"""Suggestions for names that were misspelled."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def close_matches(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean a, b?`` for names that resemble or contain ``name``; else empty."""
    names = list(dict.fromkeys(known))
    lowered = name.strip("*?").lower()
    containing = [item for item in names if lowered and lowered in item.lower()]
    found = list(dict.fromkeys([*get_close_matches(name, names, n=3, cutoff=0.6), *containing]))[:3]
    return f"Did you mean {', '.join(found)}?" if found else ""
