"""The rules of lifting foretell what the vendor's converter was measured to do."""

from __future__ import annotations

import importlib.util
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from hbdebug.errors import UsageError
from hbdebug.loading import load
from hbdebug.model import Assignment, Node, Point, QuantModel
from hbdebug.quant import QuantParams
from hbdebug.toolchain import (
    MARCHES,
    all_int16,
    check_march,
    int16_refusal,
    int16_where_allowed,
    lift,
    lifted,
    suggested_action,
)

ROOT = Path(__file__).parent.parent
CASES = ROOT / "fixtures" / "lift_rules.json.xz"


# Single cases that no rule was found for; docs/lift_rules.md tells them.
KNOWN_WRONG = {
    "last": set(),
    "node": {
        ("node", "conv -> add", ("T", "int16")),
        ("node", "conv -> conv_add", ("T", "int16")),
        ("node", "mul -> conv_add", ("T", "int16")),
        ("node", "mul -> reduce_mean", ("T", "cpu")),
    },
    "shared": {
        ("shared", "input -> conv, leaky", ("T", "cpu"), ("U", "cpu")),
        ("shared", "conv -> mul, leaky", ("T", "cpu"), ("U", "int16")),
        ("shared", "conv -> global_average, leaky", ("T", "cpu"), ("U", "int16")),
        ("shared", "mul -> mul, leaky", ("T", "cpu"), ("U", "int16")),
        ("shared", "mul -> global_average, leaky", ("T", "cpu"), ("U", "int16")),
    },
    "model": {
        ("model", "textline_cls", ("Add@43", "cpu")),
        ("model", "textline_rec", ("p2o.Add.260", "int16")),
    },
}


@lru_cache(maxsize=1)
def measuring():
    """Return the script that measured, for its reading of the cases."""
    path = ROOT / "benchmarks" / "measure_lift_rules.py"
    spec = importlib.util.spec_from_file_location("measure_lift_rules", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=1)
def cases():
    return measuring().read_cases(CASES)


def scores(march):
    """Return (right, total) by (group, kind of setting), and what is wrong."""
    script, right, total, wrong = measuring(), Counter(), Counter(), {}
    for case in cases():
        if case["march"] != march:
            continue
        model = script.quant_model(case)
        for setting, changed in case["measured"]:
            key = (case["group"], script.kind_of(setting))
            inputs = script.wrong_inputs(case, model, setting, changed)
            total[key] += 1
            right[key] += not inputs
            if inputs:
                wrong[(case["group"], case["name"], *sorted(setting.items()))] = inputs
    return right, total, wrong


@pytest.fixture(scope="module")
def bayes():
    return scores("bayes-e")


def chain(*steps, graph_input="x"):
    """Build a chain: a string is a point, ``(name, op, *more inputs)`` a node."""
    made, tensor = [], graph_input
    constants = {}
    for step in steps:
        if isinstance(step, str):
            made.append(point(f"{step}_HzCalibration", tensor, f"{step}_calibrated"))
        else:
            name, op_type, *more = step
            made.append(node(name, op_type, (tensor, *more)))
        tensor = made[-1].outputs[0]
    for tensor_name in ("w", "w2"):
        constants[tensor_name] = np.ones((1, 1, 1, 1), np.float32)
        made.insert(
            0, point(f"{tensor_name}_HzCalibration", tensor_name, f"{tensor_name}q", "weight")
        )
    return model(made, constants)


def point(name, source, output, role="activation", dtype="int8"):
    limit = {"int8": 127, "int16": 32767}[dtype]
    params = QuantParams(
        dtype=dtype,
        scale=np.float32(2 / limit).reshape(()),
        zero_point=np.zeros((), np.float32),
        threshold=np.array([2.0]),
    )
    return Point(name=name, role=role, input=source, output=output, params=params)


def node(name, op_type, inputs, **attributes):
    return Node(
        name=name,
        op_type=op_type,
        domain="",
        inputs=inputs,
        outputs=(f"{name}_o",),
        attributes=attributes,
        body=(),
    )


