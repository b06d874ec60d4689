"""How Transposes cross the borders between floats and integers.

On bayes and bayes-e integers are turned wherever that can be; on bernoulli2 floats are, because
integers have channels last there. Measured against HMCT 1.1.0 (``docs/lowering.md``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hbdebug.lowering.rewriting import stock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hbdebug.lowering.rewriting import Rewriting
    from hbdebug.model import Node


def permuted(shape: tuple[int, ...], perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(shape[axis] for axis in perm)


def perm_of(node: Node) -> list[int]:
    perm: list[int] = node.attributes["perm"]
    return perm


def turns(node: Node | None) -> bool:
    """Whether a node is a Transpose that says how; others are left alone."""
    return node is not None and node.op_type == "Transpose" and "perm" in node.attributes


def is_arranged(graph: Rewriting, tensor: str) -> bool:
    """Whether what gives a tensor may be moved or merged."""
    return graph.floats_arranged or tensor in graph.integers


def transpose_of(graph: Rewriting, tensor: str) -> Node | None:
    """Return the Transpose that makes a tensor, if it is one to move."""
    maker = graph.maker(tensor)
    return maker if turns(maker) and is_arranged(graph, tensor) else None


def only_reader(graph: Rewriting, tensor: str, op_type: str = "") -> Node | None:
    """Return the one node that reads a tensor, if it is of a type."""
    readers = graph.readers(tensor)
    if len(readers) != 1 or tensor in graph.outputs:
        return None
    reader = readers[0][0]
    return reader if op_type in {"", reader.op_type} else None


def transpose_behind(graph: Rewriting, tensor: str) -> Node | None:
    """Return the Transpose that alone reads a tensor, if it says how."""
    reader = only_reader(graph, tensor, "Transpose")
    return reader if turns(reader) else None


def in_front_of_dequantize(graph: Rewriting, node: Node) -> bool:
    """Transpose integers instead of the floats that are made of them."""
    if node.op_type != "HzDequantize":
        return False
    transpose = transpose_behind(graph, node.outputs[0])
    if transpose is None:
        return False
    (output,) = transpose.outputs
    moved = f"{output}_quantized"
    graph.shapes[moved] = graph.shapes[output]
    graph.integers.add(moved)
    axis = perm_of(transpose).index(node.attributes.get("axis", 1))
    attributes = {**node.attributes, "axis": axis}
    inputs = (moved, *node.inputs[1:])
    graph.remove(transpose)
    graph.insert_before(
        node,
        stock(transpose.name, "Transpose", [node.inputs[0]], [moved], transpose.attributes),
    )
    graph.replace(node, replace(node, inputs=inputs, outputs=(output,), attributes=attributes))
    return True


def behind_quantize(graph: Rewriting, node: Node) -> bool:
    """Move the integers that are made of floats instead of the floats."""
    if node.op_type != "HzQuantize":
        return False
    mover = graph.maker(node.inputs[0])
    if (
        mover is None
        or mover.op_type not in {"Reshape", "Transpose"}
        or only_reader(graph, node.inputs[0], "HzQuantize") is None
    ):
        return False
    source, (quantized,), (moved,) = mover.inputs[0], node.outputs, mover.outputs
    graph.remove(mover)
    graph.redirect(quantized, moved)
    # The axis says nothing, because there is one step; the converter writes 0.
    attributes = {**node.attributes, "axis": 0}
    new = replace(node, inputs=(source, *node.inputs[1:]), attributes=attributes)
    graph.replace(node, new)
    graph.shapes[quantized] = graph.shapes[source]
    inputs = [quantized, *mover.inputs[1:]]
    graph.insert_after(new, stock(mover.name, mover.op_type, inputs, [moved], mover.attributes))
    return True


def behind_dequantize(graph: Rewriting, node: Node) -> bool:
    """Transpose the floats that are made of integers instead of the integers."""
    if node.op_type != "HzDequantize":
        return False
    transpose = transpose_of(graph, node.inputs[0])
    if transpose is None:
        return False
    (source,), (output,) = transpose.inputs, node.outputs
    straight = f"{node.name}_dequanti_output"
    graph.shapes[straight] = graph.shapes[source]
    axis = perm_of(transpose)[node.attributes.get("axis", 1)]
    new = replace(
        node,
        inputs=(source, *node.inputs[1:]),
        outputs=(straight,),
        attributes={**node.attributes, "axis": axis},
    )
    graph.replace(node, new)
    graph.remove_unread(transpose)
    graph.insert_after(
        new, stock(transpose.name, "Transpose", [straight], [output], transpose.attributes)
    )
    return True


def in_front_of_quantize(graph: Rewriting, node: Node) -> bool:
    """Transpose floats instead of the integers that are made of them."""
    if node.op_type != "HzQuantize":
        return False
    transpose = transpose_behind(graph, node.outputs[0])
    if transpose is None:
        return False
    (source, step), (quantized,), (turned,) = node.inputs, node.outputs, transpose.outputs
    perm = perm_of(transpose)
    graph.remove(transpose)
    graph.insert_before(
        node, stock(transpose.name, "Transpose", [source], [turned], transpose.attributes)
    )
    attributes = {**node.attributes, "axis": perm.index(node.attributes.get("axis", 1))}
    graph.redirect(turned, quantized)
    graph.replace(node, replace(node, inputs=(turned, step), attributes=attributes))
    graph.integers.discard(turned)
    graph.shapes[quantized] = graph.shapes[turned]
    return True
