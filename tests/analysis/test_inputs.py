"""Data that do not fit a model are told from data that do; a wrong suspicion is worse than none."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest

from hbdebug.analysis.inputs import check_inputs
from hbdebug.loading import load
from hbdebug.pipeline import sensitivity
from hbdebug.results import SensitivityResult
from tests import models
from tests.analysis.inputs import COUNT, as_input, images, kinds, model_for, warnings_of
from tests.analysis.pictures import (
    MEAN,
    STD,
    feature_map,
    imagenet,
    pixels,
)
from tests.command import hbdebug

# Noise.


def noise(kind, shape=(1, 3, 32, 32)):
    def make(seed):
        random = np.random.default_rng(seed)
        return {
            "uniform": lambda: random.random(shape),
            "uniform, -1 ... 1": lambda: random.uniform(-1, 1, shape),
            "bytes": lambda: random.integers(0, 256, shape).astype(np.float64),
            "Gaussian": lambda: random.normal(size=shape),
            "normalized bytes": lambda: imagenet(random.integers(0, 256, shape)),
        }[kind]()

    return make


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("uniform", "uniform noise"),
        ("uniform, -1 ... 1", "uniform noise"),
        ("bytes", "uniform noise"),
        ("normalized bytes", "uniform noise"),
        ("Gaussian", "Gaussian noise"),
    ],
)
def test_noise_is_called_noise(kind, words):
    (found,) = warnings_of(images(noise(kind)))

    assert found.name == "looks_like_noise"
    assert found.samples == tuple(str(index) for index in range(COUNT))
    assert words in found.evidence
    assert "real data" in found.remedy


@pytest.mark.parametrize("shape", [(1, 32, 32, 3), (1, 64, 10, 10), (2, 3, 16, 16), (1, 1, 8, 8)])
def test_noise_is_found_in_any_layout_and_size(shape):
    """The smallest ones only together: 64 pixels alone say too little, 18 times as many enough."""
    assert kinds(warnings_of(images(noise("uniform", shape), 18))) == ["looks_like_noise"]


def test_few_pixels_of_noise_are_not_judged():
    assert kinds(warnings_of(images(noise("uniform", (1, 1, 8, 8)), 2))) == []


def test_the_numbers_of_noise_are_its_correlations():
    samples = images(noise("uniform"), 2)
    (found,) = warnings_of(samples)

    strongest = 0.0
    for axis, lag in ((3, 1), (3, 2), (2, 1), (2, 2)):
        values = []
        for sample in samples:
            x = sample["x"].astype(np.float32).astype(np.float64)
            for plane in x[0]:
                d = plane - plane.mean()
                a, c = (d, d.T)[axis == 2], lag
                values.append((a[:, c:] * a[:, :-c]).mean() / d.var())
        mean = float(np.mean(values))
        strongest = mean if abs(mean) > abs(strongest) else strongest
    # Sums in another order.
    assert found.numbers["strongest_correlation"] == pytest.approx(strongest, rel=1e-9)
    x = np.stack([sample["x"].astype(np.float32) for sample in samples]).astype(np.float64)
    d = x - x.mean(axis=(3, 4), keepdims=True)
    kurtosis = ((d**4).mean(axis=(3, 4)) / (d**2).mean(axis=(3, 4)) ** 2).mean() - 3
    assert found.numbers["excess_kurtosis"] == pytest.approx(kurtosis, rel=1e-9)


def test_samples_of_noise_among_pictures_are_named():
    samples = images(lambda seed: pixels(seed) / 255)
    samples[3] = {"x": noise("uniform", (1, 3, 48, 64))(3)}
    samples[5] = {"x": noise("uniform", (1, 3, 48, 64))(5)}

    (found,) = warnings_of(samples)

    assert (found.name, found.samples) == ("looks_like_noise", ("3", "5"))


def test_a_single_feature_map_of_noise_is_not_judged():
    """Deep in a network, one map of an attention can look random; eight do not."""
    random = noise("Gaussian", (1, 32, 24, 32))
    mixed = images(feature_map)
    mixed[3] = {"x": random(3)}

    assert kinds(warnings_of(images(random, 1))) == []
    assert kinds(warnings_of(mixed)) == []
    assert kinds(warnings_of(images(random, 2))) == ["looks_like_noise"]


# Thresholds.


@pytest.mark.parametrize(
    ("make", "threshold", "found", "expected"),
    [
        (pixels, 1.0, "pixels in 0 ... 255 (all are integers)", "pixels in 0 ... 1 or -1 ... 1"),
        (pixels, 2.64, "pixels in 0 ... 255", "ImageNet's mean and scale"),
        (pixels, 128.0, "pixels in 0 ... 255", "pixels minus 128"),
        (
            lambda seed: (pixels(seed) / 255 - MEAN) * 255,
            2.64,
            "pixels minus ImageNet's mean, without its scale",
            "ImageNet's mean and scale",
        ),
        (
            lambda seed: (imagenet(pixels(seed)) - MEAN) / STD,
            2.64,
            "pixels with ImageNet's mean and scale applied twice",
            "ImageNet's mean and scale",
        ),
        (
            lambda seed: pixels(seed) / 255 / STD,
            2.64,
            "pixels with ImageNet's scale, without its mean",
            "ImageNet's mean and scale",
        ),
    ],
)
def test_data_far_outside_the_threshold(make, threshold, found, expected):
    samples = images(make)
    (warning,) = warnings_of(samples, threshold)

    values = np.concatenate([sample["x"].ravel() for sample in samples])
    assert warning.name == "beyond_threshold"
    assert f"the data look like {found}" in warning.evidence
    assert expected in warning.evidence.partition("the threshold fits")[2]
    largest = np.abs(values).max()
    # float32 data and a float32 scale.
    assert warning.numbers["ratio"] == pytest.approx(largest / threshold, rel=1e-6)
    clipped = (np.abs(values) > threshold * (1 + 0.5 / 127)).mean()
    assert warning.numbers["clipped"] == pytest.approx(clipped, abs=1e-3)


@pytest.mark.parametrize(
    ("factor", "name", "words"),
    [
        (255.0, "beyond_threshold", "near 255"),
        (1 / 127.5, "far_inside_threshold", "near 127.5"),
        (3.0, "beyond_threshold", ""),
    ],
)
def test_a_known_ratio_is_pointed_out(factor, name, words):
    """Three dimensions are no image, so that only the ratio says something."""
    (found,) = warnings_of(images(lambda seed: pixels(seed, channels=1)[0] / 255 * factor), 1.0)

    assert found.name == name
    assert words in found.evidence
    assert ("the ratio is near" in found.evidence) == bool(words)


def test_one_sample_of_another_scale_is_named():
    samples = images(lambda seed: pixels(seed) / 255)
    samples[4]["x"] = samples[4]["x"] * 255

    (found,) = warnings_of(samples, 1.0)

    assert (found.name, found.samples) == ("beyond_threshold", ("4",))


@pytest.mark.parametrize("share", [0.001, 0.02, 0.04])
def test_what_a_calibration_clips_on_purpose_is_not_data_outside(share):
    """Methods by entropy or percentile give up outliers, however large."""

    def heavy(seed):
        random = np.random.default_rng(seed)
        x = np.abs(feature_map(seed, 16))
        return np.where(random.random(x.shape) < share, 10 * x.max(), x + 1e-3)

    samples = images(heavy)

    assert kinds(warnings_of(samples, float(np.quantile(samples[0]["x"], 1 - 1.5 * share)))) == []


@pytest.mark.parametrize(
    ("make", "threshold", "found", "expected"),
    [
        (lambda seed: pixels(seed) / 255 / 255, 1.0, "divided by 255 twice", "0 ... 1 or -1"),
        (lambda seed: pixels(seed) / 255, 255.0, "pixels in 0 ... 1", "pixels in 0 ... 255"),
        (lambda seed: imagenet(pixels(seed)), 128.0, "ImageNet's mean and scale", "minus 128"),
        (lambda seed: pixels(seed) / 127.5 - 1, 4.73, "pixels in -1 ... 1", "Gaussian noise"),
    ],
)
def test_data_far_inside_the_threshold(make, threshold, found, expected):
    samples = images(make)
    (warning,) = warnings_of(samples, threshold)

    largest = max(np.abs(sample["x"]).max() for sample in samples)
    assert warning.name == "far_inside_threshold"
    assert found in warning.evidence.partition("the threshold fits")[0]
    assert expected in warning.evidence.partition("the threshold fits")[2]
    # float32 data and a float32 scale.
    assert warning.numbers["ratio"] == pytest.approx(largest / threshold, rel=1e-6)
    assert warning.numbers["unused_bits"] == pytest.approx(np.log2(threshold / largest), rel=1e-5)


def test_only_colour_pictures_surely_reach_the_ends_of_their_range():
    colours = images(lambda seed: pixels(seed) / 255 / 5)
    greys = images(lambda seed: pixels(seed, channels=1) / 255 / 5)

    assert kinds(warnings_of(colours, 1.0)) == ["far_inside_threshold"]
    assert kinds(warnings_of(greys, 1.0)) == []
    assert kinds(warnings_of(greys, 2.0)) == ["far_inside_threshold"]


def test_few_samples_may_have_missed_the_large_values():
    """A dark picture or two are no sign; 1/255 is."""
    dim = images(lambda seed: pixels(seed) / 255 / 6, 2)
    tiny = images(lambda seed: pixels(seed) / 255 / 255, 2)

    assert kinds(warnings_of(dim, 1.0)) == []
    assert kinds(warnings_of(tiny, 1.0)) == ["far_inside_threshold"]


def test_an_asymmetric_range_counts_on_both_sides():
    """uint8 for 0 ... 1: what is negative is clipped, however small."""
    samples = images(lambda seed: pixels(seed) / 127.5 - 1)

    def asymmetric(low, high):
        scale = (high - low) / 255
        return {
            "dtype": "uint8",
            "quant_attrs": 0x11121,
            "thresholds": [low, high],
            "scales": [scale],
            "zero_point": [float(round(-low / scale))],
        }

    (found,) = warnings_of(samples, 1.0, **asymmetric(0.0, 1.0))
    inside = warnings_of(images(lambda seed: pixels(seed) / 255), 1.0, **asymmetric(-2.1, 2.6))

    assert found.name == "beyond_threshold"
    assert kinds(warnings_of(samples, 1.0, **asymmetric(-1.0, 1.0))) == []
    assert kinds(inside) == ["far_inside_threshold"]
    # 4.7 wide against 1; the scale is float32 and the zero point whole.
    assert inside[0].numbers["ratio"] == pytest.approx(1 / 4.7, rel=0.01)


def test_thresholds_that_say_nothing_about_the_input_are_not_compared():
    """Operands of a Concat share one, and a GridSample's grid has one of the converter's own."""
    b = models.CalibratedModel()
    x, y = b.input("x", (1, 3, 48, 64)), b.input("y", (1, 3, 48, 64))
    grid = b.input("grid", (1, 16, 32, 2))
    joined = b.node("Concat", [b.point(x, 300.0), b.point(y, 300.0)], "joined", axis=1)
    b.output(b.hz("GridSample", [b.point(joined, 300.0), b.point(grid, 64.0)], "sampled"))
    model = load(b.proto())
    lattice = np.stack(np.meshgrid(np.linspace(-1, 1, 32), np.linspace(-1, 1, 16)), -1)[None]
    samples = [
        {"x": pixels(seed) / 255, "y": pixels(seed + 50), "grid": lattice} for seed in range(COUNT)
    ]

    assert kinds(warnings_of(samples, model=model)) == []


def test_a_point_behind_a_transpose_is_compared():
    b = models.CalibratedModel()
    x = b.input("x", (1, 48, 64, 3))
    moved = b.node("Transpose", [x], "moved", perm=[0, 3, 1, 2])
    b.output(b.conv(moved, (3, 2), "conv", threshold=1.0))

    found = warnings_of(
        images(lambda seed: pixels(seed).transpose(0, 2, 3, 1)), model=load(b.proto())
    )

    assert kinds(found) == ["beyond_threshold"]


# Normalized twice, or not at all.


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda seed: imagenet(pixels(seed) / 255), "divided by 255 twice"),
        (lambda seed: (pixels(seed) / 255) / 127.5 - 1, "in 0 ... 1 that were taken"),
    ],
)
def test_pixels_in_a_narrow_band(make, words):
    samples = images(make)
    (found,) = warnings_of(samples, 2.64)

    planes = np.concatenate([sample["x"] for sample in samples]).transpose(1, 0, 2, 3)
    planes = planes.reshape(3, -1).astype(np.float32).astype(np.float64)
    spans, middles = np.ptp(planes, axis=1), np.abs(planes.max(1) + planes.min(1)) / 2
    assert found.name == "narrow_range"
    assert words in found.evidence
    assert found.numbers["widest_share"] == pytest.approx((spans / middles).max(), rel=1e-9)


def test_a_doubled_normalization_is_seen_without_a_threshold():
    b = models.CalibratedModel()
    x = b.node("Relu", [b.input("x", (1, 3, 48, 64))], "relu")
    b.output(b.node("Relu", [b.point(x)], "other"))
    model = load(b.proto())
    twice = images(lambda seed: (imagenet(pixels(seed)) - MEAN) / STD)

    (found,) = warnings_of(twice, model=model)

    assert found.name == "normalized_twice"
    # ((0 - 0.485) / 0.229 - 0.485) / 0.229 and ((1 - 0.406) / 0.225 - 0.406) / 0.225; float32.
    assert found.numbers["lowest"] == pytest.approx(-11.3664, abs=1e-3)
    assert found.numbers["highest"] == pytest.approx(9.9289, abs=1e-3)
    assert kinds(warnings_of(images(lambda s: imagenet(pixels(s))), model=model)) == []


def preprocessed(input_type, layout="NCHW"):
    """A model that normalizes pixels itself."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 3, 48, 64))
    weight = b.weight("w", np.full((3, 1, 1, 1), 0.017))
    bias = b.constant("bias", np.zeros(3, np.float32))
    y = b.hz(
        "HzPreprocess",
        [b.point(x, 127.0), weight, bias],
        "HZ_PREPROCESS_FOR_x",
        input_type=input_type,
        channel_group=3,
        data_format=layout,
    )
    b.output(b.point(y))
    return load(b.proto())


