"""Planning on toy graphs and toy costs; nothing is run."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.plan import (
    Costs,
    choose_boundaries,
    choose_cuts,
    crossing,
    cut_of,
    last_uses,
    quantized_span,
    seed_steps,
    split_rounds,
    stale_steps,
    thin_cuts,
)
from tests import models


@pytest.fixture(scope="module")
def model():
    return load(models.residual())


def position(model, name):
    return [step.name for step in model.steps].index(name)


def cost_of_cuts(cuts, costs, spans, samples):
    """Add up what evaluations cost with given cuts; the obvious twin of the dynamic program."""
    total = 0.0
    for first, last in spans:
        if last:
            cut = min(cut for cut in cuts if cut >= last)
            walked = sum(costs.walk[first:cut])
            total += samples * (walked + costs.jump[cut] + costs.compare[cut])
    for cut in cuts:
        if cut < len(costs.walk):
            total += samples * costs.jump[cut] + costs.create[cut]
    return total


@pytest.mark.parametrize("seed", range(20))
def test_chosen_cuts_are_the_cheapest_of_all(seed):
    random = np.random.default_rng(seed)
    steps = 7
    walk = random.uniform(0.1, 1, steps)
    jump = np.concatenate([np.cumsum(walk[::-1])[::-1] * 0.6, [0.0]])
    costs = Costs(
        walk=walk.tolist(),
        jump=jump.tolist(),
        create=random.uniform(0, 3, steps + 1).tolist(),
        compare=random.uniform(0, 0.3, steps + 1).tolist(),
    )
    spans = [
        (int(first), int(first) + int(length))
        for first, length in zip(
            random.integers(0, steps - 1, 12), random.integers(1, 3, 12), strict=True
        )
    ]
    spans = [(first, min(last, steps)) for first, last in spans]
    samples = int(random.integers(1, 5))

    chosen = choose_cuts(costs, spans, samples)

    every_choice = [
        (*inner, steps)
        for count in range(steps)
        for inner in itertools.combinations(range(1, steps), count)
    ]
    cheapest = min(cost_of_cuts(cuts, costs, spans, samples) for cuts in every_choice)
    # Both add the same numbers in another order: a few ulps of a sum below 1000.
    assert cost_of_cuts(chosen, costs, spans, samples) == pytest.approx(cheapest, abs=1e-9)


def test_more_samples_never_mean_fewer_cuts():
    walk = [1.0] * 40
    jump = [0.6 * (40 - position) for position in range(41)]
    costs = Costs(walk=walk, jump=jump, create=[20.0] * 41, compare=[0.0] * 41)
    spans = [(index, index + 1) for index in range(40)]

    counts = [len(choose_cuts(costs, spans, samples)) for samples in (1, 2, 8, 64)]

    assert counts == sorted(counts)
    assert counts[-1] > counts[0]


def test_a_quantized_activation_makes_everything_behind_it_stale(model):
    point = model.point_by_name["one_relu_out_HzCalibration"]

    seeds = seed_steps(model, Assignment.of([point]))
    stale = stale_steps(model, seeds, len(model.steps))

    names = {model.steps[index].name for index in stale}
    assert {"one_relu_out_HzCalibration", "one_b", "one_add", "two_a", "softmax"} <= names
    assert not {"stem", "one_a", "one_relu", "one_b_w_HzCalibration"} & names


def test_a_quantized_weight_is_part_of_the_node_that_reads_it(model):
    point = model.point_by_name["one_b_w_HzCalibration"]
    assignment = Assignment.of([point])

    seeds = seed_steps(model, assignment)

    assert seeds == {position(model, "one_b")}
    assert quantized_span(model, assignment, seeds) == (
        position(model, "one_b"),
        position(model, "one_b") + 1,
    )


def test_the_span_of_nothing_is_empty(model):
    assert seed_steps(model, Assignment()) == frozenset()
    assert quantized_span(model, Assignment(), frozenset()) == (0, 0)
    assert stale_steps(model, frozenset(), len(model.steps)) == ()


def test_reading_around_a_point_forbids_the_jump(model):
    point = model.point_by_name["stem_relu_out_HzCalibration"]
    assignment = Assignment.of([point]).changed({}, bypassed=[("one_a", 0)])

    _, last = quantized_span(model, assignment, seed_steps(model, assignment))

    assert last == len(model.steps)


def test_crossing_tensors_are_all_that_the_rest_needs(model):
    """Walking the rest from the crossing tensors alone never reads anything else."""
    known_everywhere = set(model.constants) | {
        point.output for point in model.points if point.input in model.constants
    }
    for start, tensors in enumerate(crossing(model)):
        at_hand = set(tensors) | known_everywhere
        for step in model.steps[start:]:
            assert {name for name in step.inputs if name} <= at_hand, (start, step.name)
            at_hand |= set(step.outputs)
        assert {spec.name for spec in model.outputs} <= at_hand


def test_weights_do_not_cross(model):
    assert not any("_w" in name for names in crossing(model) for name in names)


def test_nothing_is_dropped_before_its_last_use(model):
    outputs = {spec.name for spec in model.outputs}
    dropped: set[str] = set()
    for step, names in zip(model.steps, last_uses(model, outputs), strict=True):
        assert dropped.isdisjoint(step.inputs)
        dropped |= set(names)
    assert dropped.isdisjoint(outputs)


def test_what_lies_in_front_of_a_point_stays_for_readers_around_it(model):
    point = model.point_by_name["stem_relu_out_HzCalibration"]
    late = last_uses(model, (), around_points=True)

    readers = [index for index, step in enumerate(model.steps) if point.output in step.inputs]

    assert point.input in late[max(readers)]


def test_cuts_are_thinned_until_their_weights_fit():
    cuts = (2, 4, 6, 8, 10)
    weight = {2: 80, 4: 60, 6: 40, 8: 20, 10: 0}

    assert thin_cuts(cuts, weight, 1000) == cuts
    assert thin_cuts(cuts, weight, 100) == (4, 8, 10)
    assert thin_cuts(cuts, weight, 10) == (10,)


def test_boundaries_keep_a_stretch_within_its_bytes():
    made = [10, 10, 10, 50, 10, 10]

    boundaries = choose_boundaries((3, 6), made, budget=25)

    assert {3, 6} <= set(boundaries)
    starts = (0, *boundaries[:-1])
    for start, stop in zip(starts, boundaries, strict=True):
        assert stop - start == 1 or sum(made[start:stop]) <= 25


def test_the_first_cut_at_or_behind_a_position_is_taken():
    assert [cut_of((3, 6, 9), last) for last in (0, 3, 4, 9)] == [3, 3, 6, 9]


def test_rounds_keep_what_is_carried_within_its_bytes():
    carried = [{3: 10, 6: 10}, {3: 15}, {6: 15}, {}, {3: 10}, {3: 100}]

    rounds = split_rounds(carried, budget=25)

    assert sorted(index for chosen in rounds for index in chosen) == list(range(len(carried)))
    for chosen in rounds:
        for position in (3, 6):
            total = sum(carried[index].get(position, 0) for index in chosen)
            assert total <= 25 or [carried[index] for index in chosen if carried[index]] == [
                {3: 100}
            ]


def test_one_round_is_enough_when_nothing_is_carried_far():
    assert split_rounds([{}, {4: 7}, {}], budget=7) == ((0, 1, 2),)
