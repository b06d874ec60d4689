"""``--quantized``: what the chip computes, measured beside the ceilings of the calibrated model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from hbdebug.analysis.ceilings import _integer_inputs
from hbdebug.engine import Engine
from hbdebug.errors import UsageError
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading import load
from hbdebug.loading.integer import load_integer
from hbdebug.model import IntegerModel
from hbdebug.pipeline import sensitivity
from hbdebug.samples import TensorSpec
from tests import models
from tests.command import hbdebug

FOLDER = Path(__file__).parents[1] / "fixtures/textline_cls"
CALIBRATED = FOLDER / "cls_calibrated_model.onnx"
QUANTIZED = FOLDER / "cls_quantized_model.onnx"


def test_the_integer_model_is_measured_against_the_float_baseline(tmp_path):
    arguments = ("sensitivity", CALIBRATED, FOLDER / "calib", "-o", tmp_path, "--samples", "3")
    done = hbdebug(
        *arguments, "--no-split", "--no-suggest", "--format", "json", "--quantized", QUANTIZED
    )

    (integer,) = [item for item in done.json["ceilings"] if item["fidelity"] == "integer"]
    (values,) = integer["outputs"].values()
    cosines = []
    model, runner = load(CALIBRATED), IntegerRunner(load_integer(QUANTIZED))
    for index in range(3):
        inputs = {"x": np.load(FOLDER / f"calib/x/{index}.npy")}
        (a,) = Engine(model, jobs=1).forward(inputs).values()
        (b,) = runner.forward(inputs).values()
        wide = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
        norms = np.linalg.norm(wide[0]) * np.linalg.norm(wide[1])
        cosines.append(float(wide[0] @ wide[1] / norms))
    assert integer["name"] == "as_calibrated"
    # Two ways to add up two products in float64.
    assert values["cosine_similarity"] == pytest.approx(np.mean(cosines), abs=1e-12)
    assert (
        f"In integers, as the chip computes, the model is at cosine {np.mean(cosines):.4f}"
        in (done.json["verdict"])
    )


def test_a_model_of_another_network_is_refused(tmp_path):
    b = models.CalibratedModel()
    b.output(b.conv(b.input("x", (1, 3, 48, 192)), (3, 2), "other"))
    onnx.save(b.proto(), tmp_path / "other_calibrated_model.onnx")

    done = hbdebug(
        *("sensitivity", tmp_path / "other_calibrated_model.onnx", FOLDER / "calib"),
        *("-o", tmp_path / "out", "--samples", "1", "--quantized", QUANTIZED),
    )

    assert done.code == 2
    assert "same conversion" in done.err


def test_it_is_not_mixed_with_an_inner_output(tmp_path):
    done = hbdebug(
        *("sensitivity", CALIBRATED, FOLDER / "calib", "-o", tmp_path),
        *("--quantized", QUANTIZED, "--output-node", "Conv@0"),
    )

    assert done.code == 2
    assert "not both" in done.err


def integer_model(dtype, shape):
    return IntegerModel(
        path="q.onnx",
        sha256="",
        kind="",
        producer="",
        opset=11,
        inputs=(TensorSpec(name="x", dtype=dtype, shape=shape),),
        outputs=(),
        steps=(),
        constants={},
    )


def test_an_image_input_becomes_int8_in_the_layout_of_the_integer_model():
    image = np.arange(-12, 12, dtype=np.float32).reshape(1, 3, 2, 4)

    same = _integer_inputs(integer_model("int8", (1, 3, 2, 4)), {"x": image})["x"]
    moved = _integer_inputs(integer_model("int8", (1, 2, 4, 3)), {"x": image})["x"]

    assert same.dtype == moved.dtype == np.int8
    np.testing.assert_array_equal(same, image)
    np.testing.assert_array_equal(moved, image.transpose(0, 2, 3, 1))


def test_values_that_int8_cannot_hold_are_refused():
    with pytest.raises(UsageError, match="cannot hold"):
        _integer_inputs(integer_model("int8", (1, 2)), {"x": np.array([[0.5, 1]], np.float32)})


def ceilings_of(tmp_path, *options):
    arguments = ("sensitivity", CALIBRATED, FOLDER / "calib", "-o", tmp_path, "--samples", "2")
    done = hbdebug(*arguments, "--no-split", "--no-suggest", "--format", "json", *options)
    assert done.code == 0, done.err
    return done.json


def test_integers_derived_here_give_what_the_vendors_quantized_model_gives(tmp_path):
    ours, theirs = (
        next(item for item in record["ceilings"] if item["fidelity"] == "integer")
        for record in (
            ceilings_of(tmp_path, "--integers"),
            ceilings_of(tmp_path, "--quantized", QUANTIZED),
        )
    )

    assert ours["name"] == "as_calibrated"
    assert ours == theirs


def test_the_suggestion_is_measured_in_integers_too(tmp_path):
    proto = models.one_coarse_node()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=8))

    result = sensitivity(proto, folder, integers=True, target=0.999)

    assert result.suggestion.nodes == {"b": "int16"}
    found = {(item.name, item.fidelity): item.outputs["head_out"] for item in result.ceilings}
    before = found["as_calibrated", "integer"]["cosine_similarity"]
    after = found["as_suggested", "integer"]["cosine_similarity"]
    assert found["as_suggested", "calibrated"] == result.suggestion.curve[-1].outputs["head_out"]
    assert before < 0.995
    assert after > 0.999


def test_a_march_without_integers_is_said_and_the_rest_is_measured(tmp_path):
    b = models.CalibratedModel()
    b.output(b.conv(b.input("x", (1, 3, 10, 10)), (3, 4), "conv"))
    proto = b.proto()
    folder = models.save_samples(tmp_path / "calib", models.inputs_for(proto, count=2))

    result = sensitivity(proto, folder, integers=True, suggest=False, march="nash-e")

    assert not [item for item in result.ceilings if item.fidelity == "integer"]
    (said,) = [text for text in result.warnings if "was not measured in integers" in text]
    assert "nash-e" in said
    assert result.nodes
