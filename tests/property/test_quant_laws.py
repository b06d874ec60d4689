"""Laws of fake-quantization, for any grid."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hbdebug.quant import (
    INT_RANGES,
    QuantParams,
    broadcast_channels,
    dequantize,
    fake_quantize,
    quantize,
)

pytestmark = pytest.mark.property

# Scales as they occur: thresholds between about 1e-6 and 1e6, over at least 7 steps.
SCALES = st.floats(2.0**-26, 2.0**17, width=32).map(np.float32)
SMALL = sorted(set(INT_RANGES) - {"int32"})


def grid(dtype, scale, zero_point=0, **others):
    return QuantParams(
        dtype=dtype,
        scale=np.asarray(scale, np.float32),
        zero_point=np.asarray(zero_point, np.float32),
        threshold=np.abs(np.atleast_1d(np.asarray(scale, np.float64)) * INT_RANGES[dtype][1]),
        **others,
    )


def values(low=-1e6, high=1e6, shape=(17,)):
    return arrays.arrays(np.float32, shape, elements=st.floats(low, high, width=32))


@given(st.sampled_from(SMALL), SCALES)
def test_every_representable_integer_survives(dtype, scale):
    params = grid(dtype, scale)
    q = np.arange(params.qmin, params.qmax + 1)

    np.testing.assert_array_equal(quantize(dequantize(q, params), params), q)


@given(st.sampled_from(["int8", "uint8"]), SCALES, st.integers(-43, 85))
def test_every_representable_integer_survives_a_zero_point(dtype, scale, zero_point):
    params = grid(dtype, scale, zero_point)
    q = np.arange(params.qmin, params.qmax + 1)

    np.testing.assert_array_equal(quantize(dequantize(q, params), params), q)


@given(SCALES, values(-1.0, 1.0))
def test_inside_the_range_the_error_is_at_most_half_a_step(scale, unit):
    params = grid("int8", scale)
    x = unit * np.float32(127) * scale

    error = np.abs(fake_quantize(x, params).astype(np.float64) - x)

    # Half a step, and the rounding of the division and of the product, an ulp of x each.
    assert (error <= float(scale) / 2 + 2 * np.spacing(np.abs(x))).all()


@given(st.sampled_from(SMALL), SCALES, values())
def test_quantizing_twice_changes_nothing_more(dtype, scale, x):
    params = grid(dtype, scale)
    once = fake_quantize(x, params)

    np.testing.assert_array_equal(fake_quantize(once, params), once)


@given(st.sampled_from(SMALL), SCALES, values())
def test_fake_quantization_is_quantization_there_and_back(dtype, scale, x):
    params = grid(dtype, scale)

    np.testing.assert_array_equal(fake_quantize(x, params), dequantize(quantize(x, params), params))


@given(SCALES, values(shape=(3, 4, 5)), st.integers(0, 2))
def test_equal_scales_per_channel_are_per_tensor(scale, x, axis):
    per_tensor = fake_quantize(x, grid("int8", scale))
    per_channel = fake_quantize(x, grid("int8", [scale] * x.shape[axis], axis=axis))

    np.testing.assert_array_equal(per_tensor, per_channel)


@given(values(shape=(3, 4, 5)), st.lists(SCALES, min_size=4, max_size=4))
def test_a_channel_is_quantized_by_its_own_scale(x, scales):
    whole = fake_quantize(x, grid("int8", scales, axis=1))

    for channel, scale in enumerate(scales):
        alone = fake_quantize(x[:, channel], grid("int8", scale))
        np.testing.assert_array_equal(whole[:, channel], alone)


@given(SCALES, values())
def test_int16_at_the_same_threshold_is_finer(scale, x):
    params = grid("int8", scale)
    limit = float(params.threshold[0])
    inside = x[np.abs(x) <= limit]
    fine = params.to_int16()

    coarse_error = np.abs(fake_quantize(inside, params) - inside).sum(dtype=np.float64)
    fine_error = np.abs(fake_quantize(inside, fine) - inside).sum(dtype=np.float64)

    assert fine.dtype == "int16"
    assert float(fine.scale) == pytest.approx(limit / 32767, rel=1e-6)  # one float32 rounding
    # 258 times finer; where the coarse grid happens to be exact, the fine one is nearly so.
    assert fine_error <= coarse_error + inside.size * float(fine.scale) / 2


def test_the_input_is_not_modified_and_the_result_is_new():
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    before = x.copy()

    y = fake_quantize(x, grid("int8", 0.01))

    np.testing.assert_array_equal(x, before)
    assert not np.shares_memory(x, y)


@pytest.mark.parametrize("layout", ["transposed", "strided", "sliced"])
def test_any_memory_layout_gives_the_same(layout):
    x = np.random.default_rng(0).normal(0, 1, (6, 40, 50)).astype(np.float32)
    view = {"transposed": x.transpose(2, 0, 1), "strided": x[:, ::2], "sliced": x[1:3, 5:, 7:]}
    params = grid("int8", 0.02)

    np.testing.assert_array_equal(
        fake_quantize(view[layout], params), fake_quantize(view[layout].copy(), params)
    )


def test_a_large_tensor_is_quantized_block_by_block_like_a_small_one():
    x = np.random.default_rng(1).normal(0, 3, 200_003).astype(np.float32)
    params = grid("int8", 0.031)

    whole = fake_quantize(x, params)

    parts = [fake_quantize(part, params) for part in np.array_split(x, 101)]
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_scales_of_a_grouped_transposed_convolution_run_over_two_axes():
    """Element (i, j) of [Cin, Cout/group] uses i // (Cin/group) * (Cout/group) + j."""
    group, cin, per_group = 2, 6, 3
    scales = np.arange(1, group * per_group + 1, dtype=np.float32)

    found = np.broadcast_to(
        broadcast_channels(scales, (cin, per_group, 1, 1), 1, group), (cin, per_group, 1, 1)
    )

    for i in range(cin):
        for j in range(per_group):
            assert found[i, j, 0, 0] == scales[i // (cin // group) * per_group + j]


@pytest.mark.parametrize(("shape", "axis"), [((4, 5), 1), ((5, 4, 3), 2), ((10,), 0)])
def test_scales_that_do_not_fit_are_refused(shape, axis):
    with pytest.raises(Exception, match="4 scales do not fit") as caught:
        broadcast_channels(np.ones(4, np.float32), shape, axis, 1)

    assert caught.value.exit_code == 5
