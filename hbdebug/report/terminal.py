"""The sensitivity report on a terminal, in a pipe or in a text file.

Nothing is ever cut: on a terminal, names fold and columns are stacked until the table fits; in a
pipe or a file every row is one line, however long, so that the text can be searched.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hbdebug.report.chip import diagnostic_rows, form_rows, forms_title, not_compared_rows
from hbdebug.report.inputs import input_warning_rows
from hbdebug.report.numbers import metric_label
from hbdebug.report.rows import (
    better_ceiling,
    ceiling_metrics,
    ceiling_rows,
    curve_metrics,
    curve_notes,
    curve_rows,
    header_rows,
    interruption,
    mean_text,
    node_rows,
    outcome,
    point_rows,
    ranking_legend,
    ranking_metrics,
    ranking_title,
    skipped_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import RenderableType

    from hbdebug.report.rows import EffectCells
    from hbdebug.results import SensitivityResult, Suggestion

# No row of a report comes near this; what is not a terminal has no width to respect.
_UNBOUNDED = 100_000

_GAP = 2  # blanks between two columns

# Narrowest useful column of folding names: in the first of several layouts, the next, the last.
_NARROWEST = (24, 18, 10)

_ACTION_STYLES = {"int16": "cyan", "cpu": "magenta", "keep": "dim"}


def make_console(file: IO[str], *, width: int | None = None) -> Console:
    """Return a console for a stream.

    On a terminal it is as wide as the terminal and coloured, unless ``NO_COLOR`` or
    ``TERM=dumb`` forbid colours. Everything else gets plain text and one line a row, however
    long (``FORCE_COLOR`` colours it nevertheless).

    Args:
        file: Where the text goes.
        width: Columns; None finds out.
    """
    terminal = getattr(file, "isatty", lambda: False)()
    size = shutil.get_terminal_size()
    # Rich ignores the width of a dumb terminal, or of no terminal, unless the height is given.
    return Console(
        file=file,
        width=width or (size.columns if terminal else _UNBOUNDED),
        height=size.lines,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )


def literal(text: str, style: str = "") -> Text:
    """Return text in which nothing is markup, and bytes that are no text are escaped."""
    return Text(text.encode("utf-8", "backslashreplace").decode("utf-8"), style=style)


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a table.

    Attributes:
        head: Its head, of one line or two.
        cells: One cell a row.
        right: Whether it holds numbers, to be set flush right.
        folds: Whether its cells may be broken anywhere to save width, as names may.
    """

    head: Text
    cells: tuple[Text, ...]
    right: bool = False
    folds: bool = False

    @property
    def width(self) -> int:
        """Columns of the terminal that the longest line takes."""
        return max(_width(text) for text in (self.head, *self.cells))


def _width(text: Text) -> int:
    return max(cell_len(line) for line in text.plain.split("\n"))


def column(
    head: str,
    cells: Iterable[str],
    *,
    right: bool = False,
    folds: bool = False,
    style: Callable[[str], str] = lambda _: "",
) -> Column:
    """Return a column of plain cells; ``style`` gives the style of each."""
    texts = tuple(literal(cell, style(cell)) for cell in cells)
    return Column(head=literal(head), cells=texts, right=right, folds=folds)


def stack(upper: Column, lower: Column) -> Column:
    """Put one column under another, row by row; an empty lower cell takes no line."""

    def joined(above: Text, below: Text) -> Text:
        if not below.plain:
            return above
        if below.style:
            return Text.assemble(above, "\n", below)
        return Text.assemble(above, "\n", (below.plain, "dim"))

    used = any(cell.plain for cell in lower.cells)
    return Column(
        head=joined(upper.head, lower.head if used else Text()),
        cells=tuple(map(joined, upper.cells, lower.cells)),
        right=upper.right,
        folds=upper.folds,
    )


def print_columns(console: Console, layouts: Sequence[Sequence[Column]]) -> None:
    """Print a table in the first layout that fits the console, else in the last one.

    Columns that are empty from top to bottom are left out. Where even the last layout is too
    wide, the columns that fold are narrowed.

    Args:
        console: Where to.
        layouts: The same table laid out in up to three ways, the widest first.
    """
    columns: list[Column] = []
    widths = None
    for layout, least in zip(layouts, _NARROWEST[-len(layouts) :], strict=True):
        columns = [item for item in layout if any(cell.plain for cell in item.cells)]
        widths = _fit(columns, console.width - 1, least=least)
        if widths is not None:
            break
    _print(console, _table(columns, widths))


