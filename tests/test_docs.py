"""The documentation holds: links lead somewhere, options exist, marked blocks run.

A block that is to be run stands behind an HTML comment, which readers do not see::

    <!-- run -->                     run it; it must succeed
    <!-- run exit=1 -->              its last command must exit with 1
    <!-- run compare -->             each line of output that is shown must be printed, too
    <!-- run compare columns=100 --> likewise, on a terminal of 100 columns

Blocks of language ``console``, ``sh``, ``bash`` and ``python`` can be run. Those of one file run
in order in one new folder that holds the example model (``cls_calibrated_model.onnx``), its data
(``calib/``, and as pictures ``images/``) and a link to ``fixtures/``. When output is compared,
numbers and the width of gaps do not count, nor does the order of lines; a line ``...`` stands for
any others.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import typer
from PIL import Image

import hbdebug
from hbdebug.cli import app
from hbdebug.metrics import resolve_metric
from hbdebug.toolchain import check_march
from tests.markdown import anchors, blocks, commands, links, spans

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "fixtures" / "textline_cls"

REQUIRED = {
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "README.zh.md",
    "docs/debugging.md",
    "docs/numerics.md",
    "docs/results.md",
    "docs/words.md",
    "fixtures/README.md",
}

FILES = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in (".", "benchmarks", "docs", "fixtures")
    for path in (ROOT / folder).glob("*.md")
)

# These speak of the options of scripts.
SCRIPTS = re.compile("(benchmarks|fixtures)/")

# Far more than any block takes: only what hangs is stopped.
PATIENCE = 600


def read(name):
    return (ROOT / name).read_text("utf-8")


def test_the_documents_that_users_are_promised_exist():
    assert set(FILES) >= REQUIRED


def test_the_readme_shows_commands_that_are_run():
    assert [block for block in blocks(read("README.md")) if block.settings is not None]


@pytest.mark.parametrize("name", FILES)
def test_links_lead_somewhere(name):
    broken = [target for target in links(read(name)) if not leads_somewhere(name, target)]

    assert not broken


def leads_somewhere(name, target):
    if re.match(r"[a-z]+:", target):  # The world outside is not asked: tests work off line.
        return True
    path, _, anchor = unquote(target).partition("#")
    file = (ROOT / name).parent / path if path else ROOT / name
    if not file.exists() or not file.resolve().is_relative_to(ROOT):
        return False
    return not anchor or anchor in anchors(file.read_text("utf-8"))


def test_documents_that_the_code_refers_to_exist():
    named = {
        name
        for path in (ROOT / "hbdebug").rglob("*.py")
        for name in re.findall(r"docs/\w+\.md", path.read_text("utf-8"))
    }

    assert named <= set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_commands_in_blocks_are_accepted_by_the_command_line(name):
    wrong = []
    for block in blocks(read(name)):
        if "exit=2" in (block.settings or ()):  # Shows a mistake on purpose, and is run.
            continue
        for command, _ in commands(block):
            for words in hbdebug_calls(command):
                complaint = complaint_about(words)
                if complaint:
                    wrong.append(f"line {block.line}: {shlex.join(words)}: {complaint}")

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in FILES if not SCRIPTS.match(name)])
def test_options_named_in_the_text_exist(name):
    every = set().union(*(options_of(command) for command in subcommands().values()))
    wrong = []
    for span in spans(read(name)):
        words = span.split()
        if words[0] == "hbdebug" and len(words) > 1:
            known = options_of(subcommands().get(words[1], group()))
            exists = words[1].startswith("-") or words[1] in subcommands()
        elif words[0].startswith("--"):
            known, exists = every, True
        else:
            continue
        if not exists or any(option not in known for option in options_in(words)):
            wrong.append(span)

    assert not wrong


def hbdebug_calls(command):
    """Yield the words of each ``hbdebug`` call in a shell command, without the name."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("();<>|&"):
            if words[:1] == ["hbdebug"]:
                yield words[1:]
            words = []
        else:
            words.append(word)


def group():
    return typer.main.get_command(app)


def subcommands():
    return group().commands


def options_of(command):
    return {"--help"}.union(*(param.opts + param.secondary_opts for param in command.params))


def options_in(words):
    return [word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)]


def complaint_about(words):
    """Return what the command line has against these words; empty when it takes them."""
    if not words or words[0].startswith("-"):
        unknown = set(options_in(words)) - options_of(group())
        return f"no such option: {unknown}" if unknown else ""
    command = subcommands().get(words[0])
    if command is None:
        return "no such command"
    if "--help" in words:
        return ""
    try:
        values = command.make_context(words[0], words[1:]).params
        for name in values.get("metric") or ():
            resolve_metric(name)
        if "march" in values:
            check_march(values["march"])
    except Exception as error:  # noqa: BLE001 - click's own or typer's copy of it, by version
        return str(error) or repr(error)
    return ""


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        ("sensitivity model.onnx calib --metric sqnr_db --no-split --top=5", True),
        ("report hbdebug-out/sensitivity.json", True),
        ("--version", True),
        ("sensitivity --help", True),
        ("sensitivity model.onnx", False),
        ("sensitivity model.onnx calib --no-such-option", False),
        ("sensitivity model.onnx calib --kind nodes", False),
        ("sensitivity model.onnx calib --metric cosin", False),
        ("sensitivity model.onnx calib --march bayes-f", False),
        ("sensitivty model.onnx calib", False),
        ("--no-such-option", False),
    ],
)
def test_the_check_of_commands_itself_tells_right_from_wrong(words, accepted):
    assert (complaint_about(words.split()) == "") == accepted


