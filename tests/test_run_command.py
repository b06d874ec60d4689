"""``hbdebug run``: which files it takes, what it writes and prints, and how it refuses."""

from __future__ import annotations

import hashlib
import io
import json
from collections import Counter

import numpy as np
import onnx
import pytest

from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.report.outputs import RunRecord, SavedTensor, render_run
from hbdebug.report.terminal import make_console
from tests import models
from tests.command import hbdebug
from tests.integer_models import FIXTURES, QuantizedModel, table_lookup, two_inputs
from tests.loading.one_node_walk import run_all

INVISIBLE = str.maketrans("", "", " \n─")

DUMPS = json.loads((FIXTURES / "integer_dumps.json").read_text())


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny_quantized_model.onnx"
    onnx.save(table_lookup(), path)
    return path


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two_quantized_model.onnx"
    onnx.save(two_inputs(), path)
    return path


def save(path, values, dtype=np.float32):
    np.save(path, np.asarray(values, dtype))
    return path


@pytest.fixture
def x(tmp_path):
    return save(tmp_path / "whatever.npy", [[1.0, 0.25, -64.0, 100.0]])


@pytest.fixture
def left(tmp_path):
    return save(tmp_path / "left.npy", [[1, -2]])


@pytest.fixture
def right(tmp_path):
    return save(tmp_path / "in_right.npy", [[3, 4, -5]])


def test_a_quantized_model_runs_in_integers(model, x, out):
    done = hbdebug("run", model, x, "-o", out)

    assert done.code == 0
    assert [path.name for path in out.iterdir()] == ["negate_out_dequantize_out.npy"]
    y = np.load(out / "negate_out_dequantize_out.npy")
    assert y.dtype == np.float32
    assert y.tolist() == [[-0.5, 0.0, 31.75, -31.75]]
    assert "in integers" in done.out
    row = next(line for line in done.out.splitlines() if "negate_out_dequantize_out" in line)
    for word in ("float32", "[1, 4]", "-31.75", "31.75", str(out)):
        assert word in row


def test_the_classifiers_output_is_the_vendors(out):
    folder = FIXTURES / "textline_cls"
    sample = DUMPS[0]["samples"][0]

    hbdebug("run", folder / DUMPS[0]["model"], folder / "calib" / "x" / sample["sample"], "-o", out)

    (file,) = out.iterdir()
    assert file.name == "save_infer_model_scale_0.tmp_1.npy"
    expected = sample["tensors"]["save_infer_model/scale_0.tmp_1"]
    assert hashlib.sha256(np.load(file)).hexdigest() == expected["sha256"]


def test_a_calibrated_model_runs_fake_quantized(tmp_path, out):
    proto = models.residual()
    onnx.save(proto, tmp_path / "tiny_calibrated_model.onnx")
    (sample,) = models.inputs_for(proto)
    np.save(tmp_path / "x.npy", sample["x"])

    done = hbdebug("run", tmp_path / "tiny_calibrated_model.onnx", tmp_path / "x.npy", "-o", out)

    assert done.code == 0
    assert "fake-quantized in float32, as calibrated" in done.out
    loaded = load(proto)
    expected = run_all(loaded, sample, Assignment.as_calibrated(loaded))["softmax_out"]
    assert np.load(out / "softmax_out.npy").tobytes() == expected.tobytes()


def test_a_float_model_is_refused(out, x):
    done = hbdebug(
        "run", FIXTURES / "textline_cls" / "cls_optimized_float_model.onnx", x, "-o", out
    )

    assert done.code == 3
    assert "no quantization points" in done.err
    assert not out.exists()


def test_analysis_of_a_quantized_model_names_the_calibrated_one(model, x):
    done = hbdebug("sensitivity", model, x)

    assert done.code == 3
    assert "is a quantized model" in done.err
    assert "_calibrated_model.onnx" in done.err


def test_several_inputs_are_told_by_the_names_of_their_files(two, left, right, out):
    done = hbdebug("run", two, right, left, "-o", out)

    assert done.code == 0
    assert np.load(out / "both_out.npy").tolist() == [[1, -2, 3, 4, -5]]
    assert np.load(out / "both_out.npy").dtype == np.int8
    assert np.load(out / "both_out_dequantize_out.npy").tolist() == [[2, -4, 6, 8, -10]]


def test_inputs_can_be_named(two, left, tmp_path, out):
    other = save(tmp_path / "other.npy", [[3, 4, -5]])

    named = hbdebug(
        "run", two, "--input", f"left={left}", "--input", f"in/right={other}", "-o", out
    )
    # With one input left, its file may have any name.
    mixed = hbdebug("run", two, other, "--input", f"left={left}", "-o", out)

    assert named.code == mixed.code == 0
    assert np.load(out / "both_out.npy").tolist() == [[1, -2, 3, 4, -5]]


