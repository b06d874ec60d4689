"""Which parts of the calibrated and of the integer model are to give the same tensor.

A unit is one node of the calibrated model, or several that the integer model computes as one (a
Conv with its Add and Relu), with the points behind it, and the integer nodes between the integers
that it reads and those that it gives: changes of steps and of layout included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.model import Node, Point
from hbdebug.results import NotAnalysed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hbdebug.lowering.graph import Lowered
    from hbdebug.lowering.writer import Tensor
    from hbdebug.model import Assignment, QuantModel

_IN_FLOAT = "not quantized: computed alike in both forms"
_LOST = "the integer model does not hold what it reads or gives as a tensor of its own"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Target:
    """A tensor that both forms give.

    Attributes:
        tensor: Its name in the calibrated model.
        held: How the integer model holds it.
        point: The point that gives it; None where no point is behind the node.
    """

    tensor: str
    held: Tensor
    point: Point | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Unit:
    """A part of the model that is compared alone.

    Attributes:
        nodes: Nodes of the calibrated model, in order.
        inputs: What the unit reads: tensors of the calibrated model -> how they are held.
        targets: What it gives.
        steps: Nodes of the integer model, in order.
        position: Index into ``model.steps`` behind which all of its tensors exist.
    """

    nodes: tuple[Node, ...]
    inputs: Mapping[str, Tensor]
    targets: tuple[Target, ...]
    steps: tuple[Node, ...]
    position: int

    @property
    def names(self) -> frozenset[str]:
        """Names of the calibrated nodes; the integer node that does the work has one of them."""
        return frozenset(node.name for node in self.nodes)

    @property
    def tensors(self) -> Iterator[str]:
        """The tensors of the calibrated model that it takes to compare the unit."""
        yield from self.inputs
        for target in self.targets:
            yield target.tensor
            if target.point is not None:
                yield target.point.input


def find_units(
    model: QuantModel, assignment: Assignment, lowered: Lowered
) -> tuple[tuple[Unit, ...], tuple[NotAnalysed, ...]]:
    """Pair the nodes of a calibrated model with those of its integer form.

    Args:
        model: The calibrated model.
        assignment: What is quantized.
        lowered: Its integer form.

    Returns:
        The units in graph order, and the nodes that cannot be compared, with the reason.
    """
    makers = {name: node for node in lowered.model.nodes for name in node.outputs if name}
    order = {node.name: index for index, node in enumerate(lowered.model.nodes)}
    units, left_out = [], []
    for node in model.nodes:
        if not any(name in lowered.tensors for name in node.outputs):
            continue  # It runs inside of another node, which is what has an output.
        if not all(lowered.tensors[name].bits for name in node.outputs if name in lowered.tensors):
            left_out.append(NotAnalysed(name=node.name, op_type=node.op_type, reason=_IN_FLOAT))
            continue
        unit = _unit(model, assignment, lowered, makers, order, node)
        if unit is None:
            left_out.append(NotAnalysed(name=node.name, op_type=node.op_type, reason=_LOST))
        else:
            units.append(unit)
    return tuple(units), tuple(left_out)


def _unit(
    model: QuantModel,
    assignment: Assignment,
    lowered: Lowered,
    makers: Mapping[str, Node],
    order: Mapping[str, int],
    last: Node,
) -> Unit | None:
    nodes = _fused(model, lowered, last)
    inner = {name for node in nodes for name in node.outputs}
    read = dict.fromkeys(
        name
        for node in nodes
        for name in node.inputs
        if name and name not in inner | model.static and name not in model.constants
    )
    inputs = {name: lowered.tensors[name] for name in read}
    if not all(held.bits for held in inputs.values()):
        return None
    outputs = {spec.name for spec in model.outputs}
    targets = tuple(
        target
        for name in last.outputs
        if name in model.consumers_of or name in outputs  # Others are not there in the walk.
        for target in _targets(model, assignment, lowered, name)
    )
    fed = {held.name for held in inputs.values()}
    found: dict[str, Node] = {}
    for target in targets:
        if not _collect(target.held.name, fed, makers, lowered, found):
            return None
    last_points = [target.point.name for target in targets if target.point is not None]
    return Unit(
        nodes=nodes,
        inputs=inputs,
        targets=targets,
        steps=tuple(sorted(found.values(), key=lambda node: order[node.name])),
        position=max(model.position_of[name] for name in (last.name, *last_points)),
    )


def _fused(model: QuantModel, lowered: Lowered, last: Node) -> tuple[Node, ...]:
    """Return a node with those in front of it that the integer model computes inside of it."""
    nodes = [last]
    for node in nodes:
        makers = (model.producer_of.get(name) for name in node.inputs if name)
        for maker in makers:
            inside = isinstance(maker, Node) and not any(
                name in lowered.tensors for name in maker.outputs
            )
            if inside and isinstance(maker, Node) and maker not in nodes:
                nodes.append(maker)
    return tuple(sorted(nodes, key=lambda node: model.position_of[node.name]))


def _targets(
    model: QuantModel, assignment: Assignment, lowered: Lowered, tensor: str
) -> Iterable[Target]:
    """Return the tensors behind the points that quantize one; itself where none does."""
    points = list(_quantizing(model, assignment, tensor))
    if not points or lowered.tensors[tensor].bits == 32:
        return [Target(tensor=tensor, held=lowered.tensors[tensor], point=None)]
    return [
        Target(tensor=point.output, held=lowered.tensors[point.output], point=point)
        for point in points
    ]


def _quantizing(model: QuantModel, assignment: Assignment, tensor: str) -> Iterator[Point]:
    for step, _ in model.consumers_of.get(tensor, ()):
        if isinstance(step, Point):
            if step.name in assignment:
                yield step
            else:
                yield from _quantizing(model, assignment, step.output)


def _collect(
    name: str,
    fed: set[str],
    makers: Mapping[str, Node],
    lowered: Lowered,
    found: dict[str, Node],
) -> bool:
    """Collect the integer nodes that lead from what is fed to a tensor; False if others do."""
    if not name or name in fed or name in lowered.model.constants:
        return True
    node = makers.get(name)
    if node is None or node.op_type == "HzQuantize":
        return False
    if node.name in found:
        return True
    found[node.name] = node
    return all(_collect(source, fed, makers, lowered, found) for source in node.inputs)
