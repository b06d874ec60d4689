"""Evaluations in worker processes: the same numbers, and a crash costs one node."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import hbdebug
from hbdebug.errors import ModelError, RuntimeCrash, UsageError
from hbdebug.isolation import Isolation
from hbdebug.observer import Observer
from tests import crashing, models, qdq_models
from tests.command import hbdebug as run_command

SAMPLES = 3

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the tests kill by signals")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model of four convolutions in a row, and its data."""
    folder = tmp_path_factory.mktemp("isolated")
    proto = models.one_coarse_node()
    path = folder / "m_calibrated_model.onnx"
    path.write_bytes(proto.SerializeToString())
    (folder / "calib").mkdir()
    for index, inputs in enumerate(models.inputs_for(proto, count=SAMPLES)):
        np.save(folder / "calib" / f"{index}.npy", inputs["x"])
    return path, folder / "calib"


@pytest.fixture(scope="module")
def plain(files):
    return hbdebug.sensitivity(*files, jobs=2)


def same(result):
    """Leave out of a result what differs from run to run."""
    return replace(result, seconds={}, command="")


def isolated(files, worker=None, **options):
    return hbdebug.sensitivity(*files, jobs=2, isolate=Isolation(worker=worker), **options)


def test_the_result_is_the_same_bit_for_bit(files, plain):
    assert same(isolated(files)) == same(plain)


@pytest.mark.parametrize("exact", [False, True])
def test_it_is_the_same_for_every_setting(files, exact):
    options = {"exact": exact, "output_node": "c", "suggest": False, "split": False, "samples": 1}

    expected = hbdebug.sensitivity(*files, jobs=1, **options)

    assert replace(same(isolated(files, **options)), settings={}) == replace(
        same(expected), settings={}
    )


def test_it_is_the_same_in_integers(files):
    options = {"fidelity": "integer", "suggest": False}
    expected = hbdebug.sensitivity(*files, jobs=2, **options)

    assert same(isolated(files, **options)) == same(expected)


def test_it_is_the_same_for_a_qdq_model(tmp_path):
    proto = qdq_models.several_consumers()
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    files = tmp_path / "m.onnx", models.save_samples(tmp_path / "calib", qdq_models.feeds(proto))
    expected = hbdebug.sensitivity(*files, jobs=2)

    assert same(isolated(files)) == same(expected)


def points_of(result, name):
    (node,) = (item for item in result.nodes if item.name == name)
    return node.points


@pytest.mark.parametrize(
    ("kill", "words"),
    [
        (crashing.die_at, "signal 11, SIGSEGV"),
        (partial(crashing.die_at, with_signal=signal.SIGKILL), "signal 9, SIGKILL"),
        (partial(crashing.die_at, with_signal=signal.SIGABRT), "signal 6, SIGABRT"),
        (crashing.exit_at, "exit code 3"),
    ],
    ids=["segfault", "killed", "abort", "exit"],
)
def test_a_crash_costs_one_node(files, plain, kill, words):
    own = next(name for name in points_of(plain, "b") if "_w" not in name)
    # The whole model is measured with that point, too; only evaluations may die here.
    worker = partial(_only_alone, kill=partial(kill, node="b", point=own))

    result = isolated(files, worker, suggest=False)

    assert result.complete
    assert "b" not in {node.name for node in result.nodes}
    (left_out,) = (item for item in result.not_analysed if item.name == "b")
    assert left_out.reason.startswith(f"the runtime crashed ({words}")
    assert left_out.reason.endswith("while it was measured")
    expected = {node.name: node.alone.values for node in plain.nodes if node.name != "b"}
    assert {node.name: node.alone.values for node in result.nodes} == expected
    assert result.ceilings == plain.ceilings[: len(result.ceilings)]
    assert result.data.complete == SAMPLES


def _only_alone(engine, kill):
    """Apply what kills to evaluations only: they have few points."""
    untouched = engine.walker.execute
    kill(engine)
    deadly = engine.walker.execute

    def chosen(index, values, assignment):
        return (deadly if len(assignment) <= 3 else untouched)(index, values, assignment)

    engine.walker.execute = chosen


def test_the_place_of_the_crash_is_named(files, plain):
    own = next(name for name in points_of(plain, "b") if "_w" not in name)
    worker = partial(_only_alone, kill=partial(crashing.die_at, node="b", point=own))

    result = isolated(files, worker, suggest=False)

    (left_out,) = (item for item in result.not_analysed if item.name == "b")
    assert ", at b)" in left_out.reason


def test_a_crash_of_the_float_model_names_the_node(files):
    with pytest.raises(RuntimeCrash) as caught:
        isolated(files, partial(crashing.die_at, node="c"))

    assert "signal 11, SIGSEGV" in caught.value.message
    assert caught.value.where == "node c"
    assert caught.value.exit_code == 3


def test_a_crash_in_the_search_ends_the_search_only(files):
    result = isolated(files, crashing.die_of_one_int16)

    assert result.nodes
    assert result.suggestion is not None
    assert "the runtime crashed (signal 9" in result.suggestion.stopped


def test_an_error_in_a_worker_is_raised_here(files, plain):
    own = next(name for name in points_of(plain, "b") if "_w" not in name)

    with pytest.raises(ModelError) as caught:
        isolated(files, partial(crashing.fail_at, node="b", point=own))

    assert caught.value.message == "it does not work"
    assert caught.value.where == "node b"
    assert caught.value.hint == "Do something."


def test_a_model_in_memory_is_refused(files):
    with pytest.raises(UsageError, match="must be a file"):
        hbdebug.sensitivity(models.one_coarse_node(), files[1], isolate=True)


class Interrupting(Observer):
    """Presses Ctrl-C after so many evaluations of the ranking."""

    def __init__(self, after):
        self.left = after
        self.ranking = False

    def phase(self, name, total):
        del total
        self.ranking = name == "ranking"

    def advance(self, amount):
        del amount
        if self.ranking:
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_interrupt_keeps_what_is_finished_and_ends_the_workers(files, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    worker = partial(crashing.write_pid, folder=pids)

    result = isolated(files, worker, observer=Interrupting(after=15))

    assert not result.complete
    assert result.nodes
    started = [int(path.name) for path in pids.iterdir()]
    assert started
    # The system needs a moment to take a process away.
    for _ in range(100):
        if not any(map(alive, started)):
            break
        time.sleep(0.05)
    assert not any(map(alive, started))


def test_an_interrupted_run_is_resumed(files, plain, tmp_path):
    first = isolated(files, journal_folder=tmp_path, observer=Interrupting(after=15))
    assert not first.complete

    second = isolated(files, journal_folder=tmp_path, resume=True)

    assert second.nodes == plain.nodes
    assert second.ceilings == plain.ceilings


def test_the_command_has_the_option(files, tmp_path):
    done = run_command(
        "sensitivity", *files, "-o", tmp_path / "out", "--isolate", "--no-suggest", "--jobs", "1"
    )

    assert done.code == 0
    assert (tmp_path / "out" / "sensitivity.json").is_file()