def test_an_input_whose_name_holds_an_equals_sign_can_be_named(x, tmp_path, out):
    b = QuantizedModel()
    b.output(b.quantize(b.input("a=b", (1, 4)), 1), onnx.TensorProto.INT8)
    onnx.save(b.proto(), tmp_path / "m.onnx")

    assert hbdebug("run", tmp_path / "m.onnx", "--input", f"a=b={x}", "-o", out).code == 0


def test_all_tensors_are_written_and_listed(two, left, right, out):
    done = hbdebug("run", two, left, right, "-o", out, "--all-tensors")

    assert sorted(path.name for path in out.iterdir()) == [
        "both_out.npy",
        "both_out_dequantize_out.npy",
        "tensors",
        "tensors.json",
    ]
    listed = json.loads((out / "tensors.json").read_text("utf-8"))
    assert list(listed) == ["left_quantize_out", "in/right_quantize_out"]
    entry = listed["in/right_quantize_out"]
    assert entry == {
        "file": "tensors/in_right_quantize_out.npy",
        "dtype": "int8",
        "shape": [1, 3],
    }
    assert np.load(out / entry["file"]).tolist() == [[3, 4, -5]]
    assert "2 other tensors" in done.out


def test_all_tensors_of_a_calibrated_model(tmp_path, out):
    proto = models.residual()
    onnx.save(proto, tmp_path / "m.onnx")
    (sample,) = models.inputs_for(proto)
    np.save(tmp_path / "x.npy", sample["x"])

    hbdebug("run", tmp_path / "m.onnx", tmp_path / "x.npy", "-o", out, "--all-tensors")

    loaded = load(proto)
    expected = run_all(loaded, sample, Assignment.as_calibrated(loaded))
    listed = json.loads((out / "tensors.json").read_text("utf-8"))
    inner = {name for step in loaded.steps for name in step.outputs}
    assert listed.keys() == inner - loaded.static - {"softmax_out"}
    for name, entry in listed.items():
        assert np.load(out / entry["file"]).tobytes() == expected[name].tobytes(), name


def test_names_that_differ_only_in_what_files_cannot_hold_stay_apart(tmp_path, x, out):
    b = QuantizedModel()
    start = b.quantize(b.input("x", (1, 4)), 1)
    for index, name in enumerate(("a/b", "a:b", "A_B", "..", "n" * 300)):
        b.nodes.append(onnx.helper.make_node("Identity", [start], [name], name=f"n{index}"))
        b.output(name, onnx.TensorProto.INT8)
    onnx.save(b.proto(), tmp_path / "m.onnx")

    done = hbdebug("run", tmp_path / "m.onnx", x, "-o", out)

    assert done.code == 0
    names = sorted(path.name for path in out.iterdir())
    assert len({name.casefold() for name in names}) == 5
    assert names[:2] == ["A_B_3.npy", "_.npy"]
    assert {"a_b.npy", "a_b_2.npy"} < set(names)
    assert len(names[-1]) < 150


def test_a_failed_run_leaves_no_output(two, left, tmp_path, out):
    (tmp_path / "in_right.npy").write_bytes(b"no array")

    done = hbdebug("run", two, left, tmp_path / "in_right.npy", "-o", out)

    assert done.code == 4
    assert "in_right.npy" in done.err
    assert not out.exists()


def test_an_output_without_elements_has_no_extremes(tmp_path, out):
    b = QuantizedModel()
    none = b.constant("none", np.array([0, 0], np.int64))
    start = b.constant("start", np.array([0, 0], np.int64))
    b.output(b.node("Slice", [b.quantize(b.input("x", (1, 4)), 1), start, none], "cut"), 3)
    onnx.save(b.proto(), tmp_path / "m.onnx")

    done = hbdebug("run", tmp_path / "m.onnx", save(tmp_path / "x.npy", [[1] * 4]), "-o", out)

    assert done.code == 0
    assert np.load(out / "cut_out.npy").shape == (0, 0)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "no file for input 'left', 'in/right'"),
        (["{left}"], 2, "no file for input 'in/right'"),
        (["{left}", "{x}"], 2, "is called like no input"),
        (["{left}", "{left}", "{right}"], 2, "input 'left' is given twice"),
        (["{left}", "{right}", "--input", "left={left}"], 2, "input 'left' is given twice"),
        (["--input", "{left}"], 2, "is not NAME=FILE"),
        (["--input", "leftt={left}"], 2, "Did you mean left?"),
        (["{left}", "{right}", "{x}"], 2, "is called like no input"),
        (["{left}", "--input", "in/right=absent.npy"], 4, "absent.npy: no such file"),
        (["--input", "in/right={left}", "{left}"], 4, "the model wants float32[1,3]"),
        (["--input", "in/right={wide}", "{left}"], 4, "would change"),
        (["--input", "in/right={nan}", "{left}"], 4, "not finite"),
    ],
)
def test_what_cannot_be_paired_or_read_is_refused(
    two, left, right, x, out, tmp_path, words, code, told
):
    files = {
        "left": left,
        "right": right,
        "x": x,
        "wide": save(tmp_path / "wide.npy", [[0.1, 0.2, 0.3]], np.float64),
        "nan": save(tmp_path / "nan.npy", [[0, np.nan, 0]]),
    }

    done = hbdebug("run", two, *(word.format(**files) for word in words), "-o", out)

    assert done.code == code
    assert told in done.err
    assert "Traceback" not in done.err
    assert not out.exists()


