"""What a type setting changes: measure it with the vendor's converter, compare it with the rules.

    python benchmarks/measure_lift_rules.py measure fixtures/lift_rules.json.xz \
        [--nets 40] [--model NAME FLOAT.onnx CALIB_DIR NODE,NODE,... ]...
    python benchmarks/measure_lift_rules.py compare fixtures/lift_rules.json.xz [--show 20]

`measure` needs HMCT's Python package (``horizon_nn``) and its ``bin`` directory on PATH. It
converts nets without and with settings and keeps, for every input of every node, the type that is
read there. Kinds of nets: `maker` (every kind of maker in front of one convolution), `last` (the
same with nothing behind), `node` (every kind of node behind two makers), `shared` (two readers
of one point), `random`, and real models. `compare` needs only hbdebug: it foretells every case
and prints how many are right.

A case is right when every input has the type that was measured. Inputs that had no point before
and get one are counted apart: hbdebug cannot add points.
"""

# ruff: noqa: ANN001, ANN003, ANN201, ANN202, PLR0911, S311, TID251
# A script for two environments: it has to run beside the vendor's package, with Python 3.10 and
# without hbdebug's own dependencies, and makes ONNX models itself.

from __future__ import annotations

import argparse
import contextlib
import json
import lzma
import multiprocessing
import os
import random
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SIZE = 8

FORK = multiprocessing.get_context("fork")

# The converter refuses with errors of any kind, and with sys.exit.
REFUSALS = (Exception, SystemExit)
KEPT_ATTRIBUTES = ("kernel_shape", "axes", "dilations", "strides", "group")


class Net:
    """A small float graph; every tensor is [1, 8, 8, 8] unless an operator says otherwise."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, value) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(value), f"k{len(self.constants)}"))
        return self.constants[-1].name

    def weight(self, *shape: int) -> str:
        return self.constant((self.random.standard_normal(shape) * 0.3).astype(np.float32))

    def op(self, op_type: str, inputs: list[str], name: str, **attributes) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [f"{name}_o"], name=name, **attributes))
        return f"{name}_o"

    def conv(self, x: str, name: str, channels: int = SIZE, kernel: int = 1, **attributes) -> str:
        weight = self.weight(SIZE, channels, kernel, kernel)
        inputs = [x, weight, self.weight(SIZE)]
        return self.op("Conv", inputs, name, kernel_shape=[kernel, kernel], **attributes)

    def table(self, name: str) -> str:
        """Return a second operand: a table behind a convolution of the graph's input."""
        return self.op("Sigmoid", [self.conv("x", f"{name}_c")], name)

    def model(self, *outputs: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZE, SIZE, SIZE])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            self.constants,
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7)
        return onnx.shape_inference.infer_shapes(made)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _upsample(net: Net) -> list[str]:
    return [net.constant(np.array([], np.float32)), net.constant(np.float32([1, 1, 2, 2]))]


_NEAREST = {
    "mode": "nearest",
    "coordinate_transformation_mode": "asymmetric",
    "nearest_mode": "floor",
}
_POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}

