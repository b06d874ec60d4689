"""Ask the vendor's package for integers: its executor, its converter, its chip simulator.

    python benchmarks/vendor_integer.py run|build|versions FOLDER

The package is an optional peer with an environment of its own (HMCT 1.1.0, Python 3.10, x86-64;
benchmarks/README.md has the commands). Other scripts import `Vendor` from here, which writes a
request into a temporary folder and runs this file in that environment; only public interfaces are
used, arrays in, arrays out.

FOLDER holds ``request.json`` and the arrays of the samples, ``in_<sample>_<input>.npy``; answers
are ``reply.json`` and, for ``run``, ``out_<sample>_<tensor>.npy``; numbers are positions in the
lists of names.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

COMMAND = "hmct-debugger"
SIMULATOR = "hbdk-sim"
HOW_TO_INSTALL = f"""skipped: {COMMAND} was not found.
It is an optional peer that needs an environment of its own (Python 3.10 on x86-64);
benchmarks/README.md has the commands. Then give its bin folder with --vendor-python."""
OUR_PACKAGES = ("numpy", "onnx", "onnxruntime")
"""What our side of a comparison depends on."""
HBM = "PACKED_HBM_MODEL"
"""Initializer of a hybrid model that holds the programs for the chip."""

# The converter takes nothing newer.
LAST_OPSET = 11


class VendorError(Exception):
    """A program of the vendor failed, or what it wrote is not understood."""


def parser_of(description: str, model: str, what: str) -> argparse.ArgumentParser:
    """Return a command line with what every comparison takes: model, samples, the vendor.

    Args:
        description: First line of the help.
        model: What the first argument is called.
        what: What it is.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", type=Path, metavar=model, help=what)
    parser.add_argument("calibration", type=Path, metavar="CALIB", help="CALIB/<input>/*.npy")
    parser.add_argument(
        "--vendor-python",
        type=Path,
        metavar="VENV/bin",
        help="folder with the vendor's programs [default: search PATH]",
    )
    return parser


