"""Original weights that are not there, and float models that are refused."""

from __future__ import annotations

import time

import numpy as np
import pytest
from onnx import helper, numpy_helper

from hbdebug.errors import ModelError
from hbdebug.loading.originals import match_originals
from hbdebug.loading.protobuf import read_model
from tests.loading.originals import (
    CLASSIFIER,
    NETWORKS,
    FloatModel,
    as_file,
    assert_found,
    attention_network,
    quantized_once,
    renamed,
    residual_network,
    rounded,
    shuffled,
    to_bytes,
    twin_branches,
)
from tests.loading.qdq_twin import twin

# What is refused.


@pytest.mark.parametrize("settings", ["per tensor", "per channel", "int4"])
@pytest.mark.parametrize("network", ["residual", "attention"])
def test_weights_of_another_training_are_refused_with_the_numbers(
    network, settings, cache, tmp_path_factory, tmp_path
):
    qdq, _ = quantized_once(cache, tmp_path_factory, network, settings)
    other = NETWORKS[network]()
    random = np.random.default_rng(77)
    for item in other.graph.initializer:
        values = numpy_helper.to_array(item)
        if values.dtype == np.float32 and values.ndim:
            # Another draw, around zero, so that no value is near its old one.
            values = random.normal(0, values.std(), values.shape).astype(np.float32)
            item.CopyFrom(numpy_helper.from_array(values, item.name))
    model, wanted = twin(qdq)

    originals = match_originals(model, wanted, as_file(other, tmp_path))

    large = [name for name in wanted if model.constants[name].size >= 64]
    assert large
    assert not set(large) & originals.found.keys()
    for name in large:
        assert "differs too much (cosine " in originals.unmatched[name]
        assert "is it the model that was quantized?" in originals.unmatched[name]


def test_factors_around_one_are_told_from_those_of_another_training(
    cache, tmp_path_factory, tmp_path
):
    """Their cosine is near 1 whatever they belong to, but they are not on the stored grid."""
    qdq, golden = quantized_once(cache, tmp_path_factory, "attention", "per tensor")
    other = attention_network()
    random = np.random.default_rng(78)
    for item in other.graph.initializer:
        values = numpy_helper.to_array(item)
        if values.shape == (16,) and values.mean() > 0.7:
            values = random.normal(1, 0.2, values.shape).astype(np.float32)
            item.CopyFrom(numpy_helper.from_array(values, item.name))
    model, wanted = twin(qdq)
    factors = {
        name
        for name in wanted
        if model.constants[name].shape == (16,) and model.constants[name].mean() > 0.7
    }
    assert len(factors) == 6

    originals = match_originals(model, wanted, as_file(other, tmp_path))

    assert originals.unmatched.keys() == factors
    for name in originals.found:
        right = golden[name.removesuffix("_quantized")]
        np.testing.assert_array_equal(originals.found[name], right)


def test_weights_that_were_trained_further_are_found_and_the_difference_is_told(
    cache, tmp_path_factory, tmp_path
):
    qdq, golden = quantized_once(cache, tmp_path_factory, "branches", "per channel")
    other = renamed(twin_branches())
    random = np.random.default_rng(79)
    for item in other.graph.initializer:
        values = numpy_helper.to_array(item)
        values = values + random.normal(0, 0.05 * values.std(), values.shape).astype(np.float32)
        item.CopyFrom(numpy_helper.from_array(values, item.name))
    model, wanted = twin(qdq)

    originals = match_originals(model, wanted, as_file(other, tmp_path))

    weights = [name for name in wanted if model.constants[name].ndim == 4]
    assert len(weights) == 6
    for name in weights:
        right = golden[name.removesuffix("_quantized")]
        # The noise is 0.05 of the spread, and weights of this spread are at a distance of 1.4.
        distance = np.linalg.norm(originals.found[name] - right) / np.linalg.norm(right)
        assert 0.02 < distance < 0.1
        assert "% of the values are within a step of the stored ones" in originals.source[name]


