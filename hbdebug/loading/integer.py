"""Quantized models of the vendor's converter (HMCT): what the chip computes, in integers.

The operators of domain ``horizon`` are those of `hbdebug.kernels`. Everything else is stock ONNX on
integer tensors, or a float island between HzDequantize and HzQuantize.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hbdebug.errors import ModelError
from hbdebug.kernels import KERNELS
from hbdebug.loading.graph import some
from hbdebug.loading.hmct import INTEGER_PREFIXES, Reader
from hbdebug.loading.protobuf import read_model
from hbdebug.model import CALIBRATION, IntegerModel

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import onnx

    from hbdebug.loading.protobuf import ModelFile
    from hbdebug.model import Op

KIND = "HMCT quantized"
"""What reports call these files."""

# On the CPU these stay float, under the same name; on the chip they are channels-last.
_ON_BOTH_SIDES = frozenset({"HzChannelShuffle", "HzSpaceToDepth"})

# The compiled part of *_hybrid_model.onnx: a program for the chip in one node.
_COMPILED = "HzBpu"


def load_integer(model: str | os.PathLike[str] | onnx.ModelProto) -> IntegerModel:
    """Load a quantized model.

    Args:
        model: ``*_quantized_model.onnx`` of the vendor's converter, or the same in memory. It is
            read once and never changed.

    Returns:
        Its nodes in topological order, with constants; run it with `hbdebug.integer_run.run`.

    Raises:
        UnsupportedError: The model holds operators that are not known; all are named at once.
        ModelError: It is not a quantized model, or contradicts itself.
    """
    return build(read_model(model))


def build(file: ModelFile) -> IntegerModel:
    """Turn a parsed model into nodes, as `load_integer` does."""
    try:
        _require_integers(file)
        loaded = _Reader(file).read(skip_unsupported=False)
    except ModelError as error:
        error.where = f"{file.path}: {error.where}" if error.where else file.path
        raise
    assert isinstance(loaded, IntegerModel)
    return loaded


def is_integer(file: ModelFile) -> bool:
    """Tell whether a file is meant to run in integers: it quantizes, and has no points."""
    op_types = {node.op_type for node in file.proto.graph.node}
    return CALIBRATION not in op_types and any(
        name.startswith(INTEGER_PREFIXES) for name in op_types
    )


def _require_integers(file: ModelFile) -> None:
    op_types = list(dict.fromkeys(node.op_type for node in file.proto.graph.node))
    if CALIBRATION in op_types:
        raise ModelError(
            f"is a calibrated model, and no quantized one: it holds {CALIBRATION} nodes",
            hint="Load it with hbdebug.load, or give the *_quantized_model.onnx.",
        )
    if not is_integer(file):
        raise ModelError(
            f"is no quantized model: it holds none of its operators ({some(op_types)})",
            hint="Give the *_quantized_model.onnx that the vendor's converter writes.",
        )


class _Reader(Reader):
    """Reads a model whose custom operators are kernels instead of chains of stock ones."""

    kind = KIND
    record = IntegerModel
    hint = (
        "hbdebug knows the operators that HMCT 1.1.0 writes. Convert with the nodes in question on "
        "the CPU, where they stay in float, or report the operator with a model that holds it."
    )

    def __init__(self, file: ModelFile) -> None:
        super().__init__(file)
        if any(node.op_type.startswith(_COMPILED) for node in file.proto.graph.node):
            self.hint = (
                "HzBpu* nodes hold programs for the chip, not operators: give the "
                "*_quantized_model.onnx of the same conversion."
            )

    def lowered(
        self, name: str, proto: onnx.NodeProto, domain: str, attributes: Mapping[str, Any]
    ) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
        """Return an empty body where a kernel computes the node, which judges its attributes.

        Others, such as an HzHardSwish on the CPU, are those of calibrated models.
        """
        op_type = proto.op_type
        floats = op_type in _ON_BOTH_SIDES and attributes.get("data_format", "NCHW") != "NHWC"
        if (domain, op_type) in KERNELS and not floats:
            return (), ()
        return super().lowered(name, proto, domain, attributes)
