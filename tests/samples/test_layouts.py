"""Every layout is read alike, in natural order, and what is no sample is named."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hbdebug.samples import Skipped, TensorSpec, open_samples
from tests.samples.data import FIXTURES, IMAGE, LENGTH, image, length, refused, save


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

    assert error.message == "no .npy file, image or raw file for input 'length'"
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
        (tmp_path / f"{index}.txt").touch()
    assert refused(tmp_path, [IMAGE]).message.endswith(
        "'0.txt', '1.txt', '2.txt', '3.txt', '4.txt'"
    )

    (tmp_path / "5.txt").touch()
    assert refused(tmp_path, [IMAGE]).message.endswith("'4.txt' and 1 more")


def test_plain_npy_files_do_not_do_for_several_inputs(tmp_path):
    save(tmp_path / "0.npy", image())

    for path in (tmp_path, tmp_path / "0.npy"):
        error = refused(path, [IMAGE, LENGTH])
        assert error.message == "the files hold one array each, and the model has 2 inputs"
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
