"""Speed of whole quantized models in integers: seconds per sample, and where they go.

    python benchmarks/integer.py MODEL CALIB [--samples N] [--rounds R] [--jobs J]

Runs every sample R times, one after the other, and then all of them in J threads. Prints JSON:
``seconds`` is the median time of one sample when nothing else runs, NumPy's own threads included
(bar: 1.2 on the text-line recognizer), ``seconds_in_threads`` the time per sample of J at a time;
``first_seconds`` includes the making of sessions. ``milliseconds`` shares a sample out among the
operators.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hbdebug.engine import available_cores
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading.integer import load_integer
from hbdebug.samples import open_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray


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


def measure(args: argparse.Namespace) -> dict[str, object]:
    """Time a model on its samples."""
    started = time.perf_counter()
    model = load_integer(args.model)
    loading = time.perf_counter() - started
    samples = [sample for _, sample in open_samples(args.data, model.inputs, limit=args.samples)]
    runner = IntegerRunner(model)
    first = timed(runner, samples[0])
    times = [timed(runner, sample) for _ in range(args.rounds) for sample in samples]
    with ThreadPoolExecutor(args.jobs) as pool:
        started = time.perf_counter()
        list(pool.map(runner.forward, samples * args.rounds))
        together = (time.perf_counter() - started) / (len(samples) * args.rounds)
    rounds = [by_operator(runner, samples[0]) for _ in range(args.rounds)]
    return {
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
    }


def main() -> None:
    """Parse the command line, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="a *_quantized_model.onnx")
    parser.add_argument("data", type=Path, help="its samples, as for hbdebug sensitivity")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=available_cores())
    print(json.dumps(measure(parser.parse_args()), indent=1))


if __name__ == "__main__":
    main()