def _fit(columns: Sequence[Column], room: int, *, least: int) -> list[int] | None:
    """Return the columns' widths; None when folding columns would be narrower than ``least``."""
    widths = [item.width for item in columns]
    excess = sum(widths) + _GAP * (len(columns) - 1) - room
    while excess > 0:
        foldable = [index for index, item in enumerate(columns) if item.folds]
        widest = max(foldable, key=lambda index: widths[index], default=None)
        if widest is None or widths[widest] <= least:
            return None
        widths[widest] -= 1
        excess -= 1
    return widths


def _table(columns: Sequence[Column], widths: Sequence[int] | None) -> Table:
    # Releases of Rich disagree about a last column without padding, so that it has some.
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style="")
    for index, item in enumerate(columns):
        table.add_column(
            item.head,
            justify="right" if item.right else "left",
            overflow="fold",
            vertical="top",
            width=None if widths is None else widths[index],
        )
    for row in zip(*(item.cells for item in columns), strict=True):
        table.add_row(*row)
    return table


def _print(console: Console, what: RenderableType) -> None:
    """Print; without the blanks that pad a line to its width when nobody looks at a screen."""
    if console.is_terminal or console.color_system is not None:
        console.print(what)
        return
    with console.capture() as captured:
        console.print(what)
    lines = captured.get().rstrip("\n").split("\n")
    print_literally(console, "\n".join(line.rstrip() for line in lines))


def print_literally(console: Console, text: str, style: str = "") -> None:
    """Print text that is meant to be copied: never wrapped, never cut."""
    console.print(literal(text, style), soft_wrap=True)


def print_paragraphs(console: Console, lines: Iterable[str], style: str = "") -> None:
    """Print lines of words, wrapped between words on a terminal, continued with an indent."""
    for line in lines:
        grid = Table.grid(padding=0)
        grid.add_column(width=2)
        grid.add_column(overflow="fold")
        grid.add_row("", literal(line, style))
        _print(console, grid)


def print_title(console: Console, title: str) -> None:
    """Print the head of a section, with a blank line above."""
    console.print()
    console.print(literal(title, "bold"))


