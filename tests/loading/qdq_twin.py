"""QDQ files of ONNX Runtime -> `QuantModel`, the short way: only what matching needs."""

from __future__ import annotations

import numpy as np
import onnx

from hbdebug.loading import protobuf
from hbdebug.loading.graph import in_order
from hbdebug.model import Node, Point, QuantModel
from hbdebug.quant import QuantParams


def dequantized(values, scale, zero_point, axis):
    scale, zero_point = (np.asarray(item, np.float32) for item in (scale, zero_point))
    if scale.size > 1:
        shape = [1] * values.ndim
        shape[axis] = -1
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape)
    return ((values.astype(np.float32) - zero_point) * scale).astype(np.float32)


def twin(proto):
    """Return the model, and the names of the constants that the file holds in integers."""
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in proto.graph.initializer}
    made, wanted, steps, integers = dict(constants), [], [], {}
    for index, node in enumerate(proto.graph.node):
        name = node.name or f"n{index}"
        attributes = protobuf.attributes(node)
        if node.op_type == "DequantizeLinear":
            source, scale, *rest = node.input
            if source in integers:
                steps.append(point(name, *integers[source], node.output[0], "activation"))
                continue
            stored = constants[source]
            zero = constants[rest[0]] if rest else np.zeros((), stored.dtype)
            axis = attributes.get("axis", 1)
            made[source] = dequantized(stored, constants[scale], zero, axis)
            wanted.append(source)
            params = grid(stored, constants[scale], zero, axis)
            steps.append(point(name, source, params, node.output[0], "weight"))
        elif node.op_type == "QuantizeLinear":
            scale, zero = constants[node.input[1]], constants[node.input[2]]
            integers[node.output[0]] = (node.input[0], grid(zero, scale, zero, 1))
        else:
            inputs, outputs = tuple(node.input), tuple(node.output)
            steps.append(
                Node(
                    name=name,
                    op_type=node.op_type,
                    domain=node.domain,
                    inputs=inputs,
                    outputs=outputs,
                    attributes=attributes,
                    body=(),
                )
            )
    inputs = tuple(protobuf.tensor_spec(item) for item in proto.graph.input)
    model = QuantModel(
        path="qdq.onnx",
        sha256="",
        kind="QDQ",
        producer="",
        opset=proto.opset_import[0].version,
        inputs=inputs,
        outputs=tuple(protobuf.tensor_spec(item) for item in proto.graph.output),
        steps=in_order(steps, [item.name for item in inputs], made),
        constants=made,
    )
    return model, list(dict.fromkeys(wanted))


def grid(integers, scale, zero_point, axis):
    return QuantParams(
        dtype=integers.dtype.name,
        scale=scale.reshape(()) if scale.size == 1 else scale,
        zero_point=np.asarray(zero_point, np.float32).reshape(
            scale.shape if scale.size > 1 else ()
        ),
        threshold=np.zeros(scale.size),
        axis=axis,
    )


def point(name, source, params, output, role):
    weight = role == "weight"
    return Point(
        name=name, role=role, input=source, output=output, params=params, enabled=not weight
    )
