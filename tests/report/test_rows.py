"""The sensitivity report as plain rows, its legend and its one-line outcomes."""

from __future__ import annotations

import dataclasses
import math

import pytest

from hbdebug.report.rows import (
    CeilingRow,
    CurveRow,
    EffectCells,
    NodeRow,
    PointRow,
    SkippedRow,
    better_ceiling,
    ceiling_metrics,
    ceiling_rows,
    curve_metrics,
    curve_notes,
    curve_rows,
    header_rows,
    node_rows,
    outcome,
    point_rows,
    ranking_legend,
    ranking_metrics,
    ranking_title,
    skipped_rows,
)
from hbdebug.results import Ceiling, CurveStep, DataInfo, Effect, Suggestion
from tests.report.example_result import (
    EXAMPLE,
    activation_ranking,
    changed,
    one_sample,
    suggestion,
    two_outputs,
    values,
    without_split,
)


def test_the_header_says_what_was_loaded():
    assert header_rows(two_outputs()) == [
        ("Model", "models/textline/cls_calibrated_model.onnx"),
        ("Kind", "HMCT calibrated, hmct 1.1.0"),
        ("Nodes", "127"),
        ("Points", "154: 96 activation int8, 3 activation int16, 55 weight int8"),
        ("Inputs", "x  float32[1, 3, 48, 192]"),
        ("Outputs", "boxes  float32[1, 25200, 4]"),
        ("", "heads/confidence  float32[1, 80]"),
        ("Samples", "16 of 20 found in calib/ (0.npy ... 15.npy)"),
        ("Scheme", "as in the file; fidelity calibrated; march bayes-e"),
        ("Metrics", "cosine_similarity (ranks), sqnr_db, max_abs_error, top1_agreement"),
        ("Versions", "hbdebug 0.1.0, onnxruntime 1.32.0, numpy 2.4.6"),
        ("Time", "3.9 s (load 0.2, evaluate 3.5)"),
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), "0 of 3 found in calib/"),
        (("a.npy",), "1 of 3 found in calib/ (a.npy)"),
        (("a.npy", "b.npy"), "2 of 3 found in calib/ (a.npy, b.npy)"),
        (("a.npy", "b.npy", "c.npy"), "3 of 3 found in calib/ (a.npy ... c.npy)"),
    ],
)
def test_the_header_counts_the_samples_used_of_those_found(names, text):
    data = DataInfo(path="calib/", samples=names, found=3, complete=len(names))

    assert dict(header_rows(changed(data=data)))["Samples"] == text


def test_the_header_names_the_node_at_whose_outputs_was_measured():
    rows = header_rows(changed(output_node="Conv@12", settings={}, seconds={}))

    assert ("Measured at", "the outputs of node Conv@12") in rows
    assert rows[-1] == ("Versions", "hbdebug 0.1.0")


def test_what_was_left_out_is_counted_by_reason():
    assert skipped_rows(EXAMPLE) == [
        SkippedRow(
            reason="integer-typed",
            count=9,
            names="Shape@0 (Shape), Shape@1 (Shape), Shape@2 (Shape) and 6 more",
        ),
        SkippedRow(
            reason="run in float",
            count=6,
            names="Softmax@0 (Softmax), Softmax@1 (Softmax), Softmax@2 (Softmax) and 3 more",
        ),
    ]


def test_the_ceilings_of_one_output_do_not_repeat_its_name():
    assert ceiling_metrics(EXAMPLE) == (
        "cosine_similarity",
        "sqnr_db",
        "max_abs_error",
        "top1_agreement",
    )
    first, *_, last = ceiling_rows(EXAMPLE)

    assert first == CeilingRow(
        name="as calibrated",
        fidelity="",
        output="",
        cells=("1.71e-01", "4.9", "4.12e-01", "87.5 %"),
    )
    assert last.name == "int16 where bayes-e allows it"


def test_the_ceilings_of_several_outputs_have_a_row_each_and_an_odd_fidelity_is_named():
    rows = ceiling_rows(two_outputs())

    assert [(row.name, row.fidelity, row.output) for row in rows] == [
        ("as calibrated", "", "boxes"),
        ("as calibrated", "", "heads/confidence"),
        ("all activations int16", "integer", "boxes"),
        ("all activations int16", "integer", "heads/confidence"),
    ]


