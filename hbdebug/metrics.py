"""How far a tensor is from its float baseline: the table of metrics and one fast pass for all.

Every metric compares a *test* tensor with the *reference*, the float baseline, in float64. What
two tensors give in the corner cases is part of each metric's definition (`Metric.edge_cases`),
never the accident of an epsilon in a denominator:

* equal tensors, two zero tensors included, give the metric's best value;
* NaN or infinity in either tensor, or an empty tensor, gives NaN: nothing was measured;
* an all-zero reference or an all-zero test tensor is named by a flag (`flags`).

Values are compared through `badness` and nothing else, so that no report sorts the wrong way.
"""

from __future__ import annotations

import difflib
import math
import sys
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[Any]
    Float64: TypeAlias = NDArray[np.float64]

ZERO_SIGNAL = "zero_signal"
"""Flag: the reference is all zero and the test tensor is not."""

DEAD_OUTPUT = "dead_output"
"""Flag: the test tensor is all zero and the reference is not."""

NOT_FINITE = "not_finite"
"""Flag: the test tensor holds NaN or infinity (or float64 values too large to be squared)."""

BASELINE_NOT_FINITE = "baseline_not_finite"
"""Flag: the reference holds NaN or infinity, so nothing can be compared with it."""

OTHER_SHAPE = "other_shape"
"""Flag: the test tensor has another shape than the reference, so nothing was measured."""

EMPTY = "empty"
"""Flag: the tensors have no elements."""

# 64 KB of float64: a block stays in the second-level cache over its passes, and OpenBLAS, which
# starts threads of its own above 10,000 elements, computes its dot products in the caller's.
_BLOCK = 8192

# Below this ratio of |test|^2 to |reference|^2 the sums of differences cancel (four bits are
# gone), and the sums of the test tensor are taken from its own elements.
_CANCELS = 1 / 16

