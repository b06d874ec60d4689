"""Values that are no arrays of numbers: sequences, optionals, strings, types that NumPy lacks.

The walk hands arrays from step to step. Nodes that hand other values to each other therefore
become one step, with all that lies between them: ONNX Runtime runs it whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx

from hbdebug.errors import UnsupportedError
from hbdebug.loading.graph import some
from hbdebug.model import JOINED, Node, Point
from hbdebug.results import NotAnalysed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from hbdebug.model import Step

SEQUENCE, OPTIONAL, OPTIONAL_SEQUENCE = "a sequence", "an optional", "an optional sequence"

_MAKE_SEQUENCES = frozenset(
    {
        "SequenceConstruct",
        "SequenceEmpty",
        "SequenceErase",
        "SequenceInsert",
        "SequenceMap",
        "SplitToSequence",
    }
)

# Operators that read other values and give numbers.
_GIVE_NUMBERS = frozenset(
    {
        "ConcatFromSequence",
        "DequantizeLinear",
        "Equal",
        "OptionalHasElement",
        "RegexFullMatch",
        "SequenceAt",
        "SequenceLength",
        "Shape",
        "Size",
        "TfIdfVectorizer",
    }
)

_WITH_GRAPHS = frozenset({"If", "Loop", "Scan"})

_GIVE_OTHERS = _MAKE_SEQUENCES | _WITH_GRAPHS | {"Cast", "Optional", "OptionalGetElement"}

# What an element of a tensor is, where NumPy has no such type.
_NO_NUMPY = {
    number: f"of type {name.lower()}"
    for name, number in onnx.TensorProto.DataType.items()
    if name == "STRING"
    or name.startswith(("BFLOAT", "FLOAT8", "FLOAT4", "INT4", "INT2", "UINT4", "UINT2"))
}
_STATED = frozenset({onnx.TensorProto.STRING, onnx.TensorProto.BFLOAT16})
_STRING = _NO_NUMPY[onnx.TensorProto.STRING]


def not_arrays(
    graph: onnx.GraphProto, constants: Mapping[str, NDArray[np.generic]]
) -> dict[str, str]:
    """Return the tensors of a graph that are no arrays of numbers, with what they are instead.

    Args:
        graph: The graph; its nodes may stand in any order.
        constants: Its constants.
    """
    found = {
        info.name: kind
        for info in (*graph.input, *graph.output, *graph.value_info)
        if (kind := _stated(info.type))
    }
    found.update((name, _STRING) for name, value in constants.items() if value.dtype.kind in "OSU")
    nodes = list(graph.node)
    known = -1
    while known != len(found):
        known = len(found)
        for node in nodes:
            kinds = zip(node.output, _made(node, found), strict=False)
            found.update((name, kind) for name, kind in kinds if kind and name)
    return found


def _stated(kind: onnx.TypeProto) -> str:
    if kind.HasField("sequence_type"):
        return SEQUENCE
    if kind.HasField("optional_type"):
        inner = kind.optional_type.elem_type
        return OPTIONAL_SEQUENCE if inner.HasField("sequence_type") else OPTIONAL
    if kind.HasField("tensor_type"):
        # Narrower integers and floats may be what pairs quantize to, which is no tensor here.
        stated = kind.tensor_type.elem_type
        return _NO_NUMPY[stated] if stated in _STATED else ""
    return ""


def _made(node: onnx.NodeProto, known: Mapping[str, str]) -> list[str]:
    """Return what each output of a node is; empty for an array of numbers."""
    op_type, count = node.op_type, len(node.output)
    read = next((known[name] for name in node.input if name in known), "")
    if op_type in _GIVE_NUMBERS or (not read and op_type not in _GIVE_OTHERS):
        return []
    if op_type in _MAKE_SEQUENCES:
        return [SEQUENCE] * count
    if op_type == "Optional":
        attribute = next((item for item in node.attribute if item.name == "type"), None)
        inner = read or ("" if attribute is None else _stated(attribute.tp))
        return [OPTIONAL_SEQUENCE if inner == SEQUENCE else OPTIONAL]
    if op_type == "OptionalGetElement":
        read = SEQUENCE if read in {OPTIONAL_SEQUENCE, SEQUENCE} else ""
    elif op_type == "Cast":
        read = next((_NO_NUMPY.get(item.i, "") for item in node.attribute if item.name == "to"), "")
    return _made_inside(node, known) if op_type in _WITH_GRAPHS else [read] * count


def _made_inside(node: onnx.NodeProto, known: Mapping[str, str]) -> list[str]:
    """Return what a node with subgraphs gives: what they say that they give."""
    graphs = [item.g for item in node.attribute if item.HasField("g")]
    found = [""] * len(node.output)
    for graph in graphs:
        inside = {**known, **not_arrays(graph, {})}
        kinds = [inside.get(info.name, "") for info in graph.output]
        # A Loop's body gives its condition first, which is no output of the Loop.
        for index, kind in enumerate(kinds[1:] if node.op_type == "Loop" else kinds):
            if kind and index < len(found):
                found[index] = kind
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """A graph in which all that the walk hands on are arrays.

    Attributes:
        steps: The steps, no longer in order.
        outputs: The graph outputs that are arrays; in place of another, what it is made from.
        skipped: Nodes that only made such another output.
        notes: What the user should know about them.
    """

    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    skipped: tuple[NotAnalysed, ...]
    notes: tuple[str, ...]


def join(
    steps: Sequence[Step],
    kinds: Mapping[str, str],
    outputs: Sequence[str],
    constants: Collection[str],
) -> Joined:
    """Make one step of the nodes that hand values to each other that are no arrays.

    A joined node has the name of its first node and the operators of all, and lists the others
    in ``inside``.

    Args:
        steps: All steps, in order.
        kinds: From `not_arrays`.
        outputs: Graph outputs.
        constants: Tensors with fixed values.

    Raises:
        UnsupportedError: A quantization point lies on or between such values.
    """
    groups = [[steps[index] for index in group] for group in _groups(steps, kinds)]
    names = [{step.name for step in group} for group in groups]
    members = set().union(*names)
    kept: list[Step] = [step for step in steps if step.name not in members]
    measured = [name for name in outputs if name not in kinds]
    readers: dict[str, set[str]] = {}
    for step in steps:
        for name in step.inputs:
            readers.setdefault(name, set()).add(step.name)
    notes, skipped = [], []
    for group, own in zip(groups, names, strict=True):
        made = {name for step in group for name in step.outputs}
        node = _one(group, {n for n in made if n in measured or readers.get(n, set()) - own})
        given = [name for step in group for name in step.outputs if name in outputs]
        lost = [name for name in given if name in kinds]
        if node.outputs:
            kept.append(node)
        elif lost:
            # Nothing else shows what quantization does in front of it.
            measured += [
                name for name in node.inputs if name not in constants and name not in measured
            ]
            reason = f"it only makes {lost[0]}, which cannot be compared"
            skipped.append(NotAnalysed(name=node.name, op_type=node.op_type, reason=reason))
        notes += [_note(name, kinds[name], [] if node.outputs else node.inputs) for name in lost]
    return Joined(
        steps=tuple(kept),
        outputs=tuple(measured),
        skipped=tuple(skipped),
        notes=tuple(notes),
    )


def _note(name: str, kind: str, instead: Sequence[str]) -> str:
    what = f"a tensor {kind}" if kind.startswith("of type") else kind
    tail = f"; measured instead: {', '.join(instead)}" if instead else ""
    return f"output {name} is {what}, which cannot be compared, and is not measured{tail}"


def _groups(steps: Sequence[Step], kinds: Mapping[str, str]) -> list[list[int]]:
    """Return the indices of the steps to join; every group holds all between its members.

    With an edge back from whoever reads such a value to its maker, these are the strongly
    connected components: what lies on a way from a member to a member is on a circle then.
    """
    maker = {name: index for index, step in enumerate(steps) for name in step.outputs if name}
    edges: list[set[int]] = [set() for _ in steps]
    for index, step in enumerate(steps):
        for name in step.inputs:
            if name in maker:
                edges[maker[name]].add(index)
                if name in kinds:
                    edges[index].add(maker[name])
    return [
        sorted(component)
        for component in _components(edges)
        if len(component) > 1 or not kinds.keys().isdisjoint(steps[component[0]].outputs)
    ]


def _components(edges: Sequence[Collection[int]]) -> Iterator[list[int]]:
    """Yield the strongly connected components of a graph (Tarjan), without recursion."""
    number: dict[int, int] = {}
    low: dict[int, int] = {}
    open_nodes: list[int] = []
    closed: set[int] = set()
    for root in range(len(edges)):
        path = [] if root in number else [(root, iter(edges[root]))]
        while path:
            node, targets = path[-1]
            if node not in number:
                number[node] = low[node] = len(number)
                open_nodes.append(node)
            target = next(targets, None)
            if target is not None:
                if target not in number:
                    path.append((target, iter(edges[target])))
                elif target not in closed:
                    low[node] = min(low[node], number[target])
                continue
            path.pop()
            if path:
                low[path[-1][0]] = min(low[path[-1][0]], low[node])
            if low[node] == number[node]:
                component = [open_nodes.pop()]
                while component[-1] != node:
                    component.append(open_nodes.pop())
                closed.update(component)
                yield component


def _one(members: Sequence[Step], read: Collection[str]) -> Node:
    """Return one node in place of several, giving what is read elsewhere."""
    nodes = [step for step in members if isinstance(step, Node)]
    if len(nodes) < len(members):
        points = [step.name for step in members if isinstance(step, Point)]
        raise UnsupportedError(
            f"quantization point {some(points)} lies on or between values that are no arrays "
            f"(made by {some([node.name for node in nodes])})",
            hint="Export these nodes without sequences, optionals or strings between them.",
        )
    made = [name for node in nodes for name in node.outputs if name]
    inputs = (name for node in nodes for name in node.inputs if name and name not in made)
    op_types = list(dict.fromkeys(node.op_type for node in nodes))
    first = nodes[0]
    inside = [
        item
        for node in nodes
        for item in (
            NotAnalysed(name=node.name, op_type=node.op_type, reason=JOINED),
            *node.inside,
        )
    ]
    return Node(
        name=first.name,
        op_type="+".join(op_types[:3]) + ("+..." if len(op_types) > 3 else ""),
        domain=first.domain if len(nodes) == 1 else "",
        inputs=tuple(dict.fromkeys(inputs)),
        outputs=tuple(name for name in made if name in read),
        attributes=first.attributes if len(nodes) == 1 else {},
        body=tuple(op for node in nodes for op in node.body),
        inside=tuple(inside[1:]),
    )
