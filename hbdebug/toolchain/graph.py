"""Lookups around points, and the record that the rules fill."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from hbdebug.model import Node, Point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hbdebug.model import QuantModel

Target: TypeAlias = Literal["int16", "cpu"]


@dataclass(kw_only=True, slots=True)
class Outcome:
    """What a set of settings comes to. Filled by the rules.

    Attributes:
        cpu: Nodes on the CPU, those that went along included.
        gone: Points that are float.
        int16: Points that are int16.
        bypassed: Inputs that read the tensor in front of a point.
        wishes: Tensors whose points become int16 at the end of the BPU's part.
        notes: What follows no measured rule, in order.
    """

    cpu: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    int16: set[str] = field(default_factory=set)
    bypassed: set[tuple[str, int]] = field(default_factory=set)
    wishes: set[str] = field(default_factory=set)
    notes: dict[str, None] = field(default_factory=dict)


class Graph:
    """Lookups around points that both sets of rules need."""

    def __init__(self, model: QuantModel) -> None:
        self.model = model

    def activation_points(self, tensor: str) -> Iterator[Point]:
        """Yield the activation points that a reader of a tensor reads through, nearest first."""
        step = self.model.producer_of.get(tensor)
        while isinstance(step, Point):
            if step.role == "activation":
                yield step
            step = self.model.producer_of.get(step.input)

    def maker(self, tensor: str) -> Node | None:
        """Return the node that computes a tensor, points in between looked through."""
        step = self.model.producer_of.get(tensor)
        while isinstance(step, Point):
            step = self.model.producer_of.get(step.input)
        return step

    def data_inputs(self, node: Node) -> list[tuple[int, str]]:
        """Return index and tensor of the inputs that are not plain constants."""
        return [
            (index, tensor)
            for index, tensor in enumerate(node.inputs)
            if tensor and not self._is_weight(tensor)
        ]

    def _is_weight(self, tensor: str) -> bool:
        """Whether a tensor is a plain constant, or one behind a weight point."""
        step = self.model.producer_of.get(tensor)
        if isinstance(step, Point):
            return step.role == "weight"
        return tensor in self.model.constants

    def is_pointed(self, tensor: str) -> bool:
        """Whether a tensor is read through an activation point."""
        return next(self.activation_points(tensor), None) is not None

    def has_points(self, node: Node) -> bool:
        """Whether any input is read through an activation point."""
        return any(self.is_pointed(tensor) for tensor in node.inputs if tensor)

    def raw(self, tensor: str) -> str:
        """Return the tensor in front of all points in series."""
        step = self.model.producer_of.get(tensor)
        while isinstance(step, Point):
            tensor = step.input
            step = self.model.producer_of.get(tensor)
        return tensor