def test_top1_is_shown_only_where_it_was_measured():
    ceilings = tuple(
        dataclasses.replace(
            item, outputs={"boxes": {"cosine_similarity": 0.9, "mse": 0.1, "sqnr_db": math.inf}}
        )
        for item in EXAMPLE.ceilings
    )
    result = changed(ceilings=ceilings, metrics=("mse", "cosine_similarity"))

    assert ceiling_metrics(result) == ("mse", "cosine_similarity", "sqnr_db")
    assert ceiling_rows(result)[0].cells == ("1.00e-01", "1.00e-01", "exact")


def test_node_rows_hold_every_column():
    rows = node_rows(EXAMPLE, top=20)

    assert rows[1] == NodeRow(
        rank="= 2",
        name="MatMul@0",
        op_type="MatMul",
        alone=EffectCells(cells=("5.2", "1.55e-01"), interval="[1.2, 1.9]e-01"),
        weights=EffectCells(cells=("34.6", "7.10e-04")),
        activations=EffectCells(cells=("5.4", "1.49e-01")),
        threshold="3.849",
        dtype="int8",
        action="cpu",
        flags="",
    )
    assert rows[0].weights.cells == ("-", "-")
    assert rows[3].flags == "dead_output"
    assert rows[5].alone == EffectCells(cells=("exact", "0"), interval="0")


def test_only_tied_rows_carry_the_mark():
    rows = node_rows(EXAMPLE, top=20)

    assert [row.rank for row in rows] == ["1", "= 2", "3", "4", "5", "= 6"]


def test_undefined_numbers_are_not_available_and_minus_infinity_stays():
    odd = Effect(
        values={"cosine_similarity": math.nan, "sqnr_db": -math.inf},
        outputs={},
        interval=(math.nan, math.nan),
        flags=("zero_signal",),
    )
    result = changed(nodes=(dataclasses.replace(EXAMPLE.nodes[0], alone=odd),))

    (row,) = node_rows(result, top=1)

    assert row.alone == EffectCells(cells=("-inf", "n/a"), interval="n/a")
    assert row.flags == "zero_signal"
    assert "zero_signal: the float output is all zero, so that no ratio to it means anything" in (
        ranking_legend(result, top=1)
    )


def test_another_ranking_metric_comes_first_with_its_interval():
    numbers = {"mse": 2.5e-3, "cosine_similarity": 0.9, "sqnr_db": 10.0}
    alone = Effect(values=numbers, outputs={"scores": numbers}, interval=(2e-3, 3e-3))
    result = changed(
        metrics=("mse", "cosine_similarity", "sqnr_db"),
        nodes=(dataclasses.replace(EXAMPLE.nodes[0], alone=alone, activations=None),),
    )

    assert ranking_metrics(result) == ("mse", "sqnr_db", "cosine_similarity")
    (row,) = node_rows(result, top=1)
    assert row.alone == EffectCells(
        cells=("2.50e-03", "10.0", "1.00e-01"), interval="[2.0, 3.0]e-03"
    )
    assert "[low, high]: 95 % bootstrap interval of MSE over the samples" in ranking_legend(
        result, top=1
    )


def test_a_metric_that_was_not_measured_has_no_column():
    numbers = {"mse": 0.0}
    alone = Effect(values=numbers, outputs={"scores": numbers}, exact=True)
    result = changed(
        metrics=("mse",), nodes=(dataclasses.replace(EXAMPLE.nodes[0], alone=alone),), ceilings=()
    )

    assert ranking_metrics(result) == ("mse",)
    (row,) = node_rows(result, top=1)
    assert row.flags == "exact"


