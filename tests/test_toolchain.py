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
    """Build a model: ``name`` is a point, ``(name, op, *more inputs)`` a node on the last tensor."""
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
        made.insert(0, point(f"{tensor_name}_HzCalibration", tensor_name, f"{tensor_name}q", "weight"))
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


# What was measured, against the rules -------------------------------------------------------------


def test_every_kind_of_maker_in_front_of_a_convolution_is_foretold(bayes):
    right, total, wrong = bayes

    assert total["maker", "cpu"] > 30
    assert total["maker", "int16"] > 30
    assert {key: value for key, value in wrong.items() if key[0] == "maker"} == {}
