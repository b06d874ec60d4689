"""Models with QuantizeLinear and DequantizeLinear (QDQ) -> `QuantModel`, and words about them.

`hbdebug.loading.twin` says how.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading.graph import some
from hbdebug.loading.hmct import Reader
from hbdebug.loading.quantize_linear import DEQUANTIZE, QUANTIZE
from hbdebug.loading.twin import ONLY_INTEGERS, Twin
from hbdebug.model import CALIBRATION, Point, QuantModel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from hbdebug.loading.protobuf import ModelFile
    from hbdebug.model import Step

KIND = "QDQ"
"""What reports call these files."""

_QOPERATORS = frozenset(
    {
        "ConvInteger",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QAttention",
        "QEmbedLayerNormalization",
        "QGemm",
    }
)
_QOPERATOR_PREFIX = "QLinear"


def is_qdq(op_types: Iterable[str]) -> bool:
    """Tell whether a graph with these operators holds pairs, as opposed to other integers."""
    found = set(op_types)
    names = {op_type for _, op_type in QUANTIZE | DEQUANTIZE}
    return not names.isdisjoint(found)


def qoperators(op_types: Iterable[str]) -> list[str]:
    """Return the operators that compute in integers themselves (ONNX Runtime's QOperator form)."""
    return [
        op_type
        for op_type in dict.fromkeys(op_types)
        if op_type in _QOPERATORS or op_type.startswith(_QOPERATOR_PREFIX)
    ]


def quantizing(op_types: Iterable[str]) -> list[str]:
    """Return the operators that no float model holds, each once."""
    pairs = {op_type for _, op_type in QUANTIZE | DEQUANTIZE}
    found = list(dict.fromkeys(op_types))
    integers = qoperators(found)
    return [name for name in found if name in pairs or name == CALIBRATION or name in integers]


def refuse_qoperators(path: str, op_types: Sequence[str]) -> None:
    """Refuse models whose operators compute in integers.

    Raises:
        UnsupportedError: There are such operators.
    """
    found = qoperators(op_types)
    if not found:
        return
    dynamic = [name for name in found if "Dynamic" in name or name.endswith("Integer")]
    hint = (
        "Its activations are quantized anew in every run (dynamic quantization), which no BPU "
        "does: quantize statically, quantize_static(..., quant_format=QuantFormat.QDQ)."
        if dynamic
        else "Quantize again with pairs of QuantizeLinear and DequantizeLinear: "
        "quantize_static(..., quant_format=QuantFormat.QDQ)."
    )
    raise UnsupportedError(
        f"is in QOperator form: {some(found)} compute in integers, and the float operators that "
        "they came from are not in the file",
        where=path,
        hint=hint,
    )


def build(file: ModelFile, *, skip_unsupported: bool) -> QuantModel:
    """Turn a parsed model into nodes and points.

    Args:
        file: The model.
        skip_unsupported: Leave out what is not known instead of raising.

    Raises:
        UnsupportedError: It holds operators, attributes or types that are not known.
        ModelError: It contradicts itself.
    """
    refuse_qoperators(file.path, [node.op_type for node in file.proto.graph.node])
    try:
        return _Reader(file).read(skip_unsupported=skip_unsupported)
    except ModelError as error:
        error.where = f"{file.path}: {error.where}" if error.where else file.path
        raise


def require_calibrated(model: QuantModel) -> None:
    """Refuse models that say nothing about the chip's integers.

    Raises:
        UnsupportedError: The model has pairs of QuantizeLinear and DequantizeLinear.
    """
    if model.has_pairs:
        raise UnsupportedError(
            "the chip's integers follow from a calibrated model, and this is a QDQ model",
            where=model.path,
            hint="Give the *_calibrated_model.onnx that the vendor's converter makes of it.",
        )


def integer_constants(model: QuantModel) -> dict[str, Point]:
    """Return the points on constants that the file holds in integers only, by constant."""
    return {point.input: point for point in model.points if point.reason == ONLY_INTEGERS}


def warned(model: QuantModel) -> QuantModel:
    """Say in a model's warnings what of it cannot be measured, or is odd."""
    stored = integer_constants(model)
    found = list(model.warnings)
    if stored:
        found.append(
            f"{len(stored)} weights and biases are in the file as integers only, so that their own "
            "error cannot be measured: --float FLOAT.onnx (float_model=) supplies the original ones"
        )
    for point in model.points:
        params = point.params
        unusable = 0 if params is None else int(np.count_nonzero(~(params.scale > 0)))
        if params is not None and unusable:
            found.append(
                f"point {point.name}: {unusable} of {params.scale.size} scales are zero, negative "
                "or NaN: dead channels, which come out as the file says"
            )
    return replace(model, warnings=tuple(found))


def with_originals(
    model: QuantModel,
    originals: Mapping[str, NDArray[np.generic]],
    source: Mapping[str, str] | None = None,
) -> QuantModel:
    """Give constants their original float values, so that their own error can be measured.

    Args:
        model: What `build` returned.
        originals: Constant, one of `integer_constants`, -> its value before it was quantized.
        source: Constant -> where that came from, in words.
    """
    constants = dict(model.constants)
    steps: list[Step] = []
    for step in model.steps:
        if isinstance(step, Point) and step.reason == ONLY_INTEGERS and step.input in originals:
            stored = model.constants[step.input]
            constants[step.input] = originals[step.input].astype(stored.dtype)
            original = (source or {}).get(step.input, "")
            steps.append(replace(step, enabled=True, reason="", stored=stored, original=original))
        else:
            steps.append(step)
    return replace(model, steps=tuple(steps), constants=constants)


class _Reader(Reader):
    """Reads a model with pairs, and HzCalibration nodes beside them, if there are any."""

    kind = KIND

    def steps(self, named: Sequence[tuple[str, onnx.NodeProto]]) -> list[Step]:
        """Turn nodes into the steps of the float twin."""
        twin = Twin(self, self._file.proto.graph, self._opset)
        steps = twin.steps(named)
        if twin.put_back:
            count = len(twin.put_back)
            self.notes.append(
                f"{count} Relu or Clip in front of points whose range begins at 0 (such as "
                f"{twin.put_back[0]}) are assumed for the float baseline: quantizers leave them "
                "out; they change nothing where values are never negative"
            )
        return steps
