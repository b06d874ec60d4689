"""The command line: what it prints, what it writes, and what it exits with."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from tests import models
from tests.command import hbdebug


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "tiny_calibrated_model.onnx"
    onnx.save(models.residual(), path)
    return path


@pytest.fixture
def calib(tmp_path):
    return models.save_samples(tmp_path / "calib", models.inputs_for(models.residual(), count=9))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_the_report_has_its_parts_in_order(model, calib, out):
    done = hbdebug("sensitivity", model, calib, "-o", out)

    assert done.code == 0
    parts = [
        "tiny_calibrated_model.onnx",
        "nodes analysed",
        "Ceilings",
        "as calibrated",
        "int16 where bayes-e allows it",
        "Verdict",
        "Ranking: ",
        "Suggestion: nodes",
        "\ncpu_nodes.yaml\n",
    ]
    places = [done.out.lower().index(part.lower()) for part in parts]
    assert places == sorted(places)


def test_a_cost_estimate_is_printed_before_the_run(model, calib, out):
    """Cases 77, 78 and V15: nobody knew how long it would take."""
    done = hbdebug("sensitivity", model, calib, "-o", out)

    assert "evaluations x 9 samples: about" in done.err
    assert "evaluations x" not in done.out


def test_files_hold_everything_and_can_be_shown_again(model, calib, out):
    done = hbdebug("sensitivity", model, calib, "-o", out, "--top", "2")

    record = json.loads((out / "sensitivity.json").read_text("utf-8"))
    assert record["schema_version"] == 1
    assert len(record["nodes"]) > 2
    assert len(record["data"]["samples"]) == record["data"]["found"] == 9
    assert sorted(path.name for path in out.iterdir()) == ["cpu_nodes.yaml", "sensitivity.json"]

    again = hbdebug("report", out / "sensitivity.json", "--top", "2")
    assert again.code == 0
    assert again.out == done.out[: done.out.index("Written")].rstrip("\n") + "\n"


def test_format_json_prints_the_record_instead(model, calib, out):
    done = hbdebug("sensitivity", model, calib, "-o", out, "--format", "json", "--no-suggest")

    assert done.json == json.loads((out / "sensitivity.json").read_text("utf-8"))
    assert done.json["suggestion"] is None
    assert not (out / "cpu_nodes.yaml").exists()


def test_info_lists_points_and_nodes(model):
    text = hbdebug("info", model)
    record = hbdebug("info", model, "--format", "json").json

    assert text.code == 0
    assert "one_b_w_HzCalibration" in text.out
    points = {point["name"]: point for point in record["points"]}
    assert points["one_b_w_HzCalibration"]["granularity"] == "per-channel"
    assert points["stem_relu_out_HzCalibration"]["consumers"] == ["one_a", "one_add"]
    left_out = {node["name"]: node["reason"] for node in record["nodes"] if not node["analysed"]}
    assert set(left_out) == {"stem_relu", "one_relu", "two_relu", "reshape", "softmax"}
    assert all(left_out.values())


@pytest.mark.parametrize("kind", ["weight", "activation"])
def test_points_can_be_ranked(model, calib, out, kind):
    done = hbdebug("sensitivity", model, calib, "-o", out, "--kind", kind, "--format", "json")

    record = done.json
    assert record["nodes"] == []
    assert {point["role"] for point in record["points"]} == {kind}
    assert [point["rank"] for point in record["points"]] == list(
        range(1, len(record["points"]) + 1)
    )


def test_damage_can_be_measured_at_an_inner_node(model, calib, out):
    done = hbdebug(
        "sensitivity", model, calib, "-o", out, "--output-node", "one_add", "--format", "json"
    )

    record = done.json
    names = {node["name"] for node in record["nodes"]}
    assert "one_b" in names
    assert "two_b" not in names
    assert set(record["ceilings"][0]["outputs"]) == {"one_add_out"}
    reasons = {item["name"]: item["reason"] for item in record["not_analysed"]}
    assert reasons["two_b"] == "does not reach the measured outputs"


def test_metrics_and_the_vendors_names_for_them(model, calib, out):
    done = hbdebug(
        *("sensitivity", model, calib, "-o", out, "--no-suggest", "--format", "json"),
        *("--metric", "chebyshev", "--metric", "mse"),
    )

    record = done.json
    assert "chebyshev is measured as max_abs_error" in done.err
    assert record["metrics"][:2] == ["max_abs_error", "mse"]
    values = [node["alone"]["max_abs_error"] for node in record["nodes"]]
    assert values == sorted(values, reverse=True)


def test_selectors_choose_what_is_ranked(model, calib, out):
    done = hbdebug(
        *("sensitivity", model, calib, "-o", out, "--no-suggest", "--format", "json"),
        *("--node", "two_*", "--op", "GlobalAveragePool"),
    )

    assert {node["name"] for node in done.json["nodes"]} == {"two_a", "two_b", "two_add", "pool"}


def test_samples_limits_in_natural_order(model, calib, out):
    done = hbdebug("sensitivity", model, calib, "-o", out, "--samples", "2", "--format", "json")

    assert done.json["data"]["samples"] == ["0", "1"]
    assert done.json["data"]["found"] == 9
    assert any("2 samples only" in warning for warning in done.json["warnings"])


def test_no_split_leaves_the_halves_out(model, calib, out):
    done = hbdebug(
        "sensitivity", model, calib, "-o", out, "--no-split", "--no-suggest", "--format", "json"
    )

    assert all(node["weights"] is None for node in done.json["nodes"])
    assert all(node["activations"] is None for node in done.json["nodes"])


def test_a_gate_that_is_missed_exits_with_1(model, calib, out):
    arguments = ("sensitivity", model, calib, "-o", out, "--no-suggest")

    assert hbdebug(*arguments, "--fail-below", "0.0").code == 0
    missed = hbdebug(*arguments, "--fail-below", "0.9999999")
    assert missed.code == 1
    assert "cosine_similarity" in missed.err
    # The report is printed all the same.
    assert "Ranking" in missed.out


def test_the_numbers_do_not_depend_on_jobs_or_memory(model, calib, out):
    def ranking(*options):
        arguments = ("sensitivity", model, calib, "-o", out, "--exact", "--no-suggest")
        return hbdebug(*arguments, "--format", "json", *options).json["nodes"]

    assert ranking("--jobs", "1") == ranking("--jobs", "3") == ranking("--memory", "20KiB")


def test_the_users_files_are_not_changed(model, calib, out):
    before = {path: path.read_bytes() for path in [model, *calib.rglob("*.npy")]}

    hbdebug("sensitivity", model, calib, "-o", out)

    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--metric", "cosin"], 2, "cosine_similarity"),
        (["--node", "ons_add"], 2, "one_add"),
        (["--op", "MatMul"], 2, "Conv"),
        (["--output-node", "one_ad"], 2, "one_add"),
        (["--march", "bayes-f"], 2, "bayes-e"),
        (["--provider", "npu"], 2, "cpu"),
        (["--memory", "lots"], 2, "512MiB"),
        (["--samples", "0"], 2, "samples"),
        (["--kind", "layer"], 2, "activation"),
        (["--no-such-option"], 2, "No such option"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(model, calib, out, options, code, words):
    done = hbdebug("sensitivity", model, calib, "-o", out, *options)

    assert done.code == code
    assert words in done.err
    assert "Traceback" not in done.err
    assert not out.exists() or not list(out.iterdir())


def test_a_folder_that_can_not_be_written_is_named(model, calib, tmp_path):
    (tmp_path / "file").write_text("in the way")

    done = hbdebug("sensitivity", model, calib, "-o", tmp_path / "file" / "out")

    assert done.code == 2
    assert "-o" in done.err
    assert "Traceback" not in done.err


def nan_in(calib, name):
    array = np.load(calib / "x" / f"{name}.npy")
    array[0, 1, 2, 3] = np.nan
    np.save(calib / "x" / f"{name}.npy", array)


def test_bad_data_is_named_by_sample_and_position(model, calib, out):
    nan_in(calib, 3)

    done = hbdebug("sensitivity", model, calib, "-o", out)

    assert done.code == 4
    assert "3.npy" in done.err
    assert "[0, 1, 2, 3]" in done.err or "(0, 1, 2, 3)" in done.err

    left_out = hbdebug("sensitivity", model, calib, "-o", out, "--skip-bad", "--format", "json")
    assert left_out.code == 0
    assert len(left_out.json["data"]["samples"]) == 8
    assert any("3" in warning for warning in left_out.json["warnings"])


def test_a_model_without_points_says_which_file_to_give(calib, out, tmp_path):
    b = models.CalibratedModel()
    b.output(b.node("Sigmoid", [b.input("x", (1, 3, 12, 12))]))
    path = tmp_path / "tiny_optimized_float_model.onnx"
    onnx.save(b.proto(), path)

    done = hbdebug("sensitivity", path, calib, "-o", out)

    assert done.code == 3
    assert "calibrated" in done.err


def test_unknown_operators_are_named_and_can_be_left_out(calib, out, tmp_path):
    b = models.CalibratedModel()
    y = b.conv(b.input("x", (1, 3, 12, 12)), (3, 4), "known")
    b.output(b.hz("HzNovelty", [b.point(y)], "unknown"))
    path = tmp_path / "novel_calibrated_model.onnx"
    onnx.save(b.proto(), path)

    refused = hbdebug("sensitivity", path, calib, "-o", out)
    assert refused.code == 5
    assert "HzNovelty" in refused.err
    assert "--skip-unsupported" in refused.err

    done = hbdebug("sensitivity", path, calib, "-o", out, "--skip-unsupported", "--format", "json")
    assert done.code == 0
    assert "unknown" in {item["name"] for item in done.json["not_analysed"]}
    assert [node["name"] for node in done.json["nodes"]] == ["known"]


def test_a_fault_of_ours_asks_for_a_report(model, calib, out, monkeypatch):
    def broken(*_args, **_options):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("hbdebug.pipeline.rank", broken)

    done = hbdebug("sensitivity", model, calib, "-o", out)

    assert done.code == 70
    assert "report it" in done.err


def test_version_and_help():
    assert hbdebug("--version").out.startswith("hbdebug 0.")
    assert "sensitivity" in hbdebug("--help").out


def interrupt_after(monkeypatch, count):
    """Have Ctrl-C pressed when so many evaluations are finished."""
    from hbdebug.engine import Engine

    real = Engine.evaluate

    def evaluate(*args, **options):
        for number, item in enumerate(real(*args, **options)):
            if number == count:
                raise KeyboardInterrupt
            yield item

    monkeypatch.setattr(Engine, "evaluate", evaluate)


def test_ctrl_c_keeps_what_is_finished_and_resume_goes_on(model, calib, out, monkeypatch):
    arguments = (
        "sensitivity",
        model,
        calib,
        "-o",
        out,
        "--exact",
        "--format",
        "json",
        "--no-suggest",
    )
    whole = hbdebug(*arguments).json

    with monkeypatch.context() as patch:
        interrupt_after(patch, 50)
        stopped = hbdebug(*arguments)
    assert stopped.code == 130
    assert stopped.json["complete"] is False
    assert 0 < stopped.json["data"]["complete"] < 9
    assert (out / "partial.jsonl").exists()

    resumed = hbdebug(*arguments, "--resume")
    assert resumed.code == 0
    assert "50 evaluations found" in resumed.err
    assert resumed.json["nodes"] == whole["nodes"]
    assert not (out / "partial.jsonl").exists()


def test_ctrl_c_in_the_first_sample_lists_what_is_missing(model, calib, out, monkeypatch):
    interrupt_after(monkeypatch, 4)

    done = hbdebug("sensitivity", model, calib, "-o", out, "--no-split", "--format", "json")

    assert done.code == 130
    record = done.json
    assert record["data"]["complete"] == 0
    assert 0 < len(record["nodes"]) <= 4
    missing = [item for item in record["not_analysed"] if "interrupted" in item["reason"]]
    assert missing


def test_a_filter_at_the_end_is_measured_at_what_it_picks_from(calib, out, tmp_path):
    """HzFilter keeps candidates above a threshold, so its outputs vary in length."""
    b = models.CalibratedModel()
    y = b.conv(b.input("x", (1, 3, 12, 12)), (3, 4), "scores")
    b.hz("HzFilter", [b.point(y)], "filter", outputs=4, idx_range=[0, 4], threshold=0.1)
    for name, dtype in (
        ("filter_out", 1),
        ("filter_out1", 7),
        ("filter_out2", 1),
        ("filter_out3", 1),
    ):
        b.output(name, dtype)
    path = tmp_path / "filter_calibrated_model.onnx"
    onnx.save(b.proto(), path)

    record = hbdebug("sensitivity", path, calib, "-o", out, "--format", "json").json

    assert [node["name"] for node in record["nodes"]] == ["scores"]
    assert list(record["ceilings"][0]["outputs"]) == ["scores_out_calibrated"]
    assert any("varies in length" in warning for warning in record["warnings"])
    (left_out,) = record["not_analysed"]
    assert left_out["name"] == "filter"
    assert "selects candidates" in left_out["reason"]


def lose_input(calib, _):
    (calib / "x").rename(calib / "y")


def empty(calib, _):
    for file in (calib / "x").iterdir():
        file.unlink()


def other_shape(calib, _):
    np.save(calib / "x" / "4.npy", np.zeros((1, 3, 12, 13), np.float32))


def lossy_dtype(calib, _):
    np.save(calib / "x" / "4.npy", np.full((1, 3, 12, 12), 0.1, np.float64))


def cut_data(calib, _):
    file = calib / "x" / "4.npy"
    file.write_bytes(file.read_bytes()[:-7])


def stray_file(calib, _):
    (calib / "x" / "manifest.json").write_text("{}")


def no_model(_, model):
    model.unlink()


def cut_model(_, model):
    model.write_bytes(model.read_bytes()[:-100])


def qoperator_model(_, model):
    b = models.CalibratedModel(opset=13)
    x = b.input("x", (1, 3, 12, 12))
    q = b.node("DynamicQuantizeLinear", [x], outputs=3)
    b.output(q, onnx.TensorProto.UINT8)
    onnx.save(b.proto(), model)


def unknown_attribute(_, model):
    proto = onnx.load(model)
    point = next(node for node in proto.graph.node if node.op_type == "HzCalibration")
    point.attribute.append(onnx.helper.make_attribute("novelty", 1))
    onnx.save(proto, model)


def misfitting_scales(_, model):
    proto = onnx.load(model)
    point = next(node for node in proto.graph.node if node.name == "stem_w_HzCalibration")
    for attribute in point.attribute:
        if attribute.name in {"scales", "thresholds"}:
            del attribute.floats[3:]
    onnx.save(proto, model)


@pytest.mark.parametrize(
    ("spoil", "code", "words"),
    [
        (lose_input, 4, "x"),
        (empty, 4, "calib"),
        (other_shape, 4, "4.npy"),
        (lossy_dtype, 4, "float64"),
        (cut_data, 4, "4.npy"),
        (stray_file, 4, "manifest.json"),
        (no_model, 3, "no such file"),
        (cut_model, 3, "cut short"),
        (qoperator_model, 5, "quant_format=QuantFormat.QDQ"),
        (unknown_attribute, 5, "novelty"),
        (misfitting_scales, 3, "stem_w_HzCalibration"),
    ],
)
def test_what_can_not_be_analysed_is_named_with_its_exit_code(
    model, calib, out, spoil, code, words
):
    spoil(calib, model)

    done = hbdebug("sensitivity", model, calib, "-o", out)

    assert done.code == code
    assert words in done.err
    assert "Traceback" not in done.err
    assert done.err.count("\n") <= 4
    assert not out.exists() or not list(out.iterdir())


def test_a_float_model_is_repaired_into_another_file(tmp_path):
    b = models.CalibratedModel()
    x = b.input("x", (1, 3, 4, 4))
    b.output(b.node("HardSigmoid", [b.node("HardSigmoid", [x], "one", alpha=0.2)], "two", beta=0.1))
    path = tmp_path / "float.onnx"
    onnx.save(b.proto(), path)
    before = path.read_bytes()

    done = hbdebug("repair", path, "-o", tmp_path / "new" / "fixed.onnx")

    assert done.code == 0
    assert "one: input x 1.2 (a Mul in front), alpha 1/6" in done.out
    assert "two: left as it is" in done.out
    assert path.read_bytes() == before
    assert len(onnx.load(tmp_path / "new" / "fixed.onnx").graph.node) == 3


def test_a_repair_does_not_overwrite_the_model(model):
    done = hbdebug("repair", model, "-o", model)

    assert done.code == 2
    assert "overwritten" in done.err
