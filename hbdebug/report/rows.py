"""The sensitivity report as plain rows of text, before any layout.

A cell is empty where there is nothing to show; a column whose cells are all empty is left out by
the renderer, and `ranking_legend` says why.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from hbdebug.metrics import (
    BASELINE_NOT_FINITE,
    DEAD_OUTPUT,
    EMPTY,
    NOT_FINITE,
    OTHER_SHAPE,
    ZERO_SIGNAL,
)
from hbdebug.report.numbers import (
    COSINE,
    MAX_ERROR,
    SQNR,
    TOP1,
    format_interval,
    format_metric,
    format_raw,
    format_real,
    metric_label,
    order_of_badness,
    some_of,
    worst_output,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hbdebug.results import (
        Effect,
        MetricValues,
        NodeResult,
        NotAnalysed,
        PointResult,
        SensitivityResult,
        Suggestion,
    )

    Line: TypeAlias = NodeResult | PointResult

NO_POINTS = "-"
"""Cell of a node that has no points of the kind in question."""

NAMES_SHOWN = 3
"""How many names stand for many."""

_CEILINGS = {
    "as_calibrated": "as calibrated",
    "weights_only": "weights only",
    "activations_only": "activations only",
    "all_int16": "all activations int16",
    "int16_where_allowed": "int16 where {march} allows it",
    "as_suggested": "as suggested",
}


_FLAGS = {
    ZERO_SIGNAL: "the float output is all zero, so that no ratio to it means anything",
    DEAD_OUTPUT: "the quantized output is all zero",
    NOT_FINITE: "the quantized output holds NaN or infinity",
    BASELINE_NOT_FINITE: "the float output holds NaN or infinity: nothing to compare with",
    EMPTY: "the output has no elements",
    OTHER_SHAPE: "the quantized output has another shape than the float one",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SkippedRow:
    """What was not analysed for one reason: how many, and the first few names."""

    reason: str
    count: int
    names: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CeilingRow:
    """One whole-model measurement at one output; ``cells`` follow `ceiling_metrics`."""

    name: str
    fidelity: str
    output: str
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class EffectCells:
    """The numbers of one effect; ``cells`` follow `ranking_metrics`."""

    cells: tuple[str, ...]
    interval: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRow:
    """One line of the node ranking."""

    rank: str
    name: str
    op_type: str
    alone: EffectCells
    weights: EffectCells
    activations: EffectCells
    threshold: str
    dtype: str
    action: str
    flags: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PointRow:
    """One line of the point ranking."""

    rank: str
    name: str
    tensor: str
    consumers: str
    granularity: str
    alone: EffectCells
    threshold: str
    scale: str
    dtype: str
    flags: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveRow:
    """One step of the suggestion; ``cells`` follow `curve_metrics`, at the worst output."""

    step: str
    lifted: str
    to: str
    cells: tuple[str, ...]
    output: str


def header_rows(result: SensitivityResult) -> list[tuple[str, str]]:
    """Return what was loaded, as (label, text); a blank label continues the one above."""
    model = result.model
    rows = [
        ("Model", model.path),
        ("Kind", ", ".join(filter(None, (model.kind, model.producer)))),
        ("Nodes", str(model.nodes)),
        ("Points", points_text(model.points)),
        *tensor_rows("Inputs", model.inputs),
        *tensor_rows("Outputs", model.outputs),
        ("Samples", _samples_text(result)),
        ("Scheme", f"{result.scheme}; fidelity {result.fidelity}; march {model.march or 'none'}"),
        ("Metrics", _metrics_text(result.metrics)),
    ]
    if result.output_node:
        rows.append(("Measured at", f"the outputs of node {result.output_node}"))
    rows.append(("Versions", _versions_text(result)))
    if result.seconds:
        rows.append(("Time", _seconds_text(result.seconds)))
    return rows


def points_text(points: Mapping[str, int]) -> str:
    """Return the number of points, and by role and dtype."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in points.items())
    return f"{sum(points.values())}: {kinds}" if kinds else "none"


