"""The suggestion is measured: what it reports is what its own settings give."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from hbdebug.analysis.scores import worst_of
from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.metrics import Reference
from hbdebug.model import Assignment
from hbdebug.pipeline import sensitivity
from hbdebug.report.configs import read_node_config
from hbdebug.report.suggestion import suggestion_config
from hbdebug.samples import open_samples
from hbdebug.toolchain import lifted
from tests import models

if TYPE_CHECKING:
    import onnx

COUNT = 9

CLASSIFIER = Path(__file__).parents[1] / "fixtures/textline_cls"


def coarse_middle(threshold: float) -> onnx.ModelProto:
    """A chain of convolutions, one of which has a point that is far too coarse."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 3, 10, 10))
    for name in ("a", "b", "c", "d"):
        limit = threshold if name == "c" else 3.0
        x = b.node("Relu", [b.conv(x, (3, 3), name, threshold=limit)], f"{name}_relu")
    b.output(b.conv(x, (3, 4), "head"))
    return b.proto()


@pytest.fixture
def measured(tmp_path):
    """Measure the chain whose node ``c`` quantizes a range of 0.5 with a threshold of 60."""
    proto = coarse_middle(60.0)
    samples = models.inputs_for(proto, count=COUNT)
    folder = models.save_samples(tmp_path / "calib", samples)
    return proto, samples, sensitivity(proto, folder, target=0.999)


def test_the_node_that_does_the_damage_is_found_and_lifted(measured):
    _, _, result = measured

    assert result.nodes[0].name == "c"
    assert result.suggestion.reached
    assert result.suggestion.nodes == {"c": "int16"}
    assert result.suggestion.stopped == "the target is reached"


def test_the_yaml_read_back_and_applied_gives_the_reported_numbers(measured):
    """Law: nothing is lost between what was measured and what the user is told to write."""
    proto, samples, result = measured
    nodes = read_node_config(suggestion_config(result), "bayes-e")
    model = load(proto)
    engine = Engine(model, jobs=1)
    assignment = lifted(model, Assignment.as_calibrated(model), nodes, "bayes-e")

    values = []
    for inputs in samples:
        (baseline,) = engine.forward(inputs).values()
        (output,) = engine.forward(inputs, assignment).values()
        values.append(Reference(baseline, ["cosine_similarity"]).measure(output))

    mean = float(np.mean([value["cosine_similarity"] for value in values]))
    last = result.suggestion.curve[-1]
    assert worst_of(last.outputs, "cosine_similarity") == pytest.approx(mean, abs=1e-15)


def test_the_curve_starts_with_the_model_as_calibrated(measured):
    _, _, result = measured

    start = result.suggestion.curve[0]
    as_calibrated = result.ceilings[0]
    assert (start.lifted, start.to) == ("", "")
    assert start.outputs == as_calibrated.outputs


def test_a_model_that_meets_the_target_needs_no_node(tmp_path):
    proto = coarse_middle(3.0)
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=COUNT))

    suggestion = sensitivity(proto, folder, target=0.9).suggestion

    assert suggestion.reached
    assert suggestion.nodes == {}
    assert len(suggestion.curve) == 1


def test_a_target_out_of_reach_is_said_to_be_with_the_best_that_was_found(tmp_path):
    proto = models.residual()  # its pool reads a sum, which is at best int16
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=COUNT))

    suggestion = sensitivity(proto, folder, target=1.0).suggestion

    assert not suggestion.reached
    assert suggestion.stopped
    values = [worst_of(step.outputs, "cosine_similarity") for step in suggestion.curve]
    best = values.index(max(values))
    assert max(values) > values[0]
    # The suggested nodes are those of the best step: following `on` back collects them.
    collected = {}
    index = best
    while index:
        step = suggestion.curve[index]
        collected.setdefault(step.lifted, step.to)
        index = step.on
    assert collected == suggestion.nodes


def test_no_node_of_the_list_can_be_spared():
    """Nodes that the prefix picked up on the way are put back when the target holds."""
    march = "bernoulli2"
    model = load(CLASSIFIER / "cls_calibrated_model.onnx")
    samples = open_samples(CLASSIFIER / "calib", model.inputs, limit=3)
    result = sensitivity(model, samples, march=march, target=0.999, split=False)
    suggestion = result.suggestion
    assert suggestion.reached
    assert any(step.to == "keep" for step in suggestion.curve)
    engine = Engine(model, jobs=1)

    def measured(nodes):
        assignment = lifted(model, Assignment.as_calibrated(model), nodes, march)
        values = []
        for _, inputs in samples:
            (baseline,) = engine.forward(inputs).values()
            (output,) = engine.forward(inputs, assignment).values()
            values.append(Reference(baseline, ["cosine_similarity"]).measure(output))
        return float(np.mean([value["cosine_similarity"] for value in values]))

    last = worst_of(suggestion.curve[-1].outputs, "cosine_similarity")
    # Two ways to average three float64 numbers.
    assert measured(suggestion.nodes) == pytest.approx(last, abs=1e-15)
    for name in suggestion.nodes:
        rest = {other: to for other, to in suggestion.nodes.items() if other != name}
        assert measured(rest) < 0.999, name


def test_without_int16_the_cpu_is_all_there_is(tmp_path):
    proto = coarse_middle(60.0)
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=COUNT))

    suggestion = sensitivity(proto, folder, march="bernoulli2").suggestion

    assert set(suggestion.nodes.values()) == {"cpu"}


def test_weights_are_cured_on_the_cpu_when_int16_does_not_reach_them(tmp_path):
    """Weights stay int8 however wide the activations are."""
    b = models.CalibratedModel()
    x = b.input("x", (1, 2, 6, 6))
    weight = b.random.normal(0, 0.3, (4, 2, 1, 1)).astype(np.float32)
    weight[:, 0] = 40.0  # one input channel, hardly used, ruins every output channel's grid
    b.constant("small", np.array([1e-3, 1.0], np.float32).reshape(1, 2, 1, 1))
    scaled = b.node("Mul", [x, "small"], "scale")
    y = b.node("Conv", [b.point(scaled, 4.0), b.weight("w", weight)], "uneven", kernel_shape=[1, 1])
    b.output(b.conv(y, (4, 3), "head", threshold=4.0))
    proto = b.proto()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=COUNT))

    result = sensitivity(proto, folder, target=0.9995)

    assert result.nodes[0].name == "uneven"
    assert result.suggestion.reached
    assert result.suggestion.nodes["uneven"] == "cpu"


def test_an_interrupt_keeps_the_steps_that_were_measured(tmp_path, monkeypatch):
    proto = coarse_middle(60.0)
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=COUNT))
    real = Engine.whole
    calls = []

    def whole(self, *args, **options):
        calls.append(1)
        if len(calls) == 4:  # the ceilings, the start of the curve, one batch of lifts
            raise KeyboardInterrupt
        return real(self, *args, **options)

    monkeypatch.setattr(Engine, "whole", whole)

    result = sensitivity(proto, folder, target=1.0, jobs=1)

    assert not result.complete
    assert result.suggestion.stopped == "interrupted"
    assert len(result.suggestion.curve) == 2
