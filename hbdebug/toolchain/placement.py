"""What ``{'ON': 'CPU'}`` does: who moves, and what the points in front of them become.

"Moved to the CPU and nothing changed" is what users report, because the input of a CPU node keeps
the precision that its maker can deliver: float from a convolution, int16 from an elementwise
operator, int8 from a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.model import Point
from hbdebug.toolchain.operators import (
    ACCUMULATORS,
    CARRIERS,
    COUPLED,
    ELEMENTWISE,
    IMMOVABLE,
    IN_FLOAT,
    INT16_CAPABLE,
    MOVABLE,
    STAYING,
    SUMS,
    TABLES,
    WILLING_TABLES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hbdebug.model import Node
    from hbdebug.toolchain.graph import Graph, Outcome


class CpuRules:
    """``{'ON': 'CPU'}``: a CPU node's input keeps the precision that its maker can deliver."""

    def __init__(self, graph: Graph, outcome: Outcome, march: str) -> None:
        self.graph = graph
        self.model = graph.model
        self.outcome = outcome
        self.asked: set[str] = set()
        # Elementwise operators run in float on bernoulli2.
        self.elementwise = "float" if march == "bernoulli2" else "int16"

    def apply(self, names: Iterable[str]) -> None:
        """Move nodes to the CPU and settle the points around them."""
        for name in names:
            node = self.model.node_by_name[name]
            at_input = any(
                self.graph.maker(tensor) is None for _, tensor in self.graph.data_inputs(node)
            )
            if node.op_type in IMMOVABLE and not at_input:
                self.outcome.notes[f"{name}: the toolchain ignores CPU for {node.op_type}"] = None
                continue
            if node.op_type not in MOVABLE:
                self.outcome.notes[f"{name}: CPU was not measured for {node.op_type}"] = None
            self.outcome.cpu.add(name)
            self.asked.add(name)
        before = -1
        while before != len(self.outcome.cpu) + len(self.outcome.gone):
            before = len(self.outcome.cpu) + len(self.outcome.gone)
            # Who bypasses a point depends on who else is on the CPU, so it is told anew.
            self.outcome.bypassed.clear()
            for name in sorted(self.outcome.cpu):
                self._settle(self.model.node_by_name[name])

    def _settle(self, node: Node) -> None:
        """Drop or change the points on the inputs of a node that is on the CPU."""
        for index, tensor in enumerate(node.inputs):
            if not tensor:
                continue
            step = self.model.producer_of.get(tensor)
            if not isinstance(step, Point):
                self._supply(tensor, node)
                continue
            while isinstance(step, Point):
                if all(self._on_cpu(reader) for reader, _ in self.model.consuming_nodes(step)):
                    self._set(step, self._supply(step.input, node))
                elif self._reads_in_front(node, step):
                    self.outcome.bypassed.add((node.name, index))
                step = self.model.producer_of.get(step.input)

    def _reads_in_front(self, node: Node, point: Point) -> bool:
        """Whether a CPU node reads the tensor in front of a point that stays for others."""
        if node.op_type in WILLING_TABLES and node.name not in self.asked:
            return True
        maker = self.graph.maker(point.input)
        if maker is None:
            return node.op_type not in COUPLED
        if node.op_type not in MOVABLE - COUPLED or maker.op_type in TABLES:
            return False
        return all(
            self._on_cpu(reader) or reader.op_type in {"Concat", "LeakyRelu", "PRelu"}
            for reader, _ in self.model.consuming_nodes(point)
        )

    def _set(self, point: Point, supply: str) -> None:
        if supply == "float" or point.role == "weight":
            self.outcome.gone.add(point.name)
            self.outcome.int16.discard(point.name)
        elif supply == "int16":
            self.outcome.int16.add(point.name)

    def _on_cpu(self, node: Node) -> bool:
        return node.name in self.outcome.cpu or node.op_type in IN_FLOAT

    def _supply(self, tensor: str, reader: Node) -> str:
        """Return what a tensor's maker can deliver to the CPU: float, int16 or int8.

        A maker that only moves data goes to the CPU as well where that frees its input.
        """
        maker = self.graph.maker(tensor)
        went_along = reader.op_type in WILLING_TABLES and reader.name not in self.asked
        if went_along or maker is None or self._on_cpu(maker):
            return "float"
        op = maker.op_type
        if op in CARRIERS - STAYING or op in {"GlobalMaxPool", "Resize"}:
            return self._carry(maker)
        if op in ACCUMULATORS:
            return "float"
        free = [t for _, t in self.graph.data_inputs(maker) if not self.graph.is_pointed(t)]
        if free:
            return self._fused(maker, reader, tensor, free[0])
        if op in ELEMENTWISE | SUMS:
            coupled = op in SUMS and (reader.op_type in ELEMENTWISE or self.elementwise == "float")
            return "int8" if coupled else self._elementwise(tensor)
        return self._table(maker, reader, tensor)

    def _table(self, maker: Node, reader: Node, tensor: str) -> str:
        """Return what a table, or what is made as one, delivers."""
        op = maker.op_type
        if op in TABLES | WILLING_TABLES | {"ReduceMax", "Relu"} and self._is_tail(reader):
            return self._tail(tensor)
        return self._willing(maker) if op in WILLING_TABLES else "int8"

    def _fused(self, maker: Node, reader: Node, tensor: str, free: str) -> str:
        """Return what a maker delivers that has an input without a point."""
        if maker.op_type == "Clip" and self._is_tail(reader):
            return self._tail(tensor)
        if maker.op_type in {"Clip", "Relu"}:
            return self._supply(free, maker)
        return "int8" if maker.op_type in TABLES | STAYING else "float"

    def _is_tail(self, node: Node) -> bool:
        """Whether no node on the BPU follows."""
        return all(
            (self._on_cpu(reader) or not self.graph.has_points(reader)) and self._is_tail(reader)
            for tensor in node.outputs
            for reader in self._readers(tensor)
        )

    def _readers(self, tensor: str) -> Iterator[Node]:
        for step, _ in self.model.consumers_of.get(tensor, ()):
            if isinstance(step, Point):
                yield from (reader for reader, _ in self.model.consuming_nodes(step))
            else:
                yield step

    def _tail(self, tensor: str) -> str:
        """Return what a table delivers at the end of the BPU's part: int16, as a model output."""
        if self.elementwise == "int16":
            self.outcome.wishes.add(self.graph.raw(tensor))
        return "int8"

    def _willing(self, maker: Node) -> str:
        """Move a table that goes along; one that shares the graph's input stays as it is."""
        shares = any(
            self.graph.maker(point.input) is None
            and any(reader.name != maker.name for reader, _ in self.model.consuming_nodes(point))
            for _, tensor in self.graph.data_inputs(maker)
            for point in self.graph.activation_points(tensor)
        )
        if not shares:
            self.outcome.cpu.add(maker.name)
        return "float"

    def _elementwise(self, tensor: str) -> str:
        """Return what an elementwise operator delivers: int16 if its first reader can take it."""
        first = next(self._readers(self.graph.raw(tensor)), None)
        takes = first is None or first.op_type in INT16_CAPABLE | IN_FLOAT
        return self.elementwise if takes else "int8"

    def _carry(self, maker: Node) -> str:
        """Return what an operator that only moves data can deliver, moving it if that helps."""
        supplies = [
            self._private_supply(maker, tensor) for _, tensor in self.graph.data_inputs(maker)
        ]
        if "float" in supplies:
            self.outcome.cpu.add(maker.name)
            return "float"
        if supplies == ["int16"] and maker.op_type in INT16_CAPABLE:
            for point in self.graph.activation_points(maker.inputs[0]):
                self._set(point, "int16")
            return "int16"
        return "int8"

    def _private_supply(self, maker: Node, tensor: str) -> str:
        """Return what a carrier's input could be, int8 where somebody on the BPU reads it too."""
        for point in self.graph.activation_points(tensor):
            readers = (reader for reader, _ in self.model.consuming_nodes(point))
            if not all(reader.name == maker.name or self._on_cpu(reader) for reader in readers):
                return "int8"
        return self._supply(tensor, maker)
