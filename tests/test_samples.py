"""Calibration data: every layout is read alike, and every mistake is named before a run."""

from __future__ import annotations

import dataclasses
import io
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy_format

from hbdebug.errors import DataError, ModelError, UnsupportedError, UsageError
from hbdebug.samples import Skipped, TensorSpec, open_samples

IMAGE = TensorSpec(name="x", dtype="float32", shape=(1, 3, 4, 5))
LENGTH = TensorSpec(name="length", dtype="int64", shape=(1, None))
FIXTURES = Path(__file__).parent.parent / "fixtures"


def image(seed=0):
    return np.random.default_rng(seed).random((1, 3, 4, 5), np.float32)


def length(seed=0):
    return np.arange(seed % 4 + 1).reshape(1, -1)


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **array)
    else:
        np.save(path, array)


def refused(path, inputs, **options):
    with pytest.raises(DataError) as caught:
        open_samples(path, inputs, **options)
    return caught.value


@pytest.fixture
def calib(tmp_path):
    """Twelve samples of one input in its folder."""
    for index in range(12):
        save(tmp_path / "calib/x" / f"{index}.npy", image(index))
    return tmp_path / "calib"


# Layouts.


def test_samples_come_in_natural_order_with_their_names(calib):
    samples = open_samples(calib, [IMAGE])

    assert samples.names == tuple(map(str, range(12)))
    assert len(samples) == samples.found == 12
    assert samples.path == str(calib)
    assert samples.skipped == ()
    for index, (name, arrays) in enumerate(samples):
        assert name == str(index)
        assert list(arrays) == ["x"]
        assert np.array_equal(arrays["x"], image(index))
        assert arrays["x"].dtype == np.float32


def test_natural_order_of_names_with_text_and_zeros(tmp_path):
    names = ["1", "2", "10", "a1b2", "a1b10", "a01b10", "img2", "img10", "img10_x"]
    for name in names:
        save(tmp_path / f"{name}.npy", image())

    assert open_samples(tmp_path, [IMAGE]).names == (
        "1", "2", "10", "a1b2", "a01b10", "a1b10", "img2", "img10", "img10_x"
    )  # fmt: skip


def test_order_and_content_are_the_same_on_every_pass(calib):
    # A loader that shuffled per epoch made every comparison with the float run meaningless.
    samples = open_samples(calib, [IMAGE])
    first, second = list(samples), list(samples)

    assert [name for name, _ in first] == [name for name, _ in second]
    for (_, one), (_, other), index in zip(first, second, range(12), strict=True):
        assert np.array_equal(one["x"], other["x"])
        assert np.array_equal(samples.sample(index)["x"], one["x"])
    assert np.array_equal(samples.sample(-1)["x"], image(11))
    with pytest.raises(IndexError):
        samples.sample(12)


def test_samples_cannot_be_changed_from_outside(calib):
    samples = open_samples(calib, [IMAGE])
    samples.sample(0)["x"][:] = 0

    assert np.array_equal(samples.sample(0)["x"], image(0))
    with pytest.raises(dataclasses.FrozenInstanceError):
        samples.names = ()


def test_several_inputs_are_paired_by_stem_not_by_position(tmp_path):
    # A multi-input model was fed by position, and one of its inputs got nothing.
    for index in (2, 10, 1):
        save(tmp_path / "length" / f"s{index}.npy", length(index))
        save(tmp_path / "x" / f"s{index}.npy", image(index))

    samples = open_samples(tmp_path, [IMAGE, LENGTH])

    assert samples.names == ("s1", "s2", "s10")
    for (_, arrays), index in zip(samples, (1, 2, 10), strict=True):
        assert list(arrays) == ["x", "length"]
        assert np.array_equal(arrays["x"], image(index))
        assert np.array_equal(arrays["length"], length(index))