@pytest.mark.parametrize(
    ("input_type", "make", "words"),
    [
        ("RGB_128", pixels, "the -128 is missing"),
        ("BGR_128", lambda seed: imagenet(pixels(seed)), "normalized already"),
        ("RGB_128", lambda seed: pixels(seed) / 255, "normalized already"),
        ("RGB_128", lambda seed: pixels(seed) - 160, "do not leave that range"),
        ("RGB_255", lambda seed: pixels(seed) - 128, "128 seems to be subtracted"),
        ("RGB_255", lambda seed: pixels(seed) / 127.5 - 1, "normalized already"),
    ],
)
def test_pixels_that_the_model_does_not_take(input_type, make, words):
    (found,) = warnings_of(images(make), model=preprocessed(input_type))

    assert found.name == "pixel_convention"
    assert words in found.evidence
    assert input_type in found.evidence


@pytest.mark.parametrize(
    ("input_type", "make"),
    [
        ("RGB_128", lambda seed: pixels(seed) - 128),
        ("YUV_BT601_FULL_RANGE_128", lambda seed: pixels(seed) - 128),
        ("RGB_128", lambda seed: np.maximum(pixels(seed), 128) - 128),
        ("RGB_128", lambda seed: (pixels(seed) - 127.5) * 1.1),
        ("RGB_255", pixels),
        ("FEATURE_255", lambda seed: imagenet(pixels(seed))),
    ],
)
def test_pixels_that_the_model_takes(input_type, make):
    """The fourth: a bicubic resize in float overshoots."""
    assert kinds(warnings_of(images(make), model=preprocessed(input_type))) == []


