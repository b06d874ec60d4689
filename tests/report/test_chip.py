"""What the report says of the chip: diagnostics by remedy, and integer against calibrated forms."""

from __future__ import annotations

import dataclasses

import pytest

from hbdebug.report.chip import (
    DiagnosticRow,
    FormRow,
    diagnostic_rows,
    form_rows,
    forms_title,
    not_compared_rows,
)
from hbdebug.report.rows import SkippedRow
from hbdebug.report.terminal import render_sensitivity
from hbdebug.results import Diagnostic, FormDifference, NotAnalysed, SensitivityResult
from tests.report.example_result import EXAMPLE, changed
from tests.report.snapshot import text_of, width_of


def found(node, evidence, remedy="do this"):
    return Diagnostic(name="kind", node=node, op_type="Pad", evidence=evidence, remedy=remedy)


def form(node, **fields):
    plain = FormDifference(
        node=node,
        op_type="Conv",
        fused=(),
        samples=4,
        max_steps=1.0,
        mean_steps=0.002,
        share_beyond_one=0.0,
        sqnr_db=51.5,
        differs_much=False,
        reason="",
    )
    return dataclasses.replace(plain, **fields)


FORMS = changed(
    form_differences=(
        form(
            "conv",
            fused=("add", "relu"),
            max_steps=12.0,
            mean_steps=5.125,
            share_beyond_one=0.683,
            sqnr_db=16.54,
            differs_much=True,
            reason="2 of 8 channels nearly dead, with weights in larger steps",
        ),
        form("other"),
        form("same", max_steps=0.0, mean_steps=0.0, sqnr_db=None),
    ),
    not_compared=(
        NotAnalysed(name="a", op_type="Softmax", reason="not quantized"),
        NotAnalysed(name="b", op_type="Shape", reason="not quantized"),
    ),
)


def test_nodes_with_the_same_finding_share_a_line_and_findings_share_their_remedy():
    result = changed(
        diagnostics=(
            *(found(node, evidence) for node, evidence in ("ax", "by", "cx")),
            found("d", "x", "do that"),
        )
    )

    assert diagnostic_rows(result) == [
        DiagnosticRow(findings=("a (Pad), c (Pad): x", "b (Pad): y"), remedy="do this"),
        DiagnosticRow(findings=("d (Pad): x",), remedy="do that"),
    ]
    assert diagnostic_rows(EXAMPLE) == []


def test_of_many_findings_of_a_kind_the_first_are_told_and_the_others_named():
    result = changed(diagnostics=tuple(found(f"n{index}", f"e{index}") for index in range(8)))

    (row,) = diagnostic_rows(result)

    assert row.findings[:3] == ("n0 (Pad): e0", "n1 (Pad): e1", "n2 (Pad): e2")
    assert row.findings[3] == (
        "the same kind: n3 (Pad), n4 (Pad), n5 (Pad) and 2 more; all are in sensitivity.json"
    )


def test_only_nodes_that_differ_much_get_a_row():
    assert form_rows(FORMS) == [
        FormRow(
            node="conv + add + relu",
            op_type="Conv",
            largest="12",
            mean="5.12",
            beyond="68.3%",
            sqnr="16.5",
            reason="2 of 8 channels nearly dead, with weights in larger steps",
        )
    ]
    assert not_compared_rows(FORMS) == [
        SkippedRow(reason="not quantized", count=2, names="a (Softmax), b (Shape)")
    ]


@pytest.mark.parametrize("width", [None, 80, 120])
def test_the_section_says_how_many_were_compared_on_what_and_what_was_not(width):
    text = text_of(lambda console: render_sensitivity(FORMS, top=3, console=console), width=width)

    words = " ".join(text.split())
    assert (
        "Integer form differs from the calibrated form: 1 of 3 nodes, each alone, 4 samples"
        in words
    )
    assert "2 not compared, not quantized: a (Softmax), b (Shape)" in words
    assert text.index("Ceilings: ") < text.index("Integer form differs") < text.index("Ranking: ")
    assert width is None or width_of(text) <= width


def test_there_is_no_section_where_nothing_was_compared_and_one_where_nothing_differs():
    calm = changed(form_differences=(form("other"),))

    assert forms_title(EXAMPLE) == ""
    assert form_rows(calm) == []
    assert "none of 1 nodes" in forms_title(calm)


def test_forms_survive_json():
    assert SensitivityResult.from_json(FORMS.to_json()) == FORMS
    older = {
        key: value
        for key, value in FORMS.to_json().items()
        if key not in {"form_differences", "not_compared"}
    }
    assert SensitivityResult.from_json(older).form_differences == ()
