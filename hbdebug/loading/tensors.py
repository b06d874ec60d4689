"""What a graph states about its tensors, read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hbdebug.errors import UnsupportedError
from hbdebug.loading import protobuf
from hbdebug.model import CALIBRATION
from hbdebug.samples import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    import onnx
    from numpy.typing import NDArray

    from hbdebug.loading.body import Shape
    from hbdebug.model import Role

# Operators whose input 1, when constant, is a weight.
_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "HzPreprocess", "MatMul"})


class Tensors:
    """Constants, types, shapes and readers of a graph's tensors.

    Args:
        graph: The graph; Constant nodes are read later, by `add_constant`.

    Attributes:
        constants: Values by tensor name.
        taken: Every tensor name in use.

    Raises:
        UnsupportedError: The graph has sparse initializers.
        ModelError: An initializer is damaged.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        if graph.sparse_initializer:
            raise UnsupportedError("sparse initializers are not supported")
        self.constants: dict[str, NDArray[np.generic]] = {
            tensor.name: protobuf.array(tensor) for tensor in graph.initializer
        }
        infos = (*graph.value_info, *graph.output, *graph.input)
        self._infos = {info.name: info for info in infos}
        self._behind_points: dict[str, str] = {}
        self._readers: dict[str, list[tuple[str, int]]] = {}
        self.taken = self.constants.keys() | self._infos.keys()
        for node in graph.node:
            self.taken.update(node.input, node.output)
            for index, name in enumerate(node.input):
                self._readers.setdefault(name, []).append((node.op_type, index))
            if node.op_type == CALIBRATION and node.input and node.output:
                self._behind_points[node.output[0]] = node.input[0]
        self._outputs = {info.name for info in graph.output}

    def add_constants(self, values: dict[str, NDArray[np.generic]]) -> None:
        """Add constants that are no initializers."""
        self.constants.update(values)

    def is_read(self, tensor: str) -> bool:
        """Whether a node or the user reads a tensor."""
        return tensor in self._readers or tensor in self._outputs

    def shape(self, tensor: str) -> Shape | None:
        """Return a tensor's shape as far as the file states it; a point does not change it."""
        # A file can be malformed enough to have points in a circle.
        for _ in range(len(self._behind_points) + 1):
            if tensor in self.constants:
                return self.constants[tensor].shape
            if tensor in self._infos:
                shape = protobuf.shape_of(self._infos[tensor])
                if shape is not None:
                    return shape
            if tensor not in self._behind_points:
                break
            tensor = self._behind_points[tensor]
        return None

    def spec(self, tensor: str) -> TensorSpec:
        """Return name, dtype and shape of a tensor, as far as the file states them."""
        if tensor in self._infos:
            return protobuf.tensor_spec(self._infos[tensor])
        # HzCalibration reads and writes float32; about other tensors the file says nothing.
        calibrated = tensor in self._behind_points or any(
            op_type == CALIBRATION for op_type, _ in self._readers.get(tensor, ())
        )
        dtype = "float32" if calibrated else protobuf.UNKNOWN_DTYPE
        return TensorSpec(name=tensor, dtype=dtype, shape=self.shape(tensor) or ())

    def role(self, source: str, output: str) -> Role:
        """Tell a point's role by its ends: a constant into input 1 of a Conv is a weight.

        Args:
            source: Tensor in front of the point.
            output: Tensor behind it.
        """
        seen = {source}
        while source in self._behind_points and self._behind_points[source] not in seen:
            source = self._behind_points[source]
            seen.add(source)
        if source not in self.constants:
            return "activation"
        tensors = [output]
        for tensor in tensors:
            if any(
                index == 1 and op_type in _WEIGHTED
                for op_type, index in self._readers.get(tensor, ())
            ):
                return "weight"
            for behind, front in self._behind_points.items():
                if front == tensor and behind not in tensors:
                    tensors.append(behind)
        return "activation"
