"""What samples showed of the difference between two forms of a node, summed up.

The unit of a difference is the step of the output, what one of its integers is worth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from hbdebug.kernels import Outcome

ROUNDING = 1 / 12
"""Noise of rounding to a step, in squared steps."""

# Share of the type's largest integer within which a value counts as halfway between two integers:
# what a handful of float32 roundings can move it by.
_TIE = 2.0**-22

# Below the signal, in dB: a thousandth of it, which is what 10 bits can show.
_FAINT = 60.0


@dataclass(slots=True, eq=False)
class Tally:
    """Sums over samples of what one target showed.

    Attributes:
        elements: Number of elements.
        largest: Largest difference, in steps.
        total: Sum of the absolute differences, in steps.
        beyond: Number of differences of more than one step.
        noise: Sum of the squared differences, in steps.
        noise_power: The same in real units.
        signal_power: Sum of the squares of the calibrated values, in real units.
        ties: Number of values in front of the point that lie halfway between two integers.
        moved_ties: Those of them that differ by one step.
        clipped: Number of values in front of the point that its integers cannot hold.
        clipped_power: Sum of the squares of what is cut off from them, in real units.
        front_power: Sum of the squares of the values in front of the point.
        channel_noise: Noise by channel, the second axis of an image; empty for others.
        channel_largest: Largest difference by channel.
    """

    elements: int = 0
    largest: float = 0.0
    total: float = 0.0
    beyond: int = 0
    noise: float = 0.0
    noise_power: float = 0.0
    signal_power: float = 0.0
    ties: int = 0
    moved_ties: int = 0
    clipped: int = 0
    clipped_power: float = 0.0
    front_power: float = 0.0
    channel_noise: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    channel_largest: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    @property
    def sqnr_db(self) -> float:
        """Power of the signal over that of the difference, in dB; infinite without any."""
        if not self.noise_power:
            return math.inf
        return 10 * math.log10(self.signal_power / self.noise_power) if self.signal_power else 0.0

    @property
    def clipping_db(self) -> float:
        """Power of the values in front of the point over what is clipped, in dB."""
        if not self.clipped_power:
            return math.inf
        return 10 * math.log10(self.front_power / self.clipped_power)

    @property
    def differs_much(self) -> bool:
        """Whether the difference is more than rounding, and can matter."""
        return self.noise > ROUNDING * self.elements and self.sqnr_db < _FAINT

    def add(self, steps: NDArray[Any], scale: NDArray[Any], values: NDArray[Any]) -> None:
        """Count one sample.

        Args:
            steps: Differences in steps.
            scale: Step, broadcast against them.
            values: What the calibrated model gives.
        """
        power = float(np.square(values, dtype=np.float64).sum())
        if not math.isfinite(power):
            # Where the calibrated model itself gives NaN or infinity there is nothing to compare.
            steps, values = _finite(steps, values), _finite(values, values)
            power = float(np.square(values, dtype=np.float64).sum())
        off = np.abs(steps)
        square = np.square(steps, dtype=np.float64)
        self.elements += off.size
        self.largest = max(self.largest, float(off.max(initial=0)))
        self.total += float(off.sum(dtype=np.float64))
        # Not 1: the step of an int32 sum is no grid for the calibrated value.
        self.beyond += int(np.count_nonzero(off > 1.5))
        self.noise += float(square.sum())
        self.noise_power += float((square * np.square(scale, dtype=np.float64)).sum())
        self.signal_power += power
        if steps.ndim == 4:
            noise, largest = square.sum(axis=(0, 2, 3)), off.max(axis=(0, 2, 3), initial=0)
            seen = self.channel_noise.size == noise.size
            self.channel_noise = self.channel_noise + noise if seen else noise
            self.channel_largest = np.maximum(self.channel_largest, largest) if seen else largest

    def add_front(
        self, front: NDArray[Any], scale: NDArray[np.float32], steps: NDArray[Any], bits: int
    ) -> None:
        """Count what a point does to the calibrated values in front of it.

        Args:
            front: Values in front of the point.
            scale: Its step.
            steps: Differences behind it, in steps.
            bits: Width of its integers.
        """
        power = float(np.square(front, dtype=np.float64).sum())
        if not math.isfinite(power):
            front = _finite(front, front)
            power = float(np.square(front, dtype=np.float64).sum())
        largest = (1 << (bits - 1)) - 1
        exact = np.abs(front / scale)
        tie = np.abs(exact - np.floor(exact) - np.float32(0.5)) <= np.float32(largest * _TIE)
        tie &= exact < largest
        self.ties += int(np.count_nonzero(tie))
        self.moved_ties += int(np.count_nonzero(tie & (np.abs(steps) == 1)))
        # Half a step more is rounding, not clipping; nobody misses one integer of the negative.
        self.clipped += int(np.count_nonzero(exact > largest + 1))
        cut = np.maximum(exact - (largest + 1), 0) * scale
        self.clipped_power += float(np.square(cut, dtype=np.float64).sum())
        self.front_power += power


@dataclass(slots=True, eq=False)
class Seen:
    """What the samples showed of a unit.

    Attributes:
        tallies: One for each target.
        wrapped: Number of accumulators that wrapped around.
        smallest: Smallest accumulator.
        largest: Largest accumulator.
        saturated_middles: Number of values between the shifts that int16 could not hold.
        saturated_outputs: Number of outputs that their type could not hold.
        accumulators: Number of accumulators.
    """

    tallies: tuple[Tally, ...]
    wrapped: int = 0
    smallest: int = 0
    largest: int = 0
    saturated_middles: int = 0
    saturated_outputs: int = 0
    accumulators: int = 0

    @property
    def worst(self) -> Tally:
        """The target with the strongest difference."""
        return min(self.tallies, key=lambda tally: tally.sqnr_db)

    def note(self, outcome: Outcome) -> None:
        """Count what happened to an accumulator."""
        found = outcome.accumulator
        if found is None:
            return
        self.wrapped += found.wrapped
        self.smallest = min(self.smallest, found.smallest)
        self.largest = max(self.largest, found.largest)
        self.saturated_middles += found.saturated_middles
        self.saturated_outputs += found.saturated_outputs
        self.accumulators += found.elements


def _finite(array: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """Return an array with zero where the values are NaN or infinite."""
    return np.where(np.isfinite(values), array, array.dtype.type(0))
