"""The laws of walk and jump, on models small enough to run them many ways."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from hbdebug.engine import Engine
from hbdebug.jump import same_bits
from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.slices import Slicer
from hbdebug.walk import FLOAT
from tests import models

BUILDERS = {"residual": models.residual, "many_outputs": models.many_outputs}


@pytest.fixture(params=sorted(BUILDERS))
def proto(request):
    return BUILDERS[request.param]()


@pytest.fixture
def model(proto):
    return load(proto)


@pytest.fixture
def samples(proto):
    return models.inputs_for(proto, count=3)


def exact_judge(baseline):
    """Judge by what the outputs are, so that runs can be compared bit for bit."""

    def measure(outputs):
        return {name: (baseline[name], outputs[name]) for name in baseline}

    return measure


def each_alone(model):
    """One assignment for every point, one for every pair of neighbours, and the whole model."""
    points = [point for point in model.points if point.enabled]
    single = [Assignment.of([point]) for point in points]
    pairs = [Assignment.of(pair) for pair in zip(points, points[3:], strict=False)]
    return [*single, *pairs, Assignment.as_calibrated(model), FLOAT]


def run_all(engine, samples, assignments):
    engine.profile(samples[0])
    schedule = engine.schedule(assignments, len(samples))
    found = {}
    for item in engine.evaluate(samples, schedule, exact_judge):
        found[item.sample, item.assignment] = item.value
    return found, schedule


def test_the_walk_equals_the_unoptimized_whole_model_bit_for_bit(model, samples):
    engine = Engine(model, jobs=1)
    engine.profile(samples[0])
    whole = Slicer(model).suffix(
        0,
        [spec.name for spec in model.inputs],
        engine.walker.measured_profile.specs,
        optimized=False,
        fixed_shapes=True,
    )

    for inputs in samples:
        walked = engine.forward(inputs)
        for name, expected in zip(whole.outputs, whole.run(inputs), strict=True):
            assert same_bits(walked[name], expected)


def test_the_float_walk_equals_the_plain_float_model_in_stock_onnx_runtime(proto, samples):
    """Case 22: instrumenting a model must not change what it computes."""
    plain = float_twin(proto)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(plain.SerializeToString(), options)
    names = [item.name for item in session.get_outputs()]
    engine = Engine(load(proto), jobs=1)

    for inputs in samples:
        walked = engine.forward(inputs)
        for name, expected in zip(names, session.run(names, inputs), strict=True):
            assert same_bits(walked[name], expected)


def float_twin(proto):
    """Replace every HzCalibration by Identity, without any code of the package."""
    twin = type(proto)()
    twin.CopyFrom(proto)
    for node in twin.graph.node:
        if node.op_type == "HzCalibration":
            node.op_type, node.domain = "Identity", ""
            node.ClearField("attribute")
    return twin


@pytest.mark.parametrize("memory", [1 << 30, 1 << 12])
@pytest.mark.parametrize("jobs", [1, 3])
def test_exact_evaluation_equals_full_reexecution_for_any_budget_and_threads(
    model, samples, memory, jobs
):
    engine = Engine(model, jobs=jobs, exact=True, memory=memory)
    assignments = each_alone(model)

    found, _ = run_all(engine, samples, assignments)

    assert len(found) == len(samples) * len(assignments)
    for (sample, index), outputs in found.items():
        expected = engine.forward(samples[sample], assignments[index])
        for name, (_, value) in outputs.items():
            assert same_bits(value, expected[name]), (index, name)


def test_any_cuts_give_the_same_outputs(model, samples, monkeypatch):
    """Law: walk-then-jump equals full re-execution for any cuts, every position tried as one."""
    assignments = each_alone(model)
    end = len(model.steps)
    for cut in range(1, end):
        monkeypatch.setattr("hbdebug.engine.choose_cuts", lambda *_, cut=cut: (cut, end))
        engine = Engine(model, jobs=2, exact=True)

        found, schedule = run_all(engine, samples[:1], assignments)

        assert schedule.cuts == (cut, end)
        for (sample, index), outputs in found.items():
            expected = engine.forward(samples[sample], assignments[index])
            for name, (_, value) in outputs.items():
                assert same_bits(value, expected[name]), (cut, index, name)


def test_optimized_jumps_differ_by_summation_order_only(model, samples):
    engine = Engine(model, jobs=2)
    assignments = each_alone(model)

    found, _ = run_all(engine, samples, assignments)

    for (sample, index), outputs in found.items():
        expected = engine.forward(samples[sample], assignments[index])
        for name, (_, value) in outputs.items():
            # Outputs are of the order of 1 and sums have at most 72 terms: some 1e-6 of
            # reordering, as the design document measured for convolutions.
            np.testing.assert_allclose(value, expected[name], atol=5e-6, rtol=0)


def test_what_is_faint_is_measured_through_an_exact_jump(model, samples):
    engine = Engine(model, jobs=2)
    assignments = each_alone(model)
    engine.profile(samples[0])
    schedule = engine.schedule(assignments, len(samples))

    for item in engine.evaluate(samples, schedule, exact_judge, faint=lambda _: True):
        expected = engine.forward(samples[item.sample], assignments[item.assignment])
        baseline = engine.forward(samples[item.sample])
        if all(same_bits(expected[name], baseline[name]) for name in expected):
            continue  # nothing reached the cut, so nothing had to be measured
        for name, (reference, value) in item.value.items():
            assert same_bits(value, expected[name])
            assert same_bits(reference, baseline[name])


def test_the_same_run_is_planned_and_measured_alike(model, samples):
    """Cuts come from shapes, never from a clock, so that two runs agree to the last bit."""
    first, plan = run_all(Engine(model, jobs=1), samples, each_alone(model))
    second, again = run_all(Engine(model, jobs=3), samples, each_alone(model))

    assert plan.cuts == again.cuts
    for key, outputs in first.items():
        for name, (_, value) in outputs.items():
            assert same_bits(value, second[key][name][1])


def test_an_assignment_that_changes_nothing_has_exactly_no_error(model, samples):
    engine = Engine(model, jobs=2)

    found, _ = run_all(engine, samples, [FLOAT])

    for outputs in found.values():
        for reference, value in outputs.values():
            assert same_bits(reference, value)


def test_an_invisible_change_has_exactly_no_error():
    """What is quantized and then clipped away leaves every tensor at the cut bit-equal."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 4))
    low = b.node(
        "Clip", [b.point(x), b.constant("lo", np.float32(5)), b.constant("hi", np.float32(6))]
    )
    b.output(b.node("Sigmoid", [b.node("Add", [low, low])]))
    model = load(b.proto())
    inputs = [{"x": np.array([[0.1, -0.7, 1.3, 0.9]], np.float32)}]

    found, _ = run_all(Engine(model, jobs=1), inputs, [Assignment.as_calibrated(model)])

    ((reference, value),) = found[0, 0].values()
    assert same_bits(reference, value)


