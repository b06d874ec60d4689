"""Calibrated models of the vendor's converter (HMCT): HzCalibration nodes become points."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import protobuf
from hbdebug.loading.body import Body
from hbdebug.loading.graph import in_order, leave_out, some
from hbdebug.loading.operators import HORIZON, LOWERINGS
from hbdebug.loading.points import float_point, read_point
from hbdebug.loading.tensors import Tensors
from hbdebug.model import CALIBRATION, Node, Op, QuantModel
from hbdebug.results import NotAnalysed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.loading.protobuf import ModelFile
    from hbdebug.model import Point, Step

KIND = "HMCT calibrated"
"""What reports call these files."""

INTEGER_PREFIXES = (
    "HzBpu",
    "HzDequantizeFilter",
    "HzFpLut",
    "HzLut",
    "HzPreQuant",
    "HzQuantize",
    "HzRequantize",
    "HzSElementwise",
    "HzSPRelu",
    "HzSQuantized",
)
"""What the names of operators begin with that only models behind the calibrated one hold."""

STOCK_DOMAINS = ("", "com.microsoft")
"""Domains whose operators ONNX Runtime brings along."""

# The only opset that the vendor writes; counts where a model consists of its operators alone.
_DEFAULT_OPSET = 11

_SKIP_HINT = (
    "--skip-unsupported (skip_unsupported=True) leaves out what is not known, with all that "
    "depends on it, and lists it."
)


def build(file: ModelFile, *, skip_unsupported: bool) -> QuantModel:
    """Turn a parsed model into nodes and points.

    Args:
        file: The model.
        skip_unsupported: Leave out what is not known instead of raising.

    Returns:
        The model; whether any of its points is enabled is the caller's concern.

    Raises:
        UnsupportedError: It holds operators, attributes or types that are not known.
        ModelError: It contradicts itself.
    """
    try:
        return Reader(file).read(skip_unsupported=skip_unsupported)
    except ModelError as error:
        error.where = f"{file.path}: {error.where}" if error.where else file.path
        raise


@dataclass(frozen=True, kw_only=True, slots=True)
class _Unknown:
    """Something that is not known.

    Attributes:
        node: Name of the node.
        reason: What about it is not known.
    """

    node: str
    reason: str


class Reader:
    """Reads one model.

    Args:
        file: The model.

    Attributes:
        kind: What reports call these files.
        record: What is made of one.
        hint: What can be done about operators that are not known.
        tensors: What is known about the graph's tensors.
        warnings: What the user should know about the model.
        notes: What was assumed of it.
    """

    kind = KIND
    record: type[QuantModel] = QuantModel
    hint = _SKIP_HINT

    def __init__(self, file: ModelFile) -> None:
        self._file = file
        self._opset = opset_of(file.proto)
        self.tensors = Tensors(file.proto.graph)
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self._unknown_steps: list[_Unknown] = []
        self._unknown_points: list[_Unknown] = []

    def read(self, *, skip_unsupported: bool) -> QuantModel:
        """Return the model.

        Raises:
            UnsupportedError: It holds what is not known, and that may not be skipped.
            ModelError: It contradicts itself.
        """
        graph = self._file.proto.graph
        protos = self._without_constant_nodes()
        steps = self.steps(list(zip(_unique_names(protos), protos, strict=True)))
        unknown = self._unknown_steps + self._unknown_points
        if unknown and not skip_unsupported:
            raise _unsupported(unknown, self.hint)
        constants = self.tensors.constants
        inputs = tuple(
            protobuf.tensor_spec(info) for info in graph.input if info.name not in constants
        )
        model = self.record(
            path=self._file.path,
            sha256=self._file.sha256,
            kind=self.kind,
            producer=protobuf.producer(self._file.proto),
            opset=self._opset,
            inputs=inputs,
            outputs=tuple(protobuf.tensor_spec(info) for info in graph.output),
            steps=in_order(steps, [spec.name for spec in inputs], constants),
            constants=constants,
            warnings=tuple(self.warnings),
            notes=tuple(self.notes),
        )
        _check_outputs(model)
        return self._without_unknown(model) if unknown else model

    def steps(self, named: Sequence[tuple[str, onnx.NodeProto]]) -> list[Step]:
        """Turn nodes, given with their unique names, into steps in any order."""
        return [self.step(name, proto) for name, proto in named]

    def step(self, name: str, proto: onnx.NodeProto) -> Step:
        """Turn one node into a step; what about it is not known is noted."""
        if proto.op_type == CALIBRATION:
            return self._point(name, proto)
        return self.node(name, proto)

    def unknown(self, name: str, reason: str) -> None:
        """Note that a node cannot be computed, and why."""
        self._unknown_steps.append(_Unknown(node=name, reason=reason))

    def _without_constant_nodes(self) -> list[onnx.NodeProto]:
        """Move the values of Constant nodes to the constants and return the other nodes."""
        others = []
        for node in self._file.proto.graph.node:
            if node.op_type == "Constant" and domain_of(node, self._opset) == "":
                self.tensors.add_constants({node.output[0]: _constant_value(node)})
            else:
                others.append(node)
        return others

    def _point(self, name: str, proto: onnx.NodeProto) -> Point:
        try:
            return read_point(name, proto, self.tensors)
        except UnsupportedError as error:
            self._unknown_points.append(_Unknown(node=name, reason=error.message))
            return float_point(name, proto, self.tensors, error.message)
        except ModelError as error:
            error.where = f"{CALIBRATION} node {name}"
            raise

    def node(self, name: str, proto: onnx.NodeProto) -> Node:
        """Turn a node that is no point into a step; what about it is not known is noted."""
        domain = domain_of(proto, self._opset)
        attributes: dict[str, Any] = {}
        body: tuple[Op, ...] = ()
        quick: tuple[Op, ...] = ()
        try:
            attributes = protobuf.attributes(proto)
            self._check_subgraphs(proto)
            if domain in STOCK_DOMAINS:
                body = (_stock(proto, domain, self._opset, attributes),)
            else:
                body, quick = self.lowered(name, proto, domain, attributes)
        except UnsupportedError as error:
            self._unknown_steps.append(_Unknown(node=name, reason=error.message))
        except ModelError as error:
            error.where = f"node {name}"
            raise
        return Node(
            name=name,
            op_type=proto.op_type,
            domain=domain,
            # What a subgraph reads from outside is an input like any other.
            inputs=(*proto.input, *protobuf.captured(proto)),
            outputs=tuple(proto.output),
            attributes=attributes,
            body=body,
            quick=quick,
        )

    def lowered(
        self, name: str, proto: onnx.NodeProto, domain: str, attributes: Mapping[str, Any]
    ) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
        """Write a custom operator with stock ones, exactly and, where there is a way, quickly.

        Raises:
            UnsupportedError: The operator, or something about it, is not known.
        """
        lowering = LOWERINGS.get((domain, proto.op_type))
        if lowering is None:
            raise UnsupportedError(f"operator {proto.op_type} of domain {domain} is not known")
        unknown = sorted(attributes.keys() - lowering.attributes)
        if unknown:
            names = ", ".join(unknown)
            raise UnsupportedError(f"attribute {names} of {proto.op_type} is not known")
        ops = []
        for write in (lowering.write, lowering.write_quick):
            body = Body(
                name=name,
                inputs=tuple(proto.input),
                outputs=tuple(proto.output),
                attributes=attributes,
                opset=self._opset,
                shape_of=self.tensors.shape,
                taken=self.tensors.taken,
                known=self.tensors.constants,
            )
            try:
                if write is not None:
                    write(body)
            except UnsupportedError as error:
                raise UnsupportedError(f"{proto.op_type}: {error.message}") from error
            self.tensors.add_constants(body.constants)
            ops.append(tuple(body.ops))
        exact, quick = ops
        return exact, quick

    def _check_subgraphs(self, proto: onnx.NodeProto) -> None:
        """Refuse what a subgraph cannot hold: it is handed to ONNX Runtime as it is."""
        for graph in protobuf.subgraphs(proto):
            for inner in graph.node:
                domain = domain_of(inner, self._opset)
                if domain not in STOCK_DOMAINS:
                    raise UnsupportedError(
                        f"operator {inner.op_type} of domain {domain} inside of {proto.op_type} "
                        "is not supported"
                    )
                self._check_subgraphs(inner)

    def _without_unknown(self, model: QuantModel) -> QuantModel:
        """Leave out the unknown steps; where they were fed, the graph now ends."""
        remainder = leave_out(
            model.steps,
            {item.node: item.reason for item in self._unknown_steps},
            [spec.name for spec in model.outputs],
            model.constants,
        )
        made = {name for step in remainder.steps for name in step.outputs}
        # An output that is a graph input or a constant needs no step.
        outputs = [
            spec
            for spec in model.outputs
            if spec.name in made or spec.name not in model.producer_of
        ]
        outputs += [self.tensors.spec(name) for name in remainder.frontier]
        in_float = tuple(
            NotAnalysed(name=item.node, op_type=CALIBRATION, reason=item.reason)
            for item in self._unknown_points
        )
        return replace(
            model,
            steps=remainder.steps,
            outputs=tuple(outputs),
            skipped=(*remainder.skipped, *in_float),
        )


def opset_of(model: onnx.ModelProto) -> int:
    """Return the ai.onnx opset version."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    return _DEFAULT_OPSET