RUNNABLE = [name for name in FILES if any(b.settings is not None for b in blocks(read(name)))]


@pytest.mark.parametrize("name", RUNNABLE)
def test_marked_blocks_run(name, tmp_path):
    work = prepared(tmp_path)
    for block in blocks(read(name)):
        if block.settings is None:
            continue
        where = f"{name}, line {block.line}"
        settings = dict(word.partition("=")[::2] for word in block.settings)
        assert settings.keys() <= {"exit", "compare", "columns"}, where
        calls = [(block.text, [])] if block.language == "python" else commands(block)
        assert calls, f"{where}: nothing to run"
        for number, (command, shown) in enumerate(calls, start=1):
            expected = int(settings.get("exit", 0)) if number == len(calls) else 0
            code, output = execute(block.language, command, work, settings.get("columns"))
            assert code == expected, f"{where}: {command}\n{output}"
            if "compare" in settings:
                missing = lines_missing(shown, output)
                assert not missing, f"{where}: {command}\nnot printed:\n" + "\n".join(missing)


def prepared(folder):
    """Return a folder with the example in it and ``hbdebug`` on the path beside it."""
    work = folder / "work"
    work.mkdir()
    (work / "fixtures").symlink_to(ROOT / "fixtures")
    for item in EXAMPLE.iterdir():
        (work / item.name).symlink_to(item)
    (work / "images").mkdir()
    for file in sorted((EXAMPLE / "calib" / "x").iterdir()):
        # The samples are pixels in BGR order, normalized to -1 ... 1.
        pixels = np.rint((np.load(file)[0, ::-1].transpose(1, 2, 0) + 1) * 127.5)
        Image.fromarray(pixels.astype(np.uint8)).save(work / "images" / f"{file.stem}.png")
    (folder / "bin").mkdir()
    script = folder / "bin" / "hbdebug"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hbdebug "$@"\n')
    script.chmod(0o755)
    return work


def execute(language, command, work, columns):
    """Run a command; return its exit code and what it printed."""
    call = [sys.executable, "-c", command] if language == "python" else ["sh", "-euc", command]
    source = str(Path(hbdebug.__file__).parents[1])
    environment = {
        **os.environ,
        "PATH": f"{work.parent / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": source,
        "NO_COLOR": "1",
    }
    if columns is None:
        done = subprocess.run(
            call,
            cwd=work,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout + done.stderr
    environment |= {"COLUMNS": columns, "LINES": "50", "TERM": "xterm"}
    return on_terminal(call, work, environment)


def on_terminal(call, work, environment):
    """Run a command whose stdout is a terminal; return its exit code and what it printed."""
    terminal, stdout = pty.openpty()
    with subprocess.Popen(
        call, cwd=work, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stdout
    ) as process:
        os.close(stdout)
        printed = bytearray()
        while chunk := read_terminal(terminal):
            printed += chunk
        code = process.wait(PATIENCE)
    os.close(terminal)
    text = printed.decode("utf-8", "replace").replace("\r\n", "\n")
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n")


def read_terminal(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # How Linux says that nobody holds the other end any more.
        return b""


def lines_missing(shown, output):
    printed = {without_numbers(line) for line in output.split("\n")}
    return [
        line
        for line in shown
        if line.strip() not in {"", "..."} and without_numbers(line) not in printed
    ]


def without_numbers(line):
    # Digits inside a name, such as those of conv_1 or Conv@1, are no numbers. An interval can
    # have an exponent of its own: [0.63, 1.5]e-01.
    plain = re.sub(r"\]e[-+]\d+", "]", line)
    numbers = re.sub(r"(?<![\w.@/-])[-+]?\d+(\.\d+)*(e[-+]?\d+)?(?![\w@/])", "#", plain)
    return " ".join(numbers.split())


def test_output_is_compared_by_its_words():
    printed = "rank  node\n1     conv_1   3.1e-02\n2     conv_2   1.0e-03\n"

    assert not lines_missing(["rank node", "...", "2 conv_2 4.4e-02"], printed)
    assert lines_missing(["1 conv_3 3.1e-02"], printed) == ["1 conv_3 3.1e-02"]
    assert not lines_missing(["numpy 1.23.0, [1.0, 2]e-03"], "numpy 2.4.6, [1.5, 3.25]e-02")


def test_a_block_is_run_as_it_is_marked(tmp_path):
    work = prepared(tmp_path)

    code, output = execute("console", "hbdebug --version && ls", work, None)
    wide, shown = execute("sh", 'test -t 1 && echo "$COLUMNS"; exit 3', work, "97")

    assert (code, output.split("\n")[0]) == (0, f"hbdebug {hbdebug.__version__}")
    assert {"calib", "cls_calibrated_model.onnx", "fixtures"} <= set(output.split())
    assert (wide, shown.strip()) == (3, "97")
