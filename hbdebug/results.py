"""Frozen records of what was measured: the contract between analyses, reports and users.

`SensitivityResult.to_json` writes what ``sensitivity.json`` holds. Numbers are JSON numbers in
full precision. JSON has no infinity and no NaN: an infinite SQNR (no error at all) is ``null``
with ``"exact": true`` beside it, an undefined number (NaN) is ``null``, and every other number
that is not finite is ``null`` with ``"non_finite": {NAME: "inf" | "-inf" | "nan"}`` beside it.

Names in the JSON are fixed from schema version 1 on; additions are free, so a reader ignores
names that it does not know and gives a missing field its default.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

from hbdebug.errors import DataError

SCHEMA_VERSION = 1

_SENSITIVITY = "sensitivity"
_LISTING = "listing"

MetricValues: TypeAlias = Mapping[str, float]
"""Metric name -> mean over samples."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NotAnalysed:
    """Something of the model that was not analysed.

    Attributes:
        name: Node or point name, as in the file.
        op_type: Operator.
        reason: Why, in words for the user.
    """

    name: str
    op_type: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """The damage that one set of points does at the measured outputs, everything else float.

    Attributes:
        values: Metric -> the worst over outputs of the mean over samples.
        interval: 95 % bootstrap interval over samples of the ranking metric at its worst output;
            None with fewer than two samples.
        outputs: Output -> metric -> mean over samples.
        exact: Whether every output of every sample was bit-equal to the float baseline.
        flags: What makes a number special, such as ``dead_output`` or ``zero_signal``.
    """

    values: MetricValues
    outputs: Mapping[str, MetricValues]
    interval: tuple[float, float] | None = None
    exact: bool = False
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeResult:
    """One line of the node ranking.

    Attributes:
        rank: 1 is the worst.
        tied: Whether the samples cannot tell this node from the one ranked just above.
        name: Node name, as in the file.
        op_type: Operator.
        points: Names of the points that were quantized.
        dtype: Types of its activation points, such as ``int8`` or ``int8,int16``.
        threshold: Largest threshold of its activation points; None without one.
        alone: Effect of all its points.
        weights: Effect of its weight points; None when it has none or it was not asked for.
        activations: The same for its activation points.
        suggestion: ``int16``, ``cpu`` or ``keep``: what the march allows for this node.
        note: Why that is suggested, or what it does not cure.
    """

    rank: int
    tied: bool
    name: str
    op_type: str
    points: tuple[str, ...]
    dtype: str
    threshold: float | None
    alone: Effect
    weights: Effect | None = None
    activations: Effect | None = None
    suggestion: str = "keep"
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class PointResult:
    """One line of the point ranking (``--kind weight`` or ``activation``).

    Attributes:
        rank: 1 is the worst.
        tied: Whether the samples cannot tell this point from the one ranked just above.
        name: Point name, as in the file.
        role: ``weight`` or ``activation``.
        tensor: Tensor that is quantized.
        dtype: Quantized type.
        granularity: ``per-tensor`` or ``per-channel``.
        threshold: Largest calibrated threshold.
        scale: Largest scale.
        consumers: Names of the nodes that read it.
        alone: Effect of this point.
    """

    rank: int
    tied: bool
    name: str
    role: str
    tensor: str
    dtype: str
    granularity: str
    threshold: float | None
    scale: float | None
    consumers: tuple[str, ...]
    alone: Effect


@dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """A whole-model measurement.

    Attributes:
        name: ``as_calibrated``, ``weights_only``, ``activations_only``, ``all_int16`` or
            ``int16_where_allowed``.
        fidelity: ``calibrated`` or ``integer``.
        outputs: Output -> metric -> mean over samples.
    """

    name: str
    fidelity: str
    outputs: Mapping[str, MetricValues]


