"""``python -m hbdebug``."""

from __future__ import annotations

from hbdebug.cli import main

main()
