"""Structures that real exports have: run like the plain model, and nothing is passed over silently.

Cases of the public list that the project keeps are named by their number. The plain model is
stock ONNX Runtime's run of the whole graph, its points being Identities.
"""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbdebug.conversion import quantize
from hbdebug.engine import Engine
from hbdebug.errors import ModelError, UnsupportedError, UsageError
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading import load
from hbdebug.loading.integer import load_integer
from hbdebug.metrics import METRICS
from hbdebug.model import Assignment
from hbdebug.pipeline import info, sensitivity
from tests import structure_models as build
from tests.models import CalibratedModel, inputs_for, save_samples
from tests.structure_models import plain_outputs, without_points


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


@pytest.mark.parametrize("name", MODELS)
def test_every_structure_runs_like_the_plain_model(name):
    proto = MODELS[name]()
    assert_runs_like_the_plain_model(proto, samples_of(name, proto))


@pytest.mark.parametrize("name", MODELS)
def test_every_structure_is_ranked_and_every_node_listed(name, tmp_path):
    proto = MODELS[name]()
    result = analysed(proto, samples_of(name, proto), tmp_path)
    ranked = [node.name for node in result.nodes]
    listed = [item.name for item in result.not_analysed]
    assert len(set(ranked + listed)) == len(ranked + listed)
    assert set(load(proto).node_by_name) <= set(ranked + listed)
    assert ranked
    assert all(np.isfinite(node.alone.values["cosine_similarity"]) for node in result.nodes)
    in_info = {node.name for node in info(proto).nodes}
    assert set(ranked + listed) <= in_info


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


# Subgraphs.


def test_case_46_what_is_inside_of_an_if_is_reported_as_not_covered(tmp_path):
    proto = build.conditional()
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    inside = {item.name: item for item in result.not_analysed if "/" in item.name}
    assert set(inside) == {
        "choose/then_branch/conv",
        "choose/then_branch/Relu:yes_y",
        "choose/else_branch/conv",
        "choose/else_branch/Relu:no_y",
    }
    assert inside["choose/then_branch/conv"].op_type == "Conv"
    assert all("inside of a subgraph" in item.reason for item in inside.values())
    assert "4 inside of subgraphs (Conv, Relu)" in result.coverage
    # What the branches read from outside is quantized for the If alone, and measured.
    (choose,) = (node for node in result.nodes if node.name == "choose")
    assert choose.points == ("stem_out_HzCalibration",)
    assert choose.alone.values["sqnr_db"] < np.inf


def test_case_46_what_is_inside_of_a_loop_is_reported_as_not_covered(tmp_path):
    proto = build.looped()
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    inside = {item.name: item.op_type for item in result.not_analysed}
    assert inside["loop/body/mul"] == "MatMul"


@pytest.mark.parametrize("make", [build.conditional, build.looped, build.scanned])
def test_a_quantized_tensor_read_inside_of_a_subgraph_is_that_of_the_calibrated_model(make):
    proto = make()
    model = load(proto)
    assignment = Assignment.as_calibrated(model)
    (sample,) = inputs_for(proto)
    walked = Engine(model, jobs=1).forward(sample, assignment)
    # The same with every point written out in stock operators, as a whole in ONNX Runtime.
    whole = without_points(proto)
    nodes = []
    for node in whole.graph.node:
        original = next(n for n in proto.graph.node if n.output[:] == node.output[:])
        nodes += fake_quantized(whole.graph, model, original, node)
    del whole.graph.node[:]
    whole.graph.node.extend(nodes)
    expected = plain_outputs(whole, sample)
    for name, array in walked.items():
        # The walk's products have constant weights, which ONNX Runtime multiplies in another order.
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5)


