"""Where tensors change between channels-first and channels-last, as the converter decides it.

`hbdebug.lowering.graph.lower` writes a Transpose wherever a reader needs the other layout. The
converter gives every operator of images Transposes on all sides, those that move data included,
and then takes out what cancels. What it does, and the names that things have afterwards, was
measured against HMCT 1.1.0 (``docs/lowering.md``). No integer changes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.lowering.crossing import (
    behind_dequantize,
    behind_quantize,
    in_front_of_dequantize,
    in_front_of_quantize,
    is_arranged,
    only_reader,
    perm_of,
    permuted,
    transpose_behind,
    transpose_of,
    turns,
)
from hbdebug.lowering.elementwise import BERNOULLI2
from hbdebug.lowering.rewriting import Rewriting, stock
from hbdebug.lowering.writer import CHANNELS_FIRST, CHANNELS_LAST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.model import IntegerModel, Node
    from hbdebug.samples import TensorSpec

_MARK = "_LayoutConvert"

# Stock operators that the converter gives an axis of the other layout, by the inputs and outputs
# that hold images; None is all of them. Others that move data, such as Tile, stay channels-first.
_WITH_AXIS: Mapping[str, int | None] = {"Concat": None, "Gather": 1, "Slice": 1, "Split": 1}

# What moves int32 sums as integers.
_MOVERS = frozenset({"Flatten", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"})

# What an int8 Softmax consists of; one with int16 tables keeps its Transposes.
_IN_SOFTMAX = frozenset(
    {
        "HzLut",
        "HzQuantizedReduceMax",
        "HzSElementwiseMul",
        "HzSElementwiseSub",
        "HzSQuantizedReduceSum",
    }
)


def arrange(
    model: IntegerModel, tensors: Mapping[str, TensorSpec], *, march: str = "bayes-e"
) -> IntegerModel:
    """Move, merge and cancel Transposes as the converter does.

    Args:
        model: What `hbdebug.lowering.graph.lower` returned.
        tensors: Type and fixed shape of every tensor that its nodes give or read.
        march: What it was lowered for. bernoulli2 has no integers with channels first, so that
            floats are turned there where bayes and bayes-e turn integers.

    Returns:
        A model that computes the same integers, with the converter's nodes.
    """
    graph = Rewriting(model, tensors)
    _apply(graph, _named_by_maker, _unread)
    if march != BERNOULLI2:
        _apply(graph, _moved_in_integers)
    _name_by_neighbours(graph)
    for node in graph.each():
        if _moves_images(graph, node):
            _surround(graph, node)
    if march == BERNOULLI2:
        _apply(graph, _without_pair, _without_twin)
        _apply(graph, behind_dequantize, in_front_of_quantize)
        graph.floats_arranged = True
        _apply(graph, _without_pair, _without_twin)
    else:
        _apply(graph, in_front_of_dequantize, behind_quantize, _without_pair, _without_twin)
    _apply(graph, _merged, _without_twin)
    if march != BERNOULLI2:
        _apply(graph, _softmax_as_it_comes)
        _apply(graph, _reshaped_channels_last)
    _apply(graph, _as_reshape)
    _apply(graph, _reshaped_once)
    return graph.model()


def _apply(graph: Rewriting, *rules: Callable[[Rewriting, Node], bool]) -> None:
    """Apply rules to all nodes until none fits any more; each says whether it did."""
    changed = True
    while changed:
        changed = False
        for rule in rules:
            for node in graph.each():
                changed |= rule(graph, node)


def _named_by_maker(graph: Rewriting, node: Node) -> bool:
    """Let the node that makes a float give it the name of a graph output, without an Identity."""
    if node.op_type != "Identity" or node.name != f"{node.outputs[0]}_Identity":
        return False
    maker = graph.maker(node.inputs[0])
    if maker is None or node.inputs[0] in graph.outputs:
        return False
    graph.remove(node)
    graph.rename_output(node.inputs[0], node.outputs[0])
    return True


def _unread(graph: Rewriting, node: Node) -> bool:
    """Take out a Transpose that nothing reads."""
    if node.op_type != "Transpose" or _MARK not in node.name or graph.readers(node.outputs[0]):
        return False
    graph.remove(node)
    return True


def _moved_in_integers(graph: Rewriting, node: Node) -> bool:
    """Let int32 sums that have one step be moved before they become float."""
    if node.op_type != "HzDequantize" or node.inputs[0] not in graph.sums:
        return False
    mover = only_reader(graph, node.outputs[0])
    if (
        graph.constants[node.inputs[1]].size != 1
        or mover is None
        or mover.op_type not in _MOVERS
        or not all(name in graph.constants for name in mover.inputs[1:] if name)
    ):
        return False
    (output,) = mover.outputs
    moved = f"{output}_quantized"
    graph.shapes[moved] = graph.shapes[output]
    inputs = [node.inputs[0], *mover.inputs[1:]]
    graph.replace(mover, stock(mover.name, mover.op_type, inputs, [moved], mover.attributes))
    graph.integers.add(moved)
    graph.sums.add(moved)
    graph.remove(node)
    rank = len(graph.shapes[output])
    dequantize = replace(
        node,
        name=f"{output}_HzDequantize",
        inputs=(moved, *node.inputs[1:]),
        outputs=(output,),
        attributes={} if rank == 4 else {"axis": rank - 1},
    )
    new = graph.maker(moved)
    assert new is not None
    graph.insert_after(new, dequantize)
    return True


def _name_by_neighbours(graph: Rewriting) -> None:
    """Name the Transposes of lowering after the node in front or behind, as the converter does."""
    written = [node for node in graph.nodes() if node.op_type == "Transpose" and _MARK in node.name]
    # All of them give up their names first, because one's new name may be another's old one.
    for index, node in enumerate(written):
        graph.rename(node, f"{_MARK}/{index}", f"{_MARK}/{index}/output")
    for node in graph.each():
        _name_constants(graph, node)
    for node in graph.each():
        if not node.name.startswith(f"{_MARK}/"):
            continue
        maker = graph.maker(node.inputs[0])
        if perm_of(node) == list(CHANNELS_FIRST) and maker is not None:
            name, output = _behind(maker.name, maker.outputs.index(node.inputs[0]))
            if maker.op_type == "HzQuantizedArgMax":  # A Cast is behind it.
                output = node.inputs[0].removesuffix("_dequantized")
            graph.rename(node, name, output)
        else:
            reader, index = graph.readers(node.outputs[0])[0]
            graph.rename(node, *_in_front(reader.name, index))


def _name_constants(graph: Rewriting, node: Node) -> None:
    """Number constant operands as the node reads them: those of a sum may have been swapped."""
    for index, name in enumerate(node.inputs):
        _, wanted = _in_front(node.name, index)
        if name in graph.constants and name != wanted and name[:-1] == wanted[:-1]:
            graph.constants[wanted] = graph.constants.pop(name)
            graph.shapes[wanted] = graph.shapes[name]
            graph.redirect(name, wanted)


def _in_front(name: str, index: int) -> tuple[str, str]:
    """Return name and output of the Transpose in front of a node."""
    return f"{name}_NCHW2NHWC{_MARK}_Input{index}", f"{name}_nchw2nhwc_transposed_input{index}"


def _behind(name: str, index: int) -> tuple[str, str]:
    """Return name and output of the Transpose behind a node."""
    return f"{name}_NHWC2NCHW{_MARK}_Output{index}", f"{name}_nhwc2nchw_transposed_output{index}"


def _moves_images(graph: Rewriting, node: Node) -> bool:
    if node.op_type not in _WITH_AXIS or node.domain:
        return False
    held = (*node.inputs[: _WITH_AXIS[node.op_type]], *node.outputs)
    return all(name in graph.integers and len(graph.shapes[name]) == 4 for name in held)


def _surround(graph: Rewriting, node: Node) -> None:
    """Let a node that moves data do so channels-last, between Transposes."""
    inputs = list(node.inputs)
    for index, source in enumerate(inputs[: _WITH_AXIS[node.op_type]]):
        name, inputs[index] = _in_front(node.name, index)
        graph.insert_before(node, stock(name, "Transpose", [source], [inputs[index]], _last()))
        graph.shapes[inputs[index]] = permuted(graph.shapes[source], CHANNELS_LAST)
    attributes = dict(node.attributes)
    if node.op_type == "Slice":
        inputs[3:4] = [_axes_constant(graph, node)]
    else:
        attributes["axis"] = CHANNELS_LAST.index(attributes.get("axis", 0) % 4)
    new = stock(node.name, node.op_type, inputs, node.outputs, attributes)
    graph.replace(node, new)
    for index, output in reversed(tuple(enumerate(node.outputs))):
        name, turned = _behind(node.name, index)
        graph.redirect(output, turned)
        back = stock(name, "Transpose", [output], [turned], {"perm": list(CHANNELS_FIRST)})
        graph.insert_after(new, back)
        graph.shapes[turned] = graph.shapes[output]
        graph.shapes[output] = permuted(graph.shapes[output], CHANNELS_LAST)


def _axes_constant(graph: Rewriting, node: Node) -> str:
    """Return the constant with a Slice's axes; one that others read gets a copy."""
    values = graph.constants[node.inputs[1]]
    axes: NDArray[np.int64] = np.arange(values.size, dtype=np.int64)
    name = f"{node.name}_axes"
    if len(node.inputs) > 3 and node.inputs[3]:
        name = node.inputs[3]
        axes = np.asarray(graph.constants[name], np.int64)
        if len(graph.readers(name)) > 1:
            name = f"{node.name}_{name}"
    turned = [CHANNELS_LAST.index(int(axis) % 4) for axis in axes]
    graph.constants[name] = np.array(turned, np.int64)
    return name


