"""Large models and small budgets; what is measured is measured in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hbdebug
from hbdebug.engine import Engine, byte_words
from hbdebug.loading import load
from hbdebug.model import Assignment
from tests import models

ROOT = Path(__file__).parent.parent
MIB = 1 << 20

# Beyond the model itself and the budget: what Python and ONNX Runtime need to run anything, what
# the allocators keep, and, for each node, a session of some 50 KiB that is not counted.
FIXED = 384
PER_NODE = 0.1

_PEAK = """
import resource, sys
from hbdebug.cli import app
code = app(sys.argv[1:], standalone_mode=False)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), file=sys.stderr)
"""

_BASELINE = """
import resource, sys
import onnxruntime, hbdebug.pipeline
from hbdebug.loading import load
model = load(sys.argv[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), file=sys.stderr)
"""


def run(program, *arguments):
    """Run a program in a process of its own; return its peak memory in MiB."""
    words = [str(argument) for argument in arguments]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return float(done.stderr.split()[-1])


def sensitivity(model, out, *options):
    """Run the command; return its peak memory in MiB, and the record."""
    peak = run(_PEAK, "sensitivity", model, model.parent / "calib", "-o", out, *options)
    return peak, json.loads((out / "sensitivity.json").read_text("utf-8"))


def made(kind, folder, *options):
    """Have the benchmark's script make a model; return its file."""
    script = ROOT / "benchmarks" / "make_large.py"
    words = [str(option) for option in options]
    done = subprocess.run(
        [sys.executable, str(script), kind, "-o", str(folder), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return Path(done.stdout.strip())


@pytest.mark.slow
def test_the_memory_budget_is_kept(tmp_path):
    """200 MB of weights, which a session for each jump would multiply."""
    path = made("weights", tmp_path, "--gigabytes", 0.2, "--width", 1024, "--samples", 2)
    baseline = run(_BASELINE, path)
    options = ("--no-suggest", "--jobs", 2, "--memory")

    small, record = sensitivity(path, tmp_path / "small", *options, "256MiB")
    large, expected = sensitivity(path, tmp_path / "large", *options, "8GiB")

    # The weights are mapped, and counted as soon as they are read.
    assert small - baseline < 256 + 205 + FIXED
    # The model takes more where it may, or the budget would not have been put to the test.
    assert large - baseline > 256 + 205 + FIXED
    assert not any("cannot be kept" in text for text in record["warnings"])
    assert record["ceilings"] == expected["ceilings"]
    assert len(record["nodes"]) == len(expected["nodes"])


@pytest.mark.slow
def test_a_thousand_nodes_take_memory_that_is_flat_in_samples(tmp_path):
    path = made("nodes", tmp_path, "--samples", 8)
    options = ("--no-suggest", "--no-split")

    few, record = sensitivity(path, tmp_path / "few", *options, "--samples", "2")
    many, expected = sensitivity(path, tmp_path / "many", *options)

    for each, samples in ((record, 2), (expected, 8)):
        assert each["complete"]
        assert each["data"]["complete"] == samples
        assert len(each["nodes"]) == 600
        assert len(each["not_analysed"]) == 400
    # Eight samples pay for more jumps than two do, each a session; from there on it is flat.
    assert abs(many - few) < 100
    assert many - run(_BASELINE, path) < 1024 + FIXED + 1000 * PER_NODE


@pytest.mark.slow
def test_three_gigabytes_of_weights_are_in_memory_once(tmp_path):
    path = made("weights", tmp_path, "--gigabytes", 3, "--samples", 1)
    options = ("--no-suggest", "--no-split", "--samples", "1", "--memory", "512MiB")

    peak, record = sensitivity(path, tmp_path / "out", *options)

    assert record["complete"]
    assert len(record["nodes"]) == 48
    assert all(0 < node["alone"]["sqnr_db"] < 60 for node in record["nodes"])
    assert peak < 3 * 1024 + 512 + FIXED + run(_BASELINE, _without_data(path))


def _without_data(path):
    """Return a tiny model, for the memory of the imports alone."""
    tiny = path.parent / "tiny.onnx"
    tiny.write_bytes(models.one_coarse_node().SerializeToString())
    return tiny


def test_a_budget_that_cannot_be_kept_is_said(tmp_path):
    proto = models.one_coarse_node()
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    samples = models.inputs_for(proto, count=1)
    models.save_samples(tmp_path / "calib", samples)

    small = hbdebug.sensitivity(tmp_path / "m.onnx", tmp_path / "calib", memory=1024)
    enough = hbdebug.sensitivity(tmp_path / "m.onnx", tmp_path / "calib", memory=64 * MIB)

    (said,) = (text for text in small.warnings if "cannot be kept" in text)
    assert said.startswith("the memory budget of 1 KiB cannot be kept")
    assert not any("cannot be kept" in text for text in enough.warnings)
    assert small.ceilings == enough.ceilings


def test_a_small_budget_splits_the_evaluations_into_rounds():
    """Each holds what it carries on to the outputs, in a model with few cuts."""
    model = load(models.residual())
    samples = models.inputs_for(models.residual(), count=1)
    assignments = [Assignment.of([point]) for point in model.points if point.enabled]
    engine = Engine(model, jobs=1, memory=64 * 1024)
    engine.profile(samples[0])

    schedule = engine.schedule(assignments, 1)

    assert len(schedule.rounds) > 1
    assert sorted(item.index for each in schedule.rounds for item in each) == list(
        range(len(assignments))
    )


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (3 << 29, "1.5 GiB"), (MIB, "1 MiB")],
)
def test_bytes_in_words(size, words):
    assert byte_words(size) == words
