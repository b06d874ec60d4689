"""Run the vendor's debugger and hbdebug side by side, as whole processes, on the same samples.

    python benchmarks/vs_hmct.py MODEL CALIB --vendor-python VENV/bin [--samples N] [--kind node]

The vendor's debugger takes the last N files in lexical order; these are copied to a temporary
folder that both get. The two take turns, each starting every other round. For each: the median of
wall and CPU time (user and system, of the process and its children) and of peak memory; then the
ratios, and how far the two rankings agree. JSON goes to stdout, a table to stderr. Where the
vendor's package is not installed nothing is run, and the exit code is 0.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vendor_integer import COMMAND, Vendor, compare_and_print, parser_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one process took.

    Attributes:
        wall: Seconds from start to end.
        cpu: Seconds of CPU time, user and system, children included.
        peak: Largest resident set, in MB.
        text: Everything it printed.
    """

    wall: float
    cpu: float
    peak: float
    text: str


class RunError(Exception):
    """One of the two debuggers failed."""


def run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> Run:
    """Run a process to its end.

    Raises:
        RunError: It failed; the message ends with the last lines that it printed.
    """
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=cwd, env=env, stdout=output, stderr=subprocess.STDOUT
        )
        # wait4 tells what this process used, with its children; a Popen method would not.
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        tail = "\n".join(text.strip().splitlines()[-15:])
        raise RunError(f"{Path(command[0]).name} ended with {process.returncode}:\n{tail}")
    unit = 1 if sys.platform == "darwin" else 1024
    return Run(
        wall=wall,
        cpu=usage.ru_utime + usage.ru_stime,
        peak=usage.ru_maxrss * unit / 1e6,
        text=text,
    )


def copy_last(calibration: Path, count: int, target: Path) -> list[str]:
    """Copy the samples that the vendor would take, and return their names.

    Args:
        calibration: Folder with one folder of ``.npy`` files for each input.
        count: How many.
        target: Where to.

    Raises:
        RunError: There are too few, or no folders of inputs.
    """
    inputs = sorted(path for path in calibration.iterdir() if path.is_dir())
    if not inputs:
        raise RunError(f"{calibration} holds no folder with the name of an input")
    names: list[str] = []
    for folder in inputs:
        names = sorted(path.name for path in folder.glob("*.npy"))[-count:]
        if len(names) < count:
            raise RunError(f"{folder} holds {len(names)} samples; {count} were asked for")
        (target / folder.name).mkdir(parents=True)
        for name in names:
            shutil.copy(folder / name, target / folder.name / name)
    return names


def run_vendor(vendor: Vendor, model: Path, data: Path, options: argparse.Namespace) -> Run:
    """Rank with the vendor's debugger."""
    # Its own folder leads PATH: the tools that it starts are there.
    path = f"{vendor.folder}{os.pathsep}{os.environ.get('PATH', '')}"
    arguments = ["get-sensitivity-of-nodes", model, data, "-n", options.kind, "-v", "True"]
    arguments += ["-d", options.samples]
    return run(
        [str(part) for part in (vendor.folder / COMMAND, *arguments)],
        cwd=data.parent,
        env={**os.environ, "PATH": path, "PYTHONPATH": ""},
    )


def run_ours(model: Path, data: Path, options: argparse.Namespace) -> tuple[Run, dict[str, float]]:
    """Rank with hbdebug, and return the cosine of every name."""
    target = data.parent / "ours"
    arguments = [model, data, "--kind", options.kind, "--samples", options.samples]
    arguments += ["--no-split", "--no-suggest", "-o", target]
    command = [sys.executable, "-m", "hbdebug", "sensitivity", *(str(part) for part in arguments)]
    # An installed package brings its bytecode along. Run from a checkout, the first round writes
    # it, unless the shell forbids that, and then every round would compile the sources again.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = run(command, cwd=ROOT, env=env)
    record = json.loads((target / "sensitivity.json").read_text(encoding="utf-8"))
    rows = record["nodes" if options.kind == "node" else "points"]
    return done, {row["name"]: row["alone"]["cosine_similarity"] for row in rows}