@dataclass(frozen=True, kw_only=True, slots=True)
class CurveStep:
    """The model measured after one more node was lifted.

    Attributes:
        lifted: Node name; empty for the model as calibrated, the first step.
        to: ``int16`` or ``cpu``; empty for the first step.
        outputs: Output -> metric -> mean over samples.
        on: Index of the step that this one adds a lift to; usually the one before it.
        changes: What the lift changed, point by point, in words.
        notes: What about the lift follows no measured rule, in words; empty when all does.
    """

    lifted: str
    to: str
    outputs: Mapping[str, MetricValues]
    on: int = 0
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """Nodes to lift, and what that was measured to give.

    Attributes:
        metric: Metric of the target.
        target: Value that the worst output was to reach.
        reached: Whether it did.
        curve: Measurements, the model as calibrated first.
        nodes: The suggested nodes -> ``int16`` or ``cpu``.
        stopped: Why the search ended, in words.
    """

    metric: str
    target: float
    reached: bool
    curve: tuple[CurveStep, ...]
    nodes: Mapping[str, str]
    stopped: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """The model that was analysed.

    Attributes:
        path: As the user gave it.
        sha256: Of the file's content, hexadecimal.
        kind: Such as ``HMCT calibrated``.
        producer: Producer and version that the file states.
        march: The march that suggestions are for.
        nodes: Number of computing nodes.
        points: Number of points by ``role dtype``, such as ``activation int8``.
        inputs: Input name -> ``dtype[shape]``.
        outputs: Output name -> ``dtype[shape]``.
    """

    path: str
    sha256: str
    kind: str
    producer: str
    march: str
    nodes: int
    points: Mapping[str, int]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class DataInfo:
    """The samples that were used.

    Attributes:
        path: As the user gave it.
        samples: Names of the samples used, in order.
        found: Number of samples found.
        complete: Number of samples that every evaluation was finished on.
    """

    path: str
    samples: tuple[str, ...]
    found: int
    complete: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SensitivityResult:
    """What ``hbdebug sensitivity`` measured; the content of ``sensitivity.json``.

    Attributes:
        hbdebug_version: Version that measured.
        command: Command line, or the call that stands for it.
        model: The model.
        data: The samples.
        scheme: Where the points' parameters come from, such as ``as in the file``.
        fidelity: ``calibrated`` or ``integer``.
        metrics: Metric names; the first ranks.
        seed: Seed of the bootstrap.
        kind: What was ranked: ``node``, ``weight`` or ``activation``.
        output_node: Node at whose outputs the damage was measured; empty for the graph outputs.
        coverage: The coverage line.
        verdict: What the ceilings say, in plain words.
        ceilings: Whole-model measurements.
        nodes: The node ranking.
        points: The point ranking.
        not_analysed: What was left out, with the reason.
        suggestion: Measured suggestion; None when it was not asked for or makes no sense.
        complete: False when the run was interrupted.
        settings: Options and versions that the numbers depend on, for the record.
        seconds: Wall time of the run by phase.
        warnings: What the user should know before trusting the numbers.
    """

    hbdebug_version: str
    command: str
    model: ModelInfo
    data: DataInfo
    scheme: str
    fidelity: str
    metrics: tuple[str, ...]
    seed: int
    kind: str
    output_node: str
    coverage: str
    verdict: str
    ceilings: tuple[Ceiling, ...]
    nodes: tuple[NodeResult, ...]
    points: tuple[PointResult, ...]
    not_analysed: tuple[NotAnalysed, ...]
    suggestion: Suggestion | None = None
    complete: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-ready dictionaries, lists, strings and finite numbers."""
        return {"schema_version": SCHEMA_VERSION, "record": _SENSITIVITY, **_fields_to_json(self)}

    @classmethod
    def from_json(cls, record: Any) -> SensitivityResult:
        """Read a record back.

        Args:
            record: What `to_json` returned, or ``json.load`` of a file that holds it.

        Raises:
            DataError: The record is not one of this tool's, or of a newer schema, or a field is
                missing or malformed; the message names it.
        """
        version = record.get("schema_version") if isinstance(record, Mapping) else None
        if not isinstance(version, int) or isinstance(version, bool):
            raise DataError(
                "not a result of hbdebug: no schema_version in it",
                hint="Give the sensitivity.json that `hbdebug sensitivity` wrote.",
            )
        if version > SCHEMA_VERSION:
            raise DataError(
                f"written with schema version {version}; this hbdebug reads up to {SCHEMA_VERSION}",
                hint="Upgrade hbdebug, or measure again with this version.",
            )
        kind = record.get("record", _SENSITIVITY)
        if kind != _SENSITIVITY:
            raise DataError(
                f"holds a {kind!r} record of hbdebug, not a sensitivity result",
                hint="Give the sensitivity.json that `hbdebug sensitivity` wrote.",
            )
        return _read_record(cls, record, "")


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedPoint:
    """One point, as ``hbdebug info`` lists it.

    Attributes:
        name: Point name, as in the file.
        role: ``weight`` or ``activation``.
        dtype: Quantized type; empty when it is not known.
        granularity: ``per-tensor`` or ``per-channel``; empty without a grid.
        threshold: Largest calibrated threshold; None without one.
        scale: Largest scale; None without one.
        tensor: Tensor that is quantized.
        consumers: Names of the nodes that read it.
        enabled: Whether the file quantizes here.
        reason: Why it does not, in words; empty otherwise.
    """

    name: str
    role: str
    dtype: str
    granularity: str
    threshold: float | None
    scale: float | None
    tensor: str
    consumers: tuple[str, ...]
    enabled: bool = True
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedNode:
    """One computing node, as ``hbdebug info`` lists it.

    Attributes:
        name: Node name, as in the file.
        op_type: Operator.
        points: Names of the points that ``hbdebug sensitivity`` would quantize for it.
        analysed: Whether it would be ranked.
        reason: Why it would not, in words; empty otherwise.
    """

    name: str
    op_type: str
    points: tuple[str, ...]
    analysed: bool = True
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelListing:
    """What ``hbdebug info`` shows of a model, without running it.

    Attributes:
        hbdebug_version: Version that read the model.
        model: The model.
        coverage: The coverage line.
        points: Every point, in graph order.
        nodes: Every computing node, in graph order; those left out on loading come last.
    """

    hbdebug_version: str
    model: ModelInfo
    coverage: str
    points: tuple[ListedPoint, ...]
    nodes: tuple[ListedNode, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-ready dictionaries, lists, strings and finite numbers."""
        return {"schema_version": SCHEMA_VERSION, "record": _LISTING, **_fields_to_json(self)}


