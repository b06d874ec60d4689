"""Images and what is computed with data: in the stated order, and echoed."""

from __future__ import annotations

import sys
import tracemalloc

import numpy as np
import pytest

from hbdebug.errors import UsageError
from hbdebug.samples import Preparation, TensorSpec, open_samples, parse_preparation
from tests.samples.data import IMAGE, image, refused, save

NHWC = TensorSpec(name="x", dtype="float32", shape=(1, 4, 5, 3))
GRAY = TensorSpec(name="x", dtype="float32", shape=(1, 1, 4, 5))
OF_128 = {"x": "RGB_128"}


@pytest.fixture
def pillow():
    return pytest.importorskip("PIL.Image")


def pixels(seed=0, shape=(4, 5, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def only(path, spec, **options):
    return open_samples(path, [spec], preparation=Preparation(**options))


def draw(pillow, path, array):
    pillow.fromarray(array).save(path)
    return path


def test_an_image_becomes_channels_first_with_a_batch_of_one(tmp_path, pillow):
    for index in range(3):
        draw(pillow, tmp_path / f"{index}.png", pixels(index))

    for path, index in ((tmp_path, 1), (tmp_path / "1.png", 0)):
        samples = only(path, IMAGE)

        assert np.array_equal(samples.sample(index)["x"], pixels(1).transpose(2, 0, 1)[None])
        assert samples.notes == ("images of input 'x': RGB, HWC->CHW, batch dimension",)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".PNG", ".jpg", ".jpeg"])
def test_formats_of_images(tmp_path, pillow, suffix):
    flat = np.full((4, 5, 3), 77, np.uint8)
    draw(pillow, tmp_path / f"0{suffix}", flat)

    array = only(tmp_path, IMAGE).sample(0)["x"]

    # JPEG keeps a flat gray to the rounding of its quantized mean.
    assert np.abs(array - 77).max() <= (1 if suffix.startswith(".j") else 0)


def test_an_image_for_channels_last_and_for_bytes(tmp_path, pillow):
    draw(pillow, tmp_path / "0.png", pixels())

    samples = only(tmp_path, NHWC)
    assert np.array_equal(samples.sample(0)["x"], pixels()[None])
    assert samples.notes == ("images of input 'x': RGB, batch dimension",)

    spec = TensorSpec(name="x", dtype="uint8", shape=(None, None, None, 3))
    assert np.array_equal(only(tmp_path, spec).sample(0)["x"], pixels()[None])


def test_colors(tmp_path, pillow):
    draw(pillow, tmp_path / "0.png", pixels())
    red, green, blue = (pixels()[..., channel].astype(float) for channel in range(3))

    bgr = only(tmp_path, NHWC, color="bgr").sample(0)["x"][0]
    gray = only(tmp_path, GRAY).sample(0)["x"][0, 0]
    yuv = only(tmp_path, NHWC, color="yuv444").sample(0)["x"][0]

    assert np.array_equal(bgr, pixels()[..., ::-1])
    # ITU-R BT.601; Pillow rounds its fixed-point sums, so a unit may be off.
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    assert np.abs(gray - luma).max() <= 1
    expected = [luma, 128 + (blue - luma) / 1.772, 128 + (red - luma) / 1.402]
    assert np.abs(yuv - np.clip(np.stack(expected, -1), 0, 255)).max() <= 1
    assert "RGB->BGR" in only(tmp_path, NHWC, color="bgr").notes[0]
    assert "gray (BT.601 luma)" in only(tmp_path, GRAY).notes[0]


