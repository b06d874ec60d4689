"""Integer nodes of images that keep the steps of their input, and ConvTranspose and PRelu."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.lowering.convolution import transposed_convolution
from hbdebug.lowering.nodes import TYPES, NodeLowering
from hbdebug.lowering.prelu import prelu
from hbdebug.lowering.steps import constant_steps
from hbdebug.lowering.writer import CHANNELS_LAST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hbdebug.lowering.writer import Attributes, Tensor
    from hbdebug.model import Node, Point

# How many bits the reciprocal of an AveragePool's window has, as the converter writes it.
_AVERAGE_SCALE = 9


class ImageNodeLowering(NodeLowering):
    """Writes the nodes of `NodeLowering`, and those that know height and width."""

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
        pads = np.asarray(self._model.constants[node.inputs[1]]).reshape(2, 4)
        has_value = len(node.inputs) > 2 and node.inputs[2]
        value = self._model.constants[node.inputs[2]] if has_value else 0.0
        steps = constant_steps(np.reshape(value, 1), float(x.step[0]), x.bits).astype(TYPES[x.bits])
        attributes: Attributes = {
            "pads": pads[:, CHANNELS_LAST].reshape(-1).tolist(),
            "mode": "constant",
            "data_format": "NHWC",
        }
        constant = self._out.constant(f"{node.name}_pad", steps)
        self._write_same_steps(node, "HzPad", x, attributes, constant)

    def prelu(self, node: Node, _grid: Point | None) -> None:
        """Derive a PRelu; slopes that wrap do so here as well."""
        x = self.operand(node, 0)
        slope = np.asarray(self._model.constants[node.inputs[1]], np.float32)
        if not x.last or slope.size not in {1, x.shape[1]} or not slope.max() > 0:
            raise UnsupportedError(
                "only a PRelu of images runs in integers, with one positive slope at least",
                where=node.name,
            )
        found = prelu(slope.reshape(1, 1, 1, -1), x.bits)
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
