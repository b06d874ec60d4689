"""From the calibrated model to the chip: our integers against the vendor's instruction simulator.

    python benchmarks/simulator.py FLOAT CALIB --vendor-python VENV/bin [--samples N]
        [--march M] [--keep DIR]

The vendor's converter calibrates a float model with the samples of CALIB (calibration type max,
feature-map inputs) and compiles it. Three things made of it are then run on the first N samples:

* the calibrated model, lowered to integers by `hbdebug.lowering`;
* the quantized model, which the converter wrote, in `hbdebug.integer_run`;
* the compiled programs, in the vendor's simulator of the chip's instructions.

Each program gets the integers that the quantized model feeds to that part; every tensor on its
border, inputs and outputs, is compared element by element. Exit code 1: an integer differs, or an
output was not compared. JSON goes to stdout, a table to stderr. Where the vendor's package is not
installed nothing is run, and the exit code is 0.
"""

from __future__ import annotations

import platform
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
from vendor_integer import (
    HBM,
    OUR_PACKAGES,
    Vendor,
    VendorError,
    compare_and_print,
    parser_of,
    versions_of,
)

from hbdebug.errors import HbdebugError
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading import load
from hbdebug.loading.integer import load_integer
from hbdebug.loading.protobuf import read_model, shape_of, tensor_spec
from hbdebug.lowering.graph import lower
from hbdebug.model import Assignment
from hbdebug.samples import open_samples

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.model import IntegerModel

    Tensors = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One compiled part of a model.

    Attributes:
        name: As the simulator knows it.
        inputs: Tensors that it reads, in order; names of the quantized model.
        outputs: Tensors that it makes, in order.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def read_programs(hybrid: Path, hbm: Path) -> list[Program]:
    """Take the compiled programs out of a hybrid model.

    Args:
        hybrid: The ``*_hybrid_model.onnx``.
        hbm: Where to write their bytes.

    Raises:
        VendorError: It holds none.
    """
    graph = onnx.load(hybrid).graph
    packed = [tensor for tensor in graph.initializer if tensor.name == HBM]
    if len(packed) != 1 or len(packed[0].string_data) != 1:
        raise VendorError(f"{hybrid.name} holds no compiled program ({HBM})")
    hbm.write_bytes(packed[0].string_data[0])
    return [
        Program(
            name=node.name,
            inputs=tuple(name for name in node.input if name != HBM),
            outputs=tuple(node.output),
        )
        for node in graph.node
        if node.op_type == "HzBpuHBM"
    ]


def lowered(calibrated: Path, march: str) -> IntegerModel:
    """Derive our integers from the calibrated model, in the types that it has."""
    graph = read_model(calibrated).proto.graph
    stated = ((info.name, shape_of(info)) for info in (*graph.input, *graph.value_info))
    shapes = {
        name: tuple(size for size in shape if size is not None)
        for name, shape in stated
        if shape is not None and None not in shape
    }
    model = load(calibrated)
    return lower(model, Assignment.as_calibrated(model), shapes=shapes, march=march)


def every_tensor(runner: IntegerRunner, sample: Tensors) -> Tensors:
    """Run a model on a sample and return all tensors by name."""
    kept: Tensors = {}
    runner.forward(sample, keep=kept.__setitem__)
    return kept


def differing(ours: NDArray[Any] | None, flat: NDArray[Any]) -> int | None:
    """Count elements that differ; None when we have no tensor of that name or size."""
    if ours is None or ours.size != flat.size:
        return None
    return int((ours.ravel() != flat).sum())


def check_program(
    vendor: Vendor, hbm: Path, program: Program, quantized: Tensors, mine: Tensors
) -> list[dict[str, Any]]:
    """Run one program on one sample and compare every tensor on its border.

    Raises:
        VendorError: The simulator failed, or the quantized model has no such input.
    """
    for name in program.inputs:
        if name not in quantized:
            raise VendorError(f"the quantized model has no tensor {name}, input of {program.name}")
    inputs = [quantized[name] for name in program.inputs]
    with tempfile.TemporaryDirectory() as temporary:
        outputs = vendor.simulate(hbm, program.name, inputs, Path(temporary))
    if len(outputs) != len(program.outputs):
        raise VendorError(f"{program.name} gave {len(outputs)} outputs: not {program.outputs}")
    rows = []
    for name, array in zip(program.inputs, inputs, strict=True):
        # The program was given what the quantized model holds, so only our own can differ.
        rows.append(
            {
                "program": program.name,
                "tensor": name,
                "role": "input",
                "elements": array.size,
                "quantized": 0,
                "lowered": differing(mine.get(name), array.ravel()),
            }
        )
    for name, array in zip(program.outputs, outputs, strict=True):
        rows.append(
            {
                "program": program.name,
                "tensor": name,
                "role": "output",
                "elements": array.size,
                "quantized": differing(quantized.get(name), array),
                "lowered": differing(mine.get(name), array),
            }
        )
    return rows


