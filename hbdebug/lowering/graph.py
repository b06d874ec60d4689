"""A calibrated model under an assignment, as the integer model that the converter would write.

Nodes have the vendor's names, operators, attributes and constants. Two things are its own: where
tensors change between channels-first and channels-last, and that operators that only move data
work channels-first, with the axes of the calibrated model. `hbdebug.lowering.layout` makes both
the vendor's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels import KERNELS
from hbdebug.lowering.curves import has_curve
from hbdebug.lowering.elementwise import BERNOULLI2
from hbdebug.lowering.fusion import (
    MOVERS,
    fusions,
    grid_point,
    has_form,
    reads_integers,
)
from hbdebug.lowering.image_nodes import ImageNodeLowering
from hbdebug.lowering.nodes import BITS
from hbdebug.lowering.placement import on_chip, outputs_in_float
from hbdebug.lowering.steps import same_step
from hbdebug.lowering.writer import CHANNELS_LAST, GraphWriter
from hbdebug.model import Assignment, IntegerModel, Node, Point
from hbdebug.quant import fake_quantize, float_passthrough
from hbdebug.samples import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from numpy.typing import NDArray

    from hbdebug.lowering.convolution import Derivation
    from hbdebug.lowering.writer import Shape, Tensor
    from hbdebug.model import QuantModel, Step
    from hbdebug.quant import QuantParams

_WITHOUT_GRID: Mapping[str, Callable[[ImageNodeLowering, Node, Point | None], None]] = {
    "ArgMax": ImageNodeLowering.largest_channel,
    "AveragePool": ImageNodeLowering.average_pool,
    "DepthToSpace": ImageNodeLowering.depth_to_space,
    "GlobalAveragePool": ImageNodeLowering.global_average,
    "GlobalMaxPool": ImageNodeLowering.global_max_pool,
    "HzChannelShuffle": ImageNodeLowering.channel_shuffle,
    "MatMul": ImageNodeLowering.matrix_product,
    "MaxPool": ImageNodeLowering.max_pool,
    "Min": ImageNodeLowering.minimum_of_two,
    "PRelu": ImageNodeLowering.prelu,
    "Pad": ImageNodeLowering.pad,
    "ReduceMax": ImageNodeLowering.maximum,
    "Resize": ImageNodeLowering.resize,
    "SpaceToDepth": ImageNodeLowering.space_to_depth,
    "TopK": ImageNodeLowering.top_k,
}
_WITH_GRID: Mapping[str, Callable[[ImageNodeLowering, Node, Point], None]] = {
    "Add": ImageNodeLowering.sum_of_two,
    "Concat": ImageNodeLowering.concatenation,
    "ConvTranspose": ImageNodeLowering.transposed_convolution,
    "HzPreprocess": ImageNodeLowering.colour_conversion,
    "Max": ImageNodeLowering.maximum_of_two,
    "Mul": ImageNodeLowering.multiplication,
    "ReduceMean": ImageNodeLowering.reduction,
    "ReduceSum": ImageNodeLowering.reduction,
    "Sub": ImageNodeLowering.sum_of_two,
}


MARCHES = frozenset({"bayes", "bayes-e", BERNOULLI2})
"""Marches whose integers are known."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Lowered:
    """An integer model with what it has to do with the calibrated one.

    Attributes:
        model: The integer model.
        tensors: How it holds the tensors of the calibrated model, by their names there; those
            inside a fused node are missing.
        convolutions: How each Conv and ConvTranspose was derived, by the name of the node.
    """

    model: IntegerModel
    tensors: Mapping[str, Tensor]
    convolutions: Mapping[str, Derivation]


def lower(
    model: QuantModel,
    assignment: Assignment,
    *,
    shapes: Mapping[str, Shape],
    march: str = "bayes-e",
) -> IntegerModel:
    """Derive the integer model.

    A node runs in integers if everything it reads is quantized and so is what it gives; of Conv,
    MatMul and GlobalAveragePool the output may also be an int32 sum. All others stay float,
    between HzDequantize and HzQuantize.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized, and how.
        shapes: Shapes of the calibrated model's tensors, where nodes run in integers.
        march: bayes, bayes-e or bernoulli2.

    Returns:
        The integer model, to be run like one that was read from a file.

    Raises:
        UnsupportedError: The march, or a node that the converter would run in integers, is not
            known here.
    """
    return lower_traced(model, assignment, shapes=shapes, march=march).model


def lower_traced(
    model: QuantModel,
    assignment: Assignment,
    *,
    shapes: Mapping[str, Shape],
    march: str = "bayes-e",
) -> Lowered:
    """Derive the integer model as `lower` does, and say where the calibrated one is in it."""
    check_known(march)
    writer = GraphWriter(shapes, march)
    return Lowered(
        model=_GraphLowering(model, assignment, writer).run(),
        tensors=writer.tensors,
        convolutions=writer.convolutions,
    )


