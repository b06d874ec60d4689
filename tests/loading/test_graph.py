"""Steps come in a good order under unique names, and a broken graph is refused."""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import load
from hbdebug.model import Assignment, Point
from tests.loading.one_node_walk import run_all
from tests.models import CalibratedModel, inputs_for, many_outputs, residual


def names(model) -> list[str]:
    return [step.name for step in model.steps]


@pytest.mark.parametrize("make", [residual, many_outputs])
def test_steps_are_topological_and_points_stand_beside_their_tensors(make):
    model = load(make())
    made = {spec.name for spec in model.inputs} | set(model.constants)
    for step in model.steps:
        assert made.issuperset(filter(None, step.inputs))
        made.update(step.outputs)
    for index, step in enumerate(model.steps):
        if not isinstance(step, Point):
            continue
        before = model.steps[index - 1]
        if step.input in model.constants:
            rest = model.steps[index + 1 :]
            first = next(after for after in rest if not isinstance(after, Point))
            assert step.output in first.inputs
        elif index:
            # Directly behind the producer, or behind another point that stands there.
            assert step.input in before.outputs or isinstance(before, Point)
        else:
            assert step.input in {spec.name for spec in model.inputs}


def test_points_on_graph_inputs_come_first():
    model = load(many_outputs())
    assert names(model)[:2] == ["left_HzCalibration", "right_HzCalibration"]


@pytest.mark.parametrize("seed", range(5))
def test_order_of_the_file_does_not_matter_for_the_result(seed):
    proto = residual()
    expected = load(proto)
    shuffled = list(proto.graph.node)
    random.Random(seed).shuffle(shuffled)
    del proto.graph.node[:]
    proto.graph.node.extend(shuffled)
    model = load(proto)
    assert set(names(model)) == set(names(expected))
    (sample,) = inputs_for(proto)
    output = model.outputs[0].name
    assert np.array_equal(
        run_all(model, sample, Assignment.as_calibrated(model))[output],
        run_all(expected, sample, Assignment.as_calibrated(expected))[output],
    )


def test_nodes_keep_the_order_of_a_sorted_file():
    proto = residual()
    in_file = [node.name for node in proto.graph.node if node.op_type != "HzCalibration"]
    assert [node.name for node in load(proto).nodes] == in_file


def test_point_on_a_constant_that_only_feeds_an_output_is_kept():
    b = CalibratedModel()
    b.output(b.node("Relu", [b.point(b.input("x", (1, 2)))], "relu"))
    b.output(b.point(b.constant("c", np.ones(2, np.float32))))
    assert names(load(b.proto())) == ["x_HzCalibration", "relu", "c_HzCalibration"]


def test_points_in_series_on_a_constant_stand_in_front_of_its_first_reader():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    y = b.node("Relu", [x], "relu")
    fine = b.point(b.constant("c", np.ones(2, np.float32)), dtype="int16")
    total = b.node("Add", [y, b.point(fine)], "add")
    b.output(b.node("Mul", [total, "c_calibrated_calibrated"], "mul"))
    assert names(load(b.proto())) == [
        "x_HzCalibration",
        "relu",
        "c_HzCalibration",
        "c_calibrated_HzCalibration",
        "add",
        "mul",
    ]


def test_cycle_is_refused():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    b.nodes.append(helper.make_node("Add", [x, "b"], ["a"], name="one"))
    b.nodes.append(helper.make_node("Relu", ["a"], ["b"], name="two"))
    b.output("b")
    with pytest.raises(ModelError, match="has a cycle; its 2 nodes cannot be ordered: one, two"):
        load(b.proto())


def test_points_in_a_circle_are_refused():
    b = CalibratedModel()
    b.output(b.node("Relu", [b.point(b.input("x", (1, 2)))]))
    proto = b.proto()
    for source, made in (("p", "q"), ("q", "p")):
        point = onnx.NodeProto.FromString(proto.graph.node[0].SerializeToString())
        point.name, point.input[0], point.output[0] = made, source, made
        proto.graph.node.append(point)
    with pytest.raises(ModelError, match="has a cycle"):
        load(proto)


