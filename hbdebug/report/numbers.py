"""How a metric is called and how its numbers are written for people.

A printed ``1.00000`` helps nobody: a cosine is shown as its distance from 1 in scientific form,
a ratio in decibels with one decimal, an error-free comparison as the word ``exact``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.metrics import METRICS, badness

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hbdebug.results import MetricValues

COSINE = "cosine_similarity"
SQNR = "sqnr_db"
MAX_ERROR = "max_abs_error"
TOP1 = "top1_agreement"

_LABELS = {
    COSINE: "1-cosine",
    SQNR: "SQNR dB",
    MAX_ERROR: "max |error|",
    TOP1: "top-1",
    "mse": "MSE",
    "mae": "MAE",
    "relative_l2": "rel. L2",
    "kl_divergence": "KL nats",
}

# Ends of an interval further apart than this share no readable power of ten.
_WIDE = 1000.0

# A double has no more decimal digits than these.
_MOST_DIGITS = 17


@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """The worst of several outputs.

    Attributes:
        output: Its name.
        values: Its metrics.
    """

    output: str
    values: MetricValues


def metric_label(name: str) -> str:
    """Return the column head of a metric; an unknown one keeps its name."""
    return _LABELS.get(name, name)


def format_metric(name: str, value: float | None) -> str:
    """Write a value under its `metric_label`.

    Args:
        name: Metric.
        value: Its value in the metric's own unit; None when it was not measured.

    Returns:
        Text without blanks at its ends; empty for None, ``n/a`` for NaN.
    """
    if value is None:
        return ""
    if math.isnan(value):
        return "n/a"
    if name == SQNR:
        # Adding zero turns the "-0.0" of a small negative number into "0.0".
        return "exact" if value == math.inf else f"{round(value, 1) + 0.0:.1f}"
    if name == TOP1:
        return f"{100 * value:.1f} %"
    # Rounding can push the cosine of equal tensors an ulp above 1.
    return _scientific(max(0.0, 1.0 - value) if name == COSINE else value)


def _scientific(value: float) -> str:
    return "0" if value == 0 else f"{value:.2e}"


def format_interval(name: str, interval: tuple[float, float] | None) -> str:
    """Write an interval of a metric in the unit of `metric_label`, the smaller end first.

    Returns:
        Such as ``[1.2, 1.9]e-02`` or ``[24.1, 25.3]``; empty for None.
    """
    if interval is None:
        return ""
    if any(math.isnan(end) for end in interval):
        return "n/a"
    if name in {SQNR, TOP1}:
        low, high = (format_metric(name, end).removesuffix(" %") for end in interval)
        return f"[{low}, {high}]" + (" %" if name == TOP1 else "")
    ends = [max(0.0, 1.0 - end) for end in interval] if name == COSINE else list(interval)
    small, large = sorted(ends)
    if small == large:
        return _scientific(small)
    if not math.isfinite(large - small) or small < 0 or large > _WIDE * small > 0:
        return f"[{small:.1e}, {large:.1e}]"
    _, exponent = f"{large:.1e}".split("e")
    return f"[{_digits(small, exponent)}, {_digits(large, exponent)}]e{exponent}"


def _digits(value: float, exponent: str) -> str:
    """Write ``value`` in units of a power of ten, two digits of it at least."""
    units = value / float(f"1e{exponent}")
    if units == 0:
        return "0"
    return f"{units:#.2g}" if units < 0.95 else f"{units:.1f}"


def format_raw(name: str, value: float, *, unlike: float | None = None) -> str:
    """Write a value as the user typed it for ``--target``: a cosine stays a cosine.

    A cosine gets as many decimals as its distance from 1 needs.

    Args:
        name: Metric.
        value: Its value in the metric's own unit.
        unlike: Another value, such as the target that this one missed, however narrowly; digits
            are added until the two look different.
    """
    if not math.isfinite(value):
        return format_metric(name, value)
    for extra in range(_MOST_DIGITS):
        text = _raw(name, value, extra)
        if unlike in (None, value) or text != _raw(name, unlike or 0.0, extra):
            break
    return text


def _raw(name: str, value: float, extra: int) -> str:
    if name == TOP1:
        return f"{100 * value:.{1 + extra}f} %"
    if name != COSINE:
        return f"{value:.{4 + extra}g}" + (" dB" if name == SQNR else "")
    distance = abs(1.0 - value)
    decimals = max(4, 2 - math.floor(math.log10(distance))) if distance else 4
    return f"{value:.{decimals + extra}f}".rstrip("0").rstrip(".")


def format_real(value: float | None) -> str:
    """Write a threshold or a scale with four digits; empty for None."""
    return "" if value is None else f"{value:.4g}"


def order_of_badness(metric: str, value: float) -> float:
    """Return a sort key, larger is worse; 0 for a metric that this version does not know.

    A result may hold a metric that a newer version added; its report then keeps the file's order.
    """
    return badness(metric, value) if metric in METRICS else 0.0


def worst_output(outputs: Mapping[str, MetricValues], metric: str) -> Worst:
    """Return the output that is worst in a metric, the first of equals.

    An output where the metric is undefined, or was not measured, comes last; without any output
    the name is empty.
    """
    name = max(
        outputs,
        key=lambda output: order_of_badness(metric, outputs[output].get(metric, math.nan)),
        default="",
    )
    return Worst(output=name, values=outputs.get(name, {}))


def some_of(names: Sequence[str], count: int) -> str:
    """Join the first few names, and say how many more there are."""
    shown = ", ".join(names[:count])
    return shown if len(names) <= count else f"{shown} and {len(names) - count} more"
