"""HzLut2Layer, one input after the other: what tells whether two tables do the same."""

from __future__ import annotations

import numpy as np

LOW, HIGH = -32768, 32767


def all_outputs(table, symmetry):
    """Return the outputs of all int16 inputs, in order, as int64.

    Args:
        table: ``bound``, ``scale``, ``bias``, ``left_shift``, ``right_shift``, ``table_param``.
        symmetry: The symmetry mode.
    """
    x = np.arange(LOW, HIGH + 1)
    negative = (x < 0) & (symmetry != "NONE")
    x = np.where(negative, np.minimum(-x, HIGH), x)
    entries = table["table_param"].astype(np.int64).reshape(6, 64)
    segment = (x[:, None] > table["bound"][:7]).sum(axis=1)
    y = np.empty_like(x)
    for number in range(8):
        mine = segment == number
        scale, bias, left, right = (
            int(table[name][number]) for name in ("scale", "bias", "left_shift", "right_shift")
        )
        raw = scale * x[mine] + (bias << left)
        ends = number in {0, 7}
        y[mine] = rounded(raw, right) if ends else looked_up(entries[number - 1], raw, right)
    y = np.clip(y, LOW, HIGH)
    return np.clip(np.where(negative & (symmetry == "ORIGIN_SYMMETRIC"), -y, y), LOW, HIGH)


def looked_up(entries, raw, shift):
    """Interpolate a table at ``raw / 2**shift`` 256ths of an entry."""
    place = raw >> (shift + 8)
    fraction = rounded(raw - (place << (shift + 8)), shift)
    inside = np.clip(place, 0, 62)
    step = (entries[inside + 1] - entries[inside]).astype(np.int16).astype(np.int64)
    y = entries[inside] + ((step * fraction + 128) >> 8)
    return np.where(place < 0, entries[0], np.where(place >= 63, entries[63], y))


def rounded(values, shift):
    """Shift to the right, rounding halves up."""
    return (values + ((1 << shift) >> 1)) >> shift
