"""``--fidelity integer``: what is quantized runs as the chip's kernels, inside every analysis."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import onnx
import pytest

import hbdebug
from hbdebug.analysis.alone import KernelPoints
from hbdebug.analysis.ceilings import _integer_inputs
from hbdebug.analysis.whole import cut_off
from hbdebug.engine import Engine
from hbdebug.errors import GateMissed, UnsupportedError
from hbdebug.integer_run import run
from hbdebug.jump import same_bits
from hbdebug.loading.integer import load_integer
from hbdebug.lowering.graph import lower
from hbdebug.model import Assignment
from hbdebug.pipeline import check_gate, sensitivity
from hbdebug.walk import FLOAT
from tests import models
from tests.command import hbdebug as command
from tests.loading.test_golden_zoo import ZOO, without_points
from tests.lowering.test_graph import INT16_TABLES
from tests.lowering.vendor import FIXTURES, File, march_of, pair_models, pair_names

CLASSIFIER = FIXTURES / "textline_cls"
SMALL_MODELS = pair_names()


def integer_engine(model, inputs, **options):
    engine = Engine(model, fidelity="integer", jobs=1, **options)
    engine.profile(inputs)
    return engine


def random_inputs(model, seed=11):
    """Return normal numbers for each input, or pixels where colours are converted."""
    random = np.random.default_rng(seed)
    if any(node.op_type == "HzPreprocess" for node in model.nodes):
        (spec,) = model.inputs
        return {spec.name: random.integers(-128, 128, spec.shape).astype(np.float32)}
    return {spec.name: random.normal(size=spec.shape).astype(np.float32) for spec in model.inputs}


def random_assignments(model, seed=3):
    """Quantize many, half and few of the points, some of the activations in int16."""
    random = np.random.default_rng(seed)
    for share in (0.9, 0.5, 0.2):
        points = [point for point in model.points if point.enabled and random.random() < share]
        wide = {
            point.name: point.params.to_int16()
            for point in points
            if point.role == "activation" and random.random() < 0.3
        }
        yield Assignment.of(points).changed(wide)


@pytest.mark.parametrize("name", [name for name in SMALL_MODELS if name not in INT16_TABLES])
def test_as_calibrated_is_the_vendors_quantized_model(name):
    calibrated, quantized = pair_models(name)
    model = hbdebug.load(calibrated)
    inputs = random_inputs(model)

    engine = integer_engine(model, inputs, march=march_of(name))
    found = engine.forward(inputs, Assignment.as_calibrated(model))

    theirs = load_integer(quantized)
    for output, expected in run(theirs, _integer_inputs(theirs, inputs)).items():
        assert np.array_equal(found[output], expected), output


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_any_assignment_is_its_lowered_model(name):
    proto, _ = pair_models(name)
    model = hbdebug.load(proto)
    inputs = random_inputs(model)
    march = march_of(name)
    engine = integer_engine(model, inputs, march=march)

    for assignment in random_assignments(model):
        found = engine.forward(inputs, assignment)
        if engine.fallbacks(assignment):
            continue  # One graph has no form for it; what the walk does is tested below.

        form = lower(model, assignment, shapes=File(proto).shapes, march=march)
        expected = run(form, _integer_inputs(form, inputs))

        for output, values in expected.items():
            assert np.array_equal(found[output], values), output


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_without_points_it_is_the_float_baseline(name):
    proto, _ = pair_models(name)
    model = hbdebug.load(proto)
    inputs = random_inputs(model)
    engine = integer_engine(model, inputs, march=march_of(name))
    baseline = engine.at("calibrated").forward(inputs, FLOAT)

    found = engine.forward(inputs, FLOAT)
    form = lower(model, FLOAT, shapes=File(proto).shapes, march=march_of(name))
    lowered = run(form, inputs)

    for output, expected in baseline.items():
        assert same_bits(found[output], expected), output
        assert same_bits(lowered[output], expected), output


def outputs_judge(baseline):
    """Judge by the outputs themselves."""
    del baseline
    return dict


def assert_walk_and_jump_agree(model, samples, march, memory):
    """Compare evaluations that walk a stretch and jump with walks of the whole model."""
    engine = integer_engine(model, samples[0], march=march, exact=True, memory=memory)
    kernels = KernelPoints(model, (), shapes=engine.shapes, march=march)
    alone = [kernels.points(node, ()) for node in model.nodes]
    wanted = [Assignment.of(points) for points in dict.fromkeys(alone) if points]
    wanted += [*random_assignments(model), Assignment.as_calibrated(model), FLOAT]
    schedule = engine.schedule(wanted, len(samples))

    found = {
        (item.sample, item.assignment): item.value
        for item in engine.evaluate(samples, schedule, outputs_judge)
    }

    assert len(found) == len(samples) * len(wanted)
    for (sample, index), outputs in found.items():
        for name, expected in engine.forward(samples[sample], wanted[index]).items():
            # The jump is one session: float32 sums of its MatMul may be ordered otherwise.
            assert np.allclose(outputs[name], expected, rtol=1e-6, atol=1e-6), (name, index)
    return schedule


@pytest.mark.parametrize("memory", [1 << 30, 1 << 12], ids=["one stretch", "many stretches"])
@pytest.mark.parametrize("build", [models.residual, models.many_outputs])
def test_walk_and_jump_give_what_walking_the_whole_model_gives(build, memory):
    proto = build()
    samples = models.inputs_for(proto, count=2)

    schedule = assert_walk_and_jump_agree(hbdebug.load(proto), samples, "bayes-e", memory)

    assert memory > 1 << 12 or len(schedule.boundaries) > len(schedule.cuts)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_walk_and_jump_of_small_models_give_what_walking_them_gives(name):
    proto, _ = pair_models(name)
    model = hbdebug.load(proto)
    samples = [random_inputs(model, seed) for seed in (1, 2)]

    assert_walk_and_jump_agree(model, samples, march_of(name), 1 << 8)


def hard_sigmoid_gate():
    """The chip's table has alpha 1/6, whatever the node says."""
    b = models.CalibratedModel()
    x = b.point(b.conv(b.input("x", (1, 3, 8, 8)), (3, 4), "first"), threshold=4.0)
    y = b.point(b.node("HardSigmoid", [x], "gate", alpha=0.2, beta=0.5), threshold=1.0)
    b.output(b.conv(y, (4, 2), "head"))
    return b.proto()


