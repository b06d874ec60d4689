"""How single nodes become integer nodes: their numbers, under the vendor's names of attributes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.lowering.convolution import convolution, convolution_sums
from hbdebug.lowering.elementwise import (
    matrix_product,
    product_step,
)
from hbdebug.lowering.fusion import grid_point, quantizing_point
from hbdebug.lowering.parameters import reduced_axes
from hbdebug.lowering.reduction import reduction, sum_step
from hbdebug.lowering.steps import constant_steps, same_step, step_of_threshold
from hbdebug.lowering.writer import (
    CHANNELS_LAST,
    Tensor,
    convolution_attributes,
    residual_attributes,
)
from hbdebug.model import Point

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hbdebug.lowering.fusion import Fusion
    from hbdebug.lowering.mantissa import Rescale
    from hbdebug.lowering.writer import Attributes, GraphWriter
    from hbdebug.model import Assignment, Node, QuantModel

BITS = {"int8": 8, "int16": 16}
"""Widths of the types that activations are lowered to."""

TYPES = {8: np.int8, 16: np.int16}
"""NumPy types of these widths."""


class NodeLowering:
    """Writes integer nodes. A method takes one node whose inputs are integers.

    ``grid`` is the point that says in which steps the output is counted.

    Args:
        model: The calibrated model.
        assignment: Which points are quantized, and how.
        writer: Where nodes and constants go.
    """

    def __init__(self, model: QuantModel, assignment: Assignment, writer: GraphWriter) -> None:
        self._model = model
        self._assignment = assignment
        self._out = writer

    def concatenation(self, node: Node, grid: Point) -> None:
        """Count every operand in the steps of the output first."""
        bits, step = self.bits_and_step(grid)
        inputs = []
        for name in node.inputs:
            if name in self._model.static:
                inputs.append(self._constant_part(node, name, bits, step))
                continue
            operand = self.counted_in(name, bits, step)
            inputs.append(self._out.turned(operand, last=False, by=node.name).name)
        (output,) = node.outputs
        name = f"{output}_quantized"
        self._out.stock(node.name, node.op_type, inputs, [name], node.attributes)
        self._out.tensors[output] = Tensor(
            name=name,
            shape=self._out.shape(output),
            bits=bits,
            step=step,
            step_name=f"{grid.name}_y_scale",
        )

    def _constant_part(self, node: Node, name: str, bits: int, step: NDArray[np.float32]) -> str:
        """Return the constant part of a Concat in the steps of the output."""
        point = self._model.producer_of[name]
        if not isinstance(point, Point) or point.input not in self._model.constants:
            raise UnsupportedError("only a constant behind one point is joined", where=node.name)
        values = self._model.constants[point.input]
        integers = constant_steps(values, float(step[0]), bits).astype(TYPES[bits])
        return self._out.constant(f"{node.name}_{point.input}_quantized", integers)

    def counted_in(self, name: str, bits: int, step: NDArray[np.float32]) -> Tensor:
        """Return a tensor in the steps wanted; write the change of steps that it takes."""
        held = self._out.tensors[name]
        if held.bits == bits and same_step(float(held.step[0]), float(step[0])):
            return held
        return self._out.requantized(held, name, bits, step[0])

    def convolution(self, fusion: Fusion) -> None:
        """Derive a Conv with its Relu and residual Add."""
        node, out = fusion.convolution, self._out
        x = self._convolved(node)
        weight, threshold, weight_name = self.weight(node)
        name = node.inputs[2] if len(node.inputs) > 2 else ""
        bias = np.asarray(self._model.constants[name], np.float32) if name else None
        attributes: Attributes = dict(node.attributes)
        attributes["weight_thresholds"] = threshold.astype(float).tolist()
        if fusion.relu:
            attributes["activation"] = "relu"
        source = out.tensors[node.inputs[0]]
        if source.bits != x.bits:
            # For the record only: what the int16 step amounts to, not the one computed with.
            attributes["input_scales"] = [float(np.float32(float(source.step[0]) * 32767 / 127))]
        grid = grid_point(self._model, self._assignment, fusion.output)
        residual = self._residual(fusion)
        residual_step = None if residual is None else float(residual.step[0])
        if grid is None:
            x_step = float(x.step[0])
            sums = out.once(
                (node.name, threshold.tobytes(), x_step, residual_step),
                lambda: convolution_sums(
                    weight,
                    bias,
                    threshold=threshold,
                    input_step=x_step,
                    residual_step=residual_step,
                    march=out.march,
                ),
            )
            out.record(node, weight, bias, threshold, x, sums)
            inputs = [x.name, out.constant(weight_name, np.moveaxis(sums.weight, 1, -1))]
            if sums.bias is not None:
                inputs += out.bias_constants(f"{node.name}_{name}", sums.bias, sums.bias_shift)
            if residual is not None:
                inputs += [""] * (4 - len(inputs)) + [residual.name]
            attributes["use_bias"] = int(sums.bias is not None)
            attributes |= {"output_bit": 32, "high_precision_output": 1, "data_format": "NHWC"}
            attributes |= residual_attributes(sums.residual)
            self._write_sums(
                node, "HzSQuantizedConv", inputs, attributes, sums.step, output=fusion.output
            )
            return
        bits, step = self._convolution_output(node, grid)
        steps = (float(x.step[0]), float(step[0]))
        found = out.once(
            (node.name, threshold.tobytes(), *steps, x.bits, bits, residual_step),
            lambda: convolution(
                weight,
                bias,
                threshold=threshold,
                input_step=steps[0],
                output_step=steps[1],
                input_bits=x.bits,
                output_bits=bits,
                residual_step=residual_step,
                march=out.march,
            ),
        )
        out.record(node, weight, bias, threshold, x, found, (bits, step))
        inputs = [x.name, out.constant(weight_name, np.moveaxis(found.weight, 1, -1))]
        bias_name = f"{node.name}_{name or 'rounding_bias'}"
        inputs += out.bias_constants(bias_name, found.bias, found.bias_shift)
        if residual is not None:
            inputs.append(residual.name)
        attributes |= convolution_attributes(found, bits)
        self.write(
            node, "HzSQuantizedConv", inputs, attributes, grid, output=fusion.output, bits=bits
        )

    def _residual(self, fusion: Fusion) -> Tensor | None:
        """Return the operand that is added to the accumulator, if there is one."""
        if fusion.residual is None:
            return None
        add = fusion.nodes[1]
        if add.inputs[fusion.residual] in self._model.static:
            return self.constant_operand(
                add, fusion.residual, fusion.convolution.name, 4, last=True
            )
        return self.operand(add, fusion.residual)

    def _convolution_output(self, node: Node, grid: Point) -> tuple[int, NDArray[np.float32]]:
        """Return width and step of what a Conv gives: a dilated one gives int8 only."""
        if any(size > 1 for size in node.attributes.get("dilations", ())):
            return 8, self.step_in(grid, 8)
        return self.bits_and_step(grid)

    def global_average(self, node: Node, grid: Point | None) -> None:
        """Derive a GlobalAveragePool; without grid it gives int32 sums."""
        x = self.int8_operand(node, 0)
        count = int(np.prod(x.shape[2:]))
        op_type = "HzSQuantizedGlobalAveragePool"
        attributes: Attributes = {"data_format": "NHWC"}
        if grid is None:
            attributes["output_bit"] = 32
            step = np.array([sum_step(float(x.step[0]), count)])
            name = f"{node.name}output_scale"
            self._write_sums(node, op_type, [x.name], attributes, step, step_name=name)
            return
        bits, step = self.bits_and_step(grid)
        rescale = reduction(float(x.step[0]), float(step[0]), count=count, output_bits=bits)
        attributes |= rescale_attributes(rescale, x.shape[1])
        attributes |= {"rounding_method": "ROUND", "output_bit": bits}
        self.write(node, op_type, [x.name], attributes, grid)

    def reduction(self, node: Node, grid: Point) -> None:
        """Derive a ReduceMean or ReduceSum."""
        source = self._out.tensors[node.inputs[0]]
        axes = reduced_axes(self._model, node, len(source.shape))
        bits, step = self.bits_and_step(grid)
        if len(axes) != 1 or not node.attributes.get("keepdims", 1) or source.bits > bits:
            raise UnsupportedError(
                f"only a {node.op_type} over one axis that it keeps, to no narrower integers, "
                "runs in integers",
                where=node.name,
            )
        x = self.operand(node, 0)
        count = x.shape[axes[0]] if node.op_type == "ReduceMean" else 1
        rescale = reduction(float(x.step[0]), float(step[0]), count=count, output_bits=bits)
        channels = x.shape[1] if x.last else x.shape[-1]
        attributes: Attributes = {
            "axis": CHANNELS_LAST.index(axes[0]) if x.last else axes[0],
            "output_bit": bits,
            **rescale_attributes(rescale, channels, names=("scale", "out_shift")),
        }
        self.write(node, f"HzSQuantized{node.op_type}", [x.name], attributes, grid)

    def matrix_product(self, node: Node, grid: Point | None) -> None:
        """Derive a MatMul of two activations; without grid it gives int32 sums."""
        operands = [
            self._out.turned(self.int8_operand(node, index), last=False, by=node.name)
            for index in (0, 1)
        ]
        inputs = [operand.name for operand in operands]
        first, second = (float(operand.step[0]) for operand in operands)
        if grid is None:
            step = np.array([product_step(first, second)])
            self._write_sums(
                node, "HzSQuantizedMatmul", inputs, {"output_bit": 32}, step, turned=False
            )
            return
        bits, step = self.bits_and_step(grid)
        rescale = matrix_product(first, second, float(step[0]), output_bits=bits).rescale
        attributes: Attributes = {
            "output_bit": bits,
            "right_shift": [int(rescale.accumulator_shift)],
            "scale": [int(rescale.multiplier)],
            "out_shift": [int(rescale.output_shift)],
            "rounding_method": "ROUND",
        }
        self.write(node, "HzSQuantizedMatmul", inputs, attributes, grid, turned=False)

    def maximum(self, node: Node, _grid: Point | None) -> None:
        """Derive a ReduceMax, which keeps the steps of its input."""
        x = self.operand(node, 0)
        axes = reduced_axes(self._model, node, len(x.shape))
        if len(axes) != 1 or not node.attributes.get("keepdims", 1):
            raise UnsupportedError(
                "only a ReduceMax over one axis that it keeps runs in integers", where=node.name
            )
        (output,) = node.outputs
        name = f"{output}_quantized"
        axis = CHANNELS_LAST.index(axes[0]) if x.last else axes[0]
        attributes: Attributes = {"axis": axis, "output_bit": x.bits}
        self._out.node(node.name, "HzQuantizedReduceMax", [x.name], name, attributes)
        self._out.tensors[output] = replace(x, name=name, shape=self._out.shape(output))

    def quantizing_point(self, node: Node, index: int) -> Point | None:
        """Return the point in whose integers a node reads an input; None if it is float."""
        return quantizing_point(self._model, self._assignment, node, index, self._out)

    def bits_and_step(self, point: Point) -> tuple[int, NDArray[np.float32]]:
        """Return how wide the integers of a point are, and their step, ``(1,)``.

        Raises:
            UnsupportedError: No integer model has a point like this.
        """
        params = self._assignment[point.name]
        if params.dtype not in BITS or params.per_channel or params.zero_point.any():
            raise UnsupportedError(
                "only int8 and int16 activations with one scale and no zero point can be lowered",
                where=point.name,
            )
        return BITS[params.dtype], params.scale.reshape(1)

    def step_in(self, point: Point, bits: int) -> NDArray[np.float32]:
        """Return the step of a point, ``(1,)``, for an operator that uses another width."""
        own_bits, step = self.bits_and_step(point)
        if own_bits == bits:
            return step
        threshold = self._assignment[point.name].threshold
        return step_of_threshold(threshold, bits).reshape(1)

    def weight(self, node: Node) -> tuple[NDArray[np.float32], NDArray[np.float32], str]:
        """Return a node's float weight, its thresholds, and the name its integers have."""
        point = self.quantizing_point(node, 1)
        assert point is not None
        params = self._assignment[point.name]
        if params.dtype != "int8" or params.asymmetric or point.input not in self._model.constants:
            raise UnsupportedError("only constant int8 weights can be lowered", where=point.name)
        value = self._model.constants[point.input]
        if value.ndim != 4:
            raise UnsupportedError("only a convolution of images runs in integers", where=node.name)
        return (
            np.asarray(value, np.float32),
            params.threshold.astype(np.float32),
            f"{node.name}_{point.input}_quantized",
        )

    def int8_operand(self, node: Node, index: int) -> Tensor:
        """Return what a node reads in int8; write the HzRequantize that int16 takes."""
        name = node.inputs[index]
        x = self.operand(node, index)
        if x.bits == 8:
            return x
        point = self.quantizing_point(node, index)
        if point is None or name in self._model.static:
            raise UnsupportedError(
                f"a {node.op_type} has no int16 input on the chip",
                where=node.name,
                hint="Quantize its input to int8.",
            )
        step = self.step_in(point, 8)
        held = self._out.tensors[name]
        narrow = self._out.requantized(held, name, 8, step[0])
        narrow = replace(narrow, step_name=f"{held.step_name}_int8")
        last = len(narrow.shape) == 4
        return self._out.turned(narrow, last=last, by=node.name, index=index)

    def _convolved(self, node: Node) -> Tensor:
        """Return the input of a Conv: int8 under dilation and under strides with groups."""
        dilated = any(size > 1 for size in node.attributes.get("dilations", ()))
        strided = any(size > 1 for size in node.attributes.get("strides", ()))
        if dilated or (strided and node.attributes.get("group", 1) > 1):
            return self.int8_operand(node, 0)
        return self.operand(node, 0)

    def operand(
        self, node: Node, index: int, place: int | None = None, *, last: bool | None = None
    ) -> Tensor:
        """Return what a node reads, with channels last if it has four dimensions.

        Args:
            node: The calibrated node.
            index: Which of its inputs.
            place: Which input of the integer node it becomes, if another.
            last: Whether channels are last, if that is not up to the dimensions.
        """
        name = node.inputs[index]
        place = index if place is None else place
        if name in self._model.static:
            rank = len(self._out.shape(node.outputs[0]))
            last = rank == 4 if last is None else last
            return self.constant_operand(node, index, node.name, place, last=last)
        tensor = self._out.tensors[name]
        last = len(tensor.shape) == 4 if last is None else last
        return self._out.turned(tensor, last=last, by=node.name, index=place)

    def constant_operand(
        self, node: Node, index: int, reader: str, place: int, *, last: bool
    ) -> Tensor:
        """Count a constant input of a node in its own steps.

        Args:
            node: The calibrated node.
            index: Which of its inputs.
            reader: Name of the integer node that reads it.
            place: Which input of that it is.
            last: Whether channels are last.
        """
        point = self.quantizing_point(node, index)
        assert point is not None
        bits, step = self.bits_and_step(point)
        values = np.asarray(self._model.constants[point.input], np.float32)
        integers = constant_steps(values, float(step[0]), bits).astype(TYPES[bits])
        rank = len(self._out.shape(node.outputs[0]))
        integers = integers.reshape((1,) * (rank - integers.ndim) + integers.shape)
        name = f"{node.name}_{point.input}_quantized"
        if last:
            integers = integers.transpose(CHANNELS_LAST)
            name = f"{reader}_nchw2nhwc_transposed_input{place}"
        name = self._out.constant(name, np.ascontiguousarray(integers))
        return Tensor(name=name, shape=values.shape, bits=bits, step=step, last=last)

    def write(
        self,
        node: Node,
        op_type: str,
        inputs: list[str],
        attributes: Attributes,
        grid: Point,
        *,
        output: str = "",
        turned: bool = True,
        bits: int = 0,
    ) -> None:
        """Write a node whose output counts in the steps of a point.

        Args:
            node: The calibrated node.
            op_type: Integer operator.
            inputs: Its inputs.
            attributes: Its attributes.
            grid: The point.
            output: What it gives, if that is not the node's own output.
            turned: Whether an image has its channels last.
            bits: Width of the output, if it is not that of the point.
        """
        output = output or node.outputs[0]
        width, step = self.bits_and_step(grid)
        if bits and bits != width:
            width, step = bits, self.step_in(grid, bits)
        self._out.node(node.name, op_type, inputs, f"{output}_quantized", attributes)
        shape = self._out.shape(output)
        self._out.tensors[output] = Tensor(
            name=f"{output}_quantized",
            shape=shape,
            bits=width,
            step=step,
            step_name=f"{grid.name}_y_scale",
            last=turned and len(shape) == 4,
        )

    def _write_sums(
        self,
        node: Node,
        op_type: str,
        inputs: list[str],
        attributes: Attributes,
        step: NDArray[np.float32],
        *,
        output: str = "",
        step_name: str = "",
        turned: bool = True,
    ) -> None:
        """Write a node whose output is an int32 accumulator."""
        output = output or node.outputs[0]
        self._out.node(node.name, op_type, inputs, f"{output}_quantized", attributes)
        shape = self._out.shape(output)
        self._out.tensors[output] = Tensor(
            name=f"{output}_quantized",
            shape=shape,
            bits=32,
            step=step,
            step_name=step_name or f"{node.name}_x_scale",
            last=turned and len(shape) == 4,
        )


def rescale_attributes(
    rescale: Rescale,
    count: int,
    names: tuple[str, str] = ("output_scale", "output_right_shift"),
) -> Attributes:
    """Return the shifts and the multiplier under their names, repeated ``count`` times."""
    return {
        "accu_right_shift": [int(rescale.accumulator_shift)] * count,
        names[0]: [int(rescale.multiplier)] * count,
        names[1]: [int(rescale.output_shift)] * count,
    }
