"""Raw files: their size must fit, their type is the model's or given, what they are not is told."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.errors import UsageError
from hbdebug.samples import TensorSpec, open_samples, parse_preparation
from tests.samples.data import IMAGE, LENGTH, image, refused, save


def pixels(seed=0, shape=(1, 3, 4, 5)):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    array.tofile(path)


@pytest.mark.parametrize("suffix", [".bin", ".rgb", ".f32", ".raw", ".strange"])
@pytest.mark.parametrize("folder", ["", "x"])
def test_files_of_any_suffix_are_read_in_the_models_type(tmp_path, suffix, folder):
    for index in range(3):
        write(tmp_path / folder / f"{index}{suffix}", image(index))

    samples = open_samples(tmp_path, [IMAGE])

    assert samples.names == ("0", "1", "2")
    for index, (_, arrays) in enumerate(samples):
        np.testing.assert_array_equal(arrays["x"], image(index))
    assert samples.notes == ("x: raw files are read as float32",)


def test_another_type_is_given_and_converted_without_loss(tmp_path):
    write(tmp_path / "x/0.rgb", pixels())
    preparation = parse_preparation(dtypes=["uint8"])

    (arrays,) = [arrays for _, arrays in open_samples(tmp_path, [IMAGE], preparation=preparation)]

    np.testing.assert_array_equal(arrays["x"], pixels())
    assert arrays["x"].dtype == np.float32


def test_every_input_has_its_type(tmp_path):
    write(tmp_path / "x/0.rgb", pixels())
    write(tmp_path / "length/0.bin", np.arange(5, dtype=np.int32))
    preparation = parse_preparation(dtypes=["uint8", "length=int32"])

    samples = open_samples(tmp_path, [IMAGE, LENGTH], preparation=preparation)

    # The one open dimension follows from the file's size.
    np.testing.assert_array_equal(samples.sample(0)["length"], [[0, 1, 2, 3, 4]])
    assert samples.sample(0)["length"].dtype == np.int64


def test_offset_mean_and_scale_come_in_this_order(tmp_path):
    write(tmp_path / "x/0.rgb", pixels())
    preparation = parse_preparation(
        dtypes=["uint8"], offset=-1.0, mean="10,20,30", scale="0.5,0.25,2"
    )

    samples = open_samples(tmp_path, [IMAGE], preparation=preparation)

    mean = np.array([10, 20, 30], np.float32).reshape(1, 3, 1, 1)
    scale = np.array([0.5, 0.25, 2], np.float32).reshape(1, 3, 1, 1)
    expected = (pixels().astype(np.float32) - np.float32(1) - mean) * scale
    np.testing.assert_array_equal(samples.sample(0)["x"], expected)
    assert samples.notes == (
        "x: raw files are read as uint8, minus 1, minus mean 10, 20, 30, times scale 0.5, 0.25, 2",
    )


def test_a_size_that_does_not_fit_is_told_with_the_type_that_would(tmp_path):
    write(tmp_path / "x/0.rgb", pixels())

    error = refused(tmp_path, [IMAGE])

    assert error.exit_code == 4
    assert (
        error.message == "it has 60 bytes, and one sample of input 'x', float32[1,3,4,5], has 240"
    )
    assert "one sample of uint8 or int8" in error.hint
    assert "--dtype uint8" in error.hint


@pytest.mark.parametrize("size", [0, 239, 241, 480])
def test_any_other_size_is_refused(tmp_path, size):
    """Twice the size is not two samples: it may be one of another type."""
    (tmp_path / "0.bin").write_bytes(bytes(size))

    assert f"it has {size} bytes" in refused(tmp_path, [IMAGE]).message


@pytest.mark.parametrize("place", ["0.bin", "x/0.rgb"])
def test_case_v7_a_numpy_file_among_raw_ones_is_told_by_its_header(tmp_path, place):
    target = tmp_path / place
    target.parent.mkdir(exist_ok=True)
    with target.open("wb") as stream:
        np.save(stream, image())

    error = refused(tmp_path, [IMAGE])

    assert error.message == "is no raw file but a NumPy file: its header would be read as values"
    assert error.hint.startswith("Name it 0.npy.")


def test_case_v7_a_raw_file_called_npy_is_told_by_its_missing_header(tmp_path):
    write(tmp_path / "0.npy", image())

    error = refused(tmp_path, [IMAGE])

    assert "cannot be read as .npy" in error.message
    assert "if it holds raw numbers, call it .bin" in error.hint


def test_case_v8_a_manifest_among_raw_files_is_refused_or_listed(tmp_path):
    for index in range(3):
        write(tmp_path / f"{index}.rgb", image(index))
    (tmp_path / "manifest.json").write_text("{}")

    error = refused(tmp_path, [IMAGE])
    samples = open_samples(tmp_path, [IMAGE], skip_bad=True)

    assert error.where == str(tmp_path / "manifest.json")
    assert error.message == "is no sample: not raw data, as the samples are"
    assert [item.name for item in samples.skipped] == ["manifest.json"]
    assert len(samples) == 3


def test_two_files_of_one_name_are_refused(tmp_path):
    write(tmp_path / "0.rgb", image())
    write(tmp_path / "0.bin", image())

    assert "0.bin and 0.rgb would be one sample" in refused(tmp_path, [IMAGE]).message


def test_open_dimensions_need_a_header(tmp_path):
    write(tmp_path / "0.bin", image())
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 3, None, None))

    assert "numpy.save" in refused(tmp_path, [spec]).hint


def test_options_for_raw_files_are_refused_where_there_are_none(tmp_path):
    save(tmp_path / "0.npy", image())

    for options in ({"mean": "1"}, {"dtypes": ["uint8"]}, {"color": "bgr"}, {"resize": "2x2"}):
        with pytest.raises(UsageError, match=r"there are none"):
            open_samples(tmp_path, [IMAGE], preparation=parse_preparation(**options))


def test_a_type_for_no_input_is_refused(tmp_path):
    write(tmp_path / "0.bin", image())

    with pytest.raises(UsageError, match="no input is called 'y'"):
        open_samples(tmp_path, [IMAGE], preparation=parse_preparation(dtypes=["y=uint8"]))


@pytest.mark.parametrize(
    "options",
    [
        {"dtypes": ["unit8"]},
        {"dtypes": ["x=str"]},
        {"color": "cmyk"},
        {"layout": "chwn"},
        {"resize": "48"},
        {"resize": "0x10"},
        {"mean": "a,b"},
        {"scale": "nan"},
    ],
)
def test_an_option_that_is_not_written_right_is_a_usage_error(options):
    with pytest.raises(UsageError) as caught:
        parse_preparation(**options)
    assert caught.value.exit_code == 2