@pytest.mark.parametrize("layout", ["folders", "flat", "npz", "one npz", "one npy"])
def test_every_layout_gives_the_same_samples(tmp_path, layout):
    path = tmp_path / {"one npz": "0.npz", "one npy": "0.npy"}.get(layout, ".")
    one, many = {"x": image()}, [0] if layout.startswith("one") else [0, 1]
    for index in many:
        one = {"x": image(index)}
        if "npz" in layout:
            save(tmp_path / f"{index}.npz", one)
        else:
            save(tmp_path / ("x" if layout == "folders" else "") / f"{index}.npy", one["x"])

    samples = open_samples(path, [IMAGE])

    assert samples.names == tuple(map(str, many))
    for (_, arrays), index in zip(samples, many, strict=True):
        assert np.array_equal(arrays["x"], image(index))


def test_several_inputs_in_npz_files(tmp_path):
    for index in range(3):
        np.savez_compressed(tmp_path / f"{index}.npz", length=length(index), x=image(index))

    for path, count in ((tmp_path, 3), (tmp_path / "2.npz", 1)):
        samples = open_samples(path, [IMAGE, LENGTH])
        arrays = samples.sample(-1)

        assert len(samples) == count
        assert list(arrays) == ["x", "length"]
        assert np.array_equal(arrays["x"], image(2))
        assert np.array_equal(arrays["length"], length(2))


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (["a/b", "c:0"], ["a/b", "c:0"]),
        (["a/b", "c:0"], ["a_b", "c_0"]),
        (["/model/in", "x"], ["model/in", "x"]),
        (["a", "a/b"], ["a", "a/b"]),
        (["a/b", "a:b"], ["a/b", "a:b"]),
        (["a/b", "a_b"], ["a/b", "a_b"]),
        (["x.1", "x 1"], ["x.1", "x_1"]),
    ],
)
def test_names_with_slashes_and_colons_find_their_folders(tmp_path, names, folders):
    specs = [TensorSpec(name=name, dtype="float32", shape=(1,)) for name in names]
    for number, folder in enumerate(folders):
        save(tmp_path / folder / "0.npy", np.array([number], np.float32))

    arrays = open_samples(tmp_path, specs).sample(0)

    assert {name: float(array[0]) for name, array in arrays.items()} == {
        name: float(number) for number, name in enumerate(names)
    }


@pytest.mark.parametrize(
    ("names", "keys"), [(["a/b", "c:0"], ["a/b", "c:0"]), (["a/b", "c:0"], ["a_b", "c_0"])]
)
def test_names_with_slashes_and_colons_find_their_keys(tmp_path, names, keys):
    specs = [TensorSpec(name=name, dtype="float32", shape=()) for name in names]
    save(tmp_path / "0.npz", {key: np.float32(number) for number, key in enumerate(keys)})

    arrays = open_samples(tmp_path, specs).sample(0)

    assert {name: float(array) for name, array in arrays.items()} == {names[0]: 0, names[1]: 1}
    assert all(array.shape == () for array in arrays.values())


def test_names_that_differ_only_in_their_signs_are_not_guessed(tmp_path):
    specs = [TensorSpec(name=name, dtype="float32", shape=(1,)) for name in ("a/b", "a:b")]
    save(tmp_path / "a_b/0.npy", np.zeros(1, np.float32))
    error = refused(tmp_path, specs)
    assert error.message == "'a_b' can be meant for input 'a/b', 'a:b'"

    save(tmp_path / "a+b/0.npy", np.zeros(1, np.float32))
    error = refused(tmp_path, specs[:1])
    assert error.message == "'a+b', 'a_b' can be meant for input 'a/b'"


def test_the_real_classifier_data_open():
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 3, 48, 192))

    samples = open_samples(FIXTURES / "textline_cls/calib", [spec])

    assert samples.names == tuple(sorted(samples.names, key=int))
    assert all(np.abs(arrays["x"]).max() <= 1 for _, arrays in samples)


# Limits, digest, memory.


def test_a_limit_takes_the_first_in_natural_order(calib):
    samples = open_samples(calib, [IMAGE], limit=3)

    assert samples.names == ("0", "1", "2")
    assert (len(samples), samples.found) == (3, 12)
    assert open_samples(calib, [IMAGE], limit=1).names == ("0",)