_PROBABILITY_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One way to compare a test tensor ``b`` with its reference ``a``; ``d = b - a``.

    Attributes:
        name: Name in options, records and reports.
        description: Formula, in one line.
        unit: Unit for a column head; empty for a plain ratio.
        higher_is_better: Direction.
        best: Value of equal tensors.
        bounds: Smallest and largest possible value.
        scale_free: Whether scaling both tensors alike changes nothing, so that a value can be
            read without knowing the magnitude of the tensor.
        edge_cases: What a zero reference and a zero test tensor give.
        vendor_name: Name in the vendor's debugger; None where it has no such metric.
        vendor_factor: The vendor's number is ours times this.
        vendor_note: What the vendor computes under that name, where the name says otherwise.
    """

    name: str
    description: str
    unit: str
    higher_is_better: bool
    best: float
    bounds: tuple[float, float]
    scale_free: bool
    edge_cases: str
    vendor_name: str | None = None
    vendor_factor: float = 1.0
    vendor_note: str = ""


_TABLE = (
    Metric(
        name="cosine_similarity",
        description="a.b / (|a| |b|) over the flattened tensors",
        unit="",
        higher_is_better=True,
        best=1.0,
        bounds=(-1.0, 1.0),
        scale_free=True,
        edge_cases="0 when exactly one of the tensors is all zero",
        vendor_name="cosine-similarity",
        vendor_note="computed in float32, so its last digit is noise and it can exceed 1",
    ),
    Metric(
        name="sqnr_db",
        description="10 log10(sum a^2 / sum d^2)",
        unit="dB",
        higher_is_better=True,
        best=math.inf,
        bounds=(-math.inf, math.inf),
        scale_free=True,
        edge_cases="-inf for a zero reference, 0 for a zero test tensor",
        vendor_name="sqnr",
        vendor_factor=0.5,
        vendor_note="10 log10(|a| / |d|) of the norms, not of the powers: half of ours",
    ),
    Metric(
        name="mse",
        description="mean d^2",
        unit="",
        higher_is_better=False,
        best=0.0,
        bounds=(0.0, math.inf),
        scale_free=False,
        edge_cases="mean b^2 for a zero reference, mean a^2 for a zero test tensor",
        vendor_name="mse",
    ),
    Metric(
        name="mae",
        description="mean |d|",
        unit="",
        higher_is_better=False,
        best=0.0,
        bounds=(0.0, math.inf),
        scale_free=False,
        edge_cases="mean |b| for a zero reference, mean |a| for a zero test tensor",
        vendor_name="mre",
        vendor_note="its 'mre' is the mean absolute difference; nothing is relative about it",
    ),
    Metric(
        name="max_abs_error",
        description="max |d|, the Chebyshev distance",
        unit="",
        higher_is_better=False,
        best=0.0,
        bounds=(0.0, math.inf),
        scale_free=False,
        edge_cases="max |b| for a zero reference, max |a| for a zero test tensor",
        vendor_name="chebyshev",
    ),
    Metric(
        name="relative_l2",
        description="|d| / |a|",
        unit="",
        higher_is_better=False,
        best=0.0,
        bounds=(0.0, math.inf),
        scale_free=True,
        edge_cases="inf for a zero reference, 1 for a zero test tensor",
    ),
    Metric(
        name="top1_agreement",
        description="share of rows whose largest class is the same; of equals the first",
        unit="",
        higher_is_better=True,
        best=1.0,
        bounds=(0.0, 1.0),
        scale_free=True,
        edge_cases="0 when exactly one of the tensors is all zero; NaN with fewer than two classes",
    ),
    Metric(
        name="kl_divergence",
        description="KL(softmax a || softmax b) over the classes, mean over rows",
        unit="nats",
        higher_is_better=False,
        best=0.0,
        bounds=(0.0, math.inf),
        scale_free=False,
        edge_cases="a zero tensor is the uniform distribution; NaN with fewer than two classes",
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _TABLE})
"""Every metric by name, in the order in which reports list them."""

_ALIASES = {metric.vendor_name.replace("-", "_"): metric for metric in _TABLE if metric.vendor_name}
_OF_CLASSES = ("top1_agreement", "kl_divergence")


def resolve_metric(name: str) -> Metric:
    """Return the metric that a name of ours or of the vendor's debugger stands for.

    Args:
        name: Such as ``sqnr_db``, or the vendor's ``cosine-similarity``, ``mse``, ``mre``,
            ``sqnr`` or ``chebyshev``. Case, and ``-`` for ``_``, do not matter. A vendor's name
            selects our metric; `Metric.vendor_note` says how its numbers differ.

    Raises:
        UsageError: No metric has that name; the message lists those there are.
    """
    key = name.strip().lower().replace("-", "_")
    metric = METRICS.get(key) or _ALIASES.get(key)
    if metric is not None:
        return metric
    vendor = ", ".join(metric.vendor_name for metric in _TABLE if metric.vendor_name)
    close = difflib.get_close_matches(key, {**METRICS, **_ALIASES}, n=3, cutoff=0.5)
    meant = f"Did you mean {' or '.join(close)}? " if close else ""
    raise UsageError(
        f"unknown metric {name!r}",
        hint=f"{meant}Metrics: {', '.join(METRICS)}. The vendor's names work too: {vendor}.",
    )


def badness(metric: Metric | str, value: float) -> float:
    """Return a sort key: larger is worse, and NaN (nothing was measured) comes after the best.

    ``sorted(..., key=..., reverse=True)`` puts the worst first and leaves equals in their order.

    Args:
        metric: Metric or its name in `METRICS`.
        value: A value of that metric.
    """
    if math.isnan(value):
        return -math.inf
    known = METRICS[metric] if isinstance(metric, str) else metric
    # The best possible infinity (an SQNR without any noise) still precedes what is unmeasured.
    return max(-value if known.higher_is_better else value, -sys.float_info.max)


def worst(metric: Metric | str, values: Iterable[float]) -> float:
    """Return the worst of the measured values; NaN when there is none.

    NaN among measured values is passed over: whoever summarizes keeps the flags that explain it.
    """
    return max(values, key=lambda value: badness(metric, value), default=math.nan)


def looks_like_scores(array: Array) -> bool:
    """Whether the largest entry along the class axis is a decision, so that top-1 means something.

    True for float tensors of shape ``[N, C]`` or ``[N, C, 1, 1]`` with at least two classes, and
    for those of any rank above one whose last axis (of at least two) holds probabilities: none
    negative, and their sum 1 within 1e-3.

    Args:
        array: A model output of the float baseline.
    """
    if array.dtype.kind != "f" or array.ndim < 2 or not array.size:
        return False
    classes = _class_count(array.shape)
    if classes < 2:
        return False
    if array.ndim == 2 or classes != array.shape[-1]:
        return True
    rows = array.reshape(-1, classes)
    sums = rows.sum(axis=1, dtype=np.float64)
    return bool(rows.min() >= 0 and np.abs(sums - 1).max() <= _PROBABILITY_TOLERANCE)


def flags(reference: Array, test: Array) -> tuple[str, ...]:
    """Return what makes the comparison of two tensors special; usually nothing.

    Returns:
        At most one of `ZERO_SIGNAL`, `DEAD_OUTPUT`, `NOT_FINITE`, `BASELINE_NOT_FINITE` and
        `EMPTY`, in a tuple that is ready to be joined with those of other outputs.

    Raises:
        ValueError: The shapes differ, or a tensor does not hold numbers.
    """
    return Reference(reference, ()).examine(test).flags


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One test tensor compared with its reference.

    Attributes:
        values: Metric name -> value, in the order asked for.
        exact: Whether something was measured and the tensors are equal, element by element
            (``-0.0 == 0.0``): then, and only then, ``sqnr_db`` is infinite.
        flags: As `flags` returns them.
    """

    values: dict[str, float]
    exact: bool
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sums:
    """What one pass over both tensors adds up, in float64; ``d = test - reference``.

    Attributes:
        cross: sum of reference * d.
        error: sum of d^2.
        absolute: sum of |d|; 0 unless asked for.
        largest: max |d|; 0 unless asked for.
    """

    cross: float
    error: float
    absolute: float
    largest: float


