"""What the tests of models that users really have share."""

from __future__ import annotations

import numpy as np

from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.pipeline import sensitivity
from tests import structure_models as build
from tests.models import inputs_for, save_samples
from tests.structure_models import plain_outputs


def random_samples(*shapes, dtype=np.float32, scale=1.0):
    random = np.random.default_rng(5)
    return [{"x": random.normal(0, scale, shape).astype(dtype)} for shape in shapes]


def analysed(proto, samples, tmp_path, **options):
    return sensitivity(proto, save_samples(tmp_path / "calib", samples), suggest=False, **options)


def assert_runs_like_the_plain_model(proto, samples):
    """The walk in float, bit for bit; and a jump from every position, within float32 rounding."""
    model = load(proto)
    engine = Engine(model, jobs=1)
    names = [spec.name for spec in model.outputs]
    for sample in samples:
        walked = engine.forward(sample)
        plain = plain_outputs(proto, sample, names)
        for name in names:
            assert walked[name].dtype == plain[name].dtype
            np.testing.assert_array_equal(walked[name], plain[name])
    engine.profile(samples[0])
    nothing = engine.schedule([Assignment()], len(samples))

    def judge(baseline):
        return lambda outputs: all(
            np.array_equal(outputs[name], baseline[name], equal_nan=True) for name in names
        )

    assert all(item.value for item in engine.evaluate(samples, nothing, judge))
    for position in range(len(model.steps)):
        runner = engine.suffix(position, optimized=False)
        state = state_at(engine, position, samples[0])
        expected = engine.forward(samples[0])
        for name, array in zip(runner.outputs, runner.run(state), strict=True):
            # Identical operators on identical tensors; float16 is computed in float32 in between.
            loose = 2e-3 if array.dtype == np.float16 else 1e-5
            np.testing.assert_allclose(array, expected[name], rtol=loose, atol=loose)


def state_at(engine, position, inputs):
    values = dict(inputs)
    for index in range(position):
        values.update(engine.walker.execute(index, values, Assignment()))
    return values


SAMPLES = {
    "resized_dynamic": random_samples((1, 3, 6, 8), (1, 3, 10, 8), (1, 3, 8, 14)),
    "sequence_of_any_length": random_samples((1, 7, 4), (1, 9, 4), (1, 12, 4)),
    "of_any_rank": build.samples_of_any_rank(),
}

MODELS = {
    "mask_and_shape": build.mask_and_shape,
    "resized": build.resized,
    "resized_dynamic": lambda: build.resized(dynamic=True),
    "picked": build.picked,
    "conditional": build.conditional,
    "looped": build.looped,
    "scanned": build.scanned,
    "of_sequences": build.of_sequences,
    "of_strings": build.of_strings,
    "looped_sequence": build.looped_sequence,
    "with_functions": build.with_functions,
    "of_any_rank": build.of_any_rank,
    "with_empty_tensor": build.with_empty_tensor,
    "sequence_of_any_length": build.sequence_of_any_length,
    "tied_weights": build.tied_weights,
    "sparse_and_constants": build.sparse_and_constants,
}


def samples_of(name, proto):
    return SAMPLES.get(name) or inputs_for(proto, count=3)
