"""The obvious way to run a model: one node after the other, keeping every tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hbdebug.loading import hmct
from hbdebug.loading.protobuf import ModelFile
from hbdebug.model import Assignment, Point
from hbdebug.quant import fake_quantize, float_passthrough
from hbdebug.slices import Slicer

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from hbdebug.model import QuantModel


def build(model: onnx.ModelProto, *, skip_unsupported: bool = False) -> QuantModel:
    """Return nodes and points of a model, also of one that `load` refuses for lack of points."""
    file = ModelFile(proto=model, path="model.onnx", sha256="")
    return hmct.build(file, skip_unsupported=skip_unsupported)


def run_all(
    model: QuantModel, inputs: dict[str, NDArray[Any]], assignment: Assignment
) -> dict[str, NDArray[Any]]:
    """Compute every tensor, in one-node sessions without optimizations across nodes."""
    slicer = Slicer(model)
    values: dict[str, NDArray[Any]] = {**model.constants, **inputs}
    fixed = set(model.constants)
    for step in model.steps:
        if isinstance(step, Point):
            values[step.output] = _behind(step, values[step.input], assignment)
            if step.input in fixed:
                fixed.add(step.output)
            continue
        fed = {name: values[name].dtype.name for name in step.inputs if name and name not in fixed}
        constants = {name: values[name] for name in step.inputs if name in fixed}
        runner = slicer.node(step, fed, constants)
        values.update(zip(runner.outputs, runner.run(values), strict=True))
    return values


def _behind(point: Point, x: NDArray[Any], assignment: Assignment) -> NDArray[Any]:
    if point.name in assignment:
        return fake_quantize(x, assignment[point.name])
    return x if point.params is None else float_passthrough(x, point.params)
