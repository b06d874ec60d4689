"""Mutated models through the loader and one float walk: nothing but our own errors may come out.

    python -m tests.fuzz_models --count 20000 [--first 0] [--jobs 2] [--save FOLDER]

Input number N is always the same: a small model, changed at some places by a generator seeded
with N, in its structure (messages and fields, by protobuf's own reflection) or in its bytes. It is
read as a file and, where it loads, walked once in float on a small sample; every fifth is analysed.

Everything runs in child processes with a memory limit, because what ONNX Runtime does with a
hostile model cannot be caught: where a child dies or does not answer, the input is reported with
the phase in which that happened, and another child goes on behind it. A death while *loading* is
our fault; one in the *walk* is ONNX Runtime's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import select
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from hbdebug.errors import HbdebugError
from hbdebug.loading import load_to_run
from hbdebug.model import IntegerModel
from hbdebug.pipeline import info, sensitivity
from hbdebug.slices import Slicer
from hbdebug.walk import Walker
from tests import integer_models, models, qdq_models, structure_models

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hbdebug.model import QuantModel

ROOT = Path(__file__).parent.parent

SECONDS = 20
"""Time that one input may take; loading one of these takes some milliseconds."""

MEMORY = 6 << 30
"""Bytes of address space of a child: most of it is what the libraries map when they start."""

_MOST_ELEMENTS = 10_000  # of a sample's array

SEEDS = (
    models.residual,
    models.many_outputs,
    structure_models.mask_and_shape,
    structure_models.resized,
    structure_models.conditional,
    structure_models.looped,
    structure_models.scanned,
    structure_models.of_sequences,
    structure_models.of_strings,
    structure_models.picked,
    structure_models.looped_sequence,
    structure_models.with_functions,
    structure_models.unnamed,
    structure_models.classes_only,
    structure_models.of_any_rank,
    structure_models.with_empty_tensor,
    structure_models.dead_channel,
    structure_models.of_half,
    structure_models.tied_weights,
    structure_models.vendors_operators,
    structure_models.sparse_and_constants,
    integer_models.table_lookup,
    integer_models.two_inputs,
    qdq_models.convolution,
    qdq_models.removed_activations,
    qdq_models.double_pairs,
    qdq_models.dedicated_pairs,
    qdq_models.far_apart,
    qdq_models.clipped_integers,
    qdq_models.embedding,
    qdq_models.prepared_weights,
    qdq_models.shared_integers,
    qdq_models.captured,
    qdq_models.odd_scales,
)

_WORDS = ("", "x", "conv", "Conv", "Relu", "If", "Add", "horizon", "ai.onnx", "com.microsoft", "é")
_OPERATORS = tuple(
    # With repetitions: what many models hold is drawn more often.
    op_type
    for make in SEEDS
    for op_type in dict.fromkeys(node.op_type for node in make().graph.node)
)
_INTEGERS = (0, 1, -1, 2, 7, 10, 127, 255, 1 << 31, -(1 << 31), (1 << 31) - 1, 1 << 40, 1 << 62)
_INTEGERS += (-(1 << 62), (1 << 63) - 1)
_FLOATS = (0.0, -1.0, 1e-45, 1e38, float("inf"), float("-inf"), float("nan"))


# What is tried.


@cache
def _seeds() -> tuple[bytes, ...]:
    return tuple(make().SerializeToString() for make in SEEDS)


def mutant(number: int) -> bytes:
    """Return input ``number`` as the bytes of a file."""
    draw = random.Random(number)
    content = draw.choice(_seeds())
    if draw.random() < 0.7:
        model = onnx.ModelProto.FromString(content)
        for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
            _mutate_structure(model, draw)
        content = model.SerializeToString()
    if draw.random() < 0.35:
        for _ in range(draw.choice((1, 1, 2, 4))):
            content = _mutate_bytes(content, draw)
    return content


def _mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    data = bytearray(content)
    at = draw.randrange(len(data) + 1)
    size = draw.choice((1, 1, 2, 4, 16, 64, 300))
    kind = draw.randrange(6)
    if kind == 0 and at < len(data):
        data[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        data[at : at + size] = draw.randbytes(min(size, len(data) - at))
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        del data[at : at + size]
    elif kind == 4:
        data[at:at] = draw.randbytes(size)
    else:
        other = draw.choice(_seeds())
        start = draw.randrange(len(other))
        data[at : at + size] = other[start : start + size]
    return bytes(data)


def _mutate_structure(model: onnx.ModelProto, draw: random.Random) -> None:
    # A message drawn at random is most often a number deep inside of some tensor, so half of
    # the draws choose among those that make up the graph.
    messages = list(_messages(model, draw))
    graph = [item for item in messages if isinstance(item, _PARTS)]
    message = draw.choice(graph if graph and draw.random() < 0.7 else messages)
    if isinstance(message, onnx.GraphProto) and draw.random() < 0.6:
        _mutate_nodes(message, draw)
    elif isinstance(message, onnx.NodeProto) and draw.random() < 0.6:
        _mutate_node(message, draw, messages)
    else:
        _mutate_field(message, draw)


_PARTS = (
    onnx.AttributeProto,
    onnx.FunctionProto,
    onnx.GraphProto,
    onnx.ModelProto,
    onnx.NodeProto,
    onnx.OperatorSetIdProto,
    onnx.TensorProto,
    onnx.ValueInfoProto,
)


def _messages(message: Any, draw: random.Random) -> Iterator[Any]:
    yield message
    for _, value in message.ListFields():
        if hasattr(value, "ListFields"):
            yield from _messages(value, draw)
        elif len(value) if hasattr(value, "__len__") else False:
            for item in value:
                if not hasattr(item, "ListFields"):
                    break
                yield from _messages(item, draw)


def _mutate_nodes(graph: onnx.GraphProto, draw: random.Random) -> None:
    if not graph.node:
        return
    index = draw.randrange(len(graph.node))
    kind = draw.randrange(6)
    if kind == 0:
        del graph.node[index]
    elif kind == 1:
        graph.node.add().MergeFromString(graph.node[index].SerializeToString())
    elif kind == 2:
        other = graph.node[draw.randrange(len(graph.node))]
        if other.output:
            graph.node[index].input[:] = [*graph.node[index].input[1:], other.output[0]]
    elif kind == 3:
        nodes = list(graph.node)
        draw.shuffle(nodes)
        del graph.node[:]
        graph.node.extend(nodes)
    elif kind == 4 and graph.initializer:
        del graph.initializer[draw.randrange(len(graph.initializer))]
    else:
        for info in (*graph.input, *graph.output):
            if draw.random() < 0.5:
                graph.output.add().MergeFromString(info.SerializeToString())


def _mutate_node(node: onnx.NodeProto, draw: random.Random, messages: list[Any]) -> None:
    tensors = [
        name for item in messages if isinstance(item, onnx.NodeProto) for name in item.output
    ]
    kind = draw.randrange(7)
    if kind == 0:
        node.op_type = draw.choice(_OPERATORS)
    elif kind == 1 and node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice((*tensors, "", "nowhere"))
    elif kind == 2 and node.output:
        node.output[draw.randrange(len(node.output))] = draw.choice((*tensors, "", "new"))
    elif kind == 3 and node.attribute:
        del node.attribute[draw.randrange(len(node.attribute))]
    elif kind == 4:
        node.domain = draw.choice(("", "horizon", "own", "ai.onnx", "com.microsoft", "ai.onnx.ml"))
    elif kind == 5:
        count = draw.choice((0, 1, 3, 300))
        node.input.extend(draw.choice((*tensors, "")) for _ in range(count))
    else:
        others = [item for item in messages if isinstance(item, onnx.AttributeProto)]
        if others:
            # As bytes: protobuf crashes when a message is copied into one inside of itself.
            node.attribute.add().MergeFromString(draw.choice(others).SerializeToString())


def _mutate_field(message: Any, draw: random.Random) -> None:
    """Change one field, set or unset, to something that its type allows."""
    fields = [entry for entry, _ in message.ListFields()]
    if not fields or draw.random() < 0.2:
        fields = list(message.DESCRIPTOR.fields)
    entry = draw.choice(fields)
    if draw.random() < 0.15:
        message.ClearField(entry.name)
        return
    value = getattr(message, entry.name)
    repeated = hasattr(value, "append") or hasattr(value, "add")
    if entry.message_type is not None:
        _mutate_child(value, draw, repeated=repeated)
    elif not repeated:
        setattr(message, entry.name, _scalar(entry, value, draw))
    elif value and draw.random() < 0.4:
        value[draw.randrange(len(value))] = _scalar(entry, value[0], draw)
    elif value and draw.random() < 0.6:
        del value[draw.randrange(len(value)) :]
    else:
        value.extend(_scalar(entry, None, draw) for _ in range(draw.choice((1, 2, 50))))


def _mutate_child(value: Any, draw: random.Random, *, repeated: bool) -> None:
    if not repeated:
        value.SetInParent()
    elif not value or draw.random() < 0.2:
        value.add()
    elif draw.random() < 0.5:
        value.add().MergeFromString(value[draw.randrange(len(value))].SerializeToString())
    else:
        del value[draw.randrange(len(value))]


def _scalar(entry: Any, old: Any, draw: random.Random) -> Any:
    kinds = type(entry)
    if entry.cpp_type == kinds.CPPTYPE_STRING:
        if entry.type == kinds.TYPE_BYTES:
            return draw.choice((b"", b"\xff\xfe", draw.randbytes(8), bytes(old or b"")[:-1]))
        return draw.choice(_WORDS)
    if entry.cpp_type == kinds.CPPTYPE_ENUM:
        return draw.choice([item.number for item in entry.enum_type.values])
    if entry.cpp_type in {kinds.CPPTYPE_FLOAT, kinds.CPPTYPE_DOUBLE}:
        return draw.choice(_FLOATS)
    if entry.cpp_type == kinds.CPPTYPE_BOOL:
        return draw.random() < 0.5
    number = draw.choice((*_INTEGERS, int(old or 0) + 1, int(old or 0) - 1))
    number = max(min(number, (1 << 63) - 1), -(1 << 63))
    if entry.cpp_type in {kinds.CPPTYPE_INT32, kinds.CPPTYPE_UINT32}:
        number &= (1 << 31) - 1
    return max(number, 0) if entry.cpp_type == kinds.CPPTYPE_UINT64 else number


# What is done with it, in a child.


def try_one(path: Path, say: Any, *, skip: bool = False, analyse: bool = False) -> str:
    """Load a file and walk it; return what came of it.

    Args:
        path: The file.
        say: Called with the phase that begins.
        skip: Whether what is not known may be left out.
        analyse: Whether nodes are ranked and a suggestion is searched, too.

    Raises:
        Exception: Anything that is not ours is a fault.
    """
    say("load")
    try:
        model = load_to_run(path, skip_unsupported=skip)
    except HbdebugError as error:
        if not str(error).strip():
            raise AssertionError("an error without a message") from error
        return f"refused: {type(error).__name__}"
    if isinstance(model, IntegerModel):
        return "loaded; runs in integers"
    sample = _sample(model)
    if sample is None:
        return "loaded; no sample of it can be made"
    say("walk")
    try:
        Walker(model, Slicer(model)).baseline(sample)
    except HbdebugError as error:
        return f"loaded; not run: {type(error).__name__}"
    if not analyse:
        return "loaded and run"
    say("analysis")
    return _analyse(model, sample, Path(tempfile.mkdtemp(dir=path.parent)))


def _sample(model: QuantModel) -> dict[str, np.ndarray] | None:
    """Return random inputs; None where they would be large, or of no type that NumPy has."""
    random_numbers = np.random.default_rng(0)
    sample = {}
    for spec in model.inputs:
        shape = tuple(3 if size is None else size for size in spec.shape)
        if math.prod(shape) > _MOST_ELEMENTS or spec.dtype in {"unknown", "object", "bytes_"}:
            return None
        sample[spec.name] = np.asarray(random_numbers.normal(0, 1, shape)).astype(spec.dtype)
    return sample


def _analyse(model: QuantModel, sample: dict[str, np.ndarray], folder: Path) -> str:
    try:
        info(model)
        sensitivity(model, models.save_samples(folder, [sample, sample]), jobs=1, target=0.9)
    except HbdebugError as error:
        return f"run; not analysed: {type(error).__name__}"
    return "analysed"


def _child(first: int, stop: int, step: int) -> None:
    """Try every ``step``-th input; one line of JSON for each phase and outcome."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    # ONNX Runtime writes to the standard output at times, which is the parent's line.
    line = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutant.onnx"
        for number in range(first, stop, step):

            def say(*words: str, number: int = number) -> None:
                line.write(json.dumps([number, *words]) + "\n")
                line.flush()

            say("make")
            path.write_bytes(mutant(number))
            try:
                outcome = try_one(path, say, skip=number % 3 == 0, analyse=number % 5 == 0)
            except Exception:  # noqa: BLE001 - what must not happen
                outcome = "FAULT " + traceback.format_exc(limit=-6)
            say("done", outcome)


