"""Whole-model measurements: what the model loses as calibrated, and what could repair it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hbdebug.analysis.scores import Scorer, Scores, worst_of
from hbdebug.errors import UsageError
from hbdebug.model import Assignment
from hbdebug.threads import one_blas_thread
from hbdebug.toolchain import all_int16, int16_where_allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from hbdebug.engine import Engine
    from hbdebug.integer_run import IntegerRunner
    from hbdebug.model import IntegerModel, QuantModel
    from hbdebug.results import Ceiling, MetricValues
    from hbdebug.samples import Samples

NAMES = (
    "as_calibrated",
    "weights_only",
    "activations_only",
    "all_int16",
    "int16_where_allowed",
)

IN_INTEGERS = ("as_calibrated", "int16_where_allowed")
"""Those that exist in integers: a product of weights alone, or of activations alone, does not, nor
does int16 where the march has none."""

METRICS = ("cosine_similarity", "sqnr_db", "max_abs_error", "top1_agreement")
"""Metrics of the whole-model measurements."""

# A ceiling repairs the loss when it leaves less than this share of it.
_REPAIRED = 0.5


def names_for(model: QuantModel) -> tuple[str, ...]:
    """Return the ceilings that say something about a model.

    Where no weight's error can be measured, because the file holds integers only, weights and
    activations cannot be told apart.
    """
    if any(point.enabled and point.role == "weight" for point in model.points):
        return NAMES
    return tuple(name for name in NAMES if name not in {"weights_only", "activations_only"})


def assignments(model: QuantModel, march: str) -> dict[str, Assignment]:
    """Return the assignment of every ceiling, by name."""
    calibrated = Assignment.as_calibrated(model)
    return {
        "as_calibrated": calibrated,
        "weights_only": _of_role(model, calibrated, "weight"),
        "activations_only": _of_role(model, calibrated, "activation"),
        "all_int16": all_int16(model, calibrated),
        "int16_where_allowed": int16_where_allowed(model, calibrated, march),
    }


def _of_role(model: QuantModel, assignment: Assignment, role: str) -> Assignment:
    return Assignment(
        {
            name: params
            for name, params in assignment.items()
            if model.point_by_name[name].role == role
        }
    )


def side_by_side(found: Iterable[Ceiling]) -> tuple[Ceiling, ...]:
    """Return ceilings with both fidelities of each next to each other."""
    by_name: dict[str, list[Ceiling]] = {}
    for item in found:
        by_name.setdefault(item.name, []).append(item)
    return tuple(item for items in by_name.values() for item in items)


def measure(
    engine: Engine,
    samples: Samples,
    wanted: Sequence[Assignment],
    advanced: Callable[[], None] = lambda: None,
) -> list[dict[str, MetricValues]]:
    """Measure assignments on the whole model.

    Args:
        engine: The engine.
        samples: Samples to measure on.
        wanted: What to measure.
        advanced: Called after every evaluation.

    Returns:
        For every assignment, output name -> metric -> mean over samples. Those of an interrupted
        run are never returned, the interrupt goes through.
    """
    scorer = _scorer(engine)
    scores = Scores.empty(len(wanted), len(samples), scorer)
    for evaluation in engine.whole(inputs_of(samples), wanted, scorer):
        scores.add(evaluation.assignment, evaluation.sample, evaluation.value)
        advanced()
    return [scores.output_means(index) for index in range(len(wanted))]


def measure_integers(
    engine: Engine, runner: IntegerRunner, samples: Samples
) -> dict[str, MetricValues]:
    """Measure an integer model against the float baseline of the calibrated one.

    Args:
        engine: Runs the float baseline.
        runner: Runs the integer model of the same network.
        samples: Samples to measure on.

    Returns:
        Output name -> metric -> mean over samples.

    Raises:
        UsageError: The models have other inputs or outputs.
    """
    scorer = _scorer(engine)
    scores = Scores.empty(1, len(samples), scorer)
    missing = set(scorer.outputs) - {spec.name for spec in runner.model.outputs}
    if missing:
        raise UsageError(
            f"it has no output {', '.join(sorted(missing))}",
            where=runner.model.path,
            hint="Give the *_quantized_model.onnx of the same conversion.",
        )
    with one_blas_thread():
        for number, inputs in enumerate(inputs_of(samples)):
            judge = scorer(engine.walker.baseline(inputs))
            scores.add(0, number, judge(runner.forward(_integer_inputs(runner.model, inputs))))
    return scores.output_means(0)


def _scorer(engine: Engine) -> Scorer:
    return Scorer(outputs=output_names(engine.model), metrics=METRICS)


def inputs_of(samples: Samples) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Yield the arrays of every sample, without its name."""
    return (arrays for _, arrays in samples)


def output_names(model: QuantModel) -> tuple[str, ...]:
    """Return the names of the graph outputs, in order."""
    return tuple(spec.name for spec in model.outputs)