def test_a_weight_of_a_shape_that_the_float_model_lacks_says_so(tmp_path):
    b = FloatModel()
    b.finish(b.conv(b.input("x", (1, 3, 8, 8)), 3, 4), (1, 4, 8, 8))
    model, wanted, _ = rounded(b.proto(), to_bytes)
    b = FloatModel()
    b.finish(b.conv(b.input("x", (1, 3, 8, 8)), 3, 4, kernel=1), (1, 4, 8, 8))

    originals = match_originals(model, wanted, as_file(b.proto(), tmp_path))

    expected = "the float model has no weight like this 4x3x3x3 of Conv"
    assert originals.unmatched["c0"] == expected


def test_one_of_several_alike_is_not_guessed(tmp_path):
    """Where places differ and values are few, what fits equally well is left alone."""
    b = FloatModel()
    x = b.input("x", (1, 8))
    for _ in range(2):
        x = b.node("Sigmoid", b.node("Mul", x, b.constant(f"m{len(b.nodes)}", np.float32(0.5))))
    b.finish(b.node("MatMul", x, b.normal(8, 3)), (1, 3))
    model, _, _ = rounded(b.proto(), to_bytes)
    other = FloatModel()
    x = other.input("x", (1, 8))
    x = other.node("MatMul", x, other.normal(8, 8, mean=5))
    x = other.node("Mul", x, other.constant("half", np.float32(0.51)))
    x = other.node("MatMul", x, other.normal(8, 4, mean=5))
    other.finish(other.node("MatMul", x, other.normal(4, 3, mean=5)), (1, 3))

    originals = match_originals(model, ["m0"], as_file(other.proto(), tmp_path))

    assert "none is close enough to be recognized" in originals.unmatched["m0"]


def test_a_quantized_model_in_the_float_models_place_is_refused(cache, tmp_path_factory, tmp_path):
    qdq, _ = quantized_once(cache, tmp_path_factory, "branches", "per tensor")
    model, wanted = twin(qdq)
    path = as_file(qdq, tmp_path)

    with pytest.raises(ModelError) as caught:
        match_originals(model, wanted, path)

    assert str(path) in str(caught.value)
    assert "is no float model: it holds DequantizeLinear and QuantizeLinear" in str(caught.value)
    assert "Give the float ONNX file that was quantized" in str(caught.value)


def test_a_calibrated_model_in_the_float_models_place_is_refused(cache, tmp_path_factory):
    qdq, _ = quantized_once(cache, tmp_path_factory, "branches", "per tensor")
    model, wanted = twin(qdq)

    with pytest.raises(ModelError, match="is no float model: it holds HzCalibration"):
        match_originals(model, wanted, CLASSIFIER / "cls_calibrated_model.onnx")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("attention", "its input x is 1x6, and input x of the quantized model 1x3x8x8"),
        (
            "residual",
            "its output output0 is 1x10, and output output0 of the quantized model 1x2x8x8",
        ),
    ],
)
def test_another_network_in_the_float_models_place_is_refused(
    network, message, cache, tmp_path_factory, tmp_path
):
    qdq, _ = quantized_once(cache, tmp_path_factory, "branches", "per tensor")
    model, wanted = twin(qdq)

    with pytest.raises(ModelError, match=message):
        match_originals(model, wanted, as_file(NETWORKS[network](), tmp_path))


def test_a_file_that_was_read_is_not_changed(cache, tmp_path_factory, tmp_path):
    qdq, _ = quantized_once(cache, tmp_path_factory, "residual", "per tensor")
    model, wanted = twin(qdq)
    file = read_model(as_file(residual_network(), tmp_path))
    before = file.proto.SerializeToString(deterministic=True)
    stored = {name: values.copy() for name, values in model.constants.items()}

    originals = match_originals(model, wanted, file)

    assert originals.found.keys() == set(wanted)
    assert file.proto.SerializeToString(deterministic=True) == before
    for name, values in stored.items():
        np.testing.assert_array_equal(model.constants[name], values)


# Float models in every condition.


def two_inputs(names):
    """Two inputs that are treated differently, in the order of their names given."""
    b = FloatModel(6)
    for name in names:
        b.input(name, (1, 8))
    weights = [b.normal(8, 8) for _ in range(2)]
    biases = [b.normal(8) for _ in range(2)]
    halves = [
        b.node("Add", b.node("MatMul", name, weight), bias)
        for name, weight, bias in zip(("left", "right"), weights, biases, strict=True)
    ]
    b.finish(b.node("Concat", *halves, axis=1), (1, 16))
    return b.proto()