def test_a_limit_above_what_is_there_uses_all_and_shows_it(calib):
    samples = open_samples(calib, [IMAGE], limit=99)

    assert (len(samples), samples.found) == (12, 12)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_a_usage_error(calib, limit):
    with pytest.raises(UsageError, match=f"{limit} samples asked for"):
        open_samples(calib, [IMAGE], limit=limit)


def test_what_lies_beyond_the_limit_is_not_read(calib):
    (calib / "x/11.npy").write_bytes(b"damaged")

    assert len(open_samples(calib, [IMAGE], limit=11)) == 11
    assert refused(calib, [IMAGE], limit=12).where.endswith("11.npy (sample '11')")


def test_the_digest_follows_content_names_and_order(calib, tmp_path):
    original = open_samples(calib, [IMAGE]).digest
    copied = shutil.copytree(calib, tmp_path / "copy")
    assert open_samples(copied, [IMAGE]).digest == original
    assert open_samples(copied, [IMAGE], limit=11).digest != original

    changed = image(5)
    changed[0, 2, 3, 4] = np.nextafter(changed[0, 2, 3, 4], np.float32(2))
    save(copied / "x/5.npy", changed)
    assert open_samples(copied, [IMAGE]).digest != original

    save(copied / "x/5.npy", image(5))
    assert open_samples(copied, [IMAGE]).digest == original
    (copied / "x/5.npy").rename(copied / "x/05.npy")
    assert open_samples(copied, [IMAGE]).digest != original


def test_the_digest_is_that_of_what_the_model_receives(tmp_path):
    save(tmp_path / "wide/0.npy", image().astype(np.float64))
    save(tmp_path / "archive/0.npz", {"x": np.asfortranarray(image())})
    save(tmp_path / "plain/x/0.npy", image())

    digests = {
        open_samples(tmp_path / folder, [IMAGE]).digest for folder in ("wide", "archive", "plain")
    }

    assert len(digests) == 1


def test_memory_does_not_grow_with_the_number_of_samples(tmp_path):
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 3, 100, 100))
    for index in range(40):
        save(tmp_path / f"{index}.npy", np.full((1, 3, 100, 100), index, np.float32))

    def peak(limit):
        tracemalloc.start()
        samples = open_samples(tmp_path, [spec], limit=limit)
        total = sum(float(arrays["x"][0, 0, 0, 0]) for _, arrays in samples)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert total == sum(range(limit))
        return peak

    peak(4)
    # A sample is 120 kB; names and paths of 36 more samples are far below that.
    assert peak(40) - peak(4) < 120_000


# Conversions that change no value.


@pytest.mark.parametrize(
    ("dtype", "values", "want"),
    [
        ("float64", [0.5, -3.25, 2.0**100], "float32"),
        ("float16", [0.1, 65504, -0.0], "float32"),
        (">f4", [0.1, -2.0], "float32"),
        ("uint8", [0, 255], "float32"),
        ("bool", [0, 1], "float32"),
        ("int64", [-(2**24), 2**24], "float32"),
        ("int64", [-(2**53), 2**53], "float64"),
        ("int32", [-(2**31), 2**31 - 1], "int64"),
        ("uint64", [0, 2**63 - 1], "int64"),
        ("int64", [-128, 127], "int8"),
        ("float32", [-128.0, 127.0], "int8"),
        ("float16", [0.0, 65504.0], "int64"),
        ("float64", [0.0, 2.0**62], "int64"),
        ("uint8", [0, 1], "bool"),
        ("float32", [0.0, 1.0], "bool"),
    ],
)
def test_a_dtype_is_converted_when_no_value_changes(tmp_path, dtype, values, want):
    save(tmp_path / "0.npy", np.array(values, dtype))
    spec = TensorSpec(name="x", dtype=want, shape=(None,))

    array = open_samples(tmp_path, [spec]).sample(0)["x"]

    assert array.dtype == np.dtype(want)
    assert array.dtype.isnative
    assert [value.item() for value in array] == np.array(values, dtype).tolist()


