"""What the report says of the samples: signs that they are not what the model expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.report.numbers import some_of
from hbdebug.report.rows import NAMES_SHOWN

if TYPE_CHECKING:
    from hbdebug.results import InputWarning, SensitivityResult


@dataclass(frozen=True, kw_only=True, slots=True)
class InputWarningRow:
    """One finding, with the input and the samples that show it, and what to do."""

    finding: str
    remedy: str


def input_warning_rows(result: SensitivityResult) -> list[InputWarningRow]:
    """Return the findings about the samples, in the order of the record."""
    return [
        InputWarningRow(finding=_finding(item, len(result.data.samples)), remedy=item.remedy)
        for item in result.input_warnings
    ]


def _finding(item: InputWarning, every: int) -> str:
    where = f"input {item.input}" if item.input else "all inputs"
    return f"{where}, {_samples(item, every)}: {item.evidence}"


def _samples(item: InputWarning, every: int) -> str:
    count = len(item.samples)
    if count == every:
        return "the only sample" if every == 1 else f"all {every} samples"
    if count == 1:
        return f"sample {item.samples[0]}"
    return f"{count} of {every} samples ({some_of(item.samples, NAMES_SHOWN)})"