def fake_quantized(graph, model, original, plain):
    """Return Div, Round, Clip, Mul for a point; any other node as it is."""
    if original.op_type != "HzCalibration":
        return [plain]
    params = model.point_by_name[original.name].params
    name, source, made = original.name, original.input[0], original.output[0]
    rank = 2
    for item in graph.initializer:
        rank = len(item.dims) if item.name == source else rank
    scale = params.scale
    if scale.size > 1:
        scale = scale.reshape([-1 if axis == params.axis else 1 for axis in range(rank)])
    for label, value in (
        ("scale", scale),
        ("low", np.float32(params.qmin)),
        ("high", np.float32(params.qmax)),
    ):
        tensor = onnx.numpy_helper.from_array(np.asarray(value, np.float32), f"{name}/{label}")
        graph.initializer.append(tensor)
    return [
        helper.make_node("Div", [source, f"{name}/scale"], [f"{name}/q"]),
        helper.make_node("Round", [f"{name}/q"], [f"{name}/r"]),
        helper.make_node("Clip", [f"{name}/r", f"{name}/low", f"{name}/high"], [f"{name}/c"]),
        helper.make_node("Mul", [f"{name}/c", f"{name}/scale"], [made]),
    ]


def test_a_quantized_weight_that_a_branch_reads_from_outside_counts_for_the_if(tmp_path):
    """The weight is built into the session of the If, once for each way to quantize it."""
    proto = build.conditional()
    weight = np.random.default_rng(0).normal(0, 0.3, (4, 3, 3, 3))
    b = CalibratedModel()
    outer = b.weight("outer_w", weight)
    proto.graph.node.insert(0, b.nodes[0])
    proto.graph.initializer.extend(b.initializers)
    (choose,) = (node for node in proto.graph.node if node.op_type == "If")
    for attribute in choose.attribute:
        attribute.g.node[0].input[1] = outer
    model = load(proto)
    engine = Engine(model, jobs=1)
    (sample,) = inputs_for(proto)
    on = engine.forward(sample, Assignment.of([model.point_by_name["outer_w_HzCalibration"]]))
    off = engine.forward(sample)
    assert not np.array_equal(on["head_out"], off["head_out"])
    assert_runs_like_the_plain_model(proto, [sample])
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    (line,) = (node for node in result.nodes if node.name == "choose")
    assert set(line.points) == {"stem_out_HzCalibration", "outer_w_HzCalibration"}


def test_an_if_that_reads_no_point_is_listed_with_a_reason_of_its_own(tmp_path):
    proto = build.conditional()
    for node in proto.graph.node:
        if node.op_type == "If":
            for attribute in node.attribute:
                attribute.g.node[0].input[0] = "stem_out"
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    reasons = {item.name: item.reason for item in result.not_analysed}
    assert reasons["choose"].startswith("control flow: runs in float as a whole")


def test_quantization_inside_of_a_subgraph_is_said_to_stay(tmp_path):
    proto = build.conditional()
    (choose,) = (node for node in proto.graph.node if node.op_type == "If")
    for attribute in choose.attribute:
        graph = attribute.g
        name = graph.output[0].name
        graph.node[1].output[0] = f"{name}_float"
        scale, zero = f"{name}_scale", f"{name}_zero"
        graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.1), scale))
        graph.initializer.append(onnx.numpy_helper.from_array(np.int8(0), zero))
        graph.node.append(
            helper.make_node("QuantizeLinear", [f"{name}_float", scale, zero], [f"{name}_q"])
        )
        graph.node.append(helper.make_node("DequantizeLinear", [f"{name}_q", scale, zero], [name]))
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert any("choose: pairs inside of branches" in text for text in result.warnings)


# Values that are no arrays.


def test_nodes_that_hand_on_a_sequence_are_one_node_that_names_them():
    model = load(build.of_sequences())
    parts = model.node_by_name["parts"]
    assert parts.op_type == "SplitToSequence+SequenceAt+Neg+..."
    assert [item.name for item in parts.inside] == ["first", "turned", "longer", "joined"]
    assert parts.outputs == ("joined_out",)
    assert model.node_by_name["perhaps"].outputs == ("sure_out",)


def test_a_loop_and_an_if_that_hand_on_a_sequence_are_one_node():
    model = load(build.looped_sequence())
    assert [node.name for node in model.nodes] == [
        "first",
        "mean",
        "positive",
        "empty",
        "total",
        "end",
    ]
    empty = model.node_by_name["empty"]
    assert empty.outputs == ("joined_out",)
    assert set(empty.inputs) == {"trips", "first_out", "positive_out"}
    inside = {item.name for item in empty.inside}
    assert {"loop", "choose", "joined", "loop/body/SequenceInsert:longer"} <= inside