def test_tensor_that_nothing_makes_is_named():
    proto = residual()
    proto.graph.node[-1].input[0] = "lost"
    with pytest.raises(ModelError, match="reads tensor 'lost', which nothing makes") as info:
        load(proto)
    assert info.value.where == "(in memory): node softmax"


def test_output_that_nothing_makes_is_named():
    proto = residual()
    proto.graph.output[0].name = "lost"
    with pytest.raises(ModelError, match="nothing makes the graph output 'lost'"):
        load(proto)


def test_tensor_made_twice_is_refused():
    proto = residual()
    proto.graph.node.add(op_type="Relu", name="again", input=["x"], output=["stem_out"])
    with pytest.raises(ModelError, match="writes tensor 'stem_out', which is made by node stem"):
        load(proto)
    proto.graph.node[-1].output[0] = "stem_b"
    with pytest.raises(ModelError, match="which is an input or a constant"):
        load(proto)


def test_repeated_and_empty_names_become_unique_and_stable():
    # https://github.com/microsoft/onnxruntime/issues/8811: two nodes both called bias_scale_node.
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    for made in ("p", "q", "r", "s"):
        name = "twin" if made in "pq" else ""
        b.nodes.append(helper.make_node("Relu", [x], [made], name=name))
        b.output(made)
    expected = ["x_HzCalibration", "twin:p", "twin:q", "Relu:r", "Relu:s"]
    model = load(b.proto())
    assert names(model) == names(load(b.proto())) == expected
    assert model.renamed == {"twin:p": "twin", "twin:q": "twin", "Relu:r": "", "Relu:s": ""}


def test_made_up_names_stay_when_another_node_is_inserted():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    for made in ("p", "q"):
        b.nodes.append(helper.make_node("Relu", [x], [made], name="twin"))
        b.output(made)
    before = names(load(b.proto()))
    b.nodes.insert(1, helper.make_node("Relu", [x], ["other"], name="twin"))
    b.output("other")
    assert set(before) <= set(names(load(b.proto())))


def test_made_up_name_avoids_one_that_exists():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    b.nodes.append(helper.make_node("Relu", [x], ["p"]))
    b.nodes.append(helper.make_node("Relu", [x], ["q"], name="Relu:p"))
    b.output("p")
    b.output("q")
    assert names(load(b.proto())) == ["x_HzCalibration", "Relu:p_", "Relu:p"]


def test_tensors_inside_of_a_body_avoid_those_of_the_file():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 4)))
    y = b.hz("HzSwish", [x], "act")
    b.nodes.append(helper.make_node("Relu", [x], ["act/Neg_0"], name="unlucky"))
    b.output(b.node("Add", [y, "act/Neg_0"], "sum"))
    model = load(b.proto())
    inner = [name for op in model.node_by_name["act"].body for name in op.outputs[:-1]]
    assert "act/Neg_0" not in inner
    assert all(name.startswith("act/") for name in inner if name != y)


def test_initializers_that_are_graph_inputs_too_are_constants():
    proto = residual()
    for tensor in proto.graph.initializer:
        info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        proto.graph.input.append(info)
    assert [spec.name for spec in load(proto).inputs] == ["x"]


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"value": helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])}, [1.0, 2.0]),
        ({"value_float": 3.0}, 3.0),
        ({"value_floats": [1.0, 2.0]}, [1.0, 2.0]),
        ({"value_int": 3}, 3),
        ({"value_ints": [1, 2]}, [1, 2]),
    ],
)
def test_constant_nodes_become_constants(attributes, expected):
    b = CalibratedModel(opset=13)
    x = b.point(b.input("x", (1, 2)))
    constant = b.node("Constant", [], "five", **attributes)
    b.output(b.node("Identity", [constant], "copy"))
    b.output(b.node("Relu", [x], "relu"))
    model = load(b.proto())
    assert model.constants["five_out"].tolist() == expected
    assert "five" not in model.node_by_name


def test_constant_node_of_strings_is_no_obstacle():
    b = CalibratedModel(opset=13)
    b.output(b.node("Relu", [b.point(b.input("x", (1, 2)))]))
    b.node("Constant", [], "words", value_strings=["a", "b"])
    b.node("Constant", [], "word", value_string="c")
    constants = load(b.proto()).constants
    assert constants["words_out"].tolist() == ["a", "b"]
    assert constants["word_out"].tolist() == "c"


