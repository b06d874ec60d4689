"""Rewrite a float model so that the chip computes the same function.

The chip's table for HardSigmoid is ``clip(x / 6 + 0.5, 0, 1)``, whatever alpha and beta say
(measured against HMCT 1.1.0). With ``alpha`` other than 1/6 and ``beta`` 0.5 the same function is
``HardSigmoid(6 * alpha * x)`` with alpha 1/6: the factor goes into the weights in front, or, where
there are none that only this node depends on, into a Mul.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hbdebug.loading.protobuf import array, read_model

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

_SIXTH = 1 / 6
_SAME = 1e-4  # alphas closer than this differ by less than a table's step shows

# Operators that hand a scaled input on as a scaled output, by the inputs that must be scaled.
_LINEAR = {
    "Add": (0, 1),
    "BatchNormalization": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "Flatten": (0,),
    "Identity": (0,),
    "Reshape": (0,),
    "Squeeze": (0,),
    "Sub": (0, 1),
    "Transpose": (0,),
    "Unsqueeze": (0,),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Repair:
    """One node that was rewritten.

    Attributes:
        node: Name of the HardSigmoid node.
        factor: What its input was multiplied by.
        scaled: Constants that took the factor in; empty where a Mul was put in front.
    """

    node: str
    factor: float
    scaled: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Repaired:
    """A rewritten model.

    Attributes:
        content: The model, serialized.
        repairs: What was rewritten, in graph order.
        left: HardSigmoid nodes that no factor can repair (beta is not 0.5), by name.
    """

    content: bytes
    repairs: tuple[Repair, ...]
    left: tuple[str, ...]


def repair_hard_sigmoids(model: str | os.PathLike[str] | onnx.ModelProto) -> Repaired:
    """Write every HardSigmoid of a float model with alpha 1/6, keeping its function.

    Args:
        model: A float model; a message in memory is not changed.

    Raises:
        ModelError: The file is no ONNX model.
    """
    proto = read_model(model, whole=True).proto
    rewriting = _Rewriting(proto.graph)
    repairs, left = [], []
    for node in list(proto.graph.node):
        if node.op_type != "HardSigmoid":
            continue
        values = {item.name: item.f for item in node.attribute}
        alpha, beta = values.get("alpha", 0.2), values.get("beta", 0.5)
        if abs(beta - 0.5) > _SAME:
            left.append(node.name)
        elif abs(alpha - _SIXTH) > _SAME:
            repairs.append(rewriting.repair(node, 6 * alpha))
    return Repaired(content=proto.SerializeToString(), repairs=tuple(repairs), left=tuple(left))


@dataclass(slots=True)
class _Rewriting:
    """The graph under repair, with who makes and who reads each tensor."""

    graph: onnx.GraphProto
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    readers: Counter[str] = field(default_factory=Counter)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers.update(item.name for item in self.graph.output)
        for node in self.graph.node:
            self.makers.update((name, node) for name in node.output)
            self.readers.update(node.input)
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        self.constants[node.output[0]] = attribute.t
        self.constants.update((item.name, item) for item in self.graph.initializer)

    def repair(self, node: onnx.NodeProto, factor: float) -> Repair:
        """Scale a HardSigmoid's input and set its alpha to 1/6."""
        scaled = self._scalable(node.input[0])
        for name in scaled:
            self._scale(name, factor)
        if not scaled:
            self._multiply(node, factor)
        kept = [item for item in node.attribute if item.name not in {"alpha", "beta"}]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.append(onnx.helper.make_attribute("alpha", _SIXTH))
        node.attribute.append(onnx.helper.make_attribute("beta", 0.5))
        return Repair(node=node.name, factor=factor, scaled=tuple(scaled))

    def _scalable(self, tensor: str) -> list[str]:
        """Return the constants to scale so that a tensor is scaled; empty when that cannot be."""
        if self.readers[tensor] != 1:
            return []
        if tensor in self.constants:
            return [tensor] if array(self.constants[tensor]).dtype.kind == "f" else []
        maker = self.makers.get(tensor)
        if maker is None or maker.op_type not in _LINEAR:
            return []
        found = []
        for index in _LINEAR[maker.op_type]:
            if index < len(maker.input) and maker.input[index]:
                part = self._scalable(maker.input[index])
                if not part:
                    return []
                found += part
        return found

    def _scale(self, name: str, factor: float) -> None:
        tensor = self.constants[name]
        value = array(tensor)
        # One rounding a value, to the type that the constant has.
        scaled = (value.astype(np.float64) * factor).astype(value.dtype)
        tensor.CopyFrom(_tensor(scaled, tensor.name))

    def _multiply(self, node: onnx.NodeProto, factor: float) -> None:
        prefix = f"{node.name or node.output[0]}/six_alpha"
        self.graph.initializer.append(_tensor(np.array(factor, np.float32), prefix))
        product = onnx.helper.make_node(
            "Mul", [node.input[0], prefix], [f"{prefix}_x"], name=f"{prefix}_Mul"
        )
        outputs = list(node.output)
        place = [list(item.output) for item in self.graph.node].index(outputs)
        self.graph.node.insert(place, product)
        self.graph.node[place + 1].input[0] = product.output[0]


def _tensor(values: NDArray[Any], name: str) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(values, name)  # noqa: TID251 - this is inside the wall
