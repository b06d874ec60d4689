"""Fake-quantization equals the vendor's HzCalibration bit for bit."""

from __future__ import annotations

import onnx
import pytest

from hbdebug.loading import load
from hbdebug.loading.calibration_attributes import after_load, parse
from hbdebug.loading.grid import to_grid
from hbdebug.loading.protobuf import attributes
from hbdebug.quant import fake_quantize, float_passthrough
from tests.loading.golden import Case, by_name, cases, differing_bits

LOADER = cases("hzcal/loader_")
KERNEL = [case for case in cases("hzcal/") if "/loader_" not in case.name]


def test_all_cases_are_there():
    assert (len(KERNEL), len(LOADER)) == (47, 12)


@pytest.mark.parametrize("case", KERNEL, ids=by_name)
def test_kernel_with_the_attributes_verbatim(case: Case):
    (node,) = case.model.graph.node
    x = case.inputs["x"]
    grid = to_grid(parse(attributes(node)), x.ndim)
    if grid.enabled:
        y = fake_quantize(x, grid.params)
    else:
        assert grid.reason
        y = x if grid.params is None else float_passthrough(x, grid.params)
    wrong = differing_bits(y, case.outputs["y"])
    assert not wrong.size, f"{len(wrong)} elements, the first at {wrong[0]}"


def as_before_loading(case: Case) -> onnx.ModelProto:
    """Return the case's model with the attributes that the vendor's loader was given.

    The archive holds the model that came out of it.
    """
    model = case.model
    (node,) = model.graph.node
    del node.attribute[:]
    for name, value in case.record["attrs"].items():
        node.attribute.append(onnx.helper.make_attribute(name, value))
    return model


@pytest.mark.parametrize("case", LOADER, ids=by_name)
def test_loaded_model(case: Case):
    (point,) = load(as_before_loading(case)).points
    assert point.enabled
    wrong = differing_bits(fake_quantize(case.inputs["x"], point.params), case.outputs["y"])
    assert not wrong.size, f"{len(wrong)} elements, the first at {wrong[0]}"


@pytest.mark.parametrize("case", LOADER, ids=by_name)
def test_attributes_after_loading(case: Case):
    (node,) = as_before_loading(case).graph.node
    loaded = after_load(parse(attributes(node)))
    expected = case.record["attrs_after_load"]
    assert loaded.qtype == expected["qtype"]
    assert loaded.flags == expected["quant_attrs"]
    assert loaded.constant == expected["constant"]
    assert loaded.switch == expected["switch"]
    assert loaded.scales.tolist() == expected["scales"]
    assert loaded.thresholds.tolist() == expected["thresholds"]
    assert loaded.zero_point.tolist() == expected.get("zero_point", [])


@pytest.mark.parametrize("case", LOADER, ids=by_name)
def test_loading_what_was_loaded_changes_nothing(case: Case):
    (once,) = load(as_before_loading(case)).points
    (twice,) = load(case.model).points
    assert once.params.same_as(twice.params)
