"""Files of several samples: split into what the model runs on, read one by one, and said."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest

from hbdebug.samples import Preparation, TensorSpec, open_samples
from tests.samples.data import IMAGE, LENGTH, image, refused, save

OPEN = TensorSpec(name="x", dtype="float32", shape=(None, 3, 4, 5))


def batch(count, start=0):
    return np.concatenate([image(start + index) for index in range(count)])


def layouts(path, count):
    """Write the same samples in every form that holds several of them."""
    many = batch(count)
    return {
        "npy": (path / "a.npy", many),
        "fortran": (path / "f.npy", np.asfortranarray(many)),
        "stacked": (path / "s.npy", many[:, None]),
        "npz": (path / "z.npz", {"x": many}),
    }


@pytest.mark.parametrize("form", ["npy", "fortran", "stacked", "npz"])
@pytest.mark.parametrize("spec", [IMAGE, OPEN])
def test_rows_along_the_first_dimension_are_samples(tmp_path, form, spec):
    path, content = layouts(tmp_path, 5)[form]
    save(path, content)

    samples = open_samples(path, [spec])

    assert samples.names == tuple(f"{path.stem}[{index}]" for index in range(5))
    assert len(samples) == samples.found == 5
    for index in (0, 3, 1, 4, 2):
        array = samples.sample(index)["x"]
        assert array.shape == (1, 3, 4, 5)
        assert array.flags.c_contiguous
        assert np.array_equal(array, image(index))
    assert "1 file holds several samples each (5 along the first dimension)" in samples.notes[0]


def test_rows_of_a_packed_archive(tmp_path):
    np.savez_compressed(tmp_path / "z.npz", x=batch(9))
    samples = open_samples(tmp_path, [IMAGE])

    for _ in range(2):
        for index, (_, arrays) in enumerate(samples):
            assert np.array_equal(arrays["x"], image(index))
    assert np.array_equal(samples.sample(2)["x"], image(2))


def test_samples_go_to_other_processes(tmp_path):
    np.savez(tmp_path / "z.npz", x=batch(3))
    samples = open_samples(tmp_path, [IMAGE])
    samples.sample(0)

    copied = pickle.loads(pickle.dumps(samples))

    assert [np.array_equal(copied.sample(i)["x"], image(i)) for i in (1, 0, 2)] == [True] * 3
    assert copied.digest == samples.digest


def test_a_fortran_ordered_array_in_an_archive_has_a_remedy(tmp_path):
    np.savez(tmp_path / "z.npz", x=np.asfortranarray(batch(3)))

    assert "Save numpy.ascontiguousarray(array)." in refused(tmp_path, [IMAGE]).hint


def test_keys_of_an_archive_hold_equally_many_samples(tmp_path):
    count = TensorSpec(name="count", dtype="int64", shape=())
    np.savez(tmp_path / "z.npz", x=batch(3), count=np.arange(3))

    samples = open_samples(tmp_path / "z.npz", [IMAGE, count])

    assert [int(arrays["count"]) for _, arrays in samples] == [0, 1, 2]
    assert all(arrays["count"].shape == () for _, arrays in samples)

    np.savez(tmp_path / "z.npz", x=batch(3), count=np.arange(2))
    error = refused(tmp_path / "z.npz", [IMAGE, count])
    assert error.message == (
        "the inputs' arrays hold different numbers of samples: 'x' 3 samples, 'count' 2 samples"
    )


def test_the_batch_dimension_may_be_missing_and_it_is_said(tmp_path):
    for index in range(3):
        save(tmp_path / f"{index}.npy", image(index)[0] if index else image(index))

    samples = open_samples(tmp_path, [IMAGE])

    for index, (_, arrays) in enumerate(samples):
        assert np.array_equal(arrays["x"], image(index))
    assert samples.notes == ("input 'x': 2 of 3 files have no batch dimension; it is put in front",)


def test_plain_samples_need_no_note(tmp_path):
    save(tmp_path / "0.npy", image())

    assert open_samples(tmp_path, [IMAGE]).notes == ()


def test_an_open_batch_is_left_whole_when_asked(tmp_path):
    save(tmp_path / "a.npy", batch(5))

    samples = open_samples(tmp_path, [OPEN], preparation=Preparation(split_batch=False))

    assert samples.names == ("a",)
    assert np.array_equal(samples.sample(0)["x"], batch(5))
    assert "--no-split-batch" in open_samples(tmp_path, [OPEN]).notes[0]


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (TensorSpec(name="x", dtype="float32", shape=(None,)), (7,)),
        (TensorSpec(name="x", dtype="float32", shape=(None, 4), leading="seq_len"), (7, 4)),
        (TensorSpec(name="x", dtype="float32", shape=(None, 4), leading="num_boxes"), (7, 4)),
    ],
)
def test_an_open_first_size_that_is_no_batch_is_left_alone(tmp_path, spec, shape):
    save(tmp_path / "a.npy", np.zeros(shape, np.float32))

    samples = open_samples(tmp_path, [spec])

    assert samples.sample(0)["x"].shape == shape
    assert samples.notes == ()


@pytest.mark.parametrize("leading", ["", "N", "batch", "batch_size", "unk__12"])
def test_an_open_batch_is_split_whatever_it_is_called(tmp_path, leading):
    spec = TensorSpec(name="x", dtype="float32", shape=(None, 4), leading=leading)
    save(tmp_path / "a.npy", np.zeros((7, 4), np.float32))

    assert len(open_samples(tmp_path, [spec])) == 7


def test_open_batches_are_split_only_if_all_inputs_agree(tmp_path):
    other = TensorSpec(name="y", dtype="float32", shape=(None, 2))
    np.savez(tmp_path / "z.npz", x=batch(5), y=np.zeros((5, 2), np.float32))
    assert len(open_samples(tmp_path, [OPEN, other])) == 5
    assert len(open_samples(tmp_path, [IMAGE, other])) == 5

    np.savez(tmp_path / "z.npz", x=batch(5), y=np.zeros((3, 2), np.float32))
    samples = open_samples(tmp_path, [OPEN, other])
    assert samples.names == ("z",)
    assert samples.sample(0)["x"].shape == (5, 3, 4, 5)
    assert "'x' 5 samples, 'y' one" in refused(tmp_path, [IMAGE, other]).message


def test_an_empty_batch_is_refused(tmp_path):
    save(tmp_path / "a.npy", np.zeros((0, 3, 4, 5), np.float32))

    assert "the file has float32[0,3,4,5]" in refused(tmp_path, [IMAGE]).message


def test_a_batch_that_is_not_that_of_the_model_has_a_remedy(tmp_path):
    spec = TensorSpec(name="x", dtype="float32", shape=(4, 3, 4, 5))
    save(tmp_path / "a.npy", batch(4))
    save(tmp_path / "b.npy", batch(3))

    error = refused(tmp_path, [spec])

    assert error.where.endswith("b.npy (sample 'b')")
    assert "built for batches of 4, and this one has 3: fill it up, leave it out" in error.hint
    assert open_samples(tmp_path, [spec], skip_bad=True).names == ("a",)


def test_limits_and_bad_rows(tmp_path):
    many = batch(6)
    many[2, 0, 1, 1] = np.nan
    save(tmp_path / "a.npy", many)
    save(tmp_path / "b.npy", batch(3))

    error = refused(tmp_path, [IMAGE])
    samples = open_samples(tmp_path, [IMAGE], skip_bad=True)
    few = open_samples(tmp_path, [IMAGE], limit=2)

    assert error.where == f"{tmp_path / 'a.npy'} (sample 'a[2]')"
    assert len(samples) == 8
    assert samples.found == 9
    assert [item.name for item in samples.skipped] == ["a[2]"]
    assert (few.names, few.found) == (("a[0]", "a[1]"), 9)


def test_more_samples_for_one_input_than_for_another(tmp_path):
    for index in range(4):
        save(tmp_path / "x" / f"{index}.npy", image(index))
        if index < 3:
            save(tmp_path / "length" / f"{index}.npy", np.array([[index]]))

    error = refused(tmp_path, [IMAGE, LENGTH])
    samples = open_samples(tmp_path, [IMAGE, LENGTH], skip_bad=True)

    assert error.message == "no file for input 'length'"
    assert error.where.endswith("3.npy (sample '3')")
    assert samples.names == ("0", "1", "2")
    assert [item.name for item in samples.skipped] == ["3"]


@pytest.mark.parametrize("form", ["npy", "npz", "packed"])
def test_a_big_file_is_read_sample_by_sample(tmp_path, form):
    spec = TensorSpec(name="x", dtype="float32", shape=(1, 3, 100, 100))
    many = np.zeros((60, 3, 100, 100), np.float32)
    many[:, 0, 0, 0] = np.arange(60)
    file = tmp_path / f"a{'.npy' if form == 'npy' else '.npz'}"
    if form == "npy":
        np.save(file, many)
    else:
        {"npz": np.savez, "packed": np.savez_compressed}[form](file, x=many)
    del many

    tracemalloc.start()
    samples = open_samples(file, [spec])
    total = sum(float(arrays["x"][0, 0, 0, 0]) for _, arrays in samples)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert total == sum(range(60))
    # The file holds 7.2 MB, and a sample 120 kB; zipfile's buffers are of that order, too.
    assert peak < 1_000_000


def test_an_archive_of_many_samples_is_unpacked_once_a_pass(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "z.npz", x=batch(20))
    samples = open_samples(tmp_path, [IMAGE])
    opened = []
    from zipfile import ZipFile

    original = ZipFile.open
    monkeypatch.setattr(
        ZipFile, "open", lambda *args, **kwargs: opened.append(1) or original(*args, **kwargs)
    )

    assert len(list(samples)) == 20
    assert len(opened) == 1