def _fields_to_json(record: Any) -> dict[str, Any]:
    return {item.name: _plain(getattr(record, item.name)) for item in fields(record)}


def _plain(value: Any) -> Any:
    """Turn records, tuples and mappings into JSON types; non-finite numbers into null."""
    if is_dataclass(value):
        return _record_to_json(value)
    if isinstance(value, Mapping):
        return _mapping_to_json(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):
        # NumPy scalars, which json refuses although they are plain numbers.
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _record_to_json(record: Any) -> dict[str, Any]:
    if isinstance(record, Effect):
        return _effect_to_json(record)
    if isinstance(record, (NodeResult, PointResult)):
        return _ranked_to_json(record)
    return _fields_to_json(record)


def _mapping_to_json(values: Mapping[str, Any], *, exact: bool | None = None) -> dict[str, Any]:
    """Write a mapping, with what undoes each null that stands for a number.

    Args:
        values: Names and values; of metrics, most of the time.
        exact: Value of the ``exact`` entry; None writes ``true`` when an infinite SQNR needs it
            and leaves it out otherwise.
    """
    record = {str(name): _plain(value) for name, value in values.items()}
    if exact is None and values.get("sqnr_db") == math.inf:
        exact = True
    if exact is not None:
        record["exact"] = exact
    lost = {
        str(name): str(float(value))
        for name, value in values.items()
        if value is not None
        and record[str(name)] is None
        and str(float(value)) != str(_absent_number(name, exact=bool(exact)))
    }
    if lost:
        record["non_finite"] = lost
    return record


def _absent_number(name: str, *, exact: bool) -> float:
    """Return the number that a null stands for when nothing beside it says otherwise."""
    return math.inf if exact and name == "sqnr_db" else math.nan


_ENDS = ("interval[0]", "interval[1]")


def _effect_to_json(effect: Effect) -> dict[str, Any]:
    """Write an effect in the short form of the schema: metrics beside ``interval``."""
    ends = dict(zip(_ENDS, effect.interval or (), strict=False))
    record = _mapping_to_json({**effect.values, **ends}, exact=effect.exact)
    record["interval"] = [record.pop(end) for end in ends] or None
    record["flags"] = list(effect.flags)
    return record


def _ranked_to_json(item: NodeResult | PointResult) -> dict[str, Any]:
    """Write a line of a ranking; the outputs of ``alone`` go one level up, by the schema."""
    record = _fields_to_json(item)
    record["outputs"] = _plain(item.alone.outputs)
    if isinstance(item, NodeResult):
        for part, effect in (("weights", item.weights), ("activations", item.activations)):
            if effect is not None:
                record[part]["outputs"] = _plain(effect.outputs)
    return record


_Record = TypeVar("_Record")


def _malformed(where: str, problem: str) -> DataError:
    return DataError(
        f"a malformed result: {where or 'the record'}: {problem}",
        hint="The file was edited or cut short; run `hbdebug sensitivity` again.",
    )