class Reference:
    """A float baseline to measure tensors against, with all that depends on it alone prepared.

    One pass in cache-sized blocks adds up what every requested metric needs; `measure` may be
    called from several threads at once. All arithmetic is float64, to which float32 and narrower
    types, and integers up to 2^53, convert exactly. Squares must stay in range, which only
    float64 tensors can miss: differences below 1e-162 count as none.

    Accuracy: relative 1e-13 for the sums of a million elements. The cosine is computed from the
    sums of the differences, not from three sums that are nearly equal, so that
    ``1 - cosine_similarity`` is right to 3e-16 absolute (float64 near 1 has steps of 1e-16). The
    KL divergence is right to about 1e-15 nats absolute.

    Args:
        array: The float baseline: any shape, of float, integer or bool type. Kept, not copied:
            it must not change afterwards.
        metrics: Names in `METRICS`.

    Raises:
        KeyError: A name is not in `METRICS` (`resolve_metric` is for what users type).
        ValueError: The array does not hold numbers.
    """

    def __init__(self, array: Array, metrics: Sequence[str]) -> None:
        self.metrics = tuple(metrics)
        self.shape = array.shape
        self._array = array
        self._flat = _flatten(array)
        self._wide: Float64 = self._flat.astype(np.float64)
        self._classes = _class_count(array.shape)
        self._best = {name: METRICS[name].best for name in self.metrics}
        if self._classes < 2:
            self._best.update((name, math.nan) for name in _OF_CLASSES if name in self._best)
        with np.errstate(all="ignore"):
            self._signal = sum(float(block.dot(block)) for block in _blocks(self._wide))
        self._unusable = self._why_unusable()
        self._top1: NDArray[np.intp] | None = None
        self._log_p: Float64 | None = None
        self._p: Float64 | None = None
        if self._unusable or self._classes < 2:
            return
        if "top1_agreement" in self.metrics:
            self._top1 = self._flat.reshape(-1, self._classes).argmax(axis=1)
        if "kl_divergence" in self.metrics:
            self._log_p = _log_softmax(self._wide.reshape(-1, self._classes))
            self._p = np.exp(self._log_p)

    def _why_unusable(self) -> tuple[str, ...]:
        if not self._flat.size:
            return (EMPTY,)
        return () if math.isfinite(self._signal) else (BASELINE_NOT_FINITE,)

    def measure(self, test: Array) -> dict[str, float]:
        """Return metric name -> value for a tensor of the reference's shape.

        Raises:
            ValueError: The shape differs from the reference's, or it does not hold numbers.
        """
        return self.examine(test).values

    def examine(self, test: Array) -> Measurement:
        """Measure a tensor of the reference's shape and say what is special about it.

        Raises:
            ValueError: The shape differs from the reference's, or it does not hold numbers.
        """
        if test.shape != self.shape:
            raise ValueError(f"shape {test.shape} compared with a reference of {self.shape}")
        if self._unusable:
            return self._unmeasured(self._unusable)
        flat = _flatten(test)
        # What a run did not touch is often the baseline's own array.
        start = flat.size if test is self._array else self._first_difference(flat)
        with np.errstate(all="ignore"):
            sums = self._add_up(flat, start)
        if not sums.error:
            return Measurement(values=dict(self._best), exact=True, flags=())
        if not math.isfinite(sums.error):
            return self._unmeasured((NOT_FINITE,))
        cosine, dead = self._cosine(flat, sums)
        found = (ZERO_SIGNAL,) if not self._signal else (DEAD_OUTPUT,) if dead else ()
        return Measurement(values=self._values(flat, sums, cosine, found), exact=False, flags=found)

    def _unmeasured(self, why: tuple[str, ...]) -> Measurement:
        return Measurement(values=dict.fromkeys(self.metrics, math.nan), exact=False, flags=why)

    def _first_difference(self, flat: Array) -> int:
        """Return the start of the first block that differs, the size when none does.

        A tensor that differs mostly does so in the first block, so this costs next to nothing;
        an equal one is known at a quarter of the cost of measuring it.
        """
        for start in range(0, flat.size, _BLOCK):
            stop = start + _BLOCK
            if not np.array_equal(self._flat[start:stop], flat[start:stop]):
                return start
        return flat.size

    def _add_up(self, flat: Array, start: int) -> _Sums:
        """Add up the differences from element ``start`` on; all before it are zero."""
        want_absolute = "mae" in self.metrics
        want_largest = "max_abs_error" in self.metrics
        difference = np.empty(min(_BLOCK, flat.size), np.float64)
        cross = error = absolute = largest = 0.0
        for begin in range(start, flat.size, _BLOCK):
            reference = self._wide[begin : begin + _BLOCK]
            d = difference[: reference.size]
            # Widening first, then subtracting in place, beats one subtraction of mixed types.
            np.copyto(d, flat[begin : begin + _BLOCK])
            np.subtract(d, reference, out=d)
            cross += float(reference.dot(d))
            error += float(d.dot(d))
            if want_absolute:
                np.abs(d, out=d)
                absolute += float(np.add.reduce(d))
            if want_largest:
                # Without the absolute values, the two extremes are cheaper than taking them.
                top = float(np.maximum.reduce(d))
                low = 0.0 if want_absolute else -float(np.minimum.reduce(d))
                largest = max(largest, top, low)
        return _Sums(cross=cross, error=error, absolute=absolute, largest=largest)

    def _cosine(self, flat: Array, sums: _Sums) -> tuple[float, bool]:
        """Return the cosine, and whether the test tensor is all zero.

        With ``r = a.d / a.a`` and ``q = d.d / a.a``, the test tensor has ``a.b = (1 + r) a.a``
        and ``b.b = (1 + 2r + q) a.a``: for a small error that is 1 and a little, rounded once.
        """
        if not self._signal:
            return 0.0, False
        r, q = sums.cross / self._signal, sums.error / self._signal
        power = 1 + 2 * r + q
        if power < _CANCELS:
            return self._cosine_from_elements(flat)
        return min(max((1 + r) / math.sqrt(power), -1.0), 1.0), False

    def _cosine_from_elements(self, flat: Array) -> tuple[float, bool]:
        """Return the same for a test tensor much smaller than the reference."""
        power = product = 0.0
        for reference, block in zip(_blocks(self._wide), _blocks(flat), strict=True):
            wide = block.astype(np.float64)
            power += float(wide.dot(wide))
            product += float(reference.dot(wide))
        if not power:
            return 0.0, True
        cosine = product / (math.sqrt(self._signal) * math.sqrt(power))
        return min(max(cosine, -1.0), 1.0), False

    def _values(
        self, flat: Array, sums: _Sums, cosine: float, found: tuple[str, ...]
    ) -> dict[str, float]:
        """Return the metrics of a tensor that is finite and differs from the reference."""
        norm, noise = math.sqrt(self._signal), math.sqrt(sums.error)
        values = {
            "cosine_similarity": cosine,
            "sqnr_db": 20 * math.log10(norm / noise) if norm else -math.inf,
            "mse": sums.error / flat.size,
            "mae": sums.absolute / flat.size,
            "max_abs_error": sums.largest,
            "relative_l2": noise / norm if norm else math.inf,
            "top1_agreement": math.nan,
            "kl_divergence": math.nan,
        }
        if self._top1 is not None:
            top1 = flat.reshape(-1, self._classes).argmax(axis=1)
            # A tensor of zeros decides nothing; without this it would agree with every class 0.
            values["top1_agreement"] = 0.0 if found else float(np.mean(top1 == self._top1))
        if self._log_p is not None and self._p is not None:
            rows = flat.reshape(-1, self._classes)
            values["kl_divergence"] = _kl_divergence(self._log_p, self._p, rows)
        return {name: values[name] for name in self.metrics}


