"""Public bug reports against tools like this one; each test is named by what must not happen.

The numbers are those of the list of cases that the project keeps; the models are built here.
Cases that concern one module only are tests of that module: metrics (6, 7, 13, 65), calibration
data (59, 62, 82), selectors (38, 40, 41), the loader (84, V13), records (86), documents (83).
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest

from hbdebug.engine import Engine
from hbdebug.errors import UsageError
from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.pipeline import sensitivity
from tests import models
from tests.command import hbdebug


@pytest.fixture
def residual(tmp_path):
    proto = models.residual()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=9))
    path = tmp_path / "tiny_calibrated_model.onnx"
    onnx.save(proto, path)
    return path, folder


def test_case_8_every_sample_counts_and_the_report_says_how_many(residual, monkeypatch):
    path, folder = residual
    measured = []
    real = Engine.evaluate

    def evaluate(*args, **options):
        for item in real(*args, **options):
            measured.append(item.sample)
            yield item

    monkeypatch.setattr(Engine, "evaluate", evaluate)

    result = sensitivity(path, folder, suggest=False)

    assert result.data.complete == len(result.data.samples) == result.data.found == 9
    counts = {sample: measured.count(sample) for sample in measured}
    assert set(counts) == set(range(9))
    assert len(set(counts.values())) == 1


def test_case_9_a_sample_is_compared_with_its_own_float_run(residual):
    """Another tool's loader shuffled between the float and the quantized run."""
    path, _ = residual
    model = load(path)
    samples = models.inputs_for(models.residual(), count=9)
    engine = Engine(model, jobs=3)
    engine.profile(samples[0])
    nothing = Assignment()
    schedule = engine.schedule([nothing] * 5, len(samples))

    def judge(baseline):
        return lambda outputs: float(np.abs(outputs["softmax_out"] - baseline["softmax_out"]).max())

    assert {item.value for item in engine.evaluate(samples, schedule, judge)} == {0.0}


def test_case_11_a_large_error_that_the_output_does_not_see_ranks_last(tmp_path):
    """What is acceptable at a node is decided at the output, not by the node's own error."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 3, 8, 8))
    muted = b.conv(x, (3, 3), "muted", threshold=400.0)  # a grid of 3 for values around 1
    faint = b.node("Mul", [muted, b.constant("tiny", np.float32(1e-4))], "faint")
    loud = b.conv(b.node("Sigmoid", [x], "squash"), (3, 3), "loud", threshold=1.0)
    b.output(b.node("Add", [faint, loud], "sum"))
    proto = b.proto()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=8))

    result = sensitivity(proto, folder, suggest=False)

    assert [node.name for node in result.nodes] == ["loud", "muted"]


def test_case_17_a_sensitivity_is_the_loss_minus_the_float_loss():
    """What is in float has no sensitivity at all; there is nothing to subtract by hand."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 2, 4, 4))
    grid = 2.0 / 127
    y = b.node("Identity", [b.point(x, 2.0)], "lossless")
    b.output(y)
    model = load(b.proto())
    on_grid = (np.arange(32).reshape(1, 2, 4, 4) * np.float32(grid)).astype(np.float32)
    engine = Engine(model, jobs=1)
    quantized = engine.forward({"x": on_grid}, Assignment.as_calibrated(model))

    np.testing.assert_array_equal(quantized["lossless_out"], on_grid)


def test_case_18_the_result_says_what_measured_it(residual):
    path, folder = residual
    result = sensitivity(path, folder, suggest=False)

    record = result.to_json()
    assert record["hbdebug_version"]
    assert record["settings"]["versions"]["onnxruntime"]
    assert record["settings"]["optimization"]
    assert record["fidelity"] == "calibrated"


def test_case_21_names_are_those_of_the_given_file(residual):
    path, folder = residual
    in_file = {node.name for node in onnx.load(path).graph.node}

    result = sensitivity(path, folder)

    assert {node.name for node in result.nodes} <= in_file
    assert {item.name for item in result.not_analysed} <= in_file
    assert {name for node in result.nodes for name in node.points} <= in_file


def test_case_31_the_callers_model_is_not_touched_and_serves_twice(tmp_path):
    proto = models.residual()
    before = proto.SerializeToString()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=2))

    first = sensitivity(proto, folder)
    second = sensitivity(proto, folder)

    assert proto.SerializeToString() == before
    assert first.nodes == second.nodes


