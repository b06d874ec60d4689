"""Structures that real exports have: run like the plain model, and nothing is passed over silently.

Cases of the public list that the project keeps are named by their number. The plain model is
stock ONNX Runtime's run of the whole graph, its points being Identities.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbdebug.conversion import quantize
from hbdebug.engine import Engine
from hbdebug.errors import ModelError, UsageError
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading import load
from hbdebug.loading.integer import load_integer
from hbdebug.metrics import METRICS
from hbdebug.model import Assignment
from hbdebug.pipeline import info, sensitivity
from tests import structure_models as build
from tests.models import CalibratedModel, inputs_for, save_samples
from tests.real_models import (
    SAMPLES,
    analysed,
    assert_runs_like_the_plain_model,
    random_samples,
    state_at,
)
from tests.structure_models import plain_outputs

# Tensors that hold no real numbers.


def test_case_24_masks_and_shapes_are_listed_and_never_measured(tmp_path):
    proto = build.mask_and_shape()
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    reasons = {item.name: item.reason for item in result.not_analysed}
    assert {"mask", "shape", "batch", "sizes"} <= reasons.keys()
    assert reasons["batch"].startswith("integer-typed")
    assert {node.name for node in result.nodes} == {"conv", "where", "head"}


def test_case_27_integer_tensors_keep_their_type_from_step_to_step():
    proto = build.mask_and_shape()
    engine = Engine(load(proto), jobs=1)
    kept = {}
    (sample,) = inputs_for(proto)
    engine.walker.forward(sample, keep=kept.__setitem__)
    assert kept["sizes_out"].dtype == np.int64
    assert kept["mask_out"].dtype == np.bool_
    assert kept["sizes_out"].tolist() == [1, -1]


def test_case_28_empty_tensors_are_run_and_marked_as_unmeasured(tmp_path):
    proto = build.with_empty_tensor()
    (sample,) = inputs_for(proto)
    assert Engine(load(proto), jobs=1).forward(sample)["still_nothing_out"].shape == (1, 1, 1, 0, 1)
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    for node in result.nodes:
        assert np.isnan(node.alone.outputs["still_nothing_out"]["cosine_similarity"])
        assert not np.isnan(node.alone.outputs["minus_out"]["cosine_similarity"])
        assert "empty" in node.alone.flags


@pytest.mark.parametrize("dynamic", [False, True])
def test_case_57_integer_sizes_of_a_resize_are_never_measured(dynamic, tmp_path):
    proto = build.resized(dynamic=dynamic)
    samples = SAMPLES["resized_dynamic"] if dynamic else inputs_for(proto, count=3)
    result = analysed(proto, samples, tmp_path, metrics=list(METRICS))
    reasons = {item.name: item.reason for item in result.not_analysed}
    assert all(reasons[name].startswith("integer-typed") for name in ("tail", "head", "sizes"))


@pytest.mark.parametrize("zeros", [False, True])
def test_case_55_sizes_that_the_model_leaves_open_come_from_the_data(zeros, tmp_path):
    proto = build.resized(dynamic=True, zeros=zeros)
    assert load(proto).inputs[0].shape == (None, 3, None, None)
    result = analysed(proto, SAMPLES["resized_dynamic"], tmp_path)
    assert result.data.complete == 3
    assert {node.name for node in result.nodes} == {"conv", "pool", "deep", "sum"}


def test_case_50_samples_of_different_lengths_are_measured_together(tmp_path):
    proto = build.sequence_of_any_length()
    result = analysed(proto, SAMPLES["sequence_of_any_length"], tmp_path)
    together = {node.name: node.alone.values["sqnr_db"] for node in result.nodes}
    alone = []
    for index, sample in enumerate(SAMPLES["sequence_of_any_length"]):
        one = analysed(proto, [sample], tmp_path / str(index))
        alone.append({node.name: node.alone.values["sqnr_db"] for node in one.nodes})
    for name, value in together.items():
        # The mean of three numbers, in another order of summation.
        assert value == pytest.approx(np.mean([each[name] for each in alone]), rel=1e-12)


@pytest.mark.parametrize("logits", [False, True])
def test_an_output_of_class_indices_is_measured_at_the_scores_that_decide_it(logits, tmp_path):
    proto = build.classes_only(logits=logits)
    # Exact: an optimized jump is planned, and rounds, as the nodes in front of the outputs let it.
    result = analysed(proto, inputs_for(proto, count=8), tmp_path, exact=True)
    assert set(result.nodes[0].alone.outputs) == {"flat_out"}
    (note,) = (text for text in result.warnings if "top_out" in text)
    assert note == "output top_out is int64, which has no distance; measured instead: flat_out"
    # What the scores themselves give when they are the output.
    scores = build.classes_only(logits=True)
    del scores.graph.output[0]
    expected = analysed(scores, inputs_for(proto, count=8), tmp_path / "scores", exact=True)
    assert {node.name: node.alone.values for node in result.nodes} == {
        node.name: node.alone.values for node in expected.nodes
    }
    listed = {item.name: item.reason for item in result.not_analysed}
    assert listed["top"] == "does not reach the measured outputs"


def test_an_inner_node_of_integers_is_measured_at_what_decides_it(tmp_path):
    proto = build.classes_only(logits=True)
    result = analysed(proto, inputs_for(proto, count=3), tmp_path, output_node="top")
    assert set(result.nodes[0].alone.outputs) == {"flat_out"}


def test_a_mask_output_is_measured_at_the_scores_that_it_compares(tmp_path):
    proto = build.mask_and_shape()
    proto.graph.output[0].CopyFrom(build.value_info("mask_out", TensorProto.BOOL))
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert set(result.nodes[0].alone.outputs) == {"conv_out"}


def test_a_model_that_gives_sizes_only_is_refused(tmp_path):
    proto = build.mask_and_shape()
    proto.graph.output[0].CopyFrom(build.value_info("shape_out", TensorProto.INT64))
    with pytest.raises(ModelError, match="no output holds real numbers"):
        analysed(proto, inputs_for(proto, count=3), tmp_path)


def test_an_output_whose_type_the_file_does_not_state_is_looked_at(tmp_path):
    proto = build.classes_only()
    proto.graph.output[0].ClearField("type")
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert set(result.nodes[0].alone.outputs) == {"flat_out"}


# Names.


def test_case_35_nodes_of_one_name_are_told_apart_and_keep_their_old_name(tmp_path):
    proto = build.unnamed()
    model = load(proto)
    assert [node.name for node in model.nodes] == [
        "bias_scale_node:bias_scale_node_out",
        "Relu:Relu_3_out",
        "bias_scale_node:second_out",
        "Relu:Relu_7_out",
        "Conv:third_out",
    ]
    assert model.renamed["bias_scale_node:second_out"] == "bias_scale_node"
    assert model.renamed["Conv:third_out"] == ""
    listing = info(proto)
    shown = {node.name: node.name_in_file for node in listing.nodes}
    assert shown["bias_scale_node:second_out"] == "bias_scale_node"
    assert shown["Conv:third_out"] == ""
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert {node.name for node in result.nodes} == {
        "bias_scale_node:bias_scale_node_out",
        "bias_scale_node:second_out",
        "Conv:third_out",
    }
    notes = {node.name: node.note for node in result.nodes}
    assert "it has no name in the file" in notes["Conv:third_out"]
    assert "shares the name bias_scale_node" in notes["bias_scale_node:second_out"]
    (note,) = (text for text in result.warnings if text.startswith("names of nodes"))
    assert "4 have no name" in note
    assert "bias_scale_node, point" in note


def test_a_shared_name_selects_all_that_have_it(tmp_path):
    proto = build.unnamed()
    samples = inputs_for(proto, count=3)
    result = analysed(proto, samples, tmp_path, nodes=["bias_scale_node"])
    assert {node.name for node in result.nodes} == {
        "bias_scale_node:bias_scale_node_out",
        "bias_scale_node:second_out",
    }
    one = analysed(proto, samples, tmp_path / "one", nodes=["*:second_out"])
    assert [node.name for node in one.nodes] == ["bias_scale_node:second_out"]
    points = analysed(proto, samples, tmp_path / "two", nodes=["point"], kind="weight")
    assert len(points.points) == 3
    with pytest.raises(UsageError, match="0 of 3 matched"):
        analysed(proto, samples, tmp_path / "none", nodes=["bias_scale"])


def test_names_do_not_change_the_numbers(tmp_path):
    proto = build.unnamed()
    named = onnx.ModelProto()
    named.CopyFrom(proto)
    for index, node in enumerate(named.graph.node):
        node.name = f"n{index}"
    samples = inputs_for(proto, count=3)
    first = analysed(proto, samples, tmp_path)
    second = analysed(named, samples, tmp_path / "named")
    assert [node.alone for node in first.nodes] == [node.alone for node in second.nodes]


# Numbers that are none.


def test_case_64_what_the_float_model_spoils_itself_is_located_and_left_out(tmp_path):
    proto = build.overflowing()
    # Squares of values around 1e25 are beyond float32; infinity over infinity is NaN.
    samples = random_samples(*[(1, 3, 4, 4)] * 5)
    samples[1]["x"] *= np.float32(1e25)
    samples[3]["x"] *= np.float32(1e25)
    result = analysed(proto, samples, tmp_path)
    (note,) = (text for text in result.warnings if "float model itself" in text)
    assert "on 2 of 5 samples ('1', '3'), at output head_out" in note
    assert "infinity begins in square (Mul): 48 of 48 values" in note
    assert "NaN begins in quotient (Div): 48 of 48 values" in note
    kept = [sample for index, sample in enumerate(samples) if index not in {1, 3}]
    clean = analysed(proto, kept, tmp_path / "clean")
    means = {node.name: node.alone.outputs["head_out"] for node in clean.nodes}
    for node in result.nodes:
        # The same three samples, summed in the same order.
        assert node.alone.outputs["head_out"] == means[node.name]
        assert node.alone.interval is not None


def test_a_float_model_that_spoils_every_sample_is_said_so(tmp_path):
    samples = random_samples(*[(1, 3, 4, 4)] * 3, scale=1e25)
    proto = build.overflowing()
    del proto.graph.output[1]
    result = analysed(proto, samples, tmp_path)
    assert result.verdict.startswith("The float model itself gives NaN")
    assert any("on 3 of 3 samples" in text for text in result.warnings)


def test_infinity_that_a_softmax_takes_in_is_no_finding(tmp_path):
    """An attention mask of minus infinity is how masks are written."""
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 4))
    weight = b.weight("w", b.random.normal(0, 0.4, (4, 4)), axis=1)
    y = b.node("MatMul", [b.point(x), weight], "scores")
    mask = b.constant("mask", np.array([[0, 0, 0, -np.inf]], np.float32))
    b.output(b.node("Softmax", [b.node("Add", [y, mask], "masked")], "softmax", axis=-1))
    proto = b.proto()
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert not any("float model itself" in text for text in result.warnings)


@pytest.mark.parametrize("threshold", [0.0, float(np.finfo(np.float32).tiny)])
def test_cases_60_and_61_a_channel_without_weights_is_measured_and_named(threshold, tmp_path):
    """The second threshold is what the vendor's converter writes for such a channel."""
    proto = build.dead_channel(threshold=threshold)
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert all(np.isfinite(node.alone.values["cosine_similarity"]) for node in result.nodes)
    (found,) = (item for item in result.diagnostics if item.name == "dead_channel")
    assert found.node == "conv"
    assert "1 of 4 channels" in found.evidence
    other = analysed(build.dead_channel(threshold=1.0), inputs_for(proto, count=3), tmp_path / "1")
    # Zeros are zeros in any steps.
    assert [node.alone for node in result.nodes] == [node.alone for node in other.nodes]