def _kl_divergence(log_p: Float64, p: Float64, rows: Array) -> float:
    """Return KL(p || softmax of each row), mean over the rows; all three ``[rows, classes]``."""
    total = 0.0
    step = max(1, _BLOCK // rows.shape[1])
    for start in range(0, len(rows), step):
        log_q = _log_softmax(rows[start : start + step].astype(np.float64))
        np.subtract(log_p[start : start + step], log_q, out=log_q)
        total += float(np.vdot(p[start : start + step], log_q))
    # Rounding can leave a sum that is zero in exact arithmetic just below it.
    return max(total / len(rows), 0.0)


def _flatten(array: Array) -> Array:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"a tensor of {array.dtype} cannot be measured")
    return np.ascontiguousarray(array).reshape(-1)


def _blocks(flat: Array) -> Iterable[Array]:
    return (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))


def _class_count(shape: tuple[int, ...]) -> int:
    """Return the size of the class axis: axis 1 of ``[N, C, 1, 1]``, else the last one.

    Because only ones follow axis 1 there, ``reshape(-1, classes)`` gives the rows in both cases.
    """
    if not shape:
        return 1
    if len(shape) >= 4 and all(size == 1 for size in shape[2:]):
        return shape[1]
    return shape[-1]


def _log_softmax(rows: Float64) -> Float64:
    """Return the logarithm of the softmax along axis 1 of float64 ``[rows, classes]``."""
    shifted: Float64 = rows - rows.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return shifted
