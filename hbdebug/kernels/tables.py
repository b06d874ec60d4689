"""Functions by table: one entry per int8 input, or straight pieces and tables for int16."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels.arithmetic import INT_TYPES
from hbdebug.kernels.outcome import Outcome, kernel, unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_SEGMENTS, _TABLES, _ENTRIES = 8, 6, 64

# From so many inputs on it is faster to compute every int16 once and to look the results up.
_ALL_INT16 = 1 << 16


@kernel(
    types={"x": "int8", "table_params": "int8"},
    ignores=("data_format", "lut_type"),
)
def HzLut(x: NDArray[np.int8], table_params: NDArray[np.int8]) -> Outcome:
    """Look up ``table_params[x + 128]``.

    Args:
        x: Values, any shape.
        table_params: 256 results, in the order of the inputs -128 ... 127.
    """
    table = table_params.reshape(-1)
    if table.size != 256:
        raise UnsupportedError(f"HzLut has a table of {table.size} entries instead of 256")
    # Seen as uint8, the inputs 0 ... 127 come first, and -128 follows. Bytes are looked up several
    # times faster by `translate` than by NumPy, which makes a 64-bit index of each first.
    turned = np.concatenate([table[128:], table[:128]]).tobytes()
    y = np.frombuffer(bytearray(x.tobytes()).translate(turned), np.int8)
    return Outcome(outputs=(y.reshape(x.shape),))


@kernel(types={"X": "int16"}, ignores=("data_format", "lut_type"))
def HzLut2Layer(
    X: NDArray[np.int16],
    *,
    table_param: Sequence[int],
    scale: Sequence[int],
    bias: Sequence[int],
    left_shift: Sequence[int],
    right_shift: Sequence[int],
    bound: Sequence[int],
    output_bit: int = 8,
    symmetry_mode: str = "NONE",
    rounding_method: str = "ROUND",
) -> Outcome:
    """Evaluate a function in eight segments: two straight ends, six tables of 64 entries between.

    Segment ``s`` holds the inputs above ``bound[s - 1]`` up to and including ``bound[s]``. In it
    ``raw = scale * x + (bias << left_shift)``. An end gives ``raw / 2^right_shift``, rounded half
    up. In between, ``raw / 2^(right_shift + 8)`` is the place in the table, and the next 8 bits
    interpolate between neighbours. Measured against HMCT 1.1.0 for every int16 input.

    Args:
        X: Values, any shape.
        table_param: The six tables one after the other, int16.
        scale: Slope of each segment's line.
        bias: Intercept of each segment's line.
        left_shift: Left shift of each intercept.
        right_shift: Right shift of each line.
        bound: Upper end of each segment; the last is not used.
        output_bit: 8 or 16.
        symmetry_mode: ``NONE``, or evaluate ``min(|x|, 32767)`` instead of x and then negate the
            results of negative x (``ORIGIN_SYMMETRIC``) or keep them (``Y_SYMMETRIC``).
        rounding_method: Must be ``ROUND``.
    """
    name = "HzLut2Layer"
    if symmetry_mode not in {"NONE", "ORIGIN_SYMMETRIC", "Y_SYMMETRIC"}:
        known = "NONE, ORIGIN_SYMMETRIC and Y_SYMMETRIC"
        raise unsupported(name, "symmetry_mode", symmetry_mode, known)
    if rounding_method != "ROUND":
        raise unsupported(name, "rounding_method", rounding_method, "ROUND")
    if output_bit not in {8, 16}:
        raise unsupported(name, "output_bit", output_bit, "8 and 16")
    parts = [np.asarray(part, np.int64) for part in (scale, bias, left_shift, right_shift, bound)]
    table = np.asarray(table_param, np.int64)
    if table.size != _TABLES * _ENTRIES or any(part.size != _SEGMENTS for part in parts):
        raise UnsupportedError(f"{name} needs {_SEGMENTS} segments and {_TABLES} full tables")
    results = _every_result(np.stack(parts).tobytes(), table.tobytes(), output_bit, symmetry_mode)
    return Outcome(outputs=(results.take(np.ascontiguousarray(X).view(np.uint16)),))


@functools.lru_cache(maxsize=256)
def _every_result(parts: bytes, table: bytes, bits: int, symmetry_mode: str) -> NDArray[Any]:
    """Return the result of every int16, in the order of uint16.

    One image often has more elements, and a model is run on many.

    Args:
        parts: Slopes, intercepts, left shifts, right shifts and bounds, as int64.
        table: The tables, as int64.
        bits: Width of the results.
        symmetry_mode: As for `HzLut2Layer`.
    """
    slopes, biases, left, right, bounds = np.frombuffer(parts, np.int64).reshape(5, _SEGMENTS)
    lines = np.stack([slopes, biases << left, right])
    every = np.arange(_ALL_INT16, dtype=np.uint16).view(np.int16)
    entries = np.frombuffer(table, np.int64)
    results = _evaluate(every, lines, bounds, entries, bits, symmetry_mode)
    results.flags.writeable = False
    return results


def _evaluate(
    x: NDArray[np.int16],
    lines: NDArray[np.int64],
    bounds: NDArray[np.int64],
    table: NDArray[np.int64],
    bits: int,
    symmetry_mode: str,
) -> NDArray[Any]:
    place = x.astype(np.int64)
    if symmetry_mode != "NONE":
        place = np.minimum(np.abs(place), (1 << 15) - 1)
    # Bounds are compared one by one, so that they need not ascend.
    segment = np.zeros(x.shape, np.int64)
    for bound in bounds[: _SEGMENTS - 1]:
        segment += place > bound
    slope, offset, shift = lines[:, segment]
    line = slope * place + offset
    inner = (segment > 0) & (segment < _SEGMENTS - 1)
    ends = _saturate(_round_shift(line, shift), bits)
    y = np.where(inner, _interpolate(line, shift, segment, table), ends)
    if symmetry_mode == "ORIGIN_SYMMETRIC":
        y = np.where(x < 0, -y, y)
    return _saturate(y, bits).astype(INT_TYPES[bits])


def _interpolate(
    line: NDArray[np.int64],
    shift: NDArray[np.int64],
    segment: NDArray[np.int64],
    table: NDArray[np.int64],
) -> NDArray[np.int64]:
    index = line >> (shift + 8)
    fraction = _round_shift(line - (index << (shift + 8)), shift)
    first = np.clip(segment - 1, 0, _TABLES - 1) * _ENTRIES
    low = first + np.clip(index, 0, _ENTRIES - 2)
    # The chip keeps the difference of neighbours in 16 bits, wrapping around.
    step = table[low + 1] - table[low]
    step = ((step + (1 << 15)) & 0xFFFF) - (1 << 15)
    y = table[low] + ((step * fraction + 128) >> 8)
    y = np.where(index < 0, table[first], y)
    y = np.where(index >= _ENTRIES - 1, table[first + _ENTRIES - 1], y)
    return _saturate(y, 16)


def _round_shift(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Shift right, rounding half up."""
    half = (np.int64(1) << counts) >> 1
    return (values + half) >> counts


def _saturate(values: NDArray[np.int64], bits: int) -> NDArray[np.int64]:
    return np.clip(values, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)
