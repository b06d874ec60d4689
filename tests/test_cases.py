"""Public bug reports against tools like this one; each test is named by what must not happen.

The numbers are those of the list of cases that the project keeps; the models are built here.
Cases that concern one module only are tests of that module: metrics (6, 7, 13, 65), calibration
data (59, 62, 82), selectors (38, 40, 41), the loader (84, V13), records (86), documents (83).
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from hbdebug.analysis.biases import overflowing
from hbdebug.analysis.forms import compare_lowered
from hbdebug.engine import Engine
from hbdebug.errors import UsageError
from hbdebug.integer_run import IntegerRunner
from hbdebug.kernels import KERNELS
from hbdebug.loading import load
from hbdebug.lowering.graph import lower_traced
from hbdebug.model import Assignment
from hbdebug.pipeline import sensitivity
from hbdebug.quant import QuantParams, fake_quantize
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


# A bias that int32 cannot hold, cases 1 to 3: the exact numbers of the second.
INPUT_STEP, WEIGHT_STEP, BIASES = 0.5, 7.84e-10, (5.0, -4.5)


def tiny_weights(dtype, shape=(8, 3, 3, 3)):
    """A Conv whose first two channels have tiny weights, and biases that are not."""
    b = models.CalibratedModel()
    weight = b.random.normal(0, 0.3, shape).astype(np.float32)
    for channel in (0, 1):
        weight[channel] *= 127 * WEIGHT_STEP / np.abs(weight[channel]).max()
    bias = np.zeros(shape[0], np.float32)
    bias[:2] = BIASES
    limit = {"int8": 127, "int16": 32767}[dtype]
    x = b.point(b.input("x", (1, shape[1], 6, 6)), INPUT_STEP * 127, dtype)
    y = b.node(
        "Conv", [x, b.weight("w", weight), b.constant("b", bias)], "conv", kernel_shape=[3, 3]
    )
    b.output(b.point(y, 60.0, dtype))
    return b.proto(), 60.0 / limit


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_cases_1_2_a_bias_that_int32_cannot_hold_is_reported_and_kept(dtype, tmp_path):
    """Other tools clip it. The BPU's converter keeps it, at the cost of weights that do nothing."""
    proto, step = tiny_weights(dtype)
    samples = models.inputs_for(proto, count=2)
    folder = models.save_samples(tmp_path, [{"x": item["x"] * 20} for item in samples])

    result = sensitivity(proto, folder, integers=True, suggest=False)

    found = {item.name: item for item in result.diagnostics if item.node == "conv"}
    assert "2 of 8 channels overflows int32" in found["bias_overflow"].evidence
    for words in ("fold the dead channel", "lift its weight scale", "A16W8"):
        assert words in found["bias_overflow"].remedy
    assert found["near_dead_channels"].evidence.startswith("2 of 8 channels nearly dead")
    engine = Engine(load(proto), jobs=1)
    inputs = {"x": samples[0]["x"] * 20}
    shapes = {name: shape for name, (_, shape) in engine.profile(inputs).specs.items()}
    assignment = Assignment.as_calibrated(engine.model)
    form = lower_traced(engine.model, assignment, shapes=shapes)
    (y,) = IntegerRunner(form.model).forward(inputs).values()
    for channel, bias in enumerate(BIASES):
        # The channel's weights amount to nothing, so that its output is the bias, rounded.
        assert np.abs(y[:, channel] - bias).max() <= step / 2
    (conv,) = compare_lowered(engine, form, [inputs], assignment).differences
    assert not conv.differs_much


def qlinear_conv(bias):
    """Run the arithmetic of QLinearConv on one pixel of value 0: what is left is the bias."""
    arrays = {
        "x_scale": np.float32(INPUT_STEP),
        "x_zero": np.int8(0),
        "w": np.full((2, 1, 1, 1), 127, np.int8),
        "w_scale": np.full(2, WEIGHT_STEP, np.float32),
        "w_zero": np.zeros(2, np.int8),
        "y_scale": np.float32(0.05),
        "y_zero": np.int8(0),
        "bias": bias,
    }
    names = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero", "bias"]
    graph = helper.make_graph(
        [helper.make_node("QLinearConv", names, ["y"])],
        "case",
        [helper.make_tensor_value_info("x", TensorProto.INT8, (1, 1, 1, 1))],
        [helper.make_tensor_value_info("y", TensorProto.INT8, (1, 2, 1, 1))],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, {"x": np.zeros((1, 1, 1, 1), np.int8)})[0].ravel() * 0.05


def test_case_3_a_qlinear_conv_loses_the_bias_that_is_named():
    """The scheme of QOperator models: int32 in steps of input times weight, clipped."""
    exact = np.rint(np.array(BIASES) / (INPUT_STEP * WEIGHT_STEP))
    held = np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32)

    lost = np.abs(qlinear_conv(held) - BIASES)

    # 2^31 steps of 3.92e-10 are 0.84.
    np.testing.assert_allclose(lost, [5 - 0.84, 4.5 - 0.84], atol=0.03)
    assert overflowing(BIASES, INPUT_STEP, WEIGHT_STEP).all()
    # With a hundred times larger weights nothing is clipped, and nothing is named.
    assert not overflowing(BIASES, INPUT_STEP, 100 * WEIGHT_STEP).any()


