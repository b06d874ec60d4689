"""What one pass over the samples says of each input; `hbdebug.analysis.inputs` judges it.

Of every sample a handful of numbers is kept, of every input two arrays of its own size: memory
does not grow with the size of the data. Everything is computed in float64.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.samples import TensorSpec

_SMALLEST_SIDE = 8  # of an image, in pixels
_MOST_COLOURS = 4  # a last dimension up to this is channels: NHWC

# Of what comes from independent pixels, six in a hundred thousand numbers are off by more random
# errors than this.
_ERRORS = 4.0

# Values that are looked at to tell a continuous distribution from a few levels.
_VALUES_COUNTED = 1 << 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """What a point can represent, in real numbers.

    Attributes:
        low: Smallest value.
        high: Largest value.
    """

    low: float
    high: float

    @property
    def limit(self) -> float:
        """The larger absolute end: the threshold of a symmetric point."""
        return max(abs(self.low), abs(self.high))

    @property
    def symmetric(self) -> bool:
        """Whether it reaches equally far to both sides."""
        return self.low == -self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class Texture:
    """How pixels relate to their neighbours, where they hardly do; means over channels.

    Attributes:
        values: Number of values that this is computed from.
        area: Number of pixels of a channel.
        correlations: Of pixels with those 1 and 2 to the right, and 1 and 2 below.
        lines: Variance of the means of rows, and of columns, over what independent pixels give.
        counts: Number of rows, and of columns, of all channels together.
        kurtosis: Excess kurtosis: -1.2 for a uniform distribution, 0 for a Gaussian one.
        levels: Number of different values, of those that were looked at.
        commonest: Share of the commonest value among those.
    """

    values: int
    area: int
    correlations: tuple[float, float, float, float]
    lines: tuple[float, float]
    counts: tuple[int, int]
    kurtosis: float
    levels: int
    commonest: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleStatistics:
    """Numbers of one input in one sample.

    Attributes:
        name: Sample name.
        shape: Of the array.
        low: Smallest value.
        high: Largest value.
        whole: Whether all values are integers.
        nonzero: Number of values that are not 0.
        clipped: Number of values beyond the interval by more than half a step of int8.
        far: Number of values beyond it by a quarter of its limit.
        farther: Number of values beyond it by its whole limit.
        texture: None where it is no image, too small, or neighbouring pixels are related.
    """

    name: str
    shape: tuple[int, ...]
    low: float
    high: float
    whole: bool
    nonzero: int
    clipped: int = 0
    far: int = 0
    farther: int = 0
    texture: Texture | None = None

    @property
    def size(self) -> int:
        """Number of values."""
        return int(np.prod(self.shape))

    @property
    def largest(self) -> float:
        """Largest absolute value."""
        return max(abs(self.low), abs(self.high))


@dataclass(kw_only=True)
class InputStatistics:
    """Numbers of one input in all samples.

    Attributes:
        spec: The input.
        samples: Those of each sample, in order; samples without any value are left out.
        lows: Smallest value by channel; empty where channels cannot be told.
        highs: Largest value by channel.
        spread: Mean square of the samples' differences from their mean, over the variance within
            that mean; None with fewer than two samples, other shapes, or a flat mean.
    """

    spec: TensorSpec
    samples: list[SampleStatistics] = field(default_factory=list)
    lows: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    highs: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    _count: int = 0
    _mean: NDArray[np.float64] | None = None
    _squares: float = 0.0
    _ragged: bool = False

    @property
    def low(self) -> float:
        """Smallest value of all samples."""
        return min(item.low for item in self.samples)

    @property
    def high(self) -> float:
        """Largest value of all samples."""
        return max(item.high for item in self.samples)

    @property
    def largest(self) -> float:
        """Largest absolute value of all samples."""
        return max(abs(self.low), abs(self.high))

    @property
    def whole(self) -> bool:
        """Whether all values are integers."""
        return all(item.whole for item in self.samples)

    @property
    def size(self) -> int:
        """Number of values of all samples."""
        return sum(item.size for item in self.samples)

    @property
    def is_image(self) -> bool:
        """Whether its shape is that of a picture: one, three or four channels of 8 x 8 or more."""
        planes = [channel_axis(item.shape) for item in self.samples]
        return bool(planes) and all(
            axis is not None and item.shape[axis] in {1, 3, 4}
            for axis, item in zip(planes, self.samples, strict=True)
        )

    @property
    def spread(self) -> float | None:
        """See the class."""
        if self._ragged or self._mean is None or self._count < 2:
            return None
        within = float(self._mean.var())
        return self._squares / self._count / self._mean.size / within if within else None

    def add(self, name: str, array: NDArray[Any], interval: Interval | None) -> None:
        """Take in one sample."""
        values = array.astype(np.float64)
        planes = _planes(values)
        if self.spec.dtype != "bool":
            self._add_channels(values)
            self._add_to_mean(values)
        self.samples.append(_measure(name, values, planes, interval))

    def _add_channels(self, values: NDArray[np.float64]) -> None:
        axis = channel_axis(values.shape)
        if axis is None:
            return
        others = tuple(index for index in range(values.ndim) if index != axis)
        lows, highs = values.min(axis=others), values.max(axis=others)
        if not self.samples:
            self.lows, self.highs = lows, highs
        elif self.lows.shape == lows.shape:
            self.lows, self.highs = np.minimum(self.lows, lows), np.maximum(self.highs, highs)
        else:
            self.lows = self.highs = np.zeros(0)

    def _add_to_mean(self, values: NDArray[np.float64]) -> None:
        """Welford's update of the mean sample and of the sum of squared differences from it."""
        self._count += 1
        if self._mean is None:
            self._mean = values.copy()
        elif self._mean.shape != values.shape:
            self._ragged = True
        elif not self._ragged:
            before = values - self._mean
            self._mean += before / self._count
            self._squares += float(np.vdot(before, values - self._mean))


