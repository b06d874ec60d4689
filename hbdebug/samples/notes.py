"""What the user is told of how the data were taken."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hbdebug.npy import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hbdebug.samples.batches import Fit
    from hbdebug.samples.preparation import Arithmetic, Preparation
    from hbdebug.samples.specs import TensorSpec


class Told:
    """Counts what is worth a note, file by file, and says each thing once.

    Attributes:
        split: For each file (or set of files) of several samples, how many it holds.
    """

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        asked: Preparation,
        arithmetic: Mapping[str, Arithmetic],
    ) -> None:
        self._specs, self._asked, self._arithmetic = specs, asked, arithmetic
        self._files: Counter[str] = Counter()
        self._unbatched: Counter[str] = Counter()
        self._raw: dict[str, str] = {}
        self._images: dict[str, bool] = {}
        self.split: list[int] = []
        self._opened = False

    def count(self, fits: Mapping[str, Fit], kinds: Mapping[str, str]) -> None:
        """Take in the files of one sample, or of the samples that one set of files holds."""
        for name, fit in fits.items():
            self._files[name] += 1
            kind = kinds[name]
            if kind == "image":
                self._images[name] = fit.batch
            elif fit.batch and not fit.rows:
                self._unbatched[name] += 1
            if kind == "raw":
                self._raw.setdefault(name, describe(fit.source.dtype.name, fit.source.shape))
        several = [fit for fit in fits.values() if fit.rows > 1]
        if several:
            self.split.append(several[0].rows)
            self._opened |= any(
                spec.shape[:1] == (None,) and fits[spec.name].batch for spec in self._specs
            )

    def notes(self) -> tuple[str, ...]:
        """Return what there is to say, a sentence each."""
        raw = [
            f"raw files of input '{name}' are read as {what}" for name, what in self._raw.items()
        ]
        unbatched = [
            f"input '{name}': {count} of {self._files[name]} files have no batch dimension; it is "
            "put in front"
            for name, count in self._unbatched.items()
        ]
        steps = [self._steps(spec) for spec in self._specs]
        return tuple(filter(None, [*raw, *steps, *unbatched, self._splitting()]))

    def _steps(self, spec: TensorSpec) -> str:
        arithmetic = self._arithmetic[spec.name]
        if spec.name in self._images:
            steps = self._asked.image(spec)
            words = [*steps.words(), *arithmetic.words()]
            words += ["HWC->CHW"] if steps.layout == "nchw" else []
            words += ["batch dimension"] if self._images[spec.name] else []
            return f"images of input '{spec.name}': {', '.join(words)}"
        return f"data of input '{spec.name}': {', '.join(arithmetic.words())}" if arithmetic else ""

    def _splitting(self) -> str:
        if not self.split:
            return ""
        sizes = sorted(set(self.split))
        shown = ", ".join(map(str, sizes[:5])) + (", ..." if len(sizes) > 5 else "")
        files = "1 file holds" if len(self.split) == 1 else f"{len(self.split)} files hold"
        way = (
            "; the model would take them whole, which --no-split-batch does" if self._opened else ""
        )
        return (
            f"{files} several samples each ({shown} along the first dimension); the model is run "
            f"on one sample at a time{way}"
        )
