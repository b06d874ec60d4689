"""The verdict says what the ceilings show, in words a user can act on."""

from __future__ import annotations

import math

import pytest

from hbdebug.analysis.ceilings import NAMES, assignments, verdict
from hbdebug.loading import load
from hbdebug.results import Ceiling
from tests import models


def ceilings(**cosines):
    return [
        Ceiling(
            name=name,
            fidelity="calibrated",
            outputs={"good": {"cosine_similarity": 1.0}, "y": {"cosine_similarity": cosines[name]}},
        )
        for name in NAMES
    ]


CLASSIFIER = {
    "as_calibrated": 0.862,
    "weights_only": 0.996,
    "activations_only": 0.866,
    "all_int16": 0.882,
    "int16_where_allowed": 0.872,
}
RECOGNIZER = {
    "as_calibrated": 0.867,
    "weights_only": 0.9956,
    "activations_only": 0.848,
    "all_int16": 0.9956,
    "int16_where_allowed": 0.9855,
}


def test_thresholds_that_clip_are_not_cured_by_choosing_nodes():
    """The classifier was calibrated on noise; int16 at the same thresholds repairs nothing."""
    text = verdict(ceilings(**CLASSIFIER), 0.999, "bayes-e")

    assert text.startswith("Activation quantization causes 97% of the loss")
    assert "all-int16 does not repair it" in text
    assert "calibration data" in text
    assert "not at single nodes" in text


def test_int16_repairs_activations_and_the_weights_limit_the_rest():
    text = verdict(ceilings(**RECOGNIZER), 0.999, "bayes-e")

    assert text.startswith("Activation quantization causes 97% of the loss")
    assert "choosing nodes can help" in text
    assert "weight-sensitive nodes on the CPU" in text
    assert "bayes-e allows int16 only in part, which leaves cosine 0.9855" in text


def test_int16_that_reaches_the_target_says_so():
    text = verdict(
        ceilings(**RECOGNIZER | {"all_int16": 0.9999, "int16_where_allowed": 0.9998}),
        0.999,
        "bayes-e",
    )

    assert "all-int16 repairs it (cosine 0.9999): choosing nodes can help" in text
    assert "only in part" not in text


def test_weights_that_cause_the_loss_are_named():
    text = verdict(
        ceilings(
            as_calibrated=0.9,
            weights_only=0.905,
            activations_only=0.9995,
            all_int16=0.904,
            int16_where_allowed=0.904,
        ),
        0.999,
        "bayes-e",
    )

    assert text.startswith("Weight quantization causes 99% of the loss")
    assert "int8 weights cause it" in text


def test_a_shared_loss_names_both_shares():
    text = verdict(
        ceilings(**RECOGNIZER | {"weights_only": 0.9, "activations_only": 0.9}), 0.999, "bayes"
    )

    assert text.startswith("Weights (50%) and activations (50%) share the loss")


def test_a_model_that_meets_the_target_is_said_to():
    text = verdict(ceilings(**RECOGNIZER | {"as_calibrated": 0.9995}), 0.999, "bayes-e")

    assert "little is left to gain" in text


def test_undefined_outputs_point_at_the_float_model():
    text = verdict(
        [
            Ceiling(
                name=name, fidelity="calibrated", outputs={"y": {"cosine_similarity": math.nan}}
            )
            for name in NAMES
        ],
        0.999,
        "bayes-e",
    )

    assert "float model itself" in text


def test_every_ceiling_quantizes_what_its_name_says():
    model = load(models.residual())

    found = assignments(model, "bayes-e")

    assert tuple(found) == NAMES
    roles = {
        name: {model.point_by_name[point].role for point in assignment}
        for name, assignment in found.items()
    }
    assert roles["weights_only"] == {"weight"}
    assert roles["activations_only"] == {"activation"}
    everything = set(found["as_calibrated"])
    assert set(found["weights_only"]) | set(found["activations_only"]) == everything
    assert set(found["all_int16"]) == everything
    for name, params in found["all_int16"].items():
        wanted = "int16" if model.point_by_name[name].role == "activation" else "int8"
        assert params.dtype == wanted


@pytest.mark.parametrize("march", ["bernoulli2"])
def test_a_march_without_int16_leaves_everything_as_calibrated(march):
    model = load(models.residual())

    found = assignments(model, march)

    assert found["int16_where_allowed"].key == found["as_calibrated"].key
