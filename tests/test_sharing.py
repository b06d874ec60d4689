"""Sessions of a large model are fed its weights instead of copying them; the laws stay the same."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from hbdebug import slices
from hbdebug.engine import Engine
from hbdebug.jump import same_bits
from hbdebug.keep import Kept
from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.slices import Slicer
from tests import models, qdq_models
from tests.models import CalibratedModel
from tests.test_engine import each_alone, float_twin, run_all


def matrices():
    """Two MatMuls and a Gemm with quantized weights, one weight read twice, one behind two points.

    The second point of a chain leaves a scale behind, as equalisation does.
    """
    b = CalibratedModel(3)
    x = b.input("x", (1, 5, 16))
    tied = b.weight("tied", b.random.normal(0, 0.3, (16, 16)), axis=1)
    x = b.node("MatMul", [b.point(x), tied], "first")
    x = b.node("MatMul", [b.point(x), tied], "second")
    chained = b.point(b.weight("chained", b.random.normal(0, 0.3, (16, 8)), axis=1), 0.5)
    x = b.node("MatMul", [b.point(x), chained], "third")
    x = b.node("Reshape", [x, b.constant("shape", np.array([5, 8]))], "flat")
    weight = b.weight("w", b.random.normal(0, 0.3, (8, 4)), axis=1)
    bias = b.constant("bias", b.random.normal(0, 0.1, 4).astype(np.float32))
    b.output(b.node("Gemm", [b.point(x), weight, bias], "head"))
    return b.proto()


BUILDERS = {
    "matrices": matrices,
    "residual": models.residual,
    "many_outputs": models.many_outputs,
}


@pytest.fixture(params=sorted(BUILDERS))
def proto(request):
    return BUILDERS[request.param]()


@pytest.fixture
def sharing(monkeypatch):
    """Take every constant of more than a few values for a large one."""
    monkeypatch.setattr(slices, "LARGE_MODEL", 0)
    monkeypatch.setattr(slices, "LARGE_CONSTANT", 32)


def whole_session(model, inputs):
    engine = Engine(model, jobs=1)
    engine.profile(inputs)
    return engine.suffix(0, optimized=False)


@pytest.mark.usefixtures("sharing")
def test_the_walk_equals_the_unoptimized_whole_model_bit_for_bit(proto):
    model = load(proto)
    inputs = models.inputs_for(proto, count=1)[0]
    whole = whole_session(model, inputs)
    assert Slicer(model).shared

    walked = Engine(model).forward(inputs)

    for name, expected in zip(whole.outputs, whole.run(inputs), strict=True):
        assert same_bits(walked[name], expected)


@pytest.mark.usefixtures("sharing")
def test_the_float_walk_equals_stock_onnx_runtime_without_prepacking(proto):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(float_twin(proto).SerializeToString(), options)
    names = [item.name for item in session.get_outputs()]
    inputs = models.inputs_for(proto, count=1)[0]

    walked = Engine(load(proto)).forward(inputs)

    for name, expected in zip(names, session.run(names, inputs), strict=True):
        assert same_bits(walked[name], expected)


@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize("memory", [1 << 30, 1 << 12])
def test_evaluation_equals_full_reexecution_for_any_budget(proto, memory):
    model, samples = load(proto), models.inputs_for(proto, count=2)
    engine = Engine(model, jobs=2, exact=True, memory=memory)
    assignments = each_alone(model)

    found, _ = run_all(engine, samples, assignments)

    assert len(found) == len(samples) * len(assignments)
    for (sample, index), outputs in found.items():
        expected = engine.forward(samples[sample], assignments[index])
        for name, (_, value) in outputs.items():
            assert same_bits(value, expected[name]), (index, name)


def test_quantized_weights_do_damage_of_the_same_size_shared_or_not(proto, monkeypatch):
    model, inputs = load(proto), models.inputs_for(proto, count=1)[0]
    weights = Assignment.of(point for point in model.points if point.role == "weight")
    owned = Engine(model).forward(inputs, weights)
    monkeypatch.setattr(slices, "LARGE_MODEL", 0)
    monkeypatch.setattr(slices, "LARGE_CONSTANT", 32)

    shared = Engine(model).forward(inputs, weights)

    for name, array in owned.items():
        # The kernels of a weight that is fed sum in another order: float32 rounding, no more.
        np.testing.assert_allclose(shared[name], array, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("sharing")
def test_no_session_holds_a_large_constant(proto, monkeypatch):
    model, inputs = load(proto), models.inputs_for(proto, count=1)[0]
    shared = Slicer(model).shared & model.constants.keys()
    largest = []
    original = slices._tensor
    monkeypatch.setattr(
        slices, "_tensor", lambda name, array: largest.append(array.nbytes) or original(name, array)
    )
    engine = Engine(model, jobs=1)

    run_all(engine, [inputs], each_alone(model))

    assert shared
    assert max(largest, default=0) < 32 + 1


def test_small_models_share_nothing():
    assert not Slicer(load(models.residual())).shared


def test_what_was_used_longest_ago_goes_first():
    made = []

    def make(key):
        def value():
            made.append(key)
            return key, 10

        return value

    kept = Kept(25)
    for key in ("a", "b", "a", "c", "a", "b"):
        assert kept.get(key, make(key)) == key

    assert made == ["a", "b", "c", "b"]


def test_what_does_not_fit_at_all_is_made_each_time():
    made = []
    kept = Kept(5)

    for _ in range(2):
        assert kept.get("a", lambda: made.append(1) or ("value", 6)) == "value"

    assert len(made) == 2


@pytest.mark.usefixtures("sharing")
@pytest.mark.parametrize("form", qdq_models.forms())
def test_every_form_of_a_qdq_model_equals_stock_onnx_runtime_without_prepacking(form):
    proto = qdq_models.FORMS[form]()
    model = load(proto)
    for node in proto.graph.node:
        node.name = ""  # ONNX Runtime refuses names that are not unique
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    names = [item.name for item in session.get_outputs()]

    for inputs in qdq_models.feeds(proto):
        walked = Engine(model).forward(inputs, Assignment.as_calibrated(model))
        for name, expected in zip(names, session.run(names, inputs), strict=True):
            assert same_bits(walked[name], expected)
