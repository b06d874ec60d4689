"""Operands of a float model that those of its quantized twin are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.loading.closeness import Sketch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from hbdebug.loading.places import Surroundings
    from hbdebug.loading.skeleton import Site

    Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Alike:
    """Operands of one kind and shape.

    Attributes:
        sites: Where they are read.
        sketch: Draws from their values, made flat.
        drawn: A row for each of them.
    """

    sites: tuple[Site, ...]
    sketch: Sketch
    drawn: Array


class Operands:
    """The operands of the float model, by kind and shape.

    Args:
        sites: Where they are read.
        around: Tells how well places fit.
    """

    def __init__(self, sites: Iterable[Site], around: Surroundings) -> None:
        self._around = around
        self._sites: dict[object, list[Site]] = {}
        for site in sites:
            self._sites.setdefault(_key(site), []).append(site)
        self._alike: dict[object, _Alike] = {}

    def closest(self, site: Site, limit: int = 3) -> Iterator[tuple[Site, int]]:
        """Yield the few operands that fit a place of the twin best, with the level of each.

        Values are compared with all that are of its kind and shape, at a few thousand places.
        """
        key = _key(site)
        if key not in self._sites:
            return
        if key not in self._alike:
            self._alike[key] = _drawn(self._sites[key])
        alike = self._alike[key]
        stored = alike.sketch.of(site.held.values.reshape(-1))[None]
        close = alike.sketch.compare(stored, alike.drawn, np.arange(len(alike.sites)))
        levels = self._around.between(site, alike.sites)
        score = close.band[0] * 1000.0 + levels * 10.0 - np.minimum(close.distance[0], 5.0)
        best = {int(index) for index in np.argsort(-score, kind="stable")[:limit]}
        # What is as close without being at the place is a rival all the same.
        best.update(int(index) for index in np.argsort(close.distance[0], kind="stable")[:limit])
        for index in sorted(best):
            yield alike.sites[index], int(levels[index])


def _key(site: Site) -> object:
    """Return kind and shape; axes of one, which broadcasting adds and ignores, do not count."""
    return site.kind, tuple(size for size in site.held.values.shape if size != 1)


def _drawn(sites: list[Site]) -> _Alike:
    sketch = Sketch((sites[0].held.values.size,))
    drawn = np.stack([sketch.of(site.held.values.reshape(-1)) for site in sites])
    return _Alike(sites=tuple(sites), sketch=sketch, drawn=drawn)