def model(steps, constants=None):
    return QuantModel(
        path="m.onnx",
        sha256="",
        kind="",
        producer="",
        opset=11,
        inputs=(),
        outputs=(),
        steps=tuple(steps),
        constants=constants or {},
    )


def two_convolutions():
    return chain("x", ("c1", "Conv", "wq"), "y", ("c2", "Conv", "w2q"), "z", ("s", "Sigmoid"))


def residual():
    """Two convolutions that read one point."""
    steps = [
        *(point(f"{w}_HzCalibration", w, f"{w}q", "weight") for w in ("w", "w2", "w3")),
        point("x_HzCalibration", "x", "xq"),
        node("c1", "Conv", ("xq", "wq")),
        point("y_HzCalibration", "c1_o", "yq"),
        node("c2", "Conv", ("yq", "w2q")),
        node("c3", "Conv", ("yq", "w3q")),
    ]
    return model(steps, {w: np.ones((1, 1, 1, 1), np.float32) for w in ("w", "w2", "w3")})


# What was measured, against the rules -------------------------------------------------------------


def test_every_kind_of_maker_in_front_of_a_convolution_is_foretold(bayes):
    _, total, wrong = bayes

    assert total["maker", "cpu"] > 30
    assert total["maker", "int16"] > 30
    assert {key: value for key, value in wrong.items() if key[0] == "maker"} == {}


def test_the_last_node_is_foretold(bayes):
    _, total, wrong = bayes

    assert total["last", "cpu"] > 30
    assert {key for key in wrong if key[0] == "last"} == KNOWN_WRONG["last"]


def test_every_kind_of_node_that_is_set_is_foretold(bayes):
    _, total, wrong = bayes

    assert total["node", "cpu"] > 75
    assert {key for key in wrong if key[0] == "node"} == KNOWN_WRONG["node"]


def test_shared_points_are_foretold(bayes):
    _, total, wrong = bayes

    assert total["shared", "cpu"] > 85
    assert {key for key in wrong if key[0] == "shared"} == KNOWN_WRONG["shared"]


def test_settings_on_the_real_models_are_foretold(bayes):
    right, total, wrong = bayes

    assert total["model", "all int16"] == right["model", "all int16"] == 2
    assert total["model", "cpu"] + total["model", "int16"] > 55
    assert {key for key in wrong if key[0] == "model"} == KNOWN_WRONG["model"]


@pytest.mark.parametrize("setting", ["cpu", "int16"])
def test_nine_in_ten_settings_on_random_nets_are_foretold(bayes, setting):
    right, total, _ = bayes

    # These nets were not used to make the rules, so this is a bar and not a fit.
    assert total["random", setting] > 80
    assert right["random", setting] >= 0.9 * total["random", setting]


def test_bernoulli2_is_foretold_as_well_as_a_spot_check_tells():
    right, total, _ = scores("bernoulli2")

    assert total["random", "cpu"] > 12
    assert right["random", "cpu"] >= 0.8 * total["random", "cpu"]


@pytest.mark.parametrize("backwards", [False, True])
def test_the_order_of_lifting_does_not_matter(backwards):
    script, tried = measuring(), 0
    for case in cases():
        quant_model = script.quant_model(case)
        base = Assignment.as_calibrated(quant_model)
        for setting, _ in case["measured"]:
            if len(setting) == 1:
                continue
            assignment, before = base, {}
            for name in sorted(setting, reverse=backwards):
                to = setting[name]
                refused = int16_refusal(quant_model.node_by_name[name], quant_model, case["march"])
                if to == "int16" and refused:
                    continue
                step = lift(quant_model, assignment, name, case["march"], to=to, after=before)
                assignment = assignment.changed(step.changes, bypassed=step.bypassed)
                before[name] = to
            together = lifted(quant_model, base, setting, case["march"])
            tried += 1

            found = script.assigned_types(quant_model, assignment)

            assert found == script.assigned_types(quant_model, together), (case["name"], setting)
    assert tried > 100


# A lift, in words and numbers --------------------------------------------------------------------


