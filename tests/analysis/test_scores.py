"""Means over samples, intervals, ties and the worst output, against plain arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hbdebug.analysis.scores import (
    Scored,
    Scorer,
    Scores,
    intervals,
    mean_over_samples,
    resampled_means,
    ties,
)

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], 2.0),
        ([1.0, NAN, 3.0], 2.0),
        ([10.0, INF], 10.0),
        ([INF, INF], INF),
        ([-INF, NAN], -INF),
        ([NAN, NAN], NAN),
        ([INF, -INF], NAN),
        ([], NAN),
    ],
)
def test_mean_over_samples_of_what_was_measured(values, expected):
    mean = float(mean_over_samples(np.array(values, np.float64)))

    assert mean == expected or (math.isnan(mean) and math.isnan(expected))


def scored(*values):
    return Scored(values=tuple((value,) for value in values), exact=False)


def test_the_worst_output_counts_never_the_average():
    scorer = Scorer(outputs=("good", "bad"), metrics=("cosine_similarity",))
    scores = Scores.empty(1, 2, scorer)
    scores.add(0, 0, scored(1.0, 0.5))
    scores.add(0, 1, scored(1.0, 0.7))

    effect = scores.effect(0, None, ("cosine_similarity",))

    assert effect.values["cosine_similarity"] == pytest.approx(0.6, abs=1e-15)
    assert effect.outputs["good"]["cosine_similarity"] == 1.0
    assert scores.ranking_values().tolist() == [[0.5, 0.7]]


def test_the_worst_output_follows_the_direction_of_the_metric():
    scorer = Scorer(outputs=("a", "b"), metrics=("mse",))
    scores = Scores.empty(1, 1, scorer)
    scores.add(0, 0, scored(0.1, 3.0))

    assert scores.effect(0, None, ("mse",)).values["mse"] == 3.0
    assert scores.ranking_values().tolist() == [[3.0]]


def test_an_interval_holds_the_mean_and_narrows_with_samples():
    random = np.random.default_rng(0)
    few, many = random.normal(5, 1, (1, 6)), random.normal(5, 1, (1, 600))

    ((low_few, high_few),) = intervals(resampled_means(few, seed=1), 1)
    ((low_many, high_many),) = intervals(resampled_means(many, seed=1), 1)

    assert low_few < few.mean() < high_few
    assert low_many < many.mean() < high_many
    assert high_many - low_many < high_few - low_few


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says():
    random = np.random.default_rng(3)
    hits = 0
    for seed in range(200):
        values = random.normal(0, 1, (1, 30))
        ((low, high),) = intervals(resampled_means(values, seed), 1)
        hits += low <= 0 <= high

    # 95 % nominal; the percentile bootstrap of 30 samples covers a little less (about 93 %),
    # and 200 trials have a standard deviation of 1.8 points.
    assert 0.87 <= hits / 200 <= 0.99


def test_one_sample_has_no_interval_and_no_ties():
    means = resampled_means(np.array([[1.0], [1.0]]), seed=0)

    assert means is None
    assert intervals(means, 2) == [None, None]
    assert ties(means, [0, 1]) == [False, False]


def test_rows_that_samples_can_not_tell_apart_are_tied():
    """The comparison is paired: a constant small difference on noisy samples is no tie."""
    noise = np.random.default_rng(2).normal(0, 1, 12)
    alternating = noise + 0.2 * np.where(np.arange(12) % 2, 1, -1)
    values = np.stack([noise, noise + 0.05, alternating])

    means = resampled_means(values, seed=0)

    assert ties(means, [0, 1, 2]) == [False, False, True]


def test_infinite_values_have_no_interval():
    values = np.array([[1.0, INF, 2.0], [1.0, 2.0, 3.0]])

    first, second = intervals(resampled_means(values, seed=0), 2)

    assert first is None
    assert second is not None


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(0).normal(0, 1, (3, 9))

    assert intervals(resampled_means(values, 7), 3) == intervals(resampled_means(values, 7), 3)
    assert intervals(resampled_means(values, 7), 3) != intervals(resampled_means(values, 8), 3)


def test_top1_is_left_out_where_an_output_does_not_look_like_scores():
    scorer = Scorer(outputs=("map", "scores"), metrics=("cosine_similarity", "top1_agreement"))
    baseline = {
        "map": np.random.default_rng(0).normal(0, 1, (1, 3, 4, 4)).astype(np.float32),
        "scores": np.array([[1.0, 2.0, 0.5]], np.float32),
    }
    scores = Scores.empty(1, 1, scorer)
    scores.add(0, 0, scorer(baseline)({name: array * 1.01 for name, array in baseline.items()}))

    outputs = scores.output_means(0)

    assert "top1_agreement" not in outputs["map"]
    assert outputs["scores"]["top1_agreement"] == 1.0


def test_equal_outputs_are_exact_and_flags_are_kept():
    scorer = Scorer(outputs=("y",), metrics=("cosine_similarity", "sqnr_db"))
    baseline = {"y": np.array([[1.0, -2.0]], np.float32)}
    measure = scorer(baseline)

    same = measure({"y": baseline["y"].copy()})
    dead = measure({"y": np.zeros((1, 2), np.float32)})

    assert same.exact
    assert same.values == ((1.0, INF),)
    assert not dead.exact
    assert dead.flags == ("dead_output",)
