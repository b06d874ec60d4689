"""Peak memory of the whole command against its budget, each run in a process of its own.

    python benchmarks/memory.py MODEL CALIB [--memory 256MiB ...] [--samples 2 8 ...] [--isolate]

Prints JSON: the *baseline* is the peak of a process that imports everything and loads the model,
`above_mib` what a run takes beyond it, `budget_mib` what it was allowed. Mapped weights count as
soon as they are read, so a model with external data takes their size once more (`mapped_mib`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from hbdebug.cli import parse_bytes
from hbdebug.loading import load

_BASELINE = """
import resource, sys
import onnxruntime, hbdebug.pipeline
from hbdebug.loading import load
model = load(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""

_RUN = """
import resource, sys
from hbdebug.cli import app
app(sys.argv[1:], standalone_mode=False)
own, children = (resource.getrusage(who).ru_maxrss
                 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(max(own, children), file=sys.stderr)
"""


def peak(program: str, *arguments: str) -> float:
    """Return the peak resident memory of a program in MiB; of the largest, if it has workers."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stderr.split()[-1]) / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main() -> None:
    """Parse the command line and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--memory", nargs="+", default=["1GiB"])
    parser.add_argument("--samples", nargs="+", type=int, default=[2, 8])
    parser.add_argument("--isolate", action="store_true")
    args = parser.parse_args()
    model = load(args.model)
    mapped = sum(array.nbytes for array in model.constants.values() if not _owns(array))
    baseline = peak(_BASELINE, args.model)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for memory in args.memory:
            for samples in args.samples:
                options = ["--samples", str(samples), "--memory", memory, "--no-suggest"]
                options += ["--isolate"] if args.isolate else []
                command = ["sensitivity", args.model, args.data, "-o", folder, *options]
                used = peak(_RUN, *command)
                record = json.loads(Path(folder, "sensitivity.json").read_text("utf-8"))
                found.append(
                    {
                        "budget_mib": parse_bytes(memory) // (1 << 20),
                        "samples": len(record["data"]["samples"]),
                        "peak_mib": round(used),
                        "above_mib": round(used - baseline),
                        "ranking_s": round(record["seconds"]["ranking"], 1),
                        "kept": not any("cannot be kept" in text for text in record["warnings"]),
                    }
                )
    print(
        json.dumps(
            {
                "model": Path(args.model).name,
                "nodes": len(model.nodes),
                "mapped_mib": mapped // (1 << 20),
                "baseline_mib": round(baseline),
                "runs": found,
            },
            indent=2,
        )
    )


def _owns(array: object) -> bool:
    """Whether an array is no view into a mapped file."""
    base = getattr(array, "base", None)
    while base is not None and not isinstance(base, memoryview):
        base = getattr(base, "base", None)
    return base is None


if __name__ == "__main__":
    main()