@dataclass(frozen=True, kw_only=True, slots=True)
class DataStatistics:
    """Numbers of all inputs.

    Attributes:
        inputs: By name; those of which no sample holds a value are left out.
        alike: Groups of samples whose arrays are equal to the last bit, in order.
        sizes: Number of values of each sample, over all inputs.
    """

    inputs: Mapping[str, InputStatistics]
    alike: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]


def measure_data(
    specs: Sequence[TensorSpec],
    samples: Iterable[tuple[str, Mapping[str, NDArray[Any]]]],
    intervals: Mapping[str, Interval],
) -> DataStatistics:
    """Go over the samples once.

    Args:
        specs: The inputs.
        samples: Name and arrays of each sample.
        intervals: What the point at an input can represent, for inputs that have one.
    """
    inputs = {spec.name: InputStatistics(spec=spec) for spec in specs}
    names: dict[bytes, list[str]] = {}
    sizes: dict[str, int] = {}
    for name, arrays in samples:
        names.setdefault(_digest(arrays), []).append(name)
        sizes[name] = sum(array.size for array in arrays.values())
        for key, statistics in inputs.items():
            if arrays[key].size:
                # Squares of numbers beyond 1e154 overflow; what comes of them is no evidence.
                with np.errstate(over="ignore", invalid="ignore"):
                    statistics.add(name, arrays[key], intervals.get(key))
    return DataStatistics(
        inputs={key: statistics for key, statistics in inputs.items() if statistics.samples},
        alike=tuple(tuple(group) for group in names.values() if len(group) > 1),
        sizes=sizes,
    )


def channel_axis(shape: Sequence[int]) -> int | None:
    """Return the channel axis of an image or a feature map; None for another shape.

    Rank 4 with two sides of 8 or more: NHWC if only the last dimension is small, else NCHW.
    """
    if len(shape) != 4:
        return None
    axis = 3 if shape[3] <= _MOST_COLOURS < shape[1] else 1
    sides = shape[1:3] if axis == 3 else shape[2:4]
    return axis if min(sides) >= _SMALLEST_SIDE else None