def print_facts(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print pairs of a label and a text in two columns."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    for label, text in rows:
        grid.add_row(label, literal(text))
    _print(console, grid)


def render_sensitivity(
    result: SensitivityResult,
    *,
    top: int,
    console: Console,
    yaml_text: str | None = None,
    files: Sequence[str] = (),
) -> None:
    """Print the sensitivity report.

    Args:
        result: What was measured.
        top: Number of lines of the ranking.
        console: Where to; `make_console` gives one.
        yaml_text: Content of ``cpu_nodes.yaml``, to be shown; None shows none.
        files: Files that were written, to be named.
    """
    console.print(literal(result.command, "bold"))
    print_facts(console, header_rows(result))
    _render_alerts(result, console)
    _render_input_warnings(result, console)
    _render_coverage(result, console)
    _render_ceilings(result, console)
    _render_diagnostics(result, console)
    _render_forms(result, console)
    _render_ranking(result, console, top=top)
    if result.suggestion is not None:
        _render_suggestion(result, result.suggestion, console)
    elif result.kind == "node":
        print_title(console, "Suggestion: none was measured (--no-suggest, or see the verdict)")
    if yaml_text is not None:
        print_title(console, "cpu_nodes.yaml")
        print_literally(console, yaml_text.rstrip("\n"))
    if files:
        print_title(console, "Written")
        for file in files:
            print_literally(console, f"  {file}")


def _render_alerts(result: SensitivityResult, console: Console) -> None:
    interrupted = interruption(result)
    if not interrupted and not result.warnings and not result.notes:
        return
    console.print()
    if interrupted:
        _print(console, literal(interrupted, "bold red"))
    for warning in result.warnings:
        _print(console, literal(f"warning: {warning}", "yellow"))
    for note in result.notes:
        _print(console, literal(f"note: {note}", "dim"))


def _render_input_warnings(result: SensitivityResult, console: Console) -> None:
    title = "Data: signs that the samples do not fit the model"
    rows = input_warning_rows(result)
    _render_findings(console, title, [([row.finding], f"check: {row.remedy}") for row in rows])


def _render_findings(
    console: Console, title: str, groups: Sequence[tuple[Sequence[str], str]]
) -> None:
    """Print what was found, and below each what to do about it; nothing where there is nothing."""
    if groups:
        print_title(console, title)
    for findings, advice in groups:
        print_paragraphs(console, findings, "yellow")
        print_paragraphs(console, [advice], "dim")


def _render_coverage(result: SensitivityResult, console: Console) -> None:
    print_title(console, f"Coverage: {result.coverage}")
    print_paragraphs(
        console, (f"{row.count} {row.reason}: {row.names}" for row in skipped_rows(result)), "dim"
    )


def _render_ceilings(result: SensitivityResult, console: Console) -> None:
    rows = ceiling_rows(result)
    if rows:
        samples = mean_text(len(result.data.samples))
        print_title(console, f"Ceilings: the whole model against its float baseline, {samples}")
        columns = [
            column("", (row.name for row in rows)),
            column("output", (row.output for row in rows), folds=True),
            column("fidelity", (row.fidelity for row in rows)),
            *(
                column(metric_label(name), (row.cells[index] for row in rows), right=True)
                for index, name in enumerate(ceiling_metrics(result))
            ),
        ]
        print_columns(console, [columns])
    if result.verdict:
        console.print()
        _print(console, literal(f"Verdict: {result.verdict}", "bold"))


def _render_diagnostics(result: SensitivityResult, console: Console) -> None:
    title = "On the chip: where it differs from this model, or reaches its limits"
    rows = diagnostic_rows(result)
    _render_findings(console, title, [(row.findings, f"remedy: {row.remedy}") for row in rows])


def _render_forms(result: SensitivityResult, console: Console) -> None:
    title = forms_title(result)
    if not title:
        return
    print_title(console, title)
    rows = form_rows(result)
    if rows:
        node = column("node", (row.node for row in rows), folds=True)
        op_type = column("op", (row.op_type for row in rows))
        reason = column("reason", (row.reason for row in rows), folds=True)
        numbers = [
            column("max", (row.largest for row in rows), right=True),
            column("mean", (row.mean for row in rows), right=True),
            column("> 1", (row.beyond for row in rows), right=True),
            column("SQNR dB", (row.sqnr for row in rows), right=True),
        ]
        print_columns(
            console, [[node, op_type, *numbers, reason], [stack(node, op_type), *numbers, reason]]
        )
        print_paragraphs(
            console,
            ["max, mean, > 1: differences in steps of the output, and share above 1"],
            "dim",
        )
    print_paragraphs(
        console,
        (
            f"{row.count} not compared, {row.reason}: {row.names}"
            for row in not_compared_rows(result)
        ),
        "dim",
    )


def _render_ranking(result: SensitivityResult, console: Console, *, top: int) -> None:
    print_title(console, ranking_title(result, top=top))
    layouts = (
        _node_layouts(result, top=top) if result.kind == "node" else _point_layouts(result, top=top)
    )
    if layouts:
        print_columns(console, layouts)
        print_paragraphs(console, ranking_legend(result, top=top), "dim")


def _node_layouts(result: SensitivityResult, *, top: int) -> list[list[Column]]:
    rows = node_rows(result, top=top)
    if not rows:
        return []
    rank = column("", (row.rank for row in rows), right=True)
    name = column("node", (row.name for row in rows), folds=True)
    op_type = column("op", (row.op_type for row in rows))
    threshold = column("threshold", (row.threshold for row in rows), right=True)
    dtype = column("dtype", (row.dtype for row in rows), folds=True)
    action = column("action", (row.action for row in rows), style=_action_style)
    flags = column("flags", (row.flags for row in rows), folds=True, style=_warning_style)
    parts = {
        "alone": [row.alone for row in rows],
        "weights": [row.weights for row in rows],
        "activations": [row.activations for row in rows],
    }

    def groups(shape: str) -> list[Column]:
        return [_effect_column(result, head, cells, shape) for head, cells in parts.items()]

    facts = [stack(threshold, dtype), stack(action, flags)]
    return [
        [rank, name, op_type, *groups("line"), threshold, dtype, action, flags],
        [rank, stack(name, op_type), *groups("interval below"), *facts],
        [rank, stack(name, op_type), *groups("column"), *facts],
    ]


def _point_layouts(result: SensitivityResult, *, top: int) -> list[list[Column]]:
    rows = point_rows(result, top=top)
    if not rows:
        return []
    rank = column("", (row.rank for row in rows), right=True)
    name = column("point", (row.name for row in rows), folds=True)
    tensor = column("tensor", (row.tensor for row in rows), folds=True)
    consumers = column("consumers", (row.consumers for row in rows), folds=True)
    granularity = column("granularity", (row.granularity for row in rows))
    threshold = column("threshold", (row.threshold for row in rows), right=True)
    scale = column("scale", (row.scale for row in rows), right=True)
    dtype = column("dtype", (row.dtype for row in rows))
    flags = column("flags", (row.flags for row in rows), folds=True, style=_warning_style)
    alone = [row.alone for row in rows]

    def effect(shape: str) -> Column:
        return _effect_column(result, "alone", alone, shape)

    whole = [rank, name, tensor, consumers, granularity]
    stacked = [
        stack(consumers, granularity),
        stack(threshold, scale),
        stack(dtype, flags),
    ]
    return [
        [*whole, effect("line"), threshold, scale, dtype, flags],
        [rank, stack(name, tensor), effect("interval below"), *stacked],
        [rank, stack(name, tensor), effect("column"), *stacked],
    ]


def _action_style(action: str) -> str:
    return _ACTION_STYLES.get(action, "")


def _warning_style(_: str) -> str:
    return "yellow"


def _effect_column(
    result: SensitivityResult, head: str, effects: Sequence[EffectCells], shape: str
) -> Column:
    """Lay out the numbers of one effect in one column of its own alignment.

    Args:
        result: What was measured.
        head: What was quantized.
        effects: One a row.
        shape: ``line`` for side by side, ``interval below`` for that on a second line,
            ``column`` for one number a line.
    """
    metrics = ranking_metrics(result)
    labels = [metric_label(name) for name in metrics]
    rows = [list(effect.cells) for effect in effects]
    intervals = [effect.interval for effect in effects]
    place = metrics.index(result.metrics[0]) + 1 if result.metrics[0] in metrics else len(metrics)
    if shape != "interval below" and any(intervals):
        labels.insert(place, "[low, high]")
        for row, interval in zip(rows, intervals, strict=True):
            row.insert(place, interval)
    if not any(any(row) for row in rows):
        return column(head, [""] * len(rows))
    if shape == "column":
        texts = ["\n".join(filter(None, row)) for row in rows]
        return column("\n".join([head, *labels]), texts, right=True)
    widths = [max(map(len, cells)) for cells in zip(labels, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))

    # The lines align their numbers themselves, so that the title can stand in their middle.
    title = head.center(len(line(labels))).rstrip()
    numbers = column(f"{title}\n{line(labels)}", map(line, rows))
    if shape == "line" or not any(intervals):
        return numbers
    below = (interval.rjust(numbers.width) if interval else "" for interval in intervals)
    return stack(numbers, column("[low, high]".rjust(numbers.width), below))


def _render_suggestion(result: SensitivityResult, suggestion: Suggestion, console: Console) -> None:
    print_title(console, "Suggestion: nodes lifted in order of damage, measured after each")
    rows = curve_rows(suggestion)
    if rows:
        columns = [
            column("step", (row.step for row in rows), right=True),
            column("lifted node", (row.lifted for row in rows), folds=True),
            column("to", (row.to for row in rows), style=_action_style),
            *(
                column(metric_label(name), (row.cells[index] for row in rows), right=True)
                for index, name in enumerate(curve_metrics(suggestion))
            ),
            column("worst output", (row.output for row in rows), folds=True),
        ]
        print_columns(console, [columns])
    console.print()
    _print(console, literal(outcome(suggestion), "green" if suggestion.reached else "bold yellow"))
    more = better_ceiling(result)
    if more:
        print_paragraphs(console, [more])
    if suggestion.stopped:
        print_paragraphs(console, [f"stopped: {suggestion.stopped}"], "dim")
    print_paragraphs(console, curve_notes(suggestion), "dim")
