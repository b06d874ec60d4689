"""Convert small nets with the vendor's converter: what lowering is compared with.

    python benchmarks/measure_lowering.py --vendor-python VENV/bin \
        -o fixtures/golden_lowering.tar.xz [--only NAME,...]

Each net asks one question that no other fixture answers: which forms of an operator run in
integers on a march, in which steps, and what fuses. The archive holds every net before and after
the quantizer, ``NAME-MARCH.calibrated.onnx`` and ``NAME-MARCH.quantized.onnx``.
"""

from __future__ import annotations

import argparse
import io
import lzma
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from vendor_integer import HOW_TO_INSTALL, Vendor, VendorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

MARCHES = ("bayes-e", "bernoulli2")
SAMPLES = 3

NEAREST = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}


class Net:
    """A float graph behind one convolution of its input, ``[1, 4, 8, 10]``."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.y = self.conv("x")

    def constant(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        array = np.asarray(value)
        dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.constants.append(helper.make_tensor(name, dtype, array.shape, array.ravel()))
        return name

    def floats(self, *shape: int) -> str:
        return self.constant(self.random.normal(size=shape).astype(np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def op(self, op_type: str, *inputs: str, count: int = 1, **attributes: Any) -> Any:
        """Add a node; return the name of its output, or a list of several."""
        name = f"{op_type}_{len(self.nodes)}"
        made = [f"{name}_o{index}" for index in range(count)]
        self.nodes.append(helper.make_node(op_type, list(inputs), made, name=name, **attributes))
        return made[0] if count == 1 else made

    def conv(
        self, x: str, channels: int = 4, filters: int = 4, *, bias: float = 1.0, **attributes: Any
    ) -> str:
        size = attributes.pop("size", 3)
        shape = (filters, channels // attributes.get("group", 1), size, size)
        weight = self.constant((self.random.normal(size=shape) / 3).astype(np.float32))
        inputs = [x, weight]
        if bias:
            values = bias * self.random.normal(size=filters)
            inputs.append(self.constant(values.astype(np.float32)))
        pads = [size // 2] * 4
        found: str = self.op("Conv", *inputs, kernel_shape=[size, size], pads=pads, **attributes)
        return found

    def resize(
        self, x: str, scales: Sequence[float] = (), sizes: Sequence[int] = (), **attributes: Any
    ) -> str:
        none = self.constant(np.zeros(0, np.float32))
        inputs = [none, self.constant(np.array([1, 1, *scales], np.float32))]
        if sizes:
            inputs = [none, none, self.integers(1, 4, *sizes)]
        found: str = self.op("Resize", x, *inputs, **attributes)
        return found

    def end(self, *tensors: str, dtype: int = TensorProto.FLOAT) -> None:
        self.outputs += [helper.make_tensor_value_info(name, dtype, None) for name in tensors]

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 10])],
            self.outputs,
            self.constants,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
        return onnx.shape_inference.infer_shapes(made)


def argmax(net: Net) -> None:
    """Channels are an int8 form; other axes, and dropped ones, are not."""
    net.end(net.op("ArgMax", net.y, axis=1, keepdims=1), dtype=TensorProto.INT64)
    net.end(net.op("ArgMax", net.op("Sigmoid", net.y), axis=3), dtype=TensorProto.INT64)
    net.end(net.op("ArgMax", net.op("Tanh", net.y), axis=1, keepdims=0), dtype=TensorProto.INT64)


def topk(net: Net) -> None:
    values, indices = net.op("TopK", net.y, net.integers(3), count=2, axis=3)
    net.end(net.conv(values))
    net.end(indices, dtype=TensorProto.INT64)
    smallest, _ = net.op("TopK", net.op("Sigmoid", net.y), net.integers(2), count=2, largest=0)
    net.end(smallest)


def min_max(net: Net) -> None:
    """A Min counts like its coarsest operand, a Max like its output."""
    table = net.op("Sigmoid", net.y)
    for op_type in ("Min", "Max"):
        net.end(net.conv(net.op(op_type, table, net.y)))
        net.end(net.conv(net.op(op_type, net.op("GlobalMaxPool", net.y), table)))
        net.end(net.conv(net.op(op_type, table, net.op("Tanh", net.y), net.y)))


def max_of_min(net: Net) -> None:
    least = net.op("Min", net.y, net.op("Tanh", net.y))
    net.end(net.conv(net.op("Max", least, net.op("Sigmoid", net.y))))


def min_max_constant(net: Net) -> None:
    most = net.op("Max", net.y, net.constant(np.float32([0.1])))
    net.end(net.conv(net.op("Min", net.op("Sigmoid", net.y), most)))


def max_last(net: Net) -> None:
    net.end(net.op("Max", net.op("Sigmoid", net.y), net.op("Tanh", net.y)))


def min_last(net: Net) -> None:
    net.end(net.op("GlobalMaxPool", net.op("Min", net.op("Sigmoid", net.y), net.y)))


def residual_sums(net: Net) -> None:
    """Accumulators that are the output take a residual in."""
    table = net.op("Sigmoid", net.y)
    net.end(net.op("Add", net.conv(net.op("Relu", net.y)), table))
    net.end(net.op("Add", net.y, net.conv(table, bias=0)))
    net.end(net.op("Relu", net.op("Add", net.conv(table), net.y)))


def residual_constant(net: Net) -> None:
    inner = net.op("Relu", net.y)
    net.end(net.conv(net.op("Add", net.conv(inner), net.floats(1, 4, 8, 10))))
    net.end(net.op("Add", net.conv(inner), net.floats(1, 4, 8, 10)))


def bias(net: Net) -> None:
    """Biases of many sizes: bernoulli2 has 16 bits and a shift."""
    for size in (1e-3, 1.0, 1e3, 1e5):
        wide = net.conv(net.op("Relu", net.y), bias=size)
        net.end(wide, net.conv(net.op("Sigmoid", wide)))
    net.end(net.conv(net.op("Tanh", net.y), group=4))


def sums_relu(net: Net) -> None:
    net.end(net.op("Relu", net.conv(net.y)))
    net.end(net.op("Softmax", net.op("Relu", net.conv(net.op("Tanh", net.y))), axis=1))


def broadcast(net: Net) -> None:
    narrow = net.op("Tanh", net.conv(net.y, filters=1))
    small = net.op("Tanh", net.op("GlobalMaxPool", net.y))
    for op_type in ("Mul", "Add"):
        for other in (narrow, small):
            net.end(net.conv(net.op(op_type, net.op("Sigmoid", net.y), other)))


def constant_operand(net: Net) -> None:
    both = net.op("Add", net.op("Sigmoid", net.y), net.floats(1, 4, 8, 10))
    net.end(net.conv(net.op("Relu", both)))


def concat(net: Net) -> None:
    tables = [net.op(kind, net.y) for kind in ("Sigmoid", "Tanh")]
    first = net.op("Concat", *tables, axis=1)
    second = net.op("Concat", tables[0], net.op("Relu", net.conv(net.y)), axis=1)
    # A second reader of the first table's integers in other steps.
    net.end(net.conv(net.op("Concat", net.y, tables[0], axis=1), 8))
    net.end(net.conv(net.op("Concat", first, second, axis=1), 16))


def pad(net: Net) -> None:
    """Constants around an image, around its channels, and what is no constant."""
    image = net.integers(0, 0, 1, 1, 0, 0, 2, 1)
    net.end(net.conv(net.op("Pad", net.y, image, net.constant(np.float32(0.5)))))
    deep = net.integers(0, 1, 1, 1, 0, 1, 2, 1)
    net.end(net.conv(net.op("Pad", net.op("Sigmoid", net.y), deep), 6))
    net.end(net.conv(net.op("Pad", net.op("Tanh", net.y), image, mode="reflect")))


def prelu(net: Net) -> None:
    one = net.constant(np.float32([0.1]).reshape(1, 1, 1))
    net.end(net.conv(net.op("PRelu", net.op("Sigmoid", net.y), one)))
    net.end(net.conv(net.op("LeakyRelu", net.y, alpha=0.3)))
    net.end(net.op("LeakyRelu", net.op("Tanh", net.y), alpha=0.2))


def ties(net: Net) -> None:
    """Slopes and constants half way between two integers."""
    table = net.op("Sigmoid", net.conv(net.y, filters=64, size=1))
    for largest in (1.0, 0.7331):
        step = np.float32(largest) / np.float32(32767)
        halves = (net.random.integers(0, 32767, 64) + 0.5) * float(step)
        halves[0] = largest
        slopes = net.constant(halves.astype(np.float32).reshape(64, 1, 1))
        net.end(net.conv(net.op("PRelu", table, slopes), 64))
    # What bernoulli2 counts is the distance from 1, in steps of 2^-7 and less; and 1 itself.
    places = 2.0 ** net.random.integers(7, 10, 64)
    near = 1 + (net.random.integers(-127, 127, 64) + 0.5) / places
    near[0] = 1
    slopes = net.constant(near.astype(np.float32).reshape(64, 1, 1))
    net.end(net.conv(net.op("PRelu", table, slopes), 64))
    step = np.float32(0.7331) / np.float32(127)
    values = (net.random.integers(-127, 126, (1, 4, 8, 10)) + 0.5) * float(step)
    values[0, 0, 0, 0] = 0.7331
    constant = net.constant(values.astype(np.float32))
    net.end(net.conv(net.op("Mul", net.op("Tanh", net.y), constant)))


def other_steps(net: Net) -> None:
    """What keeps steps, with a point behind that says others."""
    slopes = net.constant(np.array([0.1, 0.2, 0.3, 0.4], np.float32).reshape(4, 1, 1))
    kept = [
        net.op("MaxPool", net.y, kernel_shape=[3, 3], pads=[1] * 4),
        net.op("GlobalMaxPool", net.y),
        net.op("PRelu", net.y, slopes),
        net.op("LeakyRelu", net.y, alpha=0.3),
    ]
    for tensor in (*kept, net.op("Sigmoid", net.y)):
        net.end(net.conv(tensor))


def reductions(net: Net) -> None:
    """One axis is an int8 form, several are not."""
    table = net.op("Sigmoid", net.y)
    net.end(net.conv(net.op("ReduceMax", net.y, axes=[2, 3], keepdims=1)))
    net.end(net.conv(net.op("ReduceMean", table, axes=[1, 2], keepdims=1), 1))
    net.end(net.conv(net.op("ReduceSum", table, axes=[1, 3], keepdims=1), 1))
    net.end(net.op("ReduceMax", table, axes=[1], keepdims=0))


def movers(net: Net) -> None:
    table = net.op("Sigmoid", net.y)
    net.end(net.conv(net.op("Transpose", table, perm=[0, 1, 3, 2])))
    net.end(net.conv(net.op("Reshape", table, net.integers(1, 8, 4, 10)), 8))
    flat = net.op("Squeeze", net.op("Tanh", net.y), axes=[0])
    net.end(net.conv(net.op("Unsqueeze", flat, axes=[0])))
    first, second = net.op("Split", net.op("Relu", net.conv(net.y)), count=2, axis=2)
    net.end(net.conv(net.op("Concat", first, net.op("Sigmoid", second), axis=2)))


def flat(net: Net) -> None:
    """Three dimensions: bernoulli2 has none of them."""
    rows = net.op("Reshape", net.op("Sigmoid", net.y), net.integers(1, 40, 8))
    centred = net.op("Sub", rows, net.op("ReduceMean", rows, axes=[2], keepdims=1))
    power = net.op("Mul", net.op("Tanh", centred), centred)
    net.end(net.conv(net.op("Reshape", power, net.integers(1, 4, 8, 10))))


def float_operators(net: Net) -> None:
    """Operators that no march has in integers."""
    table = net.op("Sigmoid", net.y)
    net.end(net.conv(net.op("Neg", net.y)))
    net.end(net.conv(net.op("Tile", table, net.integers(1, 1, 2, 2))))
    small = net.op("GlobalMaxPool", table)
    net.end(net.conv(net.op("Expand", small, net.integers(1, 4, 8, 10))))


def float_between(net: Net) -> None:
    """Points between float nodes; the same tensor read in float and in integers."""
    positive = net.op("Greater", net.y, net.constant(np.float32([0.0])))
    net.end(net.conv(net.op("Where", positive, net.op("Sigmoid", net.y), net.y)))


def transposed(net: Net) -> None:
    weight = net.constant((net.random.normal(size=(4, 3, 3, 3)) / 3).astype(np.float32))
    shape = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}
    net.end(net.conv(net.op("ConvTranspose", net.y, weight, **shape), 3))
    deep = net.op("Sigmoid", net.conv(net.y, filters=16))
    net.end(net.conv(net.op("DepthToSpace", deep, blocksize=2, mode="CRD")))


def nearest(net: Net) -> None:
    """Powers of two, of which bernoulli2 has some; nothing else."""
    for scales in ((4, 4), (2, 1), (1, 2), (4, 2), (2, 4), (3, 3), (3, 2), (1.5, 1.5), (0.5, 0.5)):
        net.end(net.conv(net.resize(net.y, scales, **NEAREST)))


def nearest_modes(net: Net) -> None:
    net.end(net.conv(net.resize(net.y, sizes=(16, 20), **NEAREST)))
    net.end(net.conv(net.resize(net.y, (2, 2), **{**NEAREST, "nearest_mode": "ceil"})))
    for mode in ("half_pixel", "align_corners"):
        coordinates = {"coordinate_transformation_mode": mode}
        net.end(net.conv(net.resize(net.y, (2, 2), **{**NEAREST, **coordinates})))


def nearest_far(net: Net) -> None:
    small = net.op("GlobalMaxPool", net.y)
    for scales in ((32, 32), (64, 64)):
        net.end(net.conv(net.resize(small, scales, **NEAREST)))


def linear(net: Net) -> None:
    for mode in ("asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"):
        attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
        net.end(net.conv(net.resize(net.y, (2, 2), **attributes)))
        net.end(net.conv(net.resize(net.y, sizes=(13, 17), **attributes)))
        net.end(net.conv(net.resize(net.y, sizes=(5, 7), **attributes)))


def linear_others(net: Net) -> None:
    """One row, modes that have no integer form, and an output."""
    for mode in ("half_pixel", "pytorch_half_pixel"):
        attributes = {"mode": "linear", "coordinate_transformation_mode": mode}
        net.end(net.conv(net.resize(net.y, sizes=(1, 17), **attributes)))
    half = {"coordinate_transformation_mode": "half_pixel"}
    net.end(net.conv(net.resize(net.y, (2, 2), mode="cubic", **half)))
    tf_mode = {"mode": "linear", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    net.end(net.conv(net.resize(net.y, (2, 2), **tf_mode)))


def linear_last(net: Net) -> None:
    half = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    net.end(net.resize(net.op("Sigmoid", net.y), (2, 2), **half))


NETS: Mapping[str, Callable[[Net], None]] = {
    "argmax": argmax,
    "bias": bias,
    "broadcast": broadcast,
    "concat": concat,
    "constant_operand": constant_operand,
    "flat": flat,
    "float_between": float_between,
    "float_operators": float_operators,
    "linear": linear,
    "linear_last": linear_last,
    "linear_others": linear_others,
    "max_last": max_last,
    "max_of_min": max_of_min,
    "min_last": min_last,
    "min_max": min_max,
    "min_max_constant": min_max_constant,
    "movers": movers,
    "nearest": nearest,
    "nearest_far": nearest_far,
    "nearest_modes": nearest_modes,
    "other_steps": other_steps,
    "pad": pad,
    "prelu": prelu,
    "reductions": reductions,
    "residual_constant": residual_constant,
    "residual_sums": residual_sums,
    "sums_relu": sums_relu,
    "ties": ties,
    "topk": topk,
    "transposed": transposed,
}


def converted(vendor: Vendor, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of every file for the archive."""
    random = np.random.default_rng(1)
    samples = [{"x": random.normal(size=(1, 4, 8, 10)).astype(np.float32)} for _ in range(SAMPLES)]
    for name in names:
        net = Net()
        NETS[name](net)
        for march in MARCHES:
            with tempfile.TemporaryDirectory() as temporary:
                work = Path(temporary)
                onnx.save(net.model(), work / "float.onnx")
                stages = vendor.build(work / "float.onnx", samples, work, march=march)
                for stage in ("calibrated", "quantized"):
                    yield f"{name}-{march}.{stage}.onnx", stages[stage].read_bytes()
            print(f"{name}-{march}", file=sys.stderr)


def main() -> int:
    """Convert all nets and pack them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vendor-python", type=Path, metavar="VENV/bin")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--only", default=",".join(NETS), help="names of nets, comma between")
    options = parser.parse_args()
    vendor = Vendor.find(options.vendor_python)
    if vendor is None:
        print(HOW_TO_INSTALL, file=sys.stderr)
        return 0
    buffer = io.BytesIO()
    try:
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for name, content in converted(vendor, options.only.split(",")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    except VendorError as error:
        print(error, file=sys.stderr)
        return 1
    packed = lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)
    options.output.write_bytes(packed)
    print(f"{options.output}: {len(packed) / 1e3:.0f} kB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
