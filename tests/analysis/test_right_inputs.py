"""Right data of many kinds, about which nothing may be said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hbdebug.analysis.inputs import check_inputs
from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.pipeline import sensitivity
from hbdebug.samples import TensorSpec, open_samples
from tests import models
from tests.analysis.inputs import COUNT, FIXTURES, images, kinds, warnings_of
from tests.analysis.pictures import (
    feature_map,
    imagenet,
    pixels,
    short_time_spectrum,
    voice,
)

# Right data: nothing is said.


def sparse_mask(seed):
    return (np.random.default_rng(seed).random((1, 1, 40, 40)) < 0.03).astype(np.float64)


def dense_mask(seed):
    return (np.random.default_rng(seed).random((1, 1, 40, 40)) < 0.5).astype(np.float64)


def events(seed):
    """Counts of an event camera: most pixels have none."""
    return np.random.default_rng(seed).poisson(0.2, (1, 2, 48, 48)).astype(np.float64)


def one_hot(seed):
    classes = (pixels(seed, channels=1)[0, 0] // 16).astype(int)
    return np.eye(16)[classes].transpose(2, 0, 1)[None]


def padded(seed):
    image = imagenet(pixels(seed))
    image[:, :, 20 + seed :, :] = 0
    return image


def dark_scene(seed):
    """A night picture: few levels, with the noise of the sensor, and a lamp."""
    random = np.random.default_rng(seed)
    image = np.clip(np.rint(random.normal(6, 2, (1, 3, 48, 64))), 0, 255)
    image[:, :, 10:14, 30:34] = 255
    return image / 255


def black_frame(seed):
    """A closed lens: nothing but the noise of the sensor, in whole bytes."""
    random = np.random.default_rng(seed)
    return np.clip(np.rint(random.normal(5, 2, (1, 3, 48, 64))), 0, 255) / 255


def log_mel(seed):
    power = np.abs(short_time_spectrum(voice(seed))) ** 2
    bands = power[:128].reshape(32, 4, -1).mean(1)
    return np.log(bands + 1e-6)[None, None]


def complex_spectrum(seed):
    found = short_time_spectrum(voice(seed))
    return np.stack([found.real, found.imag])[None]


def embeddings(seed, in_common=0.4):
    """Tokens with what all have in common, as rank 4: ``[1, 1, tokens, features]``."""
    table = np.random.default_rng(7).normal(size=(10000, 256))
    common = in_common * np.random.default_rng(8).normal(size=256)
    tokens = np.random.default_rng(seed).choice(10000, 64, replace=False)
    return (table[tokens] + common)[None, None]


def speckle(seed):
    """Radar intensities: independent of each other, but not as a program's noise is spread."""
    return np.random.default_rng(seed).exponential(size=(1, 1, 48, 64))


def drop_outs(seed):
    """Reflectances of which a quarter did not come back."""
    random = np.random.default_rng(seed)
    return random.random((1, 1, 48, 64)) * (random.random((1, 1, 48, 64)) > 0.25)


def codes(seed):
    """Identifiers of 40 classes in no order."""
    return np.random.default_rng(seed).integers(0, 40, (1, 1, 48, 64)).astype(np.float64)


def pillars(seed):
    """Points of a lidar in random order, sorted into pillars, most of them not full."""
    random = np.random.default_rng(seed)
    points = np.zeros((1, 4, 200, 32))
    for index in range(200):
        count = random.integers(1, 20)
        centre = random.uniform(-40, 40, (4, 1))
        points[0, :, index, :count] = centre + random.uniform(-0.1, 0.1, (4, count))
    return points


def waveform(seed):
    return voice(seed)[None, None, None]


def dithered(seed):
    """A picture in black and white, whose dots have its brightness."""
    random = np.random.default_rng(seed)
    image = pixels(seed, channels=1)
    return (random.random(image.shape) * 255 < image).astype(np.float64)


def grainy(seed):
    """A picture under noise of its own contrast: an augmentation that is usual."""
    image = pixels(seed) / 255
    return np.clip(image + np.random.default_rng(seed).normal(0, image.std(), image.shape), 0, 1)


