"""Synthetic results for the tests of reports and records: realistic numbers, nothing measured."""

from __future__ import annotations

import dataclasses
import math

from hbdebug.results import (
    Ceiling,
    CurveStep,
    DataInfo,
    Effect,
    ListedNode,
    ListedPoint,
    ModelInfo,
    ModelListing,
    NodeResult,
    NotAnalysed,
    PointResult,
    SensitivityResult,
    Suggestion,
)

METRICS = ("cosine_similarity", "sqnr_db", "max_abs_error", "top1_agreement")


def values(distance, sqnr, largest=0.1, top1=1.0):
    """Metrics of one output, from its 1 - cosine."""
    return {
        "cosine_similarity": 1 - distance,
        "sqnr_db": sqnr,
        "max_abs_error": largest,
        "top1_agreement": top1,
    }


def effect(distance, sqnr, *, spread=0.2, **more):
    """Effect at one output, with an interval of +-spread around the distance."""
    numbers = values(distance, sqnr)
    ends = (1 - distance * (1 + spread), 1 - distance * (1 - spread)) if spread else None
    return Effect(values=numbers, outputs={"scores": numbers}, interval=ends, **more)


EXACT = Effect(
    values=values(0.0, math.inf, 0.0),
    outputs={"scores": values(0.0, math.inf, 0.0)},
    interval=(1.0, 1.0),
    exact=True,
)

MODEL = ModelInfo(
    path="models/textline/cls_calibrated_model.onnx",
    sha256="0f" * 32,
    kind="HMCT calibrated",
    producer="hmct 1.1.0",
    march="bayes-e",
    nodes=127,
    points={"activation int8": 96, "activation int16": 3, "weight int8": 55},
    inputs={"x": "float32[1, 3, 48, 192]"},
    outputs={"scores": "float32[1, 2]"},
)


def nodes():
    """Six lines: a tie, a half that is missing, a flag, one that does nothing."""
    return (
        NodeResult(
            rank=1,
            tied=False,
            name="Add@43linear_1.tmp_1_Reshape_0",
            op_type="Add",
            points=("p1", "p2"),
            dtype="int8",
            threshold=21.0607,
            alone=effect(0.15571, 5.21),
            activations=effect(0.15571, 5.21),
            suggestion="int16",
        ),
        NodeResult(
            rank=2,
            tied=True,
            name="MatMul@0",
            op_type="MatMul",
            points=("p3", "p4"),
            dtype="int8",
            threshold=3.84919,
            alone=effect(0.1553, 5.22),
            weights=effect(7.1e-4, 34.6),
            activations=effect(0.149, 5.4),
            suggestion="cpu",
            note="MatMul stays int8 on bayes-e whatever its type setting says",
        ),
        NodeResult(
            rank=3,
            tied=False,
            name="GlobalAveragePool@9",
            op_type="GlobalAveragePool",
            points=("p5",),
            dtype="int8",
            threshold=0.0123456,
            alone=effect(0.06694, 14.58),
            activations=effect(0.06694, 14.58),
            suggestion="cpu",
            note="GlobalAveragePool stays int8 on bayes-e whatever its type setting says",
        ),
        NodeResult(
            rank=4,
            tied=False,
            name="Conv@12",
            op_type="Conv",
            points=("p6", "p7"),
            dtype="int8,int16",
            threshold=59.913,
            alone=effect(6.1e-5, 24.94, flags=("dead_output",)),
            weights=effect(5.9e-5, 25.1),
            activations=effect(1.2e-6, 41.7),
            suggestion="int16",
        ),
        NodeResult(
            rank=5,
            tied=False,
            name="卷积/主干@7",
            op_type="Conv",
            points=("p8",),
            dtype="int8",
            threshold=7.5,
            alone=effect(3.2e-8, 44.0),
            weights=effect(3.2e-8, 44.0),
            suggestion="keep",
        ),
        NodeResult(
            rank=6,
            tied=True,
            name="MaxPool@0",
            op_type="MaxPool",
            points=("p9",),
            dtype="int8",
            threshold=1.0,
            alone=EXACT,
            activations=EXACT,
        ),
    )


