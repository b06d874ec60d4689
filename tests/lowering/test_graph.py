"""A calibrated model is lowered to the integer model that the vendor's converter writes."""

from __future__ import annotations

import numpy as np
import pytest

import hbdebug
from hbdebug.engine import Engine
from hbdebug.errors import UnsupportedError
from hbdebug.integer_run import run
from hbdebug.loading.integer import load_integer
from hbdebug.lowering.graph import lower
from hbdebug.model import Assignment
from hbdebug.quant import fake_quantize
from tests.lowering.vendor import FIXTURES, File, classifier_models, pair_models, pair_names

# Nodes that change the layout, which is made where it is needed; the converter moves and merges
# these. So axes are those of another layout here and there, constants of Slice included.
LAYOUT = {"Reshape", "Transpose"}
WITH_AXIS_OF_LAYOUT = {
    "Concat",
    "HzDequantize",
    "HzQuantize",
    "HzQuantizedReduceMax",
    "HzSQuantizedReduceSum",
    "Slice",
    "Split",
}

# What lower does not know yet, by the small models that hold it.
UNKNOWN = {
    "act_maxmin": "Min",
    "argmax": "ArgMax",
    "prep_bgr_full": "HzPreprocess",
    "prep_bgr_yuv444128": "HzPreprocess",
    "prep_gray": "HzPreprocess",
    "prep_rgb128": "HzPreprocess",
    "prep_rgb_bgr128": "HzPreprocess",
    "prep_rgb_video": "HzPreprocess",
    "resize": "Resize",
    "x_topk": "TopK",
}

# Their int16 tables differ from the vendor's by 1 for few inputs (docs/lowering.md): the
# attributes that differ, by node.
INT16_TABLES = {
    "act_hardsigmoid-bayes-e.i16": {"HardSigmoid_4": {"table_param"}},
    "x_prelu_lstmlike-bayes-e.i16": {
        "Tanh_5": {"table_param"},
        "Tanh_10": {"bias", "scale"},
    },
}

BAYES = [name for name in pair_names() if "bernoulli2" not in name]


def base(name):
    return name.partition("-")[0]


REFUSED = [name for name in BAYES if base(name) in UNKNOWN]
LOWERED = [name for name in BAYES if name not in REFUSED]


def lowered(proto):
    model = hbdebug.load(proto)
    return lower(model, Assignment.as_calibrated(model), shapes=File(proto).shapes)


def assert_same_nodes(ours, theirs, differing_attributes):
    mine, vendors = (
        {node.name: node for node in model.nodes if node.op_type not in LAYOUT}
        for model in (ours, theirs)
    )
    assert mine.keys() == vendors.keys()
    for name, vendor in vendors.items():
        node = mine[name]
        assert node.op_type == vendor.op_type, name
        names = {*node.attributes, *vendor.attributes}
        differing = {
            each
            for each in names
            if node.attributes.get(each) != vendor.attributes.get(each)
            and not (each == "axis" and vendor.op_type in WITH_AXIS_OF_LAYOUT)
        }
        assert differing == differing_attributes.get(name, set()), name


def assert_same_constants(ours, theirs):
    of_layout = {
        name for node in theirs.nodes if node.op_type in LAYOUT | {"Slice"} for name in node.inputs
    }
    for name, values in theirs.constants.items():
        if name not in of_layout:
            assert ours.constants[name].dtype == values.dtype, name
            assert np.array_equal(ours.constants[name], values), name


@pytest.mark.parametrize("name", LOWERED)
def test_a_small_model_has_the_vendors_nodes_and_constants(name):
    calibrated, quantized = pair_models(name)
    ours, theirs = lowered(calibrated), load_integer(quantized)

    assert_same_nodes(ours, theirs, INT16_TABLES.get(name, {}))
    assert_same_constants(ours, theirs)


