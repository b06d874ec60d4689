"""Speed of whole quantized models in integers: seconds per sample, and where they go.

    python benchmarks/integer.py MODEL CALIB [--calibrated CALIBRATED] [--samples N] [--rounds R]

Runs every sample R times, one after the other, and then all of them in J threads. Prints JSON:
``seconds`` is the median time of one sample when nothing else runs (bar: 1.2 on the text-line
recognizer), ``seconds_in_threads`` the time per sample of J at a time; ``first_seconds`` includes
the making of sessions. ``blas`` compares one sample with NumPy's matrix products in one thread, as
hbdebug keeps them, and in as many as BLAS likes: wall and CPU seconds. ``milliseconds`` shares a
sample out among the operators.

With ``--calibrated`` the job of ``hbdebug sensitivity`` is run on that model at both fidelities,
R times in turn: ``sensitivity`` holds the median seconds, wall and CPU, and the ratio of integer
to calibrated (bar: 2).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hbdebug
from hbdebug.engine import available_cores
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading.integer import load_integer
from hbdebug.samples import open_samples
from hbdebug.threads import one_blas_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hbdebug.engine import Fidelity


def timed(runner: IntegerRunner, inputs: dict[str, NDArray[Any]]) -> float:
    """Return the seconds of one run."""
    started = time.perf_counter()
    runner.forward(inputs)
    return time.perf_counter() - started


def by_operator(runner: IntegerRunner, inputs: dict[str, NDArray[Any]]) -> dict[str, float]:
    """Return milliseconds per operator type of one run, the slowest first."""
    values = dict(inputs)
    spent: dict[str, float] = defaultdict(float)
    for node in runner.model.nodes:
        started = time.perf_counter()
        values.update(runner.execute(node, values))
        spent[node.op_type] += 1e3 * (time.perf_counter() - started)
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


def blas(runner: IntegerRunner, inputs: dict[str, NDArray[Any]], rounds: int) -> dict[str, object]:
    """Return wall and CPU seconds of one run with one BLAS thread, and with BLAS's own number."""
    found: dict[str, object] = {}
    for name, context in (("one_thread", one_blas_thread()), ("as_it_likes", nullcontext())):
        with context:
            times = [clocked(partial(runner.forward, inputs)) for _ in range(rounds)]
        found[name] = medians(times)
    return found


def sensitivity(args: argparse.Namespace) -> dict[str, object]:
    """Compare the cost of the whole analysis at both fidelities."""
    fidelities: tuple[Fidelity, ...] = ("calibrated", "integer")
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(args.rounds):
        for fidelity in fidelities:
            times[fidelity].append(
                clocked(
                    partial(
                        hbdebug.sensitivity,
                        args.calibrated,
                        args.data,
                        samples=args.samples,
                        jobs=args.jobs,
                        fidelity=fidelity,
                    )
                )
            )
    found = {fidelity: medians(times[fidelity]) for fidelity in fidelities}
    return {
        **found,
        "ratio": {
            name: round(found["integer"][name] / found["calibrated"][name], 2)
            for name in found["integer"]
        },
    }


def clocked(job: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds of a job."""
    wall, cpu = time.perf_counter(), time.process_time()
    job()
    return time.perf_counter() - wall, time.process_time() - cpu


def medians(times: list[tuple[float, float]]) -> dict[str, float]:
    """Return the median of each clock."""
    wall, cpu = zip(*times, strict=True)
    return {
        "seconds": round(statistics.median(wall), 4),
        "cpu_seconds": round(statistics.median(cpu), 4),
    }


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Time a model on its samples."""
    started = time.perf_counter()
    model = load_integer(args.model)
    loading = time.perf_counter() - started
    samples = [sample for _, sample in open_samples(args.data, model.inputs, limit=args.samples)]
    runner = IntegerRunner(model)
    with one_blas_thread():
        first = timed(runner, samples[0])
        times = [timed(runner, sample) for _ in range(args.rounds) for sample in samples]
        with ThreadPoolExecutor(args.jobs) as pool:
            started = time.perf_counter()
            list(pool.map(runner.forward, samples * args.rounds))
            together = (time.perf_counter() - started) / (len(samples) * args.rounds)
        rounds = [by_operator(runner, samples[0]) for _ in range(args.rounds)]
    found = {
        "model": args.model.name,
        "nodes": len(model.nodes),
        "samples": len(samples),
        "rounds": args.rounds,
        "load_seconds": round(loading, 4),
        "first_seconds": round(first, 4),
        "seconds": round(statistics.median(times), 4),
        "seconds_least": round(min(times), 4),
        "jobs": args.jobs,
        "seconds_in_threads": round(together, 4),
        "milliseconds": {
            name: round(statistics.median(item[name] for item in rounds), 2) for name in rounds[0]
        },
        "blas": blas(runner, samples[0], args.rounds),
    }
    if args.calibrated is not None:
        found["sensitivity"] = sensitivity(args)
    return found


def main() -> None:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a *_quantized_model.onnx")
    parser.add_argument("data", type=Path, help="its samples, as for hbdebug sensitivity")
    parser.add_argument("--calibrated", type=Path, help="the *_calibrated_model.onnx of the same")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=available_cores())
    print(json.dumps(measure(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
