"""Calls of a model's own functions -> the nodes that the functions consist of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading.names import made_up

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Key = tuple[str, str, str]

# Functions that call functions can grow exponentially; no real model comes near these.
_MOST_NODES = 200_000
_DEEPEST = 64


def inline_functions(model: onnx.ModelProto) -> None:
    """Replace the calls of model-local functions by their nodes, in place.

    A node inside is called ``<call>/<node>`` and a tensor inside ``<call>/<tensor>``. Attributes
    that a function hands on get the call's values, or the function's defaults; one that has
    neither is left out, as ONNX has it.

    Args:
        model: A private copy; afterwards it has no functions any more.

    Raises:
        UnsupportedError: A function is written for another operator set, in which one of its
            operators means something else.
        ModelError: A function calls itself, is defined twice, or is called with more than it
            takes.
    """
    if not model.functions:
        return
    inliner = _Inliner(model)
    if inliner.count(model.graph.node) > _MOST_NODES:
        raise ModelError(f"its functions stand for more than {_MOST_NODES} nodes")
    inliner.expand_graph(model.graph)
    del model.functions[:]


class _Inliner:
    """One run over a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions: dict[Key, onnx.FunctionProto] = {}
        for function in model.functions:
            key = _key(function.domain, function.name, function)
            if key in self._functions:
                raise ModelError(f"function {function.name} of {function.domain} is defined twice")
            self._functions[key] = function
        self._opset = _stock_opset(model.opset_import)
        if not self._opset:
            # A model of nothing but calls need not state what its functions are written in.
            stated = (_stock_opset(function.opset_import) for function in model.functions)
            self._opset = next((version for version in stated if version), 0)
            if self._opset:
                model.opset_import.add(domain="", version=self._opset)
        self._taken = set(_tensor_names(model.graph))
        self._calls: list[Key] = []
        self._sizes: dict[Key, int] = {}

    def count(self, nodes: Iterable[onnx.NodeProto]) -> int:
        """Count the nodes that some nodes stand for, and find functions that call themselves."""
        total = 0
        for node in nodes:
            key = _key(node.domain, node.op_type, node)
            inside = sum(self.count(graph.node) for graph in _graphs(node))
            total += inside + (self._size(key) if key in self._functions else 1)
        return total

    def _size(self, key: Key) -> int:
        if key not in self._sizes:
            function = self._functions[key]
            if key in self._calls:
                raise ModelError(f"function {function.name} of {function.domain} calls itself")
            if len(self._calls) >= _DEEPEST:
                raise ModelError(f"its functions are nested more than {_DEEPEST} deep")
            self._calls.append(key)
            self._sizes[key] = self.count(function.node)
            self._calls.pop()
        return self._sizes[key]

    def expand_graph(self, graph: onnx.GraphProto) -> None:
        """Expand the calls in a graph and in the graphs inside of it."""
        if not self._holds_calls(graph.node):
            return
        expanded = [new for node in graph.node for new in self._expand(node)]
        # Taken out of the graph, the old nodes stay alive as long as they are referred to.
        del graph.node[:]
        graph.node.extend(expanded)

    def _holds_calls(self, nodes: Iterable[onnx.NodeProto]) -> bool:
        return any(
            _key(node.domain, node.op_type, node) in self._functions
            or any(self._holds_calls(graph.node) for graph in _graphs(node))
            for node in nodes
        )

    def _expand(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        key = _key(node.domain, node.op_type, node)
        function = self._functions.get(key)
        if function is None:
            for graph in _graphs(node):
                self.expand_graph(graph)
            yield node
            return
        for inner in self._body(node, function):
            yield from self._expand(inner)

    def _body(self, call: onnx.NodeProto, function: onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
        """Yield a function's nodes, reading and writing the tensors of one call of it."""
        where = f"node {call.name or made_up(call)}"
        if len(call.input) > len(function.input) or len(call.output) > len(function.output):
            raise ModelError(
                f"it gives function {function.name} {len(call.input)} inputs and "
                f"{len(call.output)} outputs, and that has {len(function.input)} and "
                f"{len(function.output)}",
                where=where,
            )
        self._check_opset(function, where)
        prefix = call.name or made_up(call)
        tensors = dict.fromkeys(function.input, "")
        tensors.update(zip(function.input, call.input, strict=False))
        copies = []
        for name, outside in zip(function.output, call.output, strict=False):
            if name in tensors:
                # An input that is handed through, or the same tensor under two names.
                copies.append((name, outside))
            elif outside:
                tensors[name] = outside
        attributes = {item.name: item for item in function.attribute_proto}
        attributes.update((item.name, item) for item in call.attribute)
        scope = _Scope(prefix, tensors, attributes, self._taken)
        for node in function.node:
            yield scope.node(node)
        for name, outside in copies:
            if outside:
                yield onnx.NodeProto(
                    op_type="Identity",
                    name=f"{prefix}/{outside}",
                    input=[scope.tensor(name)],
                    output=[outside],
                )

    def _check_opset(self, function: onnx.FunctionProto, where: str) -> None:
        """Refuse a function whose stock operators mean something else in the model's opset."""
        version = _stock_opset(function.opset_import)
        if version in {0, self._opset}:
            return
        for node in _all_nodes(function.node):
            if node.domain not in {"", "ai.onnx"}:
                continue
            if _since(node.op_type, version) != _since(node.op_type, self._opset):
                raise UnsupportedError(
                    f"function {function.name} is written in ai.onnx opset {version} and the "
                    f"model in {self._opset}; {node.op_type} is not the same in both",
                    where=where,
                    hint="Inline the functions with their conversion first: "
                    "onnx.inliner.inline_local_functions(model, convert_version=True).",
                )


class _Scope:
    """The names and attributes of one call."""

    def __init__(
        self,
        prefix: str,
        tensors: dict[str, str],
        attributes: Mapping[str, onnx.AttributeProto],
        taken: set[str],
    ) -> None:
        self._prefix = prefix
        self._tensors = tensors
        self._attributes = attributes
        self._taken = taken

    def tensor(self, name: str) -> str:
        """Return what a tensor of the function is called outside."""
        if not name:
            return ""
        if name not in self._tensors:
            fresh = f"{self._prefix}/{name}"
            while fresh in self._taken:
                fresh += "_"
            self._taken.add(fresh)
            self._tensors[name] = fresh
        return self._tensors[name]

    def node(self, source: onnx.NodeProto) -> onnx.NodeProto:
        """Return a copy of a node with the names of the call."""
        node = onnx.NodeProto()
        node.CopyFrom(source)
        node.name = f"{self._prefix}/{source.name or made_up(source)}"
        node.input[:] = [self.tensor(name) for name in source.input]
        node.output[:] = [self.tensor(name) for name in source.output]
        del node.attribute[:]
        for attribute in source.attribute:
            value = self._value(attribute)
            if value is not None:
                node.attribute.append(value)
        for graph in _graphs(node):
            self._rename(graph)
        return node

    def _value(self, attribute: onnx.AttributeProto) -> onnx.AttributeProto | None:
        if not attribute.ref_attr_name:
            return attribute
        given = self._attributes.get(attribute.ref_attr_name)
        if given is None:
            return None
        value = onnx.AttributeProto()
        value.CopyFrom(given)
        value.name = attribute.name
        return value

    def _rename(self, graph: onnx.GraphProto) -> None:
        # ONNX forbids a name inside to hide one outside, so one mapping serves both.
        for item in (*graph.initializer, *graph.input, *graph.output, *graph.value_info):
            item.name = self.tensor(item.name)
        nodes = [self.node(node) for node in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)


def _key(domain: str, name: str, owner: onnx.NodeProto | onnx.FunctionProto) -> Key:
    # Overloads came with IR version 10.
    overload = str(getattr(owner, "overload", ""))
    return ("" if domain == "ai.onnx" else domain, name, overload)


def _stock_opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    return next((int(item.version) for item in imports if item.domain in {"", "ai.onnx"}), 0)


def _since(op_type: str, opset: int) -> int:
    try:
        return int(onnx.defs.get_schema(op_type, opset, "").since_version)
    except (onnx.defs.SchemaError, TypeError):  # no such operator, or no number for a version
        return 0


def _graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in _graphs(node):
            yield from _all_nodes(graph.node)


def _tensor_names(graph: onnx.GraphProto) -> Iterator[str]:
    for item in (*graph.initializer, *graph.input, *graph.output):
        yield item.name
    for node in graph.node:
        yield from node.input
        yield from node.output
        for inner in _graphs(node):
            yield from _tensor_names(inner)
