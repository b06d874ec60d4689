"""How right is the time that is estimated before the ranking?

    python benchmarks/eta.py MODEL CALIB [MODEL CALIB ...] [--samples N] [--jobs J] [--no-suggest]

Runs the whole job and prints, as JSON, what was said and what it took: for the ranking, and for
the whole command, which is to be compared with the ranking's estimate plus the upper bound of the
search. A ratio is what was said over what it took; within 0.5 and 2 is the aim for the ranking.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path

import hbdebug
from hbdebug.observer import Observer

_SECONDS = {"s": 1, "min": 60, "h": 3600}
_DURATION = re.compile(r"about ([0-9.]+) (s|min|h)")


class Listener(Observer):
    """Keeps what was estimated, and when."""

    def __init__(self) -> None:
        self.said: list[tuple[float, str]] = []

    def estimate(self, text: str) -> None:
        """Note an estimate with the time."""
        self.said.append((time.perf_counter(), text))


def measure(model: str, data: str, args: argparse.Namespace) -> dict[str, object]:
    """Run one model and compare."""
    listener = Listener()
    started = time.perf_counter()
    result = hbdebug.sensitivity(
        model,
        data,
        samples=args.samples,
        jobs=args.jobs,
        suggest=args.suggest,
        observer=listener,
    )
    total = time.perf_counter() - started
    (when, first), *corrections = listener.said
    ranking, *search = (float(a) * _SECONDS[b] for a, b in _DURATION.findall(first))
    took = result.seconds["ranking"]
    record: dict[str, object] = {
        "model": Path(model).name,
        "said": first,
        "corrected": [text for _, text in corrections],
        "ranking_s": round(took, 2),
        "ranking_ratio": round(ranking / took, 2),
        "whole_command_s": round(total, 2),
    }
    if search:
        record["search_s"] = round(result.seconds["suggestion"], 2)
        record["steps_of_the_search"] = len(result.suggestion.curve) if result.suggestion else 0
        record["whole_command_ratio"] = round((when - started + ranking + search[0]) / total, 2)
    else:
        record["whole_command_ratio"] = round((when - started + ranking) / total, 2)
    return record


def main() -> None:
    """Parse the command line and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="MODEL CALIB")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--suggest", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    pairs = zip(args.files[::2], args.files[1::2], strict=True)
    print(json.dumps([measure(model, data, args) for model, data in pairs], indent=2))


if __name__ == "__main__":
    main()