# Channels.


def test_mean_and_scale_in_reverse_order_are_observed():
    def reverse(seed):
        return (pixels(seed) / 255 - MEAN[:, ::-1]) / STD[:, ::-1]

    (found,) = warnings_of(images(reverse))

    assert found.name == "channel_order"
    # (0 - 0.406) / 0.225 and (1 - 0.406) / 0.225 for the first channel.
    assert "-1.804, -2.036, -2.118 and 2.640, 2.429, 2.249" in found.evidence
    assert "right for a model that was trained so" in found.remedy


def test_channels_in_reverse_order_to_the_thresholds():
    thresholds = [2.25, 2.43, 2.64]
    point = {
        "quant_attrs": 0x12111,  # an activation, per channel
        "thresholds": thresholds,
        "scales": [float(np.float32(item / 127)) for item in thresholds],
        "axis": 1,
    }
    right = images(lambda seed: imagenet(pixels(seed)))
    turned = images(lambda seed: imagenet(pixels(seed))[:, ::-1])

    assert kinds(warnings_of(right, 1.0, **point)) == []
    (found,) = warnings_of(turned, 1.0, **point)
    assert found.name == "channel_order"
    assert "2.250, 2.430, 2.640" in found.evidence


def test_a_channel_that_never_changes():
    def two_channels(seed):
        image = pixels(seed)
        image[:, 1] = 7
        return image

    (found,) = warnings_of(images(two_channels))

    assert found.name == "constant_channels"
    assert "channel 1 is 7" in found.evidence