def test_point_rows_hold_every_column():
    rows = point_rows(activation_ranking(), top=2)

    assert len(rows) == 2
    assert rows[1] == PointRow(
        rank="2",
        name="relu_12.tmp_0_HzCalibration",
        tensor="relu_12.tmp_0",
        consumers="Conv@1, Mul@2, Mul@3 and 1 more",
        granularity="per-channel",
        alone=EffectCells(cells=("27.0", "9.00e-04"), interval="[0.72, 1.1]e-03"),
        threshold="0.5",
        scale="0.003937",
        dtype="int8",
        flags="",
    )


def test_curve_rows_are_those_of_the_worst_output():
    found = two_outputs().suggestion

    assert curve_metrics(found) == ("cosine_similarity", "sqnr_db")
    assert curve_rows(found)[:2] == [
        CurveRow(
            step="0",
            lifted="(as calibrated)",
            to="",
            cells=("4.00e-02", "11.0"),
            output="heads/confidence",
        ),
        CurveRow(step="1", lifted="a", to="cpu", cells=("1.44e-02", "21.0"), output="boxes"),
    ]


def measured(metric, target, *numbers, reached=False, lifted=None, step=None):
    curve = tuple(
        CurveStep(lifted=f"n{index}" if index else "", to="cpu", outputs={"y": {metric: number}})
        for index, number in enumerate(numbers)
    )
    count = len(numbers) - 1 if lifted is None else lifted
    names = {f"n{index}": "cpu" for index in range(count)}
    return Suggestion(
        metric=metric,
        target=target,
        reached=reached,
        curve=curve,
        nodes=names,
        stopped="",
        step=count if step is None else step,
    )


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (suggestion(), "target cosine_similarity 0.999 reached with 2 nodes"),
        (
            measured("sqnr_db", 25.0, 5.0, 26.0, reached=True),
            "target sqnr_db 25 dB reached with 1 node",
        ),
        (
            measured("cosine_similarity", 0.999, 0.9995, reached=True),
            "target cosine_similarity 0.999 is met as calibrated: no node needs lifting",
        ),
        (
            measured("cosine_similarity", 0.999, 0.9, 0.95, 0.9856, 0.97, lifted=2),
            "target cosine_similarity 0.999 not reached: best 0.9856 with 2 nodes",
        ),
        (
            measured("cosine_similarity", 0.999, 0.9, 0.9989999),
            "target cosine_similarity 0.999 not reached: best 0.9989999 with 1 node",
        ),
        (
            measured("mse", 1e-4, 2e-3, 1e-3, math.nan, lifted=1),
            "target mse 0.0001 not reached: best 0.001 with 1 node",
        ),
        (
            measured("cosine_similarity", 0.999, 0.9, 0.8, lifted=0),
            "target cosine_similarity 0.999 not reached: best 0.9 as calibrated, without a lift",
        ),
        (
            measured("mse", 1e-3, math.nan, math.nan),
            "target mse 0.001 not reached: mse was undefined at every step",
        ),
    ],
)
def test_the_outcome_of_the_suggestion_is_one_clear_line(found, text):
    assert outcome(found) == text


def test_the_outcome_counts_the_suggested_nodes_not_the_steps():
    """A step may change a node that was lifted before, or start from an earlier step."""
    found = measured("cosine_similarity", 0.999, 0.9, 0.95, 0.96, 0.97, lifted=2, step=3)

    assert outcome(found).endswith("best 0.97 with 2 nodes")


@pytest.mark.parametrize(
    ("reached", "everywhere", "said"),
    [(False, 0.99, True), (False, 0.95, False), (True, 0.99, False)],
)
def test_int16_everywhere_is_pointed_at_where_it_gives_more_than_the_list(
    reached, everywhere, said
):
    found = measured("cosine_similarity", 0.999, 0.9, 0.97, 0.96, reached=reached, lifted=1)
    ceiling = Ceiling(
        name="int16_where_allowed",
        fidelity="calibrated",
        outputs={"y": {"cosine_similarity": everywhere}},
    )

    line = better_ceiling(dataclasses.replace(EXAMPLE, suggestion=found, ceilings=(ceiling,)))

    assert bool(line) == said
    assert not said or "cosine_similarity 0.99 " in line