# Kind -> (net, input, name) -> output. The parts of a kind are named like it with a tail.
KINDS = {
    "conv": lambda n, x, t: n.conv(x, t),
    "conv_relu": lambda n, x, t: n.op("Relu", [n.conv(x, f"{t}_c")], t),
    "conv_clip": lambda n, x, t: n.op(
        "Clip", [n.conv(x, f"{t}_c"), n.constant(np.float32(0)), n.constant(np.float32(6))], t
    ),
    "conv_add": lambda n, x, t: n.op("Add", [n.conv(x, f"{t}_c"), n.table(f"{t}_s")], t),
    "add": lambda n, x, t: n.op("Add", [n.op("Sigmoid", [x], f"{t}_p"), n.table(f"{t}_s")], t),
    "add_relu": lambda n, x, t: n.op("Relu", [KINDS["add"](n, x, f"{t}_a")], t),
    "add_constant": lambda n, x, t: n.op(
        "Add", [n.op("Sigmoid", [x], f"{t}_p"), n.weight(1, SIZE, SIZE, SIZE)], t
    ),
    "sub": lambda n, x, t: n.op("Sub", [n.op("Sigmoid", [x], f"{t}_p"), n.table(f"{t}_s")], t),
    "mul": lambda n, x, t: n.op("Mul", [n.op("Sigmoid", [x], f"{t}_p"), n.table(f"{t}_s")], t),
    "global_average": lambda n, x, t: n.op("GlobalAveragePool", [x], t),
    "global_max": lambda n, x, t: n.op("GlobalMaxPool", [x], t),
    "sigmoid": lambda n, x, t: n.op("Sigmoid", [x], t),
    "tanh": lambda n, x, t: n.op("Tanh", [x], t),
    "exp": lambda n, x, t: n.op("Exp", [x], t),
    "hardsigmoid": lambda n, x, t: n.op("HardSigmoid", [x], t, alpha=0.2),
    "hardswish": lambda n, x, t: n.op(
        "Mul", [x, n.op("HardSigmoid", [x], f"{t}_h", alpha=1 / 6)], t
    ),
    "swish": lambda n, x, t: n.op("Mul", [x, n.op("Sigmoid", [x], f"{t}_s")], t),
    "leaky": lambda n, x, t: n.op("LeakyRelu", [x], t, alpha=0.1),
    "prelu": lambda n, x, t: n.op("PRelu", [x, n.constant(np.full((SIZE, 1, 1), 0.2, "f"))], t),
    "clip": lambda n, x, t: n.op(
        "Clip", [x, n.constant(np.float32(-0.5)), n.constant(np.float32(0.5))], t
    ),
    "pow": lambda n, x, t: n.op("Pow", [x, n.constant(np.float32(2))], t),
    "relu": lambda n, x, t: n.op("Relu", [n.op("MaxPool", [x], f"{t}_m", **_POOL)], t),
    "maxpool": lambda n, x, t: n.op("MaxPool", [x], t, **_POOL),
    "maxpool_table": lambda n, x, t: n.op("MaxPool", [n.op("Sigmoid", [x], f"{t}_p")], t, **_POOL),
    "maxpool_mul": lambda n, x, t: n.op("MaxPool", [KINDS["mul"](n, x, f"{t}_m")], t, **_POOL),
    "concat": lambda n, x, t: n.op("Concat", [n.conv(x, f"{t}_a"), n.conv(x, f"{t}_b")], t, axis=2),
    "concat_table": lambda n, x, t: n.op(
        "Concat", [n.conv(x, f"{t}_a"), n.op("Sigmoid", [x], f"{t}_b")], t, axis=2
    ),
    "concat_mul": lambda n, x, t: n.op(
        "Concat", [n.conv(x, f"{t}_a"), KINDS["mul"](n, x, f"{t}_m")], t, axis=2
    ),
    "reshape": lambda n, x, t: n.op("Reshape", [x, n.constant(_ints(1, SIZE, 4, 16))], t),
    "transpose": lambda n, x, t: n.op("Transpose", [x], t, perm=[0, 1, 3, 2]),
    "slice": lambda n, x, t: n.op(
        "Slice", [x, *(n.constant(_ints(value)) for value in (0, 4, 3))], t
    ),
    "gather": lambda n, x, t: n.op("Gather", [x, n.constant(_ints(0, 2, 1))], t, axis=3),
    "tile": lambda n, x, t: n.op("Tile", [x, n.constant(_ints(1, 1, 1, 2))], t),
    "pad": lambda n, x, t: n.op(
        "Pad", [x, n.constant(_ints(0, 0, 1, 1, 0, 0, 1, 1))], t, mode="reflect"
    ),
    "resize": lambda n, x, t: n.op("Resize", [x, *_upsample(n)], t, **_NEAREST),
    "depth_to_space": lambda n, x, t: n.op(
        "DepthToSpace", [n.op("Concat", [x] * 4, f"{t}_c", axis=1)], t, blocksize=2
    ),
    "conv_transpose": lambda n, x, t: n.op(
        "ConvTranspose",
        [x, n.weight(SIZE, SIZE, 2, 2), n.weight(SIZE)],
        t,
        kernel_shape=[2, 2],
        strides=[2, 2],
    ),
    "matmul": lambda n, x, t: n.op("MatMul", [x, n.table(f"{t}_s")], t),
    "reduce_mean": lambda n, x, t: n.op("ReduceMean", [x], t, axes=[1], keepdims=1),
    "reduce_max": lambda n, x, t: n.op("ReduceMax", [x], t, axes=[1], keepdims=1),
    "softmax": lambda n, x, t: n.op("Softmax", [x], t, axis=3),
}
ONE_CHANNEL = {"reduce_mean": 1, "reduce_max": 1}

