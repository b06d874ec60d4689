"""The records themselves; `hbdebug.results` says what they are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
class Diagnostic:
    """A place where the chip computes something else than the calibrated model.

    Attributes:
        name: Kind of the finding, such as ``hardsigmoid_alpha_ignored``.
        node: Node name, as in the file.
        op_type: Operator.
        evidence: What in the model shows it, with its numbers.
        remedy: What the user can do about it.
    """

    name: str
    node: str
    op_type: str
    evidence: str
    remedy: str


@dataclass(frozen=True, kw_only=True, slots=True)
class InputWarning:
    """A sign that the samples are not what the model was calibrated for.

    Attributes:
        name: Kind of the finding, such as ``looks_like_noise``.
        input: Input of the model; empty for what concerns all of them.
        samples: Names of the samples that show it.
        evidence: What shows it, with the numbers.
        remedy: What to check or do.
        numbers: The numbers behind it, by name.
    """

    name: str
    input: str
    samples: tuple[str, ...]
    evidence: str
    remedy: str
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FormDifference:
    """How far the integer form of one node is from its calibrated form, on equal inputs.

    Attributes:
        node: Node name, as in the file.
        op_type: Operator.
        fused: Names of the nodes that the integer model computes together with it.
        samples: Number of samples that were compared.
        max_steps: Largest difference, in steps of the output.
        mean_steps: Mean absolute difference, in steps of the output.
        share_beyond_one: Share of the elements that differ by more than one step, 0 ... 1.
        sqnr_db: Power of the calibrated output over that of the difference, in dB; None when
            nothing differs.
        differs_much: Whether the difference is more than rounding to a step, and can matter.
        reason: Why it differs much, in words; empty when it does not.
    """

    node: str
    op_type: str
    fused: tuple[str, ...]
    samples: int
    max_steps: float
    mean_steps: float
    share_beyond_one: float
    sqnr_db: float | None
    differs_much: bool
    reason: str


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
        to: ``int16`` or ``cpu``; ``keep`` for a node that was put back, because the target holds
            without it; empty for the first step.
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
        step: Index of the step of the curve that measured these nodes.
    """

    metric: str
    target: float
    reached: bool
    curve: tuple[CurveStep, ...]
    nodes: Mapping[str, str]
    stopped: str
    step: int = 0


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
        diagnostics: Where the chip computes something else than the calibrated model.
        form_differences: Every node that was compared with its integer form, worst first.
        not_compared: The other nodes, with the reason; empty if no integer form was asked for.
        input_warnings: Signs that the samples are not what the model was calibrated for.
        notes: What was assumed of the file, and done to the samples on their way.
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
    diagnostics: tuple[Diagnostic, ...] = ()
    form_differences: tuple[FormDifference, ...] = ()
    not_compared: tuple[NotAnalysed, ...] = ()
    input_warnings: tuple[InputWarning, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-ready dictionaries, lists, strings and finite numbers."""
        from hbdebug.results.json_form import fields_to_json  # noqa: PLC0415 - it reads this

        return {"schema_version": SCHEMA_VERSION, "record": _SENSITIVITY, **fields_to_json(self)}

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
        from hbdebug.results.json_form import read_record  # noqa: PLC0415 - it reads this

        return read_record(cls, record, "")


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
        name_in_file: The file's own name, which may be empty or shared; None in older records.
        original: Which constant of the float model the weight is, in words; empty otherwise.
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
    name_in_file: str | None = None
    original: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListedNode:
    """One computing node, as ``hbdebug info`` lists it.

    Attributes:
        name: Node name, as in the file.
        op_type: Operator.
        points: Names of the points that ``hbdebug sensitivity`` would quantize for it.
        analysed: Whether it would be ranked.
        reason: Why it would not, in words; empty otherwise.
        name_in_file: The file's own name, which may be empty or shared; None in older records.
    """

    name: str
    op_type: str
    points: tuple[str, ...]
    analysed: bool = True
    reason: str = ""
    name_in_file: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelListing:
    """What ``hbdebug info`` shows of a model, without running it.

    Attributes:
        hbdebug_version: Version that read the model.
        model: The model.
        coverage: The coverage line.
        points: Every point, in graph order.
        nodes: Every computing node, in graph order; those left out on loading and
            those inside of others come last.
    """

    hbdebug_version: str
    model: ModelInfo
    coverage: str
    points: tuple[ListedPoint, ...]
    nodes: tuple[ListedNode, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON-ready dictionaries, lists, strings and finite numbers."""
        from hbdebug.results.json_form import fields_to_json  # noqa: PLC0415 - it reads this

        return {"schema_version": SCHEMA_VERSION, "record": _LISTING, **fields_to_json(self)}