@pytest.mark.parametrize(
    ("dtype", "values", "want", "changed"),
    [
        ("float64", [0.5, 0.1], "float32", "0.1 at [1]"),
        ("float64", [1e300], "float32", "1e+300 at [0]"),
        ("float32", [70000.0], "float16", "70000.0 at [0]"),
        ("int64", [0, 2**24 + 1], "float32", "16777217 at [1]"),
        ("int64", [2**63 - 1], "float64", "9223372036854775807 at [0]"),
        ("uint64", [2**64 - 1], "float32", "18446744073709551615 at [0]"),
        ("uint64", [2**63], "int64", "9223372036854775808 at [0]"),
        ("int8", [-1], "uint8", "-1 at [0]"),
        ("int64", [128], "int8", "128 at [0]"),
        ("float32", [127.0, 128.0], "int8", "128.0 at [1]"),
        ("float32", [1.0, 1.5], "int64", "1.5 at [1]"),
        ("float64", [2.0**63], "int64", "9.223372036854776e+18 at [0]"),
        ("float32", [np.nan], "int64", "nan at [0]"),
        ("float32", [-1.0], "uint8", "-1.0 at [0]"),
        ("uint8", [0, 2], "bool", "2 at [1]"),
        ("float32", [0.5], "bool", "0.5 at [0]"),
    ],
)
def test_a_dtype_is_refused_when_a_value_would_change(tmp_path, dtype, values, want, changed):
    save(tmp_path / "0.npy", np.array(values, dtype))

    error = refused(tmp_path, [TensorSpec(name="x", dtype=want, shape=(None,))])

    assert error.message == (
        f"input 'x' is {want}, and {dtype} values in the file would change: {changed}"
    )
    assert f"astype(numpy.{want})" in error.hint


def test_both_versions_of_the_header_are_read(tmp_path):
    for version in ((1, 0), (2, 0)):
        with (tmp_path / "0.npy").open("wb") as stream:
            npy_format.write_array(stream, image(), version=version)

        assert np.array_equal(open_samples(tmp_path, [IMAGE]).sample(0)["x"], image())


def test_fortran_order_is_undone(tmp_path):
    array = np.asfortranarray(image())
    save(tmp_path / "0.npy", array)
    assert b"'fortran_order': True" in (tmp_path / "0.npy").read_bytes()

    read = open_samples(tmp_path, [IMAGE]).sample(0)["x"]

    assert read.flags.c_contiguous
    assert np.array_equal(read, array)


# What is refused, and how it is said.


def test_a_missing_path_is_said_before_anything_else(tmp_path):
    # Another tool aborted with UNREACHABLE when its calibration table was not there.
    error = refused(tmp_path / "calib", [IMAGE])

    assert error.exit_code == 4
    assert error.where == str(tmp_path / "calib")
    assert error.message == "there is no such file or folder"
    assert "The model wants x (float32[1,3,4,5])." in error.hint


def test_an_empty_folder(tmp_path):
    (tmp_path / ".DS_Store").touch()

    assert refused(tmp_path, [IMAGE]).message == "the folder is empty"


def test_a_folder_of_an_input_without_files(tmp_path):
    save(tmp_path / "x/0.npy", image())
    (tmp_path / "length").mkdir()

    error = refused(tmp_path, [IMAGE, LENGTH])

    assert error.message == "no .npy file for input 'length'"
    assert error.where == str(tmp_path / "length")


def test_a_missing_input_is_named_with_what_is_there(tmp_path):
    save(tmp_path / "x/0.npy", image())
    save(tmp_path / "lenght/0.npy", length())

    error = refused(tmp_path, [IMAGE, LENGTH])

    assert error.message == "no folder for input 'length'"
    assert "The model wants x (float32[1,3,4,5]), length (int64[1,?])." in error.hint
    assert "Folders found: 'lenght', 'x'." in error.hint
    assert "If 'lenght' is meant, rename it to 'length'." in error.hint


def test_the_only_folder_is_offered_for_the_only_input(tmp_path):
    save(tmp_path / "data/0.npy", image())

    error = refused(tmp_path, [IMAGE])

    assert "If 'data' is meant, rename it to 'x'." in error.hint
    assert f"Or give {tmp_path / 'data'}." in error.hint
    assert len(open_samples(tmp_path / "data", [IMAGE])) == 1