def sparse(values, indices, shape) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        helper.make_tensor("sparse", TensorProto.FLOAT, [len(values)], values),
        helper.make_tensor("indices", TensorProto.INT64, np.shape(indices), np.ravel(indices)),
        shape,
    )


@pytest.mark.parametrize("indices", [[1, 5], [[0, 1], [1, 2]]])
def test_sparse_tensors_are_written_out(indices):
    proto = residual()
    proto.graph.sparse_initializer.append(sparse([7.0, 8.0], indices, [2, 3]))
    node = helper.make_node("Constant", [], ["also"])
    node.attribute.add(name="sparse_value", type=onnx.AttributeProto.SPARSE_TENSOR)
    node.attribute[0].sparse_tensor.CopyFrom(sparse([7.0, 8.0], indices, [2, 3]))
    proto.graph.node.append(node)
    constants = load(proto).constants
    for name in ("sparse", "also"):
        assert constants[name].tolist() == [[0, 7, 0], [0, 0, 8]]


@pytest.mark.parametrize(
    ("indices", "shape", "reason"),
    [
        ([1, 6], [2, 3], "damaged"),
        ([[0, 1], [1, 3]], [2, 3], "damaged"),
        ([1, 5], [1 << 40, 1 << 20], "too large"),
        ([1, 5], [-1, 3], "its shape is"),
    ],
)
def test_sparse_tensor_that_cannot_be_written_out_is_refused(indices, shape, reason):
    proto = residual()
    proto.graph.sparse_initializer.append(sparse([7.0, 8.0], indices, shape))
    with pytest.raises(ModelError, match=reason):
        load(proto)


def test_attributes_are_plain_values():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2, 4, 4)))
    y = b.node("Pad", [x, b.constant("p", np.zeros(8, np.int64))], "pad", mode="edge")
    y = b.node("LeakyRelu", [y], "leaky", alpha=0.5)
    y = b.node("Transpose", [y], "turn", perm=[0, 1, 3, 2])
    shape = b.constant("shape", np.array([2]))
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [7.0])
    b.output(b.node("ConstantOfShape", [shape], "fill", value=value))
    b.output(y)
    nodes = load(b.proto()).node_by_name
    assert nodes["pad"].attributes == {"mode": "edge"}
    assert nodes["leaky"].attributes == {"alpha": 0.5}
    assert nodes["turn"].attributes == {"perm": [0, 1, 3, 2]}
    assert nodes["fill"].attributes["value"].tolist() == [7.0]
    assert [op.op_type for op in nodes["turn"].body] == ["Transpose"]
    assert nodes["turn"].body[0].attributes == {"perm": [0, 1, 3, 2]}


def branch(name: str, reads: str, op_type: str = "Neg", domain: str = "") -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node(op_type, [reads], [f"{name}_y"], name=name, domain=domain)],
        name,
        [],
        [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)],
    )


def conditional(then: onnx.GraphProto, otherwise: onnx.GraphProto) -> onnx.ModelProto:
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    choice = b.constant("choice", np.array([False]))
    b.constant("offset", np.array([3.0], np.float32))
    late = b.node("Relu", [x], "late")
    assert late == "late_out"
    b.output(b.node("If", [choice], "if", then_branch=then, else_branch=otherwise))
    # In the file the branch comes first, so only its captured tensors put it behind.
    b.nodes.insert(0, b.nodes.pop())
    return b.proto()


def test_what_a_subgraph_reads_from_outside_is_an_input_of_its_node():
    model = load(conditional(branch("then", "late_out"), branch("else", "offset")))
    node = model.node_by_name["if"]
    assert node.inputs == ("choice", "offset", "late_out")
    assert names(model).index("late") < names(model).index("if")
    values = run_all(model, {"x": np.ones((1, 2), np.float32)}, Assignment())
    assert values["if_out"].tolist() == [-3.0]


def test_vendor_operators_inside_of_a_subgraph_are_refused():
    proto = conditional(branch("then", "late_out", "HzSwish", "horizon"), branch("else", "offset"))
    with pytest.raises(UnsupportedError, match="HzSwish of domain horizon inside of If"):
        load(proto)
