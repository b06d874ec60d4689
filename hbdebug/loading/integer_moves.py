"""Operators that move integers about between QuantizeLinear and DequantizeLinear.

They choose, copy or compare values and compute none, so they do to real numbers what they do to the
integers that stand for them, as long as one scale and one zero point hold for all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

ALL = -1
"""Stands for every input of an operator."""

MOVES: Mapping[str, tuple[int, ...]] = {
    "Clip": (0, 1, 2),
    "Concat": (ALL,),
    "DepthToSpace": (0,),
    "Expand": (0,),
    "Flatten": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Identity": (0,),
    "Max": (ALL,),
    "MaxPool": (0,),
    "Min": (ALL,),
    "Pad": (0, 2),
    "ReduceMax": (0,),
    "ReduceMin": (0,),
    "Reshape": (0,),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
    "Slice": (0,),
    "SpaceToDepth": (0,),
    "Split": (0,),
    "Squeeze": (0,),
    "Tile": (0,),
    "Transpose": (0,),
    "Unsqueeze": (0,),
    "Where": (1, 2),
}
"""Operator of ai.onnx -> its inputs that hold integers of the grid."""

KEEPS_CHANNELS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Those of `MOVES` behind which per-channel scales still belong to channels, on another axis."""


def data_inputs(proto: onnx.NodeProto) -> list[int]:
    """Return the indices of a moving node's inputs that hold integers of the grid."""
    indices: Sequence[int] = MOVES[proto.op_type]
    if ALL in indices:
        indices = range(len(proto.input))
    return [index for index in indices if index < len(proto.input) and proto.input[index]]


def _reshape(x: NDArray[Any], shape: NDArray[Any], attributes: Mapping[str, Any]) -> NDArray[Any]:
    sizes = [int(size) for size in shape]
    if not attributes.get("allowzero"):
        sizes = [size or x.shape[index] for index, size in enumerate(sizes)]
    return x.reshape(sizes)


def _axes(inputs: Sequence[NDArray[Any]], attributes: Mapping[str, Any]) -> list[int]:
    """Return the axes of Squeeze and Unsqueeze; opset 13 made an input of them."""
    found = inputs[1] if len(inputs) > 1 else attributes.get("axes", ())
    return [int(axis) for axis in np.asarray(found).reshape(-1)]


def _squeeze(inputs: Sequence[NDArray[Any]], attributes: Mapping[str, Any]) -> NDArray[Any]:
    axes = _axes(inputs, attributes)
    return np.squeeze(inputs[0], tuple(axes)) if axes else np.squeeze(inputs[0])


def _flatten(inputs: Sequence[NDArray[Any]], attributes: Mapping[str, Any]) -> NDArray[Any]:
    x, axis = inputs[0], int(attributes.get("axis", 1))
    axis = axis + x.ndim if axis < 0 else axis
    return x.reshape(int(np.prod(x.shape[:axis])), -1)


_FOLDED: Mapping[str, Callable[[Sequence[NDArray[Any]], Mapping[str, Any]], NDArray[Any]]] = {
    "Flatten": _flatten,
    "Identity": lambda inputs, _: inputs[0],
    "Reshape": lambda inputs, attributes: _reshape(inputs[0], inputs[1], attributes),
    "Squeeze": _squeeze,
    "Transpose": lambda inputs, attributes: np.transpose(inputs[0], attributes.get("perm")),
    "Unsqueeze": lambda inputs, attributes: np.expand_dims(
        inputs[0], tuple(_axes(inputs, attributes))
    ),
}
"""Operators that are computed once on loading where they prepare a constant for a point."""


def folds(op_type: str) -> bool:
    """Whether `folded` knows an operator of ai.onnx."""
    return op_type in _FOLDED


def folded(
    op_type: str, inputs: Sequence[NDArray[np.generic]], attributes: Mapping[str, Any]
) -> NDArray[np.generic]:
    """Compute a node on constants.

    Raises:
        ModelError: Its inputs do not fit together.
    """
    try:
        # Not by ascontiguousarray, which gives a scalar a dimension.
        return np.asarray(_FOLDED[op_type](inputs, attributes), order="C")
    except (IndexError, TypeError, ValueError) as error:
        raise ModelError(f"{op_type} cannot be computed on its constants: {error}") from error