def test_dead_channels_of_a_feature_map_are_usual():
    def some_dead(seed):
        x = feature_map(seed)
        x[:, ::3] = 0
        return x

    assert kinds(warnings_of(images(some_dead))) == []


# Samples.


def test_constant_samples_are_named_with_their_value():
    samples = images(lambda seed: pixels(seed) / 255)
    samples[2]["x"] = np.zeros((1, 3, 48, 64))

    (found,) = warnings_of(samples)

    assert (found.name, found.samples) == ("constant_samples", ("2",))
    assert "(0)" in found.evidence


def test_equal_samples_are_named_in_groups():
    samples = images(lambda seed: pixels(seed % 6) / 255)

    (found,) = warnings_of(samples)

    assert (found.name, found.input) == ("duplicate_samples", "")
    assert found.samples == ("0", "6", "1", "7")
    assert "0 = 6; 1 = 7" in found.evidence
    assert "6 of 8 samples are different" in found.evidence


def test_samples_that_are_equal_in_one_input_only_are_different():
    samples = [
        {"x": pixels(0) / 255, "ids": np.array([[seed] * 16], np.int64)} for seed in range(COUNT)
    ]

    assert "duplicate_samples" not in kinds(warnings_of(samples))


def test_samples_that_are_nearly_the_same_picture():
    base = pixels(0) / 255

    def shaken(seed):
        return base + np.random.default_rng(seed).normal(0, 0.0005, base.shape)

    samples = images(shaken)
    (found,) = warnings_of(samples)

    x = np.stack([sample["x"] for sample in samples]).astype(np.float32).astype(np.float64)
    expected = np.sqrt(((x - x.mean(0)) ** 2).mean() / x.mean(0).var())
    assert found.name == "nearly_identical_samples"
    # The same moments, updated sample by sample.
    assert found.numbers["relative_difference"] == pytest.approx(expected, rel=1e-9)


