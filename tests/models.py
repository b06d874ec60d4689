"""Builders of tiny calibrated models, in the form that the vendor's toolchain writes them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

ACTIVATION = 0x11111
WEIGHT = 0x22111


class GraphBuilder:
    """Collects the parts of a graph; every method returns the name of its tensor."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, shape: tuple[int, ...], dtype: int = TensorProto.FLOAT) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, name: str, dtype: int = TensorProto.FLOAT) -> str:
        self.outputs.append(helper.make_tensor_value_info(name, dtype, None))
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        self.initializers.append(onnx.numpy_helper.from_array(np.asarray(value), name))
        return name


class CalibratedModel(GraphBuilder):
    """Collects nodes and points; every method returns the name of the tensor it makes.

    Weights are drawn from a seeded generator, so two builders with the same seed and the same
    calls give the same model.
    """

    def __init__(self, seed: int = 0, opset: int = 11) -> None:
        super().__init__()
        self.random = np.random.default_rng(seed)
        self.opset = opset

    def node(
        self, op_type: str, inputs: list[str], name: str = "", *, outputs: int = 1, **attributes
    ) -> str:
        """Add a node; its outputs are called like it, with ``_out`` and a number behind."""
        name = name or f"{op_type}_{len(self.nodes)}"
        made = [f"{name}_out" if index == 0 else f"{name}_out{index}" for index in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name=name, **attributes))
        return made[0]

    def hz(self, op_type: str, inputs: list[str], name: str = "", **attributes) -> str:
        """Add a node of the vendor's domain."""
        return self.node(op_type, inputs, name, domain="horizon", **attributes)

    def point(self, tensor: str, threshold: float = 2.0, dtype: str = "int8", **attributes) -> str:
        """Quantize an activation; the point is called ``<tensor>_HzCalibration``."""
        limit = {"int8": 127, "int16": 32767, "uint8": 255}.get(dtype, 127)
        settings = {
            "quant_attrs": ACTIVATION,
            "qtype": dtype,
            "constant": 1,
            "switch": "ON",
            "thresholds": [float(threshold)],
            "scales": [float(np.float32(threshold / limit))],
            **attributes,
        }
        name = f"{tensor}_HzCalibration"
        if any(node.name == name for node in self.nodes):
            name = f"{tensor}_HzCalibration_{len(self.nodes)}"
        made = f"{name.replace('_HzCalibration', '')}_calibrated"
        self.nodes.append(
            helper.make_node(
                "HzCalibration", [tensor], [made], name=name, domain="horizon", **settings
            )
        )
        return made

    def weight(self, name: str, value: np.ndarray, axis: int = 0, group: int = 1) -> str:
        """Add a per-channel quantized weight and return the tensor behind its point."""
        self.constant(name, value.astype(np.float32))
        rest = tuple(index for index in range(value.ndim) if index != axis)
        thresholds = np.abs(value).max(axis=rest).astype(np.float32)
        return self.point(
            name,
            quant_attrs=WEIGHT,
            thresholds=[float(item) for item in thresholds],
            scales=[float(np.float32(float(item) / 127)) for item in thresholds],
            axis=axis,
            group=group,
        )

    def conv(
        self,
        x: str,
        channels: tuple[int, int],
        name: str,
        *,
        kernel: int = 3,
        threshold: float = 2.0,
        calibrate: bool = True,
    ) -> str:
        """Add a convolution with its weight's point, and one on its input unless told not to."""
        cin, cout = channels
        weight = self.random.normal(0, (cin * kernel * kernel) ** -0.5, (cout, cin, kernel, kernel))
        x = self.point(x, threshold) if calibrate else x
        pad = kernel // 2
        return self.node(
            "Conv",
            [x, self.weight(f"{name}_w", weight), self.constant(f"{name}_b", _bias(self, cout))],
            name,
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
        )

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, self.initializers)
        for output in graph.output:
            if output.type.tensor_type.elem_type == TensorProto.FLOAT:
                output.type.tensor_type.ClearField("shape")
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("horizon", 1)]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=7, producer_name="horizon_nn"
        )


def _bias(builder: CalibratedModel, count: int) -> np.ndarray:
    return builder.random.normal(0, 0.1, count).astype(np.float32)


def one_coarse_node() -> onnx.ModelProto:
    """Four convolutions; what ``b`` reads has a threshold far beyond its values."""
    b = CalibratedModel()
    x = b.input("x", (1, 3, 10, 10))
    for name in ("a", "b", "c"):
        limit = 60.0 if name == "b" else 3.0
        x = b.node("Relu", [b.conv(x, (3, 3), name, threshold=limit)], f"{name}_relu")
    b.output(b.conv(x, (3, 4), "head"))
    return b.proto()


def residual(seed: int = 0) -> onnx.ModelProto:
    """A residual network: two blocks with a shared point each, and class scores at the end."""
    b = CalibratedModel(seed)
    x = b.input("x", (1, 3, 12, 12))
    x = b.node("Relu", [b.conv(x, (3, 8), "stem")], "stem_relu")
    for block in ("one", "two"):
        shared = b.point(x, 1.5)
        y = b.conv(shared, (8, 8), f"{block}_a", calibrate=False)
        y = b.conv(b.node("Relu", [y], f"{block}_relu"), (8, 8), f"{block}_b")
        x = b.node("Add", [b.point(y, 2.5), shared], f"{block}_add")
    pooled = b.node("GlobalAveragePool", [b.point(x, 3.0)], "pool")
    logits = b.conv(pooled, (8, 5), "head", kernel=1, threshold=1.0)
    flat = b.node("Reshape", [logits, b.constant("flat", np.array([1, 5]))], "reshape")
    b.output(b.node("Softmax", [flat], "softmax", axis=1))
    return b.proto()


def many_outputs(seed: int = 0) -> onnx.ModelProto:
    """Two inputs, three outputs at different depths; one of them is a calibrated tensor."""
    b = CalibratedModel(seed)
    left, right = b.input("left", (1, 4, 6, 6)), b.input("right", (1, 4, 6, 6))
    early = b.conv(left, (4, 6), "early")
    b.output(early)
    mixed = b.node("Mul", [b.point(b.conv(right, (4, 6), "late")), b.point(early)], "mixed")
    b.output(b.point(mixed, 1.0, "int16"))
    b.output(b.conv(mixed, (6, 2), "tail"))
    return b.proto()


def inputs_for(
    model: onnx.ModelProto, seed: int = 1, count: int = 1
) -> list[dict[str, np.ndarray]]:
    """Return random samples that fit a model's float inputs."""
    random = np.random.default_rng(seed)
    return [
        {
            item.name: random.normal(
                0, 1, [size.dim_value for size in item.type.tensor_type.shape.dim]
            ).astype(np.float32)
            for item in model.graph.input
        }
        for _ in range(count)
    ]


def save_samples(folder, samples: list[dict[str, np.ndarray]]):
    """Write samples as ``folder/<input>/<n>.npy`` and return the folder."""
    for index, sample in enumerate(samples):
        for name, array in sample.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            np.save(folder / name / f"{index}.npy", array)
    return folder
