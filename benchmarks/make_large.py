"""Make large calibrated models, with calibration data beside them, to see that they go through.

    python benchmarks/make_large.py nodes  -o DIR [--blocks 200] [--samples 8]
    python benchmarks/make_large.py weights -o DIR [--gigabytes 3] [--width 4096] [--samples 2]
    python benchmarks/make_large.py tensors -o DIR [--size 512] [--samples 2]

``nodes`` is a residual network of small tensors: each block of five nodes (Conv, Relu, Conv, Add,
Clip) has points on all that its convolutions and its Add read, 200 blocks are 1,000 nodes.
``weights`` is a row of MatMuls, each with a Relu behind it, whose float32 weights lie in one file
of so many gigabytes beside the model; it is written a layer at a time. ``tensors`` is a few
convolutions on a large picture.

The values are pseudo-random and the same each time. Of weights, one layer is drawn, and each layer
has it with its rows turned by another count, which is as good here and much faster.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ACTIVATION = 0x11111
_WEIGHT = 0x22111
_DATA = "weights.bin"


def initializer(name: str, values: NDArray[np.float32]) -> TensorProto:
    """Return a float32 tensor that lies in the model itself."""
    return TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=values.shape, raw_data=values.tobytes()
    )


class Graph:
    """Collects the parts of a calibrated model.

    Args:
        name: Name of the graph.
        shape: Shape of its one input, ``x``.
    """

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)

    def node(self, op_type: str, inputs: list[str], name: str, **attributes: object) -> str:
        """Add a node and return the tensor that it makes."""
        self.nodes.append(
            helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes)
        )
        return f"{name}_out"

    def point(self, tensor: str, thresholds: list[float], bits: int, **attributes: object) -> str:
        """Quantize a tensor to int8 and return the tensor behind the point."""
        self.nodes.append(
            helper.make_node(
                "HzCalibration",
                [tensor],
                [f"{tensor}_calibrated"],
                name=f"{tensor}_HzCalibration",
                domain="horizon",
                quant_attrs=bits,
                qtype="int8",
                constant=1,
                switch="ON",
                thresholds=thresholds,
                scales=[float(np.float32(item / 127)) for item in thresholds],
                **attributes,
            )
        )
        return f"{tensor}_calibrated"

    def activation(self, tensor: str, threshold: float) -> str:
        """Quantize an activation, once however many read it."""
        made = f"{tensor}_calibrated"
        if any(node.output[0] == made for node in self.nodes[-12:]):
            return made
        return self.point(tensor, [threshold], _ACTIVATION)

    def weight(self, tensor: onnx.TensorProto, values: NDArray[np.float32], axis: int) -> str:
        """Add an initializer with a point for each channel of an axis."""
        self.initializers.append(tensor)
        rest = tuple(index for index in range(values.ndim) if index != axis)
        thresholds = [float(item) for item in np.abs(values).max(axis=rest)]
        return self.point(tensor.name, thresholds, _WEIGHT, axis=axis, group=1)

    def conv(self, x: str, name: str, random: np.random.Generator, channels: int) -> str:
        """Add a 3x3 convolution that keeps the size of what it reads."""
        shape = (channels, channels, 3, 3)
        values = random.normal(0, (channels * 9) ** -0.5, shape).astype(np.float32)
        weight = self.weight(initializer(f"{name}_w", values), values, 0)
        bias = initializer(f"{name}_b", np.zeros(channels, np.float32))
        self.initializers.append(bias)
        return self.node(
            "Conv", [x, weight, bias.name], name, kernel_shape=[3, 3], pads=[1, 1, 1, 1]
        )

    def save(self, output: str, folder: Path) -> Path:
        """Write the model; return its file."""
        graph = helper.make_graph(
            self.nodes,
            self.name,
            [self.input],
            [onnx.ValueInfoProto(name=output)],
            self.initializers,
        )
        graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
        opsets = [helper.make_opsetid("", 11), helper.make_opsetid("horizon", 1)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=7, producer_name="make_large"
        )
        path = folder / f"{self.name}_calibrated_model.onnx"
        path.write_bytes(model.SerializeToString())
        return path


def make_nodes(folder: Path, blocks: int) -> tuple[Path, tuple[int, ...]]:
    """Write the model of many nodes; return its file and the shape of its input."""
    random = np.random.default_rng(0)
    shape = (1, 8, 8, 8)
    graph = Graph("nodes", shape)
    x = "x"
    for block in range(blocks):
        name = f"block{block:03}"
        inner = graph.conv(graph.activation(x, 6.0), f"{name}_first", random, 8)
        inner = graph.node("Relu", [inner], f"{name}_relu")
        inner = graph.conv(graph.activation(inner, 4.0), f"{name}_second", random, 8)
        both = [graph.activation(inner, 4.0), graph.activation(x, 6.0)]
        total = graph.node("Add", both, f"{name}_add")
        # Without it, a sum of so many blocks would grow beyond every threshold.
        x = graph.node("Clip", [total, *_limits(graph)], f"{name}_clip")
    return graph.save(x, folder), shape


def _limits(graph: Graph) -> list[str]:
    if not any(tensor.name == "low" for tensor in graph.initializers):
        for name, value in (("low", -3.0), ("high", 3.0)):
            graph.initializers.append(initializer(name, np.array(value, np.float32)))
    return ["low", "high"]


def make_weights(folder: Path, gigabytes: float, width: int) -> tuple[Path, tuple[int, ...]]:
    """Write the model of many weights; return its file and the shape of its input."""
    shape = (1, 4, width)
    graph = Graph("weights", shape)
    size = 4 * width * width
    drawn = np.random.default_rng(0).standard_normal((width, width), np.float32)
    # He's scale keeps the values about as large behind each Relu as in front of the MatMul.
    drawn *= np.float32((2 / width) ** 0.5)
    x = "x"
    with (folder / _DATA).open("wb") as file:
        for layer in range(max(1, round(gigabytes * (1 << 30) / size))):
            values = np.roll(drawn, 37 * layer, axis=0)
            file.write(values.data)
            tensor = TensorProto(name=f"w{layer:02}", data_type=TensorProto.FLOAT)
            tensor.dims.extend(values.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", _DATA), ("offset", layer * size), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            weight = graph.weight(tensor, values, 1)
            x = graph.node("MatMul", [graph.activation(x, 5.0), weight], f"matmul{layer:02}")
            x = graph.node("Relu", [x], f"relu{layer:02}")
    return graph.save(x, folder), shape


def make_tensors(folder: Path, size: int) -> tuple[Path, tuple[int, ...]]:
    """Write the model of large tensors; return its file and the shape of its input."""
    random = np.random.default_rng(0)
    shape = (1, 8, size, size)
    graph = Graph("tensors", shape)
    x = "x"
    for layer in range(6):
        x = graph.conv(graph.activation(x, 4.0), f"conv{layer}", random, 8)
        x = graph.node("Relu", [x], f"relu{layer}")
    return graph.save(x, folder), shape


def write_samples(folder: Path, shape: tuple[int, ...], count: int) -> None:
    """Write normal calibration data."""
    place = folder / "calib" / "x"
    place.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    for index in range(count):
        np.save(place / f"{index}.npy", random.standard_normal(shape, np.float32))


def main(arguments: list[str] | None = None) -> Path:
    """Parse the command line, write the model and its data, and return the model's file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("nodes", "weights", "tensors"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--blocks", type=int, default=200)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--samples", type=int)
    args = parser.parse_args(arguments)
    args.output.mkdir(parents=True, exist_ok=True)
    if args.kind == "nodes":
        path, shape = make_nodes(args.output, args.blocks)
    elif args.kind == "weights":
        path, shape = make_weights(args.output, args.gigabytes, args.width)
    else:
        path, shape = make_tensors(args.output, args.size)
    count = args.samples or (8 if args.kind == "nodes" else 2)
    write_samples(args.output, shape, count)
    print(path)
    return path


if __name__ == "__main__":
    main()
