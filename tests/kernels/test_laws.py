"""Every kernel equals its slow twin on whatever a file may hold, extremes and ties included."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hbdebug.kernels import KERNELS, products
from tests.kernels import generated, generated_images, slow, slow_images

pytestmark = pytest.mark.property

# No time limits, which would fail on a busy machine, not on a fault.
law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

CALLS = {
    "HzChannelShuffle": generated_images.moves("HzChannelShuffle"),
    "HzDepthToSpace": generated_images.moves("HzDepthToSpace"),
    "HzDequantize": generated_images.quantizations("HzDequantize"),
    "HzLeakyRelu": generated.one_by_one("HzLeakyRelu"),
    "HzLut": generated_images.lookups(),
    "HzLut2Layer": generated_images.two_layer_tables(),
    "HzPRelu": generated.one_by_one("HzPRelu"),
    "HzPad": generated_images.moves("HzPad"),
    "HzQuantize": generated_images.quantizations("HzQuantize"),
    "HzQuantizedArgMax": generated_images.reductions("HzQuantizedArgMax"),
    "HzQuantizedAveragePool": generated_images.pools("HzQuantizedAveragePool"),
    "HzQuantizedBitShift": generated.one_by_one("HzQuantizedBitShift"),
    "HzQuantizedGlobalMaxPool": generated_images.global_maxima(),
    "HzQuantizedMaxPool": generated_images.pools("HzQuantizedMaxPool"),
    "HzQuantizedReduceMax": generated_images.reductions("HzQuantizedReduceMax"),
    "HzQuantizedResizeUpsample": generated_images.upsamples(),
    "HzQuantizedRoiResize": generated_images.roi_resizes(),
    "HzQuantizedTopK": generated_images.reductions("HzQuantizedTopK"),
    "HzRequantize": generated.one_by_one("HzRequantize"),
    "HzSElementwiseAdd": generated.elementwise("HzSElementwiseAdd"),
    "HzSElementwiseMul": generated.elementwise("HzSElementwiseMul"),
    "HzSElementwiseSub": generated.elementwise("HzSElementwiseSub"),
    "HzSPRelu": generated.one_by_one("HzSPRelu"),
    "HzSQuantizedConv": generated.convolutions() | generated.convolutions(depthwise=True),
    "HzSQuantizedConvTranspose": generated.transposed_convolutions(),
    "HzSQuantizedGlobalAveragePool": generated_images.global_averages(),
    "HzSQuantizedMatmul": generated.matrix_products(),
    "HzSQuantizedReduceMean": generated_images.reductions("HzSQuantizedReduceMean"),
    "HzSQuantizedReduceSum": generated_images.reductions("HzSQuantizedReduceSum"),
    "HzSpaceToDepth": generated_images.moves("HzSpaceToDepth"),
}

TWINS = {**vars(slow), **vars(slow_images)}

LAYOUTS = {
    "HzChannelShuffle",
    "HzDepthToSpace",
    "HzQuantizedAveragePool",
    "HzQuantizedGlobalMaxPool",
    "HzQuantizedMaxPool",
    "HzQuantizedResizeUpsample",
    "HzQuantizedRoiResize",
    "HzSQuantizedConv",
    "HzSQuantizedConvTranspose",
    "HzSQuantizedGlobalAveragePool",
    "HzSpaceToDepth",
}


def call(operator, inputs, attributes, **more):
    layout = {"data_format": "NHWC"} if operator in LAYOUTS else {}
    return KERNELS["horizon", operator](*inputs, **attributes, **layout, **more)


@pytest.mark.parametrize("operator", CALLS)
@law
@given(data=st.data())
def test_a_kernel_equals_its_slow_twin(operator, data):
    inputs, attributes = data.draw(CALLS[operator])

    actual = call(operator, inputs, attributes, report=data.draw(st.booleans())).outputs

    expected = TWINS[operator](*inputs, **attributes)
    for ours, twins in zip(actual, expected, strict=True):
        assert ours.shape == twins.shape
        assert ours.dtype == twins.dtype
        np.testing.assert_array_equal(ours, twins)


def test_every_operator_is_tried():
    assert {operator for _, operator in KERNELS} - {"HzSQuantizedPreprocess"} == CALLS.keys()


@law
@given(data=st.data())
def test_a_preprocess_is_a_convolution_of_single_pixels(data):
    (x, w, b, b_shift, _), a = data.draw(generated.convolutions())
    x, w = (x >> 8).astype(np.int8) if x.dtype == np.int16 else x, w[:, :1, :1]
    b = np.zeros(w.shape[0], np.int32) if b is None else b
    b_shift = np.zeros(w.shape[0], np.int8) if b_shift is None else b_shift
    names = ("right_shift", "scale", "out_shift", "output_bit", "high_precision_output")
    rescaling = {name: a[name] for name in names}

    actual = KERNELS["horizon", "HzSQuantizedPreprocess"](
        x, w, b, b_shift, channel_group=a["group"], data_format="NHWC", **rescaling
    )

    spatial = {"strides": [1, 1], "pads": [0, 0, 0, 0], "dilations": [1, 1], "group": a["group"]}
    (expected,) = slow.HzSQuantizedConv(x, w, b, b_shift, **spatial, **rescaling)
    np.testing.assert_array_equal(actual.outputs[0], expected)
    assert actual.outputs[0].dtype == expected.dtype


@law
@given(data=st.data())
def test_depthwise_sums_by_onnx_runtime_equal_the_slow_twin(data):
    """Small ones are not worth a session, so that none of the cases above has one."""
    inputs, attributes = data.draw(generated.convolutions(depthwise=True))

    with patch.object(products, "_WORTH_A_SESSION", 0):
        (actual,) = call("HzSQuantizedConv", inputs, attributes).outputs

    np.testing.assert_array_equal(actual, slow.HzSQuantizedConv(*inputs, **attributes)[0])


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_depthwise_sums_beyond_float32_are_exact(dtype):
    """Of 23 x 23 weights of -128, sums of int8 exceed 2^23 and those of int16 2^31."""
    x = np.full((1, 23, 23, 2), np.iinfo(dtype).min, dtype)
    w = np.full((2, 23, 23, 1), -128, np.int8)
    w[1, 0, 0] = 1
    exact = {"output_bit": 32, "high_precision_output": 1}

    with patch.object(products, "_WORTH_A_SESSION", 0):
        (actual,) = call("HzSQuantizedConv", (x, w), {"group": 2, **exact}).outputs

    sums = (x[0].astype(np.int64) * w[:, :, :, 0].transpose(1, 2, 0)).sum(axis=(0, 1))
    np.testing.assert_array_equal(actual.ravel(), sums.astype(np.int32))
