"""Ranges of values and of channels against what the model and the usual normalizations give."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.analysis.appearance import (
    IMAGENET_HIGHS,
    IMAGENET_LOWS,
    NORMALIZED_TWICE,
    fits,
    looks_like,
    threshold_fits,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hbdebug.analysis.input_case import Case
    from hbdebug.analysis.input_statistics import InputStatistics, SampleStatistics
    from hbdebug.results import InputWarning

# Shares of the values that are not 0. A calibration method gives up some thousandths.
_FAR_SHARE, _FARTHER_SHARE = 0.10, 0.05

# ImageNet's scale without its mean gives values up to 4.46 where 2.64 is right: 1.69 times.
_CLIPPED_SHARE, _DISAGREEMENT = 0.05, 1.5

# Two bits of int8 unused; three where the values need not be pixels, which reach their limits in
# any set of pictures; four where few samples may just have missed the large values.
_IDLE_COLOURS, _IDLE, _IDLE_FEW_SAMPLES = 4.0, 8.0, 16.0
_IDLE_SAMPLES, _IDLE_VALUES = 8, 1000

# Scales in front of networks: of bytes to 0 ... 1, to -1 ... 1, and ImageNet's of red, 0.0171.
_SCALES, _SCALE_TOLERANCE = (255.0, 127.5, 58.4), 0.02

# ImageNet's limits exceed 2.64 nowhere; scale without mean gives 4.46. Raw pixels of a picture
# that stays within 4.5 of 128 would be a grey area without content.
_NORMALIZED = 4.5

# What a resize with overshoot adds to pixels: a seventh of their range.
_OVERSHOOT = 40

# 1/255 of a picture's range in front of ImageNet's mean is 0.8 to 1 % of that mean.
_NARROW = 0.02


# Thresholds.


def beyond_threshold(case: Case) -> Iterator[InputWarning]:
    """Values that the point at the input clips, far beyond what a calibration gives up."""
    interval = case.expects.interval
    if interval is None or not interval.limit:
        return
    wide = [item for item in case.data.samples if _is_beyond(item) or _disagrees(case, item)]
    if not wide:
        return
    largest = max(item.largest for item in wide)
    clipped = sum(item.clipped for item in wide) / sum(item.size for item in wide)
    ratio = largest / interval.limit
    # Of an asymmetric range one end may be passed while the values are smaller than the other.
    reach = (
        f"values reach {largest:.4g}, {ratio:.3g} times {case.expects.represents}"
        if interval.symmetric
        else f"values lie in {case.data.low:.4g} ... {case.data.high:.4g}, beyond "
        f"{case.expects.represents}"
    )
    yield case.warning(
        "beyond_threshold",
        f"{reach}: {clipped:.1%} of the values are clipped{_guess(case, ratio)}",
        "prepare the data as for the calibration: compare mean, scale and type of both",
        samples=wide,
        threshold=interval.limit,
        largest=largest,
        ratio=ratio,
        clipped=clipped,
    )


def _is_beyond(item: SampleStatistics) -> bool:
    """Whether more is far outside than any method of calibration gives up; zeros do not count."""
    values = max(item.nonzero, 1)
    return item.far > _FAR_SHARE * values or item.farther > _FARTHER_SHARE * values


def _disagrees(case: Case, item: SampleStatistics) -> bool:
    """Whether data and threshold are each of a known normalization, but not of the same one."""
    limit = 0.0 if case.expects.interval is None else case.expects.interval.limit
    return (
        item.clipped > _CLIPPED_SHARE * max(item.nonzero, 1)
        and case.data.largest > _DISAGREEMENT * limit
        and bool(looks_like(case.data) and threshold_fits(limit))
    )


def far_inside_threshold(case: Case) -> Iterator[InputWarning]:
    """Values that use a small part of what the point at the input can represent."""
    interval, data = case.expects.interval, case.data
    if interval is None or data.low == data.high or data.size < _IDLE_VALUES:
        return
    used = data.largest if interval.symmetric else data.high - data.low
    whole = interval.limit if interval.symmetric else interval.high - interval.low
    needed = _IDLE_COLOURS if data.is_image and data.lows.size >= 3 else _IDLE
    if len(data.samples) < _IDLE_SAMPLES:
        needed = _IDLE_FEW_SAMPLES
    # An asymmetric range that the data leave is the other warning's.
    if whole / used < needed or data.low < interval.low or data.high > interval.high:
        return
    bits = float(np.log2(whole / used))
    yield case.warning(
        "far_inside_threshold",
        f"values stay within {data.low:.4g} ... {data.high:.4g}; {case.expects.represents} is "
        f"{whole / used:.3g} times as {'large' if interval.symmetric else 'wide'}: {bits:.1f} bits "
        f"of its type are unused{_guess(case, whole / used)}",
        "calibrate on data like these; if the model was, compare mean, scale and type of both",
        threshold=interval.limit,
        largest=data.largest,
        ratio=used / whole,
        unused_bits=bits,
    )


def _guess(case: Case, ratio: float) -> str:
    """Say what data and threshold look like, and else what their ratio is known from."""
    limit = 0.0 if case.expects.interval is None else case.expects.interval.limit
    found = looks_like(case.data)
    expected = threshold_fits(limit) if case.data.is_image else ""
    parts = [f"the data look like {found}"] if found else []
    parts += [f"the threshold fits {expected}"] if expected else []
    if not parts:
        parts = [
            f"the ratio is near {known:g}, as if a scale of 1/{known:g} were applied on one side "
            "only"
            for known in _SCALES
            if abs(ratio / known - 1) < _SCALE_TOLERANCE
        ]
    return f" ({'; '.join(parts)})" if parts else ""


def narrow_range(case: Case) -> Iterator[InputWarning]:
    """Values in a narrow band away from 0: what a scale applied twice leaves of pictures."""
    data = case.data
    spans = data.highs - data.lows
    varied = spans > 0
    if not data.is_image or not varied.any():
        return
    middles = np.abs(data.highs + data.lows)[varied] / 2
    if (spans[varied] > _NARROW * middles).any():
        return
    share = float((spans[varied] / middles).max())
    bands = ", ".join(
        f"{low:.4g} ... {high:.4g}" for low, high in zip(data.lows, data.highs, strict=True)
    )
    steps = ""
    if case.expects.scale:
        steps = (
            f", at most {float(spans.max()) / case.expects.scale:.1f} steps of {case.expects.point}"
        )
    yield case.warning(
        "narrow_range",
        f"every channel varies by {share:.2%} of its value at most ({bands}{steps})"
        + _narrow_guess(data),
        "check that pixels are scaled once, and that mean and scale are in the unit of the pixels",
        widest_share=share,
        widest_span=float(spans.max()),
    )


def _narrow_guess(data: InputStatistics) -> str:
    if _divided_twice(data):
        return ": so do pixels that were divided by 255 twice in front of ImageNet's mean and scale"
    if (np.abs(data.lows + 1) < 0.001).all() and (data.highs - data.lows <= 0.0081).all():
        return ": so do pixels in 0 ... 1 that were taken to be in 0 ... 255 and put to -1 ... 1"
    return ""


def _divided_twice(data: InputStatistics) -> bool:
    width = IMAGENET_HIGHS - IMAGENET_LOWS
    return any(
        fits(data.lows, data.highs, lows, lows + spans, inside=0.5)
        for order in (slice(None), slice(None, None, -1))
        for lows, spans in [(IMAGENET_LOWS[order], width[order] / 255)]
    )


def normalized_twice(case: Case) -> Iterator[InputWarning]:
    """Limits that only a doubled normalization gives, where no threshold shows it."""
    data = case.data
    if case.expects.interval is not None or looks_like(data) != NORMALIZED_TWICE:
        return
    yield case.warning(
        "normalized_twice",
        f"the limits by channel, {_listed(data.lows)} and {_listed(data.highs)}, are those of "
        f"{NORMALIZED_TWICE}",
        "normalize once, in the script or in the model",
        lowest=data.low,
        highest=data.high,
    )


# Pixels that the model itself normalizes.


def pixel_convention(case: Case) -> Iterator[InputWarning]:
    """The values that an HzPreprocess takes: bytes, minus 128 for the types called so."""
    if not case.expects.takes_pixels:
        return
    kind = case.expects.input_type
    shifted = kind.endswith("_128")
    takes = f"the model normalizes this input itself ({kind}) and takes " + (
        "pixels minus 128, in -128 ... 127" if shifted else "pixels in 0 ... 255"
    )
    found: dict[tuple[str, str], list[SampleStatistics]] = {}
    for item in case.data.samples:
        judged = _misfit(item, shifted=shifted)
        if judged:
            found.setdefault(judged, []).append(item)
    for (words, remedy), items in found.items():
        low, high = min(item.low for item in items), max(item.high for item in items)
        yield case.warning(
            "pixel_convention",
            f"{takes}, but the values are in {low:.4g} ... {high:.4g}: {words}",
            remedy,
            samples=items,
            low=low,
            high=high,
        )


def _misfit(item: SampleStatistics, *, shifted: bool) -> tuple[str, str] | None:
    """Say what is wrong with the pixels of one sample, and what to do; None if nothing is."""
    if not item.whole and item.largest <= _NORMALIZED:
        return (
            "they are normalized already, so that this is done twice",
            "give the pixels as they are" + (", minus 128" if shifted else ""),
        )
    margin = 0 if item.whole else _OVERSHOOT
    if shifted and item.low >= 0 and item.high > 127 + margin:
        return "the -128 is missing", "subtract 128 from the pixels"
    if shifted and (item.low < -128 - margin or item.high > 127 + margin):
        return "pixels minus 128 do not leave that range", "give the pixels as they are, minus 128"
    if not shifted and item.low < -32 and item.whole:
        return "pixels are not negative; 128 seems to be subtracted", "give the pixels as they are"
    return None


# Channels.


def channel_order(case: Case) -> Iterator[InputWarning]:
    """Channels in the opposite order to the model's thresholds, or to ImageNet's constants."""
    data, thresholds = case.data, np.array(case.expects.thresholds)
    if not data.is_image or data.lows.size != 3:
        return
    largest = np.maximum(np.abs(data.lows), np.abs(data.highs))
    if thresholds.size == 3:
        straight = np.abs(largest / thresholds - 1)
        turned = np.abs(largest / thresholds[::-1] - 1)
        if turned.max() < 0.02 and np.sum(straight > 0.05) >= 2:
            yield case.warning(
                "channel_order",
                f"the largest values by channel, {_listed(largest)}, are the thresholds of the "
                f"input's channels in reverse order, {_listed(thresholds)}",
                "check the order of the channels (RGB or BGR)",
                turned_difference=float(turned.max()),
                straight_difference=float(straight.max()),
            )
    elif fits(data.lows, data.highs, IMAGENET_LOWS[::-1], IMAGENET_HIGHS[::-1], inside=0.01):
        yield case.warning(
            "channel_order",
            f"the limits by channel, {_listed(data.lows)} and {_listed(data.highs)}, are those of "
            "ImageNet's mean and scale in reverse order (B, G, R)",
            "right for a model that was trained so; else mean and scale, or the channels, are in "
            "the wrong order",
            lowest=float(data.lows.min()),
            highest=float(data.highs.max()),
        )


def _listed(values: Sequence[float] | np.ndarray[Any, np.dtype[np.float64]]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def constant_channels(case: Case) -> Iterator[InputWarning]:
    """A channel of a colour image that never changes, beside others that do."""
    data = case.data
    if not data.is_image or data.lows.size != 3 or case.expects.input_type.startswith("YUV"):
        return
    flat = np.flatnonzero(data.lows == data.highs)
    if 0 < flat.size < 3:
        values = ", ".join(f"channel {index} is {data.lows[index]:.4g}" for index in flat)
        yield case.warning(
            "constant_channels",
            f"{values} in every pixel of every sample; the other channels vary",
            "check how channels are read and put together",
            channels=float(flat.size),
        )
