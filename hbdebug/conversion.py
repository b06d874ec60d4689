"""From a calibrated model to the quantized one, file to file, as ``hbdebug quantize`` does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UsageError
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading import load
from hbdebug.loading.qdq import require_calibrated
from hbdebug.loading.writing import integer_content
from hbdebug.lowering.elementwise import BERNOULLI2
from hbdebug.lowering.graph import lower
from hbdebug.lowering.layout import arrange
from hbdebug.lowering.settled import settled, with_original_constants
from hbdebug.lowering.writer import CHANNELS_LAST
from hbdebug.model import Assignment
from hbdebug.names import close_matches
from hbdebug.npy import describe
from hbdebug.report.record import refuse_overwriting, write_bytes_atomic
from hbdebug.samples import TensorSpec, require_readable_type, wanted_inputs
from hbdebug.slices import Slicer
from hbdebug.toolchain import check_march, int16_refusal, lifted
from hbdebug.walk import Walker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnx
    from numpy.typing import NDArray

    from hbdebug.model import IntegerModel, Node, QuantModel
    from hbdebug.toolchain import Target

_BORDERS = frozenset({"HzDequantize", "HzQuantize"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantized:
    """A quantized model that was written.

    Attributes:
        file: Where it is.
        integers: Number of nodes that compute in integers, those that move them included.
        floats: Nodes that compute in float, name and operator.
        notes: What is not, or may not be, as the vendor's converter writes it, in words.
    """

    file: str
    integers: int
    floats: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def quantize(
    model: str | os.PathLike[str] | onnx.ModelProto,
    output: str | os.PathLike[str],
    *,
    march: str = "bayes-e",
    int16: Sequence[str] = (),
    cpu: Sequence[str] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Quantized:
    """Derive the integer model of a calibrated one and write it in the vendor's operators.

    Args:
        model: The calibrated model; it is not changed.
        output: File to write.
        march: bayes, bayes-e or bernoulli2.
        int16: Nodes to set to int16 first, by name, as the toolchain would.
        cpu: Nodes to move to the CPU first, by name, likewise.
        shapes: Shapes of graph inputs, by name; needed where the model leaves a size open.

    Returns:
        What was written.

    Raises:
        UsageError: A name, march or shape does not fit the model, or the model would be
            overwritten.
        UnsupportedError: The integer form of a node, or the march, is not known.
        ModelError: The model is no calibrated one.
    """
    if not hasattr(model, "graph"):
        refuse_overwriting(os.fspath(model), output)
    check_march(march)
    loaded = load(model)
    require_calibrated(loaded)
    settings = _settings(loaded, int16, cpu, march)
    assignment = Assignment.as_calibrated(loaded)
    if settings:
        assignment = lifted(loaded, assignment, settings, march)
    sample = _sample(loaded, shapes or {})
    walker = Walker(loaded, Slicer(loaded))
    known = {name: shape for name, (_, shape) in walker.profile(sample).specs.items()}
    placed, quantized = settled(loaded, assignment, cpu=cpu)
    plain = with_original_constants(lower(placed, quantized, shapes=known, march=march), loaded)
    specs, expected = _run(plain, sample)
    arranged = arrange(plain, specs, march=march)
    specs, found = _run(arranged, sample)
    for name, values in expected.items():
        if not np.array_equal(values, found[name], equal_nan=values.dtype.kind == "f"):
            raise AssertionError(f"arranging the layout changed output {name}")
    write_bytes_atomic(output, integer_content(arranged, specs, like=model))
    floats = tuple((node.name, node.op_type) for node in arranged.nodes if _is_float(node, specs))
    return Quantized(
        file=os.fspath(output),
        integers=len(arranged.nodes) - len(floats),
        floats=floats,
        notes=_notes(arranged, settings, floats, march),
    )


def _settings(
    model: QuantModel, int16: Sequence[str], cpu: Sequence[str], march: str
) -> dict[str, Target]:
    """Return what to set each node to.

    Raises:
        UsageError: There is no such node, it is named twice, or it cannot be int16.
    """
    settings: dict[str, Target] = {}
    wanted: list[tuple[str, Target]] = [(name, "int16") for name in int16]
    wanted += [(name, "cpu") for name in cpu]
    for name, target in wanted:
        node = model.node_by_name.get(name)
        if node is None:
            raise UsageError(
                f"no node named {name!r}",
                where=model.path,
                hint=close_matches(name, model.node_by_name) or "See `hbdebug info MODEL`.",
            )
        if settings.get(name, target) != target:
            raise UsageError(f"{name} is set to int16 and to cpu", hint="Choose one of them.")
        refusal = int16_refusal(node, model, march) if target == "int16" else ""
        if refusal:
            raise UsageError(
                f"{name} cannot be set to int16: {refusal}",
                where=model.path,
                hint="Set it to the CPU.",
            )
        settings[name] = target
    return settings


def _sample(
    model: QuantModel, shapes: Mapping[str, Sequence[int]]
) -> dict[str, NDArray[np.generic]]:
    """Return one array for each input: what it holds does not matter, its shape does."""
    inputs = {spec.name: spec for spec in model.inputs}
    for name in shapes:
        if name not in inputs:
            raise UsageError(
                f"the model has no input {name!r}",
                where=model.path,
                hint=f"{close_matches(name, inputs)} {wanted_inputs(model.inputs)}".strip(),
            )
    random = np.random.default_rng(0)
    sample: dict[str, NDArray[np.generic]] = {}
    for name, spec in inputs.items():
        require_readable_type(spec)
        shape = tuple(shapes.get(name, [size or 0 for size in spec.shape]))
        _check_shape(spec, shape, model.path)
        if np.dtype(spec.dtype).kind == "f":
            sample[name] = random.normal(size=shape).astype(spec.dtype)
        else:
            sample[name] = np.zeros(shape, spec.dtype)
    return sample


def _check_shape(spec: TensorSpec, shape: tuple[int, ...], path: str) -> None:
    what = f"input {spec.name!r} is {describe(spec.dtype, spec.shape)}"
    example = "x".join(str(size or (224 if axis else 1)) for axis, size in enumerate(spec.shape))
    hint = f"Give its shape with --input-shape, such as {spec.name}={example}."
    if 0 in shape:
        raise UsageError(
            f"{what}; which integers the nodes have depends on the size", where=path, hint=hint
        )
    if len(shape) != len(spec.shape) or any(
        size not in (None, given) for size, given in zip(spec.shape, shape, strict=True)
    ):
        given = "x".join(str(size) for size in shape)
        raise UsageError(f"{what}, and cannot be {given}", where=path, hint=hint)


def _run(
    model: IntegerModel, sample: Mapping[str, NDArray[Any]]
) -> tuple[dict[str, TensorSpec], dict[str, NDArray[Any]]]:
    """Run an integer model; return type and shape of every tensor, and the outputs."""
    specs: dict[str, TensorSpec] = {}

    def keep(name: str, array: NDArray[Any]) -> None:
        specs[name] = TensorSpec(name=name, dtype=array.dtype.name, shape=array.shape)

    # An image input is int8 where the calibrated model takes floats.
    fed = {spec.name: _fed(sample[spec.name], spec) for spec in model.inputs}
    for name, array in (*model.constants.items(), *fed.items()):
        keep(name, array)
    return specs, IntegerRunner(model).forward(fed, keep=keep)


def _fed(array: NDArray[Any], spec: TensorSpec) -> NDArray[Any]:
    """Return an input in the type and layout that the integer model takes."""
    array = array.astype(spec.dtype)
    # Open sizes are settled, so a size that differs is that of an image with channels last.
    if array.ndim == 4 and any(
        size not in {None, actual} for size, actual in zip(spec.shape, array.shape, strict=True)
    ):
        array = array.transpose(CHANNELS_LAST)
    return array


def _is_integer(spec: TensorSpec) -> bool:
    return spec.dtype in {"int8", "int16", "int32"}


def _is_float(node: Node, specs: Mapping[str, TensorSpec]) -> bool:
    """Whether a node computes floats, and is not one that turns them into integers or back."""
    if node.op_type in _BORDERS:
        return False
    return not any(_is_integer(specs[name]) for name in node.inputs if name in specs)


def _notes(
    model: IntegerModel,
    settings: Mapping[str, Target],
    floats: Sequence[tuple[str, str]],
    march: str,
) -> tuple[str, ...]:
    notes = []
    tables = sum(node.op_type == "HzLut2Layer" for node in model.nodes)
    if tables:
        notes.append(
            f"{tables} int16 table{'' if tables == 1 else 's'} (HzLut2Layer): of 87 that were "
            "compared, 5 differ from the converter's by 1 for few inputs"
        )
    if march == BERNOULLI2:
        notes.extend(
            f"{name} is in float; if it was set to run on the BPU, the converter has "
            "HzQuantizedSoftmax there, which is not known here"
            for name in _softmax_of_channels(model)
        )
    on_cpu = {name for name, _ in floats}
    notes.extend(
        f"{name} is to be on the CPU, and is in integers all the same"
        for name, target in settings.items()
        if target == "cpu" and name not in on_cpu
    )
    return tuple(notes)


def _softmax_of_channels(model: IntegerModel) -> tuple[str, ...]:
    """Return the float nodes that the converter may have an operator of bernoulli2 for."""
    made = {name: node for node in model.nodes for name in node.outputs}

    def behind_integers(node: Node) -> bool:
        maker = made.get(node.inputs[0])
        while maker is not None and maker.op_type == "Transpose":
            maker = made.get(maker.inputs[0])
        return maker is not None and maker.op_type == "HzDequantize"

    return tuple(
        node.name
        for node in model.nodes
        if node.op_type == "Softmax" and node.attributes.get("axis") == 1 and behind_integers(node)
    )


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``NAME=1x3x48x192``.

    Returns:
        The name and the shape.

    Raises:
        UsageError: It is written another way.
    """
    # A name may hold an equals sign, a shape none.
    name, _, sizes = text.rpartition("=")
    parts = sizes.split("x")
    if not name or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(
            f"{text!r} is not NAME=SHAPE", hint="Write it like --input-shape x=1x3x48x192."
        )
    return name, tuple(int(part) for part in parts)
