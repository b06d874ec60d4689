"""What the report says of the samples."""

from __future__ import annotations

import dataclasses

import pytest

from hbdebug.report.inputs import InputWarningRow, input_warning_rows
from hbdebug.report.terminal import render_sensitivity
from hbdebug.results import InputWarning, SensitivityResult
from tests.report.example_result import EXAMPLE, changed
from tests.report.snapshot import text_of

WARNING = InputWarning(
    name="looks_like_noise",
    input="x",
    samples=EXAMPLE.data.samples,
    evidence="looks like uniform noise",
    remedy="measure on real data",
    numbers={"excess_kurtosis": -1.2},
)


def rows(**fields):
    return input_warning_rows(changed(input_warnings=(dataclasses.replace(WARNING, **fields),)))


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (EXAMPLE.data.samples, f"all {len(EXAMPLE.data.samples)} samples"),
        (("7",), "sample 7"),
        (("1", "2"), f"2 of {len(EXAMPLE.data.samples)} samples (1, 2)"),
    ],
)
def test_a_finding_names_input_and_samples(samples, words):
    expected = f"input x, {words}: looks like uniform noise"

    assert rows(samples=samples) == [
        InputWarningRow(finding=expected, remedy="measure on real data")
    ]


def test_a_finding_about_everything_names_no_input():
    (row,) = rows(input="")

    assert row.finding.startswith("all inputs, ")


def test_the_terminal_shows_findings_before_the_numbers():
    result = changed(input_warnings=(WARNING,))
    text = text_of(lambda console: render_sensitivity(result, top=3, console=console))

    assert "check: measure on real data" in text
    assert text.index("Data: signs") < text.index("looks like uniform") < text.index("Ceilings")
    assert "Data: signs" not in text_of(
        lambda console: render_sensitivity(EXAMPLE, top=3, console=console)
    )


def test_the_record_survives_json_and_older_files_have_none():
    result = changed(input_warnings=(WARNING,))
    record = result.to_json()

    assert record["input_warnings"][0]["numbers"] == {"excess_kurtosis": -1.2}
    assert SensitivityResult.from_json(record) == result
    del record["input_warnings"]
    assert SensitivityResult.from_json(record).input_warnings == ()
