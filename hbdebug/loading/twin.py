"""The float twin of a QDQ graph: pairs of QuantizeLinear and DequantizeLinear become points.

The *float twin* is the graph with every pair taken out: what QuantizeLinear and DequantizeLinear
do together, rounding to a grid, is the point; in float the point passes its input on. Operators
between the two that only move integers about run on real numbers in the twin, which gives the same,
because everything behind the point lies on its grid. A constant that the file holds in integers has
its dequantized value in the twin: what it was before, the file does not say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hbdebug.errors import ModelError, UnsupportedError
from hbdebug.loading import protobuf
from hbdebug.loading.hmct import domain_of
from hbdebug.loading.integer_moves import KEEPS_CHANNELS, MOVES, data_inputs, folded, folds
from hbdebug.loading.left_out import KEEPS_SIGNS, NEVER_NEGATIVE, begins_at_zero, left_out
from hbdebug.loading.quantize_linear import DEQUANTIZE, QUANTIZE, Grid, integer_type, read_grid
from hbdebug.model import Node, Op, Point
from hbdebug.quant import dequantize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from hbdebug.loading.hmct import Reader
    from hbdebug.model import Step

ONLY_INTEGERS = (
    "in the file as integers only: without the float model (--float) its own error cannot be "
    "measured"
)
"""Why a stored weight is no point of its own."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Code:
    """A tensor that holds integers in the file.

    Attributes:
        point: Name of the point that made them.
        grid: What they stand for.
        moved: Whether an operator has moved them.
    """

    point: str
    grid: Grid
    moved: bool = False


