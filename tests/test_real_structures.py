"""Control flow, functions and values that are no arrays, in models that users really have."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbdebug.engine import Engine
from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.pipeline import info
from tests import structure_models as build
from tests.models import CalibratedModel, inputs_for
from tests.real_models import (
    MODELS,
    analysed,
    assert_runs_like_the_plain_model,
    samples_of,
)
from tests.structure_models import plain_outputs, without_points


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
