"""Estimates: made from what one walk took, and corrected when the run turns out otherwise."""

from __future__ import annotations

import pytest

from hbdebug import walk
from hbdebug.analysis.pace import Pace, duration
from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.model import Assignment
from tests import models


class Clock:
    """Goes on only when it is told to, or by a fixed time at each look."""

    def __init__(self, step=0.0):
        self.now = 100.0
        self.step = step

    def __call__(self):
        self.now += self.step
        return self.now


def run(told, seconds_each, count=100, planned=None):
    """Finish things of equal cost at a steady pace; return what was said, with the time."""
    clock = Clock()
    pace = Pace(told, count if planned is None else planned, clock)
    said = []
    for _ in range(count):
        clock.now += seconds_each
        text = pace.advance(1.0)
        if text:
            said.append((clock.now - 100.0, text))
    return said


def test_nothing_is_said_when_the_estimate_holds():
    assert run(told=100, seconds_each=1.0) == []
    assert run(told=70, seconds_each=1.0) == []
    assert run(told=140, seconds_each=1.0) == []


@pytest.mark.parametrize("told", [10, 30, 300, 10000])
def test_a_wrong_estimate_is_corrected_early_and_once(told):
    ((when, text),) = run(told=told, seconds_each=1.0)

    assert when <= 10
    assert text == f"about {duration(100 - when)} left, as it turns out"


def test_a_short_run_is_left_alone():
    assert run(told=100, seconds_each=0.01) == []


def test_what_slows_down_later_is_corrected_later():
    clock = Clock()
    pace = Pace(100, 100, clock)
    said = []
    for index in range(100):
        clock.now += 1.0 if index < 30 else 5.0
        said.append(pace.advance(1.0))

    assert not any(said[:30])
    assert any(said[30:])


def test_without_anything_planned_nothing_is_said():
    assert Pace(1, 0, Clock()).advance(0.0) == ""


def test_a_machine_that_takes_ten_times_as_long_is_expected_to(monkeypatch):
    """The clock is a fake one: every step of the first walk takes the same."""
    model, samples = load(models.residual()), models.inputs_for(models.residual(), count=1)
    assignments = [Assignment.of([point]) for point in model.points if point.enabled]
    found = []
    for seconds in (1.0, 10.0):
        monkeypatch.setattr(walk.time, "perf_counter", Clock(seconds))
        engine = Engine(model, jobs=1)
        engine.profile(samples[0])
        schedule = engine.schedule(assignments, 8)
        assert set(engine.walker.measured_profile.seconds) == {seconds / 2}
        found.append(engine.expected_seconds(schedule, 8))

    # What is no operator's work, under a second here, is not measured.
    assert found[1] == pytest.approx(10 * found[0], rel=0.01)


def test_more_cores_and_fewer_samples_take_less_time():
    model, samples = load(models.residual()), models.inputs_for(models.residual(), count=1)
    assignments = [Assignment.of([point]) for point in model.points if point.enabled]
    one, four = (Engine(model, jobs=jobs) for jobs in (1, 4))
    one.profile(samples[0])
    four.walker.adopt(one.walker.measured_profile)
    schedule = one.schedule(assignments, 8)

    assert four.expected_seconds(schedule, 8) < one.expected_seconds(schedule, 8)
    assert one.expected_seconds(schedule, 1) < one.expected_seconds(schedule, 8)
    assert one.expected_walks(8) == pytest.approx(8 * one.expected_walks(1))