def compare(vendor: Vendor, options: argparse.Namespace) -> dict[str, Any]:
    """Build, run all three and return the report.

    Raises:
        VendorError: The converter or the simulator failed.
    """
    source = read_model(options.model)
    constants = {tensor.name for tensor in source.proto.graph.initializer}
    specs = [tensor_spec(info) for info in source.proto.graph.input if info.name not in constants]
    data = open_samples(options.calibration, specs)
    samples = [arrays for _, arrays in data]
    names = data.names[: options.samples]
    with tempfile.TemporaryDirectory() as temporary:
        work = options.keep or Path(temporary)
        work.mkdir(parents=True, exist_ok=True)
        stages = vendor.build(options.model, samples, work, march=options.march)
        hbm = work / "model.hbm"
        programs = read_programs(stages["hybrid"], hbm)
        quantized = IntegerRunner(load_integer(stages["quantized"]))
        mine = IntegerRunner(lowered(stages["calibrated"], options.march))
        tensors = []
        for name, sample in zip(names, samples, strict=False):
            theirs, ours = every_tensor(quantized, sample), every_tensor(mine, sample)
            for program in programs:
                rows = check_program(vendor, hbm, program, theirs, ours)
                tensors += [{"sample": name, **row} for row in rows]
    counts = [row[model] for row in tensors for model in ("quantized", "lowered")]
    return {
        "model": options.model.name,
        "sha256": source.sha256,
        "march": options.march,
        "calibration_samples": len(samples),
        "samples": list(names),
        "machine": platform.machine(),
        "versions": {"vendor": vendor.versions(), "hbdebug": versions_of(OUR_PACKAGES)},
        "programs": len(programs),
        "outputs": sum(len(program.outputs) for program in programs),
        "integers": sum(row["elements"] for row in tensors if row["role"] == "output"),
        "differing": sum(count for count in counts if count is not None),
        "not_compared": sum(count is None for count in counts),
        "tensors": tensors,
    }


def render(report: Mapping[str, Any]) -> str:
    """Return the report as a table: a row for each tensor, over all samples."""
    rows: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in report["tensors"]:
        rows.setdefault((row["program"], row["role"], row["tensor"]), []).append(row)
    wide = max(len(tensor) for _, _, tensor in rows)
    title = (
        f"{report['model']}, {report['march']}, {report['programs']} program(s), "
        f"{len(report['samples'])} sample(s); integers of the chip that differ from"
    )
    lines = [
        title,
        f"{'':7} {'tensor':{wide}}{'elements':>10}{'quantized':>11}{'lowered':>9}",
    ]
    program = None
    for (owner, role, tensor), group in rows.items():
        if owner != program:
            lines.append(owner)
            program = owner
        elements = sum(row["elements"] for row in group)
        counts = [_total([row[model] for row in group]) for model in ("quantized", "lowered")]
        lines.append(f"{role:7} {tensor:{wide}}{elements:10}{counts[0]:>11}{counts[1]:>9}")
    lines.append(
        f"{report['differing']} integers differ; {report['not_compared']} comparisons were not "
        f"possible; {report['integers']} integers came from the chip"
    )
    return "\n".join(lines)


def _total(counts: Sequence[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return str(sum(known)) if len(known) == len(counts) else "absent"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__.splitlines()[0], "FLOAT", "float model")
    parser.add_argument("--samples", type=int, default=2, metavar="N", help="[default: 2]")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave what was built here")
    parser.add_argument("--march", default="bayes-e", choices=("bayes", "bayes-e"))
    return parser.parse_args()


def main() -> int:
    """Compare, print and return the exit code."""
    report = compare_and_print(parse(), compare, render, (VendorError, HbdebugError))
    return 1 if report["differing"] or report["not_compared"] else 0


if __name__ == "__main__":
    sys.exit(main())
