"""Whole quantized models run in integers, and every tensor is the vendor's.

The vendor's tensors are in fixtures: those of 131 small models, and digests of those of the two
text-line models. Integers must agree exactly. Between a HzDequantize and a HzQuantize a model may
compute in floats; there, sums and exponentials may round otherwise in another ONNX Runtime or on
another CPU, and what is computed from them with them.
"""

from __future__ import annotations

import gc
import hashlib
import json
import weakref

import numpy as np
import onnx
import pytest

import hbdebug
from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.integer_run import IntegerRunner, run, widened
from hbdebug.loading.integer import load_integer
from hbdebug.slices import Slicer
from tests.integer_models import (
    FIXTURES,
    QuantizedModel,
    golden_array,
    golden_cases,
    golden_files,
    table_lookup,
    two_inputs,
)
from tests.recognizer import recognizer_folder

CASES = golden_cases()
DUMPS = {item["model"]: item for item in json.loads((FIXTURES / "integer_dumps.json").read_text())}

# The vendor's executor gave only the outputs of this model.
OUTPUTS_ONLY = {"convt_group-bayes-e.i16"}

# Float operators whose rounding is left to the library: a sum in any order, an exponential.
ROUNDING = {"MatMul", "ReduceMean", "ReduceSum", "Softmax"}

# The vendor's Softmax differs by up to 9.2e-6 from ONNX Runtime's, and sums of some hundred float32
# terms near 1 by a few 1e-7.
TOLERANCE = 1e-5


def all_tensors(model, inputs):
    values = {}
    outputs = run(model, inputs, keep=values.__setitem__)
    assert outputs.keys() == {spec.name for spec in model.outputs}
    for name, array in outputs.items():
        assert values[name] is array
    return values


def rounded_freely(model):
    """Return the float tensors that may differ in their last bits: ROUNDING, up to HzQuantize."""
    found = set()
    for node in model.nodes:
        reads_one = not found.isdisjoint(node.inputs)
        if node.op_type in ROUNDING or (reads_one and node.op_type != "HzQuantize"):
            found.update(node.outputs)
    return found


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array)).hexdigest()


def disagreements(model, values, recorded):
    """Return the tensors that are not the vendor's, with the reason, in graph order."""
    free = rounded_freely(model)
    wrong = []
    for node in model.nodes:
        for name in node.outputs:
            mine, theirs = values[name], recorded.get(name)
            if theirs is None:
                continue
            kind = (mine.dtype.name, list(mine.shape))
            if kind != (theirs["dtype"], theirs["shape"]):
                wrong.append(f"{node.name} ({node.op_type}): {kind}")
            elif digest(mine) == theirs["sha256"]:
                continue
            elif name not in free or mine.dtype.kind != "f":
                wrong.append(f"{node.name} ({node.op_type}): other bits")
            elif "array" in theirs:
                error = np.abs(mine - golden_array(theirs["array"])).max()
                if not error <= TOLERANCE:
                    wrong.append(f"{node.name} ({node.op_type}): off by {error}")
            # A mean is off by no more than its terms, nor is a maximum.
            elif not (
                abs(mine.mean(dtype=np.float64) - theirs["mean"]) <= TOLERANCE
                and abs(np.abs(mine).max() - theirs["absmax"]) <= TOLERANCE
            ):
                wrong.append(f"{node.name} ({node.op_type}): other statistics")
    return wrong


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_tensor_of_a_small_model_is_the_vendors(case):
    model = load_integer(onnx.load_from_string(golden_files()[case["quantized"]]))
    inputs = {name: golden_array(file) for name, file in case["inputs"].items()}

    values = all_tensors(model, inputs)

    outputs = {spec.name for spec in model.outputs}
    assert case["tensors"].keys() == (outputs if case["name"] in OUTPUTS_ONLY else values.keys())
    assert not disagreements(model, values, case["tensors"])


def test_there_are_131_small_models_of_every_march():
    assert len(CASES) == 131
    for march in ("bayes-e", "bayes-e.i16", "bernoulli2"):
        assert any(case["name"].endswith(f"-{march}") for case in CASES), march


