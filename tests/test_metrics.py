"""Metrics against slow formulas, the vendor's numbers, and what every corner case must give."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hbdebug.errors import UsageError
from hbdebug.metrics import (
    BASELINE_NOT_FINITE,
    DEAD_OUTPUT,
    EMPTY,
    METRICS,
    NOT_FINITE,
    ZERO_SIGNAL,
    Reference,
    badness,
    flags,
    looks_like_scores,
    resolve_metric,
    worst,
)

FIXTURES = Path(__file__).parent.parent / "fixtures"


def measure(reference, test):
    return Reference(np.asarray(reference), tuple(METRICS)).measure(np.asarray(test))


def f32(*values):
    return np.array(values, np.float32)


def slow_elementwise(reference, test):
    """Metrics by their textbook formulas, one element at a time; sums are exactly rounded."""
    a = [float(value) for value in reference.ravel()]
    b = [float(value) for value in test.ravel()]
    d = [y - x for x, y in zip(a, b, strict=True)]
    signal, power = math.fsum(x * x for x in a), math.fsum(y * y for y in b)
    error = math.fsum(x * x for x in d)
    product = math.fsum(x * y for x, y in zip(a, b, strict=True))
    return {
        "cosine_similarity": product / math.sqrt(signal * power),
        "sqnr_db": 10 * math.log10(signal / error),
        "mse": error / len(d),
        "mae": math.fsum(abs(x) for x in d) / len(d),
        "max_abs_error": max(abs(x) for x in d),
        "relative_l2": math.sqrt(error) / math.sqrt(signal),
    }


def slow_of_classes(reference, test):
    rows = list(zip(reference.tolist(), test.tolist(), strict=True))
    agree = [x.index(max(x)) == y.index(max(y)) for x, y in rows]
    return {
        "top1_agreement": sum(agree) / len(rows),
        "kl_divergence": math.fsum(slow_kl(x, y) for x, y in rows) / len(rows),
    }


def slow_kl(x, y):
    p, q = slow_softmax(x), slow_softmax(y)
    return math.fsum(v * math.log(v / w) for v, w in zip(p, q, strict=True))


def slow_softmax(x):
    top = max(x)
    powers = [math.exp(value - top) for value in x]
    total = math.fsum(powers)
    return [power / total for power in powers]


@pytest.mark.parametrize("shape", [(1, 2), (3, 7), (5, 1, 1000), (2, 4096), (8193, 2), (3, 8191)])
@pytest.mark.parametrize("noise", [1e-6, 1e-2, 3.0])
def test_fast_pass_equals_the_slow_formulas(shape, noise):
    rng = np.random.default_rng(7)
    reference = rng.standard_normal(shape).astype(np.float32)
    test = (reference + noise * rng.standard_normal(shape)).astype(np.float32)

    fast, slow = measure(reference, test), slow_elementwise(reference, test)
    slow |= slow_of_classes(
        reference.reshape(-1, shape[-1]).astype(float), test.reshape(-1, shape[-1]).astype(float)
    )

    assert list(fast) == list(METRICS)
    for name, value in fast.items():
        # Both are float64; the fast sums round once per element, at worst 1e-16 * sqrt(24,576)
        # of a sum. The KL divergence subtracts logarithms of about 10: 1e-15 absolute.
        assert value == pytest.approx(slow[name], rel=1e-13, abs=4e-15), name


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("float64", -50, 50),
        ("float16", -50, 50),
        ("int8", -128, 128),
        ("uint8", 0, 256),
        ("int32", -(2**31), 2**31),
        ("int64", -(2**52), 2**52),
        ("uint64", 0, 2**53),
        ("bool", 0, 2),
    ],
)
def test_every_number_type_is_widened_before_it_is_subtracted(dtype, low, high):
    values = np.random.default_rng(3).integers(low, high, (2, 4, 50))
    reference, test = (values / 7 if "float" in dtype else values).astype(dtype)

    fast, slow = measure(reference, test), slow_elementwise(reference, test)

    for name, expected in slow.items():
        # Rounding of float64 sums of 200 elements, as above.
        assert fast[name] == pytest.approx(expected, rel=1e-13), name


def test_numbers_worked_out_by_hand():
    values = measure([[3.0, 4.0]], [[3.0, 0.0]])

    # Rounding of a few float64 operations.
    assert values == pytest.approx(
        {
            "cosine_similarity": 0.6,
            "sqnr_db": 10 * math.log10(25 / 16),
            "mse": 8.0,
            "mae": 2.0,
            "max_abs_error": 4.0,
            "relative_l2": 0.8,
            "top1_agreement": 0.0,
            # p = 1 / (1 + e), and the same two probabilities exchanged with e^3 for e.
            "kl_divergence": math.log1p(math.exp(-3)) - math.log1p(math.exp(-1))
            + (4 * math.e / (1 + math.e) - 1),
        },
        rel=1e-14,
    )  # fmt: skip


def test_divergence_is_that_of_the_baseline_from_the_test_tensor():
    coin, loaded = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])

    # Rounding of the logarithms above.
    assert measure(coin, loaded)["kl_divergence"] == pytest.approx(math.log(5 / 3), rel=1e-14)
    assert measure(loaded, coin)["kl_divergence"] == pytest.approx(
        0.9 * math.log(9) + math.log(0.2), rel=1e-14
    )


def test_vendor_numbers_are_reproduced_from_its_own_outputs():
    record = json.loads((FIXTURES / "metric_cases.json").read_text(encoding="utf-8"))
    references = [
        Reference(np.array(output, np.float32), tuple(METRICS))
        for output in record["float_outputs"]
    ]
    assert len(record["cases"]) == 12
    for case in record["cases"]:
        samples = [
            reference.measure(np.array(output, np.float32))
            for reference, output in zip(references, case["outputs"], strict=True)
        ]
        for vendor_name, expected in case["vendor"].items():
            metric = resolve_metric(vendor_name)
            ours = np.mean([sample[metric.name] for sample in samples]) * metric.vendor_factor
            # The vendor computes in float32, whose relative rounding is 6e-8: a few of them for
            # a mean, and a cosine of ones near 1 (it prints 1.0000001 here for some nodes).
            assert ours == pytest.approx(expected, rel=3e-7), (case["node"], vendor_name)


def test_half_of_our_sqnr_is_the_vendors():
    assert resolve_metric("sqnr").name == "sqnr_db"
    assert resolve_metric("sqnr").vendor_factor == 0.5
    # Its formula, written out: norms where ours has powers.
    a, b = f32(1, 2, 3, 4), f32(1, 2, 3, 5)
    vendor = 10 * math.log10(float(np.linalg.norm(a)) / float(np.linalg.norm(a - b)))

    assert measure(a, b)["sqnr_db"] * 0.5 == pytest.approx(vendor, rel=1e-6)  # float32 norms


@pytest.mark.parametrize("exponent", range(3, 9))
def test_a_tiny_distance_keeps_its_digits(exponent):
    # An error of +-h at right angles to a constant signal of 1: the cosine is 1/sqrt(1 + h^2).
    h = 10.0**-exponent
    reference = np.ones(10_000)
    test = reference + h * np.where(np.arange(10_000) % 2, 1, -1)
    h_stored = (test[1] - test[0]) / 2
    distance = h_stored**2 / 2 - 3 * h_stored**4 / 8

    # A cosine near 1 is stored in steps of 1.1e-16; two of them are lost in its quotient.
    assert 1 - measure(reference, test)["cosine_similarity"] == pytest.approx(distance, abs=3e-16)


def test_cosine_survives_a_test_tensor_a_billion_times_smaller():
    rng = np.random.default_rng(1)
    reference = rng.standard_normal(20_000)
    other = rng.standard_normal(20_000)
    cosine = measure(reference, other)["cosine_similarity"]

    values = measure(reference, other * 1e-9)

    # Rounding of sums of 20,000 products; the differences alone would leave no digit.
    assert values["cosine_similarity"] == pytest.approx(cosine, abs=1e-14)
    assert measure(reference, -reference)["cosine_similarity"] == -1.0


@pytest.mark.parametrize("name", METRICS)
def test_equal_tensors_give_the_best_value_whatever_they_hold(name):
    rng = np.random.default_rng(0)
    best = METRICS[name].best
    for tensor in (rng.random((4, 5), np.float32), np.zeros((4, 5)), np.full((4, 5), 7.0)):
        reference = Reference(tensor, [name])

        assert reference.measure(tensor) == {name: best}
        assert reference.measure(tensor.copy()) == {name: best}
        assert reference.examine(tensor.copy()).exact
        assert reference.examine(tensor.copy()).flags == ()


def test_negative_zero_is_no_error():
    result = Reference(f32(0.0, 1.0), ["sqnr_db"]).examine(f32(-0.0, 1.0))

    assert result.exact
    assert result.values == {"sqnr_db": math.inf}


def test_two_zero_tensors_have_no_error():
    # onnxruntime gave an all-zero bias 0 dB and ranked it worst; rknn divided 0 by 0.
    values = measure(np.zeros((1, 4)), np.zeros((1, 4)))

    assert values == {name: metric.best for name, metric in METRICS.items()}
    assert flags(np.zeros((1, 4)), np.zeros((1, 4))) == ()


def test_a_dead_output_is_the_worst_and_flagged():
    # amd-quark counted an output that rounds to zero as distance 0.
    reference = np.array([[0.9, 0.1]], np.float32)
    dead = np.zeros_like(reference)

    result = Reference(reference, tuple(METRICS)).examine(dead)

    assert result.flags == (DEAD_OUTPUT,)
    assert not result.exact
    assert result.values["cosine_similarity"] == 0.0
    assert result.values["sqnr_db"] == 0.0
    assert result.values["relative_l2"] == 1.0
    # Class 0 is the baseline's choice, and argmax of zeros is 0: that is no agreement.
    assert result.values["top1_agreement"] == 0.0
    # The mean of the squares 0.81 and 0.01 of float32 numbers, rounded to 6e-8.
    assert result.values["mse"] == pytest.approx(0.41, rel=2e-7)
    alive = reference + np.float32(0.05)
    for name in ("cosine_similarity", "sqnr_db", "top1_agreement", "relative_l2", "mse"):
        other = Reference(reference, [name]).measure(alive)[name]
        assert badness(name, result.values[name]) > badness(name, other), name


def test_a_zero_signal_is_the_worst_and_flagged():
    reference = np.zeros((1, 2), np.float32)

    result = Reference(reference, tuple(METRICS)).examine(np.array([[3.0, 4.0]], np.float32))

    assert result.flags == (ZERO_SIGNAL,)
    assert result.values == {
        "cosine_similarity": 0.0,
        "sqnr_db": -math.inf,
        "mse": 12.5,
        "mae": 3.5,
        "max_abs_error": 4.0,
        "relative_l2": math.inf,
        "top1_agreement": 0.0,
        # KL of (1/2, 1/2) from softmax(3, 4), rounded a few times.
        "kl_divergence": pytest.approx(-math.log(2) + math.log1p(math.e) - 0.5, rel=1e-14),
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("position", [0, 8191, 8192, 9000])
def test_a_value_that_is_not_finite_gives_nan_and_a_flag(bad, position):
    good = np.linspace(0, 1, 10_000, dtype=np.float32).reshape(1, -1)
    spoiled = good.copy()
    spoiled[0, position] = bad

    for reference, test, flag in (
        (good, spoiled, NOT_FINITE),
        (spoiled, good, BASELINE_NOT_FINITE),
        (spoiled, spoiled.copy(), BASELINE_NOT_FINITE),
    ):
        result = Reference(reference, tuple(METRICS)).examine(test)

        assert result.flags == (flag,)
        assert not result.exact
        assert all(math.isnan(value) for value in result.values.values())
        assert list(result.values) == list(METRICS)


def test_empty_tensors_measure_nothing():
    result = Reference(np.zeros((1, 0, 4)), tuple(METRICS)).examine(np.zeros((1, 0, 4)))

    assert result.flags == (EMPTY,)
    assert not result.exact
    assert all(math.isnan(value) for value in result.values.values())


def test_largest_float32_values_do_not_overflow():
    biggest = np.float32(np.finfo(np.float32).max)
    values = measure(np.full((1, 10), biggest), np.full((1, 10), -biggest))

    assert values["cosine_similarity"] == -1.0
    assert values["max_abs_error"] == 2 * float(biggest)
    # Ten equal squares are summed; the logarithm is rounded a few times.
    assert values["sqnr_db"] == pytest.approx(-10 * math.log10(4), rel=1e-14)


def test_smallest_float32_values_are_not_a_zero_signal():
    tiny = np.finfo(np.float32).smallest_subnormal

    assert flags(f32(tiny, 0), f32(0, 0)) == (DEAD_OUTPUT,)
    assert flags(f32(0, 0), f32(tiny, 0)) == (ZERO_SIGNAL,)
    assert measure(f32(tiny, 0), f32(0, tiny))["cosine_similarity"] == 0.0


def test_a_difference_in_the_last_element_alone_is_found():
    reference = np.ones(3 * 8192 + 5, np.float32)
    test = reference.copy()
    test[-1] = 3

    values = measure(reference, test)

    assert values["max_abs_error"] == 2.0
    assert values["mse"] == 4 / reference.size


def test_a_value_far_from_the_magnitude_of_its_model_can_be_read():
    # A table with "scale 25.3, MSE 53" said nothing to its reader.
    rng = np.random.default_rng(5)
    reference = rng.uniform(-1, 1, (2, 50)).astype(np.float32)
    test = reference + rng.normal(0, 0.01, (2, 50)).astype(np.float32)
    small, large = measure(reference, test), measure(reference * 4096, test * 4096)

    scale_free = {name for name, metric in METRICS.items() if metric.scale_free}
    assert {"cosine_similarity", "sqnr_db", "relative_l2", "top1_agreement"} == scale_free
    for name in METRICS:
        # A power of two scales exactly; only the logarithm of larger powers is rounded anew.
        same = large[name] == pytest.approx(small[name], rel=1e-14)
        assert same == (name in scale_free), name


def test_a_bad_baseline_is_no_damage():
    # MQBench reported the loss itself, not its increase over that of the float model.
    wrong_everywhere = np.array([[0.1, 0.9], [0.2, 0.8]], np.float32)

    values = measure(wrong_everywhere, wrong_everywhere.copy())

    assert values == {name: metric.best for name, metric in METRICS.items()}


def test_strided_tensors_are_read_in_their_own_order():
    rng = np.random.default_rng(2)
    reference, test = rng.random((3, 40, 50)), rng.random((3, 40, 50))

    strided = np.asfortranarray(test)

    assert measure(np.asfortranarray(reference), strided) == measure(reference, test)


def test_threads_change_nothing():
    rng = np.random.default_rng(4)
    reference = Reference(rng.random((9, 3000), np.float32), tuple(METRICS))
    tests = [rng.random((9, 3000), np.float32) for _ in range(40)]
    alone = [reference.measure(test) for test in tests]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(reference.measure, tests)) == alone


def test_results_come_in_the_order_asked_for():
    asked = ("mse", "cosine_similarity", "mae")
    reference = Reference(f32(1, 2), asked)

    assert reference.metrics == asked
    for test in (f32(1, 2), f32(1, 3), f32(1, math.nan)):
        assert tuple(reference.measure(test)) == asked


@pytest.mark.parametrize("names", [["mae"], ["max_abs_error"], ["mae", "max_abs_error"]])
def test_a_metric_does_not_depend_on_its_company(names):
    rng = np.random.default_rng(6)
    reference, test = rng.standard_normal((2, 9000)), rng.standard_normal((2, 9000))
    everything = measure(reference, test)

    assert Reference(reference, names).measure(test) == {name: everything[name] for name in names}


def test_misuse_is_refused():
    reference = Reference(np.zeros((1, 4)), ["mse"])
    with pytest.raises(ValueError, match=r"shape \(4,\) compared with a reference of \(1, 4\)"):
        reference.measure(np.zeros(4))
    with pytest.raises(ValueError, match="object cannot be measured"):
        reference.measure(np.array([["a", "b", None, 1]], object))
    with pytest.raises(KeyError):
        Reference(np.zeros(4), ["accuracy"])


@pytest.mark.parametrize(
    ("shape", "rows"), [((6, 4), 6), ((2, 3, 4), 6), ((6, 4, 1, 1), 6), ((1, 4), 1), ((4,), 1)]
)
def test_top1_counts_rows_along_the_class_axis(shape, rows):
    reference = np.zeros((rows, 4), np.float32)
    reference[:, 2] = 1
    test = reference.copy()
    test[0, 1] = 5

    values = measure(reference.reshape(shape), test.reshape(shape))

    assert values["top1_agreement"] == (rows - 1) / rows
    assert values["kl_divergence"] > 0


@pytest.mark.parametrize("shape", [(), (5, 1), (1, 1, 1, 1)])
def test_fewer_than_two_classes_cannot_disagree(shape):
    reference = np.ones(shape, np.float32)

    for test in (reference.copy(), np.zeros(shape, np.float32), reference * 2):
        values = measure(reference, test)
        assert math.isnan(values["top1_agreement"])
        assert math.isnan(values["kl_divergence"])
        assert not math.isnan(values["mse"])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((2, 3), np.float32), True),
        (np.zeros((1, 2), np.float32), True),
        (np.zeros((1, 1000, 1, 1), np.float32), True),
        (np.eye(3, dtype=np.float32)[None], True),
        (np.full((1, 40, 4), 0.25, np.float32), True),
        (np.full((1, 40, 4), 0.25, np.float32) * np.float32(1.002), False),
        (np.full((1, 40, 4), 0.25, np.float32) * np.float32(1.0009), True),
        (np.array([[[1.5, -0.5]]], np.float32), False),
        (np.array([[[-0.5, 0.75, 0.75]]], np.float32), False),
        (np.array([[[np.nan, 0.5]]], np.float32), False),
        (np.zeros((2, 1), np.float32), False),
        (np.zeros((1, 1, 1, 1), np.float32), False),
        (np.zeros((1, 3, 8, 8), np.float32), False),
        (np.zeros((1, 3, 8, 1), np.float32), False),
        (np.ones((1, 40, 1), np.float32), False),
        (np.zeros(5, np.float32), False),
        (np.zeros((0, 5), np.float32), False),
        (np.zeros((2, 3), np.int64), False),
    ],
)
def test_what_looks_like_scores(array, expected):
    assert looks_like_scores(array) is expected


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("cosine-similarity", "cosine_similarity"),
        ("mse", "mse"),
        ("mre", "mae"),
        ("sqnr", "sqnr_db"),
        ("chebyshev", "max_abs_error"),
        (" SQNR_dB ", "sqnr_db"),
        *((name, name) for name in METRICS),
    ],
)
def test_names_of_ours_and_of_the_vendor_are_understood(typed, name):
    assert resolve_metric(typed) is METRICS[name]


def test_an_unknown_metric_is_answered_with_the_names_there_are():
    with pytest.raises(UsageError, match="unknown metric 'cosine'") as caught:
        resolve_metric("cosine")

    assert "Did you mean cosine_similarity?" in caught.value.hint
    assert all(name in caught.value.hint for name in METRICS)
    assert "chebyshev" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "from_worst"),
    [
        ("cosine_similarity", [-1.0, 0.0, 0.99, 1.0, math.nan]),
        ("sqnr_db", [-math.inf, -3.0, 0.0, 40.0, math.inf, math.nan]),
        ("mse", [math.inf, 1.0, 1e-9, 0.0, math.nan]),
        ("relative_l2", [math.inf, 1.0, 0.0, math.nan]),
        ("top1_agreement", [0.0, 0.5, 1.0, math.nan]),
    ],
)
def test_sorting_by_badness_puts_the_worst_first_and_nan_last(name, from_worst):
    shuffled = [from_worst[i] for i in np.random.default_rng(0).permutation(len(from_worst))]

    ranked = sorted(shuffled, key=lambda value: badness(METRICS[name], value), reverse=True)

    assert np.array_equal(ranked, from_worst, equal_nan=True)
    assert worst(name, shuffled) == from_worst[0]


def test_the_worst_of_nothing_is_nan():
    assert math.isnan(worst("mse", []))
    assert math.isnan(worst("mse", [math.nan, math.nan]))
    assert worst("mse", [math.nan, 0.5]) == 0.5


def test_the_table_states_direction_and_range():
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.best == metric.bounds[1 if metric.higher_is_better else 0]
        assert metric.description
        assert metric.edge_cases
    # The ends that a tensor can reach.
    opposite = measure([[1.0, 0.0]], [[-1.0, 0.0]])
    for name in ("cosine_similarity", "top1_agreement"):
        assert opposite[name] == METRICS[name].bounds[0]
