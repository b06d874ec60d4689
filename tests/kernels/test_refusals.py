"""What the converter never writes is refused by name, never computed somehow."""

from __future__ import annotations

import numpy as np
import pytest

from hbdebug.errors import ModelError, UnsupportedError
from tests.kernels.test_limits import int8, int16, run

IMAGE = np.zeros((1, 2, 2, 4), np.int8)
SCALE = np.ones(1, np.float32)


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "what"),
    [
        (
            "HzChannelShuffle",
            (IMAGE,),
            {"data_format": "NCHW"},
            "HzChannelShuffle with data_format = 'NCHW'",
        ),
        ("HzQuantizedMaxPool", (IMAGE,), {"kernel_shape": [1, 1]}, "MaxPool with data_format"),
        ("HzChannelShuffle", (IMAGE,), {"data_format": "NHWC", "group": 3}, "divide 4 by 3"),
        ("HzChannelShuffle", (IMAGE,), {"turn": 1}, "does not know: turn"),
        ("HzQuantize", (IMAGE[0, 0, 0].astype(np.float32), SCALE), {"bits": 4}, "bits = 4"),
        ("HzQuantize", (np.zeros(2, np.float32), None), {}, "no scale"),
        ("HzQuantize", (np.zeros(2, np.float32), SCALE, int8(1)), {}, "zero point"),
        ("HzQuantize", (np.zeros((2, 2), np.float32), np.ones(3, np.float32)), {}, "3 scales"),
        ("HzLut", (int16(1), np.zeros(256, np.int8)), {}, "int8, not int16"),
        ("HzLut", (int8(1), np.zeros(255, np.int8)), {}, "255 entries"),
        ("HzQuantizedReduceMax", (IMAGE,), {"axis": -1}, "axis = -1"),
        ("HzQuantizedArgMax", (np.zeros(129, np.int8),), {"axis": 0}, "129 values"),
        ("HzQuantizedTopK", (IMAGE,), {"k": 2, "axis": 3, "sorted": 0}, "sorted = 0"),
        ("HzQuantizedTopK", (IMAGE,), {"k": 5, "axis": 3}, "k = 5"),
        ("HzPad", (IMAGE,), {"mode": "reflect"}, "mode = 'reflect'"),
        ("HzPad", (IMAGE,), {"pads": [0, -1, 0, 0, 0, 0, 0, 0]}, "pads"),
        ("HzSQuantizedMatmul", (IMAGE, IMAGE), {"is_transa": 1}, "is_transa = 1"),
        (
            "HzQuantizedMaxPool",
            (IMAGE,),
            {"kernel_shape": [1, 1], "pads": [1, 0, 0, 0], "data_format": "NHWC"},
            "wholly in the padding",
        ),
        (
            "HzQuantizedResizeUpsample",
            (IMAGE,),
            {"scale": [2, 2], "mode": "linear", "data_format": "NHWC"},
            "mode = 'linear'",
        ),
        (
            "HzQuantizedRoiResize",
            (IMAGE,),
            {"sizes": [2, 2], "roi": [0, 0, 1, 1], "data_format": "NHWC"},
            "roi",
        ),
        (
            "HzRequantize",
            (IMAGE,),
            {"method": "Shift", "output_scale": [1], "output_right_shift": [0]},
            "method = 'Shift'",
        ),
        (
            "HzRequantize",
            (IMAGE,),
            {"method": "Rescale", "output_scale": [1] * 3, "output_right_shift": [0]},
            "3 scales or shifts do not fit 4 channels",
        ),
        (
            "HzRequantize",
            (IMAGE,),
            {"method": "Rescale", "output_scale": [1], "output_right_shift": [32]},
            "shifts by 32",
        ),
        (
            "HzRequantize",
            (IMAGE,),
            {"method": "Rescale", "output_scale": [40000], "output_right_shift": [0]},
            "beyond 16 bits: 40000",
        ),
        (
            "HzSQuantizedConv",
            (IMAGE, np.zeros((4, 1, 1, 3), np.int8)),
            {"data_format": "NHWC"},
            "do not fit an input",
        ),
        (
            "HzSQuantizedConv",
            (IMAGE, np.zeros((4, 1, 1, 4), np.int8)),
            {"data_format": "NHWC"},
            "cannot give 8 bits",
        ),
        (
            "HzSQuantizedConv",
            (IMAGE, np.zeros((4, 1, 1, 4), np.int8), None, None, IMAGE[:, :1]),
            {"data_format": "NHWC", "e_scale": [1], "e_shift": [0]},
            "residual of shape",
        ),
        (
            "HzSQuantizedConv",
            (IMAGE, np.zeros((4, 1, 1, 4), np.int8)),
            {"data_format": "NHWC", "activation": "relu6"},
            "activation = 'relu6'",
        ),
        (
            "HzSQuantizedConvTranspose",
            (IMAGE, np.zeros((4, 1, 1, 4), np.int8)),
            {"data_format": "NHWC", "output_type": "int32"},
            "output_type = 'int32'",
        ),
    ],
)
def test_what_no_converter_writes_is_refused(operator, inputs, attributes, what):
    with pytest.raises(UnsupportedError, match=what):
        run(operator, *inputs, **attributes)


def test_a_missing_attribute_is_named():
    with pytest.raises(ModelError, match="HzQuantizedReduceMax lacks the attribute axis"):
        run("HzQuantizedReduceMax", IMAGE)