def two_convolutions_and_an_add(threshold=2.0):
    """A residual block: the second Conv takes the Add and its Relu in."""
    b = models.CalibratedModel()
    x = b.conv(b.input("x", (1, 3, 8, 8)), (3, 4), "first")
    held = b.point(x, threshold=threshold)
    y = b.conv(b.node("Relu", [held], "relu"), (4, 4), "second")
    total = b.node("Relu", [b.node("Add", [y, held], "add")], "add_relu")
    b.output(b.conv(total, (4, 2), "head"))
    return b.proto()


def test_a_node_alone_is_its_kernel_with_what_is_fused_and_its_output(tmp_path):
    proto = two_convolutions_and_an_add()
    model = hbdebug.load(proto)
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=3))

    result = sensitivity(proto, folder, fidelity="integer", suggest=False)

    nodes = {node.name: node for node in result.nodes}
    second, add = nodes["second"], nodes["add"]
    assert second.points == add.points
    assert second.alone.values == add.alone.values
    assert second.note.endswith("one kernel with add")
    # What it reads, its weight, the residual, and where its sum is counted.
    consumers = {
        reader.name
        for name in second.points
        for reader, _ in model.consuming_nodes(model.point_by_name[name])
    }
    assert consumers == {"relu", "second", "add", "head"}


def test_weights_and_activations_apart_have_no_integer_form(tmp_path):
    proto = two_convolutions_and_an_add()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=3))

    # Without optimizations: where the jumps begin is another matter in each run.
    integer = sensitivity(proto, folder, fidelity="integer", suggest=False, exact=True)
    calibrated = sensitivity(proto, folder, suggest=False, exact=True)

    halves = [
        {node.name: (node.weights, node.activations) for node in result.nodes}
        for result in (integer, calibrated)
    ]
    assert halves[0]["first"][0] is not None
    assert halves[0]["first"] == halves[1]["first"]


def test_the_ranking_sees_what_the_calibrated_model_does_not(tmp_path):
    proto = hard_sigmoid_gate()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=3))

    integer = sensitivity(proto, folder, fidelity="integer", suggest=False)
    calibrated = sensitivity(proto, folder, suggest=False)

    loss = [
        {node.name: 1 - node.alone.values["cosine_similarity"] for node in result.nodes}
        for result in (integer, calibrated)
    ]
    assert integer.nodes[0].name == "gate"
    assert loss[0]["gate"] > 20 * loss[1]["gate"]