def test_a_channel_that_its_threshold_extinguishes_is_named_as_such(tmp_path):
    proto = build.dead_channel(threshold=0.0, alive=1)
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    (found,) = (item for item in result.diagnostics if item.name == "extinguished_channel")
    assert "weights up to 1" in found.evidence
    quantized = Engine(load(proto), jobs=1).walker.static_value(
        "conv_w_calibrated", Assignment.as_calibrated(load(proto))
    )
    assert np.abs(quantized[1]).max() < 1e-30


def test_a_scale_of_zero_that_counts_is_taken_for_no_channel_too(tmp_path):
    proto = build.dead_channel()
    for node in proto.graph.node:
        if node.name == "conv_w_HzCalibration":
            for attribute in node.attribute:
                if attribute.name == "constant":
                    attribute.i = 2
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert all(np.isfinite(node.alone.values["cosine_similarity"]) for node in result.nodes)


# Types.


@pytest.mark.parametrize("points", [False, True])
def test_case_68_a_float16_graph_with_a_shared_constant_keeps_its_types(points):
    proto = build.of_half(points=points)
    samples = random_samples((1, 4), (1, 4), dtype=np.float16)
    engine = Engine(load(proto), jobs=1)
    for sample in samples:
        kept = {}
        walked = engine.walker.forward(sample, keep=kept.__setitem__)
        assert kept["first_out"].dtype == kept["where_out"].dtype == np.float16
        for name, array in plain_outputs(proto, sample).items():
            # ONNX Runtime leaves the rounding to float16 between two nodes out where it runs
            # the whole graph; a step of float16 near 1 is 1e-3.
            np.testing.assert_allclose(walked[name], array, atol=1e-3)
            assert walked[name].dtype == array.dtype