def check_dump(folder, name):
    record = DUMPS[name]
    content = (folder / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == record["sha256"], "another model"
    check_tensors(load_integer(folder / name), folder, record)


def check_tensors(model, folder, record):
    runner = IntegerRunner(model)
    for sample in record["samples"]:
        file = folder / "calib" / record["input"] / sample["sample"]
        assert hashlib.sha256(file.read_bytes()).hexdigest() == sample["sha256"], "another sample"
        values = {}
        runner.forward({record["input"]: np.load(file)}, keep=values.__setitem__)
        assert values.keys() == sample["tensors"].keys()
        assert not disagreements(model, values, sample["tensors"])


def test_every_tensor_of_the_classifier_is_the_vendors():
    check_dump(FIXTURES / "textline_cls", "cls_quantized_model.onnx")


@pytest.mark.slow
def test_every_tensor_of_the_recognizer_is_the_vendors(tmp_path):
    folder = recognizer_folder()
    name = "rec_quantized_model.onnx"
    if (folder / name).is_file():
        check_dump(folder, name)
    else:  # Only the converter writes it. What is written here has the same tensors.
        hbdebug.quantize(folder / "rec_calibrated_model.onnx", tmp_path / name)
        check_tensors(load_integer(tmp_path / name), folder, DUMPS[name])


def test_the_check_sees_a_single_flipped_bit():
    case = CASES[0]
    model = load_integer(onnx.load_from_string(golden_files()[case["quantized"]]))
    values = all_tensors(model, {name: golden_array(file) for name, file in case["inputs"].items()})
    name = next(name for name, array in values.items() if array.dtype == np.int8)
    values[name] = values[name].copy()
    values[name].reshape(-1)[-1] ^= 1

    assert len(disagreements(model, values, case["tensors"])) == 1


def test_a_run_by_hand():
    # 0.25 / 0.5 is a tie and goes to even, 100 / 0.5 is beyond int8: 127.
    x = np.array([[1.0, 0.25, -64.0, 100.0]], np.float32)

    (y,) = run(load_integer(table_lookup()), {"x": x}).values()

    # Minus 2, 0, -128 and 127, saturated to int8, times 0.25.
    assert y.dtype == np.float32
    assert y.tolist() == [[-0.5, 0.0, 31.75, -31.75]]


def test_an_output_may_be_an_input_of_another_node():
    inputs = {
        "left": np.array([[1, -2]], np.float32),
        "in/right": np.array([[3, 4, -5]], np.float32),
    }

    outputs = run(load_integer(two_inputs()), inputs)

    assert {name: array.dtype.name for name, array in outputs.items()} == {
        "both_out": "int8",
        "both_out_dequantize_out": "float32",
    }
    assert outputs["both_out"].tolist() == [[1, -2, 3, 4, -5]]
    assert outputs["both_out_dequantize_out"].tolist() == [[2, -4, 6, 8, -10]]


def test_tensors_that_nothing_reads_are_made_too():
    b = QuantizedModel()
    x = b.quantize(b.input("x", (1, 4)), 1)
    b.node("Transpose", [x], "unread", perm=[1, 0])
    b.output(b.dequantize(x, 1))

    values = all_tensors(load_integer(b.proto()), {"x": np.ones((1, 4), np.float32)})

    assert values["unread_out"].shape == (4, 1)


def test_tensors_are_forgotten_after_their_last_reader():
    b = QuantizedModel()
    x = b.quantize(b.input("x", (1, 64)), 1)
    table = b.constant("table", np.arange(-128, 128).astype(np.int8))
    for _ in range(12):
        x = b.node("HzLut", [x, table])
    b.output(x, onnx.TensorProto.INT8)
    alive, most = [], []

    def keep(_, array):
        alive.append(weakref.ref(array))
        del array
        gc.collect()
        most.append(sum(reference() is not None for reference in alive))

    run(load_integer(b.proto()), {"x": np.zeros((1, 64), np.float32)}, keep=keep)

    # What the node just read, and what it made.
    assert len(most) == 13
    assert max(most) == 2


def test_watch_is_told_what_happened_in_a_kernel():
    case = next(case for case in CASES if case["name"].startswith("conv_basic"))
    model = load_integer(onnx.load_from_string(golden_files()[case["quantized"]]))
    inputs = {name: golden_array(file) for name, file in case["inputs"].items()}
    seen = {}

    IntegerRunner(model).forward(inputs, watch=seen.__setitem__)

    by_type = {node.op_type: outcome for node, outcome in seen.items()}
    convolution = by_type["HzSQuantizedConv"]
    assert convolution.accumulator is not None
    assert convolution.accumulator.elements == convolution.outputs[0].size
    assert "Transpose" not in by_type


def test_an_input_that_a_kernel_cannot_take_names_the_node():
    b = QuantizedModel()
    x = b.input("x", (1, 4))
    b.output(b.node("HzLut", [x, b.constant("table", np.zeros(256, np.int8))], "look_up"))

    with pytest.raises(ModelError) as caught:
        run(load_integer(b.proto()), {"x": np.zeros((1, 4), np.float32)})

    assert caught.value.where == "node look_up (HzLut)"


def test_an_attribute_that_a_kernel_does_not_know_names_the_node():
    proto = table_lookup()
    proto.graph.node[0].attribute.append(onnx.helper.make_attribute("novelty", 1))

    with pytest.raises(UnsupportedError, match="novelty") as caught:
        run(load_integer(proto), {"x": np.zeros((1, 4), np.float32)})

    assert caught.value.where == "node x_quantize (HzQuantize)"


def test_shapes_that_a_stock_operator_cannot_take_name_the_node():
    model = load_integer(two_inputs())
    inputs = {"left": np.zeros((1, 2), np.float32), "in/right": np.zeros((2, 3), np.float32)}

    with pytest.raises(ModelError, match="ONNX Runtime failed") as caught:
        run(model, inputs)

    assert caught.value.where == "node both (Concat)"


def stock_model(op_type, dtype, extra, attributes):
    """One stock operator on a tensor of some integer type."""
    b = QuantizedModel()
    numbers = {"int8": onnx.TensorProto.INT8, "int16": 5, "int32": 6}
    # Something that makes a loader take it for a quantized model.
    b.output(b.quantize(b.input("side", (1,)), 1), onnx.TensorProto.INT8)
    inputs = [b.input("x", (2, 3), numbers[dtype])]
    for index, value in enumerate(extra):
        constant = np.asarray(value, np.int64 if np.ndim(value) else dtype)
        inputs.append(b.constant(f"extra_{index}", constant))
    b.output(b.node(op_type, inputs, "stock", **attributes), numbers[dtype])
    return load_integer(b.proto())


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize(
    ("op_type", "extra", "attributes", "expected"),
    [
        ("Max", [5], {}, lambda x: np.maximum(x, 5)),
        ("Min", [5], {}, lambda x: np.minimum(x, 5)),
        ("Relu", [], {}, lambda x: np.maximum(x, 0)),
        ("ReduceMax", [], {"axes": [1], "keepdims": 0}, lambda x: x.max(1)),
        ("ReduceMin", [], {"axes": [0], "keepdims": 1}, lambda x: x.min(0, keepdims=True)),
        (
            "Pad",
            [[0, 1, 0, 0], -7],
            {},
            lambda x: np.pad(x, ((0, 0), (1, 0)), constant_values=-7),
        ),
        ("ArgMax", [], {"axis": 1, "keepdims": 0}, lambda x: x.argmax(1)),
        ("Transpose", [], {"perm": [1, 0]}, lambda x: x.T),
        ("Concat", [], {"axis": 0}, lambda x: x),
        ("Slice", [[1], [3], [1]], {}, lambda x: x[:, 1:3]),
        ("Gather", [[2, 0]], {"axis": 1}, lambda x: x[:, [2, 0]]),
        ("Expand", [[2, 2, 3]], {}, lambda x: np.stack([x, x])),
        ("Tile", [[1, 2]], {}, lambda x: np.tile(x, 2)),
        ("Reshape", [[3, -1]], {}, lambda x: x.reshape(3, 2)),
    ],
)
def test_stock_operators_take_integers(dtype, op_type, extra, attributes, expected):
    """ONNX Runtime lacks many of these; nothing of that shows."""
    model = stock_model(op_type, dtype, extra, attributes)
    limits = np.iinfo(dtype)
    x = np.array([[limits.min, -1, 0], [limits.max, 7, limits.max]], dtype)

    values = run(model, {"x": x, "side": np.zeros(1, np.float32)})

    y = values["stock_out"]
    assert y.tolist() == expected(x).tolist()
    assert y.dtype == (np.int64 if op_type == "ArgMax" else dtype)


def test_integers_of_32_bits_stay_exact_on_floats():
    model = stock_model("Transpose", "int32", [], {"perm": [1, 0]})
    # Neighbours that float32 cannot tell apart.
    x = np.array([[2**31 - 1, 2**31 - 2, -(2**31)], [2**24 + 1, 2**24, 0]], np.int32)

    wide = widened(model.node_by_name["stock"], {"x": "int32"})
    runner = Slicer(model).node(wide, {"x": "int32"}, {})

    (y,) = runner.run({"x": x})
    assert [op.op_type for op in wide.body] == ["Cast", "Transpose", "Cast"]
    assert y.dtype == np.int32
    assert y.tolist() == x.T.tolist()


def test_only_what_stays_exact_is_widened():
    b = QuantizedModel()
    x = b.quantize(b.input("x", (1, 4)), 1)
    product = b.node("Mul", [x, x], "product")
    b.output(b.node("Max", [product, x], "maximum"), onnx.TensorProto.INT8)
    nodes = load_integer(b.proto()).node_by_name
    dtypes = {"x_quantize_out": "int8", "product_out": "int8"}

    assert widened(nodes["maximum"], dtypes) is not None
    assert widened(nodes["product"], dtypes) is None, "a product may leave the type"
    assert widened(nodes["maximum"], {**dtypes, "product_out": "int16"}) is None
    assert widened(nodes["maximum"], dict.fromkeys(dtypes, "float32")) is None
    assert widened(nodes["x_quantize"], {"x": "int8", "x_scale": "int8"}) is None