def test_nothing_is_suggested_when_nothing_is_close(tmp_path):
    save(tmp_path / "aaa/0.npy", image())
    save(tmp_path / "bbb/0.npy", image())

    error = refused(tmp_path, [IMAGE, LENGTH])

    assert error.message == "no folder for input 'x', 'length'"
    assert "rename" not in error.hint
    assert "Or give" not in error.hint


def test_a_folder_given_one_level_too_high(calib):
    error = refused(calib.parent, [IMAGE])

    assert error.message == "the folders of the inputs are inside 'calib'"
    assert error.hint == f"Give {calib}."


def test_a_folder_in_use_is_not_offered_again(tmp_path):
    save(tmp_path / "x/0.npy", image())

    error = refused(tmp_path, [IMAGE, dataclasses.replace(IMAGE, name="xx")])

    assert error.message == "no folder for input 'xx'"
    assert "rename" not in error.hint


def test_long_lists_of_names_are_cut(tmp_path):
    for index in range(5):
        (tmp_path / f"{index}.bin").touch()
    assert refused(tmp_path, [IMAGE]).message.endswith(
        "'0.bin', '1.bin', '2.bin', '3.bin', '4.bin'"
    )

    (tmp_path / "5.bin").touch()
    assert refused(tmp_path, [IMAGE]).message.endswith("'4.bin' and 1 more")


def test_files_of_the_toolchain_are_recognized_as_raw(tmp_path):
    for index in range(7):
        (tmp_path / f"{index}.rgb").write_bytes(b"raw")

    error = refused(tmp_path, [IMAGE])

    assert "'4.rgb' and 2 more" in error.message
    assert "numpy.save" in error.hint
    assert "numpy.save" in refused(tmp_path / "0.rgb", [IMAGE]).hint


def test_plain_npy_files_do_not_do_for_several_inputs(tmp_path):
    save(tmp_path / "0.npy", image())

    for path in (tmp_path, tmp_path / "0.npy"):
        error = refused(path, [IMAGE, LENGTH])
        assert error.message == ".npy files hold one array each, and the model has 2 inputs"
        assert "a folder for each input" in error.hint


@pytest.mark.parametrize("stray", ["README.txt", "x/manifest.json", "x/3.npz", "other/0.npy"])
def test_what_is_no_sample_is_refused_or_listed(calib, stray):
    (calib / stray).parent.mkdir(exist_ok=True)
    (calib / stray).write_bytes(b"anything")
    named = "other" if stray.startswith("other") else stray

    error = refused(calib, [IMAGE])
    samples = open_samples(calib, [IMAGE], skip_bad=True)

    assert error.where == str(calib / named)
    assert "--skip-bad" in error.hint
    assert [skipped.name for skipped in samples.skipped] == [named]
    assert len(samples) == samples.found == 12


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_what_is_no_sample_in_a_flat_folder(tmp_path, suffix):
    for index in range(2):
        save(tmp_path / f"{index}{suffix}", image(index) if suffix == ".npy" else {"x": image()})
    (tmp_path / "labels.csv").touch()
    (tmp_path / "notes").mkdir()
    (tmp_path / ".gitignore").touch()

    error = refused(tmp_path, [IMAGE])
    samples = open_samples(tmp_path, [IMAGE], skip_bad=True)

    assert error.message == f"is no sample: not {suffix}, as the samples are; nor is 'notes'"
    assert [skipped.name for skipped in samples.skipped] == ["labels.csv", "notes"]
    assert samples.names == ("0", "1")


def test_hidden_files_are_passed_over(calib):
    (calib / ".gitignore").touch()
    (calib / "x/.DS_Store").touch()

    assert open_samples(calib, [IMAGE]).skipped == ()


def test_npz_files_beside_npy_files_are_not_mixed_in(tmp_path):
    save(tmp_path / "0.npy", image())
    save(tmp_path / "1.npz", {"x": image()})

    assert refused(tmp_path, [IMAGE]).where == str(tmp_path / "1.npz")


