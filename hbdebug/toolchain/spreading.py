"""What ``{'InputType': 'int16'}`` does: which points follow, in front, behind and beside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.model import Node, Point
from hbdebug.toolchain.operators import (
    CARRIERS,
    FORCING_OUTPUT,
    HALFWAY,
    INT8_FOR_ALL,
    SPREADING,
    STAYING,
    STRONG_READERS,
    TABLES,
    WILLING_TABLES,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hbdebug.toolchain.graph import Graph, Outcome


class Int16Rules:
    """``{'InputType': 'int16'}``: a type spreads to where it can be read and made."""

    def __init__(self, graph: Graph, outcome: Outcome, march: str) -> None:
        self.graph = graph
        self.model = graph.model
        self.outcome = outcome
        self.int8_for_all = INT8_FOR_ALL - ({"MatMul"} if march.startswith("nash") else set())
        self.order = self.model.position_of
        self.tried: set[str] = set()

    def request(self, node: Node) -> None:
        """Ask for int16 on all activation inputs of a node."""
        self.tried.clear()
        pointed = False
        for _, tensor in self.graph.data_inputs(node):
            for point in self._nearest(tensor):
                pointed = True
                self._raise(point)
            if not pointed and node.op_type in CARRIERS:
                self._spread(tensor)
        fused = not pointed
        if fused and node.op_type in {"Clip", "Relu"}:
            for tensor in node.outputs:
                self._spread(tensor)

    def raise_points(self, points: Iterable[Point]) -> None:
        """Ask for int16 on activation points themselves."""
        for point in points:
            if point.role == "activation":
                self.tried.clear()
                self._raise(point)

    def _nearest(self, tensor: str) -> Iterator[Point]:
        """Yield the points a tensor comes from, operators that only move data looked through."""
        points = list(self.graph.activation_points(tensor))
        maker = self.graph.maker(tensor)
        if points:
            yield from points
        elif maker is not None and maker.op_type in CARRIERS | STAYING:
            for _, inner in self.graph.data_inputs(maker):
                yield from self._nearest(inner)

    def _fused_input(self, node: Node) -> str:
        """Return the input of an Add that comes straight from the convolution it is fused with."""
        for _, tensor in self.graph.data_inputs(node):
            if not self.graph.is_pointed(tensor):
                return tensor
        return ""

    def _raise(self, point: Point) -> bool:
        """Make a point int16 if its readers and its maker let it; return whether it is."""
        if point.name in self.outcome.int16:
            return True
        if point.name in self.outcome.gone or point.name in self.tried:
            return False
        self.tried.add(point.name)
        readers = self._readers(point)
        allowed = self._allowed(point)
        if allowed:
            self.outcome.int16.add(point.name)
            self._spread(self._source(point.input))
        for reader in readers:
            if allowed:
                self._note_unfused(reader)
            # A refused wish still goes on: a Concat behind can get int16 for its other inputs.
            if reader.op_type in SPREADING:
                for tensor in reader.outputs:
                    self._spread(tensor)
        return allowed

    def _readers(self, point: Point) -> list[Node]:
        """Return the nodes on the BPU that read a point."""
        readers = (reader for reader, _ in self.model.consuming_nodes(point))
        return [reader for reader in readers if reader.name not in self.outcome.cpu]

    def _source(self, tensor: str) -> str:
        """Return the tensor at the head of a chain of operators that move data without a point."""
        maker = self.model.producer_of.get(tensor)
        if isinstance(maker, Node) and maker.op_type in CARRIERS:
            inputs = [inner for _, inner in self.graph.data_inputs(maker)]
            if len(inputs) == 1 and not self.graph.is_pointed(inputs[0]):
                return self._source(inputs[0])
        return tensor

    def _behind(self, tensor: str) -> Iterator[Point]:
        """Yield the points that such chains lead to from a tensor."""
        for step, _ in self.model.consumers_of.get(tensor, ()):
            if isinstance(step, Point):
                yield step
            elif step.op_type in SPREADING and not self.graph.has_points(step):
                for inner in step.outputs:
                    yield from self._behind(inner)

    def _deciding(self, point: Point) -> list[str]:
        """Return the operators that decide a point's type, in graph order."""
        found = {
            reader.name: reader
            for end in self._behind(self._source(point.input))
            for reader in self._readers(end)
        }
        order = sorted(found.values(), key=lambda reader: self.order[reader.name])
        return [self._final(reader) for reader in order]

    def _final(self, reader: Node) -> str:
        """Return a reader's operator, or the int8-only one that it moves data to.

        Only where a point stands in between: MaxPool whose output GlobalAveragePool reads
        directly can be int16 (measured).
        """
        if reader.op_type not in CARRIERS:
            return reader.op_type
        behind = [
            step for out in reader.outputs for step, _ in self.model.consumers_of.get(out, ())
        ]
        only = {
            node.op_type
            for step in behind
            if isinstance(step, Point)
            for node, _ in self.model.consuming_nodes(step)
        }
        pointed = all(isinstance(step, Point) for step in behind)
        decided = pointed and len(only) == 1 and only <= self.int8_for_all
        return only.pop() if decided else reader.op_type

    def _allowed(self, point: Point) -> bool:
        """Whether readers and maker of a point let it become int16; asks the points in front."""
        maker = self.graph.maker(point.input)
        forced = maker is not None and self._forces(maker)
        if not forced and self._held_back(self._deciding(point)):
            if maker is not None and maker.op_type in HALFWAY:
                self._raise_behind(maker)
            return False
        return maker is None or self._raise_behind(maker)

    def _held_back(self, readers: list[str]) -> bool:
        """Whether an int8-only reader decides; it does unless a stronger one comes first."""
        for op in readers:
            if op in STRONG_READERS:
                return False
            if op in self.int8_for_all:
                return True
        return "ConvTranspose" in readers and all(
            op in CARRIERS | {"ConvTranspose"} for op in readers
        )

    def _forces(self, maker: Node) -> bool:
        if maker.op_type == "Relu":
            return self.graph.has_points(maker)
        return maker.op_type in FORCING_OUTPUT

    def _is_table(self, node: Node) -> bool:
        if node.op_type in TABLES | WILLING_TABLES:
            return True
        return node.op_type == "Relu" and self.graph.has_points(node)

    def _raise_behind(self, maker: Node) -> bool:
        """Let a maker's inputs follow its output; return whether the output can be int16."""
        op = maker.op_type
        inputs = [list(self._nearest(tensor)) for _, tensor in self.graph.data_inputs(maker)]
        points = [point for found in inputs for point in found]
        if op == "GlobalMaxPool":
            return False
        if op == "Resize" and not self._resize_passes(maker, points):
            return False
        if self._is_table(maker):
            for point in points:
                self._raise(point)
            return True
        if op in CARRIERS | STAYING or op == "Resize":
            raised = [self._raise(point) for point in points]
            return not points or any(raised)
        return True

    def _resize_passes(self, resize: Node, points: list[Point]) -> bool:
        """Whether a Resize hands a wish for int16 on to the points in front of it."""
        for point in points:
            maker = self.graph.maker(point.input)
            if point.name in self.outcome.int16:
                continue
            if maker is not None and self._is_table(maker):
                return False
            if any(reader.name != resize.name for reader, _ in self.model.consuming_nodes(point)):
                return False
        return True

    def _spread(self, tensor: str) -> None:
        """Raise the points behind a tensor."""
        for point in self._behind(tensor):
            self._raise(point)

    def _note_unfused(self, reader: Node) -> None:
        """Note what an int16 summand does to a convolution that the sum was fused with."""
        fused = self._fused_input(reader) if reader.op_type == "Add" else ""
        if fused:
            self.outcome.notes[
                f"{reader.name} is no longer fused with its convolution: the toolchain adds a "
                f"point on {fused}, which is not simulated"
            ] = None
