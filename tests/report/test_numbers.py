"""How numbers are written for people."""

from __future__ import annotations

import math

import pytest

from hbdebug.metrics import METRICS
from hbdebug.report.numbers import (
    format_interval,
    format_metric,
    format_raw,
    metric_label,
    some_of,
    worst_output,
)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cosine_similarity", 0.99999, "1.00e-05"),
        ("cosine_similarity", 1.0, "0"),
        ("cosine_similarity", 1.0 + 2**-52, "0"),
        ("cosine_similarity", -0.25, "1.25e+00"),
        ("cosine_similarity", math.nan, "n/a"),
        ("sqnr_db", 31.449, "31.4"),
        ("sqnr_db", -0.01, "0.0"),
        ("sqnr_db", math.inf, "exact"),
        ("sqnr_db", -math.inf, "-inf"),
        ("sqnr_db", math.nan, "n/a"),
        ("max_abs_error", 0.0123456, "1.23e-02"),
        ("max_abs_error", 0.0, "0"),
        ("relative_l2", math.inf, "inf"),
        ("top1_agreement", 0.9375, "93.8 %"),
        ("top1_agreement", math.nan, "n/a"),
        ("mse", None, ""),
        ("a_metric_of_tomorrow", 1234.5, "1.23e+03"),
    ],
)
def test_a_value_is_written_so_that_it_says_something(name, value, text):
    assert format_metric(name, value) == text


@pytest.mark.parametrize(
    ("name", "interval", "text"),
    [
        ("cosine_similarity", (0.81, 0.88), "[1.2, 1.9]e-01"),
        ("cosine_similarity", (0.9, 0.99), "[0.10, 1.0]e-01"),
        ("cosine_similarity", (0.5, 0.9999999), "[1.0e-07, 5.0e-01]"),
        ("cosine_similarity", (0.999, 1.0), "[0, 1.0]e-03"),
        ("cosine_similarity", (1.0, 1.0), "0"),
        ("mse", (9.96e-8, 1.23e-8), "[0.12, 1.0]e-07"),
        ("mse", (1.0, math.inf), "[1.0e+00, inf]"),
        ("sqnr_db", (3.14, 5.26), "[3.1, 5.3]"),
        ("sqnr_db", (3.14, math.inf), "[3.1, exact]"),
        ("top1_agreement", (0.875, 1.0), "[87.5, 100.0] %"),
        ("mse", (math.nan, 1.0), "n/a"),
        ("mse", None, ""),
    ],
)
def test_an_interval_is_written_in_the_unit_of_its_metric(name, interval, text):
    assert format_interval(name, interval) == text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cosine_similarity", 0.999, "0.999"),
        ("cosine_similarity", 0.9989999, "0.999"),
        ("cosine_similarity", 0.99896, "0.99896"),
        ("cosine_similarity", 0.5, "0.5"),
        ("cosine_similarity", 1.0, "1"),
        ("sqnr_db", 25.0, "25 dB"),
        ("top1_agreement", 0.99, "99.0 %"),
        ("mse", 1e-4, "0.0001"),
        ("cosine_similarity", math.nan, "n/a"),
    ],
)
def test_a_target_is_written_as_the_user_typed_it(name, value, text):
    assert format_raw(name, value) == text


def test_a_target_missed_narrowly_looks_missed():
    assert format_raw("cosine_similarity", 0.9989999, unlike=0.999) == "0.9989999"
    assert format_raw("sqnr_db", 24.99999, unlike=25.0) == "24.99999 dB"
    assert format_raw("top1_agreement", 0.98999, unlike=0.99) == "98.999 %"
    assert format_raw("cosine_similarity", 0.9856, unlike=0.999) == "0.9856"
    assert format_raw("cosine_similarity", 0.999, unlike=0.999) == "0.999"


def test_every_metric_has_a_column_head_of_its_own():
    labels = [metric_label(name) for name in METRICS]

    assert len(set(labels)) == len(METRICS)
    assert metric_label("a_metric_of_tomorrow") == "a_metric_of_tomorrow"


@pytest.mark.parametrize(
    ("metric", "worst"),
    [("cosine_similarity", "b"), ("sqnr_db", "a"), ("mse", "b"), ("a_metric_of_tomorrow", "a")],
)
def test_the_worst_output_follows_the_direction_of_the_metric(metric, worst):
    outputs = {
        "a": {"cosine_similarity": 0.9, "sqnr_db": 10.0, "mse": 0.1},
        "b": {"cosine_similarity": 0.8, "sqnr_db": 20.0, "mse": 0.2},
        "c": {"cosine_similarity": math.nan, "sqnr_db": math.nan, "mse": math.nan},
        "d": {},
    }

    assert worst_output(outputs, metric).output == worst
    assert worst_output({}, metric).output == ""


def test_names_are_counted_where_they_are_not_listed():
    assert some_of(["a", "b"], 2) == "a, b"
    assert some_of(["a", "b", "c", "d"], 2) == "a, b and 2 more"
    assert some_of([], 2) == ""