def compare_and_print(
    options: argparse.Namespace,
    compare: Callable[[Vendor, argparse.Namespace], dict[str, Any]],
    render: Callable[[Mapping[str, Any]], str],
    failures: tuple[type[Exception], ...],
) -> dict[str, Any]:
    """Run a comparison; a table goes to stderr, JSON to stdout.

    Args:
        options: What `parser_of` parsed.
        compare: Makes the report.
        render: Makes the table.
        failures: Errors whose message is all that the user needs.

    Returns:
        The report.

    Raises:
        SystemExit: With 0 where the vendor's package is not installed, with 1 after a failure.
    """
    vendor = Vendor.find(options.vendor_python)
    if vendor is None:
        print(HOW_TO_INSTALL, file=sys.stderr)
        sys.exit(0)
    try:
        report = compare(vendor, options)
    except failures as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    print(render(report), file=sys.stderr)
    print(json.dumps(report, indent=1))
    return report


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Execution:
    """What the vendor's executor computed; its arrays are read when they are asked for.

    Attributes:
        folder: Where they are.
        names: Tensors that the model's nodes make.
        times: What `timed` found for the unchanged model.
    """

    folder: Path
    names: Sequence[str]
    times: Mapping[str, Sequence[float]]

    def sample(self, index: int) -> dict[str, NDArray[Any]]:
        """Return every tensor of one sample, by name."""
        return {
            name: np.load(self.folder / f"out_{index}_{position}.npy")
            for position, name in enumerate(self.names)
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Vendor:
    """The vendor's environment.

    Attributes:
        folder: Where its programs are.
    """

    folder: Path

    @classmethod
    def find(cls, folder: Path | None) -> Vendor | None:
        """Return the environment in a folder, or on PATH; None if there is none."""
        found = shutil.which(COMMAND, path=None if folder is None else str(folder.resolve()))
        return cls(folder=Path(found).absolute().parent) if found else None

    def run(
        self,
        model: Path,
        samples: Sequence[Mapping[str, NDArray[Any]]],
        work: Path,
        *,
        rounds: int,
    ) -> Execution:
        """Run a quantized model in the vendor's executor.

        Args:
            model: The model.
            samples: Its inputs, by name.
            work: An empty folder for the exchange; it grows by every tensor of every sample.
            rounds: How often each sample is run to take the time.

        Raises:
            VendorError: It failed.
        """
        _write_samples(work, samples, model=str(model.resolve()), rounds=rounds)
        reply = self._ask("run", work)
        return Execution(folder=work, names=reply["tensors"], times=reply["times"])

    def build(
        self,
        model: Path,
        samples: Sequence[Mapping[str, NDArray[Any]]],
        work: Path,
        *,
        march: str,
    ) -> dict[str, Path]:
        """Convert a float model; return the files of its stages.

        Args:
            model: The float model.
            samples: Calibration data, inputs by name.
            work: An empty folder, in which the stages are left.
            march: What to build for.

        Returns:
            Paths of the stages ``calibrated``, ``quantized`` and ``hybrid``.

        Raises:
            VendorError: It failed.
        """
        _write_samples(work, samples, model=str(model.resolve()), march=march)
        self._ask("build", work)
        stages = {
            stage: work / f"model_{stage}_model.onnx"
            for stage in ("calibrated", "quantized", "hybrid")
        }
        for path in stages.values():
            if not path.exists():
                raise VendorError(f"the converter wrote no {path.name}")
        return stages

    def versions(self) -> dict[str, str]:
        """Return the versions of its packages that numbers depend on.

        Raises:
            VendorError: Python did not run.
        """
        with tempfile.TemporaryDirectory() as temporary:
            work = Path(temporary)
            (work / "request.json").write_text("{}", encoding="utf-8")
            reply: dict[str, str] = self._ask("versions", work)
        return reply

    def simulate(
        self, hbm: Path, name: str, inputs: Sequence[NDArray[Any]], work: Path
    ) -> list[NDArray[np.int64]]:
        """Run one program in the instruction simulator.

        Args:
            hbm: The compiled model.
            name: Which of its programs.
            inputs: Integers in the order and layout that the hybrid model declares.
            work: An empty folder.

        Returns:
            The elements of each output, flat, in the declared order.

        Raises:
            VendorError: It failed.
        """
        files = []
        for index, array in enumerate(inputs):
            files.append(f"in{index}.bin")
            np.ascontiguousarray(array).tofile(work / files[-1])
        (work / "out").mkdir()
        command = [str(self.folder / SIMULATOR), "-f", str(hbm.resolve()), "-n", name]
        self._call([*command, "-i", ",".join(files), "-o", "out"], work)
        found = []
        while written := list((work / "out").glob(f"hbdk_output{len(found)}_*_elem_int.txt")):
            if len(written) != 1:
                raise VendorError(f"{SIMULATOR} wrote output {len(found)} of {name} twice")
            found.append(_read_elements(written[0]))
        return found

    def _ask(self, task: str, work: Path) -> dict[str, Any]:
        script = str(Path(__file__).resolve())
        self._call([str(self.folder / "python"), script, task, str(work.resolve())], work)
        reply: dict[str, Any] = json.loads((work / "reply.json").read_text(encoding="utf-8"))
        return reply

    def _call(self, command: Sequence[str], work: Path) -> None:
        # Its own folder leads PATH: the converter starts tools that it looks for there.
        path = f"{self.folder}{os.pathsep}{os.environ.get('PATH', '')}"
        done = subprocess.run(
            command,
            cwd=work,
            env={**os.environ, "PATH": path, "PYTHONPATH": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            said = "\n".join(done.stdout.strip().splitlines()[-15:])
            raise VendorError(
                f"{Path(command[0]).name} ended with exit code {done.returncode}:\n{said}"
            )


def _write_samples(
    work: Path, samples: Sequence[Mapping[str, NDArray[Any]]], **settings: Any
) -> None:
    names = list(samples[0])
    for index, sample in enumerate(samples):
        for position, name in enumerate(names):
            np.save(work / f"in_{index}_{position}.npy", sample[name])
    request = {**settings, "inputs": names, "samples": len(samples)}
    (work / "request.json").write_text(json.dumps(request), encoding="utf-8")


def _read_samples(work: Path, request: Mapping[str, Any]) -> list[dict[str, NDArray[Any]]]:
    return [
        {
            name: np.load(work / f"in_{index}_{position}.npy")
            for position, name in enumerate(request["inputs"])
        }
        for index in range(request["samples"])
    ]


def _read_elements(file: Path) -> NDArray[np.int64]:
    lines = file.read_text(encoding="utf-8").splitlines()
    words = [word for line in lines if not line.startswith("#") for word in line.split()]
    return np.array(words, dtype=np.int64)


def answer_run(work: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run a model in this environment's executor: once for all tensors, and for the time."""
    # Only the vendor's environment has it; the other half of this file works everywhere.
    from horizon_nn.api import ORTExecutor  # noqa: PLC0415 - see above

    model = onnx.load(request["model"])
    samples = _read_samples(work, request)
    executor = ORTExecutor(with_all_outputs(model))
    executor.create_session()
    names: list[str] = []
    for index, sample in enumerate(samples):
        values = executor.forward(sample)
        names = list(values)
        for position, name in enumerate(names):
            np.save(work / f"out_{index}_{position}.npy", np.asarray(values[name]))
    executor = ORTExecutor(model)
    executor.create_session()
    return {"tensors": names, "times": timed(executor.forward, samples, request["rounds"])}


def timed(
    forward: Callable[[dict[str, NDArray[Any]]], object],
    samples: Sequence[dict[str, NDArray[Any]]],
    rounds: int,
) -> dict[str, list[float]]:
    """Return seconds of single runs, ``wall`` and ``cpu`` (of all threads), after one unmeasured.

    Both sides are timed by this, so that they are timed alike.
    """
    forward(samples[0])
    times: dict[str, list[float]] = {"wall": [], "cpu": []}
    for sample in [*samples] * rounds:
        wall, cpu = time.perf_counter(), time.process_time()
        forward(sample)
        times["wall"].append(time.perf_counter() - wall)
        times["cpu"].append(time.process_time() - cpu)
    return times


def with_all_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy in which every tensor that a node makes is a graph output."""
    every = onnx.ModelProto()
    every.CopyFrom(model)
    infos = {info.name: info for info in (*model.graph.value_info, *model.graph.output)}
    present = {info.name for info in model.graph.output}
    for node in model.graph.node:
        for name in node.output:
            if name and name not in present:
                every.graph.output.append(infos.get(name) or onnx.ValueInfoProto(name=name))
    return every


def answer_build(work: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a float model with this environment's converter, compiled stage included."""
    # As in `answer_run`.
    from horizon_nn.api import build_onnx  # noqa: PLC0415 - see above

    samples = _read_samples(work, request)
    names = request["inputs"]
    build_onnx(
        _in_old_opset(Path(request["model"]), work),
        request["march"],
        name_prefix="model",
        input_dict={
            name: {
                "input_shape": list(samples[0][name].shape),
                "expected_input_type": "FEATURE",
                "original_input_type": "FEATURE",
            }
            for name in names
        },
        cali_dict={
            "calibration_type": "max",
            "calibration_data": {name: [sample[name] for sample in samples] for name in names},
        },
        debug_mode=["dump_all_models"],
    )
    return {}


def _in_old_opset(file: Path, work: Path) -> str:
    """Return the model's path, or that of a copy that calls itself opset 11."""
    model = onnx.load(file)
    newer = [item for item in model.opset_import if not item.domain and item.version > LAST_OPSET]
    if not newer:
        return str(file)
    newer[0].version = LAST_OPSET
    # Operators that changed their form in between do not pass this.
    onnx.checker.check_model(model)
    copy = work / "opset_11.onnx"
    onnx.save(model, copy)
    return str(copy)


def answer_versions(_work: Path, _request: Mapping[str, Any]) -> dict[str, Any]:
    """Tell the versions of this environment."""
    return versions_of(("dg_nn_toolkit", "dgdk", "numpy", "onnx"))


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of installed packages, and of Python."""
    found = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), **found}


def main() -> None:
    """Answer one request, inside the vendor's environment."""
    task, folder = sys.argv[1], Path(sys.argv[2])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    answers = {"run": answer_run, "build": answer_build, "versions": answer_versions}
    reply = answers[task](folder, request)
    (folder / "reply.json").write_text(json.dumps(reply), encoding="utf-8")


if __name__ == "__main__":
    main()