def test_both_fidelities_stand_side_by_side(tmp_path):
    done = command(
        *("sensitivity", CLASSIFIER / "cls_calibrated_model.onnx", CLASSIFIER / "calib"),
        *("-o", tmp_path, "--samples", "1", "--no-split", "--no-suggest", "--op", "HardSigmoid"),
        *("--fidelity", "integer", "--quantized", CLASSIFIER / "cls_quantized_model.onnx"),
    )
    record = json.loads((tmp_path / "sensitivity.json").read_text())

    assert done.code == 0, done.err
    assert record["fidelity"] == "integer"
    found = [(item["name"], item["fidelity"]) for item in record["ceilings"]]
    assert found == [
        ("as_calibrated", "calibrated"),
        ("as_calibrated", "integer"),
        ("as_calibrated", "integer"),
        ("weights_only", "calibrated"),
        ("activations_only", "calibrated"),
        ("all_int16", "calibrated"),
        ("int16_where_allowed", "calibrated"),
        ("int16_where_allowed", "integer"),
    ]
    # What the vendor's quantized model gives, and what is derived here.
    assert record["ceilings"][1]["outputs"] == record["ceilings"][2]["outputs"]


def test_the_suggestion_is_searched_in_integers(tmp_path):
    proto = models.one_coarse_node()
    samples = models.inputs_for(proto, count=8)
    folder = models.save_samples(tmp_path / "calib", samples)

    result = sensitivity(proto, folder, fidelity="integer", target=0.999)

    found = {(item.name, item.fidelity): item.outputs for item in result.ceilings}
    chosen = result.suggestion.curve[result.suggestion.step]
    assert result.suggestion.reached
    assert found["as_suggested", "integer"] == chosen.outputs
    assert found["as_calibrated", "integer"] == result.suggestion.curve[0].outputs
    assert found["as_suggested", "calibrated"] != chosen.outputs


def with_asymmetric_point():
    """A calibrated model with a point that no integer model has: a zero point."""
    proto = two_convolutions_and_an_add()
    (node,) = (node for node in proto.graph.node if node.name == "relu")
    (point,) = (each for each in proto.graph.node if each.output[0] == node.input[0])
    for attribute in point.attribute:
        if attribute.name == "zero_points":
            del attribute.ints[:], attribute.floats[:]
    model = hbdebug.load(proto)
    name = point.name
    params = model.point_by_name[name].params
    moved = replace(params, zero_point=np.array([7]), asymmetric=True)
    return model, name, moved


def test_what_has_no_integer_form_runs_as_calibrated_and_is_named():
    model, name, moved = with_asymmetric_point()
    inputs = random_inputs(model)
    engine = integer_engine(model, inputs)
    assignment = Assignment.as_calibrated(model).changed({name: moved})

    reasons = {item.name: item.reason for item in engine.fallbacks(assignment)}
    found = engine.forward(inputs, assignment)
    calibrated = engine.at("calibrated").forward(inputs, assignment)

    assert "zero point" in reasons[name]
    # What would give these integers, and what would take them in.
    assert reasons.keys() == {name, "first", "second"}
    for output, expected in calibrated.items():
        # Rounding in integers differs by a step of int8 here and there, of 127 of the largest.
        assert np.abs(found[output] - expected).max() < 0.04 * np.abs(expected).max()


def test_nodes_that_run_as_calibrated_are_listed(tmp_path, monkeypatch):
    def unknown(*_):
        raise UnsupportedError("nobody knows this operator")

    monkeypatch.setitem(hbdebug.lowering.graph._WITH_GRID, "Add", unknown)
    b = models.CalibratedModel()
    x = b.point(b.conv(b.input("x", (1, 3, 8, 8)), (3, 4), "first"))
    y = b.point(b.node("Add", [x, x], "twice"))
    b.output(b.conv(y, (4, 2), "head"))
    proto = b.proto()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=2))

    result = sensitivity(proto, folder, fidelity="integer", suggest=False)

    assert (
        "measured as calibrated, not in integers: twice (Add): nobody knows this operator"
        in result.warnings
    )
    (twice,) = [node for node in result.nodes if node.name == "twice"]
    assert "nobody knows this operator" in twice.note


