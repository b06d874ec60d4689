"""Records survive JSON, and what is not a record is refused by name."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hbdebug.errors import DataError
from hbdebug.results import Ceiling, Effect, NodeResult, PointResult, SensitivityResult
from tests.report.example_result import (
    EXAMPLE,
    LISTING,
    activation_ranking,
    changed,
    one_sample,
    two_outputs,
    without_split,
)


def through_text(result):
    """Write as strict JSON text, and read back."""
    return SensitivityResult.from_json(json.loads(json.dumps(result.to_json(), allow_nan=False)))


@pytest.mark.parametrize(
    "result",
    [
        EXAMPLE,
        without_split(),
        one_sample(),
        two_outputs(),
        activation_ranking(),
        changed(complete=False, warnings=("the signal is near zero", "x")),
        changed(nodes=(), ceilings=(), suggestion=None, not_analysed=(), settings={}, seconds={}),
    ],
    ids=["full", "no split", "one sample", "outputs", "points", "interrupted", "empty"],
)
def test_a_result_read_back_equals_the_one_written(result):
    # SQNR of infinity is in the example; there is no NaN, so == is the whole comparison.
    assert through_text(result) == result


NUMBERS = st.floats(width=64)
METRIC_VALUES = st.dictionaries(
    st.sampled_from(["cosine_similarity", "sqnr_db", "mse", "max_abs_error"]), NUMBERS, min_size=1
)
OUTPUTS = st.dictionaries(st.text(min_size=1, max_size=4), METRIC_VALUES, max_size=3)
EFFECTS = st.builds(
    Effect,
    values=METRIC_VALUES,
    outputs=OUTPUTS,
    interval=st.none() | st.tuples(NUMBERS, NUMBERS),
    exact=st.booleans(),
    flags=st.lists(st.text(max_size=4), max_size=2).map(tuple),
)


def same(one, other):
    """Equality in which NaN equals NaN; repr writes every double in full."""
    return repr(one) == repr(other)


# No deadline: the first example pays for imports.
@settings(deadline=None, max_examples=60)
@given(alone=EFFECTS, weights=st.none() | EFFECTS, activations=st.none() | EFFECTS, outputs=OUTPUTS)
def test_every_number_survives_infinite_and_undefined_ones_too(
    alone, weights, activations, outputs
):
    node = dataclasses.replace(
        EXAMPLE.nodes[0], alone=alone, weights=weights, activations=activations
    )
    point = dataclasses.replace(activation_ranking().points[0], alone=alone)
    ceiling = Ceiling(name="all_int16", fidelity="integer", outputs=outputs)
    result = changed(nodes=(node,), points=(point,), ceilings=(ceiling,))

    back = through_text(result)

    assert same(back, result)


def test_an_infinite_sqnr_is_null_with_exact_beside_it():
    record = EXAMPLE.to_json()

    assert record["nodes"][-1]["alone"]["sqnr_db"] is None
    assert record["nodes"][-1]["alone"]["exact"] is True
    assert record["nodes"][-1]["outputs"]["scores"]["sqnr_db"] is None
    assert record["nodes"][-1]["outputs"]["scores"]["exact"] is True
    assert "non_finite" not in json.dumps(record)


def test_one_exact_output_of_two_stays_exact_when_the_other_is_not():
    outputs = {"a": {"sqnr_db": math.inf}, "b": {"sqnr_db": 12.5}}
    node = dataclasses.replace(
        EXAMPLE.nodes[0], alone=Effect(values={"sqnr_db": 12.5}, outputs=outputs)
    )

    (back,) = through_text(changed(nodes=(node,))).nodes

    assert back.alone.outputs == outputs


def test_the_names_that_scripts_build_on_are_in_the_record():
    record = EXAMPLE.to_json()

    assert record["schema_version"] == 1
    assert {
        *("hbdebug_version", "command", "model", "data", "scheme", "fidelity", "metrics", "seed"),
        *("ceilings", "nodes", "points", "not_analysed", "suggestion"),
    } <= record.keys()
    assert {"path", "sha256", "kind", "march"} <= record["model"].keys()
    assert {"path", "samples", "found"} <= record["data"].keys()
    assert record["ceilings"][0].keys() == {"name", "fidelity", "outputs"}
    assert {
        *("rank", "name", "op_type", "points", "alone", "outputs", "weights", "activations"),
        "suggestion",
    } <= record["nodes"][0].keys()
    assert record["nodes"][0]["weights"] is None
    assert {"cosine_similarity", "interval"} <= record["nodes"][0]["alone"].keys()
    assert record["not_analysed"][0].keys() == {"name", "op_type", "reason"}
    assert {"target", "reached", "curve", "nodes"} <= record["suggestion"].keys()
    assert {"lifted", "to", "outputs"} <= record["suggestion"]["curve"][0].keys()
    assert {
        *("name", "role", "tensor", "dtype", "granularity", "threshold", "scale", "consumers"),
        "alone",
    } <= activation_ranking().to_json()["points"][0].keys()


def test_numpy_numbers_are_written_as_plain_ones():
    result = changed(
        seed=np.int64(7),
        settings={"budget": np.float32(0.5), "exact": np.bool_(True)},  # noqa: FBT003
    )

    record = json.loads(json.dumps(result.to_json(), allow_nan=False))

    assert (record["seed"], record["settings"]) == (7, {"budget": 0.5, "exact": True})


def test_a_file_of_an_older_writer_of_this_schema_gets_the_defaults():
    record = EXAMPLE.to_json()
    for name in ("record", "warnings", "seconds", "settings", "complete"):
        del record[name]
    del record["nodes"][0]["note"]

    back = SensitivityResult.from_json(record)

    assert back == changed(warnings=(), seconds={}, settings={})


def test_a_whole_number_is_as_good_as_one_with_a_point():
    record = copy.deepcopy(EXAMPLE.to_json())
    record["nodes"][0]["threshold"] = 21
    record["suggestion"]["target"] = 1

    back = SensitivityResult.from_json(record)

    assert repr(back.nodes[0].threshold) == "21.0"
    assert repr(back.suggestion.target) == "1.0"


def test_a_null_is_an_undefined_number_or_an_absent_one_as_the_field_says():
    record = copy.deepcopy(EXAMPLE.to_json())
    record["nodes"][0]["threshold"] = None
    record["suggestion"]["target"] = None

    back = SensitivityResult.from_json(record)

    assert back.nodes[0].threshold is None
    assert math.isnan(back.suggestion.target)


def test_additions_of_a_newer_writer_of_this_schema_are_ignored():
    record = EXAMPLE.to_json()
    record["colour"] = "red"
    record["nodes"][0]["colour"] = "red"
    record["suggestion"]["curve"][0]["cost"] = 3
    record["model"]["size"] = 1

    assert SensitivityResult.from_json(record) == EXAMPLE


def test_a_newer_schema_is_refused_with_both_versions():
    record = {**EXAMPLE.to_json(), "schema_version": 2}

    with pytest.raises(DataError, match="schema version 2; this hbdebug reads up to 1") as caught:
        SensitivityResult.from_json(record)

    assert caught.value.exit_code == 4
    assert "Upgrade" in caught.value.hint


@pytest.mark.parametrize(
    "record", [{}, [], "text", None, 3, {"schema_version": "1"}, {"schema_version": True}]
)
def test_what_hbdebug_did_not_write_is_refused(record):
    with pytest.raises(DataError, match="not a result of hbdebug"):
        SensitivityResult.from_json(record)


def test_another_record_of_hbdebug_is_refused_by_its_name():
    with pytest.raises(DataError, match="'listing' record"):
        SensitivityResult.from_json(LISTING.to_json())


def spoil(record, path, value):
    """Set what ``path`` leads to, or delete it."""
    *way, last = path
    for step in way:
        record = record[step]
    if value is DELETED:
        del record[last]
    else:
        record[last] = value


DELETED = object()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("command",), DELETED, "command: missing"),
        (("nodes",), {}, "nodes: expected a list"),
        (("nodes", 2), "Conv", r"nodes\[2\]: expected an object, found 'Conv'"),
        (("nodes", 2, "rank"), "x", r"nodes\[2\]\.rank: expected a whole number, found 'x'"),
        (("nodes", 2, "rank"), True, r"nodes\[2\]\.rank: expected a whole number"),
        (("nodes", 1, "alone"), None, r"nodes\[1\]\.alone: expected an object"),
        (("nodes", 1, "alone", "exact"), DELETED, r"nodes\[1\]\.alone\.exact: missing"),
        (("nodes", 1, "alone", "interval"), [1], r"alone\.interval: expected 2 entries, found 1"),
        (("nodes", 1, "alone", "interval"), ["a", 1], r"interval\[0\]: expected a number"),
        (("nodes", 1, "alone", "sqnr_db"), "5", r"alone\.sqnr_db: expected a number, found '5'"),
        (("nodes", 1, "outputs"), DELETED, r"nodes\[1\]\.alone: outputs: missing"),
        (("nodes", 1, "weights", "outputs"), 3, r"weights: outputs: expected an object"),
        (("ceilings", 0, "outputs", "scores"), [], r"outputs\.scores: expected an object"),
        (("complete",), 1, "complete: expected true or false"),
        (("data", "samples"), "ab", r"data\.samples: expected a list"),
        (("suggestion", "curve", 0, "to"), 1, r"suggestion\.curve\[0\]\.to: expected a string"),
        (("ceilings", 0, "outputs", "scores", "non_finite"), [1], "non_finite: expected an object"),
    ],
)
def test_a_malformed_field_is_named(path, value, message):
    record = copy.deepcopy(EXAMPLE.to_json())
    spoil(record, path, value)

    with pytest.raises(DataError, match=message) as caught:
        SensitivityResult.from_json(record)

    assert caught.value.exit_code == 4


def test_a_word_that_is_no_number_is_refused_beside_a_null():
    record = copy.deepcopy(EXAMPLE.to_json())
    record["ceilings"][0]["outputs"]["scores"].update(sqnr_db=None, non_finite={"sqnr_db": "huge"})

    with pytest.raises(DataError, match="expected inf, -inf or nan in non_finite, found 'huge'"):
        SensitivityResult.from_json(record)


def test_records_cannot_be_changed_after_the_measurement():
    for record in (EXAMPLE, EXAMPLE.nodes[0], EXAMPLE.nodes[0].alone, LISTING):
        name = dataclasses.fields(record)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, "another")


def test_the_listing_has_a_json_form_with_every_point_and_node():
    record = json.loads(json.dumps(LISTING.to_json(), allow_nan=False))

    assert (record["schema_version"], record["record"]) == (1, "listing")
    assert record["points"][2] == {
        "name": "softmax_in_HzCalibration",
        "role": "activation",
        "dtype": "",
        "granularity": "",
        "threshold": None,
        "scale": None,
        "tensor": "linear_1.tmp_1",
        "consumers": ["Softmax@0", "ArgMax@0"],
        "enabled": False,
        "reason": "switched off in the file",
        "name_in_file": None,
        "original": "",
    }
    assert record["nodes"][1] == {
        "name": "Softmax@0",
        "op_type": "Softmax",
        "points": [],
        "analysed": False,
        "reason": "run in float",
        "name_in_file": None,
    }


def test_fields_of_a_ranking_line_are_all_written():
    for line, record in (
        (EXAMPLE.nodes[0], EXAMPLE.to_json()["nodes"][0]),
        (activation_ranking().points[0], activation_ranking().to_json()["points"][0]),
    ):
        assert isinstance(line, (NodeResult, PointResult))
        assert {field.name for field in dataclasses.fields(line)} <= record.keys()
