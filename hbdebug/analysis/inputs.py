"""Whether the samples look like what the model was calibrated for; docs/inputs.md explains all.

Every warning needs evidence that right data do not show: a false alarm costs more trust than a
missed one. What is a guess about the cause is worded as one, with the numbers beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hbdebug.analysis.input_case import Case, expectation_of
from hbdebug.analysis.input_ranges import (
    beyond_threshold,
    channel_order,
    constant_channels,
    far_inside_threshold,
    narrow_range,
    normalized_twice,
    pixel_convention,
)
from hbdebug.analysis.input_statistics import (
    largest_correlation,
    largest_line_variance,
    measure_data,
)
from hbdebug.results import InputWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hbdebug.analysis.input_statistics import DataStatistics, SampleStatistics
    from hbdebug.model import QuantModel
    from hbdebug.samples import Samples

_COLOURS = 3

# Fewer pixels are not judged: a correlation from 1024 has a random error of 0.03.
_TEXTURE_VALUES = 1024

# Noise made by a program takes many values; one value that is frequent marks padding and masks.
_NOISE_LEVELS, _NOISE_COMMONEST = 64, 0.05

_UNIFORM_KURTOSIS, _KURTOSIS_TOLERANCE = -1.2, 0.2

# Samples whose difference from their mean is a hundredth of the contrast within it.
_ALIKE = 1e-4

# Fewer values than these can be equal by chance: flags, small identifiers.
_DUPLICATE_VALUES = 16


def check_inputs(model: QuantModel, samples: Samples) -> tuple[InputWarning, ...]:
    """Look for signs that the samples are not what the model was calibrated for.

    Args:
        model: The model; its points on the inputs are evidence of what it expects.
        samples: Read once, one at a time.

    Returns:
        What was found, input by input, in the model's order; what concerns all inputs comes last.

    Raises:
        DataError: A file cannot be read any more.
    """
    expectations = {spec.name: expectation_of(model, spec.name) for spec in model.inputs}
    intervals = {
        name: item.interval for name, item in expectations.items() if item.interval is not None
    }
    data = measure_data(model.inputs, samples, intervals)
    found: list[InputWarning] = []
    for name, measured in data.inputs.items():
        if measured.spec.dtype != "bool":
            case = Case(data=measured, expects=expectations[name], alone=len(model.inputs) == 1)
            for check in _CHECKS:
                found.extend(check(case))
    found.extend(_duplicates(data))
    return tuple(found)


# Noise.


def _noise(case: Case) -> Iterator[InputWarning]:
    """Random numbers instead of pictures, or of feature maps."""
    samples = case.data.samples
    noisy = samples if (case.data.is_image or len(samples) > 1) and _is_noise(samples) else []
    if not noisy and case.data.is_image and case.data.lows.size >= _COLOURS:
        # Only colour pictures are judged one by one: single feature maps can look random.
        noisy = [item for item in samples if _is_noise([item])]
    if not noisy:
        return
    mean = _mean_texture(noisy)
    strongest = max(mean[:4], key=abs)
    kind = "uniform" if mean[6] < _UNIFORM_KURTOSIS / 2 else "Gaussian"
    yield case.warning(
        "looks_like_noise",
        f"looks like {kind} noise: the correlation of pixels with their neighbours one and two "
        f"further on is {mean[0]:.2f} and {mean[1]:.2f} to the right, {mean[2]:.2f} and "
        f"{mean[3]:.2f} downwards (pictures: above 0.5), and the excess kurtosis {mean[6]:.2f} "
        f"({kind} noise: {_UNIFORM_KURTOSIS if kind == 'uniform' else 0:g})",
        "measure on real data, prepared as for the float model: on noise, errors say nothing "
        "about real inputs; and calibrate on real data",
        samples=noisy,
        strongest_correlation=strongest,
        excess_kurtosis=mean[6],
        row_means=mean[4],
        column_means=mean[5],
    )


def _mean_texture(samples: Sequence[SampleStatistics]) -> list[float]:
    """Return correlations, variances of lines and kurtosis, mean over samples by their size."""
    textures = [item.texture for item in samples if item.texture is not None]
    rows = [[*item.correlations, *item.lines, item.kurtosis] for item in textures]
    return [float(x) for x in np.average(rows, axis=0, weights=[t.values for t in textures])]


def _is_noise(samples: Sequence[SampleStatistics]) -> bool:
    """Whether pixels are independent of each other, and of one of the usual distributions."""
    textures = [item.texture for item in samples if item.texture is not None]
    count = sum(texture.values for texture in textures)
    if len(textures) < len(samples) or count < _TEXTURE_VALUES:
        return False
    if any(t.levels < _NOISE_LEVELS or t.commonest > _NOISE_COMMONEST for t in textures):
        return False
    *correlations, rows, columns, kurtosis = _mean_texture(samples)
    bound = largest_correlation(count, min(texture.area for texture in textures))
    lines = [sum(texture.counts[side] for texture in textures) for side in (0, 1)]
    if max(map(abs, correlations)) >= bound:
        return False
    if rows >= largest_line_variance(lines[0]) or columns >= largest_line_variance(lines[1]):
        return False
    # The random error of the kurtosis of n Gaussian numbers is sqrt(24 / n).
    gaussian = max(_KURTOSIS_TOLERANCE, 3 * float(np.sqrt(24 / count)))
    return abs(kurtosis) <= gaussian or abs(kurtosis - _UNIFORM_KURTOSIS) <= _KURTOSIS_TOLERANCE


# Samples.


def _constant_samples(case: Case) -> Iterator[InputWarning]:
    """Samples of one value only, where that is no initial state and no flag."""
    data = case.data
    if not data.spec.dtype.startswith("float") and not data.is_image:
        return
    if not case.alone and not (data.is_image and data.lows.size == 3):
        return
    flat = [
        item
        for item in data.samples
        if item.low == item.high and len(item.shape) >= 2 and item.size >= _DUPLICATE_VALUES
    ]
    if flat:
        values = sorted({item.low for item in flat})
        shown = ", ".join(f"{value:.4g}" for value in values[:3])
        yield case.warning(
            "constant_samples",
            f"every value is the same ({shown}{', ...' if len(values) > 3 else ''}): nothing in "
            "them tells one node from another",
            "check how these samples were made, or leave them out",
            samples=flat,
            lowest=values[0],
            highest=values[-1],
        )


def _nearly_identical(case: Case) -> Iterator[InputWarning]:
    """Samples that are all nearly the same picture."""
    data = case.data
    spread = data.spread
    if spread is None or not 0 < spread < _ALIKE or not (case.alone or data.is_image):
        return
    yield case.warning(
        "nearly_identical_samples",
        f"all samples are nearly the same: they differ from their mean by "
        f"{float(np.sqrt(spread)):.2%} of the contrast within it",
        "take samples that differ as real inputs do; copies of one give the ranking of one",
        relative_difference=float(np.sqrt(spread)),
    )


def _duplicates(data: DataStatistics) -> Iterator[InputWarning]:
    groups = [group for group in data.alike if data.sizes[group[0]] >= _DUPLICATE_VALUES]
    if not groups:
        return
    shown = "; ".join(" = ".join(group[:4]) + (" = ..." * (len(group) > 4)) for group in groups[:3])
    more = f" and {len(groups) - 3} more groups" if len(groups) > 3 else ""
    different = len(data.sizes) - sum(len(group) - 1 for group in groups)
    yield InputWarning(
        name="duplicate_samples",
        input="",
        samples=tuple(name for group in groups for name in group),
        evidence=f"equal to the last bit: {shown}{more}; {different} of {len(data.sizes)} samples "
        "are different",
        remedy="replace the copies: each counts like a sample of its own in means and intervals",
        numbers={"different": float(different)},
    )


_CHECKS: tuple[Callable[[Case], Iterator[InputWarning]], ...] = (
    _noise,
    pixel_convention,
    beyond_threshold,
    far_inside_threshold,
    narrow_range,
    normalized_twice,
    channel_order,
    constant_channels,
    _constant_samples,
    _nearly_identical,
)
