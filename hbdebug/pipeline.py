"""The jobs end to end, as the command line and Python users call them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hbdebug.analysis import ceilings
from hbdebug.analysis.coverage import list_model, measurable
from hbdebug.analysis.input_case import input_type
from hbdebug.analysis.inputs import check_inputs
from hbdebug.analysis.nonfinite import notes_on_samples
from hbdebug.analysis.outputs import real_outputs
from hbdebug.analysis.sensitivity import Request, check_request, rank
from hbdebug.analysis.whole import (
    SUGGESTED,
    cut_off,
    measure_ceilings,
    measure_integer_ceiling,
    measure_suggested,
)
from hbdebug.engine import DEFAULT_MEMORY, Engine
from hbdebug.errors import GateMissed, ModelError, UnsupportedError, UsageError
from hbdebug.float_run import compare_baseline, run_float
from hbdebug.loading import load
from hbdebug.loading.qdq import require_calibrated
from hbdebug.metrics import badness, resolve_metric
from hbdebug.model import Assignment, QuantModel
from hbdebug.observer import Observer
from hbdebug.recommend import MOST_LIFTS
from hbdebug.recommend import suggest as search_suggestion
from hbdebug.recording import Stopwatch, journal_opener, model_info, record, settings_of
from hbdebug.report.record import refuse_overwriting, write_bytes_atomic
from hbdebug.results import Ceiling, SensitivityResult
from hbdebug.samples import Preparation, Samples, TensorSpec, open_samples
from hbdebug.threads import one_blas_thread
from hbdebug.toolchain import check_march

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import onnx

    from hbdebug.analysis.forms import Forms
    from hbdebug.analysis.sensitivity import Kind
    from hbdebug.engine import Fidelity
    from hbdebug.integer_run import IntegerRunner
    from hbdebug.isolation import Isolation
    from hbdebug.loading.repair import Repaired
    from hbdebug.results import InputWarning, ModelListing, Suggestion


def sensitivity(
    model: str | Path | onnx.ModelProto | QuantModel,
    data: str | Path | Samples,
    *,
    float_model: str | Path | onnx.ModelProto | None = None,
    metrics: Sequence[str] = ("cosine_similarity",),
    kind: Kind = "node",
    output_node: str = "",
    quantized: str | Path | None = None,
    integers: bool = False,
    nodes: Sequence[str] = (),
    ops: Sequence[str] = (),
    samples: int | None = None,
    preparation: Preparation | None = None,
    split: bool = True,
    suggest: bool = True,
    target: float = 0.999,
    march: str = "bayes-e",
    fidelity: Fidelity = "calibrated",
    seed: int = 0,
    jobs: int | None = None,
    memory: int = DEFAULT_MEMORY,
    isolate: bool | Isolation = False,
    provider: str = "cpu",
    exact: bool = False,
    skip_unsupported: bool = False,
    skip_bad: bool = False,
    journal_folder: str | Path | None = None,
    resume: bool = False,
    observer: Observer | None = None,
    command: str = "hbdebug.sensitivity(...)",
) -> SensitivityResult:
    """Measure what every node costs, and which nodes to move.

    Args:
        model: A calibrated or QDQ model: a path, a ModelProto (never changed) or what `load`
            returned.
        data: Calibration data: a path, or what `open_samples` returned.
        float_model: The float model that a QDQ model was made of: weights that the file holds in
            integers only have their original values from there, and the float baseline is
            compared with it.
        metrics: Metric names; the first ranks.
        kind: What to rank.
        output_node: Measure at the outputs of this node instead of the graph outputs.
        quantized: The ``*_quantized_model.onnx`` of the same conversion; it is run in integers
            and measured beside the ceilings. None measures none.
        integers: Derive the integer form of the model here, and of the model as suggested, and
            measure both beside the ceilings (bayes, bayes-e, bernoulli2). With fidelity
            ``integer`` it is done anyway.
        nodes: Names or shell wildcards of what to rank; everything when empty.
        ops: Operator types of what to rank; everything when empty.
        samples: Use the first so many samples in natural order; None uses all.
        preparation: What to do to the data on the way to the model; only with a path.
        split: Measure weights and activations of a node apart, too.
        suggest: Search nodes to lift, and measure them; only with kind ``node``.
        target: Cosine similarity that the worst output is to reach.
        march: March that suggestions, and integers, are for.
        fidelity: How what is quantized computes in the ranking and the suggestion:
            ``calibrated`` as in the calibrated model, ``integer`` as on the chip.
        seed: Seed of the bootstrap intervals.
        jobs: Evaluations side by side; None for one per core.
        memory: Bytes that intermediate tensors and the constants in sessions may take.
        isolate: Run what is measured in worker processes, so that a crash inside a runtime costs
            one node; the model must be a file.
        provider: ONNX Runtime provider.
        exact: Run nothing at an optimization level that changes summation order; slower.
        skip_unsupported: Leave out what hbdebug does not know instead of refusing the model.
        skip_bad: Leave out samples that can not be used instead of refusing the data.
        journal_folder: Where to keep what an unfinished run has measured; None keeps nothing.
        resume: Go on from what is kept there.
        observer: Is told of progress.
        command: What to record as the command.

    Returns:
        What was measured. An interrupt (Ctrl-C) during the ranking or the suggestion gives what
        was finished, with ``complete`` False.

    Raises:
        HbdebugError: See `hbdebug.errors`.
    """
    watch, seconds = observer or Observer(), Stopwatch()
    request = Request(
        metrics=_resolved(metrics, watch),
        kind=kind,
        nodes=tuple(nodes),
        ops=tuple(ops),
        split=split,
        march=check_march(march),
        seed=seed,
        target=target,
    )
    whole = _loaded(model, skip_unsupported=skip_unsupported, float_model=float_model)
    stream = (
        data
        if isinstance(data, Samples)
        else open_samples(
            data,
            whole.inputs,
            limit=samples,
            skip_bad=skip_bad,
            preparation=replace(preparation or Preparation(), input_types=input_types(whole)),
        )
    )
    in_integers = _in_integers_too(whole, integers=integers, fidelity=fidelity)
    counted = in_integers and kind == "node"
    part, chosen = _measured_part(whole, output_node, counted=counted)
    measured, replaced = real_outputs(part, partial(_dtypes, part, stream, provider))
    notes = (*chosen, *replaced)
    check_request(measured, request)
    vendors = _integer_runner(quantized, output_node)
    settled: dict[str, Any] = {
        "jobs": jobs,
        "exact": exact,
        "provider": provider,
        "memory": memory,
        "fidelity": fidelity,
        "march": request.march,
    }
    recipe = partial(
        _measured,
        skip_unsupported=skip_unsupported,
        output_node=output_node,
        counted=counted,
        outputs=None if measured is part else measured.outputs,
    )
    engine = (
        _isolated(measured, _loading(recipe, model, float_model), stream, settled, isolate=isolate)
        if isolate
        else Engine(measured, **settled)
    )
    compared = _compared_with_float(engine, None if isolate else float_model, stream)
    doubts = _doubts(whole, stream, watch)
    seconds.lap("load")
    limits = measure_ceilings(engine.at("calibrated"), stream, request, watch)
    if vendors is not None:
        limits += (measure_integer_ceiling(engine, vendors, stream, watch),)
    if fidelity == "integer":
        limits += measure_ceilings(engine, stream, request, watch, names=ceilings.IN_INTEGERS)
        notes += _fallback_notes(engine)
    elif integers:
        found, said = _in_integers(engine.at("integer"), stream, request, watch)
        limits += found
        notes += said
    seconds.lap("whole model")
    forms = None
    if in_integers:
        forms, said = _compared_forms(engine, stream, request, watch)
        notes += said
        seconds.lap("integer forms")
    settings = settings_of(engine, request, output_node)
    settings["preparation"] = stream.preparation.asked()
    journal = journal_opener(journal_folder, whole, stream, settings, resume=resume, observer=watch)
    ranking = rank(
        engine,
        stream,
        request,
        watch,
        journal=journal,
        whole=None if measured is whole else whole,
        lifts=MOST_LIFTS if suggest and kind == "node" else 0,
    )
    notes += ranking.notes
    seconds.lap("ranking")
    notes += notes_on_samples(engine, stream, ranking.broken)
    result = _with_forms(record(whole, stream, request, limits, ranking), forms)
    suggestion = None
    if suggest and kind == "node" and not ranking.interrupted:
        suggestion = search_suggestion(
            engine, stream, ranking.nodes, march=request.march, target=target, observer=watch
        )
        if suggestion.nodes and any(item.fidelity == "integer" for item in limits):
            limits += _as_suggested(engine, stream, suggestion, request.march)
        seconds.lap("suggestion")
    engine.close()
    return replace(
        result,
        ceilings=ceilings.side_by_side(limits),
        fidelity=engine.fidelity,
        command=command,
        output_node=output_node,
        suggestion=suggestion,
        complete=not ranking.interrupted
        and (suggestion is None or suggestion.stopped != "interrupted"),
        warnings=(*compared.warnings, *notes, *result.warnings),
        notes=(*compared.notes, *whole.notes, *stream.notes),
        input_warnings=doubts,
        settings=settings,
        seconds=seconds.laps(),
    )


def _dtypes(model: QuantModel, samples: Samples, provider: str) -> dict[str, str]:
    """Return tensor -> dtype name of a float run on the first sample."""
    profile = Engine(model, jobs=1, provider=provider).profile(next(ceilings.inputs_of(samples)))
    return {name: dtype for name, (dtype, _) in profile.specs.items()}


def input_types(model: QuantModel) -> dict[str, str]:
    """Return the ``input_type`` of each image input: of the HzPreprocess node that reads it."""
    found = {spec.name: input_type(model, spec.name) for spec in model.inputs}
    return {name: kind for name, kind in found.items() if kind}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Said:
    """What is said to the user: what to know before trusting the numbers, and the rest."""

    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _compared_with_float(
    engine: Engine, float_model: str | Path | onnx.ModelProto | None, samples: Samples
) -> _Said:
    """Compare the float baseline with the float model, if there is one."""
    if float_model is None or not len(samples):
        return _Said()
    first = next(ceilings.inputs_of(samples))
    try:
        outputs = run_float(float_model, first)
    except ModelError as error:
        words = f"the float baseline was not compared with the float model: {error.message}"
        return _Said(warnings=(words,))
    agrees, words = compare_baseline(engine.walker.baseline(first), outputs)
    return _Said(notes=(words,)) if agrees else _Said(warnings=(words,))


def _doubts(model: QuantModel, samples: Samples, observer: Observer) -> tuple[InputWarning, ...]:
    """Look at the samples before the long run, and say at once what of them looks wrong."""
    found = check_inputs(model, samples)
    if found:
        kinds = ", ".join(dict.fromkeys(item.name for item in found))
        observer.note(f"the samples may not fit the model: {kinds}; the report says more")
    return found


def _loading(
    recipe: Callable[..., QuantModel],
    model: str | Path | onnx.ModelProto | QuantModel,
    float_model: str | Path | onnx.ModelProto | None,
) -> Callable[[], QuantModel]:
    """Return what loads the models in a worker process.

    Raises:
        UsageError: They are no files.
    """
    if isinstance(model, (str, Path)) and isinstance(float_model, (str, Path, type(None))):
        return partial(recipe, str(model), float_model=float_model)
    raise UsageError(
        "worker processes load the model themselves, so that it must be a file",
        hint="Give its path, or leave isolate out.",
    )


def _measured_part(
    whole: QuantModel, output_node: str, *, counted: bool
) -> tuple[QuantModel, tuple[str, ...]]:
    """Return the part of a model that is measured, and what the user should know about it."""
    if output_node:
        return cut_off(whole, output_node, counted=counted), ()
    return measurable(whole)


def _measured(
    path: str,
    *,
    float_model: str | Path | None,
    skip_unsupported: bool,
    output_node: str,
    counted: bool,
    outputs: tuple[TensorSpec, ...] | None,
) -> QuantModel:
    """Load what is measured, in a worker process."""
    whole = load(path, skip_unsupported=skip_unsupported, float_model=float_model)
    part, _ = _measured_part(whole, output_node, counted=counted)
    return part if outputs is None else part.upto(outputs)


def _isolated(
    model: QuantModel,
    recipe: Callable[[], QuantModel],
    samples: Samples,
    settings: dict[str, Any],
    *,
    isolate: bool | Isolation,
) -> Engine:
    from hbdebug.isolation import IsolatedEngine, Isolation  # noqa: PLC0415 - seldom needed

    isolation = isolate if isinstance(isolate, Isolation) else Isolation()
    return IsolatedEngine(model, recipe=recipe, samples=samples, isolation=isolation, **settings)


def _in_integers_too(model: QuantModel, *, integers: bool, fidelity: Fidelity) -> bool:
    """Whether something is to be measured in the chip's integers.

    Raises:
        UsageError: There is no such fidelity.
        UnsupportedError: The model says nothing about integers.
    """
    if fidelity not in {"calibrated", "integer"}:
        raise UsageError(f"no such fidelity: {fidelity!r}", hint="There are: calibrated, integer.")
    wanted = integers or fidelity == "integer"
    if wanted:
        require_calibrated(model)
    return wanted


def _in_integers(
    engine: Engine, samples: Samples, request: Request, observer: Observer
) -> tuple[tuple[Ceiling, ...], tuple[str, ...]]:
    """Measure the model as calibrated in integers, and say where that cannot be done."""
    try:
        found = measure_ceilings(engine, samples, request, observer, names=("as_calibrated",))
    except UnsupportedError as error:
        return (), (f"the model was not measured in integers: {error.message}",)
    return found, _fallback_notes(engine)


def _fallback_notes(engine: Engine) -> tuple[str, ...]:
    """Say which nodes of the model as calibrated are not measured in integers, and why."""
    steps: dict[str, list[str]] = {}
    for step in engine.fallbacks(Assignment.as_calibrated(engine.model)):
        steps.setdefault(step.reason, []).append(f"{step.name} ({step.op_type})")
    return tuple(
        f"measured as calibrated, not in integers: {', '.join(names)}: {reason}"
        for reason, names in steps.items()
    )


def _as_suggested(
    engine: Engine, samples: Samples, suggestion: Suggestion, march: str
) -> tuple[Ceiling, ...]:
    """Return the model as suggested at both fidelities; the curve has one of them already."""
    own = Ceiling(
        name=SUGGESTED,
        fidelity=engine.fidelity,
        outputs=suggestion.curve[suggestion.step].outputs,
    )
    other = engine.at("integer" if engine.fidelity == "calibrated" else "calibrated")
    return own, measure_suggested(other, samples, suggestion, march)


def _compared_forms(
    engine: Engine, samples: Samples, request: Request, observer: Observer
) -> tuple[Forms | None, tuple[str, ...]]:
    """Compare integer and calibrated forms, and say where that cannot be done."""
    from hbdebug.analysis.forms import compare_forms  # noqa: PLC0415 - only with integers

    try:
        with one_blas_thread():
            return compare_forms(engine, samples, request.march, observer=observer), ()
    except UnsupportedError as error:
        words = ("integer forms of nodes were not compared", error.where, error.message)
        return None, (": ".join(filter(None, words)),)


def _with_forms(result: SensitivityResult, forms: Forms | None) -> SensitivityResult:
    if forms is None:
        return result
    return replace(
        result,
        diagnostics=(*result.diagnostics, *forms.diagnostics),
        form_differences=forms.differences,
        not_compared=forms.not_compared,
    )


def _integer_runner(path: str | Path | None, output_node: str) -> IntegerRunner | None:
    if path is None:
        return None
    if output_node:
        raise UsageError(
            "an integer model is measured at its outputs",
            hint="Give --quantized or --output-node, not both.",
        )
    from hbdebug.integer_run import IntegerRunner  # noqa: PLC0415 - only where it is asked for
    from hbdebug.loading.integer import load_integer  # noqa: PLC0415

    return IntegerRunner(load_integer(path))


def info(
    model: str | Path | onnx.ModelProto | QuantModel,
    *,
    skip_unsupported: bool = False,
    float_model: str | Path | onnx.ModelProto | None = None,
) -> ModelListing:
    """List a model's points and nodes, and what would not be analysed and why.

    Raises:
        HbdebugError: See `hbdebug.errors`.
    """
    loaded = _loaded(model, skip_unsupported=skip_unsupported, float_model=float_model)
    return list_model(loaded, model_info(loaded))


def repair(model: str | Path | onnx.ModelProto, output: str | Path) -> Repaired:
    """Write a float model in which every HardSigmoid is one that the chip computes.

    Args:
        model: The float model, before it is converted. It is not changed.
        output: File to write.

    Returns:
        What was rewritten.

    Raises:
        HbdebugError: See `hbdebug.errors`.
    """
    if isinstance(model, (str, Path)):
        refuse_overwriting(model, output)
    from hbdebug.loading.repair import repair_hard_sigmoids  # noqa: PLC0415 - nothing else uses it

    repaired = repair_hard_sigmoids(model)
    write_bytes_atomic(output, repaired.content)
    return repaired


def check_gate(result: SensitivityResult, bar: float) -> None:
    """Compare the model as calibrated with a bar on the ranking metric at the worst output.

    Raises:
        GateMissed: The model is worse than the bar.
    """
    metric = result.metrics[0]
    outputs = next(
        item.outputs
        for item in result.ceilings
        if item.name == "as_calibrated" and item.fidelity == result.fidelity
    )
    values = [means[metric] for means in outputs.values() if metric in means]
    value = max(values, key=lambda item: badness(metric, item), default=math.nan)
    if math.isnan(value) or badness(metric, value) > badness(metric, bar):
        raise GateMissed(f"{metric} {value:.6g} as calibrated is worse than {bar:g} (--fail-below)")


def _resolved(names: Sequence[str], observer: Observer) -> tuple[str, ...]:
    """Return our names of the metrics, and say what the vendor means by a name of its own."""
    found = []
    for name in names:
        metric = resolve_metric(name)
        found.append(metric.name)
        if name.replace("-", "_") != metric.name:
            note = f"; the vendor's: {metric.vendor_note}" if metric.vendor_note else ""
            observer.note(f"{name} is measured as {metric.name}{note}")
    return tuple(dict.fromkeys(found))


def _loaded(
    model: str | Path | onnx.ModelProto | QuantModel,
    *,
    skip_unsupported: bool,
    float_model: str | Path | onnx.ModelProto | None = None,
) -> QuantModel:
    if isinstance(model, QuantModel):
        if float_model is not None:
            raise UsageError("a loaded model has its weights", hint="Give float_model to load().")
        return model
    return load(model, skip_unsupported=skip_unsupported, float_model=float_model)