def test_inputs_in_another_order_are_told_by_their_names(tmp_path):
    model, wanted, golden = rounded(two_inputs(["left", "right"]), to_bytes)

    file = as_file(two_inputs(["right", "left"]), tmp_path)

    originals = assert_found(model, wanted, golden, file)
    assert all("at the same place in both graphs" in text for text in originals.source.values())


@pytest.mark.parametrize(
    "value",
    [
        {"value_float": 0.5},
        {"value": numpy_helper.from_array(np.asarray(0.5, np.float32))},
        {"value_floats": [0.5]},
    ],
)
def test_constant_nodes_hold_their_value_in_any_attribute(value, tmp_path):
    def network():
        b = FloatModel(7)
        x = b.input("x", (1, 8))
        b.constant("half", np.asarray(0.5, np.float32))
        b.finish(
            b.node("MatMul", b.node("Sigmoid", b.node("Mul", x, "half")), b.normal(8, 3)), (1, 3)
        )
        return b.proto()

    model, wanted, golden = rounded(network(), to_bytes)
    other = network()
    del other.graph.initializer[0]
    other.graph.node.insert(0, helper.make_node("Constant", [], ["half"], **value))

    originals = match_originals(model, wanted, as_file(renamed(other), tmp_path))

    assert not originals.unmatched
    assert originals.found["half"].shape == ()
    assert originals.found["half"] == golden["half"]


def test_a_constant_of_strings_is_passed_over(tmp_path):
    model, wanted, golden = rounded(twin_branches(), to_bytes)
    other = twin_branches()
    other.graph.node.append(helper.make_node("Constant", [], ["s"], value_strings=["a", "b"]))

    assert_found(model, wanted, golden, as_file(other, tmp_path))


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 3e38])
def test_values_that_are_no_weights_are_refused(value, tmp_path):
    model, wanted, golden = rounded(residual_network(), to_bytes)
    other = residual_network()
    # The weight of the second convolution, and what its BatchNormalization divides by.
    for index in (5, 9):
        item = other.graph.initializer[index]
        values = np.full_like(numpy_helper.to_array(item), value)
        item.CopyFrom(numpy_helper.from_array(values, item.name))

    originals = match_originals(model, wanted, as_file(other, tmp_path))

    assert originals.unmatched.keys() == {"c5", "c9"}
    for name, values in originals.found.items():
        np.testing.assert_array_equal(values, golden[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda graph: (
                graph.node[-2].attribute[0].CopyFrom(helper.make_attribute("transB", "yes"))
            ),
            "attribute transB is no number",
        ),
        (lambda graph: graph.node[3].input.__setitem__(0, graph.node[-2].output[0]), "has a cycle"),
        (lambda graph: graph.node[3].input.__setitem__(0, "nowhere"), "which nothing makes"),
    ],
)
def test_a_damaged_float_model_is_refused_with_its_name(change, message, tmp_path):
    model, wanted, _ = rounded(residual_network(), to_bytes)
    other = residual_network()
    change(other.graph)
    path = as_file(other, tmp_path)

    with pytest.raises(ModelError, match=message) as caught:
        match_originals(model, wanted, path)

    assert str(path) in str(caught.value)


@pytest.mark.slow
def test_a_thousand_nodes_with_100_mb_of_weights_take_seconds(tmp_path):
    """All convolutions are of one shape, so each could be any other."""

    def network():
        b = FloatModel(10)
        x = b.conv(b.input("x", (1, 3, 8, 8)), 3, 104)
        for _ in range(250):
            y = b.node("Relu", b.norm(b.conv(x, 104, 104), 104))
            x = b.node("Add", x, y)
        b.finish(b.conv(x, 104, 2), (1, 2, 8, 8))
        return b.proto()

    proto = network()
    assert len(proto.graph.node) > 1000
    model, wanted, golden = rounded(proto, to_bytes)
    assert sum(values.nbytes for values in golden.values()) > 97e6
    file = as_file(shuffled(renamed(proto)), tmp_path)

    started = time.perf_counter()
    originals = match_originals(model, wanted, file)
    seconds = time.perf_counter() - started

    assert originals.found.keys() == set(wanted)
    for name in wanted:
        np.testing.assert_array_equal(originals.found[name], golden[name])
    # It takes 1.5 s on a core of 2 GHz or so; comparing each with each would take minutes.
    assert seconds < 15