def test_a_private_point_behind_a_convolution_goes_with_the_weights():
    quant_model = two_convolutions()
    base = Assignment.as_calibrated(quant_model)

    found = lift(quant_model, base, "c2", "bayes-e", to="cpu")

    assert found.changes == {"w2_HzCalibration": None, "y_HzCalibration": None}
    assert found.bypassed == frozenset()
    assert set(found.described) == {
        "w2_HzCalibration int8 -> float",
        "y_HzCalibration int8 -> float",
    }
    assert found.notes == ()


def test_int16_keeps_the_threshold_and_the_weights():
    quant_model = two_convolutions()
    base = Assignment.as_calibrated(quant_model)

    found = lift(quant_model, base, "c2", "bayes-e")

    assert (found.to, list(found.changes)) == ("int16", ["y_HzCalibration"])
    assert found.changes["y_HzCalibration"].same_as(
        quant_model.point_by_name["y_HzCalibration"].params.to_int16()
    )
    assert found.described == ("y_HzCalibration int8 -> int16",)


def test_a_shared_point_stays_for_the_other_reader():
    quant_model = residual()
    base = Assignment.as_calibrated(quant_model)

    one = lift(quant_model, base, "c2", "bayes-e", to="cpu")
    both = lifted(quant_model, base, {"c2": "cpu", "c3": "cpu"}, "bayes-e")

    assert set(one.changes) == {"w2_HzCalibration"}
    assert set(both) == {"x_HzCalibration", "w_HzCalibration"}


def test_a_cpu_node_reads_the_graphs_input_in_front_of_a_point_that_stays():
    steps = [
        point("x_HzCalibration", "x", "xq"),
        node("s", "Sigmoid", ("xq",)),
        node("t", "Tanh", ("xq",)),
        point("s_HzCalibration", "s_o", "sq"),
        point("t_HzCalibration", "t_o", "tq"),
        node("m", "Mul", ("sq", "tq")),
    ]
    quant_model = model(steps)

    found = lift(quant_model, Assignment.as_calibrated(quant_model), "s", "bayes-e", to="cpu")

    assert found.changes == {}
    assert found.bypassed == {("s", 0)}
    assert found.described == ("s input 0 reads float",)


def test_a_fused_sum_that_comes_apart_is_noted():
    steps = [
        point("w_HzCalibration", "w", "wq", "weight"),
        point("x_HzCalibration", "x", "xq"),
        node("c", "Conv", ("xq", "wq")),
        point("r_HzCalibration", "r", "rq"),
        node("add", "Add", ("rq", "c_o")),
    ]
    quant_model = model(steps, {"w": np.ones((1, 1, 1, 1), np.float32)})

    found = lift(quant_model, Assignment.as_calibrated(quant_model), "add", "bayes-e")

    assert list(found.changes) == ["r_HzCalibration"]
    assert "no longer fused" in found.notes[0]
    assert "c_o" in found.notes[0]


def test_a_point_in_float_stays_in_float():
    quant_model = two_convolutions()
    base = Assignment.as_calibrated(quant_model).changed({"y_HzCalibration": None})

    assert lift(quant_model, base, "c2", "bayes-e", to="int16").changes == {}


def test_a_node_lifted_anew_loses_its_old_setting():
    quant_model = two_convolutions()
    base = Assignment.as_calibrated(quant_model)
    first = lifted(quant_model, base, {"c2": "cpu"}, "bayes-e")

    again = lift(quant_model, first, "c2", "bayes-e", to="int16", after={"c2": "cpu"})

    expected = lifted(quant_model, base, {"c2": "int16"}, "bayes-e")
    assert first.changed(again.changes).key == expected.key


def test_on_other_marches_the_notes_say_what_was_not_measured():
    quant_model = two_convolutions()
    base = Assignment.as_calibrated(quant_model)

    assert "not measured" in lift(quant_model, base, "c2", "nash-e").notes[0]
    assert "spot-checked" in lift(quant_model, base, "c2", "bernoulli2").notes[0]
    assert lift(quant_model, base, "c2", "bernoulli2").to == "cpu"