def _last() -> dict[str, Any]:
    return {"perm": list(CHANNELS_LAST)}


def _undone(first: Sequence[int], second: Sequence[int]) -> bool:
    return len(first) == len(second) and permuted(tuple(first), second) == tuple(range(len(first)))


def _without_pair(graph: Rewriting, node: Node) -> bool:
    """Take out two Transposes that cancel."""
    if not turns(node):
        return False
    first = transpose_of(graph, node.inputs[0])
    if first is None or not _undone(perm_of(first), perm_of(node)):
        return False
    (source,), (output,) = first.inputs, node.outputs
    if output in graph.outputs and (source in graph.outputs or graph.maker(source) is None):
        return False
    graph.remove(node)
    if output in graph.outputs:
        graph.rename_output(source, output)
    else:
        graph.redirect(output, source)
    graph.remove_unread(graph.now(first))
    return True


def _without_twin(graph: Rewriting, node: Node) -> bool:
    """Transpose, or quantize, a tensor once for all that read it so."""
    if node.op_type not in {"HzQuantize", "Transpose"} or not is_arranged(graph, node.outputs[0]):
        return False
    for other, _ in graph.readers(node.inputs[0]):
        if other is node or not graph.before(node, other) or other.outputs[0] in graph.outputs:
            continue
        if _same(graph, node, other):
            graph.redirect(other.outputs[0], node.outputs[0])
            graph.remove(other)
            return True
    return False