# Nodes with a second operand when they are the node that is set.
OPERANDS = {"add": "Add", "mul": "Mul", "sub": "Sub", "matmul": "MatMul"}


def reader(net: Net, kind: str, x: str, name: str) -> str:
    """Add a node that reads ``x`` itself, whatever stands in front when it is a maker."""
    if kind in OPERANDS:
        return net.op(OPERANDS[kind], [x, net.table(f"{name}_s")], name)
    return KINDS[kind](net, x, name)


def systematic_nets():
    """Yield (group, name, model, settings) of the nets that the rules were made from."""
    alone = [{"T": "cpu"}, {"T": "int16"}]
    for maker, make in KINDS.items():
        for group in ("maker", "last"):
            net = Net()
            made = make(net, net.conv("x", "first"), "P")
            made = net.conv(made, "T", ONE_CHANNEL.get(maker, SIZE))
            made = net.conv(made, "end") if group == "maker" else made
            yield group, maker, net.model(made), alone if group == "maker" else alone[:1]
    for maker in ("conv", "mul"):
        for kind in KINDS:
            net = Net()
            made = reader(net, kind, KINDS[maker](net, net.conv("x", "first"), "P"), "T")
            made = net.conv(made, "end", ONE_CHANNEL.get(kind, SIZE))
            yield "node", f"{maker} -> {kind}", net.model(made), alone
    both = [*alone, {"T": "cpu", "U": "cpu"}, {"T": "cpu", "U": "int16"}]
    readers = ("conv", "mul", "add", "sigmoid", "global_average", "matmul", "maxpool", "leaky")
    for maker in ("input", "conv", "mul", "sigmoid"):
        for first in ("conv", "mul", "global_average"):
            for second in readers:
                net = Net()
                x = net.conv("x", "first") if maker != "input" else "x"
                x = KINDS[maker](net, x, "P") if maker != "input" else x
                ends = [reader(net, first, x, "T"), reader(net, second, x, "U")]
                ends = [net.conv(end, f"end{index}") for index, end in enumerate(ends)]
                yield "shared", f"{maker} -> {first}, {second}", net.model(*ends), both


def random_net(seed: int) -> onnx.ModelProto:
    """Return a net of 5 to 11 parts that read each other at random."""
    draw = random.Random(seed)
    net = Net(seed)
    tensors = ["x"]
    plain = "conv conv conv conv_relu conv_relu conv_clip sigmoid tanh hardsigmoid hardswish leaky"
    kinds = f"{plain} prelu clip pow maxpool transpose softmax reduce_mean squeeze_excite".split()
    kinds += ["concat", "concat", "resize", "conv_transpose", "reshape", "gather", "pad"]
    kinds += ["add", "add", "add", "mul", "mul", "mul", "sub", "matmul"]
    for index in range(draw.randint(5, 11)):
        kind = draw.choice(kinds)
        x, y = (draw.choice(tensors[-4:] if draw.random() < 0.8 else tensors) for _ in range(2))
        tensors.append(_random_part(net, kind, x, y, f"{kind}{index}"))
    read = {tensor for node in net.nodes for tensor in node.input}
    ends = [tensor for tensor in tensors if tensor not in read and tensor != "x"]
    return net.model(*(net.conv(end, f"end_{end}") for end in ends))


