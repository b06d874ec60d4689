"""ONNX files and messages -> plain Python, with errors a user can act on."""

from __future__ import annotations

import difflib
import hashlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import external
from hbdebug.loading.checks import check_names, check_opset
from hbdebug.loading.functions import inline_functions
from hbdebug.samples import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

# Bytes that a sparse tensor may take once it is written out.
_LARGEST_SPARSE = 1 << 30

UNKNOWN_DTYPE = "unknown"
"""Stands for the dtype of a tensor whose type the file does not state."""

_LARGEST_MESSAGE = (1 << 31) - 1  # bytes that protobuf can read or write
# A message with more raw bytes than this is not copied, because copying serializes it.
_LARGEST_COPIED = 1 << 30

# What people pass by mistake, by the first bytes of the file.
_SIGNATURES = (
    (b"version https://git-lfs", "it is a Git LFS pointer", "Fetch the real file: git lfs pull"),
    (b"\x93NUMPY", "it is a NumPy array", "Give the model first, then the calibration data."),
    (b"PK\x03\x04", "it is a zip archive", "Unpack it, or export the model to ONNX."),
    (b"\x1f\x8b", "it is a gzip archive", "Unpack it first."),
    (b"\x7fELF", "it is a compiled program", "Give the *_calibrated_model.onnx."),
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ModelFile:
    """A parsed model and where it came from.

    Attributes:
        proto: The model; a private copy, whatever the user gave.
        path: File as the user gave it; ``(in memory)`` for a ModelProto.
        sha256: Digest of the file's bytes (of the serialized message for a ModelProto).
    """

    proto: onnx.ModelProto
    path: str
    sha256: str


def read_model(
    source: str | os.PathLike[str] | onnx.ModelProto, *, whole: bool = False
) -> ModelFile:
    """Read and parse a model; a file is read exactly once.

    Args:
        source: File, or a model in memory, which is copied and never changed. Beyond 2 GB it is
            not copied either.
        whole: Whether external data become part of the message, for who changes and writes it.

    Returns:
        The parsed model, the calls of its own functions replaced by their nodes. Its external
        tensors are left where they are; `array` maps them.

    Raises:
        ModelError: The file is missing, unreadable, cut short or not an ONNX model; or external
            data are missing or outside of the model's folder.
        UnsupportedError: Its functions cannot be written out.
    """
    if isinstance(source, onnx.ModelProto):
        path = "(in memory)"
        if not whole and _raw_bytes(source) > _LARGEST_COPIED:
            _check_uncopied(source)
            return ModelFile(proto=source, path=path, sha256=_digest_by_parts(source))
        content = _serialized(source)
    else:
        path = os.fsdecode(source)
        content = _read(path)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except Exception as error:  # each protobuf implementation has its own
        raise _not_onnx(path, content, "it is cut short, or it never was one") from error
    if not proto.HasField("graph") or not proto.graph.node:
        raise _not_onnx(path, content, "it holds no graph with nodes")
    if not proto.opset_import:
        # The operator set stands behind the graph in the file, so this is where a file that
        # lost its end can still parse.
        raise _not_onnx(path, content, "it states no operator set; it may be cut short")
    try:
        check_names(proto)
        check_opset(proto)
        inline_functions(proto)
    except ModelError as error:
        error.where = f"{path}: {error.where}" if error.where else path
        raise
    digest = hashlib.sha256(content)
    external.settle(proto, Path(path).parent, digest)
    if whole:
        external.embed(proto)
    return ModelFile(proto=proto, path=path, sha256=digest.hexdigest())


def _check_uncopied(model: onnx.ModelProto) -> None:
    """Check a model that is too large to be copied, and so must stay as it is."""
    check_names(model)
    check_opset(model)
    if model.functions:
        raise UnsupportedError(
            "it holds functions, and is too large to write them out in a copy",
            hint="Save it with external data and give the file's path.",
        )


def _serialized(model: onnx.ModelProto) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:  # each protobuf implementation has its own
        raise ModelError(
            "the model in memory cannot be serialized (protobuf allows 2 GB)",
            hint="Save it with external data and give the file's path.",
        ) from error


def _raw_bytes(model: onnx.ModelProto) -> int:
    return sum(len(tensor.raw_data) for tensor in model.graph.initializer)


def _digest_by_parts(model: onnx.ModelProto) -> str:
    """Return a digest of a message that protobuf could not serialize.

    It covers everything, the raw bytes of initializers behind all the rest.
    """
    rest = onnx.ModelProto()
    _copy_fields(model, rest, but="graph")
    _copy_fields(model.graph, rest.graph, but="initializer")
    for tensor in model.graph.initializer:
        if external.is_external(tensor):
            raise ModelError(
                f"tensor {tensor.name} lies in a file, and the model in memory is beyond 2 GB",
                hint="Save it with external data and give the file's path.",
            )
        _copy_fields(tensor, rest.graph.initializer.add(), but="raw_data")
    digest = hashlib.sha256(_serialized(rest))
    for tensor in model.graph.initializer:
        digest.update(tensor.raw_data)
    return digest.hexdigest()


def _copy_fields(source: Any, target: Any, *, but: str) -> None:
    """Copy the fields of a message, one left out."""
    for field, value in source.ListFields():
        if field.name == but:
            continue
        if isinstance(value, (str, bytes, int, float)):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).MergeFrom(value)