def check_known(march: str) -> None:
    """Raise what `lower` raises for a march that it does not know.

    Raises:
        UnsupportedError: It does not know it.
    """
    if march not in MARCHES:
        raise UnsupportedError(
            f"the integers of march {march} are not known",
            hint=f"Those of {', '.join(sorted(MARCHES))} are. Models for J6 and S100 (nash) come "
            "from another toolchain.",
        )


class StepLowering:
    """Lowers the steps of a calibrated model, one at a time and in order.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized, and how.
        writer: Where nodes and constants go.
        nodes: The nodes that may become integer ones, to look for convolutions among.
    """

    def __init__(
        self,
        model: QuantModel,
        assignment: Assignment,
        writer: GraphWriter,
        nodes: Iterable[Node],
    ) -> None:
        assignment = on_chip(model, assignment, writer)
        self._outputs_in_float = outputs_in_float(model, writer)
        self._model = model
        self._assignment = assignment
        self._out = writer
        self._site = ImageNodeLowering(model, assignment, writer)
        self._fusions = fusions(model, assignment, nodes, writer)
        self._fused = {node.name for each in self._fusions.values() for node in each.nodes}

    def step(self, step: Step) -> None:
        """Write what a step becomes.

        Raises:
            UnsupportedError: It is not known.
        """
        if isinstance(step, Point):
            self._point(step)
        elif step.name in self._fusions:
            self._site.convolution(self._fusions[step.name])
        elif step.name not in self._fused:
            self._node(step)

    def float_node(self, node: Node) -> None:
        """Write a node that computes in float."""
        raise NotImplementedError

    def _point(self, point: Point) -> None:
        if point.output in self._model.static:
            return
        out = self._out
        source = out.held(point.input)
        params = self._assignment.get(point.name)
        if params is None:
            if point.params is not None and point.params.dequantize_scale is not None:
                raise UnsupportedError(
                    "a point that rescales channels cannot be put in float", where=point.name
                )
            out.tensors[point.output] = source
        else:
            out.tensors[point.output] = self._counted(point, params, source)
            if point.name in self._outputs_in_float:
                out.named_in_float(source.name, point.output)

    def _counted(self, point: Point, params: QuantParams, source: Tensor) -> Tensor:
        """Return what a point reads in the steps that it says."""
        out = self._out
        if params.dtype not in BITS or params.per_channel or params.zero_point.any():
            raise UnsupportedError(
                "only int8 and int16 activations with one scale and no zero point can be lowered",
                where=point.name,
            )
        bits, step = self._site.bits_and_step(point)
        if bits == 16 and out.march == BERNOULLI2:
            raise UnsupportedError(
                "there is no int16 on bernoulli2", where=point.name, hint="Use int8, or float."
            )
        step_name = f"{point.name}_y_scale"
        if source.bits == 32:
            source = replace(source, name=out.in_float(point.input), bits=0, last=False)
        if not source.bits:
            name = f"{point.output}_quantized"
            inputs = [source.name, out.constant(step_name, step)]
            node = f"{point.input}_{point.name}_HzQuantize"
            out.node(node, "HzQuantize", inputs, name, {"bits": bits})
            source = replace(source, name=name, bits=bits, step=step)
        elif source.bits != bits or not same_step(float(source.step[0]), float(step[0])):
            source = out.requantized(source, point.input, bits, step[0])
        return replace(source, step_name=step_name)

    def _in_integers(self, node: Node) -> bool:
        """Whether a node runs in integers by itself, not inside a Conv."""
        return self._quantized(node) and has_form(self._model, self._assignment, node, self._out)

    def _node(self, node: Node) -> None:
        grid = self._grid(node)
        if not self._in_integers(node):
            self.float_node(node)
        elif node.op_type in MOVERS:
            self._mover(node)
        elif node.op_type == "LeakyRelu" and self._out.march == BERNOULLI2:
            self._site.shifted_slope(node, grid)
        elif node.op_type in _WITHOUT_GRID:
            _WITHOUT_GRID[node.op_type](self._site, node, grid)
        elif grid is not None and node.op_type in _WITH_GRID:
            _WITH_GRID[node.op_type](self._site, node, grid)
        elif grid is not None and has_curve(node.op_type):
            self._site.table(node, grid)
        else:
            raise UnsupportedError(
                f"{node.op_type} runs in integers on the chip, which is not known here",
                where=node.name,
            )

    def _quantized(self, node: Node) -> bool:
        """Whether everything a node reads is quantized, but for its parameters."""
        return reads_integers(self._model, self._assignment, node, self._out)

    def _grid(self, node: Node) -> Point | None:
        return grid_point(self._model, self._assignment, node.outputs[0])

    def _mover(self, node: Node) -> None:
        source = self._out.turned(self._out.tensors[node.inputs[0]], last=False, by=node.name)
        names = [f"{output}_quantized" for output in node.outputs]
        inputs = [source.name, *node.inputs[1:]]
        self._out.stock(node.name, node.op_type, inputs, names, node.attributes)
        for output, name in zip(node.outputs, names, strict=True):
            read = output in self._model.consumers_of or self._is_output(output)
            # Of an output that nobody reads, the walk does not know the shape.
            shape = self._out.shape(output) if read else ()
            self._out.tensors[output] = replace(source, name=name, shape=shape)

    def _is_output(self, tensor: str) -> bool:
        return any(spec.name == tensor for spec in self._model.outputs)

    def float_source(self, node: Node, index: int) -> str:
        """Return the tensor that a float node reads as an input.

        Where it reads around points, it is what lies in front of them; that, too, is counted in
        integers if an integer node makes it.
        """
        source = node.inputs[index]
        around = (node.name, index) in self._assignment.bypassed
        return self._model.in_front_of_points(source) if around else source


