"""Moving, merging and cancelling Transposes changes no integer, whatever is quantized."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import hbdebug
from hbdebug.errors import ModelError
from hbdebug.integer_run import run
from hbdebug.lowering.graph import lower
from hbdebug.lowering.layout import arrange
from hbdebug.lowering.rewriting import Rewriting, stock
from hbdebug.model import Assignment
from hbdebug.samples import TensorSpec
from tests.lowering.test_graph import PAIRS, random_inputs
from tests.lowering.vendor import (
    LAYOUT,
    LAYOUT_BERNOULLI2,
    File,
    classifier_models,
    layout_cases,
    march_of,
    pair_models,
)

NETS_OF_LAYOUT = {LAYOUT: "bayes-e", LAYOUT_BERNOULLI2: "bernoulli2"}

# Model, before and after the quantizer, and march; some names are in two archives.
SOURCES = {
    "classifier": (classifier_models, "bayes-e"),
    **{
        f"{archive}/{name}": (partial(pair_models, name, archive), march_of(name))
        for archive, name in PAIRS
    },
    **{
        f"{archive}/{name}": (partial(pair_models, name, archive), march)
        for archive, march in NETS_OF_LAYOUT.items()
        for name in layout_cases(archive)
    },
}


def lowered(proto, share, seed, march="bayes-e"):
    """Return the integer model of a part of the points, and inputs for it."""
    model = hbdebug.load(proto)
    random = np.random.default_rng(seed)
    some = Assignment.of(point for point in model.points if random.random() < share)
    plain = lower(model, some, shapes=File(proto).shapes, march=march)
    return plain, random_inputs(plain.inputs, random)


def traced(model, inputs):
    """Run a model; return its outputs, and every tensor."""
    tensors = {**model.constants, **inputs}
    return run(model, inputs, keep=tensors.__setitem__), tensors


def specs_of(tensors):
    return {
        name: TensorSpec(name=name, dtype=array.dtype.name, shape=array.shape)
        for name, array in tensors.items()
    }


@pytest.mark.parametrize("share", [1, 0.7, 0.4])
@pytest.mark.parametrize("source", SOURCES)
def test_no_output_changes(source, share):
    models, march = SOURCES[source]
    proto, _ = models()
    plain, inputs = lowered(proto, share, seed=3, march=march)
    expected, tensors = traced(plain, inputs)

    arranged = arrange(plain, specs_of(tensors), march=march)

    found, made = traced(arranged, inputs)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name
    # What the integer nodes make holds the same numbers, in one layout or the other.
    for node in arranged.nodes:
        if node.outputs == plain.node_by_name.get(node.name, node).outputs and not node.body:
            for name in node.outputs:
                same = np.array_equal(np.sort(made[name].ravel()), np.sort(tensors[name].ravel()))
                assert same, name


def test_the_model_that_is_arranged_stays_as_it_is():
    proto, _ = classifier_models()
    plain, inputs = lowered(proto, 1, seed=3)
    steps, constants = plain.steps, dict(plain.constants)
    _, tensors = traced(plain, inputs)

    arrange(plain, specs_of(tensors))

    assert plain.steps is steps
    assert plain.constants == constants


def test_two_nodes_of_one_name_are_refused():
    plain, _ = lowered(classifier_models()[0], 1, seed=3)
    graph = Rewriting(plain, {})
    first, second = graph.nodes()[:2]

    with pytest.raises(ModelError, match="two nodes") as caught:
        graph.insert_after(first, stock(second.name, "Identity", ["x"], ["y"], {}))

    assert caught.value.where == second.name