def test_a_march_without_integers_here_is_an_error(tmp_path):
    proto = two_convolutions_and_an_add()
    path = tmp_path / "m_calibrated_model.onnx"
    onnx.save(proto, path)
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=2))

    done = command(
        *("sensitivity", path, folder, "-o", tmp_path / "out"),
        *("--fidelity", "integer", "--march", "nash-e"),
    )

    assert done.code == 5
    assert "nash-e" in done.err


def test_the_gate_is_at_the_fidelity_of_the_run(tmp_path):
    proto = hard_sigmoid_gate()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=2))
    integer = sensitivity(proto, folder, fidelity="integer", suggest=False)
    cosine = {item.fidelity: item for item in integer.ceilings if item.name == "as_calibrated"}
    values = {name: item.outputs["head_out"]["cosine_similarity"] for name, item in cosine.items()}
    between = (values["integer"] + values["calibrated"]) / 2

    check_gate(sensitivity(proto, folder, suggest=False), between)
    with pytest.raises(GateMissed):
        check_gate(integer, between)


def test_an_inner_node_counts_its_output_as_in_the_whole_model():
    proto = two_convolutions_and_an_add()
    model = hbdebug.load(proto)
    inputs = random_inputs(model)
    whole, tensors = integer_engine(model, inputs), {}
    lowered = lower(model, Assignment.as_calibrated(model), shapes=whole.shapes)
    run(lowered, inputs, keep=tensors.__setitem__)
    cut = cut_off(model, "first", counted=True)

    (found,) = integer_engine(cut, inputs).forward(inputs, Assignment.as_calibrated(cut)).values()

    scale = model.point_by_name["first_out_HzCalibration"].params.scale
    steps = tensors["first_out_quantized"].transpose(0, 3, 1, 2)
    assert np.array_equal(found, steps * scale)


# Models whose integer form computes something else than a few steps more or less.
OTHERWISE = {
    "bayes-e__SE_block_calibrated": "HardSigmoid ignores alpha",
    "bayes-e__Where_Greater_calibrated": "Greater reads the float in front of a point",
    "bayes-e__act_Sign_calibrated": "a jump, where halves are rounded otherwise",
    "bayes-e__alone_HardSigmoid_calibrated": "HardSigmoid ignores alpha",
    "bernoulli2__SE_block_calibrated": "HardSigmoid ignores alpha",
    "extra__bernoulli_shift": "steps of a march that was not studied",
}

# Models with something that has no integer form here, by what it is.
FALLING_BACK = {
    "bayes-e__GridSample_hz_calibrated": {"GridSample"},
    "bayes-e__act_Acos_calibrated": {"Acos"},
    "bayes-e__act_Asin_calibrated": {"Asin"},
    "bayes-e__act_Asinh_calibrated": {"Asinh"},
    "bayes-e__act_Atanh_calibrated": {"Atanh"},
    "bayes-e__act_Cosh_calibrated": {"Cosh"},
    "bayes-e__act_Tan_calibrated": {"Tan"},
    "extra__asymmetric": {"Conv", "HzCalibration"},
    "extra__per_channel": {"Conv", "HzCalibration"},
}


@pytest.mark.parametrize(
    "case", [case for case in ZOO if not without_points(case)], ids=lambda case: case.name
)
def test_every_model_of_the_zoo_runs_in_integers_close_to_its_calibrated_form(case):
    model = hbdebug.load(case.model)
    name = case.name.removeprefix("zoo/")
    march = "bernoulli2" if name.startswith("bernoulli2") else "bayes-e"
    engine = integer_engine(model, case.inputs, march=march)
    assignment = Assignment.as_calibrated(model)

    found = engine.forward(case.inputs, assignment)
    calibrated = engine.at("calibrated").forward(case.inputs, assignment)

    fallen = {item.op_type for item in engine.fallbacks(assignment)}
    assert fallen == FALLING_BACK.get(name, set())
    off = max(
        float(np.abs(found[output].astype(float) - expected).max(initial=0))
        / max(float(np.abs(expected.astype(float)).max(initial=0)), 1e-6)
        for output, expected in calibrated.items()
    )
    # A few steps of int8, of 1/127 of the largest value; a node that is left out or counted in
    # wrong steps is off by far more.
    assert (off > 0.03) == (name in OTHERWISE), off