def points():
    """Three activation points."""
    return tuple(
        PointResult(
            rank=rank,
            tied=rank == 3,
            name=f"{tensor}_HzCalibration",
            role="activation",
            tensor=tensor,
            dtype="int8",
            granularity=granularity,
            threshold=threshold,
            scale=threshold / 127,
            consumers=consumers,
            alone=effect(distance, sqnr),
        )
        for rank, tensor, granularity, threshold, consumers, distance, sqnr in (
            (1, "linear_1.tmp_1", "per-tensor", 21.06, ("Add@43",), 0.155, 5.2),
            (
                2,
                "relu_12.tmp_0",
                "per-channel",
                0.5,
                ("Conv@1", "Mul@2", "Mul@3", "Mul@4"),
                9e-4,
                27,
            ),
            (3, "x", "per-tensor", 1.0, ("Conv@0",), 8.8e-4, 27.3),
        )
    )


def ceilings():
    """The five whole-model measurements of a one-output model."""
    return tuple(
        Ceiling(name=name, fidelity="calibrated", outputs={"scores": values(*numbers)})
        for name, *numbers in (
            ("as_calibrated", 0.1712, 4.87, 0.4123, 0.875),
            ("weights_only", 7.4e-4, 34.1, 0.0121, 1.0),
            ("activations_only", 0.168, 4.95, 0.4088, 0.875),
            ("all_int16", 6.4e-9, 81.9, 1.02e-4, 1.0),
            ("int16_where_allowed", 2.11e-3, 26.8, 0.0302, 1.0),
        )
    )


def suggestion():
    """Two lifts that reach the target."""
    return Suggestion(
        metric="cosine_similarity",
        target=0.999,
        reached=True,
        curve=(
            CurveStep(lifted="", to="", outputs={"scores": values(0.1712, 4.87)}),
            CurveStep(
                lifted="Add@43linear_1.tmp_1_Reshape_0",
                to="int16",
                outputs={"scores": values(0.0731, 8.9)},
                changes=("p1: int8 -> int16",),
            ),
            CurveStep(
                lifted="MatMul@0",
                to="cpu",
                outputs={"scores": values(8.4e-4, 33.2)},
                on=1,
                changes=("p3: int8 -> float", "p4: int8 -> float"),
                notes=("its input comes from Softmax, whose rule was not measured",),
            ),
        ),
        nodes={"Add@43linear_1.tmp_1_Reshape_0": "int16", "MatMul@0": "cpu"},
        stopped="the target is reached",
        step=2,
    )


EXAMPLE = SensitivityResult(
    hbdebug_version="0.1.0",
    command="hbdebug sensitivity cls_calibrated_model.onnx calib/",
    model=MODEL,
    data=DataInfo(
        path="calib/",
        samples=tuple(f"{index}.npy" for index in range(16)),
        found=20,
        complete=16,
    ),
    scheme="as in the file",
    fidelity="calibrated",
    metrics=METRICS,
    seed=0,
    kind="node",
    output_node="",
    coverage="112 nodes analysed; 15 not: 6 run in float (Softmax, ...), 9 integer-typed",
    verdict="activation quantization causes 99 % of the loss; all-int16 repairs it: choosing "
    "nodes can help",
    ceilings=ceilings(),
    nodes=nodes(),
    points=(),
    not_analysed=(
        *(
            NotAnalysed(name=f"Softmax@{index}", op_type="Softmax", reason="run in float")
            for index in range(6)
        ),
        *(
            NotAnalysed(name=f"Shape@{index}", op_type="Shape", reason="integer-typed")
            for index in range(9)
        ),
    ),
    suggestion=suggestion(),
    settings={"versions": {"onnxruntime": "1.32.0", "numpy": "2.4.6"}, "exact": False, "jobs": 2},
    seconds={"load": 0.21, "evaluate": 3.48, "total": 3.9},
)

