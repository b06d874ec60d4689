"""What pixels look like after the usual ways to normalize them, told from their limits.

Pixels are bytes, so every normalization has limits of its own, which a set of pictures usually
reaches: some pixel somewhere is black, and some is white.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hbdebug.analysis.input_statistics import InputStatistics

# Of ImageNet's pictures in RGB order, for pixels in 0 ... 1, as torchvision documents them.
_MEAN = np.array([0.485, 0.456, 0.406])
_DEVIATION = np.array([0.229, 0.224, 0.225])

IMAGENET_LOWS = -_MEAN / _DEVIATION
"""Black by channel (R, G, B) after ImageNet's mean and scale: -2.118, -2.036, -1.804."""

IMAGENET_HIGHS = (1 - _MEAN) / _DEVIATION
"""White by channel after ImageNet's mean and scale: 2.249, 2.429, 2.640."""

NORMALIZED_TWICE = "pixels with ImageNet's mean and scale applied twice"
"""What `looks_like` says of limits that no model wants."""

# How far limits may be from those of a normalization, as a share of its range: a little more
# inside, where no pixel is quite black or white, than outside, which float32 and a resize with
# overshoot explain.
_INSIDE, _OUTSIDE = 0.05, 0.01

# What a threshold says when it was measured on pixels with the whole range of a normalization;
# a symmetric threshold is the larger absolute limit.
_THRESHOLDS = (
    (0.95, 1.02, "pixels in 0 ... 1 or -1 ... 1"),
    (2.1, 2.7, "pixels with ImageNet's mean and scale (up to 2.64)"),
    (4.0, 5.7, "standard Gaussian noise, whose largest values are 4 to 5.5"),
    (126.0, 129.0, "pixels minus 128, or times 1/2"),
    (240.0, 256.0, "pixels in 0 ... 255"),
)


def fits(
    lows: NDArray[np.float64],
    highs: NDArray[np.float64],
    expected_lows: NDArray[np.float64],
    expected_highs: NDArray[np.float64],
    inside: float = _INSIDE,
) -> bool:
    """Whether limits by channel are those of a normalization.

    Args:
        lows: Smallest values by channel.
        highs: Largest values by channel.
        expected_lows: Those of the normalization.
        expected_highs: Those of the normalization.
        inside: How much of the range the values may leave unused at either end.
    """
    if lows.shape != expected_lows.shape:
        return False
    width = expected_highs - expected_lows
    short = np.maximum(lows - expected_lows, expected_highs - highs) / width
    beyond = np.maximum(expected_lows - lows, highs - expected_highs) / width
    return bool((short <= inside).all() and (beyond <= _OUTSIDE).all())


def looks_like(image: InputStatistics) -> str:
    """Say what the limits of an image input suggest; empty where they suggest nothing."""
    if not image.is_image:
        return ""
    return _by_limits(image.low, image.high, whole=image.whole) or _by_channel(image)


def _by_limits(low: float, high: float, *, whole: bool) -> str:
    """Compare with normalizations that are the same for every channel."""
    if low >= 0:
        if 127 < high <= 255.5:
            return f"pixels in 0 ... 255{' (all are integers)' if whole else ''}"
        if 0.5 < high <= 1.01:
            return "pixels in 0 ... 1"
        return "pixels divided by 255 twice" if 0.5 < high * 255 <= 1.01 else ""
    if whole and -128 <= low < -32 and 32 < high <= 127:
        return "pixels minus 128 (all are integers)"
    return "pixels in -1 ... 1" if -1.01 <= low < -0.5 and high <= 1.01 else ""


def _by_channel(image: InputStatistics) -> str:
    """Compare with normalizations that differ from channel to channel, in RGB or BGR order."""
    twice_lows, twice_highs = ((ends - _MEAN) / _DEVIATION for ends in _imagenet())
    unscaled_lows, unscaled_highs = -255 * _MEAN, 255 * (1 - _MEAN)
    zeros = np.zeros(3)
    known = (
        (*_imagenet(), "pixels with ImageNet's mean and scale"),
        (twice_lows, twice_highs, NORMALIZED_TWICE),
        (unscaled_lows, unscaled_highs, "pixels minus ImageNet's mean, without its scale"),
        (zeros, 1 / _DEVIATION, "pixels with ImageNet's scale, without its mean"),
    )
    for lows, highs, words in known:
        for order in (slice(None), slice(None, None, -1)):
            if fits(image.lows, image.highs, lows[order], highs[order]):
                return words
    return ""


def _imagenet() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return IMAGENET_LOWS, IMAGENET_HIGHS


def threshold_fits(limit: float) -> str:
    """Say what a threshold at an image input fits; empty where it fits nothing that is known."""
    return next((words for low, high, words in _THRESHOLDS if low <= limit <= high), "")
