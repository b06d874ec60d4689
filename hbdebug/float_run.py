"""A float model as its file has it, run to compare the float baseline with."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hbdebug.errors import ModelError, first_line
from hbdebug.metrics import Reference

if TYPE_CHECKING:
    from collections.abc import Mapping

    import onnx
    from numpy.typing import NDArray

_FATAL_ONLY = 4

# Two float32 runs of one network, in which batch normalization may have been folded into weights,
# agree much better than this; without a removed activation they agree much worse.
_SAME = 1e-6


def run_float(
    model: str | os.PathLike[str] | onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Run a float model on one sample, without optimizations.

    Args:
        model: File, or the model in memory.
        inputs: Input name -> array; more than the model takes is ignored.

    Returns:
        Output name -> array.

    Raises:
        ModelError: ONNX Runtime cannot run it, or it has an input of another name.
    """
    import onnxruntime

    where = os.fspath(model) if isinstance(model, (str, os.PathLike)) else "(in memory)"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _FATAL_ONLY
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        # protobuf serializes no more than 2 GB.
        source = where if isinstance(model, (str, os.PathLike)) else model.SerializeToString()
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        wanted = [item.name for item in session.get_inputs()]
        values = session.run(None, {name: inputs[name] for name in wanted})
    except KeyError as error:
        raise ModelError(f"it has another input, {error.args[0]}", where=where) from error
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot run it: {first_line(error)}", where=where) from error
    return dict(zip((item.name for item in session.get_outputs()), values, strict=True))


def compare_baseline(
    baseline: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]
) -> tuple[bool, str]:
    """Say in a sentence how far a float baseline is from the float model's outputs.

    Args:
        baseline: Output name -> array.
        outputs: The same of the float model; outputs of another name or shape are left out.

    Returns:
        Whether the two agree, and the sentence.
    """
    compared = [
        (name, array, outputs[name])
        for name, array in baseline.items()
        if name in outputs and outputs[name].shape == array.shape and array.dtype.kind == "f"
    ]
    if not compared:
        return False, (
            "the float baseline was not compared with the float model: its outputs are others"
        )
    measured = [
        (Reference(theirs, ("cosine_similarity", "max_abs_error")).measure(ours), name)
        for name, ours, theirs in compared
    ]
    values, name = min(measured, key=lambda item: item[0]["cosine_similarity"])
    loss = 1 - values["cosine_similarity"]
    numbers = (
        f"on the first sample 1-cosine {loss:.1e} and the largest difference "
        f"{values['max_abs_error']:.1e} at output {name}"
    )
    if loss <= _SAME:
        return True, f"the float baseline is the float model: {numbers}"
    return False, (
        f"the float baseline is NOT the float model: {numbers}. Is it the model that was "
        "quantized? Else the quantizer changed more than the pairs say, and rankings are relative "
        "to the file's own float form"
    )