def test_what_lies_between_two_joined_nodes_is_joined_as_well():
    """Otherwise the joined node would read what is made from what it gives."""
    model = load(build.of_sequences())
    assert "turned" not in model.node_by_name


def test_many_sequences_take_no_time():
    b = CalibratedModel(opset=13)
    y = b.point(b.input("x", (1, 4)))
    for index in range(3000):
        parts = b.node("SplitToSequence", [y], f"split{index}", axis=0)
        zero = b.constant("zero", np.int64(0)) if not index else "zero"
        y = b.node("SequenceAt", [parts, zero], f"at{index}")
    b.output(y)
    started = time.perf_counter()
    assert len(load(b.proto()).nodes) == 3000
    # It takes half a second.
    assert time.perf_counter() - started < 20


def test_a_sequence_among_the_outputs_is_left_out_and_said():
    model = load(build.of_sequences(graph_output=True))
    assert [spec.name for spec in model.outputs] == ["head_out"]
    assert model.warnings == (
        "output longer_out is a sequence, which cannot be compared, and is not measured",
    )


def test_where_a_sequence_is_the_only_output_what_it_is_made_from_is_measured(tmp_path):
    proto = build.of_sequences(graph_output=True)
    del proto.graph.output[0]
    unused = {"joined", "perhaps", "sure", "head", "head_w_HzCalibration", "sure_out_HzCalibration"}
    kept = [node for node in proto.graph.node if node.name not in unused]
    del proto.graph.node[:]
    proto.graph.node.extend(kept)
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert set(result.nodes[0].alone.outputs) == {"stem_out"}
    assert any("measured instead: stem_out" in text for text in result.warnings)
    assert {item.name for item in result.not_analysed} == {"parts"}


def test_a_point_between_nodes_that_hand_on_a_sequence_is_refused_with_its_name():
    proto = build.of_sequences()
    turned = next(node for node in proto.graph.node if node.name == "turned")
    point = next(node for node in proto.graph.node if node.op_type == "HzCalibration")
    between = proto.graph.node.add()
    between.CopyFrom(point)
    between.name, between.input[0], between.output[0] = "between", "first_out", "quantized"
    turned.input[0] = "quantized"
    with pytest.raises(UnsupportedError, match="quantization point between lies on or between"):
        load(proto)


def test_a_sequence_among_the_inputs_is_refused_when_data_are_asked_for(tmp_path):
    proto = build.of_sequences()
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    proto.graph.input.append(helper.make_value_info("words", kind))
    assert info(proto)
    with pytest.raises(UnsupportedError, match="npy files cannot hold"):
        analysed(proto, inputs_for(build.of_sequences(), count=3), tmp_path)


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT16])
def test_a_type_that_numpy_lacks_is_run_inside_of_a_node(kind):
    b = CalibratedModel(opset=13)
    x = b.input("x", (1, 4))
    narrow = b.node("Cast", [b.point(x)], "narrow", to=kind)
    wide = b.node("Cast", [b.node("Identity", [narrow], "copy")], "wide", to=TensorProto.FLOAT)
    b.initializers.append(helper.make_tensor("k", kind, [2], b"\x80\x3f" * 2, raw=True))
    b.output(b.node("Cast", ["k"], "constant", to=TensorProto.FLOAT))
    b.output(b.node("Relu", [b.point(wide)], "relu"))
    proto = b.proto()
    assert_runs_like_the_plain_model(proto, inputs_for(proto))
    names = [node.name for node in load(proto).nodes]
    assert ("copy" in names) == (kind == TensorProto.FLOAT16)


