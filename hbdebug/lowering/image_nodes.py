"""Integer nodes that know height and width, and those that keep the steps of their input."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.lowering.convolution import convolution, transposed_convolution
from hbdebug.lowering.elementwise import BERNOULLI2
from hbdebug.lowering.elementwise_nodes import ElementwiseLowering
from hbdebug.lowering.islands import resizing_of
from hbdebug.lowering.mantissa import LARGEST
from hbdebug.lowering.nodes import TYPES
from hbdebug.lowering.parameters import padding
from hbdebug.lowering.prelu import prelu, shift_slopes
from hbdebug.lowering.steps import constant_steps
from hbdebug.lowering.writer import CHANNELS_LAST, convolution_attributes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hbdebug.lowering.writer import Attributes, Tensor
    from hbdebug.model import Node, Point

# How many bits the reciprocal of an AveragePool's window has, as the converter writes it.
_AVERAGE_SCALE = 9

_INT64 = 7
"""ONNX's number of int64, the type of indices."""


class ImageNodeLowering(ElementwiseLowering):
    """Writes the nodes of `ElementwiseLowering`, and those that know height and width."""

    def max_pool(self, node: Node, _grid: Point | None) -> None:
        """Derive a MaxPool."""
        x = self.operand(node, 0)
        attributes = {**node.attributes, "output_bit": x.bits, "data_format": "NHWC"}
        self._write_same_steps(node, "HzQuantizedMaxPool", x, attributes)

    def average_pool(self, node: Node, _grid: Point | None) -> None:
        """Derive an AveragePool, which is int8 and divides by the whole window, rounding down."""
        attributes = {**node.attributes, "scale": _AVERAGE_SCALE, "data_format": "NHWC"}
        x = self.int8_operand(node, 0)
        self._write_same_steps(node, "HzQuantizedAveragePool", x, attributes)

    def global_max_pool(self, node: Node, _grid: Point | None) -> None:
        """Derive a GlobalMaxPool, which is int8."""
        x = self.int8_operand(node, 0)
        self._write_same_steps(node, "HzQuantizedGlobalMaxPool", x, {"data_format": "NHWC"})

    def depth_to_space(self, node: Node, _grid: Point | None) -> None:
        """Derive a DepthToSpace."""
        attributes = {"mode": "DCR", **node.attributes, "data_format": "NHWC"}
        self._write_same_steps(node, "HzDepthToSpace", self.operand(node, 0), attributes)

    def space_to_depth(self, node: Node, _grid: Point | None) -> None:
        """Derive a SpaceToDepth."""
        size = node.attributes["blocksize"]
        attributes = {"block_height": size, "block_width": size, "data_format": "NHWC"}
        self._write_same_steps(node, "HzSpaceToDepth", self.operand(node, 0), attributes)

    def channel_shuffle(self, node: Node, _grid: Point | None) -> None:
        """Derive an HzChannelShuffle."""
        attributes = {"group": node.attributes["group"], "data_format": "NHWC"}
        self._write_same_steps(node, "HzChannelShuffle", self.operand(node, 0), attributes)

    def pad(self, node: Node, _grid: Point | None) -> None:
        """Derive a Pad with a constant, counted in the steps of the input."""
        x = self.operand(node, 0)
        if node.attributes.get("mode", "constant") != "constant" or not x.last:
            raise UnsupportedError(
                "only images are padded in integers, with a constant", where=node.name
            )
        pads, value = padding(self._model, node)
        steps = constant_steps(np.reshape(value, 1), float(x.step[0]), x.bits).astype(TYPES[x.bits])
        attributes: Attributes = {
            "pads": pads[:, CHANNELS_LAST].reshape(-1).tolist(),
            "mode": "constant",
            "data_format": "NHWC",
        }
        constant = self._out.constant(f"{node.name}_pad", steps)
        self._write_same_steps(node, "HzPad", x, attributes, constant)

    def resize(self, node: Node, _grid: Point | None) -> None:
        """Derive a Resize, which is int8."""
        found = resizing_of(self._model, node, self._out)
        assert found is not None  # Else it stays float.
        attributes = {**found.attributes, "data_format": "NHWC"}
        self._write_same_steps(node, found.op_type, self.int8_operand(node, 0), attributes)

    def largest_channel(self, node: Node, _grid: Point | None) -> None:
        """Derive an ArgMax over channels, whose indices have the type of its input."""
        x = self.operand(node, 0)
        (output,) = node.outputs
        largest = LARGEST[x.bits]
        if x.shape[1] > largest + 1:
            raise UnsupportedError(
                f"the chip writes the indices of an ArgMax as int{x.bits}, up to {largest}, but "
                f"there are {x.shape[1]} channels",
                where=node.name,
                hint="Let it run on the CPU.",
            )
        name = f"{output}_pre_cast_dequantized"
        attributes: Attributes = {"axis": CHANNELS_LAST.index(1), "output_bit": x.bits}
        self._out.node(node.name, "HzQuantizedArgMax", [x.name], name, attributes)
        held = self._out.turned(
            replace(x, name=name, shape=self._out.shape(output)), last=False, by=node.name
        )
        self._out.stock(f"{node.name}_cast", "Cast", [held.name], [output], {"to": _INT64})
        self._out.keep_float(output)

    def top_k(self, node: Node, _grid: Point | None) -> None:
        """Derive a TopK, which works with channels first and gives indices of int32."""
        held = self._out.tensors[node.inputs[0]]
        x = self._out.turned(held, last=False, by=node.name)
        values, indices = node.outputs
        attributes: Attributes = {
            **node.attributes,
            "axis": node.attributes.get("axis", -1) % len(x.shape),
            "k": int(np.asarray(self._model.constants[node.inputs[1]]).item()),
        }
        name, index = f"{values}_quantized", f"{indices}_index"
        self._out.node(
            node.name, "HzQuantizedTopK", [x.name], name, attributes, second_output=index
        )
        self._out.tensors[values] = replace(x, name=name, shape=self._out.shape(values))
        self._out.stock(f"{indices}_Cast", "Cast", [index], [indices], {"to": _INT64})
        self._out.keep_float(indices)

    def minimum_of_two(self, node: Node, _grid: Point | None) -> None:
        """Derive a Min, in the steps of the operand that has the largest."""
        held = [self.operand(node, index) for index in range(len(node.inputs))]
        if len({each.bits for each in held}) > 1:
            raise UnsupportedError(
                "a Min of int8 and int16 is not known",
                where=node.name,
                hint="Quantize its inputs to one type.",
            )
        coarse = max(held, key=lambda tensor: float(tensor.step[0]))
        result = replace(coarse, step_name=f"{node.name}_scale")
        self._compare(node, result)

    def maximum_of_two(self, node: Node, grid: Point) -> None:
        """Derive a Max, in the steps of the output."""
        bits, step = self.bits_and_step(grid)
        x = self.operand(node, 0)
        self._compare(node, replace(x, bits=bits, step=step, step_name=f"{grid.name}_y_scale"))

    def _compare(self, node: Node, like: Tensor) -> None:
        """Write a Min or Max in the steps of ``like``; stock operators compare integers."""
        (output,) = node.outputs
        shape = self._out.shape(output)
        last = len(shape) == 4
        inputs = []
        for index, name in enumerate(node.inputs):
            if name in self._model.static or len(self._out.shape(name)) != len(shape):
                raise UnsupportedError(
                    f"only a {node.op_type} of two computed tensors with equal numbers of "
                    "dimensions is known in integers",
                    where=node.name,
                )
            operand = self.counted_in(name, like.bits, like.step)
            inputs.append(self._out.turned(operand, last=last, by=node.name, index=index).name)
        name = f"{output}_quantized"
        self._out.stock(node.name, node.op_type, inputs, [name], node.attributes)
        self._out.tensors[output] = replace(like, name=name, shape=shape, last=last)

    def colour_conversion(self, node: Node, grid: Point) -> None:
        """Derive an HzPreprocess: a convolution of single pixels."""
        x = self.operand(node, 0)
        weight, threshold, weight_name = self.weight(node)
        name = node.inputs[2]
        bits, step = self.bits_and_step(grid)
        found = convolution(
            weight,
            np.asarray(self._model.constants[name], np.float32),
            threshold=threshold,
            input_step=float(x.step[0]),
            output_step=float(step[0]),
            input_bits=x.bits,
            output_bits=bits,
            march=self._out.march,
        )
        inputs = [x.name, self._out.constant(weight_name, np.moveaxis(found.weight, 1, -1))]
        inputs += self._out.bias_constants(f"{node.name}_{name}", found.bias, found.bias_shift)
        attributes: Attributes = {
            **node.attributes,
            "weight_thresholds": threshold.astype(float).tolist(),
            **convolution_attributes(found, bits),
        }
        del attributes["use_bias"]  # It always has one.
        self.write(node, "HzSQuantizedPreprocess", inputs, attributes, grid)

    def shifted_slope(self, node: Node, grid: Point | None) -> None:
        """Derive a LeakyRelu of bernoulli2, whose readers take its integers for those of a point.

        It keeps the steps of its input. If a point behind it says others, the converter writes
        nothing between them.
        """
        x = self.operand(node, 0)
        found = shift_slopes(np.array([node.attributes.get("alpha", 0.01)], np.float32))
        attributes: Attributes = {
            "alpha_scale": int(found.scale.item()),
            "alpha_shift": int(found.shift.item()),
            "data_format": "NHWC",
        }
        self._write_same_steps(node, "HzLeakyRelu", x, attributes)
        if grid is not None:
            held = self._out.tensors[node.outputs[0]]
            _, step = self.bits_and_step(grid)
            self._out.tensors[node.outputs[0]] = replace(held, step=step)

    def prelu(self, node: Node, _grid: Point | None) -> None:
        """Derive a PRelu; slopes that wrap do so here as well."""
        x = self.operand(node, 0)
        slope = np.asarray(self._model.constants[node.inputs[1]], np.float32)
        if self._out.march == BERNOULLI2:
            self._shifted_slopes(node, x, slope)
            return
        if not x.last or slope.size not in {1, x.shape[1]} or not slope.max() > 0:
            raise UnsupportedError(
                "only a PRelu of images runs in integers, with one positive slope at least",
                where=node.name,
            )
        # One slope is written for every channel.
        slopes = np.broadcast_to(slope.reshape(1, 1, 1, -1), (1, 1, 1, x.shape[1]))
        found = prelu(slopes, float(x.step[0]), x.bits)
        attributes: Attributes = {
            "positive_scale": [1],
            "positive_right_shift": [0],
            "accu_right_shift": [int(found.rescale.accumulator_shift)],
            "negative_scale": [int(found.rescale.multiplier)],
            "negative_right_shift": [int(found.rescale.output_shift)],
            "data_format": "NHWC",
        }
        constant = self._out.constant(f"{node.name}_quantized_slope", found.slope)
        self._write_same_steps(node, "HzSPRelu", x, attributes, constant)

    def _shifted_slopes(self, node: Node, x: Tensor, slope: NDArray[np.float32]) -> None:
        if not x.last or slope.size not in {1, x.shape[1]}:
            raise UnsupportedError("only a PRelu of images runs in integers", where=node.name)
        found = shift_slopes(slope.reshape(-1))
        attributes: Attributes = {
            "alpha_scale": found.scale.tolist(),
            "alpha_shift": found.shift.tolist(),
            "data_format": "NHWC",
        }
        self._write_same_steps(node, "HzPRelu", x, attributes)

    def transposed_convolution(self, node: Node, grid: Point) -> None:
        """Derive a ConvTranspose, which is int8 on both sides."""
        x = self.int8_operand(node, 0)
        weight, threshold, weight_name = self.weight(node)
        bias_name = node.inputs[2] if len(node.inputs) > 2 else ""
        bias: NDArray[np.float32] | None = None
        if bias_name:
            bias = np.asarray(self._model.constants[bias_name], np.float32)
        step = self.step_in(grid, 8)
        found = transposed_convolution(
            weight,
            bias,
            threshold=threshold,
            input_step=float(x.step[0]),
            output_step=float(step[0]),
            group=node.attributes.get("group", 1),
        )
        self._out.record(node, weight, bias, threshold, x, found, (8, step))
        name = f"{node.name}_{bias_name or 'rounding_bias'}_quantized"
        inputs = [
            x.name,
            self._out.constant(weight_name, np.moveaxis(found.weight, 1, -1)),
            self._out.constant(name, found.bias),
        ]
        attributes: Attributes = {
            **node.attributes,
            "use_bias": 1,
            "weight_thresholds": threshold.astype(float).tolist(),
            "accu_right_shift": found.rescale.accumulator_shift.tolist(),
            "y_quant_scale": found.rescale.multiplier.tolist(),
            "y_right_shift": found.rescale.output_shift.tolist(),
            "b_left_shift": found.bias_shift.tolist(),
            "data_format": "NHWC",
        }
        self.write(node, "HzSQuantizedConvTranspose", inputs, attributes, grid, bits=8)

    def _write_same_steps(
        self, node: Node, op_type: str, x: Tensor, attributes: Attributes, *constants: str
    ) -> None:
        output = node.outputs[0]
        name = f"{output}_quantized"
        self._out.node(node.name, op_type, [x.name, *constants], name, attributes)
        self._out.tensors[output] = replace(x, name=name, shape=self._out.shape(output))