def _same(graph: Rewriting, node: Node, other: Node) -> bool:
    """Whether two nodes that read one tensor make the same of it."""
    if (node.op_type, node.attributes) != (other.op_type, other.attributes):
        return False
    constants = zip(node.inputs[1:], other.inputs[1:], strict=True)
    return all(np.array_equal(graph.constants[a], graph.constants[b]) for a, b in constants)


def _softmax_as_it_comes(graph: Rewriting, node: Node) -> bool:
    """Let an int8 Softmax work in the layout that its input comes in, if it is turned back."""
    if not turns(node):
        return False
    inner, reached, leaving = [], {node.outputs[0]}, []
    # Nodes come in topological order, so one pass finds all that follows.
    for each in graph.nodes():
        if each is node or not reached.intersection(each.inputs):
            continue
        if turns(each) and _undone(perm_of(node), perm_of(each)):
            leaving.append(each)
        elif each.op_type in _IN_SOFTMAX and reached.issuperset(_operands(each)):
            inner.append(each)
            reached.update(each.outputs)
        else:
            return False
    softmax = any(each.op_type == "HzQuantizedReduceMax" for each in inner)
    if not (softmax and leaving) or reached.intersection(graph.outputs):
        return False
    perm = perm_of(node)
    for each in inner:
        (output,) = each.outputs
        graph.shapes[output] = permuted(graph.shapes[output], _inverse(perm))
        if "axis" in each.attributes:
            attributes = {**each.attributes, "axis": perm[each.attributes["axis"]]}
            graph.replace(each, replace(each, attributes=attributes))
    for each in leaving:
        (source,), (output,) = each.inputs, each.outputs
        graph.remove(each)
        graph.redirect(output, source)
    graph.remove(node)
    graph.redirect(node.outputs[0], node.inputs[0])
    return True