def _random_part(net: Net, kind: str, x: str, y: str, name: str) -> str:
    """Add one part; its output has the shape of its input."""
    if kind in OPERANDS:
        y = y if y != x else net.conv(x, f"{name}_y")
        return net.op(OPERANDS[kind], [x, y], name)
    if kind == "squeeze_excite":
        pooled = net.op("GlobalAveragePool", [x], f"{name}_g")
        hidden = net.op("Relu", [net.conv(pooled, f"{name}_1")], f"{name}_r")
        return net.op(
            "Mul", [x, net.op("Sigmoid", [net.conv(hidden, f"{name}_2")], f"{name}_s")], name
        )
    if kind == "concat":
        y = y if y != x else net.conv(x, f"{name}_y")
        return net.conv(net.op("Concat", [x, y], name, axis=1), f"{name}_c", 2 * SIZE)
    if kind == "reshape":
        inner = net.conv(KINDS["reshape"](net, x, name), f"{name}_c")
        return net.op("Reshape", [inner, net.constant(_ints(1, SIZE, SIZE, SIZE))], f"{name}_b")
    if kind == "reduce_mean":
        return net.op("Sub", [x, KINDS["reduce_mean"](net, x, name)], f"{name}_d")
    made = KINDS[kind](net, x, name)
    if kind in {"resize", "conv_transpose"}:
        return net.conv(made, f"{name}_c", kernel=2, strides=[2, 2])
    if kind == "pad":
        return net.conv(made, f"{name}_c", kernel=3)
    if kind == "gather":
        return net.op("MatMul", [made, net.weight(3, SIZE)], f"{name}_c")
    return made


def random_settings(names: list[str], draw: random.Random) -> list[dict[str, str]]:
    """Return single settings of both kinds, sets of two to four, and all nodes int16."""
    found = [{draw.choice(names): setting} for setting in ("cpu", "int16") for _ in range(3)]
    for _ in range(2):
        several = draw.sample(names, min(len(names), draw.randint(2, 4)))
        found.append({name: draw.choice(["cpu", "int16"]) for name in several})
    return [*found, {"*": "int16"}]


def convert(model: onnx.ModelProto, march: str, samples, settings) -> onnx.ModelProto:
    """Return the calibrated model that the vendor's converter makes."""
    from horizon_nn.api import build_onnx  # noqa: PLC0415 - optional peer

    keys = {"cpu": {"ON": "CPU"}, "int16": {"InputType": "int16"}}
    extra = {}
    if settings == {"*": "int16"}:
        extra["quant_config"] = {"model_config": {"all_node_type": "int16"}}
    elif settings:
        extra["node_dict"] = {name: keys[setting] for name, setting in settings.items()}
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    kind = {"expected_input_type": "FEATURE", "original_input_type": "FEATURE"}
    with _working_folder(), _silence():
        onnx.save(model, "float.onnx")
        build_onnx(
            "float.onnx",
            march,
            name_prefix="net",
            input_dict={"x": {"input_shape": shape, **kind}},
            cali_dict={"calibration_type": "max", "calibration_data": {"x": samples}},
            **extra,
        )
        return onnx.load(next(Path().glob("*calibrated*.onnx")))


@contextlib.contextmanager
def _working_folder():
    """Change to a folder for the converter's files, which it writes where it stands."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


@contextlib.contextmanager
def _silence():
    """Send what the converter prints, also from C++, to nowhere."""
    saved = os.dup(1), os.dup(2)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved[0], 1)
            os.dup2(saved[1], 2)
            os.close(saved[0])
            os.close(saved[1])


def describe(model: onnx.ModelProto) -> dict:
    """Return a calibrated model's steps, without any numbers."""
    steps = []
    for node in model.graph.node:
        values = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        kept = {name: values[name] for name in KEPT_ATTRIBUTES if name in values}
        if node.op_type == "HzCalibration":
            role = "weight" if values["quant_attrs"] & 0x20000 else "activation"
            kept = {"dtype": values["qtype"].decode(), "role": role}
        steps.append([node.name, node.op_type, list(node.input), list(node.output), kept])
    return {
        "steps": steps,
        "inputs": [value.name for value in model.graph.input],
        "outputs": [value.name for value in model.graph.output],
        "constants": {value.name: len(value.dims) for value in model.graph.initializer},
    }