def test_a_sample_without_a_partner_is_named(tmp_path):
    for index in range(3):
        save(tmp_path / "x" / f"{index}.npy", image(index))
        if index != 1:
            save(tmp_path / "length" / f"{index}.npy", length(index))

    error = refused(tmp_path, [IMAGE, LENGTH])
    samples = open_samples(tmp_path, [IMAGE, LENGTH], skip_bad=True)

    assert error.message == "no file for input 'length'"
    assert error.where == f"{tmp_path / 'x/1.npy'} (sample '1')"
    assert samples.names == ("0", "2")
    assert samples.found == 3
    assert samples.skipped == (Skipped(name="1", reason="no file for input 'length'"),)


def test_a_key_missing_from_an_archive_is_named(tmp_path):
    save(tmp_path / "0.npz", {"x": image(), "Length": length()})

    error = refused(tmp_path, [IMAGE, LENGTH])

    assert error.message == "no array for input 'length'"
    assert "It holds 'x', 'Length'." in error.hint
    assert "If 'Length' is meant, rename it to 'length'." in error.hint


def test_a_key_of_no_input_is_refused_or_listed(tmp_path):
    for index in range(3):
        save(tmp_path / f"{index}.npz", {"x": image(index), "label": np.zeros(1)})

    error = refused(tmp_path, [IMAGE])
    samples = open_samples(tmp_path, [IMAGE], skip_bad=True)

    assert error.message == "arrays that are no input of the model: 'label'"
    assert len(samples) == 3
    assert [skipped.name for skipped in samples.skipped] == ["label"]
    assert "in 3 of the files" in samples.skipped[0].reason


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_named_by_sample_input_and_position(calib, bad):
    # One NaN in the calibration data came out as a NaN scale, much later and nameless.
    spoiled = image(3)
    spoiled[0, 1, 2, 3] = bad
    spoiled[0, 2, 0, 0] = bad
    save(calib / "x/3.npy", spoiled)

    error = refused(calib, [IMAGE])
    samples = open_samples(calib, [IMAGE], skip_bad=True)

    assert error.where == f"{calib / 'x/3.npy'} (sample '3')"
    assert error.message == (
        f"input 'x': 2 of 60 values not finite, the first is {bad} at [0, 1, 2, 3]"
    )
    assert "--skip-bad" in error.hint
    assert samples.names == tuple(str(index) for index in range(12) if index != 3)
    assert samples.found == 12
    assert samples.skipped == (Skipped(name="3", reason=error.message),)


def test_values_that_are_not_finite_are_counted_over_the_whole_array(tmp_path):
    array = np.zeros(200_000, np.float32)
    array[[70_000, 70_001, 150_000, 199_999]] = np.nan
    save(tmp_path / "0.npy", array)

    error = refused(tmp_path, [TensorSpec(name="x", dtype="float32", shape=(200_000,))])

    assert error.message.startswith("input 'x': 4 of 200000 values not finite, the first is nan")
    assert error.message.endswith("[70000]")


def test_a_limit_counts_usable_samples(calib):
    save(calib / "x/1.npy", np.full((1, 3, 4, 5), np.nan, np.float32))

    samples = open_samples(calib, [IMAGE], limit=3, skip_bad=True)

    assert samples.names == ("0", "2", "3")


def test_all_bad_samples_are_named_at_once(calib):
    for index in (4, 9, 10):
        save(calib / "x" / f"{index}.npy", image()[0])

    error = refused(calib, [IMAGE])

    assert error.where.endswith("4.npy (sample '4')")
    assert "Not usable either: '9', '10'." in error.hint