def _read(path: str) -> bytes:
    try:
        if Path(path).stat().st_size > _LARGEST_MESSAGE:
            raise ModelError(
                "is larger than 2 GB, more than an ONNX file can hold",
                where=path,
                hint="Save the model with external data (onnx.save with save_as_external_data).",
            )
        return Path(path).read_bytes()
    except FileNotFoundError as error:
        raise ModelError("no such file", where=path, hint=_similar_files(path)) from error
    except (OSError, ValueError) as error:
        # Windows calls a directory a permission error; a path with a null is a ValueError.
        if os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises on names that are too long
            message, hint = "is a directory, not an ONNX file", _models_in(Path(path))
        else:
            message, hint = f"cannot be read: {getattr(error, 'strerror', None) or error}", ""
        raise ModelError(message, where=path, hint=hint) from error


def _similar_files(path: str) -> str:
    """Suggest files of the same directory whose names are close to the missing one's."""
    directory = Path(path).parent
    if not directory.is_dir():
        return f"There is no directory {directory} either."
    names = [entry.name for entry in directory.iterdir()]
    close = difflib.get_close_matches(Path(path).name, names, n=3)
    return f"Did you mean {' or '.join(close)}?" if close else ""


def _models_in(directory: Path) -> str:
    """Name the calibrated models that lie in a directory."""
    found = sorted(str(file) for file in directory.glob("*_calibrated_model.onnx"))
    return f"Give a file, such as {found[0]}" if found else "Give a *_calibrated_model.onnx file."


def _not_onnx(path: str, content: bytes, otherwise: str) -> ModelError:
    reason, hint = otherwise, "Give the *_calibrated_model.onnx that the converter wrote."
    if not content:
        reason = "it is empty"
    for signature, what, remedy in _SIGNATURES:
        if content.startswith(signature):
            reason, hint = what, remedy
    return ModelError(f"is not a complete ONNX model: {reason}", where=path, hint=hint)


def producer(model: onnx.ModelProto) -> str:
    """Return the program that wrote the model, with its version, as far as stated."""
    return f"{model.producer_name} {model.producer_version}".strip()


def array(tensor: onnx.TensorProto) -> NDArray[np.generic]:
    """Return a tensor's values, without a copy where they are stored as raw bytes.

    External ones are mapped, see `hbdebug.loading.external`.

    Raises:
        ModelError: Type, shape and data do not fit together.
    """
    if any(size < 0 for size in tensor.dims):
        # NumPy would take -1 for a size that is to be found out.
        raise ModelError(f"tensor {tensor.name} is damaged: its shape is {list(tensor.dims)}")
    try:
        if external.is_external(tensor):
            return external.mapped(tensor)
        values: NDArray[np.generic] = onnx.numpy_helper.to_array(tensor)  # noqa: TID251 - here
    except Exception as error:  # a damaged tensor makes ONNX and NumPy raise almost anything
        raise ModelError(f"tensor {tensor.name} is damaged: {error}") from error
    return values


