"""What the report says of the chip: diagnostics, and integer against calibrated forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.report.numbers import some_of
from hbdebug.report.rows import NAMES_SHOWN, rows_by_reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from hbdebug.report.rows import SkippedRow
    from hbdebug.results import SensitivityResult


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosticRow:
    """Findings with one remedy; each names the nodes that share its evidence."""

    findings: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FormRow:
    """A node whose integer form differs much from its calibrated form."""

    node: str
    op_type: str
    largest: str
    mean: str
    beyond: str
    sqnr: str
    reason: str


def diagnostic_rows(result: SensitivityResult) -> list[DiagnosticRow]:
    """Return the diagnostics, those of one kind and remedy together, the first few in full."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for item in result.diagnostics:
        alike = found.setdefault((item.name, item.remedy), {})
        alike.setdefault(item.evidence, []).append(f"{item.node} ({item.op_type})")
    return [
        DiagnosticRow(findings=tuple(_findings(alike)), remedy=remedy)
        for (_, remedy), alike in found.items()
    ]


def _findings(alike: Mapping[str, Sequence[str]]) -> Iterable[str]:
    texts = [f"{some_of(names, NAMES_SHOWN)}: {evidence}" for evidence, names in alike.items()]
    yield from texts[:NAMES_SHOWN]
    rest = [name for names in list(alike.values())[NAMES_SHOWN:] for name in names]
    if rest:
        yield f"the same kind: {some_of(rest, NAMES_SHOWN)}; all are in sensitivity.json"


def forms_title(result: SensitivityResult) -> str:
    """Return the head of the section on integer forms; empty when nothing was compared."""
    compared = result.form_differences
    if not compared:
        return ""
    differing = sum(item.differs_much for item in compared)
    count = str(differing) if differing else "none"
    return (
        f"Integer form differs from the calibrated form: {count} of {len(compared)} nodes, each "
        f"alone, {_over(compared[0].samples)}"
    )


def form_rows(result: SensitivityResult) -> list[FormRow]:
    """Return the nodes whose integer form differs much, worst first."""
    return [
        FormRow(
            node=" + ".join((item.node, *item.fused)),
            op_type=item.op_type,
            largest=f"{item.max_steps:.4g}",
            mean=f"{item.mean_steps:.3g}",
            beyond=f"{item.share_beyond_one:.1%}",
            sqnr="" if item.sqnr_db is None else f"{item.sqnr_db:.1f}",
            reason=item.reason,
        )
        for item in result.form_differences
        if item.differs_much
    ]


def not_compared_rows(result: SensitivityResult) -> list[SkippedRow]:
    """Return the nodes without an integer form to compare, by reason."""
    return rows_by_reason(result.not_compared)


def _over(count: int) -> str:
    return "one sample" if count == 1 else f"{count} samples"
