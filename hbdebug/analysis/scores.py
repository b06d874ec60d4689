"""From measurements per sample to what is reported: means, worst output, intervals, ties."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.metrics import (
    BASELINE_NOT_FINITE,
    METRICS,
    OTHER_SHAPE,
    Reference,
    badness,
    looks_like_scores,
    worst,
)
from hbdebug.results import Effect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.results import MetricValues

RESAMPLES = 1000
"""Bootstrap resamples behind an interval."""

CONFIDENCE = 0.95
"""Share of the bootstrap means that an interval holds."""

Flags: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"

FAINT_DB = 80.0
"""SQNR in dB above which an optimized jump's rounding, some 1e-7 of the signal, is more than a
thousandth of the error that is measured."""

Score: TypeAlias = "tuple[tuple[float, ...], ...]"
"""One evaluation: for each output, the metrics in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """What one evaluation on one sample gave.

    Attributes:
        values: For each output, the metrics in order.
        exact: Whether every output was equal to the float baseline.
        flags: What was special about an output, see `hbdebug.metrics.flags`.
    """

    values: Score
    exact: bool
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scorer:
    """A judge for `hbdebug.engine.Engine`: measures every output with every metric.

    Attributes:
        outputs: Output names, in the order of the scores.
        metrics: Metric names, in the order of the scores.
    """

    outputs: tuple[str, ...]
    metrics: tuple[str, ...]

    @classmethod
    def like(cls, scores: Scores) -> Scorer:
        """Return the scorer whose measurements a table of scores takes."""
        return cls(outputs=scores.outputs, metrics=scores.metrics)

    def __call__(
        self, baseline: Mapping[str, NDArray[Any]]
    ) -> Callable[[Mapping[str, NDArray[Any]]], Scored]:
        """Prepare the float baseline and return the function that measures other outputs."""
        references = [
            Reference(baseline[name], self._metrics_of(baseline[name])) for name in self.outputs
        ]

        def measure(outputs: Mapping[str, NDArray[Any]]) -> Scored:
            values: list[tuple[float, ...]] = []
            flags: list[str] = []
            exact = True
            for name, reference in zip(self.outputs, references, strict=True):
                if outputs[name].shape != reference.shape:
                    values.append((math.nan,) * len(self.metrics))
                    flags.append(OTHER_SHAPE)
                    exact = False
                    continue
                measurement = reference.examine(outputs[name])
                values.append(
                    tuple(measurement.values.get(metric, math.nan) for metric in self.metrics)
                )
                exact = exact and measurement.exact
                flags.extend(measurement.flags)
            return Scored(values=tuple(values), exact=exact, flags=tuple(dict.fromkeys(flags)))

        return measure

    def faint(self, scored: Scored) -> bool:
        """Whether the damage at every output is so small that float32 noise shows in it."""
        if scored.exact or "sqnr_db" not in self.metrics:
            return False
        column = self.metrics.index("sqnr_db")
        return min(output[column] for output in scored.values) > FAINT_DB

    def _metrics_of(self, array: NDArray[Any]) -> tuple[str, ...]:
        """Leave out what needs class scores where the output does not look like them."""
        if looks_like_scores(array):
            return self.metrics
        return tuple(name for name in self.metrics if name != "top1_agreement")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scores:
    """All scores of one list of assignments.

    Attributes:
        outputs: Output names.
        metrics: Metric names; the first ranks.
        table: float64, shape (assignments, samples, outputs, metrics); NaN where nothing was
            measured.
        exact: bool, shape (assignments, samples).
        done: bool, shape (assignments, samples): what has been evaluated.
        broken: bool, shape (samples,): where some output of the float baseline is not finite.
        flags: For each assignment the flags of any of its samples.
    """

    outputs: tuple[str, ...]
    metrics: tuple[str, ...]
    table: NDArray[np.float64]
    exact: Flags
    done: Flags
    broken: Flags
    flags: list[tuple[str, ...]] = field(default_factory=list)

    @classmethod
    def empty(cls, assignments: int, samples: int, scorer: Scorer) -> Scores:
        """Return scores with nothing measured yet."""
        shape = (assignments, samples, len(scorer.outputs), len(scorer.metrics))
        return cls(
            outputs=scorer.outputs,
            metrics=scorer.metrics,
            table=np.full(shape, np.nan),
            exact=np.zeros(shape[:2], np.bool_),
            done=np.zeros(shape[:2], np.bool_),
            broken=np.zeros(samples, np.bool_),
            flags=[()] * assignments,
        )

    def add(self, assignment: int, sample: int, scored: Scored) -> None:
        """Enter one evaluation."""
        self.table[assignment, sample] = scored.values
        self.exact[assignment, sample] = scored.exact
        self.done[assignment, sample] = True
        self.broken[sample] |= BASELINE_NOT_FINITE in scored.flags
        self.flags[assignment] = tuple(dict.fromkeys((*self.flags[assignment], *scored.flags)))

    def only(self, samples: Flags) -> Scores:
        """Return the scores of some samples only.

        Args:
            samples: bool, shape (samples,): which to keep.
        """
        return Scores(
            outputs=self.outputs,
            metrics=self.metrics,
            table=self.table[:, samples],
            exact=self.exact[:, samples],
            done=self.done[:, samples],
            broken=self.broken[samples],
            flags=self.flags,
        )

    def output_means(self, assignment: int) -> dict[str, MetricValues]:
        """Return output -> metric -> mean over samples of one assignment."""
        means = mean_over_samples(self.table[assignment])
        return {
            output: {
                metric: float(value)
                for metric, value in zip(self.metrics, means[index], strict=True)
                if metric != "top1_agreement" or not math.isnan(value)
            }
            for index, output in enumerate(self.outputs)
        }

    def effect(
        self, assignment: int, interval: tuple[float, float] | None, metrics: Sequence[str]
    ) -> Effect:
        """Return the effect of one assignment: the worst over outputs of the mean over samples."""
        outputs = self.output_means(assignment)
        values = {
            metric: worst(metric, [means[metric] for means in outputs.values() if metric in means])
            for metric in metrics
        }
        return Effect(
            values=values,
            outputs={
                output: {name: means[name] for name in metrics if name in means}
                for output, means in outputs.items()
            },
            interval=interval,
            exact=bool(self.exact[assignment][self.done[assignment]].all()),
            flags=self.flags[assignment],
        )

    def ranking_values(self) -> NDArray[np.float64]:
        """Return the ranking metric per sample, at each assignment's worst output.

        Returns:
            float64, shape (assignments, samples).
        """
        first = self.table[:, :, :, 0]
        picked = np.full(first.shape[:2], np.nan)
        for index, per_output in enumerate(first):
            means = [float(value) for value in mean_over_samples(per_output)]
            keys = [badness(self.metrics[0], value) for value in means]
            picked[index] = per_output[:, int(np.argmax(keys))]
        return picked