@pytest.mark.parametrize("name", [name for name in LOWERED if name not in INT16_TABLES])
def test_a_small_model_computes_what_the_vendors_does(name):
    calibrated, quantized = pair_models(name)
    ours, theirs = lowered(calibrated), load_integer(quantized)
    random = np.random.default_rng(7)
    inputs = {
        spec.name: random.normal(size=spec.shape).astype(np.float32) for spec in theirs.inputs
    }

    found, expected = run(ours, inputs), run(theirs, inputs)

    assert found.keys() == expected.keys()
    for output, values in expected.items():
        assert np.array_equal(found[output], values), output


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_named(name):
    calibrated, _ = pair_models(name)

    with pytest.raises(UnsupportedError) as caught:
        lowered(calibrated)

    assert UNKNOWN[base(name)] in caught.value.message
    assert caught.value.where in {node.name for node in calibrated.graph.node}


def test_the_classifier_is_the_vendors():
    calibrated, quantized = classifier_models()
    ours, theirs = lowered(calibrated), load_integer(quantized)

    assert_same_nodes(ours, theirs, {})
    assert_same_constants(ours, theirs)


def test_every_tensor_of_the_classifier_is_the_vendors():
    calibrated, quantized = classifier_models()
    x = np.load(FIXTURES / "textline_cls" / "calib" / "x" / "1.npy")
    found, expected = {}, {}

    run(lowered(calibrated), {"x": x}, keep=found.__setitem__)
    run(load_integer(quantized), {"x": x}, keep=expected.__setitem__)

    # The reshapes around the last Add have other names.
    assert len(expected.keys() & found.keys()) == len(expected)
    for name, values in expected.items():
        assert np.array_equal(found[name], values), name


def test_without_points_every_node_stays_float():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)

    found = lower(model, Assignment(), shapes=File(calibrated).shapes)

    assert [node.name for node in found.nodes] == [node.name for node in model.nodes]
    weight = model.nodes[0].inputs[1]
    assert np.array_equal(found.constants[weight], model.constants["conv1_weights"])


def test_one_convolution_alone_gives_sums():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)
    points = [model.point_by_name[f"{name}_HzCalibration"] for name in ("x", "conv1_weights")]
    x = np.load(FIXTURES / "textline_cls" / "calib" / "x" / "1.npy")
    tensors = {}

    found = lower(model, Assignment.of(points), shapes=File(calibrated).shapes)
    run(found, {"x": x}, keep=tensors.__setitem__)

    kinds = [node.op_type for node in found.nodes[:5]]
    assert kinds == ["HzQuantize", "Transpose", "HzSQuantizedConv", "Transpose", "HzDequantize"]
    # The bias is rounded to a step of the sums, and float32 sums round besides.
    quantized = {
        point.input: fake_quantize(value, point.params)
        for point, value in (
            (points[0], x),
            (points[1], model.constants["conv1_weights"]),
        )
    }
    patch = quantized["x"][0, :, 1:4, 1:4]
    bias = model.constants["Conv@0_hz_bias"]
    expected = np.einsum("ochw,chw->o", quantized["conv1_weights"], patch) + bias
    assert np.allclose(
        tensors["conv2d_53.tmp_0_calibrated"][0, :, 1, 1], expected, rtol=0, atol=1e-3
    )


def test_a_quantized_weight_of_a_float_convolution_is_on_its_grid():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)
    point = model.point_by_name["conv1_weights_HzCalibration"]

    found = lower(model, Assignment.of([point]), shapes=File(calibrated).shapes)

    expected = fake_quantize(model.constants["conv1_weights"], point.params)
    assert found.nodes[0].op_type == "Conv"
    assert np.array_equal(found.constants[point.output], expected)


def test_an_int16_input_falls_back_where_the_chip_has_int8_only():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)
    as_calibrated = Assignment.as_calibrated(model)
    # What the last MaxPool reads: the GlobalAveragePool behind it has no point of its own.
    point = model.point_by_name["hardswish_17.tmp_0_HzCalibration"]
    before = model.point_by_name["conv2d_94.tmp_0_HzCalibration"]
    wide = as_calibrated.changed({each.name: each.params.to_int16() for each in (point, before)})
    x = np.load(FIXTURES / "textline_cls" / "calib" / "x" / "1.npy")
    tensors = {}

    found = lower(model, wide, shapes=File(calibrated).shapes)
    run(found, {"x": x}, keep=tensors.__setitem__)

    nodes = {node.name: node for node in found.nodes}
    assert nodes["Mul@26"].op_type == "HzLut2Layer"
    assert tensors["pool2d_9.tmp_0_quantized"].dtype == np.int16
    assert nodes["pool2d_9.tmp_0_Requantize"].attributes["bits"] == 8
    assert tensors["pool2d_10.tmp_0_quantized"].dtype == np.int8