def test_everything_quantized_equals_the_calibrated_model_run_whole(proto, samples):
    """The calibrated model, its points written as stock operators, run by ONNX Runtime alone."""
    stock = stock_calibrated(proto)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(stock.SerializeToString(), options)
    names = [item.name for item in session.get_outputs()]
    model = load(proto)
    engine = Engine(model, jobs=1)

    for inputs in samples:
        walked = engine.forward(inputs, Assignment.as_calibrated(model))
        for name, expected in zip(names, session.run(names, inputs), strict=True):
            # The sign of zero may differ: the stock form has no addition of a zero point.
            np.testing.assert_array_equal(walked[name], expected)


def stock_calibrated(proto):
    """Write every point as Div, Round, Clip, Mul, without any code of the package."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    nodes, initializers = [], list(proto.graph.initializer)
    shapes = {item.name: list(item.dims) for item in proto.graph.initializer}
    for node in proto.graph.node:
        if node.op_type != "HzCalibration":
            nodes.append(node)
            continue
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        scales = np.array(attributes["scales"], np.float32)
        if scales.size > 1:
            scales = scales.reshape([-1] + [1] * (len(shapes[node.input[0]]) - 1))
        else:
            scales = scales.reshape(())
        low, high = (-128, 127) if attributes["qtype"] == b"int8" else (-32768, 32767)
        prefix = f"{node.name}/"
        for name, value in (("s", scales), ("lo", np.float32(low)), ("hi", np.float32(high))):
            initializers.append(onnx.numpy_helper.from_array(np.asarray(value), prefix + name))
        nodes += [
            helper.make_node("Div", [node.input[0], prefix + "s"], [prefix + "a"]),
            helper.make_node("Round", [prefix + "a"], [prefix + "b"]),
            helper.make_node("Clip", [prefix + "b", prefix + "lo", prefix + "hi"], [prefix + "c"]),
            helper.make_node("Mul", [prefix + "c", prefix + "s"], list(node.output)),
        ]
    graph = helper.make_graph(
        nodes, "stock", list(proto.graph.input), list(proto.graph.output), initializers
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)


def test_the_order_of_points_changes_nothing(model, samples):
    engine = Engine(model, jobs=1)
    points = [point for point in model.points if point.enabled]

    forward = engine.forward(samples[0], Assignment.of(points))
    backward = engine.forward(samples[0], Assignment.of(reversed(points)))

    assert all(same_bits(forward[name], backward[name]) for name in forward)


def test_what_is_done_is_not_run_again(model, samples):
    engine = Engine(model, jobs=1)
    assignments = each_alone(model)
    engine.profile(samples[0])
    schedule = engine.schedule(assignments, len(samples))
    done = {(0, index) for index in range(len(assignments))} | {(2, 1), (2, 4)}

    found = {
        (item.sample, item.assignment)
        for item in engine.evaluate(samples, schedule, exact_judge, done=done)
    }

    everything = {(s, a) for s in range(3) for a in range(len(assignments))}
    assert found == everything - done


def test_reading_around_a_point_takes_what_lies_in_front_of_it(samples):
    """A lift can leave a shared point to its other readers and put one reader in float."""
    proto = models.residual()
    model = load(proto)
    samples = models.inputs_for(proto)
    engine = Engine(model, jobs=1)
    shared = model.point_by_name["stem_relu_out_HzCalibration"]
    both = Assignment.of([shared])
    only_add = both.changed({}, bypassed=[("one_a", 0)])
    only_conv = both.changed({}, bypassed=[("one_add", 1)])
    neither = both.changed({}, bypassed=[("one_a", 0), ("one_add", 1)])

    outputs = [
        engine.forward(samples[0], item)["softmax_out"]
        for item in (FLOAT, both, only_add, only_conv, neither)
    ]

    assert same_bits(outputs[0], outputs[4])
    assert len({array.tobytes() for array in outputs[:4]}) == 4


def test_a_node_that_nothing_reads_is_no_obstacle():
    b = models.CalibratedModel()
    x = b.point(b.conv(b.input("x", (1, 3, 10, 10)), (3, 4), "conv"))
    b.node("Sigmoid", [x], "unread")
    b.output(x)
    model = load(b.proto())

    found, _ = run_all(Engine(model, jobs=1), models.inputs_for(b.proto(), 2), each_alone(model))

    assert all(set(outputs) == {model.outputs[0].name} for outputs in found.values())


def test_a_failing_node_is_named():
    b = models.CalibratedModel()
    x = b.input("x", (2, 3))
    b.output(b.node("Reshape", [b.point(x), b.constant("to", np.array([4, 4]))], "misfit"))
    engine = Engine(load(b.proto()), jobs=1)

    with pytest.raises(Exception, match=r"node misfit \(Reshape\)") as caught:
        engine.forward({"x": np.zeros((2, 3), np.float32)})

    assert caught.value.exit_code == 3


def test_an_unknown_provider_is_refused_with_those_there_are():
    model = load(models.residual())

    with pytest.raises(Exception, match="no provider 'tpu'") as caught:
        Engine(model, provider="tpu")

    assert caught.value.exit_code == 2
    assert "cpu" in caught.value.hint
