"""What a run puts on record: model, data, settings, warnings, times, what is finished so far."""

from __future__ import annotations

import hashlib
import platform
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hbdebug
from hbdebug.analysis import ceilings
from hbdebug.analysis.diagnostics import diagnose
from hbdebug.analysis.journal import Journal
from hbdebug.errors import UsageError
from hbdebug.results import Ceiling, DataInfo, ModelInfo, SensitivityResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from hbdebug.analysis.sensitivity import Ranking, Request
    from hbdebug.engine import Engine
    from hbdebug.model import QuantModel
    from hbdebug.observer import Observer
    from hbdebug.samples import Samples, TensorSpec


JOURNAL = "partial.jsonl"
"""Name of the file, in the output folder, that holds what an unfinished run has measured."""

_FEW_SAMPLES = 8


def model_info(model: QuantModel, march: str = "") -> ModelInfo:
    """Return the record of a model."""
    kinds = Counter(
        f"{point.role} {'float32' if point.params is None else point.params.dtype}"
        if point.enabled
        else f"{point.role} not quantized"
        for point in model.points
    )
    return ModelInfo(
        path=model.path,
        sha256=model.sha256,
        kind=model.kind,
        producer=model.producer,
        march=march,
        nodes=len(model.nodes),
        points=dict(sorted(kinds.items())),
        inputs={spec.name: _spec_text(spec) for spec in model.inputs},
        outputs={spec.name: _spec_text(spec) for spec in model.outputs},
    )


def record(
    model: QuantModel,
    samples: Samples,
    request: Request,
    limits: tuple[Ceiling, ...],
    ranking: Ranking,
) -> SensitivityResult:
    """Return what is known once the nodes are ranked; the caller adds what comes after that."""
    return SensitivityResult(
        hbdebug_version=hbdebug.__version__,
        command="",
        model=model_info(model, request.march),
        data=DataInfo(
            path=str(samples.path),
            samples=tuple(samples.names),
            found=samples.found,
            complete=ranking.complete_samples,
        ),
        scheme="as in the file",
        fidelity="calibrated",
        metrics=request.measured,
        seed=request.seed,
        kind=request.kind,
        output_node="",
        coverage=ranking.coverage,
        verdict=ceilings.verdict(limits, request.target, request.march),
        ceilings=limits,
        nodes=ranking.nodes,
        points=ranking.points,
        not_analysed=ranking.not_analysed,
        warnings=_warnings(model, samples),
        diagnostics=diagnose(model),
    )


def _warnings(model: QuantModel, samples: Samples) -> tuple[str, ...]:
    found = list(model.warnings)
    if len(samples) < _FEW_SAMPLES:
        count = len(samples)
        found.append(
            f"{count} sample{'' if count == 1 else 's'} only: a ranking from so few can change "
            f"with others; {_FEW_SAMPLES} or more are better"
        )
    found.extend(f"sample {item.name} left out: {item.reason}" for item in samples.skipped)
    return tuple(found)


def settings_of(engine: Engine, request: Request, output_node: str) -> dict[str, Any]:
    """Return what the numbers depend on besides model and data."""
    import numpy  # noqa: PLC0415, ICN001 - for its version only
    import onnx  # noqa: PLC0415
    import onnxruntime

    return {
        "kind": request.kind,
        "nodes": list(request.nodes),
        "ops": list(request.ops),
        "split": request.split,
        "output_node": output_node,
        "target": request.target,
        "exact": engine.exact,
        "fidelity": engine.fidelity,
        "march": engine.march,
        "optimization": "walk: basic, jump: basic" if engine.exact else "walk: basic, jump: all",
        "jobs": engine.jobs,
        "memory": engine.memory,
        "provider": engine.provider,
        "versions": {
            "onnxruntime": onnxruntime.__version__,
            "onnx": onnx.__version__,
            "numpy": numpy.__version__,
            "python": platform.python_version(),
        },
    }


def journal_opener(
    folder: str | Path | None,
    model: QuantModel,
    samples: Samples,
    settings: dict[str, Any],
    *,
    resume: bool,
    observer: Observer,
) -> Callable[[int], Journal] | None:
    """Return what opens the journal in a folder, given the number of evaluations; None without one.

    Only a journal of the same model, data and settings is resumed.
    """
    if folder is None:
        return None
    # How many run side by side, and in how much memory, changes no number.
    key = {name: value for name, value in settings.items() if name not in {"jobs", "memory"}}
    key |= {
        "model": model.sha256,
        "originals": _digest_of_originals(model),
        "data": samples.digest,
        "version": hbdebug.__version__,
    }

    def open_journal(evaluations: int) -> Journal:
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"cannot be made: {error.strerror}", where=str(folder), hint="Choose another -o."
            ) from error
        journal = Journal(path / JOURNAL, key | {"evaluations": evaluations}, resume=resume)
        if resume:
            observer.note(journal.resumption())
        return journal

    return open_journal


def _digest_of_originals(model: QuantModel) -> str:
    """Return the SHA-256 of the float weights that the model's own file does not hold, in hex."""
    digest = hashlib.sha256()
    for point in model.points:
        if point.stored is not None:
            digest.update(f"{point.name}\0".encode())
            digest.update(model.constants[point.input].tobytes())
    return digest.hexdigest()


class Stopwatch:
    """Wall time by phase."""

    def __init__(self) -> None:
        self._started = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """End a phase."""
        now = time.perf_counter()
        self._laps[name] = now - self._last
        self._last = now

    def laps(self) -> dict[str, float]:
        """Return seconds by phase, and their total."""
        return {**self._laps, "total": time.perf_counter() - self._started}


def _spec_text(spec: TensorSpec) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in spec.shape)
    return f"{spec.dtype}[{sizes}]"