def types(description: dict) -> dict[str, str]:
    """Return ``node:index`` -> the type that is read there; empty for float."""
    points = {step[3][0]: step for step in description["steps"] if step[1] == "HzCalibration"}
    found = {}
    for name, op_type, inputs, _, _ in description["steps"]:
        if op_type == "HzCalibration":
            continue
        for index, tensor in enumerate(inputs):
            if tensor:
                found[f"{name}:{index}"] = points[tensor][4]["dtype"] if tensor in points else ""
    return found


def measure_case(group, name, model, settings, samples, march) -> dict | None:
    """Convert one net without and with every setting; None where the net cannot be converted."""
    try:
        plain = describe(convert(model, march, samples, {}))
    except REFUSALS as error:
        print(f"{group} {name}: {type(error).__name__}")
        return None
    before = types(plain)
    if settings is None:
        nodes = [step[0] for step in plain["steps"] if step[1] != "HzCalibration"]
        settings = random_settings(nodes, random.Random(name))
    measured = []
    for setting in settings:
        try:
            after = types(describe(convert(model, march, samples, setting)))
        except REFUSALS as error:
            print(f"{group} {name} {setting}: {type(error).__name__}")
            continue
        # Softmax and AveragePool come apart under some settings: nothing to compare there.
        if before.keys() <= after.keys() or setting == {"*": "int16"}:
            common = [key for key in before if key in after]
            changed = {key: after[key] for key in common if after[key] != before[key]}
            measured.append([setting, changed])
    return {"group": group, "name": name, "march": march, "graph": plain, "measured": measured}


def isolated(arguments) -> dict | None:
    """Measure a case in a process of its own: some nets crash the converter's native code."""
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=lambda: sender.send(measure_case(*arguments)))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        print(f"{arguments[0]} {arguments[1]}: the converter crashed")
        return None
    finally:
        process.join()


