"""ONNX files -> `QuantModel`; which kind of file it is shows in what the graph contains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import hmct, qdq
from hbdebug.loading.graph import some
from hbdebug.loading.protobuf import read_model
from hbdebug.model import CALIBRATION

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
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    float_model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    skip_unsupported: bool = False,
) -> QuantModel:
    """Load a model with quantization points.

    Args:
        model: ``*_calibrated_model.onnx`` of the vendor's converter, or a model with pairs of
            QuantizeLinear and DequantizeLinear (QDQ), or either in memory. It is read once and
            never changed.
        float_model: The float model that a QDQ model was made of. Weights that a QDQ model holds
            in integers only get their original values from there; which operator is which is seen
            from the structure of the two graphs.
        skip_unsupported: Leave out operators that are not known, with all that depends on them,
            and put points with unknown attributes in float, instead of raising; what was left
            out is listed in ``skipped``, and the tensors that fed it become outputs.

    Returns:
        Nodes and points, the points normalised as the vendor's loader does.

    Raises:
        UnsupportedError: The model holds operators, attributes or types that are not known.
        ModelError: It has no points, or contradicts itself, or the float model is another one.
    """
    loaded = _load(read_model(model), skip_unsupported=skip_unsupported)
    if float_model is not None:
        loaded = _with_float_weights(loaded, float_model)
    return _checked(qdq.warned(loaded))


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
    loaded = _load(file, skip_unsupported=skip_unsupported)
    # A model with weights in integers runs as it is, whether or not they can be analysed.
    return loaded if qdq.integer_constants(loaded) else _checked(loaded)


def _load(file: ModelFile, *, skip_unsupported: bool) -> QuantModel:
    # In order of appearance, which is how messages name them.
    op_types = list(dict.fromkeys(node.op_type for node in file.proto.graph.node))
    # Beside HzCalibration nodes, the vendor's own pairs are operators like others.
    vendors = CALIBRATION in op_types and "QuantizeLinear" not in op_types
    pairs = qdq.is_qdq(op_types) and not vendors and not _integer_operators(op_types)
    if not pairs and CALIBRATION not in op_types:
        raise _without_points(file, op_types)
    build = qdq.build if pairs else hmct.build
    return build(file, skip_unsupported=skip_unsupported)


def _checked(loaded: QuantModel) -> QuantModel:
    """Return a model if any of its points is enabled."""
    if not loaded.points:
        raise UnsupportedError(
            "nothing with a quantization point is left once the unknown operators are left out: "
            + some([f"{item.name} ({item.op_type}): {item.reason}" for item in loaded.skipped]),
            where=loaded.path,
        )
    if not loaded.outputs:
        raise UnsupportedError(
            "no output is left, nor anything in front of one, once the unknown operators are left "
            "out: " + some([f"{item.name} ({item.op_type})" for item in loaded.skipped]),
            where=loaded.path,
        )
    if not any(point.enabled for point in loaded.points):
        raise _nothing_enabled(loaded)
    return loaded


def _with_float_weights(
    loaded: QuantModel, float_model: str | os.PathLike[str] | onnx.ModelProto
) -> QuantModel:
    """Replace what a file holds in integers only by the values of the float model."""
    from hbdebug.loading.originals import match_originals  # noqa: PLC0415 - only on request

    wanted = qdq.integer_constants(loaded)
    if not wanted:
        return loaded
    originals = match_originals(loaded, wanted.keys(), read_model(float_model))
    given = qdq.with_originals(loaded, originals.found, originals.source)
    count = f"{len(originals.found)} of {len(wanted)}"
    note = f"{count} stored weights and biases have their original values from the float model"
    reasons: dict[str, list[str]] = {}
    for name, reason in originals.unmatched.items():
        reasons.setdefault(reason, []).append(wanted[name].name)
    missing = [
        f"without their original values: {some(names)}: {reason}"
        for reason, names in reasons.items()
    ]
    return replace(given, notes=(*given.notes, note), warnings=(*given.warnings, *missing))


def _integer_operators(op_types: Sequence[str]) -> list[str]:
    """Return the vendor's operators that compute in integers; HzQuantize may be half a pair."""
    return [
        name for name in op_types if name.startswith(hmct.INTEGER_PREFIXES) and name != "HzQuantize"
    ]


def _without_points(file: ModelFile, op_types: Sequence[str]) -> ModelError:
    """Say which kind of model it is instead, and which file to give."""
    integer = _integer_operators(op_types)
    qdq.refuse_qoperators(file.path, op_types)
    if integer:
        message = f"is a quantized model: it holds integer operators ({some(integer)})"
        hint = f"Analyse the model one stage earlier: {_calibrated_sibling(file.path)}."
    else:
        stage = next((s for s in _FLOAT_STAGES if file.path.endswith(s)), "")
        kind = (
            f"the converter's {stage[1:-11].replace('_', ' ')} stage" if stage else "a float model"
        )
        if file.path.endswith(_CALIBRATED):
            kind = "called calibrated, and its converter quantizes nothing of it"
        message = f"is {kind}: it has no quantization points (HzCalibration nodes, or pairs of "
        message += "QuantizeLinear and DequantizeLinear)"
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


def _enabling_hint(model: QuantModel) -> str:
    if qdq.integer_constants(model):
        return "Only weights are quantized: give the float model that it was made of with --float."
    return "Give the *_calibrated_model.onnx as the converter wrote it, with its points on."


def _nothing_enabled(model: QuantModel) -> ModelError:
    counts: dict[str, int] = {}
    for point in model.points:
        counts[point.reason] = counts.get(point.reason, 0) + 1
    reasons = "; ".join(f"{count}: {reason}" for reason, count in counts.items())
    return ModelError(
        f"none of its {len(model.points)} points quantizes anything ({reasons})",
        where=model.path,
        hint=_enabling_hint(model),
    )
