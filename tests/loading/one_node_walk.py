"""Run a model with the engine's own walk, keeping every tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hbdebug.loading import hmct
from hbdebug.loading.protobuf import ModelFile
from hbdebug.slices import Slicer
from hbdebug.walk import Walker

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

    from hbdebug.model import Assignment, QuantModel


def build(model: onnx.ModelProto, *, skip_unsupported: bool = False) -> QuantModel:
    """Return nodes and points of a model, also of one that `load` refuses for lack of points."""
    file = ModelFile(proto=model, path="model.onnx", sha256="")
    return hmct.build(file, skip_unsupported=skip_unsupported)


def run_all(
    model: QuantModel, inputs: dict[str, NDArray[Any]], assignment: Assignment
) -> dict[str, NDArray[Any]]:
    """Walk the model, as the engine does, and return every tensor."""
    walker = Walker(model, Slicer(model))
    values: dict[str, NDArray[Any]] = {**model.constants, **inputs}
    walker.forward(inputs, assignment, keep=values.__setitem__)
    for name in model.static:
        values[name] = walker.static_value(name, assignment)
    return values
