"""Algebraic laws that whole sets of metrics obey."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from hbdebug.metrics import METRICS, Reference, badness, worst
from tests.property.strategies import finite_floats, long_pairs, pairs, tensors

pytestmark = pytest.mark.property

NAMES = tuple(METRICS)
SYMMETRIC = ("cosine_similarity", "mse", "mae", "max_abs_error", "top1_agreement")
SCALE_FREE = tuple(name for name, metric in METRICS.items() if metric.scale_free)
DEGREE = {"mse": 2, "mae": 1, "max_abs_error": 1}
OVER_ELEMENTS = tuple(name for name in NAMES if name not in {"top1_agreement", "kl_divergence"})

# Sums of at most 144 products in another order, each rounded to 1.1e-16 of the sum.
REORDERED = {"rel": 1e-14, "abs": 1e-14}


def measure(reference, test, names=NAMES):
    return Reference(reference, names).measure(test)


@given(pairs())
def test_exchanging_reference_and_test_changes_no_symmetric_metric(pair):
    a, b = pair
    there, back = measure(a, b, SYMMETRIC), measure(b, a, SYMMETRIC)

    for name in SYMMETRIC:
        assert there[name] == pytest.approx(back[name], **REORDERED), name


@given(pairs(), st.integers(-8, 8))
def test_scaling_both_tensors_scales_each_metric_by_its_degree(pair, exponent):
    # Powers of two scale without rounding, so that only logarithms and square roots round anew.
    a, b = pair
    factor = np.float32(2.0**exponent)
    before, after = measure(a, b), measure(a * factor, b * factor)

    for name in SCALE_FREE:
        assert after[name] == pytest.approx(before[name], rel=1e-14, abs=1e-13), name
    for name, degree in DEGREE.items():
        assert after[name] == before[name] * float(factor) ** degree, name


@given(pairs())
def test_changing_both_signs_changes_no_metric_over_elements(pair):
    a, b = pair

    assert measure(-a, -b, OVER_ELEMENTS) == measure(a, b, OVER_ELEMENTS)


@given(pairs(), st.randoms(use_true_random=False))
def test_the_order_of_elements_does_not_matter(pair, random):
    a, b = pair
    order = list(range(a.size))
    random.shuffle(order)
    before = measure(a, b, OVER_ELEMENTS)
    after = measure(a.ravel()[order], b.ravel()[order], OVER_ELEMENTS)

    for name in OVER_ELEMENTS:
        assert after[name] == pytest.approx(before[name], **REORDERED), name


@given(pairs())
def test_the_order_of_rows_does_not_matter(pair):
    a, b = pair
    before, after = measure(a, b), measure(a[::-1], b[::-1])

    for name in NAMES:
        assert after[name] == pytest.approx(before[name], **REORDERED), name


@given(pairs(), st.integers(2, 4))
def test_repeating_both_tensors_changes_nothing(pair, times):
    a, b = pair
    before, after = measure(a, b), measure(np.tile(a, (times, 1)), np.tile(b, (times, 1)))

    for name in NAMES:
        assert after[name] == pytest.approx(before[name], **REORDERED), name


@given(pairs())
def test_every_value_is_within_its_bounds(pair):
    a, b = pair
    for name, value in measure(a, b).items():
        low, high = METRICS[name].bounds
        assert low <= value <= high, name


@given(tensors())
def test_a_tensor_is_at_its_best_against_itself(a):
    assert measure(a, a.copy()) == {name: METRICS[name].best for name in NAMES}


@given(pairs())
def test_no_tensor_beats_the_reference_itself(pair):
    a, b = pair
    for name, value in measure(a, b).items():
        assert badness(name, value) >= badness(name, METRICS[name].best), name


@given(pairs())
def test_exact_means_that_the_noise_is_zero(pair):
    a, b = pair
    result = Reference(a, ("sqnr_db", "max_abs_error")).examine(b)

    assert result.exact == np.array_equal(a, b)
    assert result.exact == (result.values["sqnr_db"] == math.inf)
    assert result.exact == (result.values["max_abs_error"] == 0)


@given(tensors(dtype=np.float64), st.data(), st.floats(1.001, 100))
def test_more_of_the_same_error_is_never_better(a, data, factor):
    d = data.draw(tensors(a.shape, np.float64))
    assume(np.abs(a).max() > 1 and np.abs(d).max() > 1)
    less, more = measure(a, a + d), measure(a, a + factor * d)

    for name in ("cosine_similarity", "sqnr_db", "mse", "mae", "max_abs_error", "relative_l2"):
        # a + d is rounded to float64 before it is measured: 1e-16 of 1e6 beside a d above 1.
        slack = 1e-9 * max(1.0, abs(less[name]))
        assert badness(name, more[name]) >= badness(name, less[name]) - slack, name


@given(tensors(), st.integers(-8, 8))
def test_the_cosine_does_not_see_a_gain(a, exponent):
    assume(a.any() and exponent)
    values = measure(a, a * np.float32(2.0**exponent))

    # The product and both norms round a few times.
    assert values["cosine_similarity"] == pytest.approx(1, abs=1e-14)
    assert values["relative_l2"] == pytest.approx(abs(2.0**exponent - 1), rel=1e-14)


@given(pairs())
def test_norms_of_the_error_are_ordered(pair):
    a, b = pair
    values = measure(a, b)
    # Equality holds for errors of equal size; each side rounds a few dozen times.
    slack = 1 + 1e-14

    assert values["mae"] <= values["max_abs_error"] * slack
    assert values["mae"] ** 2 <= values["mse"] * slack
    assert values["mse"] <= values["max_abs_error"] ** 2 * slack


@given(pairs())
def test_sqnr_is_the_relative_error_in_decibels(pair):
    a, b = pair
    values = measure(a, b)
    assume(math.isfinite(values["sqnr_db"]))

    # Two quotients and two logarithms are rounded.
    decibels = -20 * math.log10(values["relative_l2"])
    assert values["sqnr_db"] == pytest.approx(decibels, rel=1e-14, abs=1e-14)


@given(pairs(), finite_floats().filter(lambda shift: abs(shift) < 1000))
def test_softmax_does_not_see_a_constant(pair, shift):
    a, b = (np.clip(tensor.astype(np.float64), -50, 50) for tensor in pair)
    before = measure(a, b, ["kl_divergence"])["kl_divergence"]
    after = measure(a + shift, b - shift, ["kl_divergence"])["kl_divergence"]

    # The shifted logits are rounded to 1e-13 of their own.
    assert after == pytest.approx(before, rel=1e-11, abs=1e-11)


@given(pairs(), st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_one_value_that_is_not_finite_spoils_every_metric(pair, bad, data):
    a, b = pair
    spoiled = b.copy()
    spoiled.ravel()[data.draw(st.integers(0, b.size - 1))] = bad

    assert all(math.isnan(value) for value in measure(a, spoiled).values())
    assert all(math.isnan(value) for value in measure(spoiled, a).values())


@given(long_pairs())
def test_blocks_leave_no_seam(pair):
    a, b = pair
    d = b.astype(np.float64) - a
    values = measure(a, b, ("mse", "mae", "max_abs_error"))

    # Up to 20 elements differ, the others add exact zeros.
    assert values["mse"] == pytest.approx(math.fsum(d * d) / a.size, rel=1e-14)
    assert values["mae"] == pytest.approx(math.fsum(np.abs(d)) / a.size, rel=1e-14)
    assert values["max_abs_error"] == np.abs(d).max()


# The largest float itself stands for infinity in the sort key, so that the two would tie.
RANKED = st.floats(-1e308, 1e308, allow_subnormal=False) | st.sampled_from(
    [math.inf, -math.inf, math.nan]
)


@given(st.sampled_from(NAMES), npst.arrays(np.float64, st.integers(1, 8), elements=RANKED))
def test_the_worst_value_heads_the_ranking(name, values):
    values = values.tolist()
    ranked = sorted(values, key=lambda value: badness(name, value), reverse=True)
    measured = [value for value in ranked if not math.isnan(value)]

    assert np.array_equal(worst(name, values), ranked[0], equal_nan=True)
    assert ranked[: len(measured)] == measured
    assert measured == sorted(measured, reverse=not METRICS[name].higher_is_better)
