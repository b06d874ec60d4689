"""Which nodes stay float on the chip although all they read is quantized.

Measured against HMCT 1.1.0 with one small model for each entry. The calibrated model has points
in front of these nodes; the converter dequantizes behind them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.lowering.elementwise import BERNOULLI2
from hbdebug.lowering.parameters import padding, reduced_axes, resize_attributes
from hbdebug.lowering.resize import Resizing, resizing

if TYPE_CHECKING:
    from hbdebug.lowering.writer import GraphWriter, Shape
    from hbdebug.model import Node, QuantModel

_FLOAT = frozenset({"Expand", "Neg", "Tile"})

# bernoulli2 has nothing but images.
_IMAGE_RANK = 4

_BERNOULLI2_FLOAT = frozenset(
    {
        "Flatten",
        "Gather",
        "MatMul",
        "Max",
        "Min",
        "ReduceMax",
        "ReduceMean",
        "ReduceSum",
        "Reshape",
        "Squeeze",
        "Sub",
        "TopK",
        "Transpose",
        "Unsqueeze",
    }
)


def stays_float(model: QuantModel, node: Node, writer: GraphWriter) -> bool:
    """Whether a node has no integer form on the march that is written for.

    Args:
        model: The calibrated model.
        node: A node of it.
        writer: Knows the march and the shapes.

    Raises:
        UnsupportedError: That depends on a shape, which is not known.
    """
    bernoulli2 = writer.march == BERNOULLI2
    if node.op_type in _FLOAT or (bernoulli2 and node.op_type in _BERNOULLI2_FLOAT):
        return True
    if bernoulli2 and len(writer.shape(node.outputs[0])) != _IMAGE_RANK:
        return True
    match node.op_type:
        case "ReduceMax" | "ReduceMean" | "ReduceSum":
            found = len(reduced_axes(model, node, rank=1)) != 1
        case "ArgMax":
            axis, keepdims = node.attributes.get("axis", 0), node.attributes.get("keepdims", 1)
            found = axis != 1 or not keepdims or len(writer.shape(node.inputs[0])) != _IMAGE_RANK
        case "Resize":
            found = resizing_of(model, node, writer) is None
        case "Pad":
            found = _float_pad(model, node, writer.march)
        case "Add" if bernoulli2:
            found = len({_channels(_shape(model, name, writer)) for name in node.inputs}) > 1
        case _:
            found = False
    return found


def resizing_of(model: QuantModel, node: Node, writer: GraphWriter) -> Resizing | None:
    """Return the integer form of a Resize; None if it has none."""
    source, target = writer.shape(node.inputs[0]), writer.shape(node.outputs[0])
    if len(source) != _IMAGE_RANK or source[:2] != target[:2]:
        return None
    return resizing(
        resize_attributes(model, node),
        (source[2], source[3]),
        (target[2], target[3]),
        march=writer.march,
    )


def _float_pad(model: QuantModel, node: Node, march: str) -> bool:
    """Whether a Pad repeats the image at its border, or pads channels on bernoulli2."""
    if node.attributes.get("mode", "constant") != "constant":
        return True
    if march != BERNOULLI2:
        return False
    pads, _ = padding(model, node)
    return bool(pads[:, :2].any())


def _shape(model: QuantModel, tensor: str, writer: GraphWriter) -> Shape:
    if tensor in model.static | model.constants.keys():
        while tensor not in model.constants:
            tensor = model.producer_of[tensor].input  # type: ignore[union-attr]
        return model.constants[tensor].shape
    return writer.shape(tensor)


def _channels(shape: Shape) -> int:
    return shape[-3] if len(shape) >= 3 else 1
