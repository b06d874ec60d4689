"""What `pip install` brings: the wheel's files, its metadata, and that it runs by itself."""

from __future__ import annotations

import ast
import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import hbdebug

ROOT = Path(__file__).parents[1]

# What a dependency is called when it is imported, where that differs.
IMPORT_NAMES = {"pillow": "PIL", "ruamel-yaml": "ruamel"}

# Extras that users install; the others are for work on hbdebug itself.
USERS_EXTRAS = {"images"}


def run(*command, cwd, **environment):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(target, folder):
    """Call the build backend as pip does, but for its fetching it from the network first."""
    configuration = (ROOT / "pyproject.toml").read_text("utf-8")
    (backend,) = re.findall(r'^build-backend = "(.+)"$', configuration, re.MULTILINE)
    hook = f"import sys, {backend} as backend; backend.build_{target}(sys.argv[1])"
    run("-c", hook, folder, cwd=ROOT)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as file:
        yield file


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_string(wheel.read(name).decode())


@pytest.fixture(scope="module")
def dependencies(metadata):
    """Return what an installation may need: name -> lower bound."""
    found = {}
    for requirement in metadata.get_all("Requires-Dist"):
        needed, _, marker = requirement.partition(";")
        extra = "".join(re.findall(r"extra == '(.+)'", marker))
        if not extra or extra in USERS_EXTRAS:
            name, bound = re.fullmatch(r"([\w.-]+)>=([\d.]+)", needed.strip()).groups()
            found[normalized(name)] = bound
    return found


def normalized(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_wheel_holds_the_package_whole_and_nothing_else(wheel):
    # What Python itself leaves beside the sources is no part of them.
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "hbdebug").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert packed == sources
    assert "hbdebug/py.typed" in packed


def test_the_wheel_brings_the_license_and_the_command(wheel):
    names = wheel.namelist()
    (entry_points,) = [name for name in names if name.endswith("entry_points.txt")]

    assert any(name.endswith("/LICENSE") for name in names)
    assert "hbdebug = hbdebug.cli:main" in wheel.read(entry_points).decode()


def test_the_version_is_the_same_everywhere(metadata):
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## \[(\d\S*)\]", changelog, re.MULTILINE)

    assert metadata["Version"] == hbdebug.__version__
    assert released[0] == hbdebug.__version__


def test_the_metadata_say_what_a_user_must_know(metadata):
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"


def test_every_library_that_is_imported_is_declared_and_the_other_way_round(dependencies):
    declared = {IMPORT_NAMES.get(name, name) for name in dependencies}
    imported = set()
    for path in (ROOT / "hbdebug").rglob("*.py"):
        imported |= set(imports_at_run_time(ast.parse(path.read_text("utf-8"))))

    assert imported - sys.stdlib_module_names - {"hbdebug"} == declared


def imports_at_run_time(node):
    """Yield the top-level modules that code imports, those for type checkers left out."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.ImportFrom):
        yield node.module.split(".")[0]
    elif isinstance(node, ast.Import):
        yield from (alias.name.split(".")[0] for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from imports_at_run_time(child)


def test_the_lowest_versions_are_tested(dependencies):
    lines = (ROOT / "tests" / "lowest.txt").read_text("utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    pins = {normalized(name): version for name, version in pairs}

    for name, bound in dependencies.items():
        assert f"{pins[name]}.".startswith(f"{bound}."), f"{name}: {pins[name]} is not {bound}"


def test_the_installed_wheel_runs_far_from_its_sources(wheel, tmp_path):
    # A pure wheel is installed by unpacking it.
    wheel.extractall(tmp_path / "site")
    example = ROOT / "fixtures" / "textline_cls" / "cls_calibrated_model.onnx"
    environment = {"PYTHONPATH": str(tmp_path / "site")}

    version = run("-m", "hbdebug", "--version", cwd=tmp_path, **environment)
    where = run("-c", "import hbdebug; print(hbdebug.__file__)", cwd=tmp_path, **environment)
    info = run("-m", "hbdebug", "info", example, cwd=tmp_path, **environment)

    assert version.strip() == f"hbdebug {hbdebug.__version__}"
    assert where.startswith(str(tmp_path))
    assert "112 nodes analysed" in info


def test_the_source_archive_can_be_built_and_tested(tmp_path):
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    for needed in ("LICENSE", "Makefile", "README.md", "docs/numerics.md", "hbdebug/py.typed"):
        assert needed in names
    assert "fixtures/textline_cls/cls_calibrated_model.onnx" in names
    assert "tests/test_packaging.py" in names
    tops = {name.split("/")[0] for name in names}
    assert not tops & {".hypothesis", ".mypy_cache", ".venv", "build", "dist", "hbdebug-out"}
