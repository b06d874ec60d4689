"""Runnable pieces of the float model: one-node sessions and suffix sessions.

With `hbdebug.loading` and `hbdebug.kernels.depthwise`, the only code that touches protobuf.
Sessions run single-threaded on the provider that the user named, never on another, and ONNX Runtime
is told not to fuse QuantizeLinear/DequantizeLinear pairs behind our back.

A session owns a copy of each initializer, and often a second one in an order that suits its
kernels. For a model with many weights that is too much: its large weights are no initializers but
inputs, fed from where they lie, so that all sessions share them and no message holds them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hbdebug.errors import ModelError, UsageError, first_line
from hbdebug.model import Point
from hbdebug.quant import broadcast_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.model import Node, Op, QuantModel, Step

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "directml": "DmlExecutionProvider",
}
"""Option value of ``--provider`` -> ONNX Runtime execution provider."""

LARGE_MODEL = 1 << 28
"""Bytes of constants from which on a model's sessions share the large ones."""

LARGE_CONSTANT = 1 << 20
"""Bytes from which on such a constant is shared. What to share must not depend on the budget: an
operator that is fed its weight may round otherwise than one that owns it."""

_PACKING = frozenset({"GRU", "Gemm", "LSTM", "MatMul", "RNN"})
"""Operators that ONNX Runtime rearranges constant operands for."""

_IR_VERSION = 7

# ONNX Runtime reports a failure as an exception; its own log would only repeat it on stderr.
_FATAL_ONLY = 4

_ELEMENT_TYPES = {
    "float32": onnx.TensorProto.FLOAT,
    "float64": onnx.TensorProto.DOUBLE,
    "float16": onnx.TensorProto.FLOAT16,
    "int8": onnx.TensorProto.INT8,
    "uint8": onnx.TensorProto.UINT8,
    "int16": onnx.TensorProto.INT16,
    "uint16": onnx.TensorProto.UINT16,
    "int32": onnx.TensorProto.INT32,
    "uint32": onnx.TensorProto.UINT32,
    "int64": onnx.TensorProto.INT64,
    "uint64": onnx.TensorProto.UINT64,
    "bool": onnx.TensorProto.BOOL,
    # Constants only: no array of these types goes in or out.
    "bfloat16": onnx.TensorProto.BFLOAT16,
    "float8_e4m3fn": onnx.TensorProto.FLOAT8E4M3FN,
    "float8_e4m3fnuz": onnx.TensorProto.FLOAT8E4M3FNUZ,
    "float8_e5m2": onnx.TensorProto.FLOAT8E5M2,
    "float8_e5m2fnuz": onnx.TensorProto.FLOAT8E5M2FNUZ,
}


# Operators whose output is as long for other sizes, if they are given sizes and constants.
_HANDS_SIZES_ON = frozenset(
    {
        *("Add", "Cast", "Ceil", "Concat", "Div", "Equal", "Floor", "Gather", "Identity", "Max"),
        *("Min", "Mul", "Neg", "ReduceProd", "Slice", "Split", "Squeeze", "Sub", "Unsqueeze"),
        "Where",
    }
)


# Operators that give as much as the values of what they read say.
_COUNTING = frozenset({"Compress", "HzFilter", "NonMaxSuppression", "NonZero", "Unique"})

