"""Integer models -> ONNX files in the vendor's operators, the way the vendor writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hbdebug import __version__
from hbdebug.errors import ModelError
from hbdebug.loading.operators import HORIZON, LOWERINGS
from hbdebug.loading.protobuf import read_model

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from hbdebug.model import IntegerModel, Node, Op
    from hbdebug.samples import TensorSpec

# What the vendor writes. ONNX checks files against these versions.
_IR_VERSION = 7
_HORIZON_VERSION = 1


def integer_content(
    model: IntegerModel,
    tensors: Mapping[str, TensorSpec],
    *,
    like: str | os.PathLike[str] | onnx.ModelProto,
) -> bytes:
    """Write an integer model as the vendor writes its ``*_quantized_model.onnx``.

    Args:
        model: The model.
        tensors: Type and shape of the graph inputs and outputs and of what lies between.
        like: The calibrated model that it was made of. Name and metadata of the graph are taken
            from there, as the vendor does; it is not changed.

    Returns:
        The file's content.

    Raises:
        ModelError: An initializer has a type that ONNX does not have.
    """
    source = read_model(like).proto
    proto = onnx.ModelProto(
        ir_version=_IR_VERSION, producer_name="hbdebug", producer_version=__version__
    )
    proto.opset_import.append(onnx.OperatorSetIdProto(domain="", version=model.opset))
    domains = {_domain(node) for node in model.nodes}
    # Others, such as that of ONNX Runtime's own operators, are as they were.
    proto.opset_import.extend(
        item for item in source.opset_import if item.domain not in {"", "ai.onnx", HORIZON}
    )
    if HORIZON in domains:
        proto.opset_import.append(onnx.OperatorSetIdProto(domain=HORIZON, version=_HORIZON_VERSION))
    proto.metadata_props.extend(source.metadata_props)
    graph = proto.graph
    graph.name = source.graph.name
    graph.node.extend(proto for node in model.nodes for proto in _nodes(node))
    graph.input.extend(_infos((spec.name for spec in model.inputs), tensors))
    graph.output.extend(_infos((spec.name for spec in model.outputs), tensors))
    for name in dict.fromkeys(name for node in model.nodes for name in node.inputs):
        if name in model.constants:
            graph.initializer.append(_tensor(model.constants[name], name))
    ends = {spec.name for spec in (*model.inputs, *model.outputs)}
    made = [name for node in model.nodes for name in node.outputs if name and name not in ends]
    graph.value_info.extend(_infos((name for name in made if name in tensors), tensors))
    return bytes(proto.SerializeToString())


def _domain(node: Node) -> str:
    """Return a node's domain; one of the vendor's that stays float may have lost it."""
    return HORIZON if (HORIZON, node.op_type) in LOWERINGS else node.domain


def _nodes(node: Node) -> list[onnx.NodeProto]:
    """Return a node's protobuf form; several where it stands for several, or holds subgraphs."""
    if not node.inside:
        return [_proto(node, node.name, _domain(node))]
    # Its own inputs hold what its subgraphs read from outside, too; its operators' do not.
    last = len(node.body) - 1
    return [
        _proto(op, node.name if index == last else f"{node.name}/{op.op_type}_{index}", op.domain)
        for index, op in enumerate(node.body)
    ]


def _proto(source: Node | Op, name: str, domain: str) -> onnx.NodeProto:
    proto = onnx.NodeProto(
        name=name,
        op_type=source.op_type,
        domain=domain,
        input=source.inputs,
        output=source.outputs,
    )
    for key, value in source.attributes.items():
        proto.attribute.append(_attribute(key, value))
    return proto


def _attribute(name: str, value: Any) -> onnx.AttributeProto:
    if isinstance(value, np.ndarray):
        return onnx.helper.make_attribute(name, _tensor(value, ""))
    if isinstance(value, list) and not value:
        # Nothing in an empty list says what it is a list of; ONNX has empty INTS only.
        return onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
    return onnx.helper.make_attribute(name, value)


def _infos(names: Iterable[str], tensors: Mapping[str, TensorSpec]) -> list[onnx.ValueInfoProto]:
    return [
        onnx.helper.make_tensor_value_info(
            name, _element_type(tensors[name].dtype, name), tensors[name].shape
        )
        for name in names
    ]


def _element_type(dtype: str, name: str) -> int:
    try:
        return int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"ONNX has no type {dtype}", where=name) from error


def _tensor(values: NDArray[Any], name: str) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(  # noqa: TID251 - this is inside the wall
        np.ascontiguousarray(values).reshape(values.shape), name
    )