def test_notes_name_runs_of_steps_by_their_ends():
    numbers, noted = {"y": values(0.1, 10.0)}, {1, 2, 3, 4, 6, 8, 9}
    curve = tuple(
        CurveStep(
            lifted=f"n{index}", to="cpu", outputs=numbers, notes=("n",) if index in noted else ()
        )
        for index in range(10)
    )

    notes = curve_notes(dataclasses.replace(suggestion(), curve=curve))

    assert notes == ["steps 1-4, 6, 8, 9: n"]


def test_a_node_that_was_put_back_is_explained():
    numbers = {"y": values(0.1, 10.0)}
    curve = (CurveStep(lifted="n", to="keep", outputs=numbers),)

    notes = curve_notes(dataclasses.replace(suggestion(), curve=curve))

    assert notes == ["keep: put back, the target holds without it"]


def test_a_step_that_adds_to_an_earlier_one_says_so():
    numbers = {"y": values(0.1, 10.0)}
    curve = tuple(
        CurveStep(lifted=f"n{index}", to="cpu", outputs=numbers, on=on)
        for index, on in enumerate([0, 0, 1, 1, 3])
    )

    rows = curve_rows(dataclasses.replace(suggestion(), curve=curve))

    assert [row.step for row in rows] == ["0", "1", "2", "3 (on 1)", "4"]


def test_notes_are_said_once_with_their_steps():
    numbers = {"y": values(0.1, 10.0)}
    curve = tuple(
        CurveStep(lifted=f"n{index}", to="cpu", outputs=numbers, notes=notes)
        for index, notes in enumerate([(), ("same",), ("same", "other")])
    )
    found = dataclasses.replace(suggestion(), curve=curve)

    assert curve_notes(found) == ["steps 1, 2: same", "step 2: other"]


def test_the_legend_explains_what_is_shown_and_nothing_else():
    alone = (
        "alone: only this node is quantized, everything else is float; measured at the model "
        "output, mean over 16 samples"
    )
    assert ranking_legend(EXAMPLE, top=1) == [
        "... and 5 more in sensitivity.json",
        alone,
        "[low, high]: 95 % bootstrap interval of 1-cosine over the samples",
        "-: the node has no such points",
    ]
    assert ranking_legend(EXAMPLE, top=6) == [
        alone,
        "[low, high]: 95 % bootstrap interval of 1-cosine over the samples",
        "=: the samples cannot tell this node from the one above",
        "exact: the output did not change at all",
        "dead_output: the quantized output is all zero",
        "-: the node has no such points",
        "cpu (2): MatMul stays int8 on bayes-e whatever its type setting says",
        "cpu (3): GlobalAveragePool stays int8 on bayes-e whatever its type setting says",
    ]


def test_the_legend_says_where_the_damage_was_measured():
    (_, alone, *_) = ranking_legend(changed(output_node="Conv@12"), top=1)
    assert "measured at node Conv@12, mean over 16 samples" in alone
    (alone, *_) = ranking_legend(two_outputs(), top=1)
    assert "measured at the model output, worst of 2 outputs, mean over 16 samples" in alone


def test_missing_columns_are_explained():
    assert "no interval: it takes two samples or more" in ranking_legend(one_sample(), top=3)
    assert "no interval" not in " ".join(ranking_legend(EXAMPLE, top=3))
    assert "weights and activations apart were not measured (--no-split)" in ranking_legend(
        without_split(), top=3
    )
    assert "--no-split" not in " ".join(ranking_legend(activation_ranking(), top=3))
    whole = changed(nodes=(EXAMPLE.nodes[1],))
    assert "no such points" not in " ".join(ranking_legend(whole, top=3))


def test_the_title_says_how_much_is_shown():
    assert ranking_title(EXAMPLE, top=2) == ("Ranking: the worst 2 of 6 nodes by cosine_similarity")
    assert ranking_title(EXAMPLE, top=6) == "Ranking: 6 nodes, worst first by cosine_similarity"
    assert ranking_title(activation_ranking(), top=6) == (
        "Ranking: 3 activation points, worst first by cosine_similarity"
    )
    assert ranking_title(changed(kind="weight"), top=6) == "Ranking: no weight points to rank"
