"""The integer graph while it is written: its nodes, constants, and where each tensor stands in it.

Layout is the writer's business. Integer operators of images work channels-last, the calibrated
model channels-first; a Transpose is written where a reader needs the other layout, once for all
readers. (`hbdebug.lowering.layout` moves and merges these as the converter does.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.lowering.convolution import Derivation, convolution
from hbdebug.lowering.elementwise import BERNOULLI2
from hbdebug.lowering.rewriting import stock
from hbdebug.lowering.steps import requantization
from hbdebug.model import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.lowering.convolution import ConvIntegers, ResidualIntegers, SumIntegers

    Shape: TypeAlias = tuple[int, ...]
    Attributes: TypeAlias = dict[str, Any]

T = TypeVar("T")

CHANNELS_LAST = (0, 2, 3, 1)
"""The permutation that the converter calls NCHW2NHWC."""

CHANNELS_FIRST = (0, 3, 1, 2)
"""The permutation that the converter calls NHWC2NCHW."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tensor:
    """How a tensor of the calibrated model is held in the integer model.

    Attributes:
        name: Tensor name there.
        shape: Shape in the calibrated model, channels first.
        bits: 8, 16 or 32; 0 for float32.
        step: float32, ``(1,)`` or, of int32 sums, per channel; empty for float32.
        step_name: Constant that holds the step if the tensor is dequantized.
        last: Whether channels are last in the integer model.
    """

    name: str
    shape: Shape
    bits: int = 0
    step: NDArray[np.float32]
    step_name: str = ""
    last: bool = False


