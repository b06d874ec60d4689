"""Samples that are not what the model wants, or damaged, are named before a run."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.lib import format as npy_format

from hbdebug.errors import DataError, ModelError, UnsupportedError
from hbdebug.samples import Skipped, TensorSpec, open_samples
from tests.samples.data import IMAGE, LENGTH, image, refused, save


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
        save(calib / "x" / f"{index}.npy", image()[0, 0])

    error = refused(calib, [IMAGE])

    assert error.where.endswith("4.npy (sample '4')")
    assert "Not usable either: '9', '10'." in error.hint


def test_when_none_is_usable_there_is_nothing_to_skip(calib):
    for index in range(12):
        save(calib / "x" / f"{index}.npy", image()[0].transpose(1, 2, 0))

    assert "Of the first 10 none is usable." in refused(calib, [IMAGE]).hint
    for options in ({}, {"skip_bad": True}):
        error = refused(calib, [IMAGE], **options)
        assert "--skip-bad" not in error.hint
        assert "It looks like HWC for a model in NCHW: save array[None]" in error.hint
    assert "Of all samples none is usable." in error.hint


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((1, 4, 5, 3), "It looks like NHWC for a model in NCHW: save array.transpose(0, 3, 1, 2)."),
        ((4, 5, 3), "looks like HWC for a model in NCHW: save array[None].transpose(0, 3, 1, 2)."),
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
    wrong = (image().transpose(0, 2, 3, 1), image()[0].transpose(1, 2, 0))
    for number, array in enumerate(wrong):
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

    assert error.message == f"the file holds {what}"


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
        assert refused(calib, [IMAGE]).message == "cannot be read: Input/output error"
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