def test_a_residual_is_added_in_float_if_the_sum_is_not_quantized():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)
    as_calibrated = Assignment.as_calibrated(model)
    narrow = as_calibrated.changed({"elementwise_add_0_HzCalibration": None})
    x = np.load(FIXTURES / "textline_cls" / "calib" / "x" / "1.npy")
    tensors = {}

    found = lower(model, narrow, shapes=File(calibrated).shapes)
    run(found, {"x": x}, keep=tensors.__setitem__)

    nodes = {node.name: node for node in found.nodes}
    assert nodes["Add@3"].op_type == "Add"
    assert nodes["Conv@11"].attributes["output_bit"] == 32
    first, second = (tensors[name] for name in nodes["Add@3"].inputs)
    assert np.array_equal(tensors["elementwise_add_0"], first + second)


def test_weights_are_int8():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)
    point = model.point_by_name["conv1_weights_HzCalibration"]
    wide = Assignment.as_calibrated(model).changed({point.name: point.params.to_int16()})

    with pytest.raises(UnsupportedError, match="int8 weights") as caught:
        lower(model, wide, shapes=File(calibrated).shapes)

    assert caught.value.where == "conv1_weights_HzCalibration"


def test_a_residual_in_int16_is_added_in_float():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)
    as_calibrated = Assignment.as_calibrated(model)
    point = model.point_by_name["conv2d_59.tmp_0_HzCalibration"]
    wide = as_calibrated.changed({point.name: point.params.to_int16()})

    found = lower(model, wide, shapes=File(calibrated).shapes)

    nodes = {node.name: node for node in found.nodes}
    assert nodes["Add@3"].op_type == "Add"
    assert nodes["Conv@11"].attributes["output_bit"] == 32


@pytest.mark.parametrize("seed", range(8))
def test_any_assignment_runs(seed):
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)
    random = np.random.default_rng(seed)
    some = Assignment.of(point for point in model.points if random.random() < 0.7)
    x = np.load(FIXTURES / "textline_cls" / "calib" / "x" / "1.npy")

    (scores,) = run(lower(model, some, shapes=File(calibrated).shapes), {"x": x}).values()

    # The model ends in a Softmax; float32 rounds its sum.
    assert scores.sum() == pytest.approx(1, abs=1e-6)


# Where the chip computes another function than the calibrated model: AveragePool divides by the
# whole window where padding is, HardSigmoid ignores its alpha.
OTHER_FUNCTION = {"act_hardsigmoid", "pools", "pools2"}


@pytest.mark.parametrize("name", [name for name in LOWERED if base(name) not in OTHER_FUNCTION])
def test_any_assignment_is_close_to_its_calibrated_form(name):
    proto, _ = pair_models(name)
    model = hbdebug.load(proto)
    engine = Engine(model, jobs=1)
    random = np.random.default_rng(5)
    inputs = {spec.name: random.normal(size=spec.shape).astype(np.float32) for spec in model.inputs}
    for share in (0.9, 0.6, 0.3):
        some = Assignment.of(point for point in model.points if random.random() < share)

        found = run(lower(model, some, shapes=File(proto).shapes), inputs)

        for output, expected in engine.forward(inputs, some).items():
            # A few steps of int8, which is 1/127 of the largest value; a node that is left out or
            # counted in wrong steps is off by far more.
            tolerance = 0.04 * np.abs(expected).max()
            assert np.abs(found[output].astype(float) - expected).max() <= tolerance, output


def test_other_marches_are_refused():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)

    with pytest.raises(UnsupportedError, match="bernoulli2"):
        lower(model, Assignment(), shapes={}, march="bernoulli2")


def test_a_shape_that_is_missing_is_named():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)

    with pytest.raises(UnsupportedError) as caught:
        lower(model, Assignment.as_calibrated(model), shapes={"x": (1, 3, 48, 192)})

    assert caught.value.where == "conv2d_53.tmp_0"
