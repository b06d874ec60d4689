"""What makes a parsed file no model, whatever its operators: found before anything is read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hbdebug.errors import ModelError
from hbdebug.loading.graph import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import onnx

# ai.onnx opsets grow by about two a year, and a newer one than is known may still run.
_HIGHEST_OPSET = 1000


def check_names(model: onnx.ModelProto) -> None:
    """Check that all names are text; protobuf hands others on as bytes.

    Raises:
        ModelError: One is not.
    """
    for function in model.functions:
        _require_text((function.name, function.domain, *function.input, *function.output))
        _require_text(item.domain for item in function.opset_import)
        for node in function.node:
            _require_text(_names_of_node(node))
    _require_text(item.domain for item in model.opset_import)
    _require_text(_names(model.graph))


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    for item in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
        yield item.name
    for node in graph.node:
        yield from _names_of_node(node)


def _names_of_node(node: onnx.NodeProto) -> Iterator[str]:
    yield from (node.name, node.op_type, node.domain)
    yield from node.input
    yield from node.output
    for attribute in node.attribute:
        yield from (attribute.name, attribute.ref_attr_name)
        if attribute.HasField("g"):
            yield from _names(attribute.g)
        for graph in attribute.graphs:
            yield from _names(graph)


def _require_text(names: Iterable[str]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"is damaged: the name {name!r:.60} is no UTF-8 text")


def check_opset(model: onnx.ModelProto) -> None:
    """Check that the operator set is one that can exist.

    Raises:
        ModelError: It is not.
    """
    for item in model.opset_import:
        if item.domain in {"", "ai.onnx"} and not 1 <= item.version <= _HIGHEST_OPSET:
            raise ModelError(f"states ai.onnx opset {item.version}, which does not exist")


def check_ends(graph: onnx.GraphProto) -> None:
    """Check the lists of inputs and outputs of the main graph.

    Raises:
        ModelError: Nothing is given, or something is listed twice or without a name.
    """
    if not graph.output:
        raise ModelError("the graph has no outputs")
    for what, infos in (("input", graph.input), ("output", graph.output)):
        count = Counter(info.name for info in infos)
        if "" in count:
            raise ModelError(f"the graph has an {what} without a name")
        twice = [name for name, times in count.items() if times > 1]
        if twice:
            raise ModelError(f"the graph lists {what} {some(twice)} more than once")