def read_table(text: str) -> dict[str, float]:
    """Return the cosine of every name in the table that the vendor prints, to five digits.

    Raises:
        RunError: There is no such table.
    """
    # A row is a name, further columns of which the first number is the cosine. The name may
    # hold spaces as little as the columns do; two spaces or more part them.
    _, rule, table = text.rpartition("-" * 20)
    rows = (re.split(r"\s{2,}", line.strip()) for line in table.splitlines())
    ranking = {row[0]: float(row[1]) for row in rows if len(row) > 1 and _is_number(row[1])}
    if not rule or not ranking:
        raise RunError(f"no table in what {COMMAND} printed:\n{text[-1500:]}")
    return ranking


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def agreement(theirs: Mapping[str, float], ours: Mapping[str, float]) -> dict[str, Any]:
    """Compare two rankings by cosine."""
    from scipy.stats import spearmanr

    both = sorted(theirs.keys() & ours.keys())
    # Rounded like the vendor's, so that what is a tie there is one here.
    rank = spearmanr([theirs[name] for name in both], [round(ours[name], 5) for name in both])
    return {
        "only_vendor": sorted(theirs.keys() - ours.keys()),
        "only_hbdebug": sorted(ours.keys() - theirs.keys()),
        "names": len(both),
        "max_cosine_difference": max(abs(theirs[name] - ours[name]) for name in both),
        "spearman": float(rank.statistic),
        "note": "the vendor prints five digits: differences up to 5e-6 are its rounding",
    }


def summary(runs: Sequence[Run]) -> dict[str, Any]:
    """Return medians, and all times."""
    return {
        "wall_seconds": statistics.median(item.wall for item in runs),
        "cpu_seconds": statistics.median(item.cpu for item in runs),
        "peak_mb": statistics.median(item.peak for item in runs),
        "wall_of_each": [round(item.wall, 3) for item in runs],
        "cpu_of_each": [round(item.cpu, 3) for item in runs],
    }


def compare(vendor: Vendor, options: argparse.Namespace) -> dict[str, Any]:
    """Run both as often as asked for, and return the report.

    Raises:
        RunError: One of them failed.
    """
    theirs: list[Run] = []
    ours: list[Run] = []
    ranking: dict[str, float] = {}
    model = options.model.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        data = Path(temporary) / "calib"
        names = copy_last(options.calibration.resolve(), options.samples, data)
        for turn in range(options.runs):
            for who in ("vendor", "hbdebug") if turn % 2 == 0 else ("hbdebug", "vendor"):
                print(f"run {turn + 1} of {options.runs}: {who}", file=sys.stderr)
                if who == "vendor":
                    theirs.append(run_vendor(vendor, model, data, options))
                else:
                    done, ranking = run_ours(model, data, options)
                    ours.append(done)
    report = {"vendor": summary(theirs), "hbdebug": summary(ours)}
    return {
        "model": options.model.name,
        "kind": options.kind,
        "samples": names,
        "runs": options.runs,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        **report,
        "wall_ratio": report["vendor"]["wall_seconds"] / report["hbdebug"]["wall_seconds"],
        "cpu_ratio": report["vendor"]["cpu_seconds"] / report["hbdebug"]["cpu_seconds"],
        "agreement": agreement(read_table(theirs[-1].text), ranking),
    }


def render(report: Mapping[str, Any]) -> str:
    """Return the report as a table."""
    kind, names = report["kind"], report["samples"]
    lines = [
        f"{report['model']}, {kind} ranking, {len(names)} sample(s), median of {report['runs']}"
    ]
    lines.append(f"{'':10}{'wall s':>10}{'CPU s':>10}{'peak MB':>10}")
    for who in ("vendor", "hbdebug"):
        row = report[who]
        lines.append(
            f"{who:10}{row['wall_seconds']:10.2f}{row['cpu_seconds']:10.2f}{row['peak_mb']:10.0f}"
        )
    lines.append(f"{'ratio':10}{report['wall_ratio']:10.1f}{report['cpu_ratio']:10.1f}")
    same = report["agreement"]
    lines.append(
        f"{same['names']} names in both rankings, {len(same['only_vendor'])} only in the vendor's, "
        f"{len(same['only_hbdebug'])} only in ours; largest difference of cosine "
        f"{same['max_cosine_difference']:.1e} ({same['note']}), Spearman {same['spearman']:.4f}"
    )
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = parser_of(__doc__.splitlines()[0], "MODEL", "a *_calibrated_model.onnx")
    parser.add_argument("--samples", type=int, default=1, metavar="N")
    parser.add_argument("--kind", choices=("node", "weight", "activation"), default="node")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="rounds [default: 3]")
    return parser.parse_args()


def main() -> None:
    """Compare and print."""
    compare_and_print(parse(), compare, render, (RunError,))


if __name__ == "__main__":
    main()
