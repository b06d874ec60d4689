"""What graph outputs and float nodes get of tensors that are read in integers, too."""

from __future__ import annotations

import numpy as np
import pytest

import hbdebug
from hbdebug.engine import Engine
from hbdebug.integer_run import run
from hbdebug.loading.integer import load_integer
from hbdebug.model import Assignment
from hbdebug.plan import last_uses
from tests.lowering.vendor import LAYOUT, LAYOUT_BERNOULLI2, layout_models

NETS = [
    (LAYOUT, "bayes-e", "made_in_float_turned"),
    (LAYOUT, "bayes-e", "turn_read_thrice"),
    (LAYOUT_BERNOULLI2, "bernoulli2", "classes"),
    (LAYOUT_BERNOULLI2, "bernoulli2", "made_in_float_turned"),
    (LAYOUT_BERNOULLI2, "bernoulli2", "maximum"),
    (LAYOUT_BERNOULLI2, "bernoulli2", "maximum_beside"),
    (LAYOUT_BERNOULLI2, "bernoulli2", "turn_read_thrice"),
]


@pytest.mark.parametrize(("archive", "march", "name"), NETS)
def test_they_are_the_vendors_at_integer_fidelity(archive, march, name):
    calibrated, quantized = layout_models(name, archive)
    model = hbdebug.load(calibrated)
    random = np.random.default_rng(4)
    inputs = {spec.name: random.normal(size=spec.shape).astype(np.float32) for spec in model.inputs}
    engine = Engine(model, fidelity="integer", march=march, jobs=1)
    engine.profile(inputs)

    found = engine.forward(inputs, Assignment.as_calibrated(model))

    expected = run(load_integer(quantized), inputs)
    assert found.keys() == expected.keys()
    for output, values in expected.items():
        # Float Softmax and Max run in the same ONNX Runtime on both sides.
        assert np.array_equal(found[output], values), output


def test_what_is_in_front_of_a_point_that_gives_an_output_stays_for_its_readers():
    calibrated, _ = layout_models("turn_read_thrice", LAYOUT_BERNOULLI2)
    model = hbdebug.load(calibrated)
    outputs = {spec.name for spec in model.outputs}
    last = max(index for step in ("Softmax_2", "Exp_3") for index in [model.position_of[step]])

    dropped = last_uses(model, outputs, around_points=True)

    assert outputs.isdisjoint(name for names in dropped for name in names)
    assert "Transpose_1_out0_calibrated" in dropped[last]