def test_gray_and_palette_and_opaque_images_become_rgb(tmp_path, pillow):
    gray = pixels(shape=(4, 5))
    draw(pillow, tmp_path / "0.png", gray)
    draw(pillow, tmp_path / "1.png", np.dstack([pixels(), np.full((4, 5), 255, np.uint8)]))
    pillow.fromarray(gray // 128).convert("P").save(tmp_path / "2.png")

    arrays = [arrays["x"][0] for _, arrays in only(tmp_path, NHWC)]

    assert np.array_equal(arrays[0], np.dstack([gray] * 3))
    assert np.array_equal(arrays[1], pixels())
    assert arrays[2].shape == (4, 5, 3)


@pytest.mark.parametrize("mode", ["I;16", "RGBA", "CMYK"])
def test_images_that_8_bits_of_rgb_do_not_hold_are_refused(tmp_path, pillow, mode):
    file = tmp_path / f"0{'.jpg' if mode == 'CMYK' else '.png'}"
    pillow.new(mode, (5, 4)).save(file)

    error = refused(tmp_path, [IMAGE])

    # Pillow called a PNG of 16 bits I before it called it I;16.
    said = "transparent" if mode == "RGBA" else f"mode is {mode.partition(';')[0]}"
    assert said in error.message
    assert "Save it" in error.hint


def test_another_size_is_refused_with_both_and_resized_only_when_asked(tmp_path, pillow):
    draw(pillow, tmp_path / "0.png", np.full((8, 9, 3), 50, np.uint8))

    error = refused(tmp_path, [IMAGE])

    assert error.message == "the image is 8x9 (height x width), and the model wants 4x5"
    assert "Give --resize 4x5" in error.hint
    for asked in ("model", (4, 5)):
        samples = only(tmp_path, IMAGE, resize=asked)
        assert (samples.sample(0)["x"] == 50).all()
        assert samples.sample(0)["x"].shape == (1, 3, 4, 5)
        assert "resize 4x5 bilinear, RGB," in samples.notes[0]
    error = refused(tmp_path, [IMAGE], preparation=Preparation(resize=(4, 6)))
    assert error.message == "--resize gives 4x6, and the model wants 4x5"


def test_images_of_any_size_for_open_sizes(tmp_path, pillow):
    spec = TensorSpec(name="x", dtype="float32", shape=(None, 3, None, None))
    draw(pillow, tmp_path / "0.png", pixels(shape=(4, 5, 3)))
    draw(pillow, tmp_path / "1.png", pixels(shape=(7, 6, 3)))

    shapes = [arrays["x"].shape for _, arrays in only(tmp_path, spec)]

    assert shapes == [(1, 3, 4, 5), (1, 3, 7, 6)]
    assert (
        "--resize HEIGHTxWIDTH"
        in refused(tmp_path, [spec], preparation=Preparation(resize="model")).hint
    )


def test_offset_mean_and_scale_come_in_that_order_and_are_echoed(tmp_path, pillow):
    draw(pillow, tmp_path / "0.png", pixels())
    mean, scale = (123.675, 116.28, 103.53), (0.0171, 0.0175, 0.0174)

    samples = only(tmp_path, IMAGE, color="bgr", offset=(-1.0,), mean=mean, scale=scale)

    # float32 throughout, one operation after the other; the channels are those after the color.
    values = pixels()[..., ::-1].astype(np.float32) + np.float32(-1)
    values = (values - np.array(mean, np.float32)) * np.array(scale, np.float32)
    assert np.array_equal(samples.sample(0)["x"], values.transpose(2, 0, 1)[None])
    (note,) = samples.notes
    assert note == (
        "images of input 'x': RGB->BGR, float32, + offset -1, - mean [123.675, 116.28, 103.53], "
        "* scale [0.0171, 0.0175, 0.0174], HWC->CHW, batch dimension"
    )
    assert only(tmp_path, NHWC, mean=mean).sample(0)["x"].shape == (1, 4, 5, 3)


def test_arrays_are_computed_with_as_well(tmp_path):
    save(tmp_path / "0.npy", image())

    samples = only(tmp_path, IMAGE, mean=(1.0, 2.0, 3.0), scale=(2.0,))

    offsets = np.array([1, 2, 3], np.float32).reshape(3, 1, 1)
    assert np.array_equal(samples.sample(0)["x"], (image() - offsets) * np.float32(2))
    assert samples.notes == ("data of input 'x': float32, - mean [1, 2, 3], * scale 2",)
    assert samples.digest != only(tmp_path, IMAGE).digest


def test_nothing_is_lost_before_it_is_computed_with(tmp_path):
    spec = TensorSpec(name="x", dtype="int64", shape=(1, 2))
    save(tmp_path / "0.npy", np.array([[1, 2**24 + 1]]))

    error = refused(tmp_path, [spec], preparation=Preparation(offset=(1.0,)))

    assert "int64 values in the file would change: 16777217 at [0, 1]" in error.message
    half = TensorSpec(name="x", dtype="float16", shape=(1, 2))
    save(tmp_path / "0.npy", np.array([[1.0, 3.0]], np.float32))
    samples = only(tmp_path, half, scale=(0.1,))
    # 0.1 in float32, multiplied there, and rounded once to float16.
    assert samples.sample(0)["x"].tolist() == [[0.0999755859375, 0.300048828125]]


def test_numbers_are_for_image_inputs_where_there_are_several(tmp_path):
    other = TensorSpec(name="y", dtype="float32", shape=(1, 2))
    np.savez(tmp_path / "0.npz", x=image(), y=np.ones((1, 2), np.float32))

    samples = open_samples(tmp_path, [IMAGE, other], preparation=Preparation(scale=(2.0,)))

    assert np.array_equal(samples.sample(0)["x"], image() * 2)
    assert (samples.sample(0)["y"] == 1).all()
    np.savez(tmp_path / "0.npz", x=np.ones((1, 2), np.float32), y=np.ones((1, 2), np.float32))
    specs = [TensorSpec(name="x", dtype="float32", shape=(1, 2)), other]
    with pytest.raises(UsageError, match="are for inputs of four dimensions"):
        open_samples(tmp_path, specs, preparation=Preparation(scale=(2.0,)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (1.0, 2.0)}, "--mean has 2 values, and the input 3 channels"),
        ({"color": "hsv"}, "no such color"),
        ({"layout": "chwn"}, "no such layout"),
        ({"resize": (0, 5)}, "is no size of images"),
        ({"resize": "big"}, "is no size of images"),
        ({"scale": (np.inf,)}, "the scale is not finite"),
        ({"color": "bgr"}, "--color is for images, and the data hold none"),
        ({"resize": "model"}, "--resize is for images, and the data hold none"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, message):
    save(tmp_path / "0.npy", image())

    with pytest.raises(UsageError, match=message):
        only(tmp_path, IMAGE, **options)


def test_a_layout_that_cannot_be_told_is_asked_for(tmp_path, pillow):
    draw(pillow, tmp_path / "0.png", pixels(shape=(3, 3, 3)))
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 3, 3, 3))

    assert "Give --layout nchw or --layout nhwc." in refused(tmp_path, [spec]).hint
    assert np.array_equal(
        only(tmp_path, spec, layout="nhwc").sample(0)["x"][0], pixels(shape=(3, 3, 3))
    )


