"""How close float values are to what quantization may have made of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# Least cosine and greatest distance. Rounding to eight bits moves a weight by a percent or so, to
# four bits by up to fifteen; one bit leaves a normal distribution a cosine of 0.8 and a distance of
# 0.75. Weights that have nothing to do with each other are at a cosine of about 0 and a distance
# of 1.4.
_AGREES = (0.99, 0.15)
_POSSIBLE = (0.7, 1.0)

# Fewer values agree by chance.
_ENOUGH = 16

_SKETCH = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Closeness:
    """How close two arrays are.

    Attributes:
        cosine: Cosine similarity.
        distance: L2 norm of the difference over that of the stored values.
        correlation: Cosine similarity around the means; 0 where either is constant.
        size: Number of values.
    """

    cosine: float
    distance: float
    correlation: float
    size: int

    @property
    def band(self) -> int:
        """2 for agreement, 1 for what coarse quantization could have done, 0 for neither."""
        return int(_band(np.asarray(self.cosine), np.asarray(self.distance)))

    @property
    def identifies(self) -> bool:
        """Whether the values alone tell that one was made of the other."""
        return self.band == 2 and self.correlation >= _AGREES[0] and self.size >= _ENOUGH

    def __str__(self) -> str:
        """Return it in words for the user."""
        return f"cosine {self.cosine:.2f}, relative distance {self.distance:.2g}"


def closeness(stored: Array, values: Array) -> Closeness:
    """Compare values with stored ones of the same shape."""
    ours = stored.astype(np.float32, copy=False).reshape(-1)
    theirs = values.astype(np.float32, copy=False).reshape(-1)
    with np.errstate(all="ignore"):
        return Closeness(
            cosine=_cosine(ours, theirs),
            distance=_ratio(_norm(ours - theirs), _norm(ours)),
            correlation=_cosine(ours - ours.mean(), theirs - theirs.mean()) if ours.size else 0.0,
            size=ours.size,
        )


def _norm(values: Array) -> float:
    return float(np.sqrt(np.dot(values, values)))


def _ratio(part: float, whole: float) -> float:
    if part == 0:
        return 0.0
    return part / whole if whole > 0 and np.isfinite(part) else float("inf")


def _cosine(ours: Array, theirs: Array) -> float:
    if np.array_equal(ours, theirs):
        return 1.0
    norms = _norm(ours) * _norm(theirs)
    return float(np.dot(ours, theirs)) / norms if norms > 0 and np.isfinite(norms) else 0.0


def _band(cosine: Array, distance: Array) -> Array:
    agrees = (cosine >= _AGREES[0]) & (distance <= _AGREES[1])
    possible = (cosine >= _POSSIBLE[0]) & (distance <= _POSSIBLE[1])
    return np.where(agrees, 2, possible.astype(int))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Table:
    """How close many arrays are to many, a row for each stored one.

    Attributes:
        band: As `Closeness.band`.
        distance: As `Closeness.distance`, of the closest of the forms that a candidate has.
    """

    band: Array
    distance: Array


class Sketch:
    """Compares many arrays of one shape at a few thousand of their values.

    Args:
        shape: Their shape.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        size = int(np.prod(shape))
        if size <= _SKETCH:
            places = np.arange(size)
        else:
            # Seeded by nothing but the size: the same model gives the same result.
            places = np.unique(np.random.default_rng(0).integers(0, size, _SKETCH))
        self._places = np.unravel_index(places, shape) if shape else ()

    def of(self, values: Array) -> Array:
        """Return the values that are looked at, float64."""
        return np.asarray(values[self._places], np.float64).reshape(-1)

    def compare(self, stored: Array, candidates: Array, owners: Array) -> Table:
        """Compare sketches.

        Args:
            stored: One row for each stored array.
            candidates: One row for each form of each candidate.
            owners: The candidate that a row of ``candidates`` belongs to; ascending from 0.
        """
        with np.errstate(all="ignore"):
            products = stored @ candidates.T
            ours = (stored * stored).sum(axis=1)[:, None]
            theirs = (candidates * candidates).sum(axis=1)[None, :]
            squared = np.maximum(ours - 2 * products + theirs, 0)
            distance = np.where(squared == 0, 0.0, np.sqrt(squared / ours))
            cosine = np.where(squared == 0, 1.0, products / np.sqrt(ours * theirs))
        distance = np.where(np.isfinite(distance), distance, np.inf)
        starts = np.flatnonzero(np.diff(owners, prepend=-1))
        band = np.maximum.reduceat(_band(cosine, distance), starts, axis=1)
        return Table(band=band, distance=np.minimum.reduceat(distance, starts, axis=1))
