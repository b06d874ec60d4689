"""Custom float operators, written with stock ones, equal the vendor's."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.errors import UnsupportedError
from hbdebug.loading.operators import LOWERINGS
from hbdebug.model import Assignment
from tests.loading.golden import Case, by_name, cases, differing_bits, largest_error
from tests.loading.one_node_walk import build, run_all

# Operators are written differently for different opsets; 11 is what the vendor writes.
OPSETS = (10, 11, 13, 18, 20)

# Largest absolute error by operator; what is not listed is exact. In brackets what was measured
# (x86-64 with AVX-512, ONNX Runtime 1.32).
TOLERANCES = {
    # One multiplication of float32 coordinates is ordered differently: pixels off by 1e-6 of an
    # image with values up to 3 (2.4e-7; 2.6e-6 for the widened image of bicubic border).
    "GridSample": 5e-6,
    "GridSamplePlugin": 5e-6,
    # ONNX Runtime has no Erf in float64: an ulp of results between 4 and 8 (4.8e-7). The tanh
    # form is float64 throughout (1.5e-14) but shares the entry.
    "HzGelu": 5e-7,
    # The mean is summed in another order (4.8e-7).
    "HzLayerNorm": 1e-6,
    # expf and logf of the vendor's libm are not correctly rounded everywhere (1.3e-7).
    "HzMish": 1e-6,
    # Interpolation between values up to 3, in case a CPU fuses multiply and add (0).
    "HzResize11_linear": 1e-6,
    # ONNX Runtime's Exp is an ulp off, and the sum has another order (1.2e-7).
    "HzSoftmax": 2e-7,
}


@pytest.fixture(params=OPSETS)
def opset(request) -> int:
    return request.param


def at_opset(case: Case, opset: int):
    model = case.model
    for entry in model.opset_import:
        if entry.domain == "":
            entry.version = opset
    return build(model)


def tolerance_of(case: Case) -> float:
    name = case.name.split("/")[1]
    return max((t for op, t in TOLERANCES.items() if name.startswith(op)), default=0.0)


def test_every_lowering_has_golden_cases():
    kinds = {
        node.op_type
        for folder in ("ops/", "preprocess/", "shared/")
        for case in cases(folder)
        for node in case.model.graph.node
    }
    assert {op_type for _, op_type in LOWERINGS} <= kinds


@pytest.mark.parametrize("case", [*cases("ops/"), *cases("shared/")], ids=by_name)
def test_operator(case: Case, opset: int):
    if opset == 10 and "HzResize11" in case.name:
        with pytest.raises(UnsupportedError, match="needs opset 11"):
            at_opset(case, opset)
        return
    values = run_all(at_opset(case, opset), case.inputs, Assignment())
    for name, expected in case.outputs.items():
        if "HzSwish" in case.name:
            continue
        assert largest_error(values[name], expected) <= tolerance_of(case)


def test_swish_is_two_ulp_off_at_most(opset: int):
    # The vendor's expf is not correctly rounded everywhere, and its error passes two roundings.
    (case,) = cases("ops/HzSwish")
    values = run_all(at_opset(case, opset), case.inputs, Assignment())
    actual, expected = values["y0"], case.outputs["y0"]
    assert np.array_equal(np.isnan(actual), np.isnan(expected))
    finite = np.isfinite(expected)
    assert np.array_equal(
        actual[~np.isnan(actual) & ~finite], expected[~np.isnan(expected) & ~finite]
    )
    ulps = np.abs(actual[finite] - expected[finite]) / np.spacing(np.abs(expected[finite]))
    assert ulps.max() <= 2
    # That happens at one element in five thousand; one rounding less would show at many.
    assert (ulps > 0).mean() < 0.001


@pytest.mark.parametrize("case", cases("preprocess/"), ids=by_name)
def test_preprocessing_is_bit_exact_also_with_a_colour_matrix(case: Case):
    values = run_all(build(case.model), case.inputs, Assignment())
    (expected,) = case.outputs.values()
    (name,) = case.outputs
    assert not differing_bits(values[name], expected).size


@pytest.mark.parametrize("case", cases("preprocess/RGB_to_YUV444_128_ms"), ids=by_name)
def test_preprocessing_with_a_weight_of_unknown_shape_is_a_convolution(case: Case):
    model = case.model
    (weight,) = (t for t in model.graph.initializer if t.name == model.graph.node[0].input[1])
    # Behind an operator whose output shape the file does not state, the shape is not known.
    model.graph.node[0].input[1] = "computed"
    model.graph.node.add(op_type="Identity", name="copy", input=[weight.name], output=["computed"])
    loaded = build(model)
    assert [op.op_type for op in loaded.node_by_name[model.graph.node[0].name].body] == ["Conv"]
    values = run_all(loaded, case.inputs, Assignment())
    ((name, expected),) = case.outputs.items()
    # One float32 ulp of values up to 510: Conv fuses multiplications and additions.
    assert largest_error(values[name], expected) <= 6.2e-5