def test_int16_that_the_integer_model_takes_back_is_noted():
    quant_model = model(
        [
            point("x_HzCalibration", "x", "xq"),
            node("c", "Conv", ("xq", "w"), dilations=[2, 2], kernel_shape=[3, 3]),
        ]
    )

    found = lift(quant_model, Assignment.as_calibrated(quant_model), "c", "bayes-e")

    assert "the integer model brings its input back to int8" in found.notes[0]


@pytest.mark.parametrize(
    ("built", "march", "reason"),
    [
        (node("n", "MatMul", ("a", "b")), "bayes-e", "MatMul of two activations takes int8 only"),
        (node("n", "GlobalAveragePool", ("a",)), "bayes", "GlobalAveragePool takes int8 only"),
        (node("n", "ReduceSum", ("a",), axes=[2, 3]), "bayes-e", "over H and W runs in float"),
        (node("n", "Conv", ("a", "w"), kernel_shape=[3]), "bayes-e", "1-D Conv runs in float"),
        (node("n", "Softmax", ("a",)), "bayes-e", "Softmax runs in float"),
        (node("n", "HzFilter", ("a",)), "bayes-e", "was not measured"),
        (node("n", "Conv", ("a", "w"), kernel_shape=[3, 3]), "bernoulli2", "has no int16"),
    ],
)
def test_int16_is_refused_in_words(built, march, reason):
    assert reason in int16_refusal(built, model([built]), march)


@pytest.mark.parametrize(
    ("built", "march"),
    [
        (node("n", "ReduceSum", ("a",), axes=[1]), "bayes-e"),
        (node("n", "Conv", ("a", "w"), kernel_shape=[3, 3]), "bayes"),
        (node("n", "HzHardSwish", ("a",)), "bayes-e"),
        (node("n", "MatMul", ("a", "b")), "nash-e"),
    ],
)
def test_int16_is_not_refused_where_it_was_measured_or_documented(built, march):
    assert int16_refusal(built, model([built]), march) == ""


def test_a_refused_setting_an_unknown_node_and_an_unknown_march_are_errors():
    quant_model = two_convolutions()
    base = Assignment.as_calibrated(quant_model)

    with pytest.raises(UsageError, match="c1 cannot be set to int16: bernoulli2 has no int16"):
        lift(quant_model, base, "c1", "bernoulli2", to="int16")
    with pytest.raises(UsageError, match="no node named 'c9'"):
        lifted(quant_model, base, {"c9": "cpu"}, "bayes-e")
    with pytest.raises(UsageError, match="no such march: 'bayese'") as caught:
        check_march("bayese")
    assert "bayes-e" in caught.value.hint
    assert all(check_march(march) == march for march in MARCHES)


def test_actions_are_suggested_with_their_reason():
    quant_model = two_convolutions()
    names = quant_model.node_by_name

    assert suggested_action(names["c2"], quant_model, "bayes-e") == ("int16", "")
    assert suggested_action(names["c2"], quant_model, "bernoulli2")[0] == "cpu"
    relu = node("relu", "Relu", ("q",))
    assert suggested_action(relu, model([relu]), "bayes-e")[0] == "keep"


def test_all_int16_leaves_only_the_weights():
    quant_model = residual()

    found = all_int16(quant_model, Assignment.as_calibrated(quant_model))

    assert {name: params.dtype for name, params in found.items()} == {
        point.name: "int8" if point.role == "weight" else "int16" for point in quant_model.points
    }


def test_of_the_classifiers_points_those_that_pooling_reads_stay_int8():
    quant_model = load(ROOT / "fixtures" / "textline_cls" / "cls_calibrated_model.onnx")

    found = int16_where_allowed(quant_model, Assignment.as_calibrated(quant_model), "bayes-e")

    kept = [
        point
        for point in quant_model.points
        if point.role == "activation" and found[point.name].dtype == "int8"
    ]
    readers = [{reader.op_type for reader, _ in quant_model.consuming_nodes(p)} for p in kept]
    assert readers == [{"GlobalAveragePool", "Mul"}] * 9