def _planes(values: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return channels as a stack of pictures, of shape ``[n, height, width]``."""
    axis = channel_axis(values.shape)
    if axis is None:
        return None
    stacked = np.moveaxis(values, 3, 1) if axis == 3 else values
    return stacked.reshape(-1, *stacked.shape[2:])


def _digest(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.digest()


def _measure(
    name: str,
    values: NDArray[np.float64],
    planes: NDArray[np.float64] | None,
    interval: Interval | None,
) -> SampleStatistics:
    low, high = float(values.min()), float(values.max())
    beyond = [0, 0, 0]
    if interval is not None:
        for index, margin in enumerate((0.5 / 127, 0.25, 1.0)):
            beyond[index] = _outside(values, low, high, interval, margin * interval.limit)
    return SampleStatistics(
        name=name,
        shape=values.shape,
        low=low,
        high=high,
        whole=_all_whole(values),
        nonzero=int(np.count_nonzero(values)),
        clipped=beyond[0],
        far=beyond[1],
        farther=beyond[2],
        texture=None if planes is None else _texture(planes),
    )


def _outside(
    values: NDArray[np.float64], low: float, high: float, interval: Interval, margin: float
) -> int:
    """Count values beyond an interval by more than a margin."""
    below, above = interval.low - margin, interval.high + margin
    count = 0
    if low < below:
        count += int(np.count_nonzero(values < below))
    if high > above:
        count += int(np.count_nonzero(values > above))
    return count


def _all_whole(values: NDArray[np.float64]) -> bool:
    flat = values.reshape(-1)
    first = flat[:64]  # tells most float data at once
    return bool((first == np.rint(first)).all() and (flat == np.rint(flat)).all())


def _texture(planes: NDArray[np.float64]) -> Texture | None:
    """Measure the texture, giving up at the first sign of neighbours that are related."""
    centred = planes - planes.mean(axis=(1, 2), keepdims=True)
    variances = np.mean(centred**2, axis=(1, 2))
    varied = variances > 0
    if not varied.any():
        return None
    if not varied.all():
        planes, centred, variances = planes[varied], centred[varied], variances[varied]
    area = planes[0].size
    bound = largest_correlation(centred.size, area)
    correlations = []
    for axis in (2, 1):
        for lag in (1, 2):
            found = _correlation(centred, variances, axis, lag)
            if abs(found) >= bound:
                return None
            correlations.append(found)
    levels, commonest = _levels(planes)
    return Texture(
        values=centred.size,
        area=area,
        correlations=(correlations[0], correlations[1], correlations[2], correlations[3]),
        lines=(_lines(centred, variances, axis=2), _lines(centred, variances, axis=1)),
        counts=(len(planes) * planes.shape[1], len(planes) * planes.shape[2]),
        kurtosis=float(np.mean(np.mean(centred**4, axis=(1, 2)) / variances**2)) - 3,
        levels=levels,
        commonest=commonest,
    )


def largest_correlation(values: int, area: int) -> float:
    """Return what the correlation of independent pixels stays below.

    Its random error is ``1 / sqrt(values)``; that the mean of the channel's own ``area`` pixels
    is subtracted makes it ``1 / area`` smaller.
    """
    return _ERRORS / float(np.sqrt(values)) + 2 / area


def largest_line_variance(lines: int) -> float:
    """Return what `Texture.lines` of independent pixels stays below: 1 and its random error."""
    return 1 + _ERRORS * float(np.sqrt(2 / lines))


def _correlation(
    centred: NDArray[np.float64], variances: NDArray[np.float64], axis: int, lag: int
) -> float:
    """Return the correlation of pixels with those ``lag`` further on, mean over planes."""
    if axis == 2:
        here, there = centred[:, :, :-lag], centred[:, :, lag:]
    else:
        here, there = centred[:, :-lag], centred[:, lag:]
    return float(np.mean(np.mean(here * there, axis=(1, 2)) / variances))


def _lines(centred: NDArray[np.float64], variances: NDArray[np.float64], *, axis: int) -> float:
    """Return the variance of the means along an axis, times their length, over the variance."""
    means = centred.mean(axis=axis)
    return float(np.mean(np.mean(means**2, axis=1) * centred.shape[axis] / variances))


def _levels(planes: NDArray[np.float64]) -> tuple[int, float]:
    """Return how many different values there are, and the share of the commonest."""
    flat = planes.reshape(-1)
    looked_at = flat[:: max(1, flat.size // _VALUES_COUNTED)]
    counts = np.unique(looked_at, return_counts=True)[1]
    return counts.size, float(counts.max()) / looked_at.size
