"""Images: decoded, resized, put in order, computed on and laid out, in the order that is stated."""

from __future__ import annotations

import builtins

import numpy as np
import pytest
from PIL import Image

from hbdebug.errors import DataError, UsageError
from hbdebug.samples import Preparation, TensorSpec, open_samples, parse_preparation
from tests.samples.data import refused

NCHW = TensorSpec(name="x", dtype="float32", shape=(1, 3, 6, 8))
NHWC = TensorSpec(name="x", dtype="float32", shape=(1, 6, 8, 3))
GRAY = TensorSpec(name="x", dtype="float32", shape=(1, 1, 6, 8))


def picture(height=6, width=8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def draw(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def only(path, spec, **options):
    samples = open_samples(path, [spec], preparation=parse_preparation(**options))
    return samples.sample(0)["x"], samples.notes[0]


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".PNG"])
def test_pixels_arrive_as_they_are(tmp_path, suffix):
    draw(tmp_path / f"0{suffix}", picture())

    found, words = only(tmp_path, NCHW)

    np.testing.assert_array_equal(found, picture().transpose(2, 0, 1)[None])
    assert found.dtype == np.float32
    assert words == "x: images are decoded to RGB, NCHW float32"


def test_a_jpeg_is_read(tmp_path):
    flat = np.full((6, 8, 3), 77, np.uint8)
    draw(tmp_path / "0.jpg", flat)

    found, _ = only(tmp_path, NCHW)

    # A picture of one colour survives compression but for a rounding of its colour space.
    np.testing.assert_allclose(found, 77, atol=2)


def test_the_layout_follows_from_the_shape_or_is_given(tmp_path):
    draw(tmp_path / "0.png", picture())
    found, words = only(tmp_path, NHWC)
    np.testing.assert_array_equal(found, picture()[None])
    assert "NHWC" in words

    open_spec = TensorSpec(name="x", dtype="float32", shape=(None, None, None, None))
    with pytest.raises(UsageError, match=r"the layout of input 'x', .* cannot be told"):
        only(tmp_path, open_spec)
    found, _ = only(tmp_path, open_spec, layout="nhwc")
    np.testing.assert_array_equal(found, picture()[None])


def test_channels_in_the_other_order(tmp_path):
    draw(tmp_path / "0.png", picture())

    found, words = only(tmp_path, NCHW, color="bgr")

    np.testing.assert_array_equal(found[0, 0], picture()[..., 2])
    assert "channels in BGR order" in words


def test_one_channel_is_gray(tmp_path):
    draw(tmp_path / "0.png", np.full((6, 8, 3), 50, np.uint8))

    found, words = only(tmp_path, GRAY)

    np.testing.assert_array_equal(found, np.full((1, 1, 6, 8), 50))
    assert "decoded to gray" in words
    with pytest.raises(UsageError, match="has 1 channels, and an image as rgb has 3"):
        only(tmp_path, GRAY, color="rgb")


def test_mean_and_scale_are_per_channel_in_the_order_of_the_channels(tmp_path):
    draw(tmp_path / "0.png", picture())

    found, words = only(tmp_path, NCHW, color="bgr", mean="1,2,3", scale="0.1,0.2,0.3")

    bgr = picture()[..., ::-1].astype(np.float32)
    expected = (bgr - np.array([1, 2, 3], np.float32)) * np.array([0.1, 0.2, 0.3], np.float32)
    np.testing.assert_array_equal(found[0], expected.transpose(2, 0, 1))
    assert words == (
        "x: images are decoded to RGB, channels in BGR order, minus mean 1, 2, 3, "
        "times scale 0.1, 0.2, 0.3, NCHW float32"
    )
    with pytest.raises(UsageError, match="--mean has 2 numbers for 3 channels"):
        only(tmp_path, NCHW, mean="1,2")


def test_another_size_is_refused_unless_resized(tmp_path):
    draw(tmp_path / "0.png", picture(12, 16))

    error = refused(tmp_path, [NCHW])
    found, words = only(tmp_path, NCHW, resize="6x8")

    assert "the image is 12x16 (height x width), and input 'x' takes 6x8" in error.message
    assert "--resize 6x8" in error.hint
    expected = np.asarray(
        Image.fromarray(picture(12, 16)).resize((8, 6), Image.Resampling.BILINEAR)
    )
    np.testing.assert_array_equal(found[0], expected.transpose(2, 0, 1))
    assert "resized to 6x8 (bilinear)" in words


def test_an_input_of_pixels_minus_128_gets_them_so(tmp_path):
    draw(tmp_path / "0.png", picture())
    preparation = Preparation(image_offsets={"x": -128})

    samples = open_samples(tmp_path, [NCHW], preparation=preparation)

    expected = picture().transpose(2, 0, 1)[None].astype(np.float32) - 128
    np.testing.assert_array_equal(samples.sample(0)["x"], expected)
    assert "minus 128" in samples.notes[0]

    np.save(tmp_path / "pixels.npy", picture().transpose(2, 0, 1)[None])
    error = refused(tmp_path / "pixels.npy", [NCHW], preparation=preparation)
    assert "takes pixels -128" in error.message
    assert "array.astype(numpy.float32) -128" in error.hint


def test_an_integer_input_takes_pixels_and_nothing_else(tmp_path):
    draw(tmp_path / "0.png", picture())
    spec = TensorSpec(name="x", dtype="uint8", shape=(1, 6, 8, 3))

    found, _ = only(tmp_path, spec)
    np.testing.assert_array_equal(found, picture()[None])
    assert found.dtype == np.uint8
    with pytest.raises(DataError, match="cannot hold what the image becomes"):
        only(tmp_path, spec, mean="127.5")


def test_what_is_no_image_is_a_clear_error(tmp_path):
    (tmp_path / "0.png").write_bytes(b"\x89PNG\r\n\x1a\nnonsense")
    error = refused(tmp_path, [NCHW])
    assert "cannot be read as an image" in error.message
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 10))
    draw(tmp_path / "0.png", picture())
    assert "takes 1x10" in refused(tmp_path, [spec]).message
    with pytest.raises(UsageError, match="which is no image"):
        open_samples(tmp_path, [TensorSpec(name="x", dtype="float32", shape=(10,))])


def test_without_pillow_the_remedy_is_named(tmp_path, monkeypatch):
    draw(tmp_path / "0.png", picture())
    real = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("PIL"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError) as caught:
        open_samples(tmp_path, [NCHW])
    assert caught.value.hint == "pip install 'hbdebug[images]'"
