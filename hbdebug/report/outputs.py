"""What ``hbdebug run`` shows: how the model was run, and the tensors that it gave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hbdebug.report.terminal import (
    column,
    literal,
    print_columns,
    print_facts,
    print_paragraphs,
    print_title,
    stack,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from hbdebug.report.terminal import Column


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTensor:
    """One tensor that was written to a file.

    Attributes:
        name: Tensor name.
        dtype: NumPy dtype name.
        shape: Its shape.
        low: Smallest value; None where there is none (no elements).
        high: Largest value; NaN, as ``low``, where the tensor holds one.
        file: Path of its ``.npy`` file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float | None
    high: float | None
    file: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run of a model on one sample.

    Attributes:
        model: The model's path.
        kind: What kind of file it is, with its producer.
        nodes: Number of computing nodes.
        arithmetic: How it was run, in words.
        inputs: Input name -> type, shape and file, in words.
        outputs: The graph outputs.
        others: The other tensors, where they were asked for.
        index: File that lists the others; empty where there are none.
        warnings: What about the run the user should know.
    """

    model: str
    kind: str
    nodes: int
    arithmetic: str
    inputs: Mapping[str, str]
    outputs: tuple[SavedTensor, ...]
    others: tuple[SavedTensor, ...] = ()
    index: str = ""
    warnings: tuple[str, ...] = ()


def render_run(record: RunRecord, *, console: Console) -> None:
    """Print how a model was run, and one line for each output.

    Args:
        record: What was run.
        console: Where to; `hbdebug.report.terminal.make_console` gives one.
    """
    inputs = [
        ("" if index else "Inputs", f"{name}  {what}")
        for index, (name, what) in enumerate(record.inputs.items())
    ]
    facts = [
        ("Model", record.model),
        ("Kind", record.kind),
        ("Nodes", str(record.nodes)),
        ("Run", record.arithmetic),
        *inputs,
    ]
    print_facts(console, facts)
    if record.warnings:
        print_title(console, "Warnings")
        print_paragraphs(console, record.warnings, "yellow")
    print_title(console, f"Outputs: {len(record.outputs)}")
    print_columns(console, _layouts(record.outputs))
    if record.index:
        console.print()
        console.print(
            literal(f"{len(record.others)} other tensors are listed, with files, in {record.index}")
        )


def _layouts(tensors: Sequence[SavedTensor]) -> list[list[Column]]:
    name = column("output", (item.name for item in tensors), folds=True)
    dtype = column("dtype", (item.dtype for item in tensors))
    shape = column("shape", (str(list(item.shape)) for item in tensors))
    low = column("min", (_number(item.low) for item in tensors), right=True)
    high = column("max", (_number(item.high) for item in tensors), right=True)
    file = column("file", (item.file for item in tensors), folds=True)
    return [
        [name, dtype, shape, low, high, file],
        [stack(name, file), stack(dtype, shape), stack(low, high)],
    ]


def _number(value: float | None) -> str:
    """Write integers in full and floats with six digits."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.6g}"