def tensor_rows(label: str, tensors: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return one row a tensor, the first with the label."""
    return [
        ("" if index else label, f"{name}  {kind}")
        for index, (name, kind) in enumerate(tensors.items())
    ]


def _samples_text(result: SensitivityResult) -> str:
    names = result.data.samples
    text = f"{len(names)} of {result.data.found} found in {result.data.path}"
    if not names:
        return text
    return f"{text} ({', '.join(names) if len(names) <= 2 else f'{names[0]} ... {names[-1]}'})"


def _metrics_text(metrics: Sequence[str]) -> str:
    return ", ".join(f"{name} (ranks)" if not index else name for index, name in enumerate(metrics))


def _versions_text(result: SensitivityResult) -> str:
    versions = result.settings.get("versions")
    others = versions if isinstance(versions, Mapping) else {}
    texts = [f"{name} {version}" for name, version in others.items() if name != "hbdebug"]
    return ", ".join([f"hbdebug {result.hbdebug_version}", *texts])


def _seconds_text(seconds: Mapping[str, float]) -> str:
    phases = {name: value for name, value in seconds.items() if name != "total"}
    total = seconds.get("total", sum(phases.values()))
    parts = ", ".join(f"{name} {value:.1f}" for name, value in phases.items())
    return f"{total:.1f} s" + (f" ({parts})" if parts else "")


def interruption(result: SensitivityResult) -> str:
    """Return the line that an interrupted run opens with; empty for a complete one."""
    if result.complete:
        return ""
    data = result.data
    if data.complete == len(data.samples):
        return "interrupted in the suggestion: the ranking is complete, the curve is not"
    what = f"{data.complete} of {len(data.samples)} samples complete; the ranking is of these alone"
    if not data.complete:
        what = (
            "no sample is complete; the ranking is of the first one alone, and of what was "
            "measured on it until then"
        )
    return f"interrupted: {what}; run the same command with --resume to finish"


def skipped_rows(result: SensitivityResult) -> list[SkippedRow]:
    """Return what was not analysed, by reason, the most frequent first."""
    return rows_by_reason(result.not_analysed)


def rows_by_reason(items: Iterable[NotAnalysed]) -> list[SkippedRow]:
    """Return things that were left out, by reason, the most frequent first."""
    by_reason: dict[str, list[str]] = {}
    for item in items:
        by_reason.setdefault(item.reason, []).append(f"{item.name} ({item.op_type})")
    return [
        SkippedRow(reason=reason, count=len(names), names=some_of(names, NAMES_SHOWN))
        for reason, names in sorted(by_reason.items(), key=lambda entry: -len(entry[1]))
    ]


def _present(candidates: Iterable[str], measured: Iterable[MetricValues]) -> tuple[str, ...]:
    """Keep the metrics that were measured anywhere, each once, in the order of candidates."""
    found = {name for values in measured for name in values}
    return tuple(name for name in dict.fromkeys(candidates) if name in found)


def ceiling_metrics(result: SensitivityResult) -> tuple[str, ...]:
    """Return the columns of the ceilings: the ranking metric if unusual, then the usual ones."""
    usual = (COSINE, SQNR, MAX_ERROR, TOP1)
    ranking = [name for name in result.metrics[:1] if name not in usual]
    outputs = (values for item in result.ceilings for values in item.outputs.values())
    return _present((*ranking, *usual), outputs)


def ceiling_rows(result: SensitivityResult) -> list[CeilingRow]:
    """Return one row for each ceiling and output.

    The output's name is left out when there is only one; the fidelity when it is the run's own.
    """
    metrics = ceiling_metrics(result)
    return [
        CeilingRow(
            name=_CEILINGS.get(item.name, item.name).format(march=result.model.march),
            fidelity=item.fidelity if item.fidelity != result.fidelity else "",
            output=output if len(item.outputs) > 1 else "",
            cells=tuple(format_metric(name, values.get(name)) for name in metrics),
        )
        for item in result.ceilings
        for output, values in item.outputs.items()
    ]


def ranking_metrics(result: SensitivityResult) -> tuple[str, ...]:
    """Return the columns of the ranking: the ranking metric if unusual, SQNR, cosine."""
    usual = (SQNR, COSINE)
    ranking = [name for name in result.metrics[:1] if name not in usual]
    lines: tuple[Line, ...] = (*result.nodes, *result.points)
    return _present((*ranking, *usual), (line.alone.values for line in lines))


def node_rows(result: SensitivityResult, *, top: int) -> list[NodeRow]:
    """Return the first lines of the node ranking."""
    metrics = ranking_metrics(result)
    ranking = result.metrics[0]
    split = any(_is_split(node) for node in result.nodes)
    return [
        NodeRow(
            rank=_rank(node),
            name=node.name,
            op_type=node.op_type,
            alone=_effect_cells(node.alone, metrics, ranking),
            weights=_half_cells(node.weights, metrics, split=split),
            activations=_half_cells(node.activations, metrics, split=split),
            threshold=format_real(node.threshold),
            dtype=node.dtype,
            action=node.suggestion,
            flags=_flags(node.alone, metrics),
        )
        for node in result.nodes[:top]
    ]


def point_rows(result: SensitivityResult, *, top: int) -> list[PointRow]:
    """Return the first lines of the point ranking."""
    metrics = ranking_metrics(result)
    ranking = result.metrics[0]
    return [
        PointRow(
            rank=_rank(point),
            name=point.name,
            tensor=point.tensor,
            consumers=some_of(point.consumers, NAMES_SHOWN),
            granularity=point.granularity,
            alone=_effect_cells(point.alone, metrics, ranking),
            threshold=format_real(point.threshold),
            scale=format_real(point.scale),
            dtype=point.dtype,
            flags=_flags(point.alone, metrics),
        )
        for point in result.points[:top]
    ]


def _rank(line: Line) -> str:
    return f"= {line.rank}" if line.tied else str(line.rank)


def _effect_cells(effect: Effect, metrics: Sequence[str], ranking: str) -> EffectCells:
    cells = tuple(
        "exact" if effect.exact and name == SQNR else format_metric(name, effect.values.get(name))
        for name in metrics
    )
    return EffectCells(cells=cells, interval=format_interval(ranking, effect.interval))


def _is_split(node: NodeResult) -> bool:
    return node.weights is not None or node.activations is not None


def _half_cells(effect: Effect | None, metrics: Sequence[str], *, split: bool) -> EffectCells:
    """Return the numbers of a node's weights or activations, whose interval has no column."""
    if effect is None:
        return EffectCells(cells=(NO_POINTS if split else "",) * len(metrics))
    return EffectCells(cells=_effect_cells(effect, metrics, "").cells)


def _flags(effect: Effect, metrics: Sequence[str]) -> str:
    flags = list(effect.flags)
    if effect.exact and SQNR not in metrics and "exact" not in flags:
        flags.insert(0, "exact")
    return ", ".join(flags)


def ranking_legend(result: SensitivityResult, *, top: int) -> list[str]:
    """Return the lines under the ranking: what its columns mean and why some are missing."""
    word = "node" if result.kind == "node" else "point"
    every: tuple[Line, ...] = result.nodes if result.kind == "node" else result.points
    lines = every[:top]
    legend: list[str] = []
    if len(every) > len(lines):
        legend.append(f"... and {len(every) - len(lines)} more in sensitivity.json")
    legend.append(_alone_text(result, word, lines))
    if any(line.alone.interval for line in lines):
        label = metric_label(result.metrics[0])
        legend.append(f"[low, high]: 95 % bootstrap interval of {label} over the samples")
    elif result.data.complete < 2:
        legend.append("no interval: it takes two samples or more")
    else:
        legend.append("no interval was measured")
    if any(line.tied for line in lines):
        legend.append(f"=: the samples cannot tell this {word} from the one above")
    if any(line.alone.exact for line in lines):
        legend.append("exact: the output did not change at all")
    flags = dict.fromkeys(flag for line in lines for flag in line.alone.flags)
    legend += [f"{flag}: {_FLAGS[flag]}" for flag in flags if flag in _FLAGS]
    if result.kind == "node":
        legend += _split_legend(result, top=top)
    return legend + _note_legend(result, top=top)


def _alone_text(result: SensitivityResult, word: str, lines: Sequence[Line]) -> str:
    place = f"node {result.output_node}" if result.output_node else "the model output"
    outputs = max((len(line.alone.outputs) for line in lines), default=0)
    worst = f", worst of {outputs} outputs" if outputs > 1 else ""
    return (
        f"alone: only this {word} is quantized, everything else is float; "
        f"measured at {place}{worst}, {mean_text(max(result.data.complete, 1))}"
    )


def mean_text(count: int) -> str:
    """Say over how many samples numbers are means."""
    return "one sample" if count == 1 else f"mean over {count} samples"


def _split_legend(result: SensitivityResult, *, top: int) -> list[str]:
    if not any(_is_split(node) for node in result.nodes):
        return ["weights and activations apart were not measured (--no-split)"]
    if any(node.weights is None or node.activations is None for node in result.nodes[:top]):
        return [f"{NO_POINTS}: the node has no such points"]
    return []


def _note_legend(result: SensitivityResult, *, top: int) -> list[str]:
    """Return each note once, with the ranks that it belongs to."""
    ranks: dict[tuple[str, str], list[str]] = {}
    for node in result.nodes[:top]:
        if node.note:
            ranks.setdefault((node.suggestion, node.note), []).append(str(node.rank))
    return [f"{action} ({', '.join(where)}): {note}" for (action, note), where in ranks.items()]


def ranking_title(result: SensitivityResult, *, top: int) -> str:
    """Return the head of the ranking, with how much of it follows."""
    every = len(result.nodes if result.kind == "node" else result.points)
    words = {"node": "nodes", "weight": "weight points", "activation": "activation points"}
    what = words.get(result.kind, result.kind)
    ranked = f"by {result.metrics[0]}"
    if not every:
        return f"Ranking: no {what} to rank"
    if every <= top:
        return f"Ranking: {every} {what if every > 1 else what[:-1]}, worst first {ranked}"
    return f"Ranking: the worst {top} of {every} {what} {ranked}"


def curve_metrics(suggestion: Suggestion) -> tuple[str, ...]:
    """Return the columns of the curve: the target's metric if unusual, SQNR, cosine."""
    usual = (COSINE, SQNR)
    target = [suggestion.metric] if suggestion.metric not in usual else []
    outputs = (values for step in suggestion.curve for values in step.outputs.values())
    return _present((*target, *usual), outputs)


def curve_rows(suggestion: Suggestion) -> list[CurveRow]:
    """Return one row a step, each at the output that is worst in the target's metric.

    The output's name is left out when there is only one.
    """
    metrics = curve_metrics(suggestion)
    rows = []
    for index, step in enumerate(suggestion.curve):
        worst = worst_output(step.outputs, suggestion.metric)
        rows.append(
            CurveRow(
                step=_step_label(index, step.on),
                lifted=step.lifted or "(as calibrated)",
                to=step.to,
                cells=tuple(format_metric(name, worst.values.get(name)) for name in metrics),
                output=worst.output if len(step.outputs) > 1 else "",
            )
        )
    return rows


def _step_label(index: int, on: int) -> str:
    """Number a step; one that does not add to the step just before it says to which."""
    return str(index) if on == max(index - 1, 0) else f"{index} (on {on})"


def curve_notes(suggestion: Suggestion) -> list[str]:
    """Return what about the lifts follows no measured rule, each note once with its steps."""
    steps: dict[str, list[int]] = {}
    for index, step in enumerate(suggestion.curve):
        for note in step.notes:
            steps.setdefault(note, []).append(index)
    notes = [
        f"step{'s' if len(where) > 1 else ''} {_ranges(where)}: {note}"
        for note, where in steps.items()
    ]
    if any(step.to == "keep" for step in suggestion.curve):
        notes.append("keep: put back, the target holds without it")
    return notes


def _ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers with runs of three or more drawn together: ``1, 2, 5-9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )


