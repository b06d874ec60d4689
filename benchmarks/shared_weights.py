"""What does a session gain or lose when it is fed its weight instead of owning a copy?

    python benchmarks/shared_weights.py

For matrix products, transposed ones and a convolution of several sizes, prints as JSON the time of
a run both ways, whether the bits are the same, whether those of a session without prepacking are,
and for a large weight what making the session takes in time and memory. Last, how fast a digest is.
"""

from __future__ import annotations

import hashlib
import json
import resource
import statistics
import time
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnxruntime  # noqa: TID253 - it is what is measured
from onnx import TensorProto, helper

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

_CASES = (
    ("MatMul", (1024, 1024), [(1, 1024), (7, 1024), (64, 1024), (300, 1024)], {}),
    ("Gemm", (1024, 1024), [(1, 1024), (7, 1024), (64, 1024)], {"transB": 1}),
    ("Conv", (64, 64, 3, 3), [(1, 64, 32, 32)], {}),
)


def session(
    op_type: str, weight: NDArray[np.float32], attributes: dict[str, int], kind: str
) -> onnxruntime.InferenceSession:
    """Make a session of one operator; its weight is ``owned``, ``unpacked`` or ``fed``."""
    info = [onnx.ValueInfoProto(name=name) for name in ("x", "y", "w")]
    for item in info:
        item.type.tensor_type.elem_type = TensorProto.FLOAT
    x, y, w = info
    node = helper.make_node(op_type, ["x", "w"], ["y"], **attributes)
    graph = helper.make_graph([node], "one", [x, w] if kind == "fed" else [x], [y])
    if kind != "fed":
        graph.initializer.append(
            TensorProto(
                name="w",
                data_type=TensorProto.FLOAT,
                dims=weight.shape,
                raw_data=weight.tobytes(),
            )
        )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    if kind == "unpacked":
        options.add_session_config_entry("session.disable_prepacking", "1")
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def milliseconds(run: Callable[[], object]) -> float:
    """Return the median time of a run."""
    found = []
    for _ in range(30):
        started = time.perf_counter()
        run()
        found.append(time.perf_counter() - started)
    return round(statistics.median(found) * 1000, 3)


def compare() -> list[dict[str, object]]:
    """Compare the three kinds of sessions."""
    random = np.random.default_rng(0)
    found = []
    for op_type, shape, inputs, attributes in _CASES:
        weight = random.standard_normal(shape, np.float32)
        owned, unpacked, fed = (
            session(op_type, weight, attributes, kind) for kind in ("owned", "unpacked", "fed")
        )
        for size in inputs:
            x = random.standard_normal(size, np.float32)
            alone, both = {"x": x}, {"x": x, "w": weight}
            outputs = [owned.run(None, alone), unpacked.run(None, alone), fed.run(None, both)]
            found.append(
                {
                    "operator": op_type,
                    "weight": shape,
                    "input": size,
                    "owned_ms": milliseconds(lambda run=owned.run, feed=alone: run(None, feed)),
                    "fed_ms": milliseconds(lambda run=fed.run, feed=both: run(None, feed)),
                    "equal": np.array_equal(outputs[0][0], outputs[2][0]),
                    "equal_unpacked": np.array_equal(outputs[1][0], outputs[2][0]),
                }
            )
    return found


def peak() -> int:
    """Return this process's peak memory in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    """Print JSON."""
    record: dict[str, object] = {"onnxruntime": onnxruntime.__version__, "runs": compare()}
    weight = np.zeros((4096, 4096), np.float32) + 1
    for kind in ("fed", "owned"):
        before, started = peak(), time.perf_counter()
        session("MatMul", weight, {}, kind)
        record[f"{kind}_64_mib"] = {
            "create_ms": round((time.perf_counter() - started) * 1000, 1),
            "peak_grows_by_mib": peak() - before,
        }
    content = bytes(1 << 28)
    started = time.perf_counter()
    hashlib.sha256(content).hexdigest()
    record["digest_gb_per_s"] = round(len(content) / 1e9 / (time.perf_counter() - started), 2)
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
