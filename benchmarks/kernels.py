"""Time the integer kernels on the shapes of the text recognizer.

    python benchmarks/kernels.py

Prints JSON: for each case the median in milliseconds, without and with the accumulator's report.
The inputs are random, and so are the weights, in the range that trained ones have. Set
OPENBLAS_NUM_THREADS=1 on a machine that is not idle: threads that wait for each other cost more
than they save on matrices this small.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.kernels import KERNELS

if TYPE_CHECKING:
    from collections.abc import Callable

CONVOLUTIONS = {
    "first layer": ((48, 320, 3), (16, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "1x1, 64 to 128": ((12, 160, 64), (128, 1, 1, 64), {}),
    "1x1, 480 to 480": ((6, 80, 480), (480, 1, 1, 480), {}),
    "depthwise 1x1": ((12, 80, 240), (240, 1, 1, 1), {"group": 240}),
    "depthwise 3x3": ((24, 160, 32), (32, 3, 3, 1), {"group": 32, "pads": [1, 1, 1, 1]}),
    "depthwise 5x5": ((6, 80, 480), (480, 5, 5, 1), {"group": 480, "pads": [2, 2, 2, 2]}),
    "1x3, 960 to 60": ((1, 40, 960), (60, 1, 3, 960), {"pads": [0, 1, 0, 1]}),
    "characters": ((1, 40, 120), (6625, 1, 1, 120), {}),
}
"""Name -> input without batch, weights, attributes."""


def convolution(
    random: np.random.Generator,
    shape: tuple[int, ...],
    weights: tuple[int, ...],
    attributes: dict[str, Any],
    dtype: str,
) -> Callable[..., object]:
    """Return a call of a convolution that takes only ``report``."""
    limits = np.iinfo(dtype)
    x = random.integers(limits.min, limits.max, (1, *shape), dtype, endpoint=True)
    w = np.clip(random.normal(0, 30, weights).round(), -128, 127).astype(np.int8)
    outputs = weights[0]
    b = random.integers(-2000, 2000, outputs, np.int32)
    rescaling = {
        "right_shift": random.integers(0, 8, outputs).tolist(),
        "scale": random.integers(1 << 14, 1 << 15, outputs).tolist(),
        "out_shift": random.integers(15, 22, outputs).tolist(),
    }
    kernel = KERNELS["horizon", "HzSQuantizedConv"]
    return lambda **report: kernel(
        x, w, b, np.zeros(outputs, np.int8), data_format="NHWC", **attributes, **rescaling, **report
    )


def others(random: np.random.Generator) -> dict[str, Callable[..., object]]:
    """Return calls of the other operators that take time."""
    image = random.integers(-128, 128, (1, 12, 80, 240)).astype(np.int8)
    gate = random.integers(-128, 128, (1, 1, 1, 240)).astype(np.int8)
    table = random.integers(-128, 128, 256).astype(np.int8)
    way = {
        "accu_right_shift": [0],
        "output_scale": [18286],
        "output_right_shift": [18],
        "rounding_method": "ROUND",
    }
    mul, add = KERNELS["horizon", "HzSElementwiseMul"], KERNELS["horizon", "HzSElementwiseAdd"]
    average = KERNELS["horizon", "HzSQuantizedGlobalAveragePool"]
    addition = {**way, "x_shift": [17], "e_scale": [25922], "e_shift": [0]}
    return {
        "lookup": lambda **report: KERNELS["horizon", "HzLut"](image, table, **report),
        "mul by channel": lambda **report: mul(image, gate, **way, **report),
        "add": lambda **report: add(image, image, **addition, **report),
        "global average": lambda **report: average(image, **way, data_format="NHWC", **report),
    }


def median(call: Callable[..., object], runs: int, *, report: bool) -> float:
    """Return the median time of a call in milliseconds."""
    call(report=report)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call(report=report)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e3, 3)


def main() -> None:
    """Time every case and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20, help="runs per case")
    runs = parser.parse_args().runs
    random = np.random.default_rng(0)
    calls = {
        f"{name}, {dtype}": convolution(random, *case, dtype)
        for dtype in ("int8", "int16")
        for name, case in CONVOLUTIONS.items()
    }
    calls.update(others(random))
    record = {
        name: {
            "milliseconds": median(call, runs, report=False),
            "with_report": median(call, runs, report=True),
        }
        for name, call in calls.items()
    }
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