# Operators -> the inputs whose values say which shape they give.
_SHAPED_BY = {
    "CenterCropPad": (1,),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "HzResize11": (1, 2, 3),
    "MaxUnpool": (2,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}


class Runner:
    """One ONNX Runtime session with fixed outputs.

    Attributes:
        inputs: Names of the tensors it must be fed.
        outputs: Names of the tensors it makes.
    """

    __slots__ = ("_held", "_output_list", "_session", "inputs", "outputs")

    def __init__(
        self,
        session: Any,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        held: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        self._session = session
        self._output_list = list(outputs)
        self._held = held
        self.inputs = inputs
        self.outputs = outputs

    def run(self, values: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Compute the outputs, in the order of `outputs`, from ``values[name]`` of each input."""
        feeds = {name: values[name] for name in self.inputs}
        if self._held:
            feeds.update(self._held)
        results: list[NDArray[Any]] = self._session.run(self._output_list, feeds)
        return results


class Slicer:
    """Makes sessions for pieces of one model.

    Args:
        model: The float graph.
        provider: A key of `PROVIDERS`, or an ONNX Runtime provider name.

    Raises:
        UsageError: ONNX Runtime has no such provider here.
    """

    def __init__(self, model: QuantModel, *, provider: str = "cpu") -> None:
        self._model = model
        self._provider = _available_provider(provider)
        self._protos: dict[tuple[str, bool], list[onnx.NodeProto]] = {}
        self._wanted = {name for step in model.steps for name in step.inputs}
        self._wanted.update(spec.name for spec in model.outputs)
        self._sizes = _tensors_of_sizes(model)
        self._open = _tensors_of_open_shape(model)

    @functools.cached_property
    def shared(self) -> frozenset[str]:
        """Constants that sessions are fed instead of holding them, and tensors behind their points.

        Empty for all but large models.
        """
        sizes = {name: array.nbytes for name, array in self._model.constants.items()}
        if sum(sizes.values()) < LARGE_MODEL:
            return frozenset()
        found = {name for name, size in sizes.items() if size >= LARGE_CONSTANT}
        for point in self._model.points:
            if point.output in self._model.static and point.input in found:
                found.add(point.output)
        return frozenset(found)

    @functools.cached_property
    def unpacked(self) -> frozenset[str]:
        """Tensors behind pairs that operators must not get as constants, if bits are to be kept.

        ONNX Runtime packs a constant operand of `_PACKING` operators, and may sum in another order
        then. In a QDQ model that is run as it is, the operand comes out of a DequantizeLinear, and
        is not packed.
        """
        if not self._model.has_pairs:
            return frozenset()
        readers = (node for node in self._model.nodes if node.op_type in _PACKING)
        return self._model.static.intersection(name for node in readers for name in node.inputs)

    def owned_bytes(self, names: Iterable[str]) -> int:
        """Return the bytes of those constants that a session has copies of."""
        return sum(
            self._model.constants[name].nbytes
            for name in names
            if name in self._model.constants and name not in self.shared
        )

    def node(
        self,
        node: Node,
        fed: Mapping[str, str],
        constants: Mapping[str, NDArray[Any]],
        *,
        unread: bool = False,
    ) -> Runner:
        """Make a session for one node.

        Args:
            node: The node.
            fed: Tensor name -> dtype name of every input that is fed at run time; tensors of
                `shared` behind points are among them, constants are not.
            constants: Values of its other inputs that are not constants of the model under the
                same name, such as quantized weights.
            unread: Whether outputs that nothing reads are wanted, too.

        Raises:
            ModelError: ONNX Runtime refuses the node; the message holds its words.
        """
        inner = set(_reads(node, quick=False)) - fed.keys() - {""}
        model = self._new_model(node.name or "node")
        graph = model.graph
        graph.node.extend(_node_proto(op) for op in node.body)
        held: dict[str, NDArray[Any]] = {}
        for name in sorted(inner):
            if name in constants:
                graph.initializer.append(_tensor(name, constants[name]))
            elif name in self._model.constants:
                self._add_constant(name, graph, held)
        graph.input.extend(_value_info(name, dtype, None) for name, dtype in fed.items())
        named = tuple(name for name in node.outputs if name)
        # ONNX Runtime refuses a session without outputs, so a node that nothing reads gives all.
        read = tuple(name for name in named if name in self._wanted)
        outputs = named if unread else read or named
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        content = model.SerializeToString()
        # The message goes before ONNX Runtime makes copies of what is in it.
        del model, graph
        where = f"node {node.name} ({node.op_type})"
        session = self._session(content, optimized=False, where=where)
        return Runner(session, tuple(fed), outputs, held)

    def _add_constant(
        self, name: str, graph: onnx.GraphProto, held: dict[str, NDArray[Any]]
    ) -> None:
        """Make a constant of the model an initializer, or an input that is always fed."""
        array = self._model.constants[name]
        if name in self.shared:
            held[name] = array
            graph.input.append(_value_info(name, array.dtype.name, array.shape))
        else:
            graph.initializer.append(_tensor(name, array))

    def suffix(
        self,
        start: int,
        fed: Iterable[str],
        specs: Mapping[str, tuple[str, tuple[int, ...]]],
        *,
        optimized: bool,
        fixed_shapes: bool,
    ) -> Runner:
        """Make a session from a position to the graph outputs, every point in float.

        Args:
            start: Position in ``model.steps``.
            fed: Tensors that cross there.
            specs: Tensor name -> (dtype name, shape) of every tensor of one float run.
            optimized: Whether ONNX Runtime may use all of its optimizations, and nodes their
                `Node.quick` form. Both change float32 rounding, so nothing behind may be
                quantized.
            fixed_shapes: Whether every later call has graph inputs of the same shapes, which
                lets ONNX Runtime optimize more.

        Raises:
            ModelError: ONNX Runtime refuses the graph; the message holds its words.
        """
        model = self._new_model(f"from_{start}")
        graph = model.graph
        steps = self._model.steps
        nodes = (step for step in steps[start:] if not isinstance(step, Point))
        used = {name for node in nodes for name in _reads(node, quick=optimized)}
        # A weight's point lies in front of its node, perhaps in front of the position too.
        static: list[Step] = []
        for step in reversed(steps[:start]):
            if step.outputs[0] in used and step.outputs[0] in self._model.static:
                static.insert(0, step)
                used.update(step.inputs)
        held: dict[str, NDArray[Any]] = {}
        for step in (*static, *steps[start:]):
            if not isinstance(step, Point):
                graph.node.extend(self._nodes_of(step, quick=optimized))
            elif (constant := self._handed_on(step, optimized=optimized)) is not None:
                # Handing it on inside the session would copy it.
                held[step.output] = constant
                graph.input.append(_value_info(step.output, constant.dtype.name, constant.shape))
            else:
                graph.node.append(_passthrough(step, self._shape(step.input, specs), graph))
                used.add(step.input)
        for name in sorted(used & self._model.constants.keys()):
            self._add_constant(name, graph, held)
        inputs = tuple(name for name in fed if name in used)
        for name in inputs:
            dtype, shape = specs[name]
            # ONNX takes an open length of a Resize's sizes for 0.
            fixed = name in self._sizes or (fixed_shapes and name not in self._open)
            graph.input.append(_value_info(name, dtype, shape if fixed else (None,) * len(shape)))
        made = {name for step in steps[start:] for name in step.outputs}
        outputs = tuple(spec.name for spec in self._model.outputs if spec.name in made)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        content = model.SerializeToString()
        del model, graph
        where = f"the graph from step {start} on"
        session = self._session(content, optimized=optimized, where=where)
        return Runner(session, inputs, outputs, held)

    def _handed_on(self, point: Point, *, optimized: bool) -> NDArray[Any] | None:
        """Return the constant that a point passes on as it is, to be fed; None for others."""
        unpacked = not optimized and point.output in self.unpacked
        if point.output not in self.shared and not unpacked:
            return None
        step: Step | None = point
        while isinstance(step, Point):
            if _scales(step):
                return None
            name = step.input
            step = self._model.producer_of.get(name)
        return self._model.constants[name]

    def _shape(
        self, name: str, specs: Mapping[str, tuple[str, tuple[int, ...]]]
    ) -> tuple[int, ...]:
        constant = self._model.constants.get(name)
        if constant is not None:
            return constant.shape
        producer = self._model.producer_of.get(name)
        if name not in specs and isinstance(producer, Point):
            return self._shape(producer.input, specs)
        return specs[name][1]

    def _nodes_of(self, node: Node, *, quick: bool) -> list[onnx.NodeProto]:
        """Return a node's protobuf form, made once: every suffix in front of it needs it again."""
        key = (node.name, quick)
        if key not in self._protos:
            self._protos[key] = [_node_proto(op) for op in _ops_of(node, quick=quick)]
        return self._protos[key]

    def _new_model(self, name: str) -> onnx.ModelProto:
        """Return a message with an empty graph."""
        model = onnx.ModelProto(ir_version=_IR_VERSION)
        model.graph.name = name
        model.opset_import.append(onnx.OperatorSetIdProto(domain="", version=self._model.opset))
        model.opset_import.append(onnx.OperatorSetIdProto(domain="com.microsoft", version=1))
        return model

    def _session(self, content: bytes, *, optimized: bool, where: str) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = _FATAL_ONLY
        _use_shared_arena(options)
        level = onnxruntime.GraphOptimizationLevel
        options.graph_optimization_level = (
            level.ORT_ENABLE_ALL if optimized else level.ORT_ENABLE_BASIC
        )
        options.add_session_config_entry("session.disable_quant_qdq", "1")
        try:
            session = onnxruntime.InferenceSession(content, options, providers=[self._provider])
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime {onnxruntime.__version__} cannot load it: {first_line(error)}",
                where=where,
                hint="If the operator is newer than this ONNX Runtime, upgrade onnxruntime.",
            ) from error
        # It keeps the message only to make itself anew on another provider, which is never asked.
        session.disable_fallback()
        session._model_bytes = None  # noqa: SLF001 - a copy of all weights otherwise
        return session


@functools.cache
def _shared_arena() -> bool:
    """Register one arena for all sessions of the process that ask for it, once.

    Only sessions with ``session.use_env_allocators`` use it, so nobody else's are touched.

    Returns:
        Whether there is one; an ONNX Runtime without this interface has none.
    """
    import onnxruntime

    try:
        memory = onnxruntime.OrtMemoryInfo(
            "Cpu",
            onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
            0,
            onnxruntime.OrtMemType.DEFAULT,
        )
        # Growing by what is asked for instead of by powers of two keeps the peak down.
        settings = onnxruntime.OrtArenaCfg({"arena_extend_strategy": 1})
        onnxruntime.create_and_register_allocator(memory, settings)
    except Exception:  # noqa: BLE001 - older versions differ in what is missing; none needs it
        return False
    return True


def _use_shared_arena(options: Any) -> None:
    """Keep several hundred sessions from holding an arena each.

    On the text-line recognizer, arenas of their own cost half as much memory again as the run
    takes; none at all costs a twentieth of the time.
    """
    if _shared_arena():
        options.add_session_config_entry("session.use_env_allocators", "1")
    else:
        options.enable_cpu_mem_arena = False


def _available_provider(name: str) -> str:
    import onnxruntime

    provider = PROVIDERS.get(name.lower(), name)
    available = onnxruntime.get_available_providers()
    if provider not in available:
        known = {full: short for short, full in PROVIDERS.items()}
        choices = ", ".join(known.get(full, full) for full in available)
        raise UsageError(
            f"this ONNX Runtime has no provider {name!r}",
            hint=f"It has: {choices}. GPU providers come with the package onnxruntime-gpu.",
        )
    return provider


def _node_proto(op: Op) -> onnx.NodeProto:
    node = onnx.NodeProto(op_type=op.op_type, input=op.inputs, output=op.outputs, domain=op.domain)
    for name, value in op.attributes.items():
        if isinstance(value, np.ndarray):
            node.attribute.append(onnx.helper.make_attribute(name, _tensor("", value)))
        elif isinstance(value, list) and not value:
            # Nothing in an empty list says what it is a list of; ONNX has empty INTS only.
            node.attribute.add(name=name, type=onnx.AttributeProto.INTS)
        else:
            node.attribute.append(onnx.helper.make_attribute(name, value))
    return node


def _ops_of(node: Node, *, quick: bool) -> tuple[Op, ...]:
    return node.quick or node.body if quick else node.body


def _tensors_of_sizes(model: QuantModel) -> frozenset[str]:
    """Return the tensors that hold sizes: as many in every run, whatever the sizes are."""
    found: set[str] = set()
    for node in model.nodes:
        read = [name for name in node.inputs if name and name not in model.constants]
        if node.op_type in {"Shape", "Size"} or (
            read and node.op_type in _HANDS_SIZES_ON and found.issuperset(read)
        ):
            found.update(node.outputs)
    return frozenset(found)


def _tensors_of_open_shape(model: QuantModel) -> frozenset[str]:
    """Return the tensors whose shape can differ though the graph inputs have the same shapes."""
    found: set[str] = set()
    known = set(model.constants) | model.static  # values that are the same in every such run
    for step in model.steps:
        read = {name for name in step.inputs if name}
        if isinstance(step, Point):
            changes = not found.isdisjoint(read)
        elif known.issuperset(read) and not step.inside:
            known.update(step.outputs)
            continue
        elif step.op_type in {"Shape", "Size"}:
            known.update(step.outputs if found.isdisjoint(read) else ())
            continue
        else:
            positions = _SHAPED_BY.get(step.op_type, ())
            shaping = {step.inputs[index] for index in positions if index < len(step.inputs)}
            changes = (
                bool(step.inside)
                or step.op_type in _COUNTING
                or not found.isdisjoint(read)
                or not known.issuperset(shaping - {""})
            )
        if changes:
            found.update(step.outputs)
    return frozenset(found)


def _reads(step: Step, *, quick: bool) -> tuple[str, ...]:
    """Return the tensors that a step's stock operators read."""
    if isinstance(step, Point):
        return step.inputs
    # The node's own inputs hold what a subgraph reads from outside, too.
    inner = (name for op in _ops_of(step, quick=quick) for name in op.inputs)
    return (*step.inputs, *inner)


def _scales(point: Point) -> bool:
    """Whether a point multiplies what it passes on in float, see `quant.float_passthrough`."""
    params = point.params
    return params is not None and params.dequantize_scale is not None and params.per_channel


def _passthrough(point: Point, shape: tuple[int, ...], graph: onnx.GraphProto) -> onnx.NodeProto:
    """Return the float form of a point: Identity, or the Mul of `quant.float_passthrough`."""
    params = point.params
    if params is None or not _scales(point):
        return onnx.NodeProto(op_type="Identity", input=[point.input], output=[point.output])
    scale = broadcast_channels(params.scale, shape, params.axis, params.group)
    ratio = f"{point.name}/dequantize_scale_over_scale"
    with np.errstate(all="ignore"):
        graph.initializer.append(_tensor(ratio, np.float32(params.dequantize_scale) / scale))
    return onnx.NodeProto(op_type="Mul", input=[point.input, ratio], output=[point.output])


def _tensor(name: str, array: NDArray[Any]) -> onnx.TensorProto:
    if array.dtype.kind in "OSU":
        strings = [item if isinstance(item, bytes) else str(item).encode() for item in array.flat]
        kind = onnx.TensorProto.STRING
        return onnx.TensorProto(name=name, data_type=kind, dims=array.shape, string_data=strings)
    return onnx.TensorProto(
        name=name,
        data_type=_element_type(array.dtype.name, name),
        dims=array.shape,
        raw_data=np.ascontiguousarray(array).tobytes(),
    )


def _value_info(name: str, dtype: str, shape: Sequence[int | None] | None) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    tensor = info.type.tensor_type
    tensor.elem_type = _element_type(dtype, name)
    for size in shape or ():
        dimension = tensor.shape.dim.add()
        if size is not None:
            dimension.dim_value = size
    return info


def _element_type(dtype: str, name: str) -> int:
    try:
        return _ELEMENT_TYPES[dtype]
    except KeyError:
        raise ModelError(f"tensors of type {dtype} are not supported", where=name) from None