def test_a_float16_graph_is_ranked(tmp_path):
    result = analysed(build.of_half(), random_samples(*[(1, 4)] * 3, dtype=np.float16), tmp_path)
    assert {node.name for node in result.nodes} == {"first", "end", "half_end"}
    assert all(np.isfinite(node.alone.values["sqnr_db"]) for node in result.nodes)


def test_a_double_graph_is_ranked_and_its_points_keep_the_type(tmp_path):
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 4), TensorProto.DOUBLE)
    weight = b.constant("w", b.random.normal(0, 0.4, (4, 3)))
    y = b.node("MatMul", [b.point(x), weight], "first")
    b.output(b.node("Tanh", [b.point(y)], "end"), TensorProto.DOUBLE)
    proto = b.proto()
    samples = random_samples(*[(1, 4)] * 3, dtype=np.float64)
    assert_runs_like_the_plain_model(proto, samples)
    result = analysed(proto, samples, tmp_path)
    assert {node.name for node in result.nodes} == {"first", "end"}


def test_a_point_on_integers_is_refused_with_its_name():
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 4))
    whole = b.node("Cast", [x], "whole", to=TensorProto.INT64)
    b.output(b.node("Neg", [b.point(whole)], "minus"), TensorProto.INT64)
    proto = b.proto()
    engine = Engine(load(proto), jobs=1)
    with pytest.raises(ModelError, match="quantizes whole_out, a tensor of int64") as caught:
        engine.forward(inputs_for(proto)[0])
    assert caught.value.where == "point whole_out_HzCalibration"


