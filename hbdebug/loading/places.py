"""How well the places of constants in two graphs fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.loading.skeleton import Site, Skeleton

    Array = NDArray[Any]

RULES = {
    4: "at the same place in both graphs",
    3: "at the same place, seen from one end of the graphs",
    2: "among the same neighbours",
    1: "found by its values",
}
"""How well places fit, in words for the user, best first."""

PLACED = 2
"""From here on the place identifies a constant, and its values only have to be possible."""


class Places:
    """How well the places of two anchors fit, from the operators around them alone."""

    def __init__(self, twin: Skeleton, other: Skeleton) -> None:
        palette: dict[object, int] = {}
        self._colours = [
            np.asarray([_downward(side, palette), _upward(side, palette), _near(side, palette)])
            for side in (twin, other)
        ]

    def between(self, rows: Sequence[int], columns: Sequence[int]) -> Array:
        """Return the levels of some anchors of the twin and some of the float model."""
        ours, theirs = self._colours
        above, below, near = ours[:, rows][:, :, None] == theirs[:, columns][:, None, :]
        ends = above.astype(int) + below
        levels: Array = np.where(ends > 0, 2 + ends, 1 + near)
        return levels

    def level(self, row: int, column: int) -> int:
        """Return the level of one pair."""
        return int(self.between([row], [column])[0, 0])


def _downward(side: Skeleton, palette: dict[object, int]) -> list[int]:
    """Return a colour for each anchor that tells all that lies above it."""
    colours: list[int] = []
    for anchor in side.anchors:
        above = tuple(sorted({colours[number] for number in anchor.above}))
        key = ("down", anchor.key, above)
        colours.append(palette.setdefault(key, len(palette)))
    return colours


def _upward(side: Skeleton, palette: dict[object, int]) -> list[int]:
    """Return a colour for each anchor that tells all that lies below it."""
    colours = [0] * len(side.anchors)
    for number in reversed(range(len(colours))):
        anchor = side.anchors[number]
        below = tuple(sorted({colours[other] for other in anchor.below}))
        key = ("up", anchor.key, below)
        colours[number] = palette.setdefault(key, len(palette))
    return colours


def _near(side: Skeleton, palette: dict[object, int], rounds: int = 2) -> list[int]:
    """Return a colour for each anchor that tells what lies within a few steps."""
    colours = [palette.setdefault(anchor.key, len(palette)) for anchor in side.anchors]
    for turn in range(rounds):
        keys = [
            (
                turn,
                colours[number],
                tuple(sorted({colours[other] for other in anchor.above})),
                tuple(sorted({colours[other] for other in anchor.below})),
            )
            for number, anchor in enumerate(side.anchors)
        ]
        colours = [palette.setdefault(key, len(palette)) for key in keys]
    return colours


class Surroundings:
    """How well the places of two constants fit, from the anchors that are matched already."""

    def __init__(self, partners: Mapping[int, list[int]], twin: Skeleton, other: Skeleton) -> None:
        self._names: list[dict[int, object]] = [{}, {}]
        for number, columns in partners.items():
            column = columns[0]
            # Two anchors of the twin may come from one: then all three are called the same.
            called = self._names[1].setdefault(column, ("pair", column))
            self._names[0][number] = called
        for names, side in zip(self._names, (twin, other), strict=True):
            for number, anchor in enumerate(side.anchors):
                names.setdefault(number, anchor.key)

        self._colours: dict[frozenset[object], int] = {}
        self._known: list[dict[frozenset[int], int]] = [{}, {}]

    def between(self, ours: Site, theirs: Sequence[Site]) -> Array:
        """Return the levels of one place of the twin and some of the float model."""
        above = self._colour(0, ours.above)
        below = self._colour(0, ours.below)
        ends = np.asarray(
            [
                (self._colour(1, site.above) == above) + (self._colour(1, site.below) == below)
                for site in theirs
            ]
        )
        levels: Array = np.where(ends > 0, 2 + ends, 1)
        return levels

    def _colour(self, side: int, numbers: frozenset[int]) -> int:
        known = self._known[side]
        if numbers not in known:
            names = frozenset(self._names[side][number] for number in numbers)
            known[numbers] = self._colours.setdefault(names, len(self._colours))
        return known[numbers]