# The parent.


@dataclass
class Report:
    """What came of many inputs.

    Attributes:
        outcomes: Outcome -> how many.
        faults: Input number -> traceback, or what became of the child, while loading.
        deaths: Input number -> what became of the child in the walk, or later.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)
    deaths: dict[int, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many inputs were tried."""
        return self.outcomes.total()

    def add(self, number: int, outcome: str) -> None:
        """Enter one outcome."""
        if outcome.startswith("FAULT"):
            self.faults[number] = outcome
            outcome = "FAULT"
        self.outcomes[outcome] += 1


def fuzz(count: int, *, first: int = 0, jobs: int = 1) -> Report:
    """Try inputs ``first`` to ``first + count - 1`` in ``jobs`` children."""
    report = Report()
    with ThreadPoolExecutor(jobs) as pool:
        runs = [
            pool.submit(_supervise, report, first + offset, first + count, jobs)
            for offset in range(jobs)
        ]
        for run in runs:
            run.result()
    return report


def _supervise(report: Report, first: int, stop: int, step: int) -> None:
    """Keep a child going until all of its inputs are through."""
    while first < stop:
        first = _watch(report, first, stop, step) + step


def _watch(report: Report, first: int, stop: int, step: int) -> int:
    """Run one child; return the number of the last input that it was given."""
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    arguments = ["--child", str(first), str(stop), str(step)]
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.fuzz_models", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    number, phase = first, "start"
    with child:
        buffer = b""
        while True:
            # The first line takes as long as the imports do.
            ready, _, _ = select.select([child.stdout], [], [], SECONDS)
            data = os.read(child.stdout.fileno(), 1 << 16) if ready else b""
            if not data:
                break
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                number, phase, *outcome = json.loads(line)
                if outcome:
                    report.add(number, outcome[0])
        if phase == "done" and number + step >= stop:
            return number
        if not ready:
            child.kill()
        code = child.wait()
    what = f"no answer for {SECONDS} s" if not ready else f"ended with {code}"
    found = report.deaths if phase in {"walk", "analysis"} else report.faults
    found[number] = f"in the {phase} phase: {what}"
    report.outcomes[f"died in the {phase} phase"] += 1
    return number


def main() -> None:
    """Run from the command line; exits with 1 where there are faults."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--save", type=Path, help="folder for the inputs that failed")
    parser.add_argument("--child", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(*options.child)
        return
    report = fuzz(options.count, first=options.first, jobs=options.jobs)
    for outcome, number in report.outcomes.most_common():
        print(f"{number:7d}  {outcome}")  # noqa: T201 - a script
    for title, found in (("fault", report.faults), ("died in ONNX Runtime", report.deaths)):
        for number, what in sorted(found.items()):
            print(f"{title}, input {number}: {what}")  # noqa: T201 - a script
            if options.save:
                options.save.mkdir(parents=True, exist_ok=True)
                (options.save / f"{number}.onnx").write_bytes(mutant(number))
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
