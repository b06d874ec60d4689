"""Several samples in a file, and samples without the batch's axis."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from hbdebug.samples import Preparation, TensorSpec, open_samples
from tests.samples.data import IMAGE, image, refused, save

OPEN = TensorSpec(name="x", dtype="float32", shape=(None, 3, 4, 5), batched=True)
UNKNOWN = TensorSpec(name="x", dtype="float32", shape=(None, 7))
STACK = np.concatenate([image(seed) for seed in range(5)])


@pytest.mark.parametrize("spec", [IMAGE, OPEN], ids=["fixed", "open"])
@pytest.mark.parametrize("form", ["batch", "axis in front", "fortran"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_a_leading_axis_counts_samples(tmp_path, spec, form, suffix):
    array = {"batch": STACK, "axis in front": STACK[:, None], "fortran": np.asfortranarray(STACK)}
    save(tmp_path / f"all{suffix}", array[form] if suffix == ".npy" else {"x": array[form]})

    samples = open_samples(tmp_path / f"all{suffix}", [spec])

    assert samples.names == tuple(f"all[{index}]" for index in range(5))
    for index, (_, arrays) in enumerate(samples):
        np.testing.assert_array_equal(arrays["x"], image(index))
    assert "taken apart" in samples.notes[0]


def test_one_archive_with_several_inputs(tmp_path):
    ids = np.arange(10).reshape(5, 2)
    np.savez_compressed(tmp_path / "all.npz", x=STACK, ids=ids)
    spec = TensorSpec(name="ids", dtype="int64", shape=(1, 2))

    samples = open_samples(tmp_path / "all.npz", [spec, IMAGE])

    assert len(samples) == 5
    np.testing.assert_array_equal(samples.sample(3)["ids"], ids[3:4])
    np.testing.assert_array_equal(samples.sample(3)["x"], image(3))


def test_unequal_numbers_are_refused_with_both(tmp_path):
    np.savez(tmp_path / "all.npz", x=STACK, ids=np.zeros((4, 2), np.int64))
    spec = TensorSpec(name="ids", dtype="int64", shape=(1, 2))

    error = refused(tmp_path, [IMAGE, spec])

    assert "unequal numbers of samples: 5 of x, 4 of ids" in error.message


def test_the_batchs_axis_is_added_and_it_is_said(tmp_path):
    save(tmp_path / "x/0.npy", image(0)[0])

    samples = open_samples(tmp_path, [IMAGE])

    np.testing.assert_array_equal(samples.sample(0)["x"], image(0))
    assert samples.notes == ("x: the batch axis is added to files without it",)


def test_an_open_first_dimension_that_counts_no_samples_is_left_alone(tmp_path):
    for index, length in enumerate((7, 9, 12)):
        save(tmp_path / f"{index}.npy", np.full((length, 7), index, np.float32))

    samples = open_samples(tmp_path, [UNKNOWN])

    assert [arrays["x"].shape[0] for _, arrays in samples] == [7, 9, 12]


def test_a_batch_can_be_kept(tmp_path):
    save(tmp_path / "0.npy", STACK)

    samples = open_samples(tmp_path, [OPEN], preparation=Preparation(keep_batch=True))

    assert samples.names == ("0",)
    np.testing.assert_array_equal(samples.sample(0)["x"], STACK)


def test_case_52_what_is_left_over_of_a_fixed_batch_is_listed(tmp_path):
    """The model takes 2 at a time; 5 are there, and then a file with one only."""
    spec = TensorSpec(name="x", dtype="float32", shape=(2, 3, 4, 5), batched=True)
    save(tmp_path / "0.npy", STACK)

    samples = open_samples(tmp_path, [spec])

    assert samples.names == ("0[0]", "0[1]")
    np.testing.assert_array_equal(samples.sample(1)["x"], STACK[2:4])
    (left,) = samples.skipped
    assert left.reason == "1 entries left over: the model takes 2 at a time"
    save(tmp_path / "1.npy", STACK[:1])
    assert "the model wants float32[2,3,4,5]" in refused(tmp_path, [spec]).message


def test_the_limit_counts_samples_and_not_files(tmp_path):
    save(tmp_path / "a.npy", STACK)
    save(tmp_path / "b.npy", STACK)

    samples = open_samples(tmp_path, [IMAGE], limit=7)

    assert samples.names[-1] == "b[1]"
    assert samples.found == 10


def test_the_digest_is_that_of_separate_files_but_for_names(tmp_path):
    save(tmp_path / "one/0.npy", image(0))
    save(tmp_path / "two/0.npy", image(0)[0])

    first, second = (open_samples(tmp_path / name, [IMAGE]) for name in ("one", "two"))

    assert first.digest == second.digest


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_of_a_large_file_one_sample_is_in_memory_at_a_time(tmp_path, suffix):
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 250_000))
    array = np.zeros((40, 250_000), np.float32)
    save(tmp_path / f"all{suffix}", array if suffix == ".npy" else {"x": array})
    del array
    tracemalloc.start()
    samples = open_samples(tmp_path, [spec])
    for _ in samples:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    # One sample takes 1 MB and the file 40; reading and checking hold a few copies of one.
    assert peak < 6_000_000


def test_damage_inside_a_stack_is_told(tmp_path):
    broken = STACK.copy()
    broken[3, 0, 0, 0] = np.nan
    save(tmp_path / "all.npy", broken)

    assert "(sample 'all[3]')" in refused(tmp_path, [IMAGE]).where
    assert len(open_samples(tmp_path, [IMAGE], skip_bad=True)) == 4
