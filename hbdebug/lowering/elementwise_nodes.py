"""Tables, and Mul, Add and Sub of two tensors, as integer nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.lowering.curves import curve
from hbdebug.lowering.elementwise import addition, multiplication, subtraction
from hbdebug.lowering.nodes import NodeLowering, rescale_attributes
from hbdebug.lowering.parameters import clip_bounds
from hbdebug.lowering.table8 import table8
from hbdebug.lowering.table16 import piecewise_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hbdebug.lowering.writer import Attributes, Tensor
    from hbdebug.model import Node, Point


class ElementwiseLowering(NodeLowering):
    """Writes the nodes of `NodeLowering`, and those that work element by element."""

    def table(self, node: Node, grid: Point) -> None:
        """Derive a table of int8 or int16, but for a Clip that the converter leaves out."""
        bits, step = self.bits_and_step(grid)
        if self._passes(node, bits):
            held = self._out.tensors[node.inputs[0]]
            self._out.tensors[node.outputs[0]] = replace(held, step=step)
            return
        x = self.operand(node, 0)
        constants = [
            float(np.asarray(self._model.constants[name]).reshape(-1)[0])
            for name in node.inputs[1:]
            if name in self._model.constants
        ]
        if node.op_type == "Clip":
            constants = list(clip_bounds(self._model, node))
        steps = (float(x.step[0]), float(step[0]))
        inputs = [x.name]
        attributes: Attributes = {"lut_type": node.op_type.lower().removeprefix("hz")}
        if x.last:
            attributes["data_format"] = "NHWC"
        if x.bits == 16:
            found = self._out.once(
                (node.name, *steps, x.bits, bits),
                lambda: piecewise_table(
                    node.op_type,
                    node.attributes,
                    constants,
                    input_step=steps[0],
                    output_step=steps[1],
                    upper=0.0 if self._is_softmax_exp(node) else np.inf,
                ),
            )
            attributes |= {
                "output_bit": bits,
                "rounding_method": "ROUND",
                "symmetry_mode": found.symmetry,
                "table_param": found.table.tolist(),
                "scale": found.scale.tolist(),
                "bias": found.bias.tolist(),
                "left_shift": found.left_shift.tolist(),
                "right_shift": found.right_shift.tolist(),
                "bound": found.bound.tolist(),
            }
            self.write(node, "HzLut2Layer", inputs, attributes, grid)
            return
        if bits == 16:
            raise UnsupportedError("a table from int8 to int16 is not known", where=node.name)
        function = curve(node.op_type, node.attributes, constants)
        table = self._out.once((node.name, *steps, 8, 8), lambda: table8(function, *steps))
        inputs.append(self._out.constant(f"{node.name}_table_params", table))
        self.write(node, "HzLut", inputs, attributes, grid)

    def _passes(self, node: Node, bits: int) -> bool:
        """Whether a node is a Clip with bounds of one size, which the converter leaves out.

        Its integers then are those of its input, whatever their step, and count in the steps of
        its output. The two are the same unless something else reads the input, too.
        """
        if node.op_type != "Clip" or self._out.tensors[node.inputs[0]].bits != bits:
            return False
        low, high = clip_bounds(self._model, node)
        return low == -high and bool(np.isfinite(high))

    def _is_softmax_exp(self, node: Node) -> bool:
        return node.op_type == "Exp" and node.name.endswith("_FROM_QUANTIZED_SOFTMAX")

    def multiplication(self, node: Node, grid: Point) -> None:
        """Derive a Mul."""
        operands = self._two_operands(node, (0, 1))
        bits, step = self.bits_and_step(grid)
        first, second = (float(operand.step[0]) for operand in operands)
        found = multiplication(
            first, second, float(step[0]), output_bits=bits, march=self._out.march
        )
        attributes = {**rescale_attributes(found.rescale, 1), "rounding_method": "ROUND"}
        if found.add_rounding_bias:
            attributes["add_rounding_bias"] = 1
        self._write_elementwise(node, operands, attributes, grid)

    def sum_of_two(self, node: Node, grid: Point) -> None:
        """Derive an Add that no convolution takes in, or a Sub."""
        bits, step = self.bits_and_step(grid)
        (first_bits, first), (second_bits, second) = (
            self._bits_and_step_of(node, index) for index in (0, 1)
        )
        derive = addition if node.op_type == "Add" else subtraction
        found = derive(
            first,
            second,
            float(step[0]),
            first_bits=first_bits,
            second_bits=second_bits,
            output_bits=bits,
            march=self._out.march,
        )
        operands = self._two_operands(node, (1, 0) if found.swapped else (0, 1))
        # Only an Add repeats its numbers for each channel, the last axis of what it gives.
        shape = self._out.shape(node.outputs[0])
        channels = shape[1] if operands[0].last else shape[-1]
        count = channels if node.op_type == "Add" else 1
        attributes: Attributes = {
            "x_shift": [found.x_shift] * count,
            "e_scale": [found.e_scale] * count,
            **rescale_attributes(found.rescale, count),
            "rounding_method": found.rounding_method,
        }
        if node.op_type == "Add":
            attributes["e_shift"] = [found.e_shift] * count
        self._write_elementwise(node, operands, attributes, grid)

    def _bits_and_step_of(self, node: Node, index: int) -> tuple[int, float]:
        """Return in which integers a node reads an input, before it is written."""
        name = node.inputs[index]
        if name not in self._model.static:
            held = self._out.tensors[name]
            return held.bits, float(held.step[0])
        point = self.quantizing_point(node, index)
        assert point is not None
        bits, step = self.bits_and_step(point)
        return bits, float(step[0])

    def _write_elementwise(
        self, node: Node, operands: Sequence[Tensor], attributes: Attributes, grid: Point
    ) -> None:
        attributes["output_bit"] = self.bits_and_step(grid)[0]
        last = operands[0].last
        if last:
            attributes["data_format"] = "NHWC"
        inputs = [operand.name for operand in operands]
        op_type = f"HzSElementwise{node.op_type}"
        self.write(node, op_type, inputs, attributes, grid, turned=last)

    def _two_operands(self, node: Node, order: tuple[int, int]) -> list[Tensor]:
        """Return both operands in an order, with channels last if they have four dimensions.

        Of different ranks they are broadcast by their last axes, as they are.
        """
        names = [name for name in node.inputs[:2] if name not in self._model.static]
        ranks = {len(self._out.tensors[name].shape) for name in names}
        last = ranks == {4} and len(self._out.shape(node.outputs[0])) == 4
        return [self.operand(node, index, place, last=last) for place, index in enumerate(order)]
