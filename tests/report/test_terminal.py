"""The sensitivity report on a screen and in a pipe.

The whole outputs are in ``snapshots/``; ``HBDEBUG_UPDATE_SNAPSHOTS=1 pytest tests/report`` writes
them anew, and the difference is to be reviewed like code.
"""

from __future__ import annotations

import dataclasses
import io
import re

import pytest

from hbdebug.report.rows import (
    interruption,
    node_rows,
    point_rows,
)
from hbdebug.report.terminal import make_console, render_sensitivity
from hbdebug.results import DataInfo, Effect
from tests.report.example_result import (
    EXAMPLE,
    FILES,
    YAML,
    activation_ranking,
    changed,
    one_sample,
    suggestion,
    two_outputs,
    without_split,
)
from tests.report.snapshot import matches_snapshot, text_of, width_of


def rendered(result, *, top=20, width=None, **more):
    """Text as it reaches a pipe, or with a width, a plain terminal of that width."""
    return text_of(
        lambda console: render_sensitivity(result, top=top, console=console, **more), width=width
    )


# Rendering ----------------------------------------------------------------------------------------


def test_the_sections_come_in_the_order_of_the_manual():
    text = rendered(
        changed(warnings=("scores near zero: read the SQNR",)), yaml_text=YAML, files=FILES
    )

    heads = (
        "Model  ",
        "warning: scores near zero: read the SQNR",
        "Coverage: 112 nodes analysed; 15 not",
        "Ceilings: ",
        "Verdict: activation quantization causes 99 % of the loss",
        "Ranking: ",
        "Suggestion: ",
        "target cosine_similarity 0.999 reached with 2 nodes",
        "cpu_nodes.yaml",
        "Written",
    )
    places = [text.index(f"\n{head}") for head in heads]
    assert places == sorted(places)


def test_another_ranking_metric_comes_first_with_its_interval_beside_it():
    numbers = {"mse": 2.5e-3, "cosine_similarity": 0.9, "sqnr_db": 10.0}
    alone = Effect(values=numbers, outputs={"scores": numbers}, interval=(2e-3, 3e-3))
    node = dataclasses.replace(EXAMPLE.nodes[0], alone=alone, activations=None)

    text = rendered(changed(metrics=("mse", "cosine_similarity", "sqnr_db"), nodes=(node,)))

    assert re.search(r"MSE +\[low, high\] +SQNR dB +1-cosine", text)
    assert re.search(r"2\.50e-03 +\[2\.0, 3\.0\]e-03 +10\.0 +1\.00e-01", text)


@pytest.mark.parametrize("width", [60, 80, 100, 110, 120, 200])
@pytest.mark.parametrize(
    "result",
    [EXAMPLE, without_split(), two_outputs(), activation_ranking()],
    ids=["nodes", "no split", "outputs", "points"],
)
def test_nothing_is_cut_and_no_line_is_too_long_at_any_width(result, width):
    long = "Q" * 150
    result = dataclasses.replace(
        result,
        nodes=tuple(dataclasses.replace(node, name=long) for node in result.nodes),
        points=tuple(dataclasses.replace(point, name=long) for point in result.points),
    )

    text = rendered(result, width=width)

    rows = [*node_rows(result, top=20), *point_rows(result, top=20)]
    ranking = text[text.index("Ranking: ") : text.index("alone: only")].replace("SQNR", "")
    assert ranking.count("Q") == len(long) * len(rows)
    assert "\u2026" not in text
    assert width_of(text) <= width
    # Below 80 columns numbers may fold, too.
    for number in {number for row in rows for number in row.alone.cells if width >= 80}:
        assert number in ranking


def test_a_pipe_gets_one_line_a_row_no_colour_and_no_trailing_blank():
    long = "/backbone/" + "block/" * 24 + "Conv"
    result = changed(nodes=(dataclasses.replace(EXAMPLE.nodes[0], name=long), *EXAMPLE.nodes[1:]))

    text = rendered(result, yaml_text=YAML, files=FILES)

    assert len(long) > 150
    (line,) = (line for line in text.split("\n") if long in line and "1.56e-01" in line)
    assert line.startswith(f"  1  {long}  Add  ")
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.split("\n"))


def test_wide_characters_keep_the_columns_aligned():
    text = rendered(EXAMPLE, width=200)

    rows = [line for line in text.split("\n") if re.search(r" (Add|Conv) .*e-0", line)]
    ends = {width_of(line[: re.search(r"\]e-0\d", line).end()]) for line in rows}
    assert len(rows) == 3
    assert len(ends) == 1


def test_markup_and_emoji_codes_in_names_are_just_text():
    name = "[bold]:smile:[/bold] \\[x]"
    result = changed(
        nodes=(dataclasses.replace(EXAMPLE.nodes[0], name=name),),
        warnings=(f"about {name}",),
        verdict=name,
        coverage=name,
        command=name,
    )

    assert rendered(result).count(name) == 5
    assert rendered(result, width=120).count(name) == 5