def test_ragged_and_empty_samples_are_taken():
    samples = [{"x": imagenet(pixels(seed, (40 + seed, 64)))} for seed in range(COUNT)]
    samples[3]["x"] = np.zeros((1, 3, 0, 64))

    assert kinds(warnings_of(samples, 2.64)) == []


# The run.


def small_network():
    b = models.CalibratedModel()
    x = b.node("Relu", [b.conv(b.input("x", (1, 3, 24, 24)), (3, 4), "a", threshold=2.64)], "relu")
    b.output(b.conv(x, (4, 2), "b"))
    return b.proto()


def test_case_10_random_data_are_called_noise_and_pictures_are_not(tmp_path):
    """On random data another tool showed lower errors than on real ones, without a word."""
    random = models.save_samples(
        tmp_path / "random",
        [{"x": as_input(noise("normalized bytes", (1, 3, 24, 24))(seed))} for seed in range(8)],
    )
    real = models.save_samples(
        tmp_path / "real",
        [{"x": as_input(imagenet(pixels(seed, (24, 24))))} for seed in range(8)],
    )

    suspected = sensitivity(small_network(), random, suggest=False)
    trusted = sensitivity(small_network(), real, suggest=False)

    assert kinds(suspected.input_warnings) == ["looks_like_noise"]
    assert trusted.input_warnings == ()
    assert SensitivityResult.from_json(suspected.to_json()) == suspected


def test_the_report_names_input_samples_and_numbers(tmp_path):
    samples = [{"x": as_input(imagenet(pixels(seed, (24, 24))))} for seed in range(8)]
    samples[2]["x"] *= np.float32(58)
    samples[6]["x"] = samples[1]["x"]
    folder = models.save_samples(tmp_path / "calib", samples)
    model = tmp_path / "tiny_calibrated_model.onnx"
    onnx.save(small_network(), model)

    done = hbdebug("sensitivity", model, folder, "--no-suggest", "-o", tmp_path / "out")

    assert "Data: signs that the samples do not fit the model" in done.out
    assert "input x, sample 2: values reach" in done.out
    assert "times the threshold 2.64 of x_HzCalibration" in done.out
    assert "all inputs, 2 of 8 samples (1, 6): equal to the last bit: 1 = 6" in done.out
    assert "may not fit the model: beyond_threshold, duplicate_samples" in done.err


def test_memory_does_not_grow_with_the_samples():
    model = model_for([{"x": np.zeros((1, 3, 128, 128), np.float32)}], 1.0)

    def peak(count):
        random = np.random.default_rng(0)
        arrays = (
            (str(index), {"x": random.random((1, 3, 128, 128), dtype=np.float32)})
            for index in range(count)
        )
        tracemalloc.start()
        check_inputs(model, arrays)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(2)  # what is imported or cached once
    # A sample takes 196 kB; the few numbers that are kept of it less than 4.
    assert peak(40) - peak(4) < 36 * 4096


def test_samples_are_read_once():
    class Counting:
        def __init__(self, samples):
            self.samples, self.passes = samples, 0

        def __iter__(self):
            self.passes += 1
            return iter(self.samples)

    arrays = [as_input(imagenet(pixels(seed))) for seed in range(3)]
    samples = Counting([(str(index), {"x": array}) for index, array in enumerate(arrays)])

    check_inputs(model_for([{"x": arrays[0]}], 2.64), samples)

    assert samples.passes == 1
