"""Limits, digest, memory and dtypes of calibration data."""

from __future__ import annotations

import shutil
import tracemalloc

import numpy as np
import pytest
from numpy.lib import format as npy_format

from hbdebug.errors import UsageError
from hbdebug.samples import TensorSpec, open_samples
from tests.samples.data import IMAGE, image, refused, save


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