class Twin:
    """Makes the float twin of one graph.

    Args:
        reader: Turns nodes without integers into steps.
        graph: The graph.
        opset: Its ai.onnx opset version.

    Attributes:
        put_back: Names of the nodes that the file does not have.
    """

    def __init__(self, reader: Reader, graph: onnx.GraphProto, opset: int) -> None:
        self._reader = reader
        self._tensors = reader.tensors
        self._opset = opset
        # Names that must not change: the user knows them, or a subgraph reads them.
        self._fixed = {info.name for info in graph.output}
        for node in graph.node:
            self._fixed.update(protobuf.captured(node))
        self._codes: dict[str, _Code] = {}
        self._renamed: dict[str, str] = {}
        # (integer constant, grid) -> the point on it.
        self._stored: dict[tuple[str, int], tuple[Grid, Point]] = {}
        # Tensor of integers -> the DequantizeLinear nodes that read it.
        self._dequantized: dict[str, list[onnx.NodeProto]] = {}
        # Real numbers that take the place of integers, or are added, once everything is read.
        self._floats: dict[str, NDArray[np.generic]] = {}
        self._read_as_integers: set[str] = set()
        # Stored integers that are moved first -> the DequantizeLinear that they come to.
        self._moved: dict[str, tuple[str, onnx.NodeProto]] = {}
        self._makers: dict[str, onnx.NodeProto] = {}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        # (tensor, whether a signed pair lies behind) -> whether nothing in it is negative.
        self._complete: dict[tuple[str, bool], bool] = {}
        self._steps: list[Step] = []
        self.put_back: list[str] = []

    def steps(self, named: Sequence[tuple[str, onnx.NodeProto]]) -> list[Step]:
        """Return the twin's steps."""
        protos = _sorted(named, self._tensors.constants)
        protos = self._without_preparations(protos)
        self._makers = {output: proto for _, proto in protos for output in proto.output}
        for _, proto in protos:
            if self._is(proto, DEQUANTIZE) and proto.input and proto.output:
                self._dequantized.setdefault(proto.input[0], []).append(proto)
            else:
                self._read_as_integers.update(proto.input)
            for tensor in dict.fromkeys(proto.input):
                self._readers.setdefault(tensor, []).append(proto)
        self._find_moved_constants(protos)
        for name, proto in protos:
            self._read_or_leave_out(name, proto)
        self._tensors.add_constants(self._floats)
        return self._steps

    def _is(self, proto: onnx.NodeProto, operators: frozenset[tuple[str, str]]) -> bool:
        return (domain_of(proto, self._opset), proto.op_type) in operators

    def _read_or_leave_out(self, name: str, proto: onnx.NodeProto) -> None:
        try:
            self._read(name, proto)
        except UnsupportedError as error:
            self._leave_out(name, proto, error.message)
        except ModelError as error:
            error.where = error.where or f"node {name}"
            raise

    def _read(self, name: str, proto: onnx.NodeProto) -> None:
        if self._is(proto, QUANTIZE | DEQUANTIZE) and not (proto.input and proto.output):
            raise ModelError("it has no input or no output")
        if self._is(proto, QUANTIZE):
            self._quantize(name, proto)
        elif proto.output and proto.output[0] in self._codes:
            return  # A Clip that is part of a point, see `_narrowing`.
        elif self._is(proto, DEQUANTIZE):
            self._dequantize(name, proto)
        elif self._reads_integers(proto):
            self._move(name, proto)
        else:
            self._keep(name, proto)

    def _reads_integers(self, proto: onnx.NodeProto) -> bool:
        for tensor in proto.input:
            if tensor in self._moved and self._moves(proto):
                self._start_moving(tensor)
        captured = protobuf.captured(proto)
        return any(tensor in self._codes for tensor in (*proto.input, *captured))

    def _leave_out(self, name: str, proto: onnx.NodeProto, reason: str) -> None:
        """Keep a node that is not known, as one that cannot be computed."""
        self._reader.unknown(name, reason)
        self._steps.append(
            Node(
                name=name,
                op_type=proto.op_type,
                domain=domain_of(proto, self._opset),
                inputs=tuple(self._renamed.get(tensor, tensor) for tensor in proto.input),
                outputs=tuple(proto.output),
                attributes={},
                body=(),
            )
        )

    # Constants that operators prepare.

    def _without_preparations(
        self, protos: Sequence[tuple[str, onnx.NodeProto]]
    ) -> list[tuple[str, onnx.NodeProto]]:
        """Compute what lies between a constant and a pair, such as Identity or Transpose."""
        wanted: set[str] = set()
        for _, proto in reversed(protos):
            prepares = not wanted.isdisjoint(proto.output) and self._folds(proto)
            if prepares or self._is(proto, QUANTIZE | DEQUANTIZE):
                wanted.update(proto.input)
        constants = self._tensors.constants
        left = []
        for name, proto in protos:
            inputs = [tensor for tensor in proto.input if tensor]
            ready = inputs and all(tensor in constants for tensor in inputs)
            if ready and self._folds(proto) and not wanted.isdisjoint(proto.output):
                values = [constants[tensor] for tensor in inputs]
                made = folded(proto.op_type, values, protobuf.attributes(proto))
                self._tensors.add_constants({proto.output[0]: made})
            else:
                left.append((name, proto))
        return left

    def _folds(self, proto: onnx.NodeProto) -> bool:
        return not domain_of(proto, self._opset) and folds(proto.op_type)

    def _find_moved_constants(self, protos: Sequence[tuple[str, onnx.NodeProto]]) -> None:
        """Find stored integers that are moved before they are dequantized, such as embeddings."""
        for name, proto in protos:
            if not self._is(proto, DEQUANTIZE) or not proto.input:
                continue
            moves = list(takewhile(self._moves, self._up(proto.input[0])))
            source = moves[-1].input[0] if moves and moves[-1].input else ""
            if source in self._tensors.constants:
                self._moved.setdefault(source, (name, proto))

    def _moves(self, proto: onnx.NodeProto) -> bool:
        return not domain_of(proto, self._opset) and proto.op_type in MOVES

    def _start_moving(self, source: str) -> None:
        """Put a point on integers that are stored, and dequantized only after they were moved."""
        name, proto = self._moved.pop(source)
        integers = self._tensors.constants[source]
        grid = read_grid(proto, self._tensors.constants, None, integer_type(integers))
        twin = self._fresh(f"{source}/{name}")
        self._renamed[source] = self._fresh(f"{twin}/dequantized")
        self._point_on_integers(name, proto.op_type, twin, self._renamed[source], grid, integers)
        self._codes[source] = _Code(point=name, grid=grid)

    # Pairs.

    def _quantize(self, name: str, proto: onnx.NodeProto) -> None:
        source, output = proto.input[0], proto.output[0]
        if source in self._codes:
            raise UnsupportedError(f"it quantizes integers, those of {self._codes[source].point}")
        grid = read_grid(proto, self._tensors.constants, self._tensors.shape(source))
        constant = source in self._tensors.constants
        clip = self._narrowing(output)
        if clip is not None:
            grid = grid.within(*self._bounds(clip, grid))
        self._codes[output] = code = _Code(point=name, grid=grid)
        tensor = self._renamed.get(source, source)
        limits = None if constant or self._is_complete(source) else left_out(grid.params)
        self._steps.append(
            Point(
                name=name,
                role="weight" if constant else "activation",
                input=tensor if limits is None else self._put_back(name, tensor, limits, grid),
                output=self._named(output if clip is None else clip.output[0], code),
                params=grid.params,
                op_type=proto.op_type,
            )
        )
        if clip is not None:
            self._codes[clip.output[0]] = code

    def _narrowing(self, tensor: str) -> onnx.NodeProto | None:
        """Return the Clip that alone reads the integers of a QuantizeLinear, with fixed bounds.

        So exporters write that not all integers of the type are in use.
        """
        readers = self._readers.get(tensor, [])
        if len(readers) != 1 or tensor in self._fixed or not readers[0].output:
            return None
        (proto,) = readers
        bounds = [name for name in proto.input[1:] if name]
        fixed = all(name in self._tensors.constants for name in bounds)
        stock = proto.op_type == "Clip" and not domain_of(proto, self._opset)
        return proto if stock and bounds and fixed and proto.input[0] == tensor else None

    def _bounds(self, clip: onnx.NodeProto, grid: Grid) -> tuple[int, int]:
        bounds = [grid.params.qmin, grid.params.qmax]
        for index, name in enumerate(clip.input[1:3]):
            if name:
                bounds[index] = int(self._tensors.constants[name].reshape(-1)[0])
        return bounds[0], bounds[1]

    def _is_complete(self, tensor: str, *, narrowed: bool = False) -> bool:
        """Whether no Relu can be missing behind a tensor, because nothing in it is negative.

        Looked through are operators that move or average values, and pairs whose range has
        negative numbers; what the user feeds is as it is.

        Args:
            tensor: The tensor.
            narrowed: Whether such a pair lies behind it.
        """
        known = self._complete.get((tensor, narrowed))
        if known is None:
            # Until it is known; a file can be malformed enough to have nodes in a circle.
            self._complete[tensor, narrowed] = True
            known = self._complete[tensor, narrowed] = self._judged(tensor, narrowed=narrowed)
        return known

    def _judged(self, tensor: str, *, narrowed: bool) -> bool:
        for maker in self._up(tensor):
            if self._is(maker, QUANTIZE):
                code = self._codes.get(maker.output[0])
                if code is None or begins_at_zero(code.grid.params):
                    return True
                narrowed = True
            elif maker.op_type in NEVER_NEGATIVE:
                return True
            elif self._moves(maker) and len(data_inputs(maker)) > 1:
                tensors = [maker.input[index] for index in data_inputs(maker)]
                return all(self._is_complete(item, narrowed=narrowed) for item in tensors)
            elif not (self._keeps_signs(maker) or self._is(maker, DEQUANTIZE)):
                return False
        return not narrowed

    def _keeps_signs(self, proto: onnx.NodeProto) -> bool:
        return self._moves(proto) or proto.op_type in KEEPS_SIGNS

    def _up(self, tensor: str) -> Iterator[onnx.NodeProto]:
        """Yield the node that makes a tensor, the one that makes its first input, and so on."""
        seen: set[str] = set()
        # A file can be malformed enough to have nodes in a circle.
        while tensor in self._makers and tensor not in seen:
            seen.add(tensor)
            maker = self._makers[tensor]
            yield maker
            tensor = maker.input[0] if maker.input else ""

    def _put_back(self, point: str, tensor: str, limits: tuple[float, float], grid: Grid) -> str:
        """Put a Relu or Clip in front of a point, and return what it makes."""
        relu = np.isinf(limits[1])
        proto = onnx.NodeProto(op_type="Relu" if relu else "Clip", input=[tensor])
        proto.name = f"{point}/{proto.op_type}"
        proto.output.append(self._fresh(proto.name))
        if not relu and self._opset < 11:
            proto.attribute.extend(
                onnx.helper.make_attribute(name, limit)
                for name, limit in zip(("min", "max"), limits, strict=True)
            )
        elif not relu:
            proto.input.extend(
                self._constant(f"{proto.name}/{name}", np.asarray(limit, grid.real))
                for name, limit in zip(("min", "max"), limits, strict=True)
            )
        self._steps.append(replace(self._reader.node(proto.name, proto), assumed=True))
        self.put_back.append(proto.name)
        return str(proto.output[0])

    def _named(self, tensor: str, code: _Code) -> str:
        """Choose what a tensor of integers is called where it holds real numbers.

        Of the names that it has in front of and behind its DequantizeLinear nodes, one that must
        not change comes first, then one that a float operator reads.
        """
        ends = [item for item in self._dequantized.get(tensor, ()) if self._ends(item, code)]
        behind = [proto.output[0] for proto in ends]
        fixed = [name for name in (tensor, *behind) if name in self._fixed]
        chosen: str = (*fixed, *behind, tensor)[0]
        self._renamed[tensor] = chosen
        return chosen

    def _dequantize(self, name: str, proto: onnx.NodeProto) -> None:
        source = proto.input[0]
        constant = self._tensors.constants.get(source)
        if source in self._codes:
            code = self._codes[source]
            difference = self._difference(proto, code)
            if difference:
                raise UnsupportedError(
                    f"it is no pair with the QuantizeLinear {code.point} whose integers it reads: "
                    f"{difference}"
                )
            self._call_again(name, proto, self._renamed[source])
        elif constant is not None:
            self._stored_constant(name, proto, constant)
        else:
            # Integers that the user feeds, or that the float graph computes: nothing is rounded.
            self._keep(name, proto)

    def _difference(self, proto: onnx.NodeProto, code: _Code) -> str:
        """Say what keeps a DequantizeLinear from ending what a QuantizeLinear began."""
        constants, shape = self._tensors.constants, self._tensors.shape(proto.input[0])
        grid = read_grid(proto, constants, shape, code.grid.params.dtype)
        return code.grid.differs_from(grid, moved=code.moved)

    def _ends(self, proto: onnx.NodeProto, code: _Code) -> bool:
        try:
            return not self._difference(proto, code)
        except ModelError:
            # It is read once more in its turn, and refused then.
            return False

    def _call_again(self, name: str, proto: onnx.NodeProto, tensor: str) -> None:
        """Let what reads a node's output read a tensor that holds the same."""
        output = proto.output[0]
        if output == tensor:
            return
        if output in self._fixed:
            op = Op(op_type="Identity", inputs=(tensor,), outputs=(output,))
            self._steps.append(
                Node(
                    name=name,
                    op_type=proto.op_type,
                    domain=domain_of(proto, self._opset),
                    inputs=(tensor,),
                    outputs=(output,),
                    attributes={},
                    body=(op,),
                )
            )
        else:
            self._renamed[output] = tensor

    def _stored_constant(
        self, name: str, proto: onnx.NodeProto, integers: NDArray[np.generic]
    ) -> None:
        """Read a constant that the file holds in integers."""
        source, output = proto.input[0], proto.output[0]
        grid = read_grid(proto, self._tensors.constants, integers.shape, integer_type(integers))
        if integer_type(integers) != grid.params.dtype:
            raise ModelError(
                f"it dequantizes {integer_type(integers)} values with a zero point of type "
                f"{grid.params.dtype}"
            )
        others = [key for key in self._stored if key[0] == source]
        for key in others:
            known, point = self._stored[key]
            if not known.differs_from(grid, moved=False):
                self._call_again(name, proto, point.output)
                return
        # A second grid for the same integers makes a constant of its own, and so does a node that
        # reads the integers as such.
        alone = not others and self._read_as_integers.isdisjoint([source])
        twin = source if alone else self._fresh(f"{source}/{name}")
        point = self._point_on_integers(name, proto.op_type, twin, output, grid, integers)
        self._stored[source, len(others)] = (grid, point)

    def _point_on_integers(
        self,
        name: str,
        op_type: str,
        twin: str,
        output: str,
        grid: Grid,
        integers: NDArray[np.generic],
    ) -> Point:
        point = Point(
            name=name,
            role="weight",
            input=twin,
            output=output,
            params=grid.params,
            enabled=False,
            reason=ONLY_INTEGERS,
            op_type=op_type,
        )
        self._floats[twin] = _dequantized(integers, grid)
        self._steps.append(point)
        return point

    def _fresh(self, name: str) -> str:
        """Return a tensor name that nothing in the model has."""
        while name in self._tensors.taken:
            name += "_"
        self._tensors.taken.add(name)
        return name

    # Everything else.

    def _keep(self, name: str, proto: onnx.NodeProto) -> None:
        """Take a node over; it reads real numbers under the names that they have in the twin."""
        self._steps.append(self._reader.step(name, self._rewired(proto)))

    def _rewired(self, proto: onnx.NodeProto) -> onnx.NodeProto:
        if not any(tensor in self._renamed for tensor in proto.input):
            return proto
        copy = onnx.NodeProto()
        copy.CopyFrom(proto)
        copy.input[:] = [self._renamed.get(tensor, tensor) for tensor in proto.input]
        return copy

    def _move(self, name: str, proto: onnx.NodeProto) -> None:
        """Let a node that moves integers move the real numbers that they stand for."""
        tensors = (*proto.input, *protobuf.captured(proto))
        read = [tensor for tensor in tensors if tensor in self._codes]
        code = self._codes[read[0]]
        indices = data_inputs(proto) if self._moves(proto) else []
        if not set(read).issubset(proto.input[index] for index in indices):
            raise UnsupportedError(
                f"{proto.op_type} computes on the integers of {code.point} instead of on real "
                "numbers; put a DequantizeLinear in front of it"
            )
        self._check_move(proto, code, [self._codes[tensor] for tensor in read])
        copy = self._rewired(proto)
        for index in indices:
            if proto.input[index] not in self._codes:
                copy.input[index] = self._real_constant(name, proto, index, code.grid)
        if proto.op_type == "Pad" and len(copy.input) == 2 and code.grid.params.zero_point.any():
            # Without a value it pads with the integer 0, which stands for another real number.
            zero = _dequantized(np.zeros((), np.int32), code.grid)
            copy.input.append(self._constant(f"{name}/padding", zero))
        for index, output in enumerate(proto.output):
            holds_integers = output and not (proto.op_type == "MaxPool" and index)
            if holds_integers:
                self._codes[output] = _Code(point=code.point, grid=code.grid, moved=True)
                copy.output[index] = self._named(output, self._codes[output])
        self._steps.append(self._reader.step(name, copy))

    def _check_move(self, proto: onnx.NodeProto, code: _Code, codes: Sequence[_Code]) -> None:
        for other in codes:
            difference = code.grid.differs_from(other.grid, moved=True)
            if difference:
                raise UnsupportedError(
                    f"{proto.op_type} mixes the integers of {code.point} and {other.point}, which "
                    f"stand for different numbers: {difference}"
                )
        if code.grid.params.per_channel and proto.op_type not in KEEPS_CHANNELS:
            raise UnsupportedError(
                f"{proto.op_type} between the QuantizeLinear {code.point} and its DequantizeLinear "
                "may part channels from their scales"
            )

    def _real_constant(self, name: str, proto: onnx.NodeProto, index: int, grid: Grid) -> str:
        """Return the real numbers that a constant operand of integers stands for."""
        integers = self._tensors.constants.get(proto.input[index])
        if integers is None:
            raise UnsupportedError(
                f"{proto.op_type} mixes integers of a QuantizeLinear with {proto.input[index]}, "
                "which stands for nothing known"
            )
        return self._constant(f"{name}/operand_{index}", _dequantized(integers, grid))

    def _constant(self, name: str, values: NDArray[np.generic]) -> str:
        name = self._fresh(name)
        self._floats[name] = values
        return name


