"""Raw files: values without a header, whose number must be exactly what the input takes."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.errors import UsageError
from hbdebug.samples import Preparation, TensorSpec, open_samples
from tests.samples.data import IMAGE, LENGTH, image, length, refused, save

PIXELS = np.arange(60, dtype=np.uint8).reshape(1, 3, 4, 5)


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(array.tobytes())
    return path


@pytest.mark.parametrize("suffix", [".rgb", ".bgr", ".yuv", ".bin", ".f32", ".raw", ".dat"])
def test_raw_files_of_any_suffix_are_read_as_the_input(tmp_path, suffix):
    for index in range(3):
        write(tmp_path / f"{index}{suffix}", image(index))

    for path, count in ((tmp_path, 3), (tmp_path / f"2{suffix}", 1)):
        samples = open_samples(path, [IMAGE])

        assert len(samples) == count
        assert np.array_equal(samples.sample(-1)["x"], image(2))
        assert samples.notes == ("raw files of input 'x' are read as float32[1,3,4,5]",)


def test_raw_files_of_several_inputs_in_their_folders(tmp_path):
    for index in range(2):
        write(tmp_path / "x" / f"{index}.f32", image(index))
        write(tmp_path / "length" / f"{index}.bin", length(index))

    samples = open_samples(tmp_path, [IMAGE, LENGTH])

    for index, (_, arrays) in enumerate(samples):
        assert np.array_equal(arrays["x"], image(index))
        assert np.array_equal(arrays["length"], length(index))


def test_kinds_of_files_may_differ_between_inputs(tmp_path):
    write(tmp_path / "x/0.f32", image())
    save(tmp_path / "length/0.npy", length(2))

    arrays = open_samples(tmp_path, [IMAGE, LENGTH]).sample(0)

    assert np.array_equal(arrays["x"], image())
    assert np.array_equal(arrays["length"], length(2))


@pytest.mark.parametrize("name", ["", "x"])
def test_a_dtype_that_is_given_is_read_and_converted_without_loss(tmp_path, name):
    write(tmp_path / "0.rgb", PIXELS)

    samples = open_samples(tmp_path, [IMAGE], preparation=Preparation(dtypes={name: "uint8"}))

    assert samples.sample(0)["x"].dtype == np.float32
    assert np.array_equal(samples.sample(0)["x"], PIXELS)


def test_a_dtype_that_would_lose_values_is_refused(tmp_path):
    write(tmp_path / "0.bin", np.full((1, 3, 4, 5), 0.1))

    error = refused(tmp_path, [IMAGE], preparation=Preparation(dtypes={"": "float64"}))

    assert "float64 values in the file would change: 0.1" in error.message


def test_a_size_of_another_dtype_names_it(tmp_path):
    write(tmp_path / "0.rgb", PIXELS)

    error = refused(tmp_path, [IMAGE])

    assert error.exit_code == 4
    assert error.message == "the file has 60 bytes, and raw float32[1,3,4,5] takes 240"
    assert "60 bytes are 60 values of uint8 or int8: give --dtype x=uint8" in error.hint


def test_a_size_of_several_samples_names_the_shape(tmp_path):
    many = np.concatenate([image(index) for index in range(3)])
    write(tmp_path / "0.bin", many)

    error = refused(tmp_path, [IMAGE])
    samples = open_samples(tmp_path, [IMAGE], preparation=Preparation(shapes={"x": (3, 3, 4, 5)}))

    assert "These are 3 samples in one file: give --shape x=3x3x4x5." in error.hint
    assert samples.names == ("0[0]", "0[1]", "0[2]")
    assert np.array_equal(samples.sample(1)["x"], image(1))


@pytest.mark.parametrize("size", [0, 1, 239, 241])
def test_any_other_size_is_refused_with_the_numbers(tmp_path, size):
    (tmp_path / "0.bin").write_bytes(bytes(size))

    error = refused(tmp_path, [IMAGE])

    assert error.message == f"the file has {size} bytes, and raw float32[1,3,4,5] takes 240"


def test_one_open_size_is_inferred(tmp_path):
    write(tmp_path / "0.bin", np.arange(7))
    write(tmp_path / "1.bin", np.arange(9))
    spec = TensorSpec(name="x", dtype="int64", shape=(None, None))

    for wanted in (LENGTH, spec):
        shapes = [arrays[wanted.name].shape for _, arrays in open_samples(tmp_path, [wanted])]
        assert shapes == [(1, 7), (1, 9)]

    (tmp_path / "0.bin").write_bytes(bytes(12))
    assert "raw int64[1,?] takes a multiple of 8" in refused(tmp_path, [LENGTH]).message


def test_two_open_sizes_ask_for_the_shape(tmp_path):
    write(tmp_path / "0.bin", image())
    spec = TensorSpec(name="x", dtype="float32", shape=(None, 3, None, None))

    error = refused(tmp_path, [spec])
    samples = open_samples(tmp_path, [spec], preparation=Preparation(shapes={"": (1, 3, 4, 5)}))

    assert "a raw file does not say its shape, and float32[?,3,?,?]" in error.message
    assert "--shape x=1x3x?x?" in error.hint
    assert np.array_equal(samples.sample(0)["x"], image())


def test_a_shape_that_is_not_the_inputs_is_refused(tmp_path):
    write(tmp_path / "0.bin", image())

    error = refused(tmp_path, [IMAGE], preparation=Preparation(shapes={"": (1, 4, 5, 3)}))

    assert "It looks like NHWC for a model in NCHW" in error.hint


def test_scalars_and_empty_arrays(tmp_path):
    write(tmp_path / "0.bin", np.float32(2.5))
    scalar = TensorSpec(name="x", dtype="float32", shape=())
    assert open_samples(tmp_path, [scalar]).sample(0)["x"] == np.float32(2.5)

    (tmp_path / "0.bin").write_bytes(b"")
    empty = TensorSpec(name="x", dtype="float32", shape=(1, 0, 4))
    assert open_samples(tmp_path, [empty]).sample(0)["x"].shape == (1, 0, 4)


def test_options_for_raw_files_need_some(tmp_path):
    save(tmp_path / "0.npy", image())

    with pytest.raises(UsageError, match="--dtype is for raw files, and the data hold none"):
        open_samples(tmp_path, [IMAGE], preparation=Preparation(dtypes={"": "uint8"}))
    with pytest.raises(UsageError, match="the model has no input 'y'"):
        open_samples(tmp_path, [IMAGE], preparation=Preparation(dtypes={"y": "uint8"}))
    with pytest.raises(UsageError, match="no such dtype: 'pixels'"):
        Preparation(dtypes={"": "pixels"})


def test_npy_content_under_another_suffix_is_recognized(tmp_path):
    # 128 bytes of header were read as pixels, and the ranking came out as if nothing had been.
    save(tmp_path / "0.npy", image())
    (tmp_path / "0.npy").rename(tmp_path / "0.rgb")

    error = refused(tmp_path, [IMAGE])

    assert "begins with the header of a .npy file" in error.message
    assert "Rename it to 0.npy" in error.hint


def test_a_npy_file_among_raw_files_is_named(tmp_path):
    for index in range(2):
        write(tmp_path / f"{index}.bin", image(index))
    save(tmp_path / "2.npy", image(2))

    error = refused(tmp_path, [IMAGE])
    samples = open_samples(tmp_path, [IMAGE], skip_bad=True)

    assert error.where == str(tmp_path / "2.npy")
    assert error.message == "is no sample: not .bin, as the samples are"
    assert samples.names == ("0", "1")
    assert [item.name for item in samples.skipped] == ["2.npy"]


def test_raw_content_called_npy_is_recognized(tmp_path):
    write(tmp_path / "0.npy", image())

    error = refused(tmp_path, [IMAGE])

    assert "cannot be read as .npy" in error.message
    assert "exactly the 240 bytes of raw float32[1,3,4,5]: rename it to 0.bin" in error.hint


def test_other_formats_under_a_raw_suffix_are_named(tmp_path):
    (tmp_path / "0.bin").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(20))

    assert "It begins like a PNG image" in refused(tmp_path, [IMAGE]).hint


@pytest.mark.parametrize("stray", ["manifest.json", "list.txt", "README", "9.rgb"])
def test_a_stray_file_among_raw_files_is_refused_or_left_out(tmp_path, stray):
    for index in range(2):
        write(tmp_path / f"{index}.bin", image(index))
    # Of the size of a sample, so that only its name tells.
    write(tmp_path / stray, image(5))

    error = refused(tmp_path, [IMAGE])
    samples = open_samples(tmp_path, [IMAGE], skip_bad=True)

    assert error.where == str(tmp_path / stray)
    assert "--skip-bad" in error.hint
    assert samples.names == ("0", "1")
    assert [item.name for item in samples.skipped] == [stray]
