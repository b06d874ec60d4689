"""HzCalibration nodes -> points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import protobuf
from hbdebug.loading.calibration_attributes import after_load, parse
from hbdebug.loading.grid import to_grid
from hbdebug.model import Point
from hbdebug.quant import require_channels

if TYPE_CHECKING:
    import onnx

    from hbdebug.loading.body import Shape
    from hbdebug.loading.tensors import Tensors
    from hbdebug.quant import QuantParams


def read_point(name: str, proto: onnx.NodeProto, tensors: Tensors) -> Point:
    """Turn one HzCalibration node into a point.

    Args:
        name: The node's unique name.
        proto: The node.
        tensors: What is known about the graph's tensors.

    Returns:
        The point, its attributes normalised as the vendor's loader does.

    Raises:
        UnsupportedError: An attribute, a type or an output in use is not known.
        ModelError: The attributes contradict each other or do not fit the tensor.
    """
    source, output = _ends(proto)
    for statistics in proto.output[1:]:
        if tensors.is_read(statistics):
            raise UnsupportedError("it has outputs with calibration statistics")
    shape = tensors.shape(source)
    attributes = after_load(parse(protobuf.attributes(proto)))
    grid = to_grid(attributes, None if shape is None else len(shape))
    if grid.params is not None and shape is not None:
        _check_count(grid.params, shape)
    return Point(
        name=name,
        role=attributes.role or tensors.role(source, output),
        input=source,
        output=output,
        params=grid.params,
        enabled=grid.enabled,
        reason=grid.reason,
    )


def float_point(name: str, proto: onnx.NodeProto, tensors: Tensors, reason: str) -> Point:
    """Return a point that never quantizes, for a node that cannot be read.

    Args:
        name: The node's unique name.
        proto: The node.
        tensors: What is known about the graph's tensors.
        reason: What about the node is not known.
    """
    source, output = _ends(proto)
    return Point(
        name=name,
        role=tensors.role(source, output),
        input=source,
        output=output,
        params=None,
        enabled=False,
        reason=reason,
    )


def _ends(proto: onnx.NodeProto) -> tuple[str, str]:
    if len(proto.input) != 1 or not proto.input[0] or not proto.output or not proto.output[0]:
        raise ModelError(
            f"it has {len(proto.input)} inputs and {len(proto.output)} outputs instead of one each"
        )
    return proto.input[0], proto.output[0]


def _check_count(params: QuantParams, shape: Shape) -> None:
    """Check that scales and zero points fit a tensor, as far as its shape is fixed."""
    for values in (params.scale, params.zero_point):
        # Only the sizes of these two axes decide; the others may be open.
        decisive = {0, params.axis} & set(range(len(shape)))
        if values.size == 1 or any(shape[axis] is None for axis in decisive):
            continue
        sizes = tuple(size or 1 for size in shape)
        try:
            require_channels(values.size, sizes, params.axis, params.group)
        except UnsupportedError as error:
            raise ModelError(error.message) from error