def _read_record(cls: type[_Record], record: Any, where: str) -> _Record:
    """Build a record from its JSON form, checking every field against its annotation.

    Args:
        cls: Dataclass to build.
        record: JSON value.
        where: Path of the value inside the file, for the error message.
    """
    if not isinstance(record, Mapping):
        raise _malformed(where, f"expected an object, found {record!r:.60}")
    found: dict[str, Any] = {}
    hints = get_type_hints(cls)
    for item in fields(cls):  # type: ignore[arg-type]  # every caller passes a dataclass
        path = f"{where}.{item.name}" if where else item.name
        if item.name not in record:
            if _has_default(item):
                continue
            raise _malformed(path, "missing")
        value, hint = record[item.name], hints[item.name]
        if hint == Effect or (Effect in get_args(hint) and value is not None):
            outputs = record if item.name == "alone" else value
            found[item.name] = _read_effect(value, outputs, path)
        else:
            found[item.name] = _read(hint, value, path)
    return cls(**found)


def _has_default(item: Field[Any]) -> bool:
    return item.default is not MISSING or item.default_factory is not MISSING


def _read_effect(record: Any, holder: Any, where: str) -> Effect:
    """Read the short form of an effect, whose outputs are in ``holder``."""
    if not isinstance(record, Mapping):
        raise _malformed(where, f"expected an object, found {record!r:.60}")
    for name in ("interval", "exact", "flags"):
        if name not in record:
            raise _malformed(f"{where}.{name}", "missing")
    if "outputs" not in holder:
        raise _malformed(f"{where}: outputs", "missing")
    apart = {"interval", "flags", "outputs"}
    metrics = {name: value for name, value in record.items() if name not in apart}
    if record["interval"] is not None:
        pair = _read(tuple[Any, Any], record["interval"], f"{where}.interval")
        metrics.update(zip(_ENDS, pair, strict=True))
    values = _read(MetricValues, metrics, where)
    ends = [values.pop(end) for end in _ENDS if end in values]
    return Effect(
        values=values,
        outputs=_read(Mapping[str, MetricValues], holder["outputs"], f"{where}: outputs"),
        interval=(ends[0], ends[1]) if ends else None,
        exact=_read(bool, record["exact"], f"{where}.exact"),
        flags=_read(tuple[str, ...], record["flags"], f"{where}.flags"),
    )


def _lost_number(text: Any, where: str) -> float:
    if text not in ("inf", "-inf", "nan"):
        raise _malformed(where, f"expected inf, -inf or nan in non_finite, found {text!r:.60}")
    return float(text)


def _read(hint: Any, value: Any, where: str) -> Any:
    """Read a JSON value as what an annotation asks for."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        (kind,) = (arg for arg in get_args(hint) if arg is not types.NoneType)
        return None if value is None else _read(kind, value, where)
    if origin is tuple:
        return _read_tuple(get_args(hint), value, where)
    if origin is Mapping:
        return _read_mapping(get_args(hint)[1], value, where)
    if is_dataclass(hint):
        return _read_record(hint, value, where)  # type: ignore[arg-type]  # a class, not an object
    return _read_scalar(hint, value, where)


def _read_tuple(kinds: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise _malformed(where, f"expected a list, found {value!r:.60}")
    if kinds[-1] is not Ellipsis and len(value) != len(kinds):
        raise _malformed(where, f"expected {len(kinds)} entries, found {len(value)}")
    return tuple(_read(kinds[0], item, f"{where}[{index}]") for index, item in enumerate(value))


def _read_mapping(kind: Any, value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _malformed(where, f"expected an object, found {value!r:.60}")
    if kind is not float:
        return {name: _read(kind, item, f"{where}.{name}") for name, item in value.items()}
    exact, lost = value.get("exact", False) is True, value.get("non_finite", {})
    if not isinstance(lost, Mapping):
        raise _malformed(f"{where}.non_finite", f"expected an object, found {lost!r:.60}")
    numbers = {}
    for name, item in value.items():
        if name in {"exact", "non_finite"}:
            continue
        if item is not None:
            numbers[name] = _read_scalar(float, item, f"{where}.{name}")
        elif name in lost:
            numbers[name] = _lost_number(lost[name], f"{where}.{name}")
        else:
            numbers[name] = _absent_number(name, exact=exact)
    return numbers


_SCALARS = {str: "a string", bool: "true or false", int: "a whole number", float: "a number"}


def _read_scalar(kind: type, value: Any, where: str) -> Any:
    if kind is float and value is None:
        return math.nan
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _malformed(where, f"expected {_SCALARS[kind]}, found {value!r:.60}")
    return value
