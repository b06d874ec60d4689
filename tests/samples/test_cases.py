"""Public bug reports on calibration data, each with the model that triggers it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from PIL import Image

from hbdebug import pipeline, recording
from hbdebug.errors import DataError
from hbdebug.loading import load
from hbdebug.samples import Preparation
from tests.command import hbdebug
from tests.models import CalibratedModel, inputs_for, one_coarse_node, save_samples


def classifier(shape, *, target=(1, -1)):
    """Two convolutions, and a batch that a Reshape takes for one."""
    b = CalibratedModel()
    x = b.node("Relu", [b.conv(b.input("x", shape), (3, 4), "a")], "relu")
    y = b.conv(x, (4, 2), "b")
    b.output(b.node("Reshape", [y, b.constant("flat", np.array(target))], "reshape"))
    return b.proto()


def samples_of(count, seed=3):
    random = np.random.default_rng(seed)
    return [random.normal(0, 1, (1, 3, 6, 6)).astype(np.float32) for _ in range(count)]


def files(folder, batches):
    folder.mkdir()
    for index, batch in enumerate(batches):
        np.save(folder / f"{index}.npy", np.concatenate(batch))
    return folder


def measured(model, data, **options):
    result = pipeline.sensitivity(model, data, suggest=False, jobs=1, **options)
    assert result.complete
    return result


def numbers(result):
    """Return what was measured, by node: metric -> value of the ranking."""
    found = {node.name: dict(node.alone.values) for node in result.nodes}
    assert any(found.values())
    return found


def test_case_50_samples_of_different_lengths(tmp_path):
    # Elsewhere: "inhomogeneous shape" once outputs had the lengths 7, 9 and 12.
    b = CalibratedModel()
    x = b.input("x", (1, "seq", 8))
    y = b.node("MatMul", [b.point(x), b.point(b.constant("w", np.eye(8, dtype=np.float32)))], "mm")
    b.output(y)
    random = np.random.default_rng(0)
    for index, length in enumerate((7, 9, 12)):
        np.save(tmp_path / f"{index}.npy", random.normal(0, 1, (1, length, 8)).astype(np.float32))

    result = measured(b.proto(), tmp_path)

    assert result.data.samples == ("0", "1", "2")
    assert [node.name for node in result.nodes] == ["mm"]


def test_case_51_batches_of_8_and_a_last_one_of_3(tmp_path):
    # Elsewhere: calibration failed with any batch but 1, and with a last one that was smaller.
    many = samples_of(11)
    for shape in ((1, 3, 6, 6), ("N", 3, 6, 6)):
        model = classifier(shape)
        folder = tmp_path / str(shape[0])
        folder.mkdir()
        one = measured(model, files(folder / "ones", [[item] for item in many]))
        batches = measured(model, files(folder / "eights", [many[:8], many[8:]]))

        assert len(batches.data.samples) == 11
        assert batches.data.samples[-1] == "1[2]"
        assert numbers(batches) == numbers(one)
        assert any("2 files hold several samples each (3, 8" in note for note in batches.notes)


def test_case_52_a_last_batch_that_a_baked_shape_does_not_fit(tmp_path):
    # Elsewhere: a last batch of 19 instead of 32 broke a Reshape that had 32 baked in. Here the
    # rule is that every batch is split, so that no batch is dropped or filled up.
    many = samples_of(7)
    model = classifier(("batch", 3, 6, 6), target=(1, 2, 36))

    batches = measured(model, files(tmp_path / "calib", [many[:4], many[4:]]))

    assert len(batches.data.samples) == 7
    assert any("the model is run on one sample at a time" in note for note in batches.notes)


def test_case_53_a_batch_for_a_model_with_batch_1_baked_in(tmp_path):
    many = samples_of(32)
    model = classifier(("N", 3, 6, 6))

    result = measured(model, files(tmp_path / "calib", [many]))

    assert len(result.data.samples) == 32
    one = measured(model, files(tmp_path / "ones", [[item] for item in many]))
    assert numbers(result) == numbers(one)


@pytest.mark.parametrize("size", [1, "N"])
def test_case_54_the_same_numbers_at_batch_1_and_2(tmp_path, size):
    many = samples_of(8)
    model = classifier((size, 3, 6, 6))

    one = measured(model, files(tmp_path / "1", [[item] for item in many]))
    two = measured(model, files(tmp_path / "2", [many[i : i + 2] for i in range(0, 8, 2)]))

    assert numbers(one) == numbers(two)


@pytest.mark.parametrize("sizes", [("N", 3, "H", "W"), (0, 3, 0, 0), (-1, 3, -1, -1), (None,) * 4])
def test_case_55_open_dimensions_however_they_are_written(tmp_path, sizes):
    # Elsewhere: "[0, 3, 0, 0] != [1, 3, 480, 640]", a size of 0 being taken for a size.
    b = CalibratedModel()
    b.output(b.conv(b.input("x", sizes), (3, 2), "a"))
    model = b.proto()
    folder = files(tmp_path / "calib", [[item] for item in samples_of(3)])

    result = measured(model, folder)

    assert load(model).inputs[0].shape[0] is None
    assert result.data.samples == ("0", "1", "2")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m_calibrated_model.onnx"
    onnx.save(one_coarse_node(), path)
    return path


def test_case_v7_npy_files_in_a_folder_of_raw_ones(tmp_path, model):
    # Elsewhere: 128 bytes of header were read as pixels, and nothing was said.
    calib = tmp_path / "calib"
    calib.mkdir()
    for index, sample in enumerate(inputs_for(one_coarse_node(), count=3)):
        (calib / f"{index}.bin").write_bytes(sample["x"].tobytes())
    with (calib / "1.bin").open("wb") as stream:
        np.save(stream, inputs_for(one_coarse_node())[0]["x"])

    done = hbdebug("sensitivity", model, calib, "-o", tmp_path / "out")

    assert done.code == 4
    assert f"{calib / '1.bin'} (sample '1'): the file begins with the header of a .npy" in done.err
    assert "Rename it to 1.npy" in done.err
    assert not (tmp_path / "out").exists()


def test_case_v8_a_manifest_among_the_samples(tmp_path, model):
    # Elsewhere: the manifest was consumed as a sample.
    calib = save_samples(tmp_path / "calib", inputs_for(one_coarse_node(), count=2))
    (calib / "x" / "manifest.json").write_text("{}")
    options = ("-o", tmp_path / "out", "--no-suggest", "--format", "json")

    refused = hbdebug("sensitivity", model, calib, *options)
    done = hbdebug("sensitivity", model, calib, *options, "--skip-bad")

    assert refused.code == 4
    assert f"{calib / 'x/manifest.json'}: is no sample" in refused.err
    assert done.code == 0
    assert done.json["data"]["samples"] == ["0", "1"]
    assert any("x/manifest.json left out" in warning for warning in done.json["warnings"])


def test_preparation_reaches_the_model_and_the_record(tmp_path, model):
    plain = save_samples(tmp_path / "plain", inputs_for(one_coarse_node(), count=2))
    doubled = [
        {"x": sample["x"] * np.float32(2) + np.float32(1)}
        for sample in inputs_for(one_coarse_node(), count=2)
    ]
    calib = save_samples(tmp_path / "doubled", doubled)
    same = ("--no-suggest", "--format", "json", "-o", tmp_path / "out")

    one = hbdebug("sensitivity", model, plain, "--scale", "2", *same)
    prepared = hbdebug("sensitivity", model, calib, "--mean=1", "--offset=0", "--scale", "1", *same)

    assert one.code == prepared.code == 0
    assert one.json["settings"]["preparation"] == {"scale": [2.0]}
    assert any("* scale 2" in note for note in one.json["notes"])
    assert prepared.json["settings"]["preparation"] == {
        "offset": [0.0], "mean": [1.0], "scale": [1.0]
    }  # fmt: skip


def test_a_journal_of_other_preparation_is_not_resumed(tmp_path, model):
    calib = save_samples(tmp_path / "calib", inputs_for(one_coarse_node(), count=2))
    keys = []
    for scale in ((1.0,), (1.0,), (2.0,)):
        pipeline.sensitivity(
            model, calib, suggest=False, journal_folder=tmp_path / "out",
            preparation=Preparation(scale=scale),
        )  # fmt: skip
        keys.append((tmp_path / "out" / recording.JOURNAL).read_text().split("\n")[0])

    assert keys[0] == keys[1] != keys[2]


def image_model():
    """Return an image input of the chip and a convolution behind it."""
    b = CalibratedModel()
    x = b.input("x", (1, 3, 6, 6))
    weight = b.weight("pw", np.ones((3, 1, 1, 1)))
    bias = b.constant("pb", np.full(3, 128, np.float32))
    y = b.hz("HzPreprocess", [b.point(x, 128.0), weight, bias], "pre", input_type="RGB_128",
             channel_group=3, data_format="NCHW")  # fmt: skip
    b.output(b.conv(y, (3, 2), "a", threshold=255.0))
    return b.proto()


def test_an_image_input_of_the_chip_is_recognized_in_the_model(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 6, 6)).astype(np.uint8)
    np.save(tmp_path / "a.npy", pixels)
    np.save(tmp_path / "b.npy", pixels.astype(np.float32) - 128)

    assert pipeline.input_types(load(image_model())) == {"x": "RGB_128"}
    with pytest.raises(DataError, match="takes pixels minus 128"):
        measured(image_model(), tmp_path / "a.npy")
    shifted = measured(image_model(), tmp_path / "a.npy", preparation=Preparation(offset=(-128.0,)))
    assert numbers(shifted) == numbers(measured(image_model(), tmp_path / "b.npy"))


def test_images_for_an_input_of_pixels_minus_128_and_what_was_done_is_told(tmp_path):
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 3, 8, 8)), 127.0)
    w = b.constant("scale", np.full((3, 1, 1, 1), 1 / 255, np.float32))
    bias = b.constant("bias", np.full(3, 128 / 255, np.float32))
    x = b.hz(
        "HzPreprocess",
        [x, w, bias],
        "pre",
        input_type="RGB_128",
        channel_group=3,
        data_format="NCHW",
    )
    b.output(b.conv(x, (3, 4), "conv"))
    onnx.save(b.proto(), tmp_path / "model.onnx")
    (tmp_path / "calib").mkdir()
    random = np.random.default_rng(0)
    for index in range(2):
        pixels = random.integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "calib" / f"{index}.png")

    done = hbdebug(
        "sensitivity",
        tmp_path / "model.onnx",
        tmp_path / "calib",
        *("--resize", "8x8", "--no-suggest", "-o", tmp_path / "out"),
    )

    assert done.code == 0
    text = " ".join(done.out.split())
    assert (
        "note: images of input 'x': resize 8x8 bilinear, RGB, float32, + offset -128 (the "
        "input's type is RGB_128), HWC->CHW, batch dimension" in text
    )
    assert "pixel_convention" not in text
