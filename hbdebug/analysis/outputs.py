"""Outputs that hold no real numbers: what is measured in their place.

Two class indices can be told apart, and no distance between them means anything. What decides
them, the float tensors in front of an ArgMax or a comparison, shows what quantization does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.errors import ModelError
from hbdebug.samples import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hbdebug.model import QuantModel

# What they give depends on sizes alone.
_OF_SIZES = frozenset({"Shape", "Size"})


def real_outputs(
    model: QuantModel, dtypes: Callable[[], Mapping[str, str]]
) -> tuple[QuantModel, tuple[str, ...]]:
    """Replace outputs of integers and bools by the float tensors that decide them.

    Args:
        model: The model.
        dtypes: Called if the file does not say enough: tensor -> dtype name at run time.

    Returns:
        The model, with other outputs where needed, and what the user should know about it.

    Raises:
        ModelError: No output is real, and none depends on a tensor that is.
    """
    if all(_is_real(spec.dtype) for spec in model.outputs):
        return model, ()
    found = dtypes()
    outputs: dict[str, TensorSpec] = {}
    notes = []
    for spec in model.outputs:
        dtype = found.get(spec.name, spec.dtype)
        if _is_real(dtype):
            outputs[spec.name] = spec
            continue
        deciding = _deciding(model, spec.name, found)
        for name in deciding:
            outputs.setdefault(name, TensorSpec(name=name, dtype=found[name], shape=()))
        instead = f"measured instead: {', '.join(deciding)}" if deciding else "it is not measured"
        notes.append(f"output {spec.name} is {dtype}, which has no distance; {instead}")
    if not outputs:
        raise ModelError(
            "no output holds real numbers, and none is decided by a tensor inside that does",
            where=model.path,
            hint="Export the model with the tensor in front of its last decision as an output.",
        )
    return model.upto(tuple(outputs.values())), tuple(notes)


def _is_real(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _deciding(model: QuantModel, output: str, dtypes: Mapping[str, str]) -> list[str]:
    """Return the nearest float tensors that an output is made from, graph inputs left out."""
    given = {spec.name for spec in model.inputs}
    found: dict[str, None] = {}
    tensors = [output]
    for tensor in tensors:
        maker = model.producer_of.get(tensor)
        if maker is None or getattr(maker, "op_type", "") in _OF_SIZES:
            continue
        for name in maker.inputs:
            if not name or name in given or name not in model.producer_of or name in model.static:
                continue
            if _is_real(dtypes.get(name, "")):
                found[name] = None
            elif name not in tensors:
                tensors.append(name)
    return list(found)
