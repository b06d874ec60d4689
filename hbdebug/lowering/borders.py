"""Where the six tables of an int16 function begin and end."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hbdebug.lowering.curves import Curve

_INTERVALS = 256
_TABLES = 6

# A function that bends less than this share of its rise counts as straight: what float32 adds up
# to along a straight line is below it, and every curve is far above.
_STRAIGHT = 1e-4


def borders(function: Curve, low: np.float32, high: np.float32) -> NDArray[np.float32]:
    """Spread six tables over a range so that each has an equal share of the bends.

    The function is sampled at 257 equidistant points, and the absolute second difference quotients
    are summed up, in float32. Border k is the first place where the sum reaches k sixths. A
    straight function gets equal parts.

    Args:
        function: The function.
        low: Begin of the range.
        high: Its end.

    Returns:
        float32 ``(7,)``, ascending; first and last are the ends of the range.
    """
    width = (high - low) / np.float32(_INTERVALS)
    y = function(low + width * np.arange(_INTERVALS + 1).astype(np.float32))
    with np.errstate(all="ignore"):
        # Divided by the width, although it cancels out: where bends are equal, as of a parabola,
        # the rounding of these quotients decides which border comes first.
        bends = np.cumsum(np.abs(np.diff(np.diff(y) / width) / width), dtype=np.float32)
        straight = bends[-1] * width * width <= _STRAIGHT * np.abs(y[-1] - y[0])
    if straight or not np.isfinite(bends[-1]):
        width = (high - low) / np.float32(_TABLES)
        units = [float(unit) for unit in range(_TABLES + 1)]
    else:
        units = _spread(_sixths(bends))
    return low + width * np.array(units, np.float32)


def _sixths(bends: NDArray[np.float32]) -> list[float]:
    """Return the borders in grid units; the second difference at i belongs to point i + 2."""
    shares = bends[-1] * np.arange(1, _TABLES).astype(np.float32) / np.float32(_TABLES)
    inner = np.minimum(np.searchsorted(bends, shares, side="left") + 2, _INTERVALS)
    return [0.0, *inner.astype(float).tolist(), float(_INTERVALS)]


def _spread(units: list[float]) -> list[float]:
    """Move borders that coincide evenly into the gap in front of them.

    The last of a run stays where it is. The first border has no equal, as no inner one lies in
    front of the second grid point.
    """
    distinct = sorted(set(units))
    spread: list[float] = [units[0]]
    for lower, upper in pairwise(distinct):
        count = units.count(upper)
        spread += [lower + (upper - lower) * k / count for k in range(1, count + 1)]
    return spread
