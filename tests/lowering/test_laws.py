"""What holds for the integers of any steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hbdebug.errors import UnsupportedError
from hbdebug.lowering.convolution import convolution, convolution_sums, transposed_convolution
from hbdebug.lowering.curves import curve, has_curve
from hbdebug.lowering.elementwise import addition, matrix_product, multiplication, subtraction
from hbdebug.lowering.mantissa import channel_rescale, half_away, mantissa, tensor_rescale
from hbdebug.lowering.prelu import prelu, shift_slopes
from hbdebug.lowering.reduction import reduction, sum_step
from hbdebug.lowering.steps import constant_steps, requantization, same_step, step_of_threshold
from hbdebug.lowering.table8 import table8
from hbdebug.lowering.table16 import line, piecewise_table
from tests.lowering.two_layer import all_outputs

pytestmark = pytest.mark.property

# Thresholds between 1e-3 and 1e3 over 127 or 32767 steps.
STEPS = st.floats(2.0**-25, 2.0**3, width=32).map(np.float32)
BITS = st.sampled_from([8, 16])
# What steps like these lead to; the shifts of the chip reach over the whole range.
FACTORS = st.floats(2.0**-22, 2.0**10)

INCREASING = ["Atan", "Erf", "HardSigmoid", "Sigmoid", "Sinh", "Softplus", "Softsign", "Tanh"]


@given(factor=FACTORS)
def test_a_mantissa_has_15_bits_and_is_the_nearest(factor):
    multiplier, shift = mantissa(factor)

    assert 16384 <= multiplier <= 32768
    assert abs(multiplier * 2.0**-shift - factor) <= 0.5 * 2.0**-shift


@given(factor=st.floats(2.0**-15, 2.0**10), bits=BITS)
def test_a_rescale_stands_for_its_factor(factor, bits):
    channel, tensor = channel_rescale(factor, bits), tensor_rescale(factor, bits)

    # Half an ulp of the multiplier, a whole one where 32768 has to become 32767.
    assert abs(channel.factor / factor - 1) <= 2.0**-15
    # Two there: 32766 is the most.
    assert abs(tensor.factor / factor - 1) <= 2.0**-14


@given(factor=FACTORS, bits=BITS)
def test_the_largest_output_passes_between_the_shifts(factor, bits):
    """The first shift is large enough that int16 holds it, and no larger than it needs to be."""
    largest = {8: 127, 16: 32767}[bits] / factor

    shift = int(channel_rescale(factor, bits).accumulator_shift)

    # The quotient of logarithms may round a factor next to a power of two either way.
    assert largest * 2.0**-shift <= 32767 * (1 + 1e-12) or shift == 17
    assert shift == 0 or largest * 2.0 ** (1 - shift) > 32767 * (1 - 1e-12)


@given(values=st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_halves_are_rounded_away_from_zero(values):
    exact = np.array(values)
    rounded = half_away(exact)

    assert (rounded == np.trunc(rounded)).all()
    # Sums of magnitude 1e9 and a half are exact in float64.
    assert (np.abs(rounded - exact) <= 0.5).all()
    ties = np.abs(exact - np.trunc(exact)) == 0.5
    assert (np.abs(rounded[ties]) > np.abs(exact[ties])).all()
    assert (half_away(-exact) == -rounded).all()


def test_ties_of_each_sign():
    assert half_away([0.5, 1.5, 2.5, -0.5, -1.5, -2.5]).tolist() == [1, 2, 3, -1, -2, -3]
    assert np.isnan(half_away([np.nan])).all()


def test_a_factor_of_one_is_written_with_the_largest_multiplier():
    assert int(tensor_rescale(1.0, 8).multiplier) == 32766
    assert int(tensor_rescale(1.0, 8).output_shift) == 15


@given(source=STEPS, target=STEPS)
def test_a_requantization_stands_for_the_ratio(source, target):
    found = requantization(source, target)
    ratio = float(source) / float(target)

    assert 0 < found.multiplier <= 32767
    assert 0 <= found.shift <= 31
    if 2.0**-16 <= ratio < 32767:
        # An ulp of the multiplier, and the float32 quotient.
        assert abs(found.multiplier * 2.0**-found.shift / ratio - 1) <= 2.0**-14


@given(step=STEPS)
def test_a_step_is_the_same_as_itself_and_its_neighbour_but_no_other(step):
    assert same_step(step, step)
    assert same_step(step, np.nextafter(step, np.float32(9)))
    assert not same_step(step, step * np.float32(1.0001))


@given(weights=st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3), x=STEPS, y=STEPS)
def test_weights_and_biases_of_a_convolution_are_the_nearest_integers(weights, x, y):
    weight = np.array(weights, np.float32).reshape(3, 1, 1, 1)
    bias = np.array([0.5, 0, -0.5], np.float32)

    found = convolution(weight, bias, threshold=[3], input_step=x, output_step=y)

    steps = found.weight_step.astype(np.float64)
    assert (found.weight.ravel() == np.clip(half_away(weight.ravel() / steps), -128, 127)).all()
    assert (found.requantized == (steps != np.float64(step_of_threshold(3, 8)))).all()
    if not found.requantized.any():
        sums = (np.float32(x) * found.weight_step).astype(np.float64)
        # Half a step for the bias, half one for the rounding term.
        expected = np.clip(bias / sums + 0.5 * y / sums, -(2.0**30), 2.0**30 - 1)
        assert (np.abs(found.bias - expected) <= 1).all()


def test_a_dead_channel_is_counted_in_larger_steps():
    weight = np.array([1e-9, 1.0], np.float32).reshape(2, 1, 1, 1)

    found = convolution(weight, None, threshold=[1e-9, 1.0], input_step=0.01, output_step=0.1)

    assert found.requantized.tolist() == [True, False]
    assert found.weight.ravel().tolist() == [0, 127]
    # Half an output step, even where the float node has no bias.
    assert (found.bias > 0).all()


def test_an_exploding_channel_is_counted_in_smaller_steps():
    weight = np.full((1, 1, 1, 1), 2e6, np.float32)

    found = convolution(weight, None, threshold=[1e8], input_step=1.0, output_step=1.0)
    limited = convolution_sums(weight, None, threshold=[1e8], input_step=1.0)

    assert found.requantized.all()
    assert limited.requantized.all()
    assert limited.step.tolist() == [32767.0]
    assert limited.bias is None
    # 2e6 / 32767, rounded.
    assert found.weight.item() == limited.weight.item() == 61


def test_groups_of_a_transposed_convolution_have_thresholds_of_their_own():
    weight = np.array([[1, 1], [2, 2], [4, 4], [8, 8]], np.float32).reshape(4, 2, 1, 1)

    found = transposed_convolution(
        weight, None, threshold=[2, 4, 8, 16], input_step=0.1, output_step=0.1, group=2
    )

    # Rows 0 and 1 are group 0 with channels 0 and 1, rows 2 and 3 group 1 with 2 and 3.
    assert found.weight.reshape(4, 2).tolist() == [[64, 32], [127, 64], [64, 32], [127, 64]]


@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=2))
def test_the_bias_of_a_transposed_convolution_keeps_16_bits(values):
    arguments = {"threshold": [1.0], "input_step": 0.01, "output_step": 0.1}
    bias = np.array(values, np.float32)
    plain = convolution(np.ones((2, 1, 1, 1), np.float32), bias, **arguments)

    found = transposed_convolution(np.ones((1, 2, 1, 1), np.float32), bias, **arguments)

    assert (np.abs(found.bias) <= 32768).all()
    restored = found.bias.astype(np.int64) << found.bias_shift
    assert (np.abs(restored - plain.bias) < (np.int64(1) << found.bias_shift)).all()
    assert (np.abs(restored) <= np.abs(plain.bias.astype(np.int64))).all()


@given(first=STEPS, second=STEPS, output=STEPS, bits=BITS)
def test_sums_are_counted_alike_whatever_the_order(first, second, output, bits):
    one = addition(first, second, output, output_bits=bits)
    other = addition(second, first, output, output_bits=bits)

    assert (one.x_shift, one.e_scale) == (other.x_shift, other.e_scale)
    assert one.rescale.factor == other.rescale.factor
    assert one.swapped == (second > first)
    ratio = min(float(first), float(second)) / max(float(first), float(second))
    # Half an ulp of e_scale.
    assert abs(one.e_scale - ratio * 2.0**one.x_shift) <= 0.5


@given(first=STEPS, second=STEPS, output=STEPS)
def test_a_difference_is_a_sum_with_a_negative_multiplier_if_swapped(first, second, output):
    total, difference = (derive(first, second, output) for derive in (addition, subtraction))

    sign = -1 if second > first else 1
    assert difference.rescale.factor == sign * total.rescale.factor
    assert difference.e_scale == total.e_scale


def test_bernoulli2_rounds_by_other_means():
    sums = addition(0.1, 0.05, 0.2, march="bernoulli2")

    assert (sums.x_shift, sums.e_scale, sums.rounding_method) == (6, 32, "FLOOR")
    assert multiplication(0.1, 0.05, 0.2, march="bernoulli2").add_rounding_bias
    assert not multiplication(0.1, 0.05, 0.2).add_rounding_bias
    with pytest.raises(UnsupportedError, match="bernoulli2"):
        subtraction(0.1, 0.05, 0.2, march="bernoulli2")


def test_residuals_of_bernoulli2_have_whole_multipliers():
    weight = np.ones((1, 1, 1, 1), np.float32)
    arguments = {"threshold": [1.0], "input_step": 0.1, "output_step": 0.1, "residual_step": 0.05}

    bayes = convolution(weight, None, **arguments).residual
    bernoulli2 = convolution(weight, None, march="bernoulli2", **arguments).residual

    # 0.05 / (0.1 / 127) = 63.5 in reals; 0.05 and 0.1 are not, and above half in float32.
    assert bernoulli2.multiplier.tolist() == [64]
    assert bernoulli2.shift.tolist() == [0]
    assert bayes.multiplier[0] * 2.0 ** bayes.shift[0] == pytest.approx(63.5, rel=2.0**-14)


@given(step=STEPS, output=STEPS, count=st.integers(1, 4096), bits=BITS)
def test_the_count_of_a_mean_is_in_its_factor(step, output, count, bits):
    factor = float(step) / (float(output) * count)
    if 2.0**-15 <= factor < 2.0**10:
        found = reduction(step, output, count=count, output_bits=bits).factor
        # An ulp of the multiplier, and the float32 product.
        assert abs(found / factor - 1) <= 2.0**-14
    assert sum_step(step, count) == np.float32(step) / np.float32(count)


@given(first=STEPS, second=STEPS, output=STEPS)
def test_matrix_products_have_the_factor_of_products(first, second, output):
    product, matrix = (derive(first, second, output) for derive in (multiplication, matrix_product))
    factor = float(np.float32(first) * np.float32(second)) / float(output)
    if 2.0**-15 <= factor < 2.0**10:
        # The multipliers end at 32766 and 32767.
        assert float(product.rescale.factor) == pytest.approx(
            float(matrix.rescale.factor), rel=2.0**-13
        )


@pytest.mark.parametrize("op_type", INCREASING)
@given(x=STEPS, y=STEPS)
def test_tables_of_increasing_functions_increase(op_type, x, y):
    table = table8(curve(op_type, {}), x, y).astype(int)

    assert (np.diff(table) >= 0).all()


def test_entries_without_value_are_the_smallest():
    logarithms = table8(curve("Log", {}), 0.1, 0.1)

    assert (logarithms[:128] == -128).all()  # NaN
    assert logarithms[128] == -128  # minus infinity
    assert table8(curve("Reciprocal", {}), 0.1, 0.1)[128] == 127  # plus infinity


def test_hard_sigmoid_ignores_its_parameters():
    paddle = curve("HardSigmoid", {"alpha": 0.2, "beta": 0.5})
    x = np.linspace(-4, 4, 9)

    # An ulp or two: the sum is taken before the quotient.
    assert np.abs(paddle(x) - np.clip(x / 6 + 0.5, 0, 1)).max() < 1e-15


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op_type", ["Sigmoid", "HzGelu", "HzMish", "Elu", "Selu", "HzRsqrt"])
def test_curves_keep_the_precision_of_their_argument(op_type, dtype):
    assert curve(op_type, {"epsilon": 1e-5})(np.ones(3, dtype)).dtype == dtype


def test_an_unknown_function_is_named():
    assert not has_curve("Acosh")
    with pytest.raises(UnsupportedError, match="Acosh"):
        curve("Acosh", {})


@pytest.mark.parametrize(
    ("op_type", "x", "y", "tolerance"),
    [
        # Rounding an entry, a step between entries and the index costs half a step or so each, the
        # curve between two entries (a 63rd of a table's width apart) the rest.
        ("Sigmoid", 8 / 32767, 1 / 32767, 3),
        ("Tanh", 4 / 32767, 1 / 32767, 3),
        ("HzSwish", 8 / 32767, 8 / 32767, 4),
        ("Sqrt", 4 / 32767, 2 / 32767, 36),  # It rises vertically from zero.
    ],
)
def test_int16_tables_follow_their_function(op_type, x, y, tolerance):
    table = piecewise_table(op_type, {}, (), input_step=x, output_step=y)
    fields = {
        "bound": table.bound,
        "scale": table.scale,
        "bias": table.bias,
        "left_shift": table.left_shift,
        "right_shift": table.right_shift,
        "table_param": table.table,
    }
    q = np.arange(-32768, 32768)
    exact = curve(op_type, {})(q * x) / y
    inside = ~np.isnan(exact)

    found = all_outputs(fields, table.symmetry)

    assert np.abs(found - np.clip(exact, -32768, 32767))[inside].max() <= tolerance


@given(slope=st.floats(-100, 100), intercept=st.floats(-30000, 30000))
def test_a_line_in_integers_follows_the_line(slope, intercept):
    found = line(slope, intercept)

    q = np.arange(-300, 301, 100)
    ours = (found.scale * q + (found.bias << found.left_shift)) / 2.0**found.right_shift
    # Half an ulp of the scale for each q and half one of the bias.
    unit = 2.0**-found.right_shift
    tolerance = 0.5 * unit * (np.abs(q) + 2.0**found.left_shift) + 1e-9
    assert (np.abs(ours - (slope * q + intercept)) <= tolerance).all()


def test_slopes_that_wrap_are_named():
    found = prelu(np.array([0.25, 0.1, -0.3], np.float32), 0.5)

    assert found.wrapped.tolist() == [False, False, True]
    assert found.slope.tolist() == [32767, 13107, 26216]
    with pytest.raises(ValueError, match="no slope is positive"):
        prelu(np.array([-0.25], np.float32), 0.5)


@given(slope=st.floats(-0.5, 0.875, width=32))
def test_shift_slopes_stand_for_their_slope(slope):
    found = shift_slopes(np.array([slope], np.float32))

    # Half a unit of the scale.
    assert abs(found.scale[0] * 2.0 ** -found.shift[0] - slope) <= 0.5 * 2.0 ** -found.shift[0]


@given(values=st.lists(st.floats(-10, 10, width=32), min_size=1), step=STEPS, bits=BITS)
def test_constants_saturate(values, step, bits):
    found = constant_steps(values, step, bits)

    assert np.abs(found + 0.5).max() <= 2.0 ** (bits - 1) - 0.5