def test_case_42_a_wrong_plan_fails_before_the_long_loop(residual, monkeypatch):
    path, folder = residual

    def never(*_args, **_options):
        raise AssertionError("the long loop started")

    monkeypatch.setattr(Engine, "evaluate", never)
    monkeypatch.setattr(Engine, "whole", never)

    with pytest.raises(UsageError, match="matched 'no_such_node'"):
        sensitivity(path, folder, nodes=["no_such_node"])


@pytest.mark.parametrize("options", [{"kind": "layer"}, {"target": 99.9}])
def test_a_value_that_makes_no_sense_is_refused_from_python_too(residual, options):
    path, folder = residual

    with pytest.raises(UsageError):
        sensitivity(path, folder, **options)


@pytest.mark.parametrize("count", [16])
def test_cases_71_72_73_memory_does_not_grow_with_the_samples(count):
    """Samples of 0.4 MiB and intermediate tensors of 1.2 MiB each; the peak stays where it was."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 3, 192, 192))
    for name in ("a", "b", "c"):
        x = b.node("Relu", [b.conv(x, (3, 3), name)], f"{name}_relu")
    b.output(x)
    model = load(b.proto())
    assignments = [Assignment.of([point]) for point in model.points]

    def judge(baseline):
        return lambda outputs: float(
            np.abs(outputs["c_relu_out"]).max() - baseline["c_relu_out"].max()
        )

    def peak(samples: int) -> int:
        random = np.random.default_rng(0)
        stream = (
            {"x": random.normal(0, 1, (1, 3, 192, 192)).astype(np.float32)} for _ in range(samples)
        )
        engine = Engine(model, jobs=2)
        engine.profile({"x": np.zeros((1, 3, 192, 192), np.float32)})
        schedule = engine.schedule(assignments, samples)
        tracemalloc.start()
        for _ in engine.evaluate(stream, schedule, judge):
            pass
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    few, many = peak(3), peak(count)

    # Two threads finish in varying order, so a stretch more or less may be alive at the peak:
    # less than one sample's tensors, where keeping every sample would add 13 of them.
    assert many < few + 2 * 1_300_000


def test_case_80_a_float_model_that_outputs_zero_does_not_end_the_run(tmp_path):
    """Another tool crashed after 73 trials because its baseline was 0."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 3, 6, 6))
    y = b.conv(x, (3, 4), "conv")
    b.output(b.node("Mul", [y, b.constant("zero", np.float32(0))], "nothing"))
    b.output(y)
    proto = b.proto()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=8))

    result = sensitivity(proto, folder)

    (node,) = result.nodes
    assert node.alone.outputs["nothing_out"]["cosine_similarity"] == 1.0
    assert node.alone.outputs["conv_out"]["cosine_similarity"] < 1.0


def test_an_output_that_quantization_makes_infinite_is_worst_of_all(tmp_path):
    """It has no number, and must not be taken for the best for that."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 3, 6, 6))
    squashed = b.node("Sigmoid", [b.conv(x, (3, 3), "conv")], "squash")
    b.output(b.node("Reciprocal", [b.point(squashed, 500.0)], "invert"))  # a grid of 3.9
    proto = b.proto()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=8))

    result = sensitivity(proto, folder, suggest=False)

    assert [node.name for node in result.nodes] == ["invert", "conv"]
    assert "not_finite" in result.nodes[0].alone.flags


def test_case_85_a_small_budget_changes_the_way_never_the_numbers(residual):
    path, folder = residual

    plenty = sensitivity(path, folder, exact=True, suggest=False)
    scarce = sensitivity(path, folder, exact=True, suggest=False, memory=1)

    assert plenty.nodes == scarce.nodes


def test_case_v2_no_bad_node_is_a_finding_too(residual, tmp_path):
    """No node is below 0.999 alone and the output still loses: never 'nothing found'."""
    path, folder = residual

    done = hbdebug("sensitivity", path, folder, "-o", tmp_path / "out", "--target", "1")

    assert "Verdict" in done.out
    assert "not reached" in done.out
    assert "as calibrated" in done.out


def test_case_v3_the_runtime_prints_nothing(residual, tmp_path, capfd):
    """Warnings of the runtime were taken for a failed conversion."""
    path, folder = residual

    done = hbdebug("sensitivity", path, folder, "-o", tmp_path / "out")

    assert done.code == 0
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
