"""Points that an assignment leaves in float are taken out, and what bypasses a point does so."""

from __future__ import annotations

import numpy as np
import pytest

import hbdebug
from hbdebug.engine import Engine
from hbdebug.integer_run import run
from hbdebug.lowering.graph import lower
from hbdebug.lowering.settled import settled, with_original_constants
from hbdebug.model import Assignment
from hbdebug.toolchain import lifted
from tests.lowering.vendor import File, classifier_models, pair_models


def lifted_to_cpu(model, node):
    return lifted(model, Assignment.as_calibrated(model), {node: "cpu"}, "bayes-e")


@pytest.mark.parametrize(("name", "node"), [("add_two", "Sub_2"), ("concat_slice", "Conv_17")])
def test_what_bypasses_a_point_reads_the_float_in_front_of_it(name, node):
    proto, _ = pair_models(f"{name}-bayes-e")
    model = hbdebug.load(proto)
    assignment = lifted_to_cpu(model, node)
    assert assignment.bypassed
    random = np.random.default_rng(0)
    inputs = {spec.name: random.normal(size=spec.shape).astype(np.float32) for spec in model.inputs}

    found = run(lower(*settled(model, assignment), shapes=File(proto).shapes), inputs)

    for output, expected in Engine(model, jobs=1).forward(inputs, assignment).items():
        # Multipliers have 15 bits and biases are rounded to steps of the sums; the step of int8
        # that a quantized value would differ by is some hundred times as large.
        assert np.allclose(found[output], expected, rtol=0, atol=1e-3), output


def test_nothing_is_taken_out_of_what_is_quantized_as_calibrated():
    model = hbdebug.load(classifier_models()[0])

    found, assignment = settled(model, Assignment.as_calibrated(model))

    assert [step.name for step in found.steps] == [step.name for step in model.steps]
    assert assignment.key == Assignment.as_calibrated(model).key


def test_without_points_tensors_have_the_names_in_front_of_them():
    model = hbdebug.load(classifier_models()[0])

    found, assignment = settled(model, Assignment())
    plain = with_original_constants(lower(found, assignment, shapes={}), model)

    assert not assignment
    assert all(point.role == "weight" or point.input in model.constants for point in found.points)
    assert plain.nodes[0].inputs == ("x", "conv1_weights", "Conv@0_hz_bias")
    assert plain.nodes[0].body[0].inputs == plain.nodes[0].inputs


def test_a_node_on_the_cpu_is_float_where_its_points_stay():
    proto, _ = pair_models("pools-bayes-e")
    model = hbdebug.load(proto)

    found = lower(
        *settled(model, Assignment.as_calibrated(model), cpu=["MaxPool_5"]),
        shapes=File(proto).shapes,
    )

    assert found.node_by_name["MaxPool_5"].op_type == "MaxPool"
    assert found.node_by_name["MaxPool_5"].inputs == ("t4_0_calibrated",)