def _operands(node: Node) -> tuple[str, ...]:
    """Return what a node of a Softmax reads, without its table."""
    return node.inputs[:1] if node.op_type == "HzLut" else node.inputs


def _inverse(perm: Sequence[int]) -> list[int]:
    return [list(perm).index(axis) for axis in range(len(perm))]


def _merged(graph: Rewriting, node: Node) -> bool:
    """Make one Transpose of two in a row; it has the name of the second."""
    if not turns(node):
        return False
    first = transpose_of(graph, node.inputs[0])
    if first is None:
        return False
    perm = list(permuted(tuple(perm_of(first)), perm_of(node)))
    attributes = {**node.attributes, "perm": perm}
    graph.replace(node, stock(node.name, "Transpose", [first.inputs[0]], node.outputs, attributes))
    graph.remove_unread(first)
    return True


def _reshaped_channels_last(graph: Rewriting, node: Node) -> bool:
    """Reshape height and width channels-last, between Transposes that then cancel."""
    if node.op_type != "Reshape" or not is_arranged(graph, node.inputs[0]):
        return False
    before = transpose_of(graph, node.inputs[0])
    after = transpose_behind(graph, node.outputs[0])
    if before is None or only_reader(graph, node.inputs[0], "Reshape") is None or after is None:
        return False
    if perm_of(before) != list(CHANNELS_FIRST) or perm_of(after) != list(CHANNELS_LAST):
        return False
    old, new = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
    if len(new) != 4 or old[:2] != new[:2]:
        return False
    name = f"{node.name}_quanti_shape_dim4"
    graph.constants[name] = np.array(permuted(new, CHANNELS_LAST), np.int64)
    inputs = [before.inputs[0], name]
    graph.redirect(after.outputs[0], node.outputs[0])
    graph.remove(after)
    graph.replace(node, stock(node.name, "Reshape", inputs, node.outputs, node.attributes))
    graph.shapes[node.outputs[0]] = permuted(new, CHANNELS_LAST)
    graph.remove_unread(before)
    return True


def _moves_nothing(graph: Rewriting, transpose: Node) -> bool:
    """Whether a Transpose leaves the elements in their order: it moves axes of length 1 only."""
    shape = graph.shapes[transpose.inputs[0]]
    long = [axis for axis in perm_of(transpose) if shape[axis] != 1]
    return long == sorted(long)


def _as_reshape(graph: Rewriting, node: Node) -> bool:
    """Make a Reshape of a Transpose that moves no element and has a Reshape for a neighbour."""
    if not turns(node) or not is_arranged(graph, node.outputs[0]):
        return False
    maker = graph.maker(node.inputs[0])
    in_front = maker is not None and maker.op_type == "Reshape"
    behind = only_reader(graph, node.outputs[0], "Reshape") is not None
    if not (in_front or behind) or not _moves_nothing(graph, node):
        return False
    name = f"{node.name}_reshape"
    target = f"{name}_target_shape"
    graph.constants[target] = np.array(graph.shapes[node.outputs[0]], np.int64)
    graph.replace(node, stock(name, "Reshape", [node.inputs[0], target], node.outputs, {}))
    return True


def _reshaped_once(graph: Rewriting, node: Node) -> bool:
    """Make one Reshape of two in a row, with the name of the first; none, if they cancel."""
    if node.op_type != "Reshape" or not is_arranged(graph, node.inputs[0]):
        return False
    first = graph.maker(node.inputs[0])
    if (
        first is None
        or first.op_type != "Reshape"
        or only_reader(graph, node.inputs[0], "Reshape") is None
        or node.inputs[1] not in graph.constants
        # A size of 0 means that of the input, which is another one without the first.
        or (graph.constants[node.inputs[1]] == 0).any()
    ):
        return False
    (source, _), (output,) = first.inputs, node.outputs
    graph.remove(first)
    if graph.shapes[source] == graph.shapes[output] and output not in graph.outputs:
        graph.redirect(output, source)
        graph.remove(node)
        return True
    inputs = [source, *node.inputs[1:]]
    graph.replace(node, stock(first.name, "Reshape", inputs, node.outputs, node.attributes))
    return True