class GraphWriter:
    """Collects an integer graph.

    Args:
        shapes: Shapes of the calibrated model's tensors.
        march: What is written for.
        derived: Weights and tables that were derived for other graphs of the same model, by what
            they were derived from; new ones are added.

    Attributes:
        march: What is written for.
        nodes: What was written, in order.
        constants: Constants of these nodes, by name.
        tensors: Tensors of the calibrated model, as they are held.
        convolutions: How each Conv and ConvTranspose was derived, by the name of the node.
    """

    def __init__(
        self,
        shapes: Mapping[str, Shape],
        march: str = "bayes-e",
        derived: dict[Hashable, Any] | None = None,
    ) -> None:
        self.march = march
        self._derived: dict[Hashable, Any] = {} if derived is None else derived
        self.nodes: list[Node] = []
        self.constants: dict[str, NDArray[np.generic]] = {}
        self.tensors: dict[str, Tensor] = {}
        self.convolutions: dict[str, Derivation] = {}
        self._shapes = shapes
        self._turned: dict[str, str] = {}
        self._in_float: dict[str, str] = {}
        self._requantized: dict[str, Tensor] = {}

    def shape(self, tensor: str) -> Shape:
        """Return a tensor's shape.

        Raises:
            UnsupportedError: It is not known.
        """
        if tensor not in self._shapes:
            raise UnsupportedError(
                "the shape of a tensor must be known to lower what reads or gives it",
                where=tensor,
            )
        return tuple(self._shapes[tensor])

    def once(self, key: Hashable, derive: Callable[[], T]) -> T:
        """Return what was derived under a key before, else derive it."""
        if key not in self._derived:
            self._derived[key] = derive()
        found: T = self._derived[key]
        return found

    def record(
        self,
        node: Node,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None,
        threshold: NDArray[np.float32],
        x: Tensor,
        integers: ConvIntegers | SumIntegers,
        output: tuple[int, NDArray[np.float32]] = (32, np.zeros(1, np.float32)),
    ) -> None:
        """Note how a convolution was derived, for who wants to know what that lost.

        Args:
            node: The calibrated node.
            weight: Its weight.
            bias: Its bias.
            threshold: Thresholds of the weight.
            x: What it reads.
            integers: What was derived.
            output: Width and step of its output; left out for int32 sums.
        """
        self.convolutions[node.name] = Derivation(
            weight=weight,
            bias=bias,
            threshold=threshold,
            input_step=float(x.step[0]),
            input_bits=x.bits,
            output_step=float(output[1][0]),
            output_bits=output[0],
            integers=integers,
        )

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant; return its name."""
        self.constants[name] = value
        return name

    def node(
        self,
        name: str,
        op_type: str,
        inputs: Sequence[str],
        output: str,
        attributes: Attributes,
        *,
        second_output: str = "",
    ) -> None:
        """Add a node of the vendor's domain."""
        self.nodes.append(
            Node(
                name=name,
                op_type=op_type,
                domain="horizon",
                inputs=tuple(inputs),
                outputs=(output, second_output) if second_output else (output,),
                attributes=attributes,
                body=(),
            )
        )

    def stock(
        self,
        name: str,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> None:
        """Add a stock operator, which works on integers as they are."""
        self.nodes.append(stock(name, op_type, inputs, outputs, attributes))

    def bias_constants(
        self, name: str, bias: NDArray[np.int32], shift: NDArray[np.int64]
    ) -> list[str]:
        """Add a bias and its shifts to the left."""
        return [
            self.constant(f"{name}_quantized", bias),
            self.constant(f"{name}_b_scale", shift.astype(np.int8)),
        ]

    def turned(self, tensor: Tensor, *, last: bool, by: str, index: int = 0) -> Tensor:
        """Return a tensor with channels last, or first; write the Transpose it takes.

        Args:
            tensor: An integer tensor of four dimensions, or one that is turned that way already.
            last: Whether channels shall be last.
            by: Name of the node that reads it.
            index: Which of its inputs.
        """
        if tensor.last == last:
            return tensor
        if tensor.name not in self._turned:
            if last:
                name = f"{by}_NCHW2NHWC_LayoutConvert_Input{index}"
                output = f"{by}_nchw2nhwc_transposed_input{index}"
            else:
                name = f"{tensor.name}_NHWC2NCHW_LayoutConvert"
                output = f"{tensor.name}_nhwc2nchw_transposed"
            perm = list(CHANNELS_LAST if last else CHANNELS_FIRST)
            self.stock(name, "Transpose", [tensor.name], [output], {"perm": perm})
            self._turned[tensor.name] = output
            self._turned[output] = tensor.name
        return replace(tensor, name=self._turned[tensor.name], last=last)

    def requantized(self, tensor: Tensor, of: str, bits: int, step: np.float32) -> Tensor:
        """Return a tensor in other steps; write the node that it takes, once.

        Args:
            tensor: An integer tensor.
            of: The tensor of the calibrated model that is counted anew; names the node.
            bits: Width to count in.
            step: Step to count in.
        """
        unit = self.march == BERNOULLI2
        name = f"{of}_{step:.5f}_TO_FUSE_SCALE" if unit else f"{of}_Requantize"
        # The converter writes one such node for a tensor, whatever steps later readers want: they
        # take its integers for their own.
        if name in self._requantized and self._requantized[name].bits != bits:
            name = f"{name}_{bits}"
        if name not in self._requantized:
            write = self._unit_convolution if unit else self._requantize
            output = write(
                self.turned(tensor, last=len(tensor.shape) == 4, by=name), name, bits, step
            )
            self._requantized[name] = output
        return self._requantized[name]

    def _requantize(self, tensor: Tensor, name: str, bits: int, step: np.float32) -> Tensor:
        found = requantization(float(tensor.step[0]), float(step))
        channels = tensor.shape[1] if tensor.last else tensor.shape[-1]
        output = f"{name}_requantized_output"
        attributes: Attributes = {
            "axis": len(tensor.shape) - 1,
            "bits": bits,
            "method": "Rescale",
            "output_scale": [found.multiplier] * channels,
            "output_right_shift": [found.shift] * channels,
            "data_format": "NHWC",
        }
        self.node(name, "HzRequantize", [tensor.name], output, attributes)
        return replace(tensor, name=output, bits=bits, step=step.reshape(1))

    def _unit_convolution(self, tensor: Tensor, of: str, bits: int, step: np.float32) -> Tensor:
        """Write the convolution by one that bernoulli2 has in place of an HzRequantize."""
        name = f"UNIT_CONV_FOR_{of}"
        if not tensor.last:
            raise UnsupportedError("only images change their steps on bernoulli2", where=of)
        channels = tensor.shape[1]
        found = convolution(
            np.ones((channels, 1, 1, 1), np.float32),
            None,
            threshold=np.float32(1),
            input_step=float(tensor.step[0]),
            output_step=float(step),
            march=self.march,
        )
        inputs = [
            tensor.name,
            self.constant(f"{name}_UNIT_WEIGHT_FOR_{of}_quantized", found.weight),
            *self.bias_constants(f"{name}_UNIT_BIAS_FOR_{of}", found.bias, found.bias_shift),
        ]
        attributes: Attributes = {
            "group": channels,
            "kernel_shape": [1, 1],
            "strides": [1, 1],
            "dilations": [1, 1],
            "pads": [0, 0, 0, 0],
            **convolution_attributes(found, bits),
        }
        self.node(name, "HzSQuantizedConv", inputs, f"{name}_quantized", attributes)
        return replace(tensor, name=f"{name}_quantized", bits=bits, step=step.reshape(1))

    def held(self, tensor: str) -> Tensor:
        """Return how a tensor is held; one that nothing was noted of is float, by its own name."""
        return self.tensors.get(tensor) or self._float(tensor)

    def keep_float(self, tensor: str) -> None:
        """Note that a tensor is float, under its own name."""
        self.tensors[tensor] = self._float(tensor)

    def _float(self, tensor: str) -> Tensor:
        shape = tuple(self._shapes.get(tensor, ()))
        return Tensor(name=tensor, shape=shape, step=np.empty(0, np.float32))

    def in_float(self, tensor: str) -> str:
        """Return the name under which a tensor is float; write the HzDequantize it takes."""
        if tensor not in self.tensors:
            return tensor
        held = self.tensors[tensor]
        if not held.bits:
            return held.name
        if tensor not in self._in_float:
            source = self.turned(held, last=False, by=tensor)
            rank = len(held.shape)
            self.node(
                f"{tensor}_HzDequantize",
                "HzDequantize",
                [source.name, self.constant(held.step_name, held.step)],
                tensor,
                {} if rank == 4 or held.bits == 32 else {"axis": rank - 1},
            )
            self._in_float[tensor] = tensor
        return self._in_float[tensor]

    def named_in_float(self, tensor: str, name: str) -> None:
        """Give a float tensor the name of a graph output; write the Identity that it takes."""
        self.stock(f"{name}_Identity", "Identity", [tensor], [name], {})
        self._in_float[name] = name


def convolution_attributes(found: ConvIntegers, bits: int) -> Attributes:
    """Return the attributes that an HzSQuantizedConv has for an output of int8 or int16."""
    attributes: Attributes = {
        "use_bias": 1,
        "output_bit": bits,
        "right_shift": found.rescale.accumulator_shift.tolist(),
        "scale": found.rescale.multiplier.tolist(),
        "out_shift": found.rescale.output_shift.tolist(),
        "high_precision_output": 0,
        "data_format": "NHWC",
    }
    return attributes | residual_attributes(found.residual)


def residual_attributes(residual: ResidualIntegers | None) -> Attributes:
    """Return the attributes that a convolution has for its residual; none without one."""
    if residual is None:
        return {}
    return {
        "use_sumin": 1,
        "e_scale": residual.multiplier.tolist(),
        "e_shift": residual.shift.tolist(),
    }
