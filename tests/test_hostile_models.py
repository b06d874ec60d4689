"""Files that are no models, by accident or on purpose: a clear error, at once, without memory."""

from __future__ import annotations

import time
import tracemalloc
from contextlib import contextmanager

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hbdebug.errors import ModelError
from hbdebug.loading import load
from tests import structure_models as build
from tests.command import hbdebug
from tests.models import CalibratedModel, residual

HUGE = 1 << 62


@contextmanager
def in_no_time_and_memory(seconds=10.0, memory=100 << 20):
    """Far more than any of these takes, and far less than what the files ask for."""
    tracemalloc.start()
    started = time.perf_counter()
    yield
    took = time.perf_counter() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < seconds
    assert peak < memory


def refused(proto, match):
    with in_no_time_and_memory(), pytest.raises(ModelError, match=match) as caught:
        load(proto)
    assert caught.value.exit_code in {3, 5}
    return caught.value


def node_of(proto, op_type):
    return next(node for node in proto.graph.node if node.op_type == op_type)


@pytest.mark.parametrize(
    "dims",
    [
        [-1],
        [-8, -1],
        [HUGE],
        [1 << 31, 1 << 31, 1 << 31],
        [HUGE, 0],
        [0, HUGE, HUGE],
        [7],
        [8, 1, 2],
    ],
)
@pytest.mark.parametrize("raw", [True, False])
def test_a_shape_that_does_not_fit_the_data_is_refused(dims, raw):
    proto = residual()
    (bias,) = (tensor for tensor in proto.graph.initializer if tensor.name == "stem_b")
    if not raw:
        values = onnx.numpy_helper.to_array(bias).tolist()
        bias.ClearField("raw_data")
        bias.float_data.extend(values)
    bias.dims[:] = dims
    refused(proto, "tensor stem_b is damaged")


@pytest.mark.parametrize("data_type", [0, 11, 99, 1 << 30])
def test_an_element_type_that_does_not_fit_is_refused(data_type):
    proto = residual()
    (bias,) = (tensor for tensor in proto.graph.initializer if tensor.name == "stem_b")
    bias.data_type = data_type
    refused(proto, "tensor stem_b is damaged")


@pytest.mark.parametrize("version", [0, -1, 9999, HUGE, -HUGE])
def test_an_operator_set_that_cannot_be_is_refused(version):
    proto = residual()
    proto.opset_import[0].version = version
    refused(proto, f"states ai.onnx opset {version}, which does not exist")


def test_sizes_that_a_graph_claims_cost_nothing():
    """Scales are compared with the claimed shape; nothing of that shape is made."""
    proto = residual()
    point = node_of(proto, "HzCalibration")
    for attribute in point.attribute:
        if attribute.name in {"scales", "thresholds"}:
            attribute.floats[:] = [1.0, 1.0]
        if attribute.name == "quant_attrs":
            attribute.i = 0x22111
    point.attribute.append(helper.make_attribute("group", 2))
    point.attribute.append(helper.make_attribute("axis", 1))
    for shape in ([HUGE], [1 << 40, 1, 1]):
        proto.graph.input[0].CopyFrom(build.value_info("x", TensorProto.FLOAT, shape))
        with in_no_time_and_memory():
            load(proto)
    proto.graph.input[0].CopyFrom(build.value_info("x", TensorProto.FLOAT, [1 << 40, 3]))
    refused(proto, "2 scales do not fit")


def test_a_claimed_number_of_colours_is_not_written_out():
    b = CalibratedModel()
    x = b.input("x", (1, 3, 4, 4))
    weight = b.input("w", (3, HUGE, 1, 1))
    bias = b.constant("bias", np.zeros(3, np.float32))
    b.output(b.hz("HzPreprocess", [b.point(x), weight, bias], "colour", channel_group=1))
    with in_no_time_and_memory():
        load(b.proto())


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"idx_range": "text", "threshold": 0.5}, "its attribute idx_range is 'text'"),
        ({"idx_range": [0], "threshold": 0.5}, "idx_range .0. is no pair"),
        ({"idx_range": [0, HUGE], "threshold": 0.5}, "its attribute idx_range is"),
        ({"idx_range": [0, 1], "threshold": "high"}, "its attribute threshold is 'high'"),
        ({"idx_range": [0.5, 1.0], "threshold": 1.0}, "its attribute idx_range is"),
    ],
)
def test_a_custom_operator_with_senseless_attributes_is_refused(attributes, reason):
    b = CalibratedModel()
    b.output(b.hz("HzFilter", [b.point(b.input("x", (1, 3, 4, 4)))], "filter", **attributes))
    refused(b.proto(), reason)


def test_a_custom_operator_without_outputs_is_refused():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 3, 4, 4)))
    b.output(b.node("Relu", [x]))
    b.hz("HzSwish", [x], "swish")
    b.nodes[-1].ClearField("output")
    refused(b.proto(), "HzSwish without its first output is not known")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda node: node.ClearField("output"),
        lambda node: node.output.append("another"),
        lambda node: node.ClearField("attribute"),
        lambda node: node.attribute[0].__setattr__("name", "value_int"),
    ],
)
def test_a_constant_that_is_none_is_refused(spoil):
    b = CalibratedModel(opset=13)
    b.output(b.node("Relu", [b.point(b.input("x", (1, 2)))]))
    b.node("Constant", [], "constant", value_float=1.0)
    proto = b.proto()
    spoil(node_of(proto, "Constant"))
    refused(proto, "Constant node constant|node constant")


