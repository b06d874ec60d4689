"""Frozen records of what was measured: the contract between analyses, reports and users.

`SensitivityResult.to_json` writes what ``sensitivity.json`` holds. Numbers are JSON numbers in
full precision. JSON has no infinity and no NaN: an infinite SQNR (no error at all) is ``null``
with ``"exact": true`` beside it, an undefined number (NaN) is ``null``.

Names in the JSON are fixed from schema version 1 on; additions are free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hbdebug.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA_VERSION = 1

MetricValues: TypeAlias = "Mapping[str, float]"
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
        changes: What the lift changed, point by point, in words.
        notes: What about the lift follows no measured rule, in words; empty when all does.
    """

    lifted: str
    to: str
    outputs: Mapping[str, MetricValues]
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
        return {
            "schema_version": SCHEMA_VERSION,
            "hbdebug_version": self.hbdebug_version,
            "command": self.command,
            "model": _plain(self.model),
            "data": _plain(self.data),
            "scheme": self.scheme,
            "fidelity": self.fidelity,
            "metrics": list(self.metrics),
            "seed": self.seed,
            "kind": self.kind,
            "output_node": self.output_node,
            "coverage": self.coverage,
            "verdict": self.verdict,
            "complete": self.complete,
            "ceilings": [_plain(ceiling) for ceiling in self.ceilings],
            "nodes": [_ranked_to_json(node) for node in self.nodes],
            "points": [_ranked_to_json(point) for point in self.points],
            "not_analysed": [_plain(skipped) for skipped in self.not_analysed],
            "suggestion": None if self.suggestion is None else _plain(self.suggestion),
            "settings": _plain(self.settings),
            "seconds": _plain(self.seconds),
            "warnings": list(self.warnings),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> SensitivityResult:
        """Read a record back.

        Args:
            record: What `to_json` returned, or ``json.load`` of a file that holds it.

        Raises:
            DataError: The record is not one of this tool's, or of a newer schema, or a field is
                missing or malformed; the message names it.
        """
        version = record.get("schema_version") if hasattr(record, "get") else None
        if not isinstance(version, int):
            raise DataError(
                "not a result of hbdebug: no schema_version in it",
                hint="Give the sensitivity.json that `hbdebug sensitivity` wrote.",
            )
        if version > SCHEMA_VERSION:
            raise DataError(
                f"written with schema version {version}; this hbdebug reads up to "
                f"{SCHEMA_VERSION}",
                hint="Upgrade hbdebug, or measure again with this version.",
            )
        try:
            return cls(
                hbdebug_version=record["hbdebug_version"],
                command=record["command"],
                model=ModelInfo(**record["model"]),
                data=DataInfo(**{**record["data"], "samples": tuple(record["data"]["samples"])}),
                scheme=record["scheme"],
                fidelity=record["fidelity"],
                metrics=tuple(record["metrics"]),
                seed=record["seed"],
                kind=record["kind"],
                output_node=record["output_node"],
                coverage=record["coverage"],
                verdict=record["verdict"],
                complete=record["complete"],
                ceilings=tuple(_ceiling(item) for item in record["ceilings"]),
                nodes=tuple(_node_result(item) for item in record["nodes"]),
                points=tuple(_point_result(item) for item in record["points"]),
                not_analysed=tuple(NotAnalysed(**item) for item in record["not_analysed"]),
                suggestion=_suggestion(record["suggestion"]),
                settings=record["settings"],
                seconds=record["seconds"],
                warnings=tuple(record["warnings"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"a malformed result: {type(error).__name__}: {error}",
                hint="The file was edited or cut short; run `hbdebug sensitivity` again.",
            ) from error


def _plain(value: Any) -> Any:
    """Turn records, tuples and mappings into JSON types; non-finite numbers into null."""
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _effect_to_json(effect: Effect | None) -> dict[str, Any] | None:
    if effect is None:
        return None
    record: dict[str, Any] = dict(_plain(effect.values))
    record["interval"] = None if effect.interval is None else _plain(effect.interval)
    record["exact"] = effect.exact
    record["flags"] = list(effect.flags)
    return record


def _ranked_to_json(item: NodeResult | PointResult) -> dict[str, Any]:
    """Write effects in the short form of the schema: metrics beside ``interval``."""
    record: dict[str, Any] = {}
    for name in item.__dataclass_fields__:
        value = getattr(item, name)
        record[name] = _effect_to_json(value) if isinstance(value, Effect) else _plain(value)
    record["outputs"] = _plain(item.alone.outputs)
    if isinstance(item, NodeResult):
        for part in ("weights", "activations"):
            effect = getattr(item, part)
            if effect is not None:
                record[part]["outputs"] = _plain(effect.outputs)
    return record


def _number(name: str, value: float | None, *, exact: bool) -> float:
    """Undo the JSON form of numbers that JSON cannot hold."""
    if value is not None:
        return value
    return math.inf if exact and name == "sqnr_db" else math.nan


def _values(record: Mapping[str, Any], *, exact: bool = False) -> dict[str, float]:
    return {name: _number(name, value, exact=exact) for name, value in record.items()}


def _outputs(record: Mapping[str, Any], *, exact: bool = False) -> dict[str, MetricValues]:
    return {output: _values(values, exact=exact) for output, values in record.items()}


def _effect(record: Mapping[str, Any] | None, outputs: Mapping[str, Any]) -> Effect | None:
    if record is None:
        return None
    apart = {"interval", "exact", "flags", "outputs"}
    interval = record["interval"]
    exact = record["exact"]
    return Effect(
        values=_values(
            {name: value for name, value in record.items() if name not in apart}, exact=exact
        ),
        outputs=_outputs(outputs, exact=exact),
        interval=None if interval is None else (interval[0], interval[1]),
        exact=exact,
        flags=tuple(record["flags"]),
    )


def _required_effect(record: Mapping[str, Any], outputs: Mapping[str, Any]) -> Effect:
    effect = _effect(record, outputs)
    if effect is None:
        raise TypeError("alone is null")
    return effect


def _node_result(record: Mapping[str, Any]) -> NodeResult:
    fields = {name: value for name, value in record.items() if name != "outputs"}
    fields["points"] = tuple(fields["points"])
    fields["alone"] = _required_effect(record["alone"], record["outputs"])
    for part in ("weights", "activations"):
        half = record[part]
        fields[part] = _effect(half, half["outputs"] if half else {})
    return NodeResult(**fields)


def _point_result(record: Mapping[str, Any]) -> PointResult:
    fields = {name: value for name, value in record.items() if name != "outputs"}
    fields["consumers"] = tuple(fields["consumers"])
    fields["alone"] = _required_effect(record["alone"], record["outputs"])
    return PointResult(**fields)


def _ceiling(record: Mapping[str, Any]) -> Ceiling:
    return Ceiling(
        name=record["name"],
        fidelity=record["fidelity"],
        outputs=_measured(record["outputs"]),
    )


def _measured(outputs: Mapping[str, Any]) -> dict[str, MetricValues]:
    """Read a whole-model measurement; one without any error has a largest error of 0."""
    return {
        output: _values(values, exact=values.get("max_abs_error") == 0)
        for output, values in outputs.items()
    }


def _suggestion(record: Mapping[str, Any] | None) -> Suggestion | None:
    if record is None:
        return None
    curve = tuple(
        CurveStep(
            lifted=step["lifted"],
            to=step["to"],
            outputs=_measured(step["outputs"]),
            changes=tuple(step["changes"]),
            notes=tuple(step["notes"]),
        )
        for step in record["curve"]
    )
    return Suggestion(**{**record, "curve": curve})