# Rounding at ties, case 26: one tool's fused Add rounded otherwise than its parts.
STEPS = {"a": 0.38, "b": 0.16, "sum": 0.04}


def every_pair():
    """All pairs of int8. 0.38 and 0.16 are 9.5 and 4 steps of 0.04: half of the sums are ties."""
    values = np.arange(-128, 128, dtype=np.int8)
    a, b = (grid.reshape(1, 4, 128, 128) for grid in np.meshgrid(values, values))
    return {"a": a, "b": b}


def unfused_sums(pairs):
    scales = [
        onnx.numpy_helper.from_array(np.array(step, np.float32), f"{name}_scale")
        for name, step in STEPS.items()
    ]
    zero = onnx.numpy_helper.from_array(np.array(0, np.int8), "zero")
    shape = pairs["a"].shape
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["a", "a_scale", "zero"], ["a_real"]),
            helper.make_node("DequantizeLinear", ["b", "b_scale", "zero"], ["b_real"]),
            helper.make_node("Add", ["a_real", "b_real"], ["real"]),
            helper.make_node("QuantizeLinear", ["real", "sum_scale", "zero"], ["sum"]),
        ],
        "case",
        [helper.make_tensor_value_info(name, TensorProto.INT8, shape) for name in "ab"],
        [helper.make_tensor_value_info("sum", TensorProto.INT8, shape)],
        [*scales, zero],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, pairs)[0]


def qdq_add():
    b = models.CalibratedModel()
    points = [
        b.point(b.input(name, (1, 4, 128, 128)), constant=2, scales=[STEPS[name]])
        for name in ("a", "b")
    ]
    total = b.node("Add", points, "add")
    b.output(b.point(total, constant=2, scales=[STEPS["sum"]]))
    return b.proto()


def test_case_26_a_sum_on_ties_is_that_of_the_unfused_model():
    pairs = every_pair()
    engine = Engine(load(qdq_add()), jobs=1)
    inputs = {name: pairs[name] * np.float32(STEPS[name]) for name in pairs}

    (made,) = engine.forward(inputs, Assignment.as_calibrated(engine.model)).values()

    np.testing.assert_array_equal(np.rint(made / np.float32(0.04)), unfused_sums(pairs))


def test_case_26_the_integer_sum_is_off_on_ties_alone_and_by_one_step():
    pairs = every_pair()
    engine = Engine(load(qdq_add()), jobs=1)
    inputs = {name: pairs[name] * np.float32(STEPS[name]) for name in pairs}
    shapes = {name: shape for name, (_, shape) in engine.profile(inputs).specs.items()}
    assignment = Assignment.as_calibrated(engine.model)
    form = lower_traced(engine.model, assignment, shapes=shapes)

    (made,) = IntegerRunner(form.model).forward(inputs).values()

    # In units of half a step of the sum, exact: an odd number is a tie.
    halves = 19 * pairs["a"].astype(int) + 8 * pairs["b"].astype(int)
    off = np.rint(made / np.float32(0.04)) - unfused_sums(pairs)
    assert np.count_nonzero(off) > 0
    assert np.abs(off).max() == 1
    assert (halves[off != 0] % 2 == 1).all()
    (difference,) = compare_lowered(engine, form, [inputs], assignment).differences
    assert difference.mean_steps == np.mean(off != 0)


@pytest.mark.parametrize(
    ("x", "even", "up"), [(-2.5, -2, -2), (-1.5, -2, -1), (-0.5, 0, 0), (0.5, 0, 1), (2.5, 2, 3)]
)
def test_case_26_float_to_integer_rounds_to_even_and_integer_to_integer_half_up(x, even, up):
    def run(name, *arrays, **attributes):
        return KERNELS["horizon", name](*arrays, **attributes).outputs[0].item()

    real = np.array([x * 0.25], np.float32)
    quarter = QuantParams(
        dtype="int8", scale=np.float32([0.25]), zero_point=np.float32([0]), threshold=np.ones(1)
    )
    twice = np.array([round(2 * x)], np.int8)
    way = {"output_scale": [16384], "output_right_shift": [15]}

    assert fake_quantize(real, quarter).item() == even * 0.25
    assert run("HzQuantize", real, np.float32([0.25])) == even
    assert run("HzRequantize", twice, **way, method="Rescale") == up
    zero = np.zeros(1, np.int8)
    shifts = {"x_shift": [0], "e_scale": [1], "accu_right_shift": [0]}
    rounds = {"rounding_method": "ROUND"}
    assert run("HzSElementwiseAdd", twice, zero, **shifts, e_shift=[0], **way, **rounds) == up
    assert run("HzSElementwiseSub", twice, zero, **shifts, **way, **rounds) == up
    one = np.ones(1, np.int8)
    assert run("HzSElementwiseMul", twice, one, accu_right_shift=[0], **way, **rounds) == up