def test_nodes_behind_the_last_output_are_no_obstacle(tmp_path):
    proto = build.tied_weights()
    last = proto.graph.output[0].name
    for index in range(12):
        proto.graph.node.add(op_type="Exp", name=f"dead{index}", input=[last], output=[f"d{index}"])
        last = f"d{index}"
    # Exact: where an optimized jump begins depends on all nodes, and so does its rounding.
    samples = inputs_for(proto, count=3)
    result = analysed(proto, samples, tmp_path, exact=True)
    clean = analysed(build.tied_weights(), samples, tmp_path / "clean", exact=True)
    assert [node.alone.values for node in result.nodes] == [
        node.alone.values for node in clean.nodes
    ]


# One tensor, several readers.


def test_a_weight_that_is_read_through_two_points_has_two_values(tmp_path):
    proto = build.tied_weights()
    model = load(proto)
    engine = Engine(model, jobs=1)
    as_calibrated = Assignment.as_calibrated(model)
    shared = engine.walker.static_value("w_calibrated", as_calibrated)
    own = engine.walker.static_value(model.node_by_name["three"].inputs[1], as_calibrated)
    assert not np.array_equal(shared, own)
    result = analysed(proto, inputs_for(proto, count=3), tmp_path, kind="weight")
    consumers = {point.name: point.consumers for point in result.points}
    assert sorted(consumers.values()) == [("one", "two"), ("three",)]


