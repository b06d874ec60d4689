"""Run a quantized model in the vendor's executor and in ours, and compare every tensor.

    python benchmarks/integer_vs_vendor.py MODEL CALIB --vendor-python VENV/bin [--samples N]

For each node: how many elements of what it makes differ, and by how much at most, over all samples.
Integers must not differ at all: exit code 1 tells that some do. Float tensors are listed with
theirs. Times, wall and CPU, are medians of single runs in which no inner tensor is kept, with the
threads that each of the two takes by itself; all of them are in the JSON. JSON goes to stdout, a
table to stderr. Where the vendor's package is not installed nothing is run, and the exit code is 0.
"""

from __future__ import annotations

import platform
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from vendor_integer import (
    OUR_PACKAGES,
    Vendor,
    VendorError,
    compare_and_print,
    parser_of,
    timed,
    versions_of,
)

from hbdebug.engine import available_cores
from hbdebug.errors import HbdebugError
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading.integer import load_integer
from hbdebug.samples import open_samples
from hbdebug.threads import one_blas_thread

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.model import IntegerModel

    Tensors = Mapping[str, NDArray[Any]]


def difference(ours: NDArray[Any], theirs: NDArray[Any]) -> dict[str, Any]:
    """Count the elements of a tensor, and those that differ, and by how much at most.

    Raises:
        VendorError: The two are of other shapes or types, so that no numbers can be compared.
    """
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        raise VendorError(
            f"the vendor has {theirs.dtype}{theirs.shape} where we have {ours.dtype}{ours.shape}"
        )
    unequal = ours != theirs
    if ours.dtype.kind == "f":
        unequal &= ~(np.isnan(ours) & np.isnan(theirs))
    gap = np.abs(ours[unequal].astype(np.float64) - theirs[unequal].astype(np.float64))
    return {
        "dtype": ours.dtype.name,
        "elements": ours.size,
        "differing": int(unequal.sum()),
        "largest": float(gap.max(initial=0)),
    }


def compare_tensors(model: IntegerModel, ours: Tensors, theirs: Tensors) -> dict[str, Any]:
    """Compare what the nodes make of one sample; return `difference` for each tensor.

    Raises:
        VendorError: The vendor's executor has no such tensor, or one of another kind.
    """
    found = {}
    for node in model.nodes:
        for name in filter(None, node.outputs):
            if name not in theirs:
                raise VendorError(f"the vendor's executor did not return tensor {name}")
            try:
                found[name] = difference(ours[name], theirs[name])
            except VendorError as error:
                raise VendorError(f"tensor {name} of node {node.name}: {error}") from error
    return found


def added(total: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sums over samples."""
    return {
        "dtype": total["dtype"],
        "elements": total["elements"] + more["elements"],
        "differing": total["differing"] + more["differing"],
        "largest": max(total["largest"], more["largest"]),
    }


def summary(times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Return medians, and every single time, which tell how far the medians can be trusted."""
    return {
        "wall_seconds": round(statistics.median(times["wall"]), 4),
        "cpu_seconds": round(statistics.median(times["cpu"]), 4),
        "wall_of_each": [round(item, 4) for item in times["wall"]],
        "cpu_of_each": [round(item, 4) for item in times["cpu"]],
    }


def compare(vendor: Vendor, options: argparse.Namespace) -> dict[str, Any]:
    """Run both and return the report.

    Raises:
        VendorError: The vendor's executor failed, or returned something else.
    """
    model = load_integer(options.model)
    data = open_samples(options.calibration, model.inputs, limit=options.samples)
    samples = [arrays for _, arrays in data]
    runner = IntegerRunner(model)
    totals: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        theirs = vendor.run(options.model, samples, Path(temporary), rounds=options.rounds)
        for index, sample in enumerate(samples):
            kept: dict[str, NDArray[Any]] = {}
            runner.forward(sample, keep=kept.__setitem__)
            for name, found in compare_tensors(model, kept, theirs.sample(index)).items():
                totals[name] = added(totals[name], found) if name in totals else found
    with one_blas_thread():
        times = timed(runner.forward, samples, options.rounds)
    whole = [item for item in totals.values() if not item["dtype"].startswith("float")]
    return {
        "model": options.model.name,
        "sha256": model.sha256,
        "samples": list(data.names),
        "rounds": options.rounds,
        "cores": available_cores(),
        "machine": platform.machine(),
        "versions": {"vendor": vendor.versions(), "hbdebug": versions_of(OUR_PACKAGES)},
        "vendor": summary(theirs.times),
        "hbdebug": summary(times),
        "integer_tensors": len(whole),
        "float_tensors": len(totals) - len(whole),
        "integers": sum(item["elements"] for item in whole),
        "integers_differing": sum(item["differing"] for item in whole),
        "nodes": [
            {
                "node": node.name,
                "op_type": node.op_type,
                "tensors": [{"name": name, **totals[name]} for name in node.outputs if name],
            }
            for node in model.nodes
        ],
    }


def render(report: Mapping[str, Any]) -> str:
    """Return the report as a table: what differs, and every float tensor."""
    rows = [
        (node["node"], node["op_type"], tensor)
        for node in report["nodes"]
        for tensor in node["tensors"]
        if tensor["differing"] or tensor["dtype"].startswith("float")
    ]
    wide = max([len(name) for name, _, _ in rows] + [4])
    lines = [
        f"{report['model']}: {len(report['nodes'])} nodes, {len(report['samples'])} sample(s)",
        f"{'node':{wide}}  {'operator':30}{'type':>8}{'elements':>12}{'differ':>10}{'by':>11}",
    ]
    for name, op_type, tensor in rows:
        lines.append(
            f"{name:{wide}}  {op_type:30}{tensor['dtype']:>8}{tensor['elements']:12}"
            f"{tensor['differing']:10}{tensor['largest']:11.2g}"
        )
    lines.append(
        f"{report['integers_differing']} of {report['integers']} integers differ, in "
        f"{report['integer_tensors']} tensors (all that are not listed are equal)"
    )
    for who in ("vendor", "hbdebug"):
        row = report[who]
        lines.append(
            f"{who:8} seconds a sample: wall {row['wall_seconds']:.3f} "
            f"({min(row['wall_of_each']):.3f} to {max(row['wall_of_each']):.3f}), "
            f"CPU {row['cpu_seconds']:.3f}"
        )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__.splitlines()[0], "MODEL", "a *_quantized_model.onnx")
    parser.add_argument("--samples", type=int, default=2, metavar="N", help="[default: 2]")
    parser.add_argument("--rounds", type=int, default=5, metavar="R", help="[default: 5]")
    return parser.parse_args()


def main() -> int:
    """Compare, print and return the exit code."""
    report = compare_and_print(parse(), compare, render, (VendorError, HbdebugError))
    return 1 if report["integers_differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
