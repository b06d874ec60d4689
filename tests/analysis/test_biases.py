"""Which biases fit, by hand, and what the derived integers lose."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.analysis.biases import (
    bias_error,
    bias_in_steps,
    clipped,
    nearly_dead,
    overflowing,
    weight_steps,
)
from hbdebug.lowering.convolution import Derivation, convolution, convolution_sums

BITS_OF_SUMS = 32


def derived(weight, bias, *, input_step, output_step=0.0, output_bits=BITS_OF_SUMS, input_bits=8):
    weight = np.asarray(weight, np.float32).reshape(len(weight), -1, 1, 1)
    bias = np.asarray(bias, np.float32)
    threshold = np.abs(weight).max(axis=(1, 2, 3))
    if output_bits == BITS_OF_SUMS:
        integers = convolution_sums(weight, bias, threshold=threshold, input_step=input_step)
    else:
        integers = convolution(
            weight,
            bias,
            threshold=threshold,
            input_step=input_step,
            output_step=output_step,
            input_bits=input_bits,
            output_bits=output_bits,
        )
    return Derivation(
        weight=weight,
        bias=bias,
        threshold=threshold,
        input_step=input_step,
        input_bits=input_bits,
        output_step=output_step,
        output_bits=output_bits,
        integers=integers,
    )


@pytest.mark.parametrize(
    ("bias", "weight_step", "fits"),
    [
        # 2^31 - 1 = 2147483647 and steps of 2^-1 x 2^-9 = 2^-10: float32 holds these exactly.
        (2147483520 * 2.0**-10, 2.0**-9, True),
        (2147483648 * 2.0**-10, 2.0**-9, False),
        (-2147483776 * 2.0**-10, 2.0**-9, False),
        (0.0, 2.0**-149, True),
        # The product of the steps is no float32 above zero.
        (1e-30, 2.0**-149, False),
    ],
)
def test_a_bias_fits_int32_up_to_its_last_integer(bias, weight_step, fits):
    assert bool(overflowing([bias], 0.5, [weight_step])[0]) is not fits


def test_biases_are_counted_in_steps_of_input_times_weight():
    found = bias_in_steps([1.0, -1.25, 0.0], 0.5, [0.25, 0.5, 0.0])

    # 1 / 0.125; 1.25 / 0.25 = 5; a bias of zero needs no step.
    np.testing.assert_array_equal(found, [8, -5, 0])


def test_the_limit_of_the_chip_is_half_that_of_int32():
    bias = [1.5 * 2.0**30 * 0.25]

    assert not overflowing(bias, 0.5, 0.5)[0]
    assert overflowing(bias, 0.5, 0.5, limit=(1 << 30) - 1)[0]


def test_the_converter_keeps_the_bias_of_a_nearly_dead_channel_and_loses_its_weights():
    found = derived(
        [[0.5, -0.3], [1e-9, 5e-10]], [1.0, -4.5], input_step=0.5, output_step=0.05, output_bits=8
    )

    assert nearly_dead(found).tolist() == [False, True]
    assert not clipped(found).any()
    # Limit of the factor: x w = 2^-23 y.
    assert weight_steps(found)[1] == pytest.approx(2.0**-23 * 0.05 / 0.5, rel=1e-6)
    assert not found.integers.weight[1].any()
    # What is left of the bias, by the integers themselves: half a step is for rounding.
    written = (int(found.integers.bias[1]) - 2**22) * 2.0**-23 * 0.05
    assert written == pytest.approx(-4.5, rel=1e-6)
    assert bias_error(found).max() < 1e-5


def test_a_bias_beyond_the_range_of_the_output_sums_is_clipped():
    """The step of an int32 sum is 2^-23 at least, and 2^30 of them are 128."""
    found = derived([[0.5], [1e-9], [1e-9]], [1000.0, 127.0, 200.0], input_step=0.5)

    assert clipped(found).tolist() == [False, False, True]
    assert found.integers.bias[2] == 2**30 - 1
    assert nearly_dead(found).tolist() == [False, True, True]


def test_a_bias_below_half_an_accumulator_step_is_lost():
    """Where the output counts in smaller steps than the accumulator, that shows."""
    # A step of the accumulator is 0.5 x 0.5 = 0.25, one of the output 0.05.
    found = derived([[63.5]], [0.1], input_step=0.5, output_step=0.05, output_bits=8)

    assert bias_error(found)[0] == pytest.approx(2.0, rel=1e-6)  # 0.1 / 0.05
