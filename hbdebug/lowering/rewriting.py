"""An integer graph that is rewritten node by node: who makes and who reads each tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hbdebug.model import Node, Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hbdebug.model import IntegerModel


def stock(
    name: str,
    op_type: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    attributes: Mapping[str, Any],
) -> Node:
    """Return a node of a stock operator."""
    op = Op(op_type=op_type, inputs=tuple(inputs), outputs=tuple(outputs), attributes=attributes)
    return Node(
        name=name,
        op_type=op_type,
        domain="",
        inputs=op.inputs,
        outputs=op.outputs,
        attributes=attributes,
        body=(op,),
    )


class Rewriting:
    """A graph while it is rewritten; the model that it starts from is not changed.

    Args:
        model: The model to start from.
        shapes: Shape of every tensor.
        integers: The tensors that are integers.

    Attributes:
        nodes: The nodes in topological order.
        constants: Constants by name.
        shapes: Shape of every tensor; whoever changes a tensor keeps it.
        integers: The tensors that are integers; likewise.
        outputs: Names of the graph outputs.
    """

    def __init__(
        self,
        model: IntegerModel,
        shapes: Mapping[str, tuple[int, ...]],
        integers: Iterable[str],
    ) -> None:
        self.nodes: list[Node] = list(model.nodes)
        self.constants = dict(model.constants)
        self.shapes = dict(shapes)
        self.integers = set(integers)
        self.outputs = frozenset(spec.name for spec in model.outputs)
        self._model = model
        self._makers: dict[str, Node] = {}
        self._readers: dict[str, list[tuple[Node, int]]] = {}
        self._refresh()

    def model(self) -> IntegerModel:
        """Return the graph as a model, with those constants that are read."""
        read = {name for node in self.nodes for name in node.inputs} | self.outputs
        read.update(name for node in self.nodes for op in node.body for name in op.inputs)
        constants = {name: value for name, value in self.constants.items() if name in read}
        return replace(self._model, steps=tuple(self.nodes), constants=constants)

    def each(self) -> Iterator[Node]:
        """Yield the nodes that are there now, each as it stands when its turn comes."""
        for name in [node.name for node in self.nodes]:
            yield from (node for node in tuple(self.nodes) if node.name == name)

    def maker(self, tensor: str) -> Node | None:
        """Return the node that makes a tensor."""
        return self._makers.get(tensor)

    def readers(self, tensor: str) -> Sequence[tuple[Node, int]]:
        """Return the nodes that read a tensor, in graph order, each with the input's index."""
        return tuple(self._readers.get(tensor, ()))

    def before(self, first: Node, second: Node) -> bool:
        """Whether one node comes before another."""
        return self._place(first) < self._place(second)

    def replace(self, old: Node, new: Node) -> None:
        """Put a node in another's place."""
        self.nodes[self._place(old)] = new
        self._refresh()

    def rename(self, node: Node, name: str, output: str) -> None:
        """Give a node of one output other names."""
        (old,) = node.outputs
        if name == node.name and output == old:
            return
        self.shapes[output] = self.shapes[old]
        if old in self.integers:
            self.integers.add(output)
        self.replace(node, stock(name, node.op_type, node.inputs, [output], node.attributes))
        self.redirect(old, output)

    def insert_before(self, node: Node, new: Node) -> None:
        """Put a node in front of another."""
        self._insert(self._place(node), new)

    def insert_after(self, node: Node, new: Node) -> None:
        """Put a node behind another."""
        self._insert(self._place(node) + 1, new)

    def remove(self, node: Node) -> None:
        """Take a node out."""
        del self.nodes[self._place(node)]
        self._refresh()

    def remove_unread(self, node: Node) -> None:
        """Take a node out unless something reads it still."""
        if not any(self.readers(name) or name in self.outputs for name in node.outputs):
            self.remove(node)

    def redirect(self, old: str, new: str) -> None:
        """Let all that read one tensor read another."""
        for index, node in enumerate(self.nodes):
            if old in node.inputs or any(old in op.inputs for op in node.body):
                self.nodes[index] = _reading(node, old, new)
        self._refresh()

    def _insert(self, place: int, new: Node) -> None:
        self.nodes.insert(place, new)
        # What moves data gives what it reads.
        if not new.domain and new.inputs[0] in self.integers:
            self.integers.update(new.outputs)
        self._refresh()

    def _place(self, node: Node) -> int:
        return next(index for index, each in enumerate(self.nodes) if each is node)

    def _refresh(self) -> None:
        self._makers = {name: node for node in self.nodes for name in node.outputs}
        self._readers = {}
        for node in self.nodes:
            for index, name in enumerate(node.inputs):
                self._readers.setdefault(name, []).append((node, index))


def _reading(node: Node, old: str, new: str) -> Node:
    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    body = tuple(replace(op, inputs=renamed(op.inputs)) for op in node.body)
    return replace(node, inputs=renamed(node.inputs), body=body)