def domain_of(node: onnx.NodeProto, opset: int) -> str:
    """Return a node's domain, with the spellings of old files made regular.

    ``ai.onnx`` is the empty domain. Old files have ``Hz*`` operators without a domain (the
    vendor's loader moves them, too), and GridSample without one before ai.onnx had it.
    """
    domain = "" if node.domain == "ai.onnx" else str(node.domain)
    if not domain and (
        node.op_type.startswith("Hz")
        or node.op_type == "GridSamplePlugin"
        or (node.op_type == "GridSample" and opset < 16)
    ):
        return HORIZON
    return domain


def _stock(proto: onnx.NodeProto, domain: str, opset: int, attributes: Mapping[str, Any]) -> Op:
    # com.microsoft is ONNX Runtime's own; it judges those operators when it loads them.
    if not domain and not _exists(proto.op_type, opset):
        raise UnsupportedError(f"operator {proto.op_type} does not exist in ai.onnx opset {opset}")
    return Op(
        op_type=proto.op_type,
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attributes=attributes,
        domain=domain,
    )


def _exists(op_type: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return False
    return True


def _constant_value(node: onnx.NodeProto) -> NDArray[np.generic]:
    """Return the value of a Constant node, whichever attribute holds it."""
    for name, value in protobuf.attributes(node).items():
        if name == "value":
            array: NDArray[np.generic] = value
            return array
        if name in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if name in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
    raise UnsupportedError(
        "its value is no tensor and no number", where=f"Constant node {node.name or node.output[0]}"
    )


def _unique_names(protos: Sequence[onnx.NodeProto]) -> list[str]:
    """Return the nodes' names; one that is empty or repeated is told apart by its position."""
    taken = {proto.name for proto in protos}
    seen: set[str] = set()
    names = []
    for index, proto in enumerate(protos):
        name = proto.name
        if not name or name in seen:
            name = f"{name or proto.op_type}_{index}"
            while name in taken:
                name += "_"
            taken.add(name)
        seen.add(name)
        names.append(name)
    return names


def _unsupported(unknown: Sequence[_Unknown], hint: str) -> UnsupportedError:
    """Return one error that names everything, grouped by reason."""
    groups: dict[str, list[str]] = {}
    for item in unknown:
        groups.setdefault(item.reason, []).append(item.node)
    texts = [
        f"{reason} (node{'s' * (len(nodes) > 1)} {some(nodes)})" for reason, nodes in groups.items()
    ]
    return UnsupportedError("; ".join(texts), hint=hint)


def _check_outputs(model: QuantModel) -> None:
    known = {*model.producer_of, *model.constants, *(spec.name for spec in model.inputs)}
    for spec in model.outputs:
        if spec.name not in known:
            raise ModelError(f"nothing makes the graph output {spec.name!r}")
