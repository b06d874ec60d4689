"""What two exports of one network have in common: its weighted operators, and how they follow.

Exporters and optimizers rename, reorder, fuse, decompose and fold; convolutions, matrix products,
embeddings and recurrent layers stay. Those, with the graph's ends, are the *anchors* of a
skeleton, and everything else is only a way from anchors to anchors: an activation in one operator
or in five gives the same skeleton.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.loading.graph import in_order
from hbdebug.loading.held import Held, computed, moved, numeric
from hbdebug.model import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[Any]

_CONVOLUTIONS = {
    "Conv": "Conv",
    "ConvTranspose": "ConvTranspose",
    "FusedConv": "Conv",
}
# Further operators with weights -> the input that is the weight.
_OTHERS = {"Attention": 1, "GRU": 1, "Gather": 0, "LSTM": 1, "RNN": 1}
_PRODUCTS = frozenset({"FusedGemm", "FusedMatMul", "Gemm", "MatMul", "TransposeMatMul"})
# Operators that multiply and add at their end, in one piece here and in several there.
_OPERANDS = {
    **{
        (op_type, index): operator
        for op_type in (
            "GroupNormalization",
            "InstanceNormalization",
            "LayerNormalization",
            "RMSNormalization",
            "SimplifiedLayerNormalization",
        )
        for index, operator in ((1, "Mul"), (2, "Add"))
    },
    ("BiasGelu", 1): "Add",
    ("SkipLayerNormalization", 2): "Mul",
    ("SkipLayerNormalization", 3): "Add",
    ("SkipLayerNormalization", 4): "Add",
    ("SkipSimplifiedLayerNormalization", 2): "Mul",
}
# They tell the size of a tensor and nothing of its values.
_SIZES = frozenset({"Shape", "Size"})
# Operators behind which the values, and the axis of the channels, are where they were.
_PASSING = frozenset({"Cast", "Dropout", "Identity"})
# The same for a matrix product, whose channels are on the last axis.
_PASSING_LAST = _PASSING | {"Reshape", "Squeeze", "Unsqueeze"}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Site:
    """A place where a node reads a float constant.

    Attributes:
        node: The node.
        index: Which input.
        kind: Operator, in words that both graphs share, and what the constant is in it.
        held: The constant as it is read, in the layout that both graphs share.
        above: Anchors that the node's other inputs depend on; for a constant of an anchor, it.
        below: Anchors that depend on the node.
    """

    node: Node
    index: int
    kind: str
    held: Held
    above: frozenset[int]
    below: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Affine:
    """What follows an anchor, as one multiplication and one addition for each channel.

    Attributes:
        scale: Shape ``(channels,)``, float64; None where nothing is multiplied.
        shift: Shape ``(channels,)``, float64: the whole bias up to here.
        through: Names of the nodes that bring it about, in order.
        constants: Constants that are added here, by the name of the node that adds them.
    """

    scale: Array | None
    shift: Array
    through: tuple[str, ...] = ()


@dataclass(kw_only=True, slots=True, eq=False)
class Anchor:
    """A weighted operator, or an end of the graph.

    Attributes:
        kind: Like `Site.kind`; of an end, which it is.
        weight: Where it reads its weight; None for an end.
        channel_axis: Axis of the weight that the output channels are on; None without any.
        group: Groups of a ConvTranspose, whose channels run over two axes; 1 otherwise.
        behind: Axes behind that of the channels in what it makes.
        above: The next anchors on the ways up.
        below: The next anchors on the ways down.
        affine: What follows, step by step; the first entry is the operator alone.
        added: Sites of the constants that its bias is made of: its own, and those added behind.
    """

    kind: str
    weight: Site | None = None
    channel_axis: int | None = None
    group: int = 1
    behind: int = 0
    above: frozenset[int] = frozenset()
    below: frozenset[int] = frozenset()
    affine: list[Affine] = field(default_factory=list)
    added: list[Site] = field(default_factory=list)

    @property
    def channels(self) -> int:
        """Number of output channels; 0 without any."""
        if self.weight is None or self.channel_axis is None:
            return 0
        return int(self.weight.held.values.shape[self.channel_axis]) * self.group

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others without looking at values or neighbours."""
        shape = () if self.weight is None else self.weight.held.values.shape
        return (self.kind, shape, self.group)

    def scaled(self, scale: Array | None) -> Array:
        """Return the weight times a factor for each output channel."""
        assert self.weight is not None
        values = self.weight.held.values
        if scale is None:
            return values
        assert self.channel_axis is not None
        spread = [1] * values.ndim
        spread[self.channel_axis] = -1
        if self.group == 1:
            return np.asarray(values * scale.reshape(spread), np.float32)
        parted = values.reshape(self.group, -1, *values.shape[1:])
        factors = scale.reshape(self.group, 1, -1, *(1,) * (values.ndim - 2))
        return np.asarray((parted * factors).reshape(values.shape), np.float32)


