"""NaN and infinity that the float model produces by itself: where they begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.engine import Engine
    from hbdebug.model import QuantModel
    from hbdebug.samples import Samples

_NAMED = 5  # samples that are named; the others are counted


@dataclass(frozen=True, kw_only=True, slots=True)
class _Count:
    """What is not finite in one tensor."""

    nan: int
    infinite: int
    size: int


def notes_on_samples(engine: Engine, samples: Samples, broken: Sequence[int]) -> tuple[str, ...]:
    """Say on which samples the float model gives NaN or infinity, and where it begins.

    Args:
        engine: Runs the float model; the first of these samples once more.
        samples: The samples.
        broken: Indices of those with an output that is not finite.

    Returns:
        One note; none where no sample is broken.
    """
    if not broken:
        return ()
    first = broken[0]
    counts: dict[str, _Count] = {}

    def keep(name: str, array: NDArray[Any]) -> None:
        count = _count(array)
        if count is not None:
            counts[name] = count

    outputs = engine.walker.forward(samples.sample(first), keep=keep)
    spoiled = [name for name in outputs if name in counts]
    names = [samples.names[index] for index in broken]
    shown = ", ".join(f"'{name}'" for name in names[:_NAMED])
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    where = "; ".join(_beginnings(engine.model, spoiled, counts))
    text = (
        f"the float model itself gives NaN or infinity on {len(broken)} of {len(samples)} samples "
        f"({shown}{more}), at output {', '.join(spoiled)}; these are left out of its averages. "
        f"On sample '{names[0]}' {where}"
    )
    return (text,)


def _count(array: NDArray[Any]) -> _Count | None:
    """Count what is not finite; None where all is."""
    if array.dtype.kind != "f" or bool(np.isfinite(array).all()):
        return None
    nan = int(np.isnan(array).sum())
    return _Count(nan=nan, infinite=int(np.isinf(array).sum()), size=array.size)


def _beginnings(
    model: QuantModel, spoiled: Sequence[str], counts: Mapping[str, _Count]
) -> list[str]:
    """Say where infinity and NaN begin, among what leads to the outputs without interruption."""
    leading = set(spoiled)
    for step in reversed(model.steps):
        if not leading.isdisjoint(step.outputs):
            leading.update(name for name in step.inputs if name in counts)
    found = []
    for what, of in (("infinity", "infinite"), ("NaN", "nan")):
        for step in model.steps:
            made = [name for name in step.outputs if name in leading]
            number = max((getattr(counts[name], of) for name in made), default=0)
            if number:
                size = max(counts[name].size for name in made)
                found.append(
                    f"{what} begins in {step.name} ({step.op_type}): {number} of {size} values"
                )
                break
    return found
