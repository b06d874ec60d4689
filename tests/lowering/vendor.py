"""What the vendor's quantizer made of calibrated models: fixtures/golden_derive*, _lowering*."""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

FIXTURES = Path(__file__).parents[2] / "fixtures"


@cache
def _families():
    return json.loads(lzma.decompress((FIXTURES / "golden_derive.json.xz").read_bytes()))


def cases(family):
    """Return the cases of one family, such as ``conv``."""
    return _families()[family]


@cache
def _models(archive):
    content = lzma.decompress((FIXTURES / archive).read_bytes())
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}


SMALL_MODELS = "golden_derive_models.tar.xz"
NETS = "golden_lowering.tar.xz"


def pair_names(archive=SMALL_MODELS):
    """Return the names of all small models, or of the nets that ask single questions."""
    stage = ".quantized.onnx"
    return sorted(name.removesuffix(stage) for name in _models(archive) if name.endswith(stage))


def pair_models(name, archive=SMALL_MODELS):
    """Return a small model before and after the quantizer."""
    files = (_models(archive)[f"{name}.{stage}.onnx"] for stage in ("calibrated", "quantized"))
    return tuple(onnx.load_from_string(content) for content in files)


def march_of(name):
    """Return the march that a small model was converted for."""
    return next(each for each in ("bernoulli2", "bayes-e", "bayes") if each in name)


def pair(name):
    """Return a small model before and after the quantizer, taken apart."""
    return tuple(File(model) for model in pair_models(name))


LAYOUT = "golden_layout.tar.xz"
LAYOUT_BERNOULLI2 = "golden_layout_bernoulli2.tar.xz"


def layout_cases(archive=LAYOUT):
    """Return what each net that is about layout is set to: name -> cpu and int16 nodes."""
    return json.loads(_models(archive)["cases.json"])


def layout_models(name, archive=LAYOUT):
    """Return a net that is about layout, before and after the quantizer."""
    return pair_models(name, archive)


def classifier_models():
    """Return the classifier before and after the quantizer."""
    folder = FIXTURES / "textline_cls"
    stages = ("calibrated", "quantized")
    return tuple(onnx.load(str(folder / f"cls_{stage}_model.onnx")) for stage in stages)


def classifier():
    """Return the classifier before and after the quantizer, taken apart."""
    return tuple(File(model) for model in classifier_models())


def attributes(node):
    """Return a node's attributes; strings as str."""
    values = {each.name: helper.get_attribute_value(each) for each in node.attribute}
    return {
        name: value.decode() if isinstance(value, bytes) else value
        for name, value in values.items()
    }


class File:
    """A graph, and what is where in it."""

    def __init__(self, model):
        self.nodes = list(model.graph.node)
        self.by_name = {node.name: node for node in self.nodes}
        self.producer = {output: node for node in self.nodes for output in node.output}
        self.constants = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        self.outputs = {value.name for value in model.graph.output}
        self._values = [*model.graph.value_info, *model.graph.input, *model.graph.output]

    @cached_property
    def consumers(self):
        found = {}
        for node in self.nodes:
            for name in node.input:
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def shapes(self):
        return {
            value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
            for value in self._values
        }


class Grid:
    """The steps that an HzCalibration gives its tensor."""

    def __init__(self, node):
        values = attributes(node)
        self.bits = {"int8": 8, "int16": 16}[values["qtype"]]
        self.thresholds = np.array(values["thresholds"], np.float32)
        self.step = np.float32(values["scales"][0])

    def step_in(self, bits):
        """Return the step if an operator uses this width, whatever the calibration says."""
        if bits == self.bits:
            return self.step
        return self.thresholds[0] / np.float32({8: 127, 16: 32767}[bits])


# Their output counts in the steps of their input if nothing behind them says otherwise.
TRANSPARENT = {"MaxPool", "ReduceMax", "Reshape", "Slice", "Split", "Transpose"}


def grid_of(model, tensor):
    """Return the grid of a tensor that a node reads; None if nothing quantizes it."""
    node = model.producer.get(tensor)
    if node is None or node.op_type not in {"HzCalibration", *TRANSPARENT}:
        return None
    return Grid(node) if node.op_type == "HzCalibration" else grid_of(model, node.input[0])


def grid_behind(model, tensor):
    """Return the grid of a node's output, through a Relu; None if nothing quantizes it."""
    for node in model.consumers.get(tensor, ()):
        if node.op_type == "HzCalibration":
            return Grid(node)
    for node in model.consumers.get(tensor, ()):
        if node.op_type == "Relu":
            return grid_behind(model, node.output[0])
    return None