def measure(options: argparse.Namespace) -> None:
    """Run every case and write the file."""
    import horizon_nn.api  # noqa: F401, PLC0415 - once, before the processes are forked

    generator = np.random.default_rng(1)
    shape = (1, SIZE, SIZE, SIZE)
    noise = [generator.standard_normal(shape).astype(np.float32) for _ in range(2)]
    jobs = [(*net, noise, "bayes-e") for net in systematic_nets()]
    for march, count in (("bayes-e", options.nets), ("bernoulli2", options.nets // 4)):
        seeds = range(options.seed, options.seed + count)
        jobs += [("random", str(seed), random_net(seed), None, noise, march) for seed in seeds]
    for name, path, folder, nodes in options.model:
        samples = [np.load(file) for file in sorted(Path(folder).glob("*.npy"))[:2]]
        settings = [{node: kind} for node in nodes.split(",") for kind in ("cpu", "int16")]
        settings.append({"*": "int16"})
        jobs.append(("model", name, onnx.load(path), settings, samples, "bayes-e"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        cases = list(pool.map(isolated, jobs))
    print(f"{sum(case is not None for case in cases)} of {len(cases)} nets")
    with lzma.open(options.file, "wt", encoding="utf-8") as stream:
        json.dump([case for case in cases if case], stream, separators=(",", ":"))


def quant_model(case: dict):
    """Return a case's graph as a `QuantModel` whose points have thresholds of 1."""
    from hbdebug.model import Node, Point, QuantModel  # noqa: PLC0415 - `measure` runs without
    from hbdebug.quant import QuantParams  # noqa: PLC0415
    from hbdebug.samples import TensorSpec  # noqa: PLC0415

    steps = []
    for name, op_type, inputs, outputs, kept in case["graph"]["steps"]:
        if op_type == "HzCalibration":
            limit = {"int8": 127, "int16": 32767}.get(kept["dtype"])
            params = limit and QuantParams(
                dtype=kept["dtype"],
                scale=np.float32(1 / limit).reshape(()),
                zero_point=np.zeros((), np.float32),
                threshold=np.ones(1),
            )
            steps.append(
                Point(
                    name=name, role=kept["role"], input=inputs[0], output=outputs[0], params=params
                )
            )
            continue
        tensors = {"inputs": tuple(inputs), "outputs": tuple(outputs)}
        steps.append(
            Node(name=name, op_type=op_type, domain="", attributes=kept, body=(), **tensors)
        )

    def specs(names):
        return tuple(TensorSpec(name=name, dtype="float32", shape=()) for name in names)

    return QuantModel(
        path=case["name"],
        sha256="",
        kind="measured",
        producer="",
        opset=11,
        inputs=specs(case["graph"]["inputs"]),
        outputs=specs(case["graph"]["outputs"]),
        steps=tuple(steps),
        constants={
            name: np.zeros((1,) * rank, np.float32)
            for name, rank in case["graph"]["constants"].items()
        },
    )


def assigned_types(model, assignment) -> dict[str, str]:
    """Return ``node:index`` -> the type that is read there under an assignment."""
    from hbdebug.model import Point  # noqa: PLC0415

    found = {}
    for node in model.nodes:
        for index, tensor in enumerate(node.inputs):
            step = model.producer_of.get(tensor)
            read = ""
            while isinstance(step, Point) and not read:
                if (node.name, index) in assignment.bypassed:
                    break
                read = assignment[step.name].dtype if step.name in assignment else ""
                step = model.producer_of.get(step.input)
            if tensor:
                found[f"{node.name}:{index}"] = read
    return found


def foretold(case: dict, model, setting: dict[str, str]) -> dict[str, str]:
    """Return what the rules say a setting changes: ``node:index`` -> type."""
    from hbdebug.model import Assignment  # noqa: PLC0415
    from hbdebug.toolchain import int16_where_allowed, lifted  # noqa: PLC0415

    base = Assignment.as_calibrated(model)
    if setting == {"*": "int16"}:
        after = int16_where_allowed(model, base, case["march"])
    else:
        after = lifted(model, base, setting, case["march"])
    before = assigned_types(model, base)
    return {key: new for key, new in assigned_types(model, after).items() if new != before[key]}


def wrong_inputs(case: dict, model, setting: dict[str, str], changed: dict[str, str]) -> list[str]:
    """Return the inputs whose type the rules get wrong; new points are not held against them."""
    before = types(case["graph"])
    told = foretold(case, model, setting)
    keys = [key for key in before if told.get(key, before[key]) != changed.get(key, before[key])]
    return [key for key in keys if before[key] or key in told]


def kind_of(setting: dict[str, str]) -> str:
    """Return ``cpu``, ``int16``, ``several`` or ``all int16``."""
    if setting == {"*": "int16"}:
        return "all int16"
    return next(iter(setting.values())) if len(setting) == 1 else "several"


def read_cases(path: Path | str) -> list[dict]:
    """Read what `measure` wrote."""
    with lzma.open(path, "rt", encoding="utf-8") as stream:
        return json.load(stream)


def compare(options: argparse.Namespace) -> None:
    """Print how many cases the rules foretell, by group and kind of setting."""
    right: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    shown = 0
    for case in read_cases(options.file):
        model = quant_model(case)
        for setting, changed in case["measured"]:
            wrong = wrong_inputs(case, model, setting, changed)
            key = (case["march"], case["group"], kind_of(setting))
            total[key] += 1
            right[key] += not wrong
            if wrong and shown < options.show:
                shown += 1
                print(case["march"], case["group"], case["name"], setting)
                told = foretold(case, model, setting)
                for item in wrong[:5]:
                    print(f"    {item}: {told.get(item, '=')} measured {changed.get(item, '=')}")
    for key in sorted(total):
        print(f"{' / '.join(key):40} {right[key]:5} of {total[key]:5} right")


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("measure")
    command.add_argument("file")
    command.add_argument("--nets", type=int, default=40)
    command.add_argument("--seed", type=int, default=2000)
    command.add_argument("--model", nargs=4, action="append", default=[])
    command.set_defaults(run=measure)
    command = commands.add_parser("compare")
    command.add_argument("file")
    command.add_argument("--show", type=int, default=0)
    command.set_defaults(run=compare)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
