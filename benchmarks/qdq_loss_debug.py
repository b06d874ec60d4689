"""Run ONNX Runtime's qdq_loss_debug and hbdebug side by side, on one QDQ model and its float model.

    python benchmarks/qdq_loss_debug.py FLOAT.onnx CALIB [--samples N] [--runs R]

FLOAT.onnx is quantized with ONNX Runtime's static quantizer first; make_qdq.py says with what
options. Then

* ONNX Runtime: ``create_weight_matching`` and ``compute_weight_error``; ``collect_activations`` of
  both models, ``create_activation_matching`` and ``compute_activation_error``. For each tensor that
  gives the SQNR in dB of the tensor itself: of a weight, of an activation over its own pair
  (``qdq_err``), and of an activation between the two models (``xmodel_err``).
* hbdebug: the ranking of nodes, of weights and of activations: the damage that each does at the
  outputs of the model when it alone is quantized.

The two answer different questions, so their orders need not agree; Spearman's coefficient says how
far they do, over the names that both have. Both run in this process in turns, on the same samples;
the medians of the wall times are reported. How many weights each finds in FLOAT.onnx as it was
exported is counted, too: ONNX Runtime goes by names, and is compared on what its own preprocessing
left. JSON goes to stdout, a table to stderr.
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - what this script runs
from make_qdq import SampleReader, add_options, inputs_of, make
from onnxruntime.quantization import qdq_loss_debug  # noqa: TID253 - likewise

import hbdebug
from hbdebug.samples import open_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hbdebug.samples import Samples

Errors = dict[str, float]

_SUFFIXES = ("_QuantizeLinear_Input", "_DequantizeLinear_Output", "_quantized")
_SHOWN = 10


def run_theirs(float_path: Path, qdq_path: Path, samples: Samples, folder: Path) -> dict[str, Any]:
    """Return what ONNX Runtime measures.

    Returns:
        ``weight``, ``qdq_err`` and ``xmodel_err``: tensor -> SQNR in dB; ``without_float``:
        activations that it finds no partner of in the float model; ``scalars``: constants that
        it matches and cannot measure.
    """
    matching = qdq_loss_debug.create_weight_matching(str(float_path), str(qdq_path))
    # compute_weight_error stops with a TypeError at a constant without axes.
    scalars = sorted(name for name, pair in matching.items() if not np.ndim(pair["float"]))
    weights = qdq_loss_debug.compute_weight_error(
        {name: pair for name, pair in matching.items() if np.ndim(pair["float"])}
    )
    collected = []
    for path in (qdq_path, float_path):
        augmented = folder / f"augmented_{path.name}"
        qdq_loss_debug.modify_model_output_intermediate_tensors(path, augmented)
        reader = SampleReader(samples)
        collected.append(qdq_loss_debug.collect_activations(str(augmented), reader))
    pairs = qdq_loss_debug.create_activation_matching(*collected)
    # compute_activation_error stops with a KeyError where an activation has no float partner.
    alone = sorted(name for name, pair in pairs.items() if "float" not in pair)
    matched = {name: pair for name, pair in pairs.items() if "float" in pair}
    errors = qdq_loss_debug.compute_activation_error(matched)
    return {
        "weight": dict(weights),
        "qdq_err": {name: item["qdq_err"] for name, item in errors.items()},
        "xmodel_err": {
            name: item["xmodel_err"] for name, item in errors.items() if "xmodel_err" in item
        },
        "without_float": alone,
        "scalars": scalars,
    }


def run_ours(float_path: Path, qdq_path: Path, samples: Samples, kind: str) -> Errors:
    """Return the SQNR in dB at the outputs for every node, or for every tensor of a kind."""
    result = hbdebug.sensitivity(
        qdq_path,
        samples,
        float_model=float_path,
        metrics=("sqnr_db",),
        kind=kind,
        split=False,
        suggest=False,
    )
    rows: Sequence[Any] = result.nodes if kind == "node" else result.points
    tensors = {} if kind == "node" else tensors_of(qdq_path)
    return {tensors.get(row.name, row.name): row.alone.values["sqnr_db"] for row in rows}


def tensors_of(qdq_path: Path) -> dict[str, str]:
    """Return the tensor that each QuantizeLinear or DequantizeLinear reads, as ONNX Runtime says.

    It takes the endings away that its own quantizer put there.
    """
    found = {}
    for node in onnx.load(qdq_path).graph.node:
        if node.op_type in ("DequantizeLinear", "QuantizeLinear"):
            name = node.input[0]
            for suffix in _SUFFIXES:
                name = name.removesuffix(suffix)
            found[node.name] = name
    return found


def spearman(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, Any]:
    """Return how far two orders agree, over the names that both have."""
    both = sorted(ours.keys() & theirs.keys())
    coefficient = None
    if len(both) > 2:
        ranks = [_ranks([side[name] for name in both]) for side in (ours, theirs)]
        if all(np.ptp(item) > 0 for item in ranks):
            coefficient = float(np.corrcoef(*ranks)[0, 1])
    return {
        "spearman": coefficient,
        "both": len(both),
        "only_ours": sorted(ours.keys() - theirs.keys()),
        "only_theirs": sorted(theirs.keys() - ours.keys()),
    }


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Return ranks, the mean of them where values are equal."""
    array = np.asarray(values, np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means: np.ndarray = (ends - (counts - 1) / 2)[inverse]
    return means


def count_weights(exported: Path, prepared: Path, qdq_path: Path) -> dict[str, Any]:
    """Count the stored constants that each finds in the float file as exported, and as prepared."""
    stored = [
        point.input for point in hbdebug.load(qdq_path).points if point.input.endswith("_quantized")
    ]
    counts: dict[str, Any] = {"stored": len(stored)}
    logging.disable(logging.ERROR)  # it logs one line for each weight that it does not find
    try:
        for name, path in (("exported", exported), ("prepared", prepared)):
            matching = qdq_loss_debug.create_weight_matching(str(path), str(qdq_path))
            model = hbdebug.load(qdq_path, float_model=path)
            found = sum(point.role == "weight" and point.enabled for point in model.points)
            counts[name] = {"theirs": len(matching), "ours": found}
    finally:
        logging.disable(logging.NOTSET)
    return counts


def timed(seconds: dict[str, list[float]], name: str, job: Callable[[], Any]) -> Any:
    """Run a job and keep how long it took."""
    started = time.perf_counter()
    result = job()
    seconds.setdefault(name, []).append(time.perf_counter() - started)
    return result


def compare(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Quantize, run both, and compare."""
    qdq_path, prepared = folder / "qdq.onnx", folder / "float.onnx"
    make(
        options.float,
        options.data,
        qdq_path,
        per_channel=options.per_channel,
        activations=options.activations,
        weights=options.weights,
        opset=options.opset,
        limit=options.samples,
        keep_float=prepared,
    )
    samples = open_samples(options.data, inputs_of(onnx.load(prepared)), limit=options.samples)
    seconds: dict[str, list[float]] = {}
    ours: dict[str, Errors] = {}
    theirs: dict[str, Any] = {}

    def one(kind: str) -> None:
        ours[kind] = timed(
            seconds, f"ours {kind}", lambda: run_ours(prepared, qdq_path, samples, kind)
        )

    for turn in range(options.runs):
        if turn % 2 == 0:
            theirs = timed(
                seconds, "theirs", lambda: run_theirs(prepared, qdq_path, samples, folder)
            )
        for kind in ("node", "weight", "activation"):
            one(kind)
        if turn % 2:
            theirs = timed(
                seconds, "theirs", lambda: run_theirs(prepared, qdq_path, samples, folder)
            )
    return {
        "float": str(options.float),
        "samples": len(samples),
        "scheme": {
            "per_channel": options.per_channel,
            "activations": options.activations,
            "weights": options.weights,
        },
        "versions": {"hbdebug": hbdebug.__version__, "onnxruntime": onnxruntime.__version__},
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "weights_found": count_weights(options.float, prepared, qdq_path),
        "agreement": {
            "weight": spearman(ours["weight"], theirs["weight"]),
            "activation, own pair": spearman(ours["activation"], theirs["qdq_err"]),
            "activation, between models": spearman(ours["activation"], theirs["xmodel_err"]),
        },
        "theirs": theirs,
        "ours": ours,
    }


def table(record: Mapping[str, Any]) -> str:
    """Return the comparison in lines for the terminal."""
    lines = []
    kinds = (("weight", "weight"), ("activation", "qdq_err"))
    for kind, their_name in kinds:
        ours, theirs = record["ours"][kind], record["theirs"][their_name]
        place = {name: rank for rank, name in enumerate(sorted(theirs, key=theirs.get), 1)}
        lines.append(f"{kind}: the {_SHOWN} that do the most damage at the outputs, SQNR in dB")
        lines.append(f"{'ours':>5} {'at outputs':>11} {'theirs':>7} {'of itself':>10}  tensor")
        for rank, name in enumerate(sorted(ours, key=ours.get)[:_SHOWN], 1):
            if name in theirs:
                other = f"{place[name]:>7} {theirs[name]:>10.2f}"
            else:
                other = f"{'-':>7} {'-':>10}"
            lines.append(f"{rank:>5} {ours[name]:>11.2f} {other}  {name}")
    for name, item in record["agreement"].items():
        value = "-" if item["spearman"] is None else f"{item['spearman']:.2f}"
        lines.append(f"Spearman, {name}: {value} over {item['both']} tensors")
    found = record["weights_found"]
    for name in ("exported", "prepared"):
        item = found[name]
        lines.append(
            f"stored constants found in the float model as {name}: "
            f"theirs {item['theirs']}, ours {item['ours']} of {found['stored']}"
        )
    lines += [f"{name}: {value:.2f} s" for name, value in record["seconds"].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("float", type=Path, metavar="FLOAT.onnx")
    parser.add_argument("data", type=Path, metavar="CALIB")
    parser.add_argument("--runs", type=int, default=3, help="rounds (default 3)")
    add_options(parser)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        record = compare(options, Path(folder))
    print(table(record), file=sys.stderr)
    print(json.dumps(record, indent=1, default=float))


if __name__ == "__main__":
    main()
