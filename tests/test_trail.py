"""A walk that goes on from an earlier one's trail gives what a walk from the inputs gives."""

from __future__ import annotations

import numpy as np
import pytest

import hbdebug
from hbdebug.engine import Engine
from hbdebug.integer_run import IntegerRunner
from hbdebug.model import Assignment
from hbdebug.toolchain import lift
from hbdebug.trail import Trails, common_prefix
from tests import models
from tests.lowering.vendor import march_of, pair_models, pair_names
from tests.test_integer_fidelity import outputs_judge


def chain(model, march, length=6):
    """Lift one node after the other, as a search does, in an order of its own."""
    assignment = Assignment.as_calibrated(model)
    found, settings = [assignment], {}
    names = [node.name for node in model.nodes]
    for name in np.random.default_rng(0).permutation(names)[:length].tolist():
        change = lift(model, assignment, name, march, after=settings)
        assignment = assignment.changed(change.changes, bypassed=change.bypassed)
        settings[name] = change.to
        found.append(assignment)
    return found


def engine_for(model, samples, march="bayes-e", **options):
    engine = Engine(model, fidelity="integer", jobs=2, march=march, **options)
    engine.profile(samples[0])
    return engine


def search(engine, samples, assignments):
    """Measure assignments two at a time, as a search does."""
    found = []
    for start in range(0, len(assignments), 2):
        batch = assignments[start : start + 2]
        values = {
            (item.sample, item.assignment): item.value
            for item in engine.whole(samples, batch, outputs_judge)
        }
        found += [
            [values[number, index] for number in range(len(samples))] for index in range(len(batch))
        ]
    return found


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        for outputs, wanted in zip(ours, theirs, strict=True):
            assert outputs.keys() == wanted.keys()
            assert all(np.array_equal(outputs[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("name", pair_names())
def test_a_search_measures_what_single_walks_do(name):
    proto, _ = pair_models(name)
    model = hbdebug.load(proto)
    random = np.random.default_rng(1)
    samples = [
        {spec.name: random.normal(size=spec.shape).astype(np.float32) for spec in model.inputs}
        for _ in range(2)
    ]
    assignments = chain(model, march_of(name))

    found = search(engine_for(model, samples, march_of(name)), samples, assignments)

    fresh = engine_for(model, samples, march_of(name))
    expected = [[fresh.forward(sample, each) for sample in samples] for each in assignments]
    assert_equal(found, expected)


@pytest.fixture
def residual():
    proto = models.residual()
    return hbdebug.load(proto), models.inputs_for(proto, count=2)


def count_nodes(monkeypatch):
    """Return a list that every integer node that runs is added to."""
    ran = []
    execute = IntegerRunner.execute

    def counted(self, node, values, **options):
        ran.append(node.name)
        return execute(self, node, values, **options)

    monkeypatch.setattr(IntegerRunner, "execute", counted)
    return ran


def test_what_two_assignments_share_runs_once(residual, monkeypatch):
    model, samples = residual
    calibrated = Assignment.as_calibrated(model)
    last = [point for point in model.points if point.role == "activation"][-1]
    changed = calibrated.changed({last.name: last.params.to_int16()})
    ran = count_nodes(monkeypatch)
    engine = engine_for(model, samples)

    list(engine.whole(samples, [calibrated], outputs_judge))
    whole = len(ran)
    list(engine.whole(samples, [changed], outputs_judge))

    assert 0 < len(ran) - whole < 0.7 * whole


@pytest.mark.parametrize("memory", [1 << 30, 1 << 8])
def test_other_samples_and_a_small_budget_run_from_the_inputs(residual, memory):
    model, samples = residual
    calibrated = Assignment.as_calibrated(model)
    engine = engine_for(model, samples, memory=memory)
    list(engine.whole(samples, [calibrated], outputs_judge))

    found = search(engine, samples[::-1], [calibrated])

    fresh = engine_for(model, samples)
    assert_equal(found, [[fresh.forward(sample, calibrated) for sample in samples[::-1]]])


def test_a_budget_holds_no_more_than_it_says(residual):
    model, samples = residual
    engine = engine_for(model, samples)
    list(engine.whole(samples, [Assignment.as_calibrated(model)], outputs_judge))
    trail = engine._trails.of(0, samples[0])
    budget = Trails(trail.nbytes)

    budget.put(0, trail)
    budget.put(1, trail)

    assert budget.of(0, samples[0]) is trail
    assert budget.of(1, samples[0]) is None


def test_programs_part_where_a_point_changes(residual):
    model, samples = residual
    engine = engine_for(model, samples)
    calibrated = Assignment.as_calibrated(model)
    programs = {None: engine._walk_in_integers(calibrated).program}
    activations = [point for point in model.points if point.role == "activation"]
    for point in activations:
        changed = calibrated.changed({point.name: point.params.to_int16()})
        programs[point.name] = engine._walk_in_integers(changed).program

    for name, program in programs.items():
        end = len(model.steps) if name is None else model.position_of[name]
        # What makes the tensor counts it otherwise as well.
        assert common_prefix(model, programs[None], program) <= end
    assert common_prefix(model, programs[None], programs[None]) == len(model.steps)
    assert common_prefix(model, programs[None], programs[activations[-1].name]) > 0