def test_a_constant_among_the_outputs_is_said_and_not_measured(tmp_path):
    proto = build.tied_weights()
    proto.graph.output.append(build.value_info("bias", TensorProto.FLOAT, [3]))
    result = analysed(proto, inputs_for(proto, count=3), tmp_path)
    assert set(result.nodes[0].alone.outputs) == {"flatten_out"}
    assert "output bias is a constant, and is not measured" in result.warnings
    del proto.graph.output[0]
    with pytest.raises(ModelError, match="every output of the graph is a constant"):
        load(proto)


# Functions.


def test_functions_are_written_out_under_names_that_say_where_they_are_called():
    proto = build.with_functions()
    before = proto.SerializeToString()
    model = load(proto)
    assert [node.name for node in model.nodes] == [
        "stem",
        "block/mul",
        "block/act/LeakyRelu:y",
        "Block_5/mul",
        "Block_5/act/LeakyRelu:y",
        "head",
    ]
    slopes = [node.attributes["alpha"] for node in model.nodes if node.op_type == "LeakyRelu"]
    assert slopes == pytest.approx([0.25, 0.1])
    assert proto.SerializeToString() == before


def test_points_inside_of_a_function_are_points():
    proto = build.with_functions()
    block = proto.functions[0]
    point = next(node for node in proto.graph.node if node.op_type == "HzCalibration")
    inside = block.node.add()
    inside.CopyFrom(point)
    inside.name, inside.input[0], inside.output[0] = "point", "half", "quantized"
    next(node for node in block.node if node.op_type == "Act").input[0] = "quantized"
    block.opset_import.append(helper.make_opsetid("horizon", 1))
    points = load(proto).point_by_name
    assert {"block/point", "Block_5/point"} <= points.keys()


def test_a_function_called_inside_of_a_subgraph_is_written_out_there():
    proto = build.conditional()
    for node in proto.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                relu = attribute.g.node[1]
                relu.op_type, relu.domain = "Act", "own"
    opset = [helper.make_opsetid("", 13)]
    body = [helper.make_node("Neg", ["x"], ["t"]), helper.make_node("Neg", ["t"], ["y"])]
    proto.functions.append(helper.make_function("own", "Act", ["x"], ["y"], body, opset))
    proto.opset_import.append(helper.make_opsetid("own", 1))
    proto.ir_version = 8
    assert_runs_like_the_plain_model(proto, inputs_for(proto))
    inside = [item.op_type for item in load(proto).node_by_name["choose"].inside]
    assert inside.count("Neg") == 4


def test_a_function_in_an_opset_with_the_same_operators_is_taken_and_another_refused():
    proto = build.with_functions()
    for function in proto.functions:
        function.opset_import[0].version = 16
    assert_runs_like_the_plain_model(build.with_functions(), inputs_for(proto))
    load(proto)
    for function in proto.functions:
        function.opset_import[0].version = 13
    # Mul is another since opset 14.
    with pytest.raises(UnsupportedError, match="Mul is not the same in both") as caught:
        load(proto)
    assert "convert_version" in caught.value.hint


@pytest.mark.parametrize(
    ("break_it", "reason"),
    [
        (lambda proto: proto.functions[0].node[2].__setattr__("op_type", "Block"), "calls itself"),
        (lambda proto: proto.functions.append(proto.functions[0]), "is defined twice"),
        (lambda proto: proto.functions[0].ClearField("input"), "1 inputs and 1 outputs"),
    ],
)
def test_a_function_that_makes_no_sense_is_refused(break_it, reason):
    proto = build.with_functions()
    break_it(proto)
    with pytest.raises(ModelError, match=reason):
        load(proto)


def test_functions_that_grow_without_end_are_refused():
    """Each calls the one below twice: 2^40 nodes."""
    proto = build.with_functions()
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for level in range(40):
        below = "Act" if not level else f"F{level - 1}"
        calls = [
            helper.make_node(below, ["x"], ["t"], domain="own"),
            helper.make_node(below, ["t"], ["y"], domain="own"),
        ]
        function = helper.make_function("own", f"F{level}", ["x"], ["y"], calls, opset)
        proto.functions.append(function)
    next(node for node in proto.graph.node if node.op_type == "Block").op_type = "F39"
    with pytest.raises(ModelError, match="stand for more than 200000 nodes"):
        load(proto)


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