RIGHT = {
    "pictures in bytes": pixels,
    "pictures in 0 ... 1": lambda seed: pixels(seed) / 255,
    "pictures in -1 ... 1": lambda seed: pixels(seed) / 127.5 - 1,
    "pictures minus 128": lambda seed: pixels(seed) - 128,
    "pictures with ImageNet's mean and scale": lambda seed: imagenet(pixels(seed)),
    "pictures, NHWC": lambda seed: imagenet(pixels(seed)).transpose(0, 2, 3, 1),
    "grey pictures": lambda seed: pixels(seed, channels=1) / 255,
    "grey pictures in three channels": lambda seed: pixels(seed, channels=1).repeat(3, 1) / 255,
    "small pictures": lambda seed: pixels(seed, (8, 8)) / 255,
    "a batch in a sample": lambda seed: np.concatenate([pixels(seed), pixels(seed + 50)]) / 255,
    "BGR minus Caffe's mean": lambda seed: (
        pixels(seed) - np.array([103.939, 116.779, 123.68]).reshape(1, 3, 1, 1)
    ),
    "padded pictures": padded,
    "night": dark_scene,
    "black frames": black_frame,
    "grain": grainy,
    "dithering": dithered,
    "feature maps": feature_map,
    "sparse masks": sparse_mask,
    "dense masks": dense_mask,
    "events": events,
    "one hot": one_hot,
    "log mel": log_mel,
    "complex spectrum": complex_spectrum,
    "embeddings": embeddings,
    "embeddings with little in common": lambda seed: embeddings(seed, 0.1),
    "speckle": speckle,
    "drop-outs": drop_outs,
    "codes": codes,
    "temperatures in Kelvin": lambda seed: 280 + pixels(seed, channels=1) / 255 * 30,
    "pillars": pillars,
    "waveform": waveform,
    "vector of noise, as a generator takes": lambda seed: np.random.default_rng(seed).normal(
        size=(1, 512)
    ),
    "sequence of features": lambda seed: np.random.default_rng(seed).normal(size=(1, 64, 80)),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("count", [COUNT, 1])
def test_right_data_raise_no_suspicion(name, count):
    samples = images(RIGHT[name], count)
    largest = max(np.abs(sample["x"]).max() for sample in samples)

    # A threshold is the largest value for "max", and less for methods that clip.
    for threshold in (largest, 0.9 * largest, 1.5 * largest):
        assert kinds(warnings_of(samples, threshold)) == []


def test_the_text_lines_look_like_pictures_and_the_threshold_like_noise():
    """What fixtures/README.md says of them: the model was calibrated on random noise."""
    result = sensitivity(
        FIXTURES / "textline_cls/cls_calibrated_model.onnx",
        FIXTURES / "textline_cls/calib",
        nodes=["HardSigmoid@0"],
        suggest=False,
        split=False,
    )

    (found,) = result.input_warnings
    arrays = [np.load(file) for file in (FIXTURES / "textline_cls/calib/x").glob("*.npy")]
    largest = max(float(np.abs(array).max()) for array in arrays)
    # The threshold that the model's file holds, to its last digit there.
    threshold = 4.731957912445068
    assert (found.name, found.input, len(found.samples)) == ("far_inside_threshold", "x", 8)
    assert found.numbers["largest"] == largest == 1.0
    # The scale is kept in float32, whose rounding is 6e-8 of it.
    assert found.numbers["threshold"] == pytest.approx(threshold, rel=1e-7)
    assert found.numbers["unused_bits"] == pytest.approx(np.log2(threshold), rel=1e-6)
    assert "the data look like pixels in -1 ... 1" in found.evidence
    assert "standard Gaussian noise" in found.evidence


def test_other_inputs_of_usual_models_raise_no_suspicion():
    """Matrices that all samples share, first states, flags, identifiers and masks of ones."""
    camera = np.random.default_rng(0).normal(size=(1, 6, 4, 4))
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, 32), np.linspace(-1, 1, 16)), -1)[None]
    samples = [
        {
            "image": imagenet(pixels(seed)),
            "camera": camera,
            "grid": grid,
            "state": np.zeros((1, 16, 32, 32)) if not seed else feature_map(seed, 16),
            "cache": np.zeros((1, 8, 16, 64)),
            "has_state": np.array([[float(seed > 0)]]),
            "ids": np.random.default_rng(seed).integers(0, 30000, (1, 16)),
            "mask": np.ones((1, 16), np.int64),
        }
        for seed in range(COUNT)
    ]

    # Each input has a point that suits it; what is 0 throughout has any.
    largest = {
        name: max(float(np.abs(sample[name]).max()) for sample in samples) for name in samples[0]
    }
    b = models.CalibratedModel()
    for name, array in samples[0].items():
        kind = models.TensorProto.INT64 if array.dtype.kind == "i" else models.TensorProto.FLOAT
        x = b.input(name, array.shape, kind)
        x = x if array.dtype.kind == "i" else b.point(x, largest[name] or 1.0)
        b.output(b.node("Identity", [x], f"{name}_node"), kind)

    assert kinds(warnings_of(samples, model=load(b.proto()))) == []


def test_no_inner_tensor_of_the_classifier_looks_like_noise():
    """Real feature maps as inputs, one sample and all: 127 tensors, most of rank 4."""
    model = load(FIXTURES / "textline_cls/cls_calibrated_model.onnx")
    names = [node.outputs[0] for node in model.nodes]
    outputs = tuple(TensorSpec(name=name, dtype="float32", shape=()) for name in names)
    engine = Engine(replace(model, outputs=outputs), jobs=1)
    found = [
        (name, engine.forward(arrays, Assignment()))
        for name, arrays in open_samples(FIXTURES / "textline_cls/calib", model.inputs)
    ]
    suspected = {}
    for name in names:
        samples = [(sample, {name: arrays[name]}) for sample, arrays in found]
        spec = TensorSpec(name=name, dtype="float32", shape=samples[0][1][name].shape)
        # Without the points: these thresholds are known to be wrong.
        bare = replace(model, inputs=(spec,), steps=())
        for some in (samples[:1], samples):
            suspected.setdefault(name, []).extend(kinds(check_inputs(bare, some)))

    assert len(suspected) == 127
    assert not {name: said for name, said in suspected.items() if said}