def _integer_inputs(
    model: IntegerModel, inputs: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Return a sample in the type and layout that the integer model takes.

    An image input of the calibrated model holds values minus 128 as floats, that of the integer
    model the same as int8; on bernoulli2 it is NHWC.
    """
    found = {}
    for spec in model.inputs:
        if spec.name not in inputs:
            raise UsageError(
                f"it has another input, {spec.name}",
                where=model.path,
                hint="Give the *_quantized_model.onnx of the same conversion.",
            )
        array = inputs[spec.name]
        if array.ndim == 4 and _fits(array.transpose(0, 2, 3, 1).shape, spec.shape):
            array = array if _fits(array.shape, spec.shape) else array.transpose(0, 2, 3, 1)
        converted = array.astype(spec.dtype)
        if not np.array_equal(converted, array):
            raise UsageError(
                f"its input {spec.name} is {spec.dtype}, which cannot hold the samples' values",
                where=model.path,
                hint="Give the *_quantized_model.onnx of the same conversion.",
            )
        found[spec.name] = np.ascontiguousarray(converted)
    return found


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size in {None, actual} for size, actual in zip(wanted, shape, strict=True)
    )


def verdict(ceilings: Sequence[Ceiling], target: float, march: str) -> str:
    """Say in plain words where the loss comes from and whether int16 repairs it.

    The loss is 1 - cosine of the worst output, mean over samples.

    Args:
        ceilings: Those of `names_for`.
        target: Cosine that counts as good enough.
        march: For the words about int16.
    """
    cosine = {
        item.name: worst_of(item.outputs, "cosine_similarity")
        for item in ceilings
        if item.fidelity == "calibrated"
    }
    chip = _chip(ceilings, march)
    loss = {name: 1 - value for name, value in cosine.items()}
    if loss["as_calibrated"] != loss["as_calibrated"]:
        return (
            "The float model itself gives NaN or infinite outputs: look at the model and its "
            "inputs before quantization."
        )
    now = f"cosine {cosine['as_calibrated']:.4f} as calibrated"
    if cosine["as_calibrated"] >= target:
        return (
            f"The calibrated model is close to the float model ({now}): little is left to gain."
            f"{chip}"
        )
    return f"{_cause(loss)} ({now}); {_remedy(cosine, loss, target, march)}.{chip}"


def _chip(ceilings: Sequence[Ceiling], march: str) -> str:
    """Say what the integer model gives, where one was measured."""
    found: dict[str, float] = {}
    for item in ceilings:
        if item.fidelity == "integer":
            found.setdefault(item.name, worst_of(item.outputs, "cosine_similarity"))
    if "as_calibrated" not in found:
        return ""
    words = (
        f" In integers, as the chip computes, the model is at cosine {found['as_calibrated']:.4f}"
    )
    if "int16_where_allowed" in found:
        words += f", and at {found['int16_where_allowed']:.4f} with int16 where {march} allows it"
    return f"{words}."


def _cause(loss: Mapping[str, float]) -> str:
    if "weights_only" not in loss:
        return (
            "Activation quantization causes the loss that can be measured, the weights' own cannot"
        )
    weights, activations = loss["weights_only"], loss["activations_only"]
    both = weights + activations
    share = activations / both if both > 0 else 0.5
    if share >= 0.8:
        return f"Activation quantization causes {share:.0%} of the loss"
    if share <= 0.2:
        return f"Weight quantization causes {1 - share:.0%} of the loss"
    return f"Weights ({1 - share:.0%}) and activations ({share:.0%}) share the loss"


def _remedy(
    cosine: Mapping[str, float], loss: Mapping[str, float], target: float, march: str
) -> str:
    every = f"cosine {cosine['all_int16']:.4f}"
    of_weights = loss.get("weights_only", 0.0)
    if loss["all_int16"] >= _REPAIRED * loss["as_calibrated"]:
        if of_weights >= _REPAIRED * loss["as_calibrated"]:
            return (
                f"all-int16 activations do not repair it ({every}): the int8 weights cause it; "
                "move weight-sensitive nodes to the CPU, or repair the weights (bias correction, "
                "outlier channels)"
            )
        return (
            f"all-int16 does not repair it ({every}): int16 removes the rounding and keeps the "
            "thresholds, so look at the input pipeline, the calibration data (thresholds that "
            "clip) or an operator, not at single nodes"
        )
    if cosine["all_int16"] >= target or not of_weights:
        words = f"all-int16 repairs it ({every}): choosing nodes can help"
    else:
        words = (
            f"all-int16 repairs the activations ({every}), and the int8 weights alone already "
            f"cost {of_weights:.1e}: choosing nodes can help, and reaching {target:g} "
            "needs weight-sensitive nodes on the CPU"
        )
    allowed = cosine["int16_where_allowed"]
    if loss["int16_where_allowed"] > 2 * loss["all_int16"] and allowed < target:
        words += f"; {march} allows int16 only in part, which leaves cosine {allowed:.4f}"
    return words
