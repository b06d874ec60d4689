"""The float model that a quantized one was made of, as far as weights are found by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import ModelError
from hbdebug.loading import protobuf
from hbdebug.loading.qdq import quantizing
from hbdebug.loading.skeleton import Skeleton
from hbdebug.model import Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.loading.protobuf import ModelFile
    from hbdebug.model import QuantModel
    from hbdebug.samples import TensorSpec


def skeleton_of_float(file: ModelFile, model: QuantModel) -> Skeleton:
    """Return the skeleton of the float model.

    Raises:
        ModelError: It is quantized, damaged, or has other inputs and outputs than the model.
    """
    graph = file.proto.graph
    found = sorted(quantizing(str(node.op_type) for node in graph.node))
    if found:
        raise ModelError(
            f"is no float model: it holds {' and '.join(found)}",
            hint="Give the float ONNX file that was quantized, as it was before.",
        )
    constants = {item.name: protobuf.array(item) for item in graph.initializer}
    nodes = []
    for index, proto in enumerate(graph.node):
        attributes = protobuf.attributes(proto)
        value = _constant(attributes) if proto.op_type == "Constant" else None
        if value is not None and proto.output:
            constants[proto.output[0]] = value
            continue
        node = Node(
            name=proto.name or f"{proto.op_type}_{index}",
            op_type=proto.op_type,
            domain=proto.domain,
            inputs=(*proto.input, *protobuf.captured(proto)),
            outputs=tuple(proto.output),
            attributes=attributes,
            body=(),
        )
        nodes.append(node)
    inputs = [protobuf.tensor_spec(item) for item in graph.input if item.name not in constants]
    outputs = [protobuf.tensor_spec(item) for item in graph.output]
    inputs, outputs = _like(inputs, model.inputs), _like(outputs, model.outputs)
    _check_ends("input", inputs, model.inputs)
    # Where operators were left out, outputs were added.
    if not model.skipped:
        _check_ends("output", outputs, model.outputs)
    names = [spec.name for spec in inputs]
    return Skeleton(nodes, constants, names, [spec.name for spec in outputs])


def _constant(attributes: Mapping[str, Any]) -> NDArray[Any] | None:
    """Return the numbers that a Constant node holds; None where it holds something else."""
    for name in ("value", "value_float", "value_floats", "value_int", "value_ints"):
        if name in attributes:
            value = np.asarray(attributes[name])
            return value if value.dtype.kind in "biuf" or name == "value" else None
    return None


def _like(ours: list[TensorSpec], theirs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Put ends in the order of those of the quantized model, where they have the same names."""
    by_name = {spec.name: spec for spec in ours}
    names = [spec.name for spec in theirs]
    return [by_name[name] for name in names] if set(names) == by_name.keys() else ours


def _check_ends(what: str, ours: Sequence[TensorSpec], theirs: Sequence[TensorSpec]) -> None:
    """Refuse a float model whose inputs or outputs are not those of the quantized one."""
    hint = "Give the float ONNX file that was quantized."
    if len(ours) != len(theirs):
        raise ModelError(
            f"has {_count(len(ours), what)}, and the quantized model has {len(theirs)}", hint=hint
        )
    for one, other in zip(ours, theirs, strict=True):
        # A shape without axes is one that the file does not state. The first axis is the batch,
        # and whoever quantizes may fix it.
        pairs = list(zip(one.shape, other.shape, strict=False))
        fits = len(one.shape) == len(other.shape) and all(
            a == b or a is None or b is None for a, b in pairs[1:]
        )
        if one.shape and other.shape and not fits:
            raise ModelError(
                f"its {what} {one.name} is {in_words(one.shape)}, and {what} {other.name} of the "
                f"quantized model {in_words(other.shape)}",
                hint=hint,
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def in_words(sizes: Sequence[int | None]) -> str:
    """Return a shape in words for the user."""
    return "x".join("?" if size is None else str(size) for size in sizes) or "scalar"
