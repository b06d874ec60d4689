"""Calibration data: every layout is read alike, and every mistake is named before a run."""

from __future__ import annotations

import dataclasses
import shutil
import tracemalloc

import numpy as np
import pytest
from numpy.lib import format as npy_format

from hbdebug.errors import UsageError
from hbdebug.samples import TensorSpec, open_samples
from tests.samples.data import FIXTURES, IMAGE, LENGTH, image, length, refused, save

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
