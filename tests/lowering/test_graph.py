"""A calibrated model is lowered to the integer model that the vendor's converter writes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

import hbdebug
from hbdebug.analysis.ceilings import _integer_inputs
from hbdebug.engine import Engine
from hbdebug.errors import UnsupportedError
from hbdebug.integer_run import run
from hbdebug.loading.integer import load_integer
from hbdebug.lowering.graph import lower
from hbdebug.model import Assignment
from hbdebug.quant import fake_quantize
from tests.lowering.vendor import (
    FIXTURES,
    NETS,
    SMALL_MODELS,
    File,
    classifier_models,
    march_of,
    pair_models,
    pair_names,
)
from tests.models import CalibratedModel

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

# Their int16 tables differ from the vendor's by 1 for few inputs (docs/lowering.md): the
# attributes that differ, by node.
INT16_TABLES = {
    "act_hardsigmoid-bayes-e.i16": {"HardSigmoid_4": {"table_param"}},
    "act_maxmin-bayes-e.i16": {"Tanh_4": {"table_param"}},
    "x_prelu_lstmlike-bayes-e.i16": {
        "Tanh_5": {"table_param"},
        "Tanh_10": {"bias", "scale"},
    },
}
# In these the slope of the last line differs by 1, and no output does.
SAME_INT16_TABLES = {
    "argmax-bayes-e": {"Sigmoid_2": {"scale"}},
    "max_last-bayes-e": {"Sigmoid_1": {"scale"}},
    "min_last-bayes-e": {"Sigmoid_1": {"scale"}},
    "reductions-bayes-e": {"Sigmoid_1": {"scale"}},
    "topk-bayes-e": {"Sigmoid_3": {"scale"}},
}

PAIRS = [(archive, name) for archive in (SMALL_MODELS, NETS) for name in pair_names(archive)]


BAYES = [name for name in pair_names() if march_of(name) != "bernoulli2"]


def base(name):
    return name.partition("-")[0]


def lowered(proto, march="bayes-e"):
    model = hbdebug.load(proto)
    return lower(model, Assignment.as_calibrated(model), shapes=File(proto).shapes, march=march)


def random_inputs(specs, random):
    """Return an array for each input: pixels are int8, all others float32."""
    return {
        spec.name: random.integers(-128, 128, spec.shape).astype(np.int8)
        if spec.dtype == "int8"
        else random.normal(size=spec.shape).astype(np.float32)
        for spec in specs
    }


def assert_same_nodes(ours, theirs, differing_attributes):
    mine, vendors = (
        {node.name: node for node in model.nodes if node.op_type not in LAYOUT | {"Identity"}}
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


@pytest.mark.parametrize(("archive", "name"), PAIRS)
def test_a_small_model_has_the_vendors_nodes_and_constants(archive, name):
    calibrated, quantized = pair_models(name, archive)
    ours, theirs = lowered(calibrated, march_of(name)), load_integer(quantized)

    assert_same_nodes(ours, theirs, {**INT16_TABLES, **SAME_INT16_TABLES}.get(name, {}))
    assert_same_constants(ours, theirs)
    assert ours.inputs == theirs.inputs


@pytest.mark.parametrize(
    ("archive", "name"), [(archive, name) for archive, name in PAIRS if name not in INT16_TABLES]
)
def test_a_small_model_computes_what_the_vendors_does(archive, name):
    calibrated, quantized = pair_models(name, archive)
    ours, theirs = lowered(calibrated, march_of(name)), load_integer(quantized)
    inputs = random_inputs(theirs.inputs, np.random.default_rng(7))

    found, expected = run(ours, inputs), run(theirs, inputs)

    assert found.keys() == expected.keys()
    for output, values in expected.items():
        assert np.array_equal(found[output], values), output


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


def test_a_residual_is_added_to_sums_if_nothing_quantizes_them():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)
    as_calibrated = Assignment.as_calibrated(model)
    narrow = as_calibrated.changed({"elementwise_add_0_HzCalibration": None})
    x = np.load(FIXTURES / "textline_cls" / "calib" / "x" / "1.npy")
    tensors = {}

    found = lower(model, narrow, shapes=File(calibrated).shapes)
    run(found, {"x": x}, keep=tensors.__setitem__)

    nodes = {node.name: node for node in found.nodes}
    assert "Add@3" not in nodes
    assert nodes["Conv@11"].attributes["output_bit"] == 32
    assert tensors[nodes["Conv@11"].inputs[4]].dtype == np.int8
    assert tensors["elementwise_add_0_quantized"].dtype == np.int32
    # One of the residual is worth so many of the sums; the multiplier has 15 bits.
    attributes = nodes["Conv@11"].attributes
    factor = np.ldexp(np.array(attributes["e_scale"], float), attributes["e_shift"])
    residual = model.point_by_name["conv2d_59.tmp_0_HzCalibration"].params.scale
    assert np.allclose(factor * found.constants["Conv@11_x_scale"], residual, rtol=2.0**-15)


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
# whole window where padding is, HardSigmoid ignores its alpha. On bernoulli2, a Resize rounds down
# twice at positions of 8 bits, and a PRelu with a negative slope saturates on its way.
OTHER_FUNCTION = {"act_hardsigmoid", "pools", "pools2"}
OTHER_BERNOULLI2_FUNCTION = {"act_prelu-bernoulli2", "resize-bernoulli2"}
SAME_FUNCTION = [
    name
    for name in pair_names()
    if base(name) not in OTHER_FUNCTION and name not in OTHER_BERNOULLI2_FUNCTION
]


@pytest.mark.parametrize("name", SAME_FUNCTION)
def test_any_assignment_is_close_to_its_calibrated_form(name):
    proto, _ = pair_models(name)
    model = hbdebug.load(proto)
    engine = Engine(model, jobs=1)
    random = np.random.default_rng(5)
    inputs = random_inputs(model.inputs, random)
    if base(name).startswith("prep"):  # Pixels, which come in as integers if they are quantized.
        inputs = {"x": random.integers(-128, 128, inputs["x"].shape).astype(np.float32)}
    for share in (0.9, 0.6, 0.3):
        some = Assignment.of(point for point in model.points if random.random() < share)

        integers = lower(model, some, shapes=File(proto).shapes, march=march_of(name))
        found = run(integers, _integer_inputs(integers, inputs))

        for output, expected in engine.forward(inputs, some).items():
            # A few steps of int8, which is 1/127 of the largest value, and what a point between
            # float nodes clips, which is not there in integers; a node that is left out or
            # counted in wrong steps is off by far more.
            tolerance = 0.05 * np.abs(expected).max()
            assert np.abs(found[output].astype(float) - expected).max() <= tolerance, output


def test_other_marches_are_refused():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)

    with pytest.raises(UnsupportedError, match="nash-e"):
        lower(model, Assignment(), shapes={}, march="nash-e")


def test_int16_is_refused_where_there_is_none():
    calibrated, _ = pair_models("conv_basic-bayes-e.i16")

    with pytest.raises(UnsupportedError, match="no int16 on bernoulli2") as caught:
        lowered(calibrated, "bernoulli2")

    assert caught.value.where == "x_HzCalibration"


def test_indices_that_int8_cannot_hold_are_refused():
    builder = CalibratedModel()
    x = builder.point(builder.input("x", (1, 129, 2, 2)))
    builder.output(builder.node("ArgMax", [x], name="many", axis=1), TensorProto.INT64)
    model = hbdebug.load(builder.proto())
    shapes = {x: (1, 129, 2, 2), "x": (1, 129, 2, 2), "many_out": (1, 1, 2, 2)}

    with pytest.raises(UnsupportedError, match="129 channels") as caught:
        lower(model, Assignment.as_calibrated(model), shapes=shapes)

    assert caught.value.where == "many"


def test_a_minimum_of_two_widths_is_refused():
    builder = CalibratedModel()
    shape = (1, 2, 4, 4)
    narrow = builder.point(builder.input("x", shape))
    wide = builder.point(builder.input("y", shape), dtype="int16")
    builder.output(builder.node("Min", [narrow, wide], name="least"))
    model = hbdebug.load(builder.proto())
    shapes = dict.fromkeys(("x", "y", narrow, wide, "least_out"), shape)

    with pytest.raises(UnsupportedError, match="int8 and int16") as caught:
        lower(model, Assignment.as_calibrated(model), shapes=shapes)

    assert caught.value.where == "least"


def test_a_shape_that_is_missing_is_named():
    calibrated, _ = classifier_models()
    model = hbdebug.load(calibrated)

    with pytest.raises(UnsupportedError) as caught:
        lower(model, Assignment.as_calibrated(model), shapes={"x": (1, 3, 48, 192)})

    assert caught.value.where == "conv2d_53.tmp_0"
