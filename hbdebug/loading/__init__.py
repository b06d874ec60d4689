"""ONNX files -> `QuantModel`; which kind of file it is shows in what the graph contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import hmct
from hbdebug.loading.graph import some
from hbdebug.loading.protobuf import read_model
from hbdebug.loading.tensors import CALIBRATION

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import onnx

    from hbdebug.loading.protobuf import ModelFile
    from hbdebug.model import QuantModel

__all__ = ["load", "load_to_run"]

_CALIBRATED = "_calibrated_model.onnx"
_FLOAT_STAGES = ("_optimized_float_model.onnx", "_original_float_model.onnx")
_QUANTIZED = "_quantized_model.onnx"


def load(
    model: str | os.PathLike[str] | onnx.ModelProto, *, skip_unsupported: bool = False
) -> QuantModel:
    """Load a calibrated model.

    Args:
        model: ``*_calibrated_model.onnx`` of the vendor's converter, or the same in memory. It is
            read once and never changed.
        skip_unsupported: Leave out operators that are not known, with all that depends on them,
            and put points with unknown attributes in float, instead of raising; what was left
            out is listed in ``skipped``, and the tensors that fed it become outputs.

    Returns:
        Nodes and points, the points normalised as the vendor's loader does.

    Raises:
        UnsupportedError: The model holds operators, attributes or types that are not known.
        ModelError: It is not a calibrated model, or contradicts itself.
    """
    return _load_calibrated(read_model(model), skip_unsupported=skip_unsupported)


def load_to_run(
    model: str | os.PathLike[str] | onnx.ModelProto, *, skip_unsupported: bool = False
) -> QuantModel:
    """Load a model of either stage that can be run as it is.

    Args:
        model: A calibrated or a quantized model; it is read once and never changed.
        skip_unsupported: As for `load`; a quantized model has to be known as a whole.

    Returns:
        What `load` returns for a calibrated model, an `IntegerModel` for a quantized one.

    Raises:
        UnsupportedError: The model holds operators, attributes or types that are not known.
        ModelError: It is neither, or contradicts itself.
    """
    # The kernels take time to import, and who analyses calibrated models needs none of them.
    from hbdebug.loading import integer  # noqa: PLC0415 - see above

    file = read_model(model)
    if integer.is_integer(file):
        return integer.build(file)
    return _load_calibrated(file, skip_unsupported=skip_unsupported)


def _load_calibrated(file: ModelFile, *, skip_unsupported: bool) -> QuantModel:
    # In order of appearance, which is how messages name them.
    op_types = list(dict.fromkeys(node.op_type for node in file.proto.graph.node))
    if CALIBRATION not in op_types:
        raise _not_calibrated(file, op_types)
    loaded = hmct.build(file, skip_unsupported=skip_unsupported)
    if not loaded.points:
        raise UnsupportedError(
            "nothing with a quantization point is left once the unknown operators are left out: "
            + some([f"{item.name} ({item.op_type}): {item.reason}" for item in loaded.skipped]),
            where=loaded.path,
        )
    if not any(point.enabled for point in loaded.points):
        raise _nothing_enabled(loaded)
    return loaded


def _not_calibrated(file: ModelFile, op_types: Sequence[str]) -> ModelError:
    """Say which kind of model it is instead, and which file to give."""
    integer = [name for name in op_types if name.startswith(hmct.INTEGER_PREFIXES)]
    if integer:
        message = f"is a quantized model: it holds integer operators ({some(integer)})"
        hint = f"Analyse the model one stage earlier: {_calibrated_sibling(file.path)}."
    elif not {"QuantizeLinear", "DequantizeLinear"}.isdisjoint(op_types):
        message = "is a QDQ model (QuantizeLinear/DequantizeLinear); these are not supported yet"
        hint = "Give the *_calibrated_model.onnx that the vendor's converter makes of it."
    else:
        stage = next((s for s in _FLOAT_STAGES if file.path.endswith(s)), "")
        kind = (
            f"the converter's {stage[1:-11].replace('_', ' ')} stage" if stage else "a float model"
        )
        if file.path.endswith(_CALIBRATED):
            kind = "called calibrated, and its converter quantizes nothing of it"
        message = f"is {kind}: it has no quantization points (HzCalibration nodes)"
        hint = (
            f"Give {_calibrated_sibling(file.path)}, which the vendor's converter writes beside "
            "its other stages; calibrating a float model here is not supported yet."
        )
    return ModelError(message, where=file.path, hint=hint)


def _calibrated_sibling(path: str) -> str:
    """Return the calibrated stage of the same conversion if it lies there, or its pattern."""
    for stage in (*_FLOAT_STAGES, _QUANTIZED):
        if path.endswith(stage):
            sibling = path[: -len(stage)] + _CALIBRATED
            if Path(sibling).is_file():
                return sibling
    return "the *" + _CALIBRATED


def _nothing_enabled(model: QuantModel) -> ModelError:
    counts: dict[str, int] = {}
    for point in model.points:
        counts[point.reason] = counts.get(point.reason, 0) + 1
    reasons = "; ".join(f"{count}: {reason}" for reason, count in counts.items())
    return ModelError(
        f"none of its {len(model.points)} points quantizes anything ({reasons})",
        where=model.path,
        hint="Give the *_calibrated_model.onnx as the converter wrote it, with its points on.",
    )