def _dequantized(integers: NDArray[np.generic], grid: Grid) -> NDArray[Any]:
    """Return what integers stand for, as DequantizeLinear computes it."""
    values = dequantize(integers.astype(np.int32).astype(np.int64), grid.params)
    with np.errstate(over="ignore"):
        return values.astype(grid.real)


def _sorted(
    named: Sequence[tuple[str, onnx.NodeProto]], constants: Iterable[str]
) -> list[tuple[str, onnx.NodeProto]]:
    """Return nodes behind what they read, otherwise in file order; those in a cycle come last."""
    maker = {output: index for index, (_, proto) in enumerate(named) for output in proto.output}
    maker = {output: index for output, index in maker.items() if output}
    done = set(constants)
    order: list[int] = []
    placed = [False] * len(named)
    for start in range(len(named)):
        stack = [start]
        entered: set[int] = set()
        while stack:
            index = stack[-1]
            missing = [
                maker[tensor]
                for tensor in named[index][1].input
                if tensor not in done and tensor in maker and not placed[maker[tensor]]
            ]
            missing = [item for item in missing if item not in entered]
            entered.add(index)
            if missing and not placed[index]:
                stack.extend(missing)
                continue
            stack.pop()
            if not placed[index]:
                placed[index] = True
                order.append(index)
                done.update(named[index][1].output)
    return [named[index] for index in order]