def test_when_none_is_usable_there_is_nothing_to_skip(calib):
    for index in range(12):
        save(calib / "x" / f"{index}.npy", image()[0])

    assert "Of the first 10 none is usable." in refused(calib, [IMAGE]).hint
    for options in ({}, {"skip_bad": True}):
        error = refused(calib, [IMAGE], **options)
        assert "--skip-bad" not in error.hint
        assert "The batch dimension is missing: save array[None]." in error.hint
    assert "Of all samples none is usable." in error.hint


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((3, 4, 5), "The batch dimension is missing: save array[None]."),
        ((1, 1, 3, 4, 5), "There is a dimension too many in front: save array[0]."),
        ((1, 4, 5, 3), "It looks like NHWC for a model in NCHW: save array.transpose(0, 3, 1, 2)."),
        ((4, 5, 3), "looks like HWC for a model in NCHW: save array[None].transpose(0, 3, 1, 2)."),
        ((8, 3, 4, 5), "Save one sample per file; this one holds 8 along the first dimension."),
        ((60,), "The number of values is right: is a reshape or a transpose missing?"),
        ((1, 3, 4, 6), "Prepare the samples exactly as the model's input expects them."),
        ((), "Prepare the samples exactly as the model's input expects them."),
    ],
)
def test_a_wrong_shape_is_told_with_its_likely_cause(tmp_path, shape, hint):
    array = np.zeros(shape, np.float32)
    save(tmp_path / "0.npy", array)

    error = refused(tmp_path, [IMAGE])

    found = f"float32[{','.join(map(str, shape))}]"
    assert error.message == (
        f"the model wants float32[1,3,4,5] for input 'x', the file has {found}"
    )
    assert hint in error.hint


def test_a_transposed_sample_for_a_channels_last_model(tmp_path):
    spec = TensorSpec(name="x", dtype="float32", shape=(None, 4, 5, 3))
    save(tmp_path / "0.npy", image())

    assert "It looks like NCHW for a model in NHWC" in refused(tmp_path, [spec]).hint
    save(tmp_path / "0.npy", image()[0])
    assert refused(tmp_path, [spec]).hint == (
        "It looks like CHW for a model in NHWC: save array[None].transpose(0, 2, 3, 1)."
    )


def test_the_advice_on_shapes_is_right(tmp_path):
    """Saving what the hint says makes the sample fit."""
    for number, array in enumerate((image()[0], image()[None], image().transpose(0, 2, 3, 1),
                                    image()[0].transpose(1, 2, 0))):  # fmt: skip
        folder = tmp_path / str(number)
        save(folder / "0.npy", array)
        advice = refused(folder, [IMAGE]).hint.split("save ")[1].rstrip(".")

        save(folder / "0.npy", eval(advice, {"array": array}))

        assert np.array_equal(open_samples(folder, [IMAGE]).sample(0)["x"], image())


def test_free_dimensions_take_any_size(tmp_path):
    for index, size in enumerate((7, 9, 0)):
        save(tmp_path / f"{index}.npy", np.zeros((1, size), np.int64))

    assert [arrays["length"].shape for _, arrays in open_samples(tmp_path, [LENGTH])] == [
        (1, 7), (1, 9), (1, 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("array", "what"),
    [
        (np.array([{"a": 1}], object), "pickled Python objects"),
        (np.array(["text"]), "values of type <U4"),
        (np.zeros(3, np.complex64), "values of type complex64"),
        (np.zeros(3, [("a", "f4")]), "values of type [('a', '<f4')]"),
    ],
)
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_only_numbers_are_loaded(tmp_path, array, what, suffix):
    save(tmp_path / f"0{suffix}", array if suffix == ".npy" else {"x": array})

    error = refused(tmp_path, [IMAGE])

    assert error.message == f"input 'x' is float32, and the file holds {what}"


def test_a_pickle_in_the_place_of_a_file_is_never_run(tmp_path):
    marker = tmp_path / "executed"
    payload = b"cos\nmkdir\n(S'" + str(marker).encode() + b"'\ntR."
    (tmp_path / "calib").mkdir()
    (tmp_path / "calib/0.npy").write_bytes(payload)

    assert "cannot be read as .npy" in refused(tmp_path / "calib", [IMAGE]).message
    assert not marker.exists()


def test_a_truncated_file_and_one_with_more_than_one_array(tmp_path):
    save(tmp_path / "0.npy", image())
    whole = (tmp_path / "0.npy").read_bytes()

    (tmp_path / "0.npy").write_bytes(whole[:-40])
    assert refused(tmp_path, [IMAGE]).message == (
        "the header promises 240 bytes of data, and 200 follow"
    )
    (tmp_path / "0.npy").write_bytes(whole + whole)
    assert "promises 240 bytes" in refused(tmp_path, [IMAGE]).message


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_no_damage_ends_in_anything_but_a_clear_error(tmp_path, suffix):
    spec = TensorSpec(name="x", dtype="float32", shape=(2,))
    buffer = io.BytesIO()
    values = np.array([1, 2], np.float32)
    np.savez_compressed(buffer, x=values) if suffix == ".npz" else np.save(buffer, values)
    whole = buffer.getvalue()
    file = tmp_path / f"0{suffix}"
    rng = np.random.default_rng(0)
    damaged = [whole[:length] for length in range(len(whole))]
    for position in range(len(whole)):
        copy = bytearray(whole)
        copy[position] ^= int(rng.integers(1, 256))
        damaged.append(bytes(copy))

    refusals = 0
    for content in damaged:
        file.write_bytes(content)
        try:
            array = open_samples(file, [spec]).sample(0)["x"]
        except DataError:
            refusals += 1
            continue
        # What an archive still yields passed its checksum; a bare .npy file has none.
        assert suffix == ".npy" or np.array_equal(array, values)
    assert refusals > len(whole)


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ("(-1, -2)", b"\0" * 8),
        ("(0, 1.5)", b""),
        ("(99999999999, 99999999)", b"\0" * 8),
        ("(0, 99999999999999999999999)", b""),
        ("(0, 9223372036854775807)", b""),
        ("('a', 2)", b"\0" * 8),
        ("(2, __import__('os'))", b"\0" * 8),
        ("(" + "1," * 70 + ")", b"\0" * 4),
    ],
)
def test_headers_that_lie_are_refused(tmp_path, shape, data):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    (tmp_path / "0.npy").write_bytes(start + header + data)
    free = (None,) * (70 if "1,1" in shape else 2)

    error = refused(tmp_path, [TensorSpec(name="x", dtype="float32", shape=free)])

    assert error.where.endswith("0.npy (sample '0')")