def test_images_for_what_is_no_image_input(tmp_path, pillow):
    draw(pillow, tmp_path / "0.png", pixels())

    for shape, message in (
        ((1, 60), "images are given, and it has 2 dimensions"),
        ((8, 3, 4, 5), "images are given, and its batch is 8"),
        ((1, 4, 4, 5), "does not tell whether it is NCHW or NHWC"),
    ):
        spec = TensorSpec(name="x", dtype="float32", shape=shape)
        assert message in refused(tmp_path, [spec]).message
    assert (
        "gray images have 1 channels, and the input has 3"
        in refused(tmp_path, [IMAGE], preparation=Preparation(color="gray")).message
    )


def test_two_images_of_one_name_are_not_mixed_up(tmp_path, pillow):
    draw(pillow, tmp_path / "0.bmp", pixels())
    draw(pillow, tmp_path / "0.png", pixels(1))

    assert "called like '0.bmp'" in refused(tmp_path, [IMAGE]).message


def test_a_damaged_image_is_a_clear_error(tmp_path, pillow):
    content = draw(pillow, tmp_path / "0.png", pixels()).read_bytes()
    (tmp_path / "0.png").write_bytes(content[:60])
    assert "cannot be read as an image" in refused(tmp_path, [IMAGE]).message

    (tmp_path / "0.png").write_bytes(b"no image")
    assert "cannot be read as an image" in refused(tmp_path, [IMAGE]).message


def test_a_png_that_claims_too_much_takes_no_memory(tmp_path, pillow):
    # Found by the fuzzer: the decoder asked the file for the 64 MB that a chunk claimed to have.
    content = bytearray(draw(pillow, tmp_path / "0.png", pixels()).read_bytes())
    content[content.index(b"IDAT") - 4] = 4
    (tmp_path / "0.png").write_bytes(content)
    only(tmp_path, IMAGE)

    tracemalloc.start()
    samples = only(tmp_path, IMAGE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # The pixels are whole, and so readable; buffers of the decoder are far below this.
    assert np.array_equal(samples.sample(0)["x"][0], pixels().transpose(2, 0, 1))
    assert peak < 4_000_000


def test_an_image_beyond_all_networks_is_refused_unread(tmp_path, pillow):
    pillow.new("1", (20_000, 20_000)).save(tmp_path / "0.png")

    error = refused(tmp_path, [IMAGE], preparation=Preparation(resize="model"))

    assert "400000000 pixels" in error.message


def test_without_pillow_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "0.png").write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "PIL", None)

    with pytest.raises(UsageError, match="Pillow, which is not installed") as caught:
        only(tmp_path, IMAGE)
    assert caught.value.hint == "pip install 'hbdebug[images]'"


# Image inputs of the chip, which take pixels minus 128.


