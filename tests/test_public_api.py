"""The public names of `hbdebug`: which they are, and that each is found where it is promised."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import hbdebug

PUBLIC = {
    "METRICS",
    "Assignment",
    "DataError",
    "Engine",
    "HbdebugError",
    "ModelError",
    "Preparation",
    "QuantModel",
    "QuantParams",
    "Samples",
    "SensitivityResult",
    "UnsupportedError",
    "UsageError",
    "info",
    "load",
    "open_samples",
    "quantize",
    "read_result",
    "sensitivity",
}


def test_the_public_names_are_these():
    assert set(hbdebug.__all__) == PUBLIC, "a changed public name belongs into CHANGELOG.md too"
    assert len(hbdebug.__all__) == len(PUBLIC)


def test_every_public_name_has_a_home_and_nothing_else_has():
    assert hbdebug._HOME.keys() == PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_public_name_resolves_to_what_its_home_holds(name):
    home = importlib.import_module(f"hbdebug.{hbdebug._HOME[name]}")

    assert getattr(hbdebug, name) is getattr(home, name)


@pytest.mark.parametrize("name", sorted(PUBLIC - {"METRICS"}))
def test_a_public_name_is_defined_at_home_and_documented(name):
    value = getattr(hbdebug, name)

    assert value.__module__.startswith(f"hbdebug.{hbdebug._HOME[name]}")
    assert inspect.getdoc(value)


def test_type_checkers_see_the_same_names_at_the_same_places():
    tree = ast.parse(Path(hbdebug.__file__).read_text("utf-8"))
    seen = {
        alias.name: node.module.removeprefix("hbdebug.")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith("hbdebug.")
        for alias in node.names
    }

    assert seen == hbdebug._HOME


def test_completion_lists_every_public_name():
    assert set(dir(hbdebug)) >= PUBLIC | {"__version__"}


def test_a_misspelled_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'sensitivty'"):
        _ = hbdebug.sensitivty


def test_a_star_import_gives_the_public_names():
    found: dict[str, object] = {}

    exec("from hbdebug import *", found)

    assert found.keys() - {"__builtins__"} == PUBLIC
