"""Every integer equals the vendor's, on the pairs of input and output of its quantizer."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.lowering.convolution import convolution
from hbdebug.lowering.curves import curve
from hbdebug.lowering.elementwise import addition, multiplication, subtraction
from hbdebug.lowering.reduction import reduction
from hbdebug.lowering.steps import requantization
from hbdebug.lowering.table8 import table8
from hbdebug.lowering.table16 import piecewise_table
from tests.lowering.two_layer import all_outputs
from tests.lowering.vendor import cases

COUNTS = {
    "conv": 24,
    "elementwise": 180,
    "lut16": 56,
    "lut8": 82,
    "reduce": 150,
    "requantize": 80,
}


@pytest.mark.parametrize(("family", "count"), COUNTS.items())
def test_all_pairs_are_there(family, count):
    assert len(cases(family)) == count


@pytest.mark.parametrize("number", range(COUNTS["conv"]))
def test_convolution(number):
    case = cases("conv")[number]
    weight = np.array(case["weight"], np.float32).reshape(-1, 1, 1, 1)

    found = convolution(
        weight,
        np.array(case["bias"], np.float32),
        threshold=np.array(case["weight_thresholds"], np.float32),
        input_step=case["input_scale"],
        output_step=case["output_scale"],
        input_bits=case["in_bits"],
        output_bits=case["out_bits"],
    )

    assert found.weight.ravel().tolist() == case["weight_q"]
    assert found.bias.tolist() == case["bias_q"]
    rescale = found.rescale
    differing = (
        (rescale.accumulator_shift != case["right_shift"])
        | (rescale.multiplier != case["scale"])
        | (rescale.output_shift != case["out_shift"])
    )
    # The one open end: a factor at its lower limit is written as (15, 14) or as (16, 13), and how
    # the vendor's float32 decides between two ways of writing the same factor is not known.
    if case["out_bits"] == 16:
        assert (found.requantized | ~differing).all()
        total = np.add(case["right_shift"], case["out_shift"])
        same = (rescale.accumulator_shift + rescale.output_shift == total) & (
            rescale.multiplier == case["scale"]
        )
        assert same[differing].all()
    else:
        assert not differing.any()


@pytest.mark.parametrize("number", range(COUNTS["elementwise"]))
def test_elementwise(number):
    case = cases("elementwise")[number]
    steps = case["s0"], case["s1"], case["so"]
    if case["op"] == "Mul":
        rescale = multiplication(*steps, output_bits=case["out_bits"]).rescale
    else:
        derive = {"Add": addition, "Sub": subtraction}[case["op"]]
        found = derive(
            *steps,
            first_bits=case["in_bits"],
            second_bits=case["in_bits"],
            output_bits=case["out_bits"],
        )
        rescale = found.rescale
        assert found.swapped == case["swapped"]
        assert (found.x_shift, found.e_scale) == (case["x_shift"], case["e_scale"])
        assert found.e_shift == case.get("e_shift", 0)

    assert_rescale(
        rescale, case["accu_right_shift"], case["output_scale"], case["output_right_shift"]
    )


@pytest.mark.parametrize("number", range(COUNTS["reduce"]))
def test_reduction(number):
    case = cases("reduce")[number]
    count = 1 if case["op"] == "HzSQuantizedReduceSum" else case["count"]

    rescale = reduction(case["si"], case["so"], count=count, output_bits=case["out_bits"])

    assert_rescale(rescale, case["accu_right_shift"], case["scale"], case["shift"])


@pytest.mark.parametrize("number", range(COUNTS["requantize"]))
def test_requantization(number):
    case = cases("requantize")[number]

    found = requantization(case["si"], case["so"])

    assert found.multiplier == case["output_scale"]
    assert found.shift == case["output_right_shift"]


@pytest.mark.parametrize("number", range(COUNTS["lut8"]))
def test_int8_table(number):
    case = cases("lut8")[number]
    function = curve(case["op"], case["attrs"], case["const"])

    assert table8(function, case["si"], case["so"]).tolist() == case["table"]


# Number of the case: (largest difference of an output, how many of 65,536 inputs differ). All
# others are equal. These two differ because the vendor's float32 tanh does in the last bit.
INT16_DIFFERENCES = {
    32: (1, 6),  # HzMish
    33: (1, 11),  # HzMish
}


@pytest.mark.parametrize("number", range(COUNTS["lut16"]))
def test_int16_table_gives_the_vendors_outputs(number):
    case = cases("lut16")[number]

    found = piecewise_table(
        case["op"],
        case["attrs"],
        case["const"],
        input_step=case["si"],
        output_step=case["so"],
    )

    assert found.symmetry == case["symmetry_mode"]
    theirs = {name: np.array(case[name]) for name in FIELDS}
    ours = {name: getattr(found, field) for name, field in FIELDS.items()}
    difference = np.abs(
        all_outputs(ours, found.symmetry) - all_outputs(theirs, case["symmetry_mode"])
    )
    measured = (int(difference.max()), int((difference > 0).sum()))
    assert measured == INT16_DIFFERENCES.get(number, (0, 0)), case["op"]


FIELDS = {
    "bound": "bound",
    "scale": "scale",
    "bias": "bias",
    "left_shift": "left_shift",
    "right_shift": "right_shift",
    "table_param": "table",
}


def assert_rescale(rescale, accumulator_shift, multiplier, output_shift):
    found = rescale.accumulator_shift, rescale.multiplier, rescale.output_shift
    assert tuple(map(int, found)) == (accumulator_shift, multiplier, output_shift)
