"""Unique names for nodes whose file gives them none, or the same to several."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hbdebug.model import IN_SUBGRAPH
from hbdebug.results import NotAnalysed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import onnx


def unique_names(nodes: Sequence[onnx.NodeProto]) -> tuple[list[str], dict[str, str]]:
    """Give every node a name of its own that does not change when other nodes come or go.

    A node without a name is called ``<operator>:<output>``, one of several with the same name
    ``<name>:<output>``, after the first tensor that it makes: no other node makes that.

    Args:
        nodes: Nodes of one graph.

    Returns:
        The names in the order of the nodes, and unique name -> name in the file (perhaps empty)
        of those for which they differ.
    """
    count = Counter(node.name for node in nodes)
    taken = {name for name, times in count.items() if times == 1}
    names, renamed = [], {}
    for node in nodes:
        name = node.name
        if not name or count[name] > 1:
            name = made_up(node)
            while name in taken:
                name += "_"
            taken.add(name)
            renamed[name] = node.name
        names.append(name)
    return names, renamed


def made_up(node: onnx.NodeProto) -> str:
    """Return what a node without a name, or with a common one, is called."""
    tensors = (name for name in (*node.output, *node.input) if name)
    return f"{node.name or node.op_type}:{next(tensors, '')}".rstrip(":")


def nodes_inside(name: str, node: onnx.NodeProto) -> Iterator[NotAnalysed]:
    """Yield every node in a node's subgraphs, as deep as they go; constants are none.

    Args:
        name: The node's unique name. What is inside is called ``<name>/<attribute>/<node>``.
        node: The node.
    """
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for graph in graphs:
            for inner in graph.node:
                if inner.op_type != "Constant":
                    full = f"{name}/{attribute.name}/{inner.name or made_up(inner)}"
                    yield NotAnalysed(name=full, op_type=inner.op_type, reason=IN_SUBGRAPH)
                    yield from nodes_inside(full, inner)
