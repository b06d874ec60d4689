"""Attributes are read completely, normalised as the vendor's loader does, and judged."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading.calibration_attributes import after_load, parse
from hbdebug.loading.grid import PASSING_QTYPES, to_grid

ON = {"qtype": "int8", "constant": 1, "switch": "ON", "quant_attrs": 0x11111}


def grid_of(rank: int | None = 4, **attributes):
    return to_grid(after_load(parse({**ON, **attributes})), rank)


def test_unknown_attribute_is_named():
    with pytest.raises(UnsupportedError, match="attribute blocks of HzCalibration is not known"):
        parse({**ON, "blocks": 4})


@pytest.mark.parametrize(
    "attributes",
    [{"scales": 0.5}, {"axis": "one"}, {"qtype": 8}, {"thresholds": ["a"]}, {"constant": 1.5}],
)
def test_attribute_of_the_wrong_type_is_named(attributes):
    with pytest.raises(UnsupportedError, match=f"attribute {next(iter(attributes))} "):
        parse({**ON, **attributes})


def test_statistics_and_bookkeeping_attributes_change_nothing():
    plain = grid_of(thresholds=[2.0])
    with_more = grid_of(
        thresholds=[2.0],
        channel_scales=[1.0, 2.0],
        cali_attrs=[1],
        max_num_bins=[4],
        num_bins=[4],
        percentiles=[0.5],
        pre_op="x",
    )
    assert plain.params.same_as(with_more.params)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"switch": "OFF"}, "switched off"),
        ({"constant": 0}, "calibration is open"),
        ({"qtype": "float16", "switch": "OFF"}, "switched off"),
    ],
)
def test_disabled_point_keeps_its_parameters(attributes, reason):
    grid = grid_of(thresholds=[2.0], **attributes)
    assert not grid.enabled
    assert reason in grid.reason
    assert grid.params is not None


@pytest.mark.parametrize("switch", ["off", "Off", "", "ON", "no"])
def test_only_the_exact_word_off_switches_off(switch):
    assert grid_of(thresholds=[2.0], switch=switch).enabled


def test_float16_rounds_although_its_calibration_is_open():
    assert grid_of(qtype="float16", constant=0).enabled
    assert grid_of(qtype="bfloat16", constant=0).enabled


@pytest.mark.parametrize("qtype", sorted(PASSING_QTYPES))
def test_passing_type_has_no_parameters(qtype):
    grid = grid_of(qtype=qtype, scales=[0.5])
    assert grid.params is None
    assert not grid.enabled
    assert qtype in grid.reason


def test_passing_type_keeps_the_rescaling_of_equalised_channels():
    grid = grid_of(qtype="float32", scales=[0.5, 0.25], dequantize_scale=0.125)
    assert not grid.enabled
    assert grid.params.dtype == "float32"
    assert grid.params.scale.tolist() == [0.5, 0.25]
    assert grid.params.dequantize_scale == 0.125


def test_unknown_type_is_named():
    with pytest.raises(UnsupportedError, match="quantized type 'int6' is not known"):
        grid_of(qtype="int6", scales=[0.5])
    with pytest.raises(UnsupportedError, match="quantized type 'int10' is not known"):
        to_grid(after_load(parse({"bits": 10, "scales": [0.5], "constant": 1})), 4)


def test_point_without_scales_was_never_calibrated():
    grid = grid_of()
    assert grid.params is None
    assert "no scales" in grid.reason


def test_thresholds_become_scales_in_double_precision():
    # 1/127 of this float32, taken in float32, would come out one ulp lower.
    threshold = float(np.float32(0.10637156))
    (scale,) = after_load(parse({**ON, "thresholds": [threshold]})).scales
    assert scale == np.float32(threshold / 127)


@pytest.mark.parametrize(
    ("threshold", "power"),
    [
        (127.0, 0),
        # The nearest power is meant by exponent: below and above 2^-0.5 of a step of 1.
        (127 * 0.7072, 0),
        (127 * 0.7070, -1),
        (1.3, -7),
    ],
)
def test_shift_scales_are_powers_of_two(threshold, power):
    attributes = parse({**ON, "quant_attrs": 0x11112, "thresholds": [threshold]})
    assert after_load(attributes).scales.tolist() == [2.0**power]


def test_fixed_scale_wins_over_its_threshold_and_restates_it():
    loaded = after_load(parse({**ON, "constant": 2, "scales": [0.25], "thresholds": [1.0]}))
    assert loaded.scales.tolist() == [0.25]
    assert loaded.thresholds.tolist() == [0.25 * 127]


def test_fixed_scale_that_is_missing_leaves_the_point_without_one():
    grid = grid_of(constant=2, thresholds=[1.0])
    assert grid.params is None
    assert "no scales" in grid.reason


def test_asymmetric_range_needs_two_thresholds():
    with pytest.raises(ModelError, match="needs two thresholds, and it has 1"):
        grid_of(quant_attrs=0x11121, thresholds=[1.0])
    with pytest.raises(ModelError, match="range from 1 to 1 is empty"):
        grid_of(quant_attrs=0x11121, thresholds=[1.0, 1.0])


def test_asymq_needs_vectors_of_one_length():
    with pytest.raises(ModelError, match="they have 1, 2 and 0"):
        grid_of(info_strings=["asymq"], scales=[0.5], thresholds=[-1.0, 1.0])


def test_unknown_info_string_is_named():
    with pytest.raises(UnsupportedError, match="'per-tile'"):
        grid_of(info_strings=["per-tile"], thresholds=[1.0])


def test_info_strings_clear_the_bit_of_their_opposite():
    loaded = after_load(parse({**ON, "info_strings": ["shift", "per-channel", "weight"]}))
    assert loaded.flags == 0x22112


def test_several_zero_points_spread_a_single_scale_and_ignore_dequantize_scale():
    params = grid_of(
        qtype="uint8", scales=[0.5], zero_point=[1, 2, 3], dequantize_scale=0.25
    ).params
    assert params.scale.tolist() == [0.5, 0.5, 0.5]
    assert params.zero_point.tolist() == [1, 2, 3]
    assert params.dequantize_scale is None


@pytest.mark.parametrize(
    ("flags", "axis", "expected"),
    [(0x12111, 3, 3), (0x12111, -1, 3), (0x12111, -4, 0), (0x11111, 0, 1), (0x11111, -1, 1)],
)
def test_axis_counts_only_beside_the_per_channel_bit(flags, axis, expected):
    assert grid_of(quant_attrs=flags, axis=axis, scales=[0.5, 0.25]).params.axis == expected


def test_impossible_axes_are_refused():
    with pytest.raises(ModelError, match="axis 4 does not exist in a rank-4 tensor"):
        grid_of(quant_attrs=0x12111, axis=4, scales=[0.5, 0.25])
    with pytest.raises(ModelError, match="axis -5 does not exist"):
        grid_of(quant_attrs=0x12111, axis=-5, scales=[0.5, 0.25])
    with pytest.raises(ModelError, match="unknown rank"):
        grid_of(rank=None, quant_attrs=0x12111, axis=-1, scales=[0.5, 0.25])


def test_axis_of_a_single_scale_is_never_looked_at():
    assert grid_of(rank=None, quant_attrs=0x12111, axis=-7, scales=[0.5]).params.axis == 1


def test_threshold_of_a_point_that_has_none_is_the_range_of_its_grid():
    symmetric = grid_of(scales=[0.5]).params
    assert symmetric.threshold.tolist() == [63.5]
    shifted = grid_of(scales=[0.5], zero_point=[28]).params
    assert shifted.threshold.tolist() == [-78.0, 49.5]
    assert shifted.asymmetric
    channels = grid_of(qtype="uint8", scales=[0.5, 1.0], zero_point=[0, 255]).params
    assert channels.threshold.tolist() == [127.5, 255.0]


def test_int16_twin_of_an_asymmetric_point_contains_its_range():
    params = grid_of(qtype="uint8", quant_attrs=0x11121, thresholds=[-1.0, 2.0]).params
    twin = params.to_int16()
    assert twin.scale.shape == ()
    assert twin.scale == np.float32(2.0 / 32767)