def dense(tensor: onnx.SparseTensorProto) -> NDArray[np.generic]:
    """Return the values of a sparse tensor, zeros included.

    Raises:
        ModelError: Shape, indices and values do not fit together.
        UnsupportedError: It would take more than 1 GiB.
    """
    name, shape = tensor.values.name, tuple(tensor.dims)
    values = array(tensor.values).reshape(-1)
    indices: NDArray[Any] = array(tensor.indices)
    if any(size < 0 for size in shape):
        raise ModelError(f"sparse tensor {name} is damaged: its shape is {list(shape)}")
    if math.prod(shape) * values.itemsize > _LARGEST_SPARSE:
        raise UnsupportedError(f"sparse tensor {name} of shape {list(shape)} is too large")
    try:
        if indices.ndim == 2:
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        flat = np.zeros(math.prod(shape), values.dtype)
        np.put(flat, indices, values)
    except (IndexError, TypeError, ValueError) as error:
        raise ModelError(f"sparse tensor {name} is damaged: {error}") from error
    return flat.reshape(shape)


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Return a node's attributes as plain Python values.

    Strings are decoded where they are UTF-8, tensors become NumPy arrays, repeated fields lists;
    graphs and types stay opaque.

    Raises:
        ModelError: An attribute has no type, or a tensor is damaged.
    """
    return {attribute.name: _value(attribute) for attribute in node.attribute}


def _value(attribute: onnx.AttributeProto) -> Any:
    kind = attribute.type
    if kind == onnx.AttributeProto.UNDEFINED:
        raise ModelError(f"attribute {attribute.name} has no type")
    if attribute.ref_attr_name:
        raise ModelError(f"attribute {attribute.name} stands for one of a function, outside of any")
    if kind in (onnx.AttributeProto.TENSOR, onnx.AttributeProto.SPARSE_TENSOR):
        tensor = attribute.t if attribute.HasField("t") else None
        return dense(attribute.sparse_tensor) if tensor is None else array(tensor)
    value = onnx.helper.get_attribute_value(attribute)
    if kind == onnx.AttributeProto.STRING:
        return _decoded(value)
    if kind == onnx.AttributeProto.STRINGS:
        return [_decoded(item) for item in value]
    if kind == onnx.AttributeProto.TENSORS:
        return [array(item) for item in value]
    if kind in (onnx.AttributeProto.FLOATS, onnx.AttributeProto.INTS):
        return list(value)
    return value


def _decoded(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def shape_of(info: onnx.ValueInfoProto) -> tuple[int | None, ...] | None:
    """Return a tensor's shape, None for a size that is not fixed; None when it has no shape."""
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    # Some exporters write 0 for a size that they do not know.
    return tuple(size.dim_value if size.dim_value > 0 else None for size in tensor.shape.dim)


def tensor_spec(info: onnx.ValueInfoProto) -> TensorSpec:
    """Return name, dtype and shape; the shape is empty when the file states none."""
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).name
    except (KeyError, ValueError):
        dtype = UNKNOWN_DTYPE
    axes = info.type.tensor_type.shape.dim
    leading = axes[0].dim_param if axes else ""
    return TensorSpec(name=info.name, dtype=dtype, shape=shape_of(info) or (), leading=leading)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in a node's attributes (bodies of If, Loop and Scan)."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            yield from attribute.graphs


def captured(node: onnx.NodeProto) -> list[str]:
    """Return the outer tensors that a node's subgraphs read, in order of appearance."""
    found: dict[str, None] = {}
    for graph in subgraphs(node):
        found.update(dict.fromkeys(_free_names(graph)))
    return list(found)


def _free_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a subgraph uses and does not define itself."""
    defined = {info.name for info in graph.input}
    defined.update(tensor.name for tensor in graph.initializer)
    for node in graph.node:
        for name in (*node.input, *captured(node)):
            if name and name not in defined:
                yield name
        defined.update(node.output)
    yield from (info.name for info in graph.output if info.name not in defined)