def mean_over_samples(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over the first axis of what was measured.

    NaN (nothing measured) is left out. Infinite values, such as the SQNR of a sample without any
    error, are left out as long as there are finite ones: one lucky sample does not hide the
    others' noise.

    Args:
        values: float64, shape (samples, ...).

    Returns:
        float64, shape (...); infinite where all measured values are, NaN where none is.
    """
    finite = np.isfinite(values)
    count = finite.sum(axis=0)
    total = np.where(finite, values, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
    infinite = np.where(np.isinf(values), values, 0.0)
    with np.errstate(invalid="ignore"):
        extreme = infinite.sum(axis=0) if len(values) else np.zeros(values.shape[1:])
    return np.where(count > 0, mean, np.where(np.isinf(extreme), extreme, np.nan))


def resampled_means(values: NDArray[np.float64], seed: int) -> NDArray[np.float64] | None:
    """Return bootstrap means over samples, the same resamples for every row.

    Args:
        values: float64, shape (rows, samples).
        seed: Seed of the resampling.

    Returns:
        float64, shape (resamples, rows), rows with any non-finite value being NaN; None with
        fewer than two samples.
    """
    samples = values.shape[1]
    if samples < 2:
        return None
    generator = np.random.default_rng(seed)
    drawn = generator.integers(samples, size=(RESAMPLES, samples))
    weights = np.stack([np.bincount(row, minlength=samples) for row in drawn]) / samples
    usable: Flags = np.asarray(np.isfinite(values).all(axis=1))
    means = weights @ np.where(usable[:, None], values, 0.0).T
    means[:, ~usable] = np.nan
    result: NDArray[np.float64] = means
    return result


def intervals(means: NDArray[np.float64] | None, rows: int) -> list[tuple[float, float] | None]:
    """Return the confidence interval of each row's mean; None where there is none."""
    if means is None:
        return [None] * rows
    low, high = _middle(means)
    return [
        (float(a), float(b)) if math.isfinite(a) and math.isfinite(b) else None
        for a, b in zip(low, high, strict=True)
    ]


def ties(means: NDArray[np.float64] | None, order: Sequence[int]) -> list[bool]:
    """Say for each row in order whether the samples can not tell it from the one before.

    That is the case when the interval of the paired difference of their means holds zero; without
    intervals, never. The first row is tied with nobody.
    """
    if means is None or not order:
        return [False] * len(order)
    ranked = means[:, list(order)]
    low, high = _middle(ranked[:, 1:] - ranked[:, :-1])
    # A comparison with NaN is False, so that what was not measured is tied with nobody.
    return [False, *(bool(a <= 0 <= b) for a, b in zip(low, high, strict=True))]


def _middle(means: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bounds of the middle `CONFIDENCE` of each column's resampled means.

    Args:
        means: float64, shape (resamples, rows).

    Returns:
        float64, shape (2, rows).
    """
    outside = round(len(means) * (1 - CONFIDENCE) / 2)
    ordered = np.sort(means, axis=0)
    bounds: NDArray[np.float64] = ordered[[outside, -1 - outside]]
    return bounds


def worst_of(outputs: Mapping[str, MetricValues], metric: str) -> float:
    """Return the worst over outputs of one metric; NaN when no output has it."""
    return worst(METRICS[metric], [means[metric] for means in outputs.values() if metric in means])