def test_a_file_that_fits_two_inputs_is_refused(tmp_path, out):
    b = QuantizedModel()
    for name in ("a/b", "a:b"):
        b.output(b.quantize(b.input(name, (1,)), 1), onnx.TensorProto.INT8)
    onnx.save(b.proto(), tmp_path / "m.onnx")
    file = save(tmp_path / "a_b.npy", [1])

    done = hbdebug("run", tmp_path / "m.onnx", file, file, "-o", out)

    assert done.code == 2
    assert "fits a/b and a:b" in done.err


def test_integers_are_taken_for_floats_where_nothing_is_lost(model, tmp_path, out):
    save(tmp_path / "x.npy", [[1, 2, -64, 100]], np.int16)

    assert hbdebug("run", model, tmp_path / "x.npy", "-o", out).code == 0


def test_the_folder_must_be_one(model, x, tmp_path):
    (tmp_path / "file").write_text("")

    done = hbdebug("run", model, x, "-o", tmp_path / "file")

    assert done.code == 2
    assert "cannot write" in done.err


def render(width, **changes):
    record = {
        "model": "m_quantized_model.onnx",
        "kind": "HMCT quantized, horizon_nn 1.1.0",
        "nodes": 3,
        "arithmetic": "in integers",
        "inputs": {"x": "float32[1,4] from x.npy"},
        "outputs": tuple(
            SavedTensor(
                name=f"{'stage/' * 8}score_{index}",
                dtype=dtype,
                shape=(1, 80, 12, 16),
                low=low,
                high=high,
                file=f"out/{'stage_' * 8}score_{index}.npy",
            )
            for index, (dtype, low, high) in enumerate(
                [("int16", -32768, 32767), ("float32", -1.25, 1e-9), ("int8", None, None)]
            )
        ),
    }
    file = io.StringIO()
    render_run(RunRecord(**{**record, **changes}), console=make_console(file, width=width))
    return file.getvalue()


@pytest.mark.parametrize("width", [50, 80])
def test_nothing_of_an_output_is_cut(width):
    text = render(width)

    assert max(len(line) for line in text.splitlines()) <= width
    # However the table folds, it has the same characters; only the ruler has another length.
    assert Counter(text.translate(INVISIBLE)) == Counter(render(400).translate(INVISIBLE))


def test_warnings_about_the_operators_are_shown():
    assert "Warnings" not in render(80)
    assert "three nodes are odd" in render(80, warnings=("three nodes are odd",))


def test_raw_files_and_arrays_without_a_batch_dimension_are_read_too(model, x, tmp_path, out):
    raw, bare = tmp_path / "x.bin", save(tmp_path / "bare.npy", np.load(x)[0])
    raw.write_bytes(np.load(x).tobytes())

    for number, file in enumerate((x, raw, bare)):
        assert hbdebug("run", model, file, "-o", out / str(number)).code == 0

    name = "negate_out_dequantize_out.npy"
    first, *others = (np.load(out / str(number) / name) for number in range(3))
    assert all(np.array_equal(first, other) for other in others)


def test_several_samples_and_images_are_not_for_run(model, x, tmp_path, out):
    many = save(tmp_path / "many.npy", np.repeat(np.load(x), 3, axis=0))
    (tmp_path / "x.png").write_bytes(b"anything")

    done = hbdebug("run", model, many, "-o", out)
    assert done.code == 4
    assert "Save one sample per file; this one holds 3" in done.err
    done = hbdebug("run", model, tmp_path / "x.png", "-o", out)
    assert done.code == 4
    assert "neither a .npy nor a raw file" in done.err
