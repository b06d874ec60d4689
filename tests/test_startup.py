"""What starting hbdebug imports; modules are counted, because a clock would measure the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hbdebug

HEAVY = {"matplotlib", "numpy", "onnx", "onnxruntime", "scipy"}

RUN_AND_LIST = """
import contextlib, io, json, sys
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    {statement}
print(json.dumps(sorted(sys.modules)))
"""

HELP = "sys.argv = ['hbdebug', {arguments}]; from hbdebug.cli import main; main()"


def modules_after(statement):
    """Return the top-level modules and the hbdebug modules that a fresh process has imported."""
    root = str(Path(hbdebug.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", RUN_AND_LIST.format(statement=statement)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    names = json.loads(done.stdout)
    return {name.split(".")[0] for name in names}, {n for n in names if n.startswith("hbdebug.")}


def test_importing_the_package_imports_no_other_module_of_it():
    modules, own = modules_after("import hbdebug")

    assert own == set()
    assert not modules & (HEAVY | {"rich", "typer"})


@pytest.mark.parametrize(
    "arguments",
    [
        "'--help'",
        "'--version'",
        "'sensitivity', '--help'",
        "'info', '--help'",
        "'report', '--help'",
    ],
)
def test_help_imports_nothing_heavy(arguments):
    modules, own = modules_after(HELP.format(arguments=arguments))

    assert not modules & HEAVY
    assert own == {"hbdebug.cli", "hbdebug.errors"}


def test_help_does_not_import_rich_unless_typer_does():
    # Older versions of typer import rich as soon as they are imported; nothing helps there.
    by_typer, _ = modules_after("import typer")

    modules, _ = modules_after(HELP.format(arguments="'--help'"))

    assert ("rich" in modules) == ("rich" in by_typer)


def test_showing_a_saved_result_imports_no_runtime():
    statement = (
        "import hbdebug.report.record, hbdebug.report.terminal, hbdebug.report.listing,"
        " hbdebug.report.suggestion"
    )

    modules, _ = modules_after(statement)

    assert not modules & {"matplotlib", "onnx", "onnxruntime", "scipy"}