def test_a_name_that_is_no_text_is_escaped():
    result = changed(command=b"cal\xff".decode("utf-8", "surrogateescape"))

    assert rendered(result).startswith("cal\\udcff\n")


def test_top_limits_the_ranking_and_says_so():
    text = rendered(EXAMPLE, top=2)

    assert "MatMul@0 " in text
    assert "Conv@12" not in text
    assert "... and 4 more in sensitivity.json" in text


def test_an_interrupted_run_is_loud():
    result = changed(
        complete=False,
        data=DataInfo(path="calib/", samples=EXAMPLE.data.samples, found=20, complete=5),
    )

    assert interruption(result).startswith("interrupted: 5 of 16 samples complete; ")
    assert interruption(EXAMPLE) == ""
    text = rendered(result)
    assert text.index("interrupted: 5 of 16 samples complete") < text.index("Coverage: ")
    assert "measured at the model output, mean over 5 samples" in text
    # The whole model was measured before the ranking was interrupted.
    assert "float baseline, mean over 16 samples" in text


@pytest.mark.parametrize(
    ("complete", "words"),
    [
        (0, "no sample is complete; the ranking is of the first one alone"),
        (16, "the ranking is complete, the curve is not"),
    ],
)
def test_an_interruption_says_what_can_be_trusted(complete, words):
    data = DataInfo(path="calib/", samples=EXAMPLE.data.samples, found=20, complete=complete)

    assert words in interruption(changed(complete=False, data=data))


def test_without_the_split_there_are_no_such_columns():
    ranking = rendered(without_split()).split("Ranking: ")[1].split("Suggestion: ")[0]

    assert "activations  " not in ranking
    assert "weights  " not in ranking


def test_one_sample_has_no_interval_column():
    text = rendered(one_sample())

    assert "[low, high]" not in text
    assert "no interval: it takes two samples or more" in text
    assert "one sample" in text


def test_without_a_suggestion_the_report_says_so_for_nodes_only():
    line = "Suggestion: none was measured (--no-suggest, or see the verdict)"

    assert line in rendered(changed(suggestion=None))
    assert "Suggestion" not in rendered(activation_ranking())


def test_a_suggestion_without_a_step_renders():
    bare = dataclasses.replace(suggestion(), curve=(), nodes={}, stopped="", reached=False)

    text = rendered(changed(suggestion=bare))

    assert "target cosine_similarity 0.999 not reached" in text
    assert "lifted node" not in text
    assert "stopped" not in text


def test_a_result_with_nothing_in_it_renders():
    result = changed(
        nodes=(), ceilings=(), verdict="", not_analysed=(), suggestion=None, seconds={}
    )

    text = rendered(result)

    assert "Ranking: no nodes to rank" in text
    assert "Ranking: no weight points to rank" in rendered(
        dataclasses.replace(result, kind="weight")
    )
    assert "Ceilings" not in text
    assert "Verdict" not in text


def test_the_yaml_and_the_files_are_printed_unbroken():
    long = "  node: " + "x" * 300
    text = rendered(EXAMPLE, width=80, yaml_text=f"{YAML}{long}\n", files=("a" * 200,))

    assert f"\n{long}\n" in text
    assert "a" * 200 in text
    assert YAML in text


# Console ------------------------------------------------------------------------------------------


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "93")
    monkeypatch.setenv("LINES", "40")
    return Screen()


def test_a_terminal_is_as_wide_as_it_is_and_coloured(screen):
    console = make_console(screen)
    render_sensitivity(EXAMPLE, top=20, console=console)

    assert console.width == 93
    assert "\x1b[" in screen.getvalue()


def test_no_color_is_respected(screen, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    render_sensitivity(EXAMPLE, top=20, console=make_console(screen))

    # Bold and dim stay: NO_COLOR is about colours (30 to 49 are those of the terminal's palette).
    assert not re.search(r"\x1b\[([\d;]*;)?[34]\d[;m]", screen.getvalue())


def test_a_dumb_terminal_keeps_its_width_and_gets_no_escapes(screen, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    console = make_console(screen)
    render_sensitivity(EXAMPLE, top=20, console=console)

    assert console.width == 93
    assert "\x1b" not in screen.getvalue()


def test_the_width_can_be_given():
    assert make_console(io.StringIO(), width=72).width == 72


# Whole outputs ------------------------------------------------------------------------------------


def test_the_report_in_a_pipe():
    matches_snapshot("sensitivity_pipe.txt", rendered(EXAMPLE, yaml_text=YAML, files=FILES))


def test_the_report_on_a_terminal_of_100_columns():
    matches_snapshot("sensitivity_100.txt", rendered(EXAMPLE, top=5, width=100))


def test_the_ranking_of_points_on_a_terminal_of_100_columns():
    matches_snapshot("activations_100.txt", rendered(activation_ranking(), width=100))