def test_initializers_that_are_inputs_too_change_nothing(tmp_path):
    proto = build.tied_weights()
    expected = analysed(proto, inputs_for(proto, count=3), tmp_path)
    samples = inputs_for(proto, count=3)
    for tensor in proto.graph.initializer:
        info_of = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        proto.graph.input.append(info_of)
    result = analysed(proto, samples, tmp_path / "inputs")
    assert [node.alone for node in result.nodes] == [node.alone for node in expected.nodes]


# In integers.


@pytest.mark.parametrize("make", [build.conditional, build.of_sequences, build.unnamed])
def test_a_structure_that_stays_in_float_is_written_into_the_quantized_model(make, tmp_path):
    proto = make()
    source, written = tmp_path / "m_calibrated_model.onnx", tmp_path / "m_quantized_model.onnx"
    onnx.save(proto, source)
    quantize(source, written)
    (sample,) = inputs_for(proto)
    calibrated = load(source)
    expected = Engine(calibrated, jobs=1).forward(sample, Assignment.as_calibrated(calibrated))
    found = IntegerRunner(load_integer(written)).forward(sample)
    for name, array in found.items():
        # One step of the largest int8 grid in these models, 2 / 127, through a small head.
        np.testing.assert_allclose(array, expected[name], atol=2 / 127)


@pytest.mark.parametrize("make", [build.conditional, build.of_sequences, build.of_any_rank])
def test_a_structure_is_ranked_in_integers_and_suggested_for(make, tmp_path):
    proto = make()
    samples = SAMPLES["of_any_rank"] if make is build.of_any_rank else inputs_for(proto, count=3)
    folder = save_samples(tmp_path / "calib", samples)
    result = sensitivity(proto, folder, fidelity="integer", target=0.99999)
    assert all(np.isfinite(node.alone.values["cosine_similarity"]) for node in result.nodes)
    assert result.suggestion is not None


def test_tensors_whose_length_depends_on_the_values_cross_cuts(tmp_path):
    proto = build.picked()
    samples = inputs_for(proto, count=4)
    assert_runs_like_the_plain_model(proto, samples)
    engine = Engine(load(proto), jobs=1)
    lengths = {engine.forward(sample)["product_out"].size for sample in samples}
    assert len(lengths) > 1
    engine.profile(samples[0])
    for position in range(len(engine.model.steps)):
        runner = engine.suffix(position, optimized=False)
        for sample in samples:
            made = runner.run(state_at(engine, position, sample))
            expected = engine.forward(sample)
            for name, array in zip(runner.outputs, made, strict=True):
                np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)
    result = analysed(proto, samples, tmp_path)
    assert {node.name for node in result.nodes} == {"stem", "curve", "product", "double", "head"}
