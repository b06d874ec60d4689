"""QDQ models that ONNX Runtime's static quantizer makes of real float models."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxruntime.quantization import QuantType

from hbdebug.engine import Engine
from hbdebug.loading import load
from hbdebug.loading.qdq import ONLY_INTEGERS
from hbdebug.model import Assignment
from hbdebug.pipeline import info, sensitivity
from hbdebug.recording import JOURNAL
from tests.loading.golden import FIXTURES
from tests.models import save_samples
from tests.onnxruntime_quantizer import attention, float_run, quantize, recurrent, samples_for
from tests.qdq_models import as_pairs

VERSION = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
CLASSIFIER = FIXTURES / "textline_cls"


def classifier():
    proto = onnx.load(str(CLASSIFIER / "cls_original_float_model.onnx"))
    return onnx.version_converter.convert_version(proto, 13)


def classifier_samples(count=3):
    files = sorted((CLASSIFIER / "calib" / "x").glob("*.npy"))[:count]
    return [{"x": np.load(file)} for file in files]


def made(network):
    """Return a float model and samples of it."""
    proto = {"classifier": classifier, "attention": attention, "recurrent": recurrent}[network]()
    return proto, classifier_samples() if network == "classifier" else samples_for(proto)


SETTINGS = {
    "int8": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8},
    "uint8_per_channel": {"per_channel": True},
    "pairs_on_weights": {
        "per_channel": True,
        "extra_options": {"AddQDQPairToWeight": True, "DedicatedQDQPair": True},
    },
    "contrib_16_bit": {
        "activation_type": QuantType.QUInt16,
        "weight_type": QuantType.QInt8,
        "extra_options": {"UseQDQContribOps": True},
    },
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("network", ["classifier", "attention", "recurrent"])
def test_all_points_on_equals_onnxruntime_bit_for_bit(network, settings, tmp_path):
    proto, samples = made(network)
    if network == "attention" and "per_channel" in settings and VERSION < (1, 18):
        pytest.skip("ONNX Runtime 1.17 cannot quantize one-dimensional constants per channel")
    quantized = quantize(proto, samples, tmp_path, **settings)
    model = load(quantized)
    engine = Engine(model, jobs=1)

    for sample in samples:
        outputs = engine.forward(sample, Assignment.as_calibrated(model))
        for name, expected in float_run(quantized, sample).items():
            np.testing.assert_array_equal(outputs[name], expected)


@pytest.mark.parametrize("network", ["classifier", "attention", "recurrent"])
def test_float_baseline_is_the_float_model_although_the_quantizer_took_activations_out(
    network, tmp_path
):
    proto, samples = made(network)
    settings = {"extra_options": {"AddQDQPairToWeight": True, "QuantizeBias": False}}
    quantized = quantize(proto, samples, tmp_path, **settings)
    left = {node.op_type for node in quantized.graph.node}
    assert not left & {"Relu", "Clip"}
    engine = Engine(load(quantized), jobs=1)

    for sample in samples:
        outputs = engine.forward(sample)
        for name, expected in float_run(proto, sample).items():
            # The quantizer works on an optimized graph, in which batch normalization is folded
            # into weights: float32 noise of some dozen layers.
            np.testing.assert_allclose(outputs[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < 21, reason="int16 pairs of ai.onnx came with opset 21"
)
def test_ranking_is_that_of_the_calibrated_model_of_the_same_network():
    path = CLASSIFIER / "cls_calibrated_model.onnx"
    calibrated = load(path)
    pairs = as_pairs(onnx.load(str(path)), calibrated)
    found = [
        sensitivity(model, CLASSIFIER / "calib", samples=2, suggest=False, jobs=1, exact=True)
        for model in (path, pairs)
    ]

    one, two = found
    assert [node.name for node in two.nodes] == [node.name for node in one.nodes]
    assert [node.alone for node in two.nodes] == [node.alone for node in one.nodes]
    # Constants that are added are weights here, and activations to the vendor; so ceilings that
    # ask for roles are others.
    assert two.ceilings[0].outputs == one.ceilings[0].outputs


def test_three_stages_of_a_model_trained_with_fake_quantization_rank_alike(tmp_path):
    stages = ["original_float", "optimized_float", "calibrated"]
    paths = [FIXTURES / "qat" / f"qat_{stage}_model.onnx" for stage in stages]
    models = [load(path) for path in paths]
    assert [model.kind for model in models] == ["QDQ", "QDQ", "HMCT calibrated"]
    # The converter's points are what the pairs were, in number, grid and place.
    for model in models[:2]:
        for mine, theirs in zip(model.points, models[2].points, strict=True):
            assert mine.role == theirs.role
            assert mine.params.dtype == theirs.params.dtype
            np.testing.assert_array_equal(mine.params.scale, theirs.params.scale)
            # The file holds thresholds in float32.
            np.testing.assert_allclose(mine.params.threshold, theirs.params.threshold, rtol=1e-7)

    random = np.random.default_rng(2)
    samples = [{"x": random.normal(0, 1, (1, 3, 16, 16)).astype(np.float32)} for _ in range(3)]
    calib = save_samples(tmp_path, samples)
    found = [sensitivity(path, calib, suggest=False, jobs=1, exact=True) for path in paths]

    for result in found[:2]:
        for mine, theirs in zip(result.nodes, found[2].nodes, strict=True):
            assert (mine.name, mine.alone) == (theirs.name, theirs.alone)


EXPORTS = FIXTURES / "exports"


@pytest.mark.parametrize(
    "name", ["torch_fbgemm", "torch_qnnpack", "nncf_mixed", "nncf_performance"]
)
def test_what_other_exporters_write_equals_onnxruntime_bit_for_bit(name):
    proto = onnx.load(str(EXPORTS / f"{name}.onnx"))
    model = load(proto)
    engine = Engine(model, jobs=1)
    assert len(model.points) >= 7
    assert {node.op_type for node in model.nodes} >= {"Conv", "Gemm"}

    random = np.random.default_rng(0)
    for _ in range(3):
        sample = {"x": random.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)}
        outputs = engine.forward(sample, Assignment.as_calibrated(model))
        for output, expected in float_run(proto, sample).items():
            np.testing.assert_array_equal(outputs[output], expected)


def test_seven_bits_of_pytorch_are_limits_of_points_and_its_weights_are_in_float():
    model = load(EXPORTS / "torch_fbgemm.onnx")
    activations = [point for point in model.points if point.role == "activation"]
    assert {(point.params.qmin, point.params.qmax) for point in activations} == {(0, 127)}
    assert all(point.enabled for point in model.points)
    assert "Clip" not in {node.op_type for node in model.nodes}


def test_the_float_model_of_nncf_supplies_its_weights_and_corrected_biases_are_told(tmp_path):
    random = np.random.default_rng(0)
    samples = [{"x": random.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]

    result = sensitivity(
        EXPORTS / "nncf_mixed.onnx",
        save_samples(tmp_path, samples),
        float_model=EXPORTS / "float.onnx",
        suggest=False,
    )

    assert any("3 of 3 stored weights" in note for note in result.notes)
    assert all(node.weights for node in result.nodes if node.op_type in {"Conv", "Gemm"})


def test_weights_in_integers_are_said_to_be_unmeasurable(tmp_path):
    proto = attention()
    samples = samples_for(proto)
    quantized = quantize(proto, samples, tmp_path)
    result = sensitivity(quantized, save_samples(tmp_path / "calib", samples), suggest=False)

    stored = [item for item in result.not_analysed if item.reason == ONLY_INTEGERS]
    weights = [point for point in load(quantized).points if point.role == "weight"]
    assert weights
    assert any("--float" in text and str(len(weights)) in text for text in result.warnings)
    assert not stored
    assert {item.name for item in result.ceilings}.isdisjoint({"weights_only", "activations_only"})
    assert "the weights' own cannot" in result.verdict or "close to the float" in result.verdict
    assert all(node.weights is None for node in result.nodes)


@pytest.mark.parametrize("network", ["classifier", "attention", "recurrent"])
def test_the_float_model_supplies_the_weights_and_is_the_baseline(network, tmp_path):
    proto, samples = made(network)
    quantized = quantize(proto, samples, tmp_path)
    stored = sum(point.role == "weight" for point in load(quantized).points)

    model = load(quantized, float_model=proto)
    assert all(point.enabled for point in model.points)
    listed = info(quantized, float_model=proto).points
    assert all(point.original for point in listed if point.role == "weight")
    calib = save_samples(tmp_path / "calib", samples)
    result = sensitivity(quantized, calib, float_model=proto, suggest=False)

    said = " ".join(result.notes)
    assert f"{stored} of {stored} stored weights" in said
    assert "the float baseline is the float model" in said
    assert {"weights_only", "activations_only"} <= {item.name for item in result.ceilings}
    assert any(node.weights is not None for node in result.nodes)


def test_another_float_model_is_told(tmp_path):
    proto = attention()
    samples = samples_for(proto)
    quantized = quantize(proto, samples, tmp_path)
    other = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in other.graph.initializer:
        if tensor.name == "wide_w":
            values = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values[::-1].copy(), tensor.name))

    calib = save_samples(tmp_path / "calib", samples)
    result = sensitivity(quantized, calib, float_model=other, suggest=False, split=False)

    said = " ".join(result.warnings)
    assert "the float baseline is NOT the float model" in said
    assert "without their original values: wide_w" in said


def test_a_journal_of_another_float_model_is_not_resumed(tmp_path):
    proto, samples = made("attention")
    quantized = quantize(proto, samples, tmp_path)
    other = onnx.ModelProto.FromString(proto.SerializeToString())
    weight = max(other.graph.initializer, key=lambda item: int(np.prod(item.dims)))
    # Smaller than a step: it rounds to the integers that the file holds, as originals must.
    array = onnx.numpy_helper.to_array(weight)
    weight.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.0001), weight.name))
    calib = save_samples(tmp_path / "calib", samples)
    keys = []
    for given in (proto, proto, other, None):
        sensitivity(
            quantized, calib, suggest=False, journal_folder=tmp_path / "out", float_model=given
        )
        keys.append((tmp_path / "out" / JOURNAL).read_text().split("\n")[0])

    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
