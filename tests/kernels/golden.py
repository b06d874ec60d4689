"""The cases of fixtures/golden_integer_ops.tar.xz: what the vendor's executor computed."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from numpy.typing import NDArray

ARCHIVE = Path(__file__).parents[2] / "fixtures" / "golden_integer_ops.tar.xz"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One node with what the vendor computed from its inputs."""

    name: str
    operator: str
    inputs: tuple[NDArray[Any] | None, ...]
    attributes: dict[str, Any]
    outputs: tuple[NDArray[Any], ...]


@cache
def cases() -> tuple[Case, ...]:
    """Return all cases."""
    with tarfile.open(ARCHIVE) as tar:
        files = {info.name: tar.extractfile(info).read() for info in tar}
    return tuple(_case(record, files) for record in json.loads(files["cases.json"]))


def _case(record: dict[str, Any], files: dict[str, bytes]) -> Case:
    graph = onnx.load_from_string(files[record["model"]]).graph
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name, file in record["arrays"].items():
        arrays[name] = np.load(io.BytesIO(files[file]))
    (node,) = graph.node
    return Case(
        name=record["file"],
        operator=node.op_type,
        inputs=tuple(arrays[name] if name else None for name in node.input),
        attributes={attribute.name: _value(attribute) for attribute in node.attribute},
        outputs=tuple(arrays[name] for name in node.output),
    )


def _value(attribute: onnx.AttributeProto) -> Any:
    value = onnx.helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value