class Skeleton:
    """The anchors of a graph, and every place where it reads a float constant.

    Args:
        nodes: The nodes in any order, without points.
        constants: Values by tensor name.
        inputs: Graph inputs.
        outputs: Graph outputs.

    Attributes:
        anchors: Anchors in topological order: inputs first, outputs last.
        sites: Places other than the anchors' weights.

    Raises:
        ModelError: The graph has a cycle, or reads what nothing makes.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        constants: Mapping[str, Array],
        inputs: Sequence[str],
        outputs: Sequence[str],
    ) -> None:
        steps = in_order(nodes, inputs, constants)
        self._nodes = [step for step in steps if isinstance(step, Node)]
        self._constants = constants
        self._outputs = frozenset(outputs)
        self._held = {
            name: Held(constant=name, values=values)
            for name, values in constants.items()
            if values.dtype.kind == "f" or values.dtype.name == "bfloat16"
        }
        self.anchors: list[Anchor] = [Anchor(kind=f"input {index}") for index in range(len(inputs))]
        self.sites: list[Site] = []
        # Sets of anchors are kept as bits of one number, which makes a union one operation.
        self._above = {name: 1 << index for index, name in enumerate(inputs)}
        self._below: dict[str, int] = {}
        self._moves: set[int] = set()
        self._anchor_of: dict[int, int] = {}
        self._readers: dict[str, list[Node]] = {}
        self._site_at: dict[tuple[int, int], Site] = {}
        self._look_down()
        for index, name in enumerate(outputs):
            self._below[name] = self._below.get(name, 0) | 1 << len(self.anchors)
            above = _bits(self._above.get(name, 0))
            self.anchors.append(Anchor(kind=f"output {index}", above=above))
        self._look_up()
        self._find_sites()
        for number in self._anchor_of.values():
            self._follow(number)

    def _look_down(self) -> None:
        """Go through the graph once, from the inputs: constants behind moves, and anchors."""
        for position, node in enumerate(self._nodes):
            for name in filter(None, node.inputs):
                self._readers.setdefault(name, []).append(node)
            held = moved(node, self._held, self._constants)
            if held is not None:
                self._held[node.outputs[0]] = held
                self._moves.add(position)
                continue
            held = computed(node, self._held, self._constants)
            if held is not None:
                self._held[node.outputs[0]] = held
            above = 0
            if node.op_type not in _SIZES:
                for name in node.inputs:
                    above |= self._above.get(name, 0)
            anchor = self._anchor(node)
            if anchor is not None:
                anchor.above = _bits(above)
                self._anchor_of[position] = len(self.anchors)
                above = 1 << len(self.anchors)
                self.anchors.append(anchor)
            for name in filter(None, node.outputs):
                self._above[name] = above

    def _look_up(self) -> None:
        """Go through the graph once, from the outputs: what is below."""
        for position in reversed(range(len(self._nodes))):
            node = self._nodes[position]
            below = 0
            for name in node.outputs:
                below |= self._below.get(name, 0)
            number = self._anchor_of.get(position)
            if number is not None:
                self.anchors[number].below = _bits(below)
                below = 1 << number
            if node.op_type in _SIZES:
                continue
            for name in filter(None, node.inputs):
                self._below[name] = self._below.get(name, 0) | below
        for number, anchor in enumerate(self.anchors):
            for other in anchor.above:
                if self.anchors[other].weight is None:
                    self.anchors[other].below |= {number}

    def _anchor(self, node: Node) -> Anchor | None:
        """Return the anchor that a node is, if it is one."""
        if node.op_type in _CONVOLUTIONS:
            return self._convolution(node)
        if node.op_type in _PRODUCTS:
            return self._product(node)
        index = _OTHERS.get(node.op_type)
        held = None if index is None else self._read(node, index)
        if held is None or index is None:
            return None
        return self._weighted(node, index, node.op_type, held, None)

    def _convolution(self, node: Node) -> Anchor | None:
        held = self._read(node, 1)
        kind = _CONVOLUTIONS[node.op_type]
        transposed = kind == "ConvTranspose"
        group = int(numeric(node, "group", 1)) if transposed else 1
        if held is None or held.values.ndim < 3 or group < 1 or held.values.shape[0] % group:
            return None
        behind = held.values.ndim - 2
        pointwise = not transposed and set(held.values.shape[2:]) == {1}
        if pointwise and numeric(node, "group", 1) == 1:
            # A matrix product at every place; some toolchains make one of the other.
            held = held.reshaped(held.values.shape[:2]).transposed((1, 0))
            return self._weighted(node, 1, "product", held, 1, behind=behind)
        return self._weighted(node, 1, kind, held, int(transposed), group, behind=behind)

    def _product(self, node: Node) -> Anchor | None:
        for index, letter, kind in ((1, "B", "product"), (0, "A", "product from the left")):
            held = self._read(node, index)
            if held is None or held.values.ndim < 2:
                continue
            if numeric(node, f"trans{letter}", 0):
                axes = (*range(held.values.ndim - 2), held.values.ndim - 1, held.values.ndim - 2)
                held = held.transposed(axes)
            axis = held.values.ndim - 1 if index == 1 and held.values.ndim == 2 else None
            return self._weighted(node, index, kind, held, axis)
        return None

    def _weighted(
        self,
        node: Node,
        index: int,
        kind: str,
        held: Held,
        axis: int | None,
        group: int = 1,
        *,
        behind: int = 0,
    ) -> Anchor:
        nothing: frozenset[int] = frozenset()
        site = Site(node=node, index=index, kind=kind, held=held, above=nothing, below=nothing)
        return Anchor(kind=kind, weight=site, channel_axis=axis, group=group, behind=behind)

    def _read(self, node: Node, index: int) -> Held | None:
        return self._held.get(node.inputs[index]) if index < len(node.inputs) else None

    def _find_sites(self) -> None:
        for position, node in enumerate(self._nodes):
            if position in self._moves:
                continue
            number = self._anchor_of.get(position)
            for index, name in enumerate(node.inputs):
                held = self._held.get(name)
                if held is None:
                    continue
                if number is not None:
                    anchor = self.anchors[number]
                    if anchor.weight is not None and anchor.weight.index == index:
                        continue
                    above, below = frozenset({number}), anchor.below
                    added = anchor.channel_axis is not None and index == 2
                    kind = "bias" if added else f"{anchor.kind} input {index}"
                else:
                    above = _bits(self._union(self._above, node.inputs))
                    below = _bits(self._union(self._below, node.outputs))
                    kind = _kind(node, index)
                site = Site(node=node, index=index, kind=kind, held=held, above=above, below=below)
                self.sites.append(site)
                self._site_at[id(node), index] = site
                if kind == "bias" and number is not None:
                    self.anchors[number].added.append(site)

    @staticmethod
    def _union(masks: Mapping[str, int], names: Sequence[str]) -> int:
        found = 0
        for name in names:
            found |= masks.get(name, 0)
        return found

    def _follow(self, number: int) -> None:
        """Collect what follows an anchor and could be folded into its weight and bias."""
        anchor = self.anchors[number]
        if not anchor.channels:
            return
        assert anchor.weight is not None
        node = anchor.weight.node
        scale: Array | None = None
        shift = np.zeros(anchor.channels)
        if anchor.added:
            own = _per_channel(anchor.added[0].held.values, anchor, anywhere=True)
            if own is None:
                return
            shift = shift + own * numeric(node, "beta", 1.0)
        alpha = numeric(node, "alpha", 1.0)
        anchor.affine.append(Affine(scale=None, shift=shift))
        if node.op_type in _PRODUCTS and alpha != 1.0:
            scale = np.full(anchor.channels, alpha)
            anchor.affine.append(Affine(scale=scale, shift=shift))
        through: tuple[str, ...] = ()
        for follower in self._chain(node, anchor):
            step = self._step(follower, anchor)
            if step is None:
                return
            factor, summand = step
            if factor is not None:
                scale = factor if scale is None else scale * factor
                shift = shift * factor
            shift = shift + summand
            through = (*through, follower.name)
            anchor.affine.append(Affine(scale=scale, shift=shift, through=through))

    def _chain(self, node: Node, anchor: Anchor) -> Iterator[Node]:
        """Yield the nodes behind an anchor for as long as there is only one way."""
        passing = _PASSING if anchor.behind else _PASSING_LAST
        while True:
            if not node.outputs:
                return
            tensor = node.outputs[0]
            readers = [item for item in self._readers.get(tensor, []) if item.op_type not in _SIZES]
            if len(readers) != 1 or tensor in self._outputs:
                return
            node = readers[0]
            if node.op_type in passing and node.inputs[0] == tensor:
                continue
            yield node

    def _step(self, node: Node, anchor: Anchor) -> tuple[Array | None, Array] | None:
        """Return what a node multiplies with and adds; None where it does something else."""
        held = [self._held.get(name) for name in node.inputs]
        if node.op_type == "BatchNormalization":
            return _normalization(node, held, anchor)
        if node.op_type not in ("Add", "Div", "Mul", "Sub") or len(held) != 2:
            return None
        index = 0 if held[0] is not None else 1
        operand = held[index]
        # A constant minus, or divided by, what comes in is no such step.
        backward = index == 0 and node.op_type in ("Div", "Sub")
        value = None if operand is None or backward else _per_channel(operand.values, anchor)
        if value is None:
            return None
        if node.op_type == "Add":
            anchor.added.append(self._site_at[id(node), index])
        if node.op_type in ("Add", "Sub"):
            return None, value if node.op_type == "Add" else -value
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = value if node.op_type == "Mul" else 1 / value
        return factor, np.zeros(anchor.channels)


def _kind(node: Node, index: int) -> str:
    """Return what a constant is for a node that is no anchor."""
    # An operand may stand on either side.
    if node.op_type in ("Add", "Mul"):
        return node.op_type
    return _OPERANDS.get((node.op_type, index), f"{node.op_type} input {index}")


def _normalization(
    node: Node, held: Sequence[Held | None], anchor: Anchor
) -> tuple[Array, Array] | None:
    """Return what a BatchNormalization multiplies with and adds."""
    values = [
        None if item is None else _per_channel(item.values, anchor, anywhere=True)
        for item in held[1:5]
    ]
    if len(values) < 4 or any(item is None for item in values):
        return None
    gamma, beta, mean, variance = (np.asarray(item) for item in values)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = gamma / np.sqrt(variance + numeric(node, "epsilon", 1e-5))
    return factor, beta - mean * factor


def _per_channel(values: Array, anchor: Anchor, *, anywhere: bool = False) -> Array | None:
    """Return an operand with one value for each channel of an anchor; None if it is not one.

    Args:
        values: The operand.
        anchor: Whose output it meets.
        anywhere: Whether the channels may be on any axis, as those of a bias are.
    """
    count = anchor.channels
    if values.size == 1:
        return np.full(count, float(values.reshape(())))
    if values.size != count:
        return None
    at = values.ndim - 1 - anchor.behind
    if not anywhere and (at < 0 or values.shape[at] != count):
        return None
    return values.reshape(-1).astype(np.float64)


def _bits(mask: int) -> frozenset[int]:
    """Return the numbers of the bits that are set."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return frozenset(found)
