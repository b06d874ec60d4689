"""What `hbdebug repair` gains on the chip: a float model and its repaired twin, converted and run.

    python benchmarks/repair.py FLOAT CALIB --vendor-python VENV/bin [--march bayes-e]

Both models are converted by the vendor's package with the samples of CALIB as calibration data
(type max), and both conversions are measured by `hbdebug sensitivity --quantized`: the calibrated
model, and its integers, against the float model, mean over the samples. Prints JSON. Where the
vendor's package is not installed nothing is run, and the exit code is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from hbdebug import sensitivity
from hbdebug.loading.repair import repair_hard_sigmoids

# Runs inside the vendor's own environment.
BUILD = """
import sys
import numpy as np
from pathlib import Path
from horizon_nn.api import build_onnx
float_model, calib, march, prefix = sys.argv[1:]
data = {f.name: [np.load(s) for s in sorted(f.glob("*.npy"))] for f in Path(calib).iterdir()}
inputs = {
    name: {
        "input_shape": list(arrays[0].shape),
        "expected_input_type": "FEATURE",
        "original_input_type": "FEATURE",
    }
    for name, arrays in data.items()
}
build_onnx(
    float_model,
    march,
    name_prefix=prefix,
    input_dict=inputs,
    cali_dict={"calibration_type": "max", "calibration_data": data},
)
"""


def convert(python: str, model: Path, args: argparse.Namespace, prefix: Path) -> None:
    """Convert a float model with the vendor's package; its log is shown if it fails."""
    command = [python, "-c", BUILD, str(model), str(Path(args.data).resolve()), args.march, prefix]
    # The converter looks for its compiler on the search path.
    environment = {**os.environ, "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=prefix.parent, env=environment, check=False
    )
    if done.returncode:
        sys.exit(f"the vendor's converter failed on {model.name}:\n{done.stderr[-2000:]}")


def measure(prefix: Path, data: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return fidelity -> output -> metric -> mean of a conversion."""
    result = sensitivity(
        f"{prefix}_calibrated_model.onnx",
        data,
        quantized=f"{prefix}_quantized_model.onnx",
        suggest=False,
        split=False,
    )
    return {
        item.fidelity: {output: dict(values) for output, values in item.outputs.items()}
        for item in result.ceilings
        if item.name == "as_calibrated"
    }


def main() -> None:
    """Convert both, measure both, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--vendor-python", default="", help="folder with python of the vendor")
    parser.add_argument("--march", default="bayes-e")
    args = parser.parse_args()
    python = shutil.which("python", path=args.vendor_python) if args.vendor_python else None
    if python is None:
        print("skipped: give --vendor-python; benchmarks/README.md has the commands to install it")
        return
    repaired = repair_hard_sigmoids(args.model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "repaired.onnx").write_bytes(repaired.content)
        shutil.copy(args.model, folder / "original.onnx")
        record: dict[str, object] = {"rewritten": len(repaired.repairs)}
        for stage in ("original", "repaired"):
            convert(python, folder / f"{stage}.onnx", args, folder / stage)
            record[stage] = measure(folder / stage, args.data)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