def test_images_become_minus_128_where_the_input_wants_it(tmp_path, pillow):
    draw(pillow, tmp_path / "0.png", pixels())

    samples = only(tmp_path, NHWC, input_types={"x": "BGR_128"})

    assert np.array_equal(samples.sample(0)["x"][0], pixels()[..., ::-1].astype(np.float32) - 128)
    (note,) = samples.notes
    assert note == (
        "images of input 'x': RGB->BGR, float32, + offset -128 (the input's type is BGR_128), "
        "batch dimension"
    )


@pytest.mark.parametrize(
    ("kind", "color"),
    [("RGB_128", "RGB"), ("GRAY_255", "gray"), ("YUV_BT601_FULL_RANGE_128", "YUV444"),
     ("FEATURE_255", "RGB")],
)  # fmt: skip
def test_the_color_follows_from_the_type(tmp_path, pillow, kind, color):
    draw(pillow, tmp_path / "0.png", pixels())
    spec = GRAY if kind.startswith("GRAY") else IMAGE

    notes = only(tmp_path, spec, input_types={"x": kind}).notes

    assert color in notes[0]
    assert ("-128" in notes[0]) == kind.endswith("_128")


@pytest.mark.parametrize("kind", ["YUV444_128", "YUV_BT601_VIDEO_RANGE_128"])
def test_a_color_that_is_not_certain_is_asked_for(tmp_path, pillow, kind):
    draw(pillow, tmp_path / "0.png", pixels())

    error = refused(tmp_path, [IMAGE], preparation=Preparation(input_types={"x": kind}))

    assert kind in error.message
    assert "--color yuv444" in error.hint


def test_pixels_for_an_input_of_minus_128_are_refused_until_it_is_settled(tmp_path):
    values = pixels(shape=(1, 3, 4, 5))
    save(tmp_path / "bytes/0.npy", values)
    save(tmp_path / "floats/0.npy", values.astype(np.float32))
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/0.rgb").write_bytes(values.tobytes())

    for folder, words in (("bytes", "uint8"), ("floats", "values up to 2"), ("raw", "uint8")):
        dtypes = {"": "uint8"} if folder == "raw" else {}
        asked = {"input_types": OF_128, "dtypes": dtypes}
        error = refused(tmp_path / folder, [IMAGE], preparation=Preparation(**asked))
        assert "takes pixels minus 128 (its type is RGB_128)" in error.message
        assert words in error.message
        assert "--offset -128" in error.hint

        shifted = only(tmp_path / folder, IMAGE, offset=(-128.0,), **asked)
        assert np.array_equal(shifted.sample(0)["x"], values.astype(np.float32) - 128)
        plain = only(tmp_path / folder, IMAGE, offset=(0.0,), **asked)
        assert np.array_equal(plain.sample(0)["x"], values)


def test_data_that_are_minus_128_already_pass(tmp_path):
    values = pixels(shape=(1, 3, 4, 5)).astype(np.float32) - 128
    save(tmp_path / "0.npy", values)

    samples = only(tmp_path, IMAGE, input_types=OF_128)

    assert np.array_equal(samples.sample(0)["x"], values)
    assert samples.notes == ()


# Words of the command line.


def test_options_are_parsed():
    asked = parse_preparation(
        dtypes=["uint8", "a=b=int8"], shapes=["1x3x4x5", "y=7"], resize="48x192", color="BGR",
        layout="nhwc", offset="-128", mean="1,2.5,3", scale="0.5", split_batch=False,
    )  # fmt: skip

    assert asked == Preparation(
        dtypes={"": "uint8", "a=b": "int8"}, shapes={"": (1, 3, 4, 5), "y": (7,)},
        resize=(48, 192), color="bgr", layout="nhwc", offset=(-128.0,), mean=(1.0, 2.5, 3.0),
        scale=(0.5,), split_batch=False,
    )  # fmt: skip
    assert parse_preparation() == Preparation()
    assert Preparation(input_types=OF_128).asked() == {}
    assert asked.asked()["resize"] == (48, 192)
    assert asked.asked()["split_batch"] is False


@pytest.mark.parametrize(
    ("option", "text", "message"),
    [
        ("resize", "48", "is no size of images"),
        ("resize", "0x5", "is no size of images"),
        ("mean", "1,,2", "is no list of numbers"),
        ("scale", "x", "is no list of numbers"),
        ("shapes", ["x=3,4"], "is no shape"),
        ("offset", "nan", "the offset is not finite"),
    ],
)
def test_options_that_cannot_be_read(option, text, message):
    with pytest.raises(UsageError, match=message):
        parse_preparation(**{option: text})