def test_an_encrypted_or_unknown_archive_is_a_clear_error(tmp_path):
    file = tmp_path / "0.npz"
    save(file, {"x": image()})
    content = bytearray(file.read_bytes())
    central = content.rindex(b"PK\x01\x02")
    content[central + 8] |= 1  # the flag that says the member is encrypted
    file.write_bytes(content)

    assert "cannot be read as .npz" in refused(tmp_path, [IMAGE]).message

    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"no array")
    assert "cannot be read as .npy" in refused(tmp_path, [IMAGE]).message


def test_a_file_that_changes_after_the_check_is_not_used(calib):
    samples = open_samples(calib, [IMAGE])
    save(calib / "x/1.npy", np.full((1, 3, 4, 5), np.nan))

    with pytest.raises(DataError, match="changed after it was checked"):
        list(samples)

    (calib / "x/1.npy").unlink()
    with pytest.raises(DataError, match="cannot be read: No such file"):
        samples.sample(1)
    assert np.array_equal(samples.sample(0)["x"], image(0))


def test_a_failing_disk_is_a_clear_error(calib, monkeypatch):
    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    samples = open_samples(calib, [IMAGE])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", fail)
        with pytest.raises(DataError, match="cannot be read: Input/output error"):
            samples.sample(0)
    with monkeypatch.context() as patch:
        patch.setattr(npy_format, "read_magic", fail)
        with pytest.raises(DataError, match="cannot be read: Input/output error"):
            samples.sample(0)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", fail)
        assert refused(calib, [IMAGE]).message == "the folder cannot be read: Input/output error"


def test_a_link_to_nowhere_is_named(calib):
    (calib / "x/12.npy").symlink_to(calib / "gone.npy")

    assert refused(calib, [IMAGE]).where == f"{calib / 'x/12.npy'} (sample '12')"
    assert len(open_samples(calib, [IMAGE], skip_bad=True)) == 12


def test_models_that_cannot_be_fed_are_refused(calib):
    with pytest.raises(ModelError, match="no inputs"):
        open_samples(calib, [])
    for dtype in ("bfloat16", "object", "str"):
        with pytest.raises(UnsupportedError, match=f"its type is {dtype}"):
            open_samples(calib, [TensorSpec(name="x", dtype=dtype, shape=(1,))])