def outcome(suggestion: Suggestion) -> str:
    """Return one line: whether the target was reached, with how many nodes, or the best found."""
    metric = suggestion.metric
    target = f"target {metric} {format_raw(metric, suggestion.target)}"
    if suggestion.reached:
        if not suggestion.nodes:
            return f"{target} is met as calibrated: no node needs lifting"
        return f"{target} reached with {_nodes(len(suggestion.nodes))}"
    chosen = suggestion.curve[suggestion.step].outputs if suggestion.curve else {}
    value = worst_output(chosen, metric).values.get(metric, math.nan)
    if math.isnan(value):
        return f"{target} not reached: {metric} was undefined at every step"
    found = f"best {format_raw(metric, value, unlike=suggestion.target)}"
    return f"{target} not reached: {found} " + (
        f"with {_nodes(len(suggestion.nodes))}"
        if suggestion.nodes
        else "as calibrated, without a lift"
    )


def better_ceiling(result: SensitivityResult) -> str:
    """Return a line that points at int16 everywhere, where that gives more than the suggestion.

    Empty when the target was reached, or no ceiling is better than every step of the curve.
    """
    suggestion = result.suggestion
    if suggestion is None or suggestion.reached:
        return ""
    metric = suggestion.metric
    values = [worst_output(step.outputs, metric).values for step in suggestion.curve]
    best = min(
        (order_of_badness(metric, item.get(metric, math.nan)) for item in values), default=math.inf
    )
    for ceiling in result.ceilings:
        if (ceiling.name, ceiling.fidelity) != ("int16_where_allowed", result.fidelity):
            continue
        value = worst_output(ceiling.outputs, metric).values.get(metric, math.nan)
        if order_of_badness(metric, value) < best:
            number = format_raw(metric, value, unlike=suggestion.target)
            return (
                f"int16 on every node that allows it gives more than this list: {metric} {number} "
                "(see the ceilings)"
            )
    return ""


def _nodes(count: int) -> str:
    return "1 node" if count == 1 else f"{count} nodes"
