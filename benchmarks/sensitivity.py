"""Speed and memory of the ranking: evaluation time against the naive cost, in one run.

    python benchmarks/sensitivity.py MODEL CALIB [--samples N] [--jobs J] [--exact] [--memory-check]

The *naive cost* is what N nodes on S samples take as N x S plain float forwards of the whole
model: ONNX Runtime with all optimizations, one session a thread, as many threads as evaluations
run side by side. A few dozen forwards are measured, half before and half after our evaluation, so
that both see the same machine. Prints JSON; `ratio` is our time over the naive cost (bar: 0.65,
on the text-line recognizer with 8 samples).

``--memory-check`` runs the whole command in fresh processes with 8 and with 50 samples (samples
are repeated where fewer exist) and prints their peak memory, which must not grow.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.analysis.coverage import cover
from hbdebug.analysis.scores import Scorer
from hbdebug.engine import Engine, available_cores
from hbdebug.loading import load
from hbdebug.model import Assignment
from hbdebug.samples import open_samples

if TYPE_CHECKING:
    from hbdebug.slices import Runner


def forwards(runner: Runner, inputs: dict[str, np.ndarray], jobs: int, count: int) -> list[float]:
    """Return seconds per forward of ``count`` forwards in ``jobs`` threads, in three rounds."""
    found = []
    with ThreadPoolExecutor(jobs) as pool:
        for _ in range(3):
            started = time.perf_counter()
            list(pool.map(lambda _: runner.run(inputs), range(count // 3)))
            found.append((time.perf_counter() - started) / (count // 3))
    return found


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Time one ranking and the naive cost around it."""
    started = time.perf_counter()
    model = load(args.model)
    samples = open_samples(args.data, model.inputs, limit=args.samples)
    engine = Engine(model, jobs=args.jobs, exact=args.exact)
    inputs = samples.sample(0)
    engine.profile(inputs)
    coverage = cover(model, {})
    point_sets = dict.fromkeys(
        tuple(point.name for point in points) for points in coverage.node_points.values()
    )
    assignments = [
        Assignment.of(model.point_by_name[name] for name in names) for names in point_sets
    ]
    scorer = Scorer(
        outputs=tuple(spec.name for spec in model.outputs),
        metrics=("cosine_similarity", "sqnr_db"),
    )
    plain = Engine(model, jobs=args.jobs)
    plain.profile(inputs)
    whole = plain.suffix(0, optimized=True)
    whole.run(inputs)
    setup = time.perf_counter() - started
    naive = forwards(whole, inputs, engine.jobs, 36)
    started = time.perf_counter()
    schedule = engine.schedule(assignments, len(samples))
    arrays = (sample for _, sample in samples)
    evaluations = sum(1 for _ in engine.evaluate(arrays, schedule, scorer, faint=scorer.faint))
    ours = time.perf_counter() - started
    naive += forwards(whole, inputs, engine.jobs, 36)
    forward = statistics.median(naive)
    nodes, count = len(coverage.node_points), len(samples)
    return {
        "model": Path(args.model).name,
        "nodes": nodes,
        "different_point_sets": len(point_sets),
        "samples": count,
        "jobs": engine.jobs,
        "cuts": list(schedule.cuts),
        "setup_s": round(setup, 3),
        "forward_ms": round(forward * 1000, 3),
        "forward_ms_min_max": [round(min(naive) * 1000, 3), round(max(naive) * 1000, 3)],
        "naive_s": round(forward * nodes * count, 3),
        "evaluations": evaluations,
        "evaluate_s": round(ours, 3),
        "planned_s": round(engine.expected_seconds(schedule, count), 3),
        "ratio": round(ours / (forward * nodes * count), 3),
    }


def peak_memory(args: argparse.Namespace, count: int) -> float:
    """Return the peak resident memory, in MiB, of the whole command on ``count`` samples."""
    model = load(args.model)
    samples = open_samples(args.data, model.inputs)
    with tempfile.TemporaryDirectory() as folder:
        for index in range(count):
            for name, array in samples.sample(index % len(samples)).items():
                place = Path(folder, "calib", name)
                place.mkdir(parents=True, exist_ok=True)
                np.save(place / f"{index}.npy", array)
        program = (
            "import resource, sys; from hbdebug.cli import app; "
            "app(sys.argv[1:], standalone_mode=False); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        command = [sys.executable, "-c", program, "sensitivity", str(args.model)]
        command += [f"{folder}/calib", "-o", f"{folder}/out", "--no-split", "--no-suggest"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) / 1024


def main() -> None:
    """Parse the command line and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--jobs", type=int, default=available_cores())
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--memory-check", action="store_true")
    args = parser.parse_args()
    if args.memory_check:
        record = {f"peak_mib_{count}_samples": peak_memory(args, count) for count in (8, 50)}
    else:
        record = measure(args)
        record["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
