"""Public bug reports about data of other shapes than one sample at a time, as whole runs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from PIL import Image

from hbdebug.pipeline import sensitivity
from tests.command import hbdebug
from tests.models import CalibratedModel


def linear(shape, *, dims=None, baked=()):
    """Two matrix products; ``dims`` names open dimensions of the input, ``baked`` reshapes."""
    b = CalibratedModel()
    x = b.input("x", shape)
    if baked:
        x = b.node("Reshape", [x, b.constant("to", np.array(baked))], "reshape")
    w = b.random.normal(0, 0.5, (shape[-1], 6))
    x = b.node("MatMul", [b.point(x), b.weight("w", w, axis=1)], "first")
    v = b.random.normal(0, 0.5, (6, 3))
    b.output(b.node("MatMul", [b.point(x), b.weight("v", v, axis=1)], "second"))
    proto = b.proto()
    for size, name in zip(
        proto.graph.input[0].type.tensor_type.shape.dim, dims or (), strict=False
    ):
        if name is not None:
            size.Clear()
            if name:
                size.dim_param = name
    return proto


def rows(count, *shape, seed=3):
    return np.random.default_rng(seed).normal(0, 1, (count, *shape)).astype(np.float32)


def ranked(proto, folder):
    result = sensitivity(proto, folder, suggest=False, jobs=1)
    return result, [(node.name, node.alone.values) for node in result.nodes]


def test_case_50_samples_of_different_lengths(tmp_path):
    proto = linear((1, 5, 4), dims=(None, "length"))
    for index, length in enumerate((7, 9, 12)):
        np.save(tmp_path / f"{index}.npy", rows(1, length, 4, seed=index))

    result, nodes = ranked(proto, tmp_path)

    assert result.data.complete == 3
    assert {name for name, _ in nodes} == {"first", "second"}
    assert all(np.isfinite(value) for _, values in nodes for value in values.values())


@pytest.mark.parametrize("dims", [("batch",), ("N",), (None,)])
def test_case_51_and_54_a_batch_gives_the_numbers_of_its_samples(tmp_path, dims):
    proto = linear((1, 4), dims=dims)
    data = rows(11, 4)
    for folder, pieces in {
        "one": [data[index : index + 1] for index in range(11)],
        "two": np.split(data, [2, 4, 6, 8, 10]),
        "eight": [data[:8], data[8:]],
    }.items():
        (tmp_path / folder).mkdir()
        for index, piece in enumerate(pieces):
            np.save(tmp_path / folder / f"{index}.npy", piece)

    one, expected = ranked(proto, tmp_path / "one")
    for folder in ("two", "eight"):
        result, nodes = ranked(proto, tmp_path / folder)
        assert result.data.complete == one.data.complete == 11
        assert nodes == expected
        assert any("split" in note or "samples" in note for note in result.notes)


def test_case_53_a_batch_of_one_baked_into_a_reshape(tmp_path):
    proto = linear((1, 2, 4), dims=("batch",), baked=(1, -1, 4))
    np.save(tmp_path / "all.npy", rows(32, 2, 4))

    result, _ = ranked(proto, tmp_path)

    assert result.data.complete == 32


def test_case_55_dimensions_written_as_zero_or_by_name(tmp_path):
    for dims in (("N", None, "H", "W"), ("", None, "", "")):
        b = CalibratedModel()
        b.output(b.conv(b.input("x", (1, 3, 8, 8)), (3, 4), "conv"))
        proto = b.proto()
        sizes = proto.graph.input[0].type.tensor_type.shape.dim
        for size, name in zip(sizes, dims, strict=True):
            if name is not None:
                size.Clear()
                if name:
                    size.dim_param = name
                else:
                    size.dim_value = 0
        np.save(tmp_path / "0.npy", rows(1, 3, 48, 64))
        result, _ = ranked(proto, tmp_path)
        assert [node.name for node in result.nodes] == ["conv"]


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
