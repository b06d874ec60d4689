"""Imports point one way: a module imports only from ranks above its own.

Imports for type checkers (``if TYPE_CHECKING``) and inside functions count too. Modules of one
package (``loading/``, ``report/``, ``analysis/``, ``kernels/``) may import each other.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import hbdebug

SOURCE = Path(hbdebug.__file__).parent

RANKS = (
    {"errors", "keep", "names", "threads"},
    {"npy"},
    {"npz"},
    {"metrics", "observer", "quant", "results", "samples"},
    {"kernels", "model", "report"},
    {"loading", "lowering", "plan", "slices", "toolchain"},
    {"float_run", "integer_run", "walk"},
    {"trail"},
    {"costing", "integer_walk"},
    {"jump"},
    {"engine"},
    {"worker"},
    {"isolation"},
    {"analysis"},
    {"recommend", "recording"},
    {"conversion", "inference", "pipeline"},
    {"__init__", "cli"},
    {"__main__"},
)
RANK = {unit: rank for rank, units in enumerate(RANKS) for unit in units}

# Beyond the ranks: a report is made from records, whatever made them.
REPORT_SEES = {"errors", "metrics", "names", "observer", "results"}

# Where the heavy libraries may be imported when a module is; elsewhere only inside functions.
HEAVY_AT_IMPORT = {
    "PIL": set(),
    "matplotlib": set(),
    "onnx": {"loading", "slices"},
    "onnxruntime": {"engine", "slices"},
    "rich": {"report/progress", "report/terminal"},
    "ruamel": {"report/configs"},
    "scipy": set(),
    "threadpoolctl": set(),
    "typer": {"cli"},
}


def unit_of(path):
    """Return the module of rank-table size that a file belongs to, such as ``loading``."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def place_of(path):
    return path.relative_to(SOURCE).with_suffix("").as_posix()


def imported_units(tree):
    """Yield (line, unit) for each module of hbdebug that a syntax tree imports.

    The version, which lies in ``hbdebug/__init__.py``, is free for all.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            if node.module == "hbdebug":
                yield from ((node.lineno, alias.name) for alias in node.names)
            elif (node.module or "").startswith("hbdebug."):
                yield node.lineno, node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("hbdebug."):
                    yield node.lineno, alias.name.split(".")[1]
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "hbdebug":
            # After `import hbdebug`, every attribute is a lazy import.
            yield node.lineno, node.attr


def violations(unit, tree):
    """Return (line, what is wrong) for every import that points the wrong way."""
    found = []
    for line, name in imported_units(tree):
        target = hbdebug._HOME.get(name, name).split(".")[0]
        if name in {"__version__", unit} or target == unit:
            continue
        if target not in RANK:
            found.append((line, f"{unit} imports hbdebug.{name}, which has no rank"))
        elif RANK[target] >= RANK[unit]:
            found.append(
                (line, f"{unit} (rank {RANK[unit]}) imports {target} (rank {RANK[target]})")
            )
        elif unit == "report" and target not in REPORT_SEES:
            found.append((line, f"report imports {target}; it may see {sorted(REPORT_SEES)}"))
    return found


def heavy_imports(tree):
    """Yield (line, library) for imports that run when the module is imported."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            yield node.lineno, (node.module or "").split(".")[0]
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)


def sources():
    return sorted(SOURCE.rglob("*.py"))


def parsed(path):
    return ast.parse(path.read_text("utf-8"))


def test_every_module_has_a_rank():
    units = {unit_of(path) for path in sources()}

    assert units <= RANK.keys(), f"give a rank to {sorted(units - RANK.keys())}"


def test_imports_come_from_ranks_above():
    wrong = [
        f"{place_of(path)}.py:{line}: {what}"
        for path in sources()
        for line, what in violations(unit_of(path), parsed(path))
    ]

    assert not wrong, "\n".join(wrong)


def test_heavy_libraries_are_imported_only_where_they_must_be():
    wrong = [
        f"{place_of(path)}.py:{line}: imports {library} at module level"
        for path in sources()
        for line, library in heavy_imports(parsed(path))
        if library in HEAVY_AT_IMPORT
        and not {unit_of(path), place_of(path)} & HEAVY_AT_IMPORT[library]
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("unit", "code", "wrong"),
    [
        ("quant", "from hbdebug.errors import DataError", False),
        ("quant", "from hbdebug.metrics import METRICS", True),
        ("quant", "from hbdebug import cli", True),
        ("quant", "import hbdebug.engine", True),
        ("quant", "def f():\n    from hbdebug.engine import Engine", True),
        ("engine", "if TYPE_CHECKING:\n    from hbdebug.analysis.scores import Scorer", True),
        ("analysis", "from hbdebug.analysis.scores import Scorer", False),
        ("analysis", "import hbdebug\nprint(hbdebug.__version__)", False),
        ("analysis", "import hbdebug\nhbdebug.sensitivity('a', 'b')", True),
        ("analysis", "from hbdebug import __version__", False),
        ("report", "from hbdebug.quant import QuantParams", True),
        ("engine", "from hbdebug.nowhere import x", True),
    ],
)
def test_the_check_itself_tells_right_from_wrong(unit, code, wrong):
    assert bool(violations(unit, ast.parse(code))) == wrong