class _GraphLowering(StepLowering):
    """Lowers a whole model to one graph."""

    def __init__(self, model: QuantModel, assignment: Assignment, writer: GraphWriter) -> None:
        super().__init__(model, assignment, writer, model.nodes)
        self._pixels: dict[str, TensorSpec] = {}

    def run(self) -> IntegerModel:
        """Return the graph."""
        model, out = self._model, self._out
        for step in model.steps:
            self.step(step)
        for spec in model.outputs:
            held = out.in_float(spec.name)
            if held != spec.name:  # The output of a point that is not quantized.
                out.named_in_float(held, spec.name)
        return IntegerModel(
            path=model.path,
            sha256=model.sha256,
            kind="lowered from calibrated",
            producer=model.producer,
            opset=model.opset,
            inputs=tuple(self._pixels.get(spec.name, spec) for spec in model.inputs),
            outputs=model.outputs,
            steps=tuple(out.nodes),
            constants={**model.constants, **out.constants},
        )

    def _point(self, point: Point) -> None:
        if point.name in self._assignment and self._gives_pixels(point):
            self._out.tensors[point.output] = self._as_pixels(point)
        else:
            super()._point(point)

    def _gives_pixels(self, point: Point) -> bool:
        """Whether a point is between an image that comes in and its colour conversion alone."""
        readers = self._model.consumers_of.get(point.output, ())
        return (
            bool(readers)
            and any(spec.name == point.input for spec in self._model.inputs)
            and len(self._model.consumers_of[point.input]) == 1
            and all(
                isinstance(step, Node)
                and step.op_type == "HzPreprocess"
                and self._in_integers(step)
                for step, _ in readers
            )
        )

    def _as_pixels(self, point: Point) -> Tensor:
        """Let an image come in as integers, as the chip reads it; nothing quantizes it then."""
        source = self._out.held(point.input)
        bits, step = self._site.bits_and_step(point)
        last = self._out.march == BERNOULLI2
        shape = tuple(source.shape[axis] for axis in CHANNELS_LAST) if last else source.shape
        self._pixels[source.name] = TensorSpec(name=source.name, dtype=f"int{bits}", shape=shape)
        name = f"{point.name}_y_scale"
        return replace(source, bits=bits, step=step, step_name=name, last=last)

    def float_node(self, node: Node) -> None:
        """Keep a node in float."""
        renamed = {
            name: self._float_name(self.float_source(node, index))
            for index, name in enumerate(node.inputs)
            if name
        }
        # A few operators, such as HzPad, have one name in float and in integers. Only the body
        # says what the float one computes, and it is stock.
        domain = "" if (node.domain, node.op_type) in KERNELS else node.domain
        self._out.nodes.append(replace(node.reading(renamed), domain=domain, quick=()))
        for name in node.outputs:
            self._out.keep_float(name)

    def _float_name(self, tensor: str) -> str:
        if tensor in self._model.static:
            return self._out.constant(tensor, self._static_value(tensor))
        return self._out.in_float(tensor)

    def _static_value(self, tensor: str) -> NDArray[np.float32]:
        """Return a weight as a float node reads it: on its grid, if its point is quantized."""
        if tensor not in self._model.static:
            return np.asarray(self._model.constants[tensor], np.float32)
        point = self._model.producer_of[tensor]
        assert isinstance(point, Point)
        values = self._static_value(point.input)
        params = self._assignment.get(point.name)
        if params is not None:
            return fake_quantize(values, params)
        return values if point.params is None else float_passthrough(values, point.params)
