"""Whole outputs as text, and compared with text files.

``HBDEBUG_UPDATE_SNAPSHOTS=1 pytest tests/report`` writes the files anew; review the difference
like code before it is committed. Blanks at line ends are left out of both sides.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from hbdebug.report.terminal import make_console

SNAPSHOTS = Path(__file__).parent / "snapshots"


def matches_snapshot(name, text):
    """Assert that a text is the one on file."""
    path = SNAPSHOTS / name
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    if os.environ.get("HBDEBUG_UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def text_of(render, *, width=None):
    """What ``render(console)`` prints to a pipe, or with a width, on a plain terminal."""
    from rich.console import Console

    stream = io.StringIO()
    console = make_console(stream)
    if width:
        console = Console(
            file=stream, width=width, height=50, force_terminal=True, color_system=None
        )
    render(console)
    return stream.getvalue()


def width_of(text):
    """Terminal columns that the longest line takes."""
    from rich.cells import cell_len

    return max(cell_len(line) for line in text.split("\n"))
