"""An integer graph that is rewritten node by node: who makes and who reads each tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hbdebug.errors import ModelError
from hbdebug.model import Node, Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hbdebug.model import IntegerModel
    from hbdebug.samples import TensorSpec


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


# What the chip counts in; indices and sizes are int64.
_INTEGERS = frozenset({"int8", "int16", "int32"})


class Rewriting:
    """A graph while it is rewritten; the model that it starts from is not changed.

    Every change costs what the nodes around it cost, not the whole graph.

    Args:
        model: The model to start from.
        tensors: Type and fixed shape of every tensor.

    Attributes:
        constants: Constants by name.
        shapes: Shape of every tensor; whoever changes a tensor keeps it.
        integers: The tensors that are integers; likewise.
        sums: Those of them that are int32.
        floats_arranged: Whether Transposes of floats are moved and merged like those of integers.
        outputs: Names of the graph outputs.
    """

    def __init__(
        self,
        model: IntegerModel,
        tensors: Mapping[str, TensorSpec],
    ) -> None:
        self.constants = dict(model.constants)
        self.shapes = {
            name: tuple(size or 0 for size in spec.shape) for name, spec in tensors.items()
        }
        self.integers = {name for name, spec in tensors.items() if spec.dtype in _INTEGERS}
        self.sums = {name for name, spec in tensors.items() if spec.dtype == "int32"}
        self.floats_arranged = False
        self.outputs = frozenset(spec.name for spec in model.outputs)
        self._model = model
        self._nodes: dict[str, Node] = {}
        # Where each node stands: numbers that can always be put between two others.
        self._places: dict[str, tuple[int, ...]] = {}
        self._makers: dict[str, str] = {}
        self._readers: dict[str, set[str]] = {}
        self._inserted = 0
        for index, node in enumerate(model.nodes):
            self._add(node, (index, 0))

    def model(self) -> IntegerModel:
        """Return the graph as a model, with those constants that are read."""
        nodes = self.nodes()
        read = {name for node in nodes for name in node.inputs} | self.outputs
        read.update(name for node in nodes for op in node.body for name in op.inputs)
        constants = {name: value for name, value in self.constants.items() if name in read}
        return replace(self._model, steps=nodes, constants=constants)

    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in topological order."""
        return tuple(
            self._nodes[name] for name in sorted(self._nodes, key=self._places.__getitem__)
        )

    def each(self) -> Iterator[Node]:
        """Yield the nodes that are there now and still when their turn comes, as they are then."""
        for node in self.nodes():
            if node.name in self._nodes:
                yield self._nodes[node.name]

    def maker(self, tensor: str) -> Node | None:
        """Return the node that makes a tensor."""
        return self._nodes.get(self._makers.get(tensor, ""))

    def readers(self, tensor: str) -> list[tuple[Node, int]]:
        """Return the nodes that read a tensor, in graph order, each with the input's index."""
        names = sorted(self._readers.get(tensor, ()), key=self._places.__getitem__)
        return [
            (self._nodes[name], index)
            for name in names
            for index, source in enumerate(self._nodes[name].inputs)
            if source == tensor
        ]

    def before(self, first: Node, second: Node) -> bool:
        """Whether one node comes before another."""
        return self._places[first.name] < self._places[second.name]

    def replace(self, old: Node, new: Node) -> None:
        """Put a node in another's place."""
        place = self._places[old.name]
        self.remove(old)
        self._add(new, place)

    def rename(self, node: Node, name: str, output: str) -> None:
        """Give a node of one output other names."""
        (old,) = node.outputs
        self.shapes[output] = self.shapes[old]
        if old in self.integers:
            self.integers.add(output)
        self.replace(node, stock(name, node.op_type, node.inputs, [output], node.attributes))
        self.redirect(old, output)

    def now(self, node: Node) -> Node:
        """Return a node as it is after what was done around it."""
        return self._nodes[node.name]

    def rename_output(self, tensor: str, name: str) -> None:
        """Let the node that makes a tensor, and all that read it, call it by another name."""
        maker = self.maker(tensor)
        assert maker is not None
        self.replace(maker, _making(maker, tensor, name))
        self.redirect(tensor, name)
        self.shapes[name] = self.shapes[tensor]
        if tensor in self.integers:
            self.integers.add(name)

    def insert_before(self, node: Node, new: Node) -> None:
        """Put a node directly in front of another."""
        self._insert(node, -1, new)

    def insert_after(self, node: Node, new: Node) -> None:
        """Put a node directly behind another."""
        self._insert(node, 1, new)

    def remove(self, node: Node) -> None:
        """Take a node out."""
        del self._nodes[node.name], self._places[node.name]
        for name in node.outputs:
            if self._makers.get(name) == node.name:
                del self._makers[name]
        for name in node.inputs:
            self._readers[name].discard(node.name)

    def remove_unread(self, node: Node) -> None:
        """Take a node out unless something reads it still."""
        if not any(self._readers.get(name) or name in self.outputs for name in node.outputs):
            self.remove(node)

    def redirect(self, old: str, new: str) -> None:
        """Let all that read one tensor read another."""
        if old != new:
            for name in tuple(self._readers.get(old, ())):
                node = self._nodes[name]
                self.replace(node, node.reading({old: new}))

    def _insert(self, node: Node, side: int, new: Node) -> None:
        self._inserted += 1
        # What is put there later is nearer to the node, on either side.
        place = (*self._places[node.name][:-1], side, -side * self._inserted, 0)
        self._add(new, place)
        # What moves data gives what it reads.
        if not new.domain and new.inputs[0] in self.integers:
            self.integers.update(new.outputs)

    def _add(self, node: Node, place: tuple[int, ...]) -> None:
        if node.name in self._nodes:
            raise ModelError("two nodes would have this name", where=node.name)
        self._nodes[node.name] = node
        self._places[node.name] = place
        self._makers.update(dict.fromkeys(node.outputs, node.name))
        for name in node.inputs:
            self._readers.setdefault(name, set()).add(node.name)


def _making(node: Node, old: str, new: str) -> Node:
    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if name == old else name for name in names)

    body = tuple(
        replace(op, inputs=renamed(op.inputs), outputs=renamed(op.outputs)) for op in node.body
    )
    return replace(node, outputs=renamed(node.outputs), body=body)
