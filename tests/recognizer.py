"""Where the text recognizer is: rebuilt once from a public package, then kept in a cache."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent.parent / "fixtures"

_SCRIPT = FIXTURES / "make_recognizer.py"
_MODEL = "rec_calibrated_model.onnx"
_NOT_FETCHED = 75


def recognizer_folder() -> Path:
    """Return the folder with ``rec_calibrated_model.onnx`` and ``calib/x/*.npy``.

    It is the folder that the environment variable HBDEBUG_RECOGNIZER names, else one in the
    user's cache, made on first use. A test that needs it is skipped where the package that holds
    the weights cannot be fetched, and fails when anything else is wrong. Only for slow tests.
    """
    folder, why_not = _find_or_build()
    if why_not:
        pytest.skip(f"the recognizer's weights are not here: {why_not}")
    return folder


# Cached with its reason, so that a test run without a network waits for it once only.
@functools.cache
def _find_or_build() -> tuple[Path, str]:
    named = os.environ.get("HBDEBUG_RECOGNIZER")
    if named:
        folder = Path(named)
        if not _is_whole(folder):
            pytest.fail(f"HBDEBUG_RECOGNIZER={named} holds no {_MODEL} as {_SCRIPT.name} makes it")
        return folder, ""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hbdebug"
    folder = cache / f"textline_rec-{_recipe_key()}"
    return folder, "" if _is_whole(folder) else _build(folder)


def _recipe_key() -> str:
    """Return a name for what is built, so that a new recipe is not mistaken for the old."""
    return hashlib.sha256((FIXTURES / "textline_rec" / "recipe.json").read_bytes()).hexdigest()[:12]


def _is_whole(folder: Path) -> bool:
    recipe = json.loads((FIXTURES / "textline_rec" / "recipe.json").read_text(encoding="utf-8"))
    model, samples = folder / _MODEL, folder / "calib" / "x"
    return (
        model.is_file()
        and hashlib.sha256(model.read_bytes()).hexdigest() == recipe["model_sha256"]
        and all(
            (samples / f"{index}.npy").is_file() for index in range(len(recipe["samples_sha256"]))
        )
    )


def _build(folder: Path) -> str:
    """Make the folder, and return why the weights could not be fetched; empty when they were."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        done = subprocess.run(
            [sys.executable, str(_SCRIPT), "-o", temporary],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == _NOT_FETCHED:
            return done.stderr.strip()
        if done.returncode:
            pytest.fail(f"{_SCRIPT.name} failed: {done.stderr.strip()}")
        try:
            (Path(temporary) / "textline_rec").rename(folder)
        except OSError:
            # Another process of the same test run was faster, and a damaged folder is not ours
            # to remove: its owner deletes it.
            if not _is_whole(folder):
                pytest.fail(f"{folder} is incomplete; delete it and run the tests again")
    return ""
