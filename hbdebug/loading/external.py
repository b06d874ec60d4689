"""Tensors that lie in files of their own: found, checked, and mapped instead of read.

A model beyond 2 GB keeps its weights beside it, because a protobuf message cannot hold them. Such
a file is mapped into memory read-only, so that the system reads what is used, when it is used,
and can drop it again. A location must stay inside the folder of the model: a model from a stranger
is no reason to open any other file.
"""

from __future__ import annotations

import math
import mmap
import stat
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
import onnx

from hbdebug.errors import ModelError

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Iterator

    from numpy.typing import NDArray

_CHUNK = 1 << 22  # bytes that go into the digest at a time

_MOST_INSIDE = (1 << 31) - 1  # bytes of tensors that subgraphs may hold, for protobuf's sake

_KEEP_BESIDE = "Keep the data files beside the model, where the export wrote them."

# One mapping for all tensors of a file: each costs a file descriptor as long as it lives. Arrays
# keep theirs alive.
_maps: WeakValueDictionary[str, mmap.mmap] = WeakValueDictionary()


def is_external(tensor: onnx.TensorProto) -> bool:
    """Whether a tensor's values lie in another file."""
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def settle(model: onnx.ModelProto, folder: Path, digest: hashlib._Hash) -> None:
    """Check where every external tensor lies, and rewrite its location so that it can be mapped.

    Tensors inside of subgraphs are read into the message: ONNX Runtime gets those as they are.

    Args:
        model: Is changed: locations become absolute, offset and length are stated.
        folder: Where the model lies.
        digest: Takes in every byte that the tensors use, once, file by file.

    Raises:
        ModelError: A location leads out of the folder, or there is no such file, or it is too
            short.
    """
    files = _Folder(folder)
    ranges: dict[str, list[tuple[int, int]]] = {}
    inside = 0
    for tensor, inner in _tensors(model):
        if not is_external(tensor):
            continue
        path, offset, length = _checked(tensor, files)
        ranges.setdefault(path, []).append((offset, offset + length))
        if not inner:
            del tensor.external_data[:]
            for key, value in (("location", path), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            continue
        inside += length
        if inside > _MOST_INSIDE:
            what = "tensors inside of subgraphs take more than 2 GB together"
            raise _refused(tensor, Path(path), what, "Keep them outside of the subgraphs.")
        _read_in(tensor, path, offset, length)
    for path, found in ranges.items():
        for start, stop in _merged(found):
            _take_in(digest, path, start, stop - start)


def embed(model: onnx.ModelProto) -> None:
    """Read into a message what `settle` found, for who writes it elsewhere."""
    for tensor, _ in _tensors(model):
        if is_external(tensor):
            _read_in(tensor, *_place(tensor))


def _read_in(tensor: onnx.TensorProto, path: str, offset: int, length: int) -> None:
    tensor.raw_data = _bytes(path, offset, length)
    tensor.data_location = onnx.TensorProto.DEFAULT
    del tensor.external_data[:]


def _merged(ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the bytes of a file that are used, each once, however tensors share them."""
    start, stop = 0, 0
    for first, last in sorted(ranges):
        if first > stop:
            yield start, stop
            start = first
        stop = max(stop, last)
    yield start, stop


def mapped(tensor: onnx.TensorProto) -> NDArray[np.generic]:
    """Return the values of an external tensor that `settle` has seen.

    Returns:
        A read-only view into the mapped file; a copy where the file has them at an address that
        their type cannot have, or packs them.
    """
    path, offset, length = _place(tensor)
    dtype = _plain_dtype(tensor.data_type)
    if dtype is None:
        packed = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        packed.raw_data = _bytes(path, offset, length)
        values: NDArray[np.generic] = onnx.numpy_helper.to_array(packed)  # noqa: TID251 - here
        return values
    if not length:
        return np.zeros(tuple(tensor.dims), dtype)
    flat = np.frombuffer(_map(path), dtype, length // dtype.itemsize, offset)
    shaped = flat.reshape(tuple(tensor.dims))
    return shaped if shaped.flags.aligned else np.array(shaped)


def _plain_dtype(data_type: int) -> np.dtype[Any] | None:
    """Return the dtype of a type that NumPy has itself; None for what ONNX packs or adds."""
    try:
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(data_type))
    except (KeyError, TypeError, ValueError):
        return None
    packed = onnx.TensorProto.DataType.Name(data_type) in {"BFLOAT16", "INT4", "UINT4"}
    return None if packed or dtype.kind not in "biufc" else dtype.newbyteorder("<")


def _tensors(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, bool]]:
    """Yield every tensor of a model, and whether it lies inside of a subgraph."""
    yield from _of_graph(model.graph, inner=False)
    for function in model.functions:
        for node in function.node:
            yield from _of_node(node, inner=False)


def _of_graph(graph: onnx.GraphProto, *, inner: bool) -> Iterator[tuple[onnx.TensorProto, bool]]:
    yield from ((tensor, inner) for tensor in graph.initializer)
    for sparse in graph.sparse_initializer:
        yield sparse.values, inner
        yield sparse.indices, inner
    for node in graph.node:
        yield from _of_node(node, inner=inner)


def _of_node(node: onnx.NodeProto, *, inner: bool) -> Iterator[tuple[onnx.TensorProto, bool]]:
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t, inner
        yield from ((tensor, inner) for tensor in attribute.tensors)
        graphs = ([attribute.g] if attribute.HasField("g") else []) + list(attribute.graphs)
        for graph in graphs:
            yield from _of_graph(graph, inner=True)


def _place(tensor: onnx.TensorProto) -> tuple[str, int, int]:
    stated = {entry.key: entry.value for entry in tensor.external_data}
    return stated["location"], int(stated["offset"]), int(stated["length"])


class _Folder:
    """The files beside a model, each looked at once.

    Args:
        folder: Where the model lies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[str, tuple[Path, int]] = {}

    def find(self, tensor: onnx.TensorProto, location: str) -> tuple[Path, int]:
        """Return the file that a location means, and its size."""
        if location not in self._known:
            path = _inside(tensor, location, self._folder)
            try:
                status = path.stat()
                if not stat.S_ISREG(status.st_mode):
                    raise _refused(tensor, path, "is no regular file")
                with path.open("rb"):
                    pass
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise _refused(tensor, path, f"cannot be read: {reason}") from error
            self._known[location] = path, status.st_size
        return self._known[location]


def _checked(tensor: onnx.TensorProto, files: _Folder) -> tuple[str, int, int]:
    """Return the file of a tensor, and which bytes of it are the tensor's."""
    stated = {entry.key: entry.value for entry in tensor.external_data}
    path, available = files.find(tensor, stated.get("location", ""))
    try:
        offset = int(stated.get("offset") or 0)
        length = int(stated["length"]) if stated.get("length") else None
    except ValueError as error:
        raise _refused(tensor, path, f"its offset or length is no number: {error}") from error
    size = _size(tensor, path)
    if length is not None and length != size:
        what = f"{length} bytes are stated for it, and its type and shape take {size}"
        raise _refused(tensor, path, what)
    if offset < 0 or offset + size > available:
        what = f"{size} bytes from byte {offset} on, and the file has {available}"
        raise _refused(tensor, path, what, "The file is cut short: copy it again, or export again.")
    return str(path), offset, size


def _inside(tensor: onnx.TensorProto, location: str, folder: Path) -> Path:
    """Return the file that a location means, links followed; refuse what leaves the folder."""
    # A model may come from another system, so that both kinds of paths count everywhere.
    parts = {*location.split("/"), *location.split("\\")}
    windows = PureWindowsPath(location)
    strange = not location or "\0" in location
    if strange or location.startswith("/") or windows.drive or windows.root or ".." in parts:
        raise _outside(tensor, location, folder)
    try:
        home = folder.resolve()
        path = (home / location).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a circle of links, in some versions
        raise _refused(tensor, folder / location, f"cannot be read: {error}") from error
    if not path.is_relative_to(home):
        raise _outside(tensor, location, folder)
    return path


def _outside(tensor: onnx.TensorProto, location: str, folder: Path) -> ModelError:
    return ModelError(
        f"the external data of tensor {tensor.name} are said to be in {location!r}, "
        "which is not inside the model's folder",
        where=str(folder),
        hint="External data are read from the model's own folder only: copy the file there, and "
        "save the model with a relative location.",
    )


def _refused(
    tensor: onnx.TensorProto, path: Path, why: str, hint: str = _KEEP_BESIDE
) -> ModelError:
    return ModelError(
        f"the external data of tensor {tensor.name} cannot be used: {why}",
        where=str(path),
        hint=hint,
    )


def _size(tensor: onnx.TensorProto, path: Path) -> int:
    """Return the bytes that a tensor's type and shape take."""
    if any(size < 0 for size in tensor.dims):
        raise _refused(tensor, path, f"its shape is {list(tensor.dims)}", "Export it again.")
    count = math.prod(int(size) for size in tensor.dims)
    known = onnx.TensorProto.DataType.values()
    name = onnx.TensorProto.DataType.Name(tensor.data_type) if tensor.data_type in known else ""
    if name in {"", "UNDEFINED", "STRING"}:
        what = f"tensors of type {name or tensor.data_type} cannot be external"
        raise _refused(tensor, path, what, "Export it again.")
    if name in {"INT4", "UINT4", "FLOAT4E2M1"}:
        return (count + 1) // 2
    if name in {"INT2", "UINT2"}:
        return (count + 3) // 4
    if name.startswith("FLOAT8"):
        return count
    if name == "BFLOAT16":
        return count * 2
    return count * int(np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize)


def _take_in(digest: hashlib._Hash, path: str, offset: int, length: int) -> None:
    """Add a range of a file to a digest, a part at a time, past the mapping.

    Read that way, the bytes do not count as this process's memory.
    """
    buffer = memoryview(bytearray(min(length, _CHUNK)))
    with Path(path).open("rb", buffering=0) as file:
        file.seek(offset)
        while length:
            count = file.readinto(buffer[: min(length, _CHUNK)])
            if not count:
                raise ModelError(
                    "the file became shorter while it was read",
                    where=path,
                    hint="Start again when nothing writes to it.",
                )
            digest.update(buffer[:count])
            length -= count


def _bytes(path: str, offset: int, length: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _map(path: str) -> mmap.mmap:
    found = _maps.get(path)
    if found is None:
        with Path(path).open("rb") as file:
            found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _maps[path] = found
    return found
