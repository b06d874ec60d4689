"""Builders of tiny quantized models, and the cases of fixtures/golden_integer_models.tar.xz."""

from __future__ import annotations

import io
import json
import tarfile
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.models import GraphBuilder

FIXTURES = Path(__file__).parent.parent / "fixtures"


class QuantizedModel(GraphBuilder):
    """Collects nodes; every method returns the name of the tensor it makes."""

    def node(self, op_type: str, inputs: list[str], name: str = "", **attributes) -> str:
        """Add a node; vendor operators are told by their name."""
        name = name or f"{op_type}_{len(self.nodes)}"
        domain = "horizon" if op_type.startswith("Hz") else ""
        self.nodes.append(
            helper.make_node(
                op_type, inputs, [f"{name}_out"], name=name, domain=domain, **attributes
            )
        )
        return f"{name}_out"

    def quantize(self, x: str, scale: float, bits: int = 8) -> str:
        scale_name = self.constant(f"{x}_scale", np.float32(scale))
        return self.node("HzQuantize", [x, scale_name], f"{x}_quantize", bits=bits)

    def dequantize(self, x: str, scale: float) -> str:
        scale_name = self.constant(f"{x}_scale", np.float32(scale))
        return self.node("HzDequantize", [x, scale_name], f"{x}_dequantize")

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(self.nodes, "tiny", self.inputs, self.outputs, self.initializers)
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
        opsets = [helper.make_opsetid("", 11), helper.make_opsetid("horizon", 1)]
        return helper.make_model(
            graph,
            opset_imports=opsets,
            ir_version=7,
            producer_name="horizon_nn",
            producer_version="1.1.0",
        )


def table_lookup() -> onnx.ModelProto:
    """``x`` of four values with scale 0.5, negated by a table, as floats with scale 0.25."""
    b = QuantizedModel()
    x = b.quantize(b.input("x", (1, 4)), 0.5)
    table = np.clip(-np.arange(-128, 128), -128, 127).astype(np.int8)
    y = b.node("HzLut", [x, b.constant("table", table)], "negate")
    b.output(b.dequantize(y, 0.25))
    return b.proto()


def two_inputs() -> onnx.ModelProto:
    """Two float inputs, quantized with scale 1, side by side: one int8 and one float output."""
    b = QuantizedModel()
    left, right = b.quantize(b.input("left", (1, 2)), 1), b.quantize(b.input("in/right", (1, 3)), 1)
    both = b.node("Concat", [left, right], "both", axis=1)
    b.output(both, TensorProto.INT8)
    b.output(b.dequantize(both, 2))
    return b.proto()


@cache
def golden_files() -> dict[str, bytes]:
    with tarfile.open(FIXTURES / "golden_integer_models.tar.xz") as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}


def golden_cases() -> list[dict]:
    """Return the records that fixtures/pack_integer_models.py describes."""
    return json.loads(golden_files()["cases.json"])


def golden_array(file: str) -> np.ndarray:
    return np.load(io.BytesIO(golden_files()[file]))
