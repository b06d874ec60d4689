"""Runs the real command line inside the test process."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from unittest import mock

from hbdebug.cli import main


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self):
        return json.loads(self.out)


def hbdebug(*arguments: object) -> Done:
    """Run ``hbdebug ARGUMENTS`` and return its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    words = ["hbdebug", *(str(argument) for argument in arguments)]
    with (
        mock.patch.object(sys, "argv", words),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code=code, out=out.getvalue(), err=err.getvalue())
