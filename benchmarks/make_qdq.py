"""Make a QDQ model of a float model with ONNX Runtime's static quantizer.

    python benchmarks/make_qdq.py FLOAT.onnx CALIB OUT.onnx [--per-channel] [--activations int8]
                                  [--weights int8] [--opset 13] [--samples N]

The quantizer wants BatchNormalization folded and shapes inferred, and wants opset 13 for scales per
channel; both are done on the way, with ONNX Runtime's own preprocessing. FLOAT.onnx is not
changed. Beside OUT.onnx lies ``OUT.float.onnx`` with ``--keep-float``: what was quantized, under
the names that the quantizer kept.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from onnxruntime.quantization import (  # noqa: TID253 - what this script runs
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import (  # noqa: TID253 - likewise
    quant_pre_process,
)

from hbdebug.loading.protobuf import tensor_spec
from hbdebug.samples import open_samples

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hbdebug.samples import Samples, TensorSpec

TYPES = {
    "int4": "QInt4",
    "int8": "QInt8",
    "int16": "QInt16",
    "uint4": "QUInt4",
    "uint8": "QUInt8",
    "uint16": "QUInt16",
}
# The operators for these types came to ai.onnx in opset 21; before, they are ONNX Runtime's own.
CONTRIBUTED = frozenset({"int4", "uint4", "int16", "uint16"})


class SampleReader(CalibrationDataReader):  # type: ignore[misc]
    """Hands samples to ONNX Runtime, one at a time; nothing is kept.

    Args:
        samples: What to hand over.
    """

    def __init__(self, samples: Samples) -> None:
        self._samples = samples
        self._left: Iterator[tuple[str, dict[str, Any]]] = iter(samples)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next sample; None at the end."""
        return next((arrays for _, arrays in self._left), None)

    def rewind(self) -> None:
        """Start again."""
        self._left = iter(self._samples)


def inputs_of(model: onnx.ModelProto) -> list[TensorSpec]:
    """Return what the user feeds."""
    constants = {item.name for item in model.graph.initializer}
    return [tensor_spec(item) for item in model.graph.input if item.name not in constants]


def at_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """Return a model of at least an opset, without domains that no node uses."""
    used = {node.domain for node in model.graph.node} | {""}
    kept = [item for item in model.opset_import if item.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    version = next(item.version for item in kept if not item.domain)
    return onnx.version_converter.convert_version(model, opset) if version < opset else model


def make(
    float_path: Path,
    data: Path,
    target: Path,
    *,
    per_channel: bool = False,
    activations: str = "int8",
    weights: str = "int8",
    opset: int = 13,
    limit: int | None = None,
    keep_float: Path | None = None,
) -> None:
    """Quantize a model.

    Args:
        float_path: The float model.
        data: Calibration data, in any layout that hbdebug reads.
        target: Where the QDQ model is written.
        per_channel: One scale for each channel of a weight.
        activations: Type of activations, a key of `TYPES`.
        weights: Type of weights.
        opset: Least opset.
        limit: Use the first so many samples; None uses all.
        keep_float: Where to keep what was quantized.
    """
    model = at_opset(onnx.load(float_path), opset)
    version = max(item.version for item in model.opset_import if not item.domain)
    contributed = version < 21 and bool({activations, weights} & CONTRIBUTED)
    samples = open_samples(data, inputs_of(model), limit=limit)
    with tempfile.TemporaryDirectory() as folder:
        converted, prepared = Path(folder) / "converted.onnx", Path(folder) / "prepared.onnx"
        onnx.save(model, converted)
        quant_pre_process(converted, prepared, skip_symbolic_shape=True)
        quantize_static(
            prepared,
            target,
            SampleReader(samples),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=getattr(QuantType, TYPES[activations]),
            weight_type=getattr(QuantType, TYPES[weights]),
            extra_options={"UseQDQContribOps": contributed},
        )
        if keep_float is not None:
            keep_float.write_bytes(prepared.read_bytes())


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the quantizer."""
    known = [name for name, member in TYPES.items() if hasattr(QuantType, member)]
    parser.add_argument("--per-channel", action="store_true", help="a scale for each channel")
    parser.add_argument("--activations", choices=known, default="int8")
    parser.add_argument("--weights", choices=known, default="int8")
    parser.add_argument("--opset", type=int, default=13, help="least opset (default 13)")
    parser.add_argument("--samples", type=int, help="use the first so many samples")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and quantize."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("float", type=Path, metavar="FLOAT.onnx")
    parser.add_argument("data", type=Path, metavar="CALIB")
    parser.add_argument("target", type=Path, metavar="OUT.onnx")
    parser.add_argument("--keep-float", action="store_true", help="keep OUT.float.onnx")
    add_options(parser)
    options = parser.parse_args(arguments)
    make(
        options.float,
        options.data,
        options.target,
        per_channel=options.per_channel,
        activations=options.activations,
        weights=options.weights,
        opset=options.opset,
        limit=options.samples,
        keep_float=options.target.with_suffix(".float.onnx") if options.keep_float else None,
    )


if __name__ == "__main__":
    main()
