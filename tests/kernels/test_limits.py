"""What wraps, what saturates, how ties round: cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.errors import UnsupportedError
from hbdebug.kernels import KERNELS, AccumulatorReport
from hbdebug.kernels.arithmetic import Accumulator, exact_float


def run(operator, *inputs, **attributes):
    return KERNELS["horizon", operator](*inputs, **attributes)


def conv(x, w, b=None, *, s=None, shift=0, scale=16384, out_shift=14, bits=8, **more):
    """Run a 1x1 convolution of one pixel; the default way to the output divides by 1."""
    return run(
        "HzSQuantizedConv",
        np.asarray(x).reshape(1, 1, 1, -1),
        np.array(w, np.int8).reshape(1, 1, 1, -1),
        None if b is None else np.array([b], np.int32),
        None,
        None if s is None else np.array(s, np.int8).reshape(1, 1, 1, 1),
        right_shift=[shift],
        scale=[scale],
        out_shift=[out_shift],
        output_bit=bits,
        data_format="NHWC",
        report=True,
        **more,
    )


def value(outcome):
    return int(outcome.outputs[0].ravel()[0])


def int8(*values):
    return np.array(values, np.int8)


def int16(*values):
    return np.array(values, np.int16)


def test_an_accumulator_wraps_around():
    # 2^31 - 1 + 1 becomes -2^31, which int16 in the middle holds as -2^15.
    outcome = conv(int8(1), [1], (1 << 31) - 1, shift=16, scale=1, out_shift=0, bits=16)

    assert value(outcome) == -(1 << 15)
    assert outcome.accumulator == AccumulatorReport(
        smallest=1 << 31,
        largest=1 << 31,
        wrapped=1,
        saturated_middles=0,
        saturated_outputs=0,
        elements=1,
    )


def test_an_accumulator_wraps_around_below():
    outcome = conv(int8(-1), [1], -(1 << 31), high_precision_output=1, bits=32)

    assert value(outcome) == (1 << 31) - 1
    assert outcome.accumulator.wrapped == 1
    assert outcome.accumulator.smallest == -(1 << 31) - 1


def test_the_largest_accumulator_does_not_wrap():
    outcome = conv(int8(0), [1], (1 << 31) - 1, high_precision_output=1, bits=32)

    assert value(outcome) == (1 << 31) - 1
    assert outcome.accumulator.wrapped == 0


def test_the_smallest_sum_that_can_leave_int32_wraps():
    # -128 * -1 is as large as one int8 product of this weight gets, so the bound is 2^31, just met.
    outcome = conv(int8(-128), [-1], (1 << 31) - 128, high_precision_output=1, bits=32)

    assert value(outcome) == -(1 << 31)
    assert outcome.accumulator.wrapped == 1


@pytest.mark.parametrize(("second", "expected"), [(-41, 22324), (-42, 22323)])
def test_a_global_average_of_a_large_image_rounds_half_up(second, expected):
    # The sum exceeds 2^23: 300 * 300 * 127 - 200 - 168 = 22323 * 512 + 256, a tie, or 1 less.
    x = np.full((1, 300, 300, 1), 127, np.int8)
    x[0, 0, :2, 0] = -73, second
    outcome = run(
        "HzSQuantizedGlobalAveragePool",
        x,
        accu_right_shift=[9],
        output_scale=[1],
        output_right_shift=[0],
        output_bit=16,
        data_format="NHWC",
    )

    assert value(outcome) == expected


def test_wrapping_takes_whole_turns():
    # 2^15 * 127 * 1100 is more than 2^32: it comes out as what is beyond the first turn.
    x = np.full(1100, -(1 << 15), np.int16)
    outcome = conv(x, [-127] * 1100, high_precision_output=1, bits=32)

    assert value(outcome) == (1 << 15) * 127 * 1100 - (1 << 32)


def test_the_middle_saturates_to_int16_before_it_is_scaled():
    # 40 000 would be 4 000 after scaling; 32 767 becomes 3 276.
    outcome = conv(int16(20000), [2], scale=3277, out_shift=15, bits=16)

    assert value(outcome) == 32767 * 3277 >> 15
    assert outcome.accumulator.saturated_middles == 1
    assert outcome.accumulator.saturated_outputs == 0


@pytest.mark.parametrize(
    ("x", "expected", "saturated"), [(127, 127, 0), (64, 127, 1), (-64, -128, 0), (-65, -128, 1)]
)
def test_the_output_saturates_to_its_full_range(x, expected, saturated):
    w = 1 if x == 127 else 2
    outcome = conv(int8(x), [w])

    assert value(outcome) == expected
    assert outcome.accumulator.saturated_outputs == saturated


def test_what_relu_sets_to_zero_has_not_saturated():
    outcome = conv(int8(-128), [100], activation="relu")

    assert value(outcome) == 0
    assert outcome.accumulator.saturated_outputs == 0
    assert outcome.accumulator.smallest == -12800


def test_both_shifts_of_a_convolution_floor():
    assert value(conv(int8(-1), [1], shift=1)) == -1
    assert value(conv(int8(-1), [1], out_shift=15)) == -1
    assert value(conv(int8(1), [1], out_shift=15)) == 0


def test_a_bias_shift_wraps_and_a_negative_one_does_nothing():
    shape = {"x": int8(0).reshape(1, 1, 1, 1), "w": int8(0).reshape(1, 1, 1, 1)}
    for b_shift, expected in ((31, -(1 << 31)), (32 - 128, 3)):
        outcome = run(
            "HzSQuantizedConv",
            shape["x"],
            shape["w"],
            np.array([3], np.int32),
            int8(b_shift),
            high_precision_output=1,
            data_format="NHWC",
        )
        assert value(outcome) == expected


def test_a_residual_shifted_right_floors():
    more = {"high_precision_output": 1, "bits": 32, "e_scale": [1]}

    assert value(conv(int8(0), [1], s=-1, e_shift=[-4], **more)) == -1
    assert value(conv(int8(0), [1], s=-1, e_shift=[3], **more)) == -8


def test_float32_sums_are_exact_up_to_their_bound_and_beyond_it_float64_takes_over():
    # The sum of 1 023 products of 2^14, plus 1 and minus 1: float32 lost the ones beyond 2^24.
    for count in (1023, 1025):
        x = np.full(count + 1, -128, np.int8)
        x[-1] = 1
        w = [-128] * count + [1]
        outcome = conv(x, w, high_precision_output=1, bits=32)
        assert value(outcome) == count * (1 << 14) + 1

    assert exact_float(1 << 24) is np.float32
    assert exact_float((1 << 24) + 1) is np.float64


def test_a_sum_beyond_exact_floats_is_refused():
    assert exact_float(1 << 53) is np.float64
    with pytest.raises(UnsupportedError, match="too large for exact arithmetic"):
        exact_float((1 << 53) + 1)


def test_an_accumulator_never_holds_more_than_its_type_can():
    with pytest.raises(AssertionError):
        Accumulator(values=np.zeros(1, np.float32), bound=(1 << 24) + 1)


def test_the_sum_of_an_addition_wraps_once():
    # 127 * 2^24 fits; adding as much again does not.
    outcome = run(
        "HzSElementwiseAdd",
        int8(127),
        int8(127),
        x_shift=[24],
        e_scale=[1 << 14],
        e_shift=[10],
        accu_right_shift=[17],
        output_scale=[1],
        output_right_shift=[0],
        output_bit=16,
        report=True,
    )

    assert value(outcome) == (2 * 127 * (1 << 24) - (1 << 32)) >> 17
    assert outcome.accumulator.wrapped == 1


@pytest.mark.parametrize(("x", "expected"), [(1, 1), (3, 2), (-1, 0), (-3, -1)])
def test_requantization_rounds_ties_up(x, expected):
    outcome = run(
        "HzRequantize", int8(x), method="Rescale", output_scale=[1 << 14], output_right_shift=[15]
    )

    assert value(outcome) == expected


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.5, 0),
        (1.5, 2),
        (-2.5, -2),
        (1e4, 127),
        (-1e4, -128),
        (2.0**31 - 128, 127),
        (2.0**31, -128),
        (np.inf, -128),
        (np.nan, -128),
    ],
)
def test_quantizing_rounds_ties_to_even_and_converts_before_it_clips(x, expected):
    outcome = run("HzQuantize", np.array([x], np.float32), np.ones(1, np.float32))

    assert value(outcome) == expected


def test_an_average_counts_the_padding():
    # One pixel of 100 in a window of four: 100 * 128 / 512.
    outcome = run(
        "HzQuantizedAveragePool",
        int8(100).reshape(1, 1, 1, 1),
        kernel_shape=[2, 2],
        pads=[1, 1, 0, 0],
        count_include_pad=0,
        data_format="NHWC",
    )

    assert value(outcome) == 25


def test_a_table_takes_any_order_in_memory_and_gives_an_array_of_its_own():
    table = np.arange(-128, 128).astype(np.int8)
    x = np.arange(-6, 6).astype(np.int8).reshape(3, 4).T
    (y,) = run("HzLut", x, table).outputs

    np.testing.assert_array_equal(y, x)
    assert y.flags.writeable
    assert not np.shares_memory(x, y)
    assert not np.shares_memory(table, y)


def test_operators_without_a_sum_have_no_report():
    outcome = run("HzQuantizedReduceMax", int8(1, 2), axis=0, report=True)

    assert outcome.accumulator is None


def test_nothing_is_reported_unless_asked_for():
    x = int8(1)
    attributes = {"method": "Rescale", "output_scale": [1], "output_right_shift": [0]}

    assert run("HzRequantize", x, **attributes).accumulator is None
    assert run("HzRequantize", x, **attributes, report=True).accumulator is not None