YAML = """\
# cosine_similarity 0.99916 with these nodes
model_parameters:
  node_info: {"Add@43linear_1.tmp_1_Reshape_0": {'InputType': 'int16'}, "MatMul@0": {'ON': 'CPU'}}
"""

FILES = ("hbdebug-out/sensitivity.json", "hbdebug-out/cpu_nodes.yaml")


def changed(**fields):
    """The example with some fields replaced."""
    return dataclasses.replace(EXAMPLE, **fields)


def without_split():
    """The example as ``--no-split`` gives it."""
    return changed(
        nodes=tuple(
            dataclasses.replace(node, weights=None, activations=None) for node in EXAMPLE.nodes
        )
    )


def one_sample():
    """The example with one sample, and so without any interval."""
    return changed(
        data=DataInfo(path="calib/", samples=("0.npy",), found=1, complete=1),
        nodes=tuple(
            dataclasses.replace(
                node, tied=False, alone=dataclasses.replace(node.alone, interval=None)
            )
            for node in EXAMPLE.nodes
        ),
    )


def two_outputs():
    """A detector: numbers of two outputs, the second one worse as calibrated."""
    outputs = {"boxes": values(2e-4, 31.0), "heads/confidence": values(0.04, 11.0)}
    return changed(
        model=dataclasses.replace(
            MODEL, outputs={"boxes": "float32[1, 25200, 4]", "heads/confidence": "float32[1, 80]"}
        ),
        ceilings=(
            Ceiling(name="as_calibrated", fidelity="calibrated", outputs=outputs),
            Ceiling(name="all_int16", fidelity="integer", outputs=outputs),
        ),
        nodes=(
            dataclasses.replace(
                EXAMPLE.nodes[0],
                alone=Effect(values=outputs["heads/confidence"], outputs=outputs),
            ),
        ),
        suggestion=Suggestion(
            metric="cosine_similarity",
            target=0.999,
            reached=False,
            curve=(
                CurveStep(lifted="", to="", outputs=outputs),
                CurveStep(
                    lifted="a",
                    to="cpu",
                    outputs={"boxes": values(0.0144, 21.0), "heads/confidence": values(1e-3, 30.0)},
                ),
                CurveStep(lifted="b", to="cpu", outputs=outputs),
            ),
            nodes={"a": "cpu"},
            stopped="two steps in a row did not improve it",
        ),
    )


def activation_ranking():
    """The result of ``--kind activation``."""
    return changed(kind="activation", nodes=(), points=points(), suggestion=None)


LISTING = ModelListing(
    hbdebug_version="0.1.0",
    model=MODEL,
    coverage=EXAMPLE.coverage,
    points=(
        ListedPoint(
            name="x_HzCalibration",
            role="activation",
            dtype="int8",
            granularity="per-tensor",
            threshold=1.0,
            scale=1 / 127,
            tensor="x",
            consumers=("Conv@0",),
        ),
        ListedPoint(
            name="conv2d_0.w_0_HzCalibration",
            role="weight",
            dtype="int8",
            granularity="per-channel",
            threshold=0.731,
            scale=0.731 / 127,
            tensor="conv2d_0.w_0",
            consumers=("Conv@0",),
        ),
        ListedPoint(
            name="softmax_in_HzCalibration",
            role="activation",
            dtype="",
            granularity="",
            threshold=None,
            scale=None,
            tensor="linear_1.tmp_1",
            consumers=("Softmax@0", "ArgMax@0"),
            enabled=False,
            reason="switched off in the file",
        ),
    ),
    nodes=(
        ListedNode(
            name="Conv@0",
            op_type="Conv",
            points=("x_HzCalibration", "conv2d_0.w_0_HzCalibration"),
        ),
        ListedNode(
            name="Softmax@0", op_type="Softmax", points=(), analysed=False, reason="run in float"
        ),
    ),
)