def test_names_that_are_no_text_are_refused(tmp_path):
    proto = residual()
    content = proto.SerializeToString().replace(
        b"stem_relu", b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7"
    )
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError, match="is damaged"):
        load(tmp_path / "m.onnx")


def test_an_attribute_of_a_function_outside_of_one_is_refused():
    proto = residual()
    node_of(proto, "Conv").attribute[0].ref_attr_name = "outside"
    refused(proto, "stands for one of a function, outside of any")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda graph: graph.ClearField("output"), "the graph has no outputs"),
        (lambda graph: graph.output.append(graph.output[0]), "lists output softmax_out more than"),
        (lambda graph: graph.input.append(graph.input[0]), "lists input x more than once"),
        (lambda graph: graph.output.add(), "an output without a name"),
        (lambda graph: graph.input.add(), "an input without a name"),
    ],
)
def test_a_graph_whose_ends_make_no_sense_is_refused(spoil, reason):
    proto = residual()
    spoil(proto.graph)
    refused(proto, reason)


@pytest.mark.parametrize("depth", [40, 1000])
def test_subgraphs_nested_without_end_are_refused(depth, tmp_path):
    """Built as bytes: protobuf itself refuses to write, or read, more than 100 messages deep."""

    def field(number: int, content: bytes) -> bytes:
        size, length = b"", len(content)
        while length >= 0x80:
            size += bytes([length & 0x7F | 0x80])
            length >>= 7
        return bytes([number << 3 | 2]) + size + bytes([length]) + content

    graph = field(1, field(2, b"y") + field(4, b"Relu"))
    for _ in range(depth):
        # AttributeProto: name 1, g 6, type 20 = GRAPH (5).
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute))
    content = field(7, graph) + field(8, b"\x10\x0b")
    (tmp_path / "deep.onnx").write_bytes(content)
    with in_no_time_and_memory(), pytest.raises(ModelError, match="not a complete ONNX model"):
        load(tmp_path / "deep.onnx")


def test_a_node_of_a_hundred_thousand_inputs_takes_no_time():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    b.output(b.node("Concat", [x] * 100_000, "wide", axis=1))
    started = time.perf_counter()
    assert len(load(b.proto()).node_by_name["wide"].inputs) == 100_000
    # It takes 0.2 s; what is quadratic would take hours.
    assert time.perf_counter() - started < 20


def test_a_chain_of_twenty_thousand_nodes_takes_no_time():
    b = CalibratedModel()
    x = b.point(b.input("x", (1, 2)))
    for index in range(20_000):
        b.nodes.append(helper.make_node("Relu", [x], [f"t{index}"], name=f"relu{index}"))
        x = f"t{index}"
    b.output(x)
    random = np.random.default_rng(0)
    b.nodes = [b.nodes[index] for index in random.permutation(len(b.nodes))]
    started = time.perf_counter()
    assert len(load(b.proto()).nodes) == 20_000
    # It takes 1 s; what is quadratic would take many minutes.
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize("name", ["conditional", "with_functions", "of_sequences", "unnamed"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_a_file_cut_short_is_refused_by_every_command(name, share, tmp_path):
    content = getattr(build, name)().SerializeToString()
    file = tmp_path / "cut_calibrated_model.onnx"
    file.write_bytes(content[: int(len(content) * share)])
    done = hbdebug("info", str(file))
    assert done.code == 3
    assert "not a complete ONNX model" in done.err
    assert "Traceback" not in done.err


def test_a_model_of_which_no_output_is_left_is_refused():
    b = CalibratedModel()
    x = b.input("x", (1, 2))
    b.node("Relu", [b.point(x)], "unread")
    b.output(b.hz("HzUnheardOf", [x], "unknown"))
    with pytest.raises(ModelError, match="no output is left, nor anything in front of one"):
        load(b.proto(), skip_unsupported=True)


def test_an_attribute_whose_data_lie_elsewhere_is_refused(tmp_path):
    """ONNX would read the file that it names, relative to wherever the program was started."""
    (tmp_path / "secret").write_bytes(np.ones(1, np.float32).tobytes())
    b = CalibratedModel(opset=13)
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    y = b.node("Constant", [], "constant", value=value)
    b.output(b.node("Add", [b.point(b.input("x", (1, 2))), y], "add"))
    proto = b.proto()
    tensor = node_of(proto, "Constant").attribute[0].t
    tensor.ClearField("float_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=str(tmp_path / "secret"))
    refused(proto, "tensor v are said to be in .* which is not inside the model's folder")


def test_a_tensor_of_a_subgraph_that_lies_elsewhere_is_refused():
    proto = build.conditional()
    tensor = node_of(proto, "If").attribute[0].g.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/hostname")
    refused(proto, "are said to be in '/etc/hostname', which is not inside the model's folder")
