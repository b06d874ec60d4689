"""From a path to checked samples: find the files, judge them, read each once."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import DataError, UsageError
from hbdebug.npy import convert, require_finite, wrong_shape
from hbdebug.npz import npz_keys, open_npz
from hbdebug.samples.batches import Fit, agree, fit
from hbdebug.samples.layouts import find, match
from hbdebug.samples.notes import Told
from hbdebug.samples.preparation import Arithmetic, Preparation
from hbdebug.samples.sources import kind_of, open_source
from hbdebug.samples.specs import (
    Skipped,
    TensorSpec,
    listed,
    meant,
    require_readable_type,
    require_readable_types,
    wanted_inputs,
)
from hbdebug.samples.stream import Located, Samples, read_arrays, stamp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.samples.layouts import Parts
    from hbdebug.samples.sources import Source

    Array: TypeAlias = NDArray[Any]

# After so many unusable samples the rest need not be read to know that the data are wrong.
_MOST_REPORTED = 10


def open_samples(
    path: str | os.PathLike[str],
    inputs: Sequence[TensorSpec],
    *,
    limit: int | None = None,
    skip_bad: bool = False,
    preparation: Preparation | None = None,
) -> Samples:
    """Find the samples, and check all that will be used before anything is run on them.

    A file of another dtype than the model's is converted if that changes no value, and refused
    if it does: uint8 to float32 always works, float64 to float32 only for values that float32
    can hold, integers to float32 up to 2^24.

    Args:
        path: A folder or file in one of the layouts of `hbdebug.samples`.
        inputs: The model's inputs.
        limit: Use only the first ``limit`` usable samples. If there are fewer, all are used,
            which ``len()`` and `Samples.found` show. What lies beyond is not read; files there
            count as one sample each, unless files before held several.
        skip_bad: Leave unusable samples and foreign files out, and list them in
            `Samples.skipped`, instead of raising.
        preparation: What to do to the data; None changes nothing.

    Raises:
        UsageError: ``limit`` is less than 1, or ``preparation`` does not fit model or data.
        DataError: The path is missing or empty; an input has no data; a sample lacks an input,
            is unreadable, of another shape or dtype, or not finite; a file is no data at all.
            With ``skip_bad``: no usable sample is left.
        ModelError: The model has no input.
        UnsupportedError: An input has a dtype that no ``.npy`` file can hold.
    """
    if limit is not None and limit < 1:
        raise UsageError(
            f"{limit} samples asked for", hint="Ask for at least 1; without a number, all are used."
        )
    specs = tuple(inputs)
    require_readable_types(specs)
    asked = preparation or Preparation()
    asked.check(specs)
    files, strays = find(Path(path), specs)
    if strays and not skip_bad:
        first, others = strays[0], [stray.name for stray in strays[1:]]
        raise DataError(
            f"is no sample: {first.reason}{f'; nor is {listed(others)}' if others else ''}",
            where=str(Path(path) / first.name),
            hint="Keep nothing else beside the samples: move it away, or give --skip-bad.",
        )
    kinds = {
        name: kind_of(file) for parts in reversed(files.values()) for name, file in parts.items()
    }
    _require_use(asked, set(kinds.values()))
    checker = _Checker(specs, asked, _arithmetics(specs, asked, kinds))
    return checker.check(os.fspath(path), files, strays, limit=limit, skip_bad=skip_bad)


def read_input(file: Path, spec: TensorSpec) -> Array:
    """Read one array for one input, outside any layout.

    Args:
        file: A ``.npy`` or raw file, with the batch dimension or without.
        spec: The input.

    Returns:
        New C-contiguous array of the input's dtype and shape.

    Raises:
        DataError: The file is unreadable, not finite, or not what the input wants.
        UnsupportedError: No file can hold what the input takes.
    """
    require_readable_type(spec)
    kind = kind_of(file)
    if kind in {".npz", "image", ""}:
        raise DataError(
            "neither a .npy nor a raw file",
            where=str(file),
            hint=f"Save one array with numpy.save. {wanted_inputs([spec])}",
        )
    source = open_source(file, spec, Preparation())
    held = fit(source, spec)
    if held.rows > 1:
        raise wrong_shape(source.shape, source.dtype, spec.want, source.where)
    array = convert(held.read(0), spec.want, source.where)
    require_finite(array, spec.want.what, source.where)
    return np.asarray(array, order="C")


def _require_use(asked: Preparation, kinds: set[str]) -> None:
    """Refuse options for a kind of file that is not there."""
    for kind, what, options in (
        ("image", "images", {"--resize": asked.resize, "--color": asked.color}),
        ("raw", "raw files", {"--dtype": asked.dtypes, "--shape": asked.shapes}),
    ):
        given = [name for name, value in options.items() if value]
        if given and kind not in kinds:
            raise UsageError(
                f"{given[0]} is for {what}, and the data hold none", hint="Leave it out."
            )


def _arithmetics(
    specs: Sequence[TensorSpec], asked: Preparation, kinds: Mapping[str, str]
) -> dict[str, Arithmetic]:
    """Return what is computed with each input: what is asked for is meant for images, if any."""
    meant_for = [spec.name for spec in specs if kinds.get(spec.name) == "image"]
    if not meant_for:
        meant_for = [spec.name for spec in specs if len(specs) == 1 or len(spec.shape) == 4]
    if not meant_for and (asked.offset or asked.mean or asked.scale):
        raise UsageError(
            "--offset, --mean and --scale are for inputs of four dimensions, and there is none",
            hint=wanted_inputs(specs),
        )
    return {
        spec.name: asked.arithmetic(
            spec, images=kinds.get(spec.name) == "image", applies=spec.name in meant_for
        )
        for spec in specs
    }


class _Checker:
    """Reads the samples once, one at a time: refuses or drops the bad ones, hashes the others."""

    def __init__(
        self,
        specs: tuple[TensorSpec, ...],
        asked: Preparation,
        arithmetic: Mapping[str, Arithmetic],
    ) -> None:
        self._specs, self._asked, self._arithmetic = specs, asked, arithmetic
        self._by_name = {spec.name: spec for spec in specs}
        self._foreign: Counter[str] = Counter()
        self._stamps: dict[Path, tuple[int, int]] = {}
        self._told = Told(specs, asked, arithmetic)

    def check(
        self,
        path: str,
        files: Mapping[str, Parts],
        strays: Sequence[Skipped],
        *,
        limit: int | None,
        skip_bad: bool,
    ) -> Samples:
        """Check all that will be used, and return it."""
        names: list[str] = []
        located: list[Located] = []
        bad: list[tuple[str, DataError]] = []
        digest = hashlib.sha256()
        found = 0
        for stem, parts in files.items():
            done = len(names) == limit or (len(bad) >= _MOST_REPORTED and not skip_bad)
            if done and not self._told.split:
                found += 1  # What lies beyond the limit is not even opened.
                continue
            try:
                held = self._open(parts, count=not done)
            except DataError as error:
                found += 1
                if not done:
                    bad.append((stem, error))
                continue
            found += len(held)
            for item in held if not done else ():
                if len(names) == limit or (len(bad) >= _MOST_REPORTED and not skip_bad):
                    break
                name = f"{stem}[{item.row}]" if len(held) > 1 else stem
                try:
                    arrays = self._read_checked(item)
                except DataError as error:
                    bad.append((name, error))
                    continue
                names.append(name)
                located.append(item)
                _add_to_digest(digest, name, arrays)
        if bad and (not skip_bad or not names):
            raise _unusable(bad, found=found, usable=len(names))
        if self._foreign and not skip_bad:
            raise _foreign_arrays(path, self._foreign, self._specs)
        skipped = [Skipped(name=name, reason=error.message) for name, error in bad]
        skipped += [
            Skipped(name=key, reason=f"an array, in {count} of the files, that is no input")
            for key, count in self._foreign.items()
        ]
        return Samples(
            path=path,
            inputs=self._specs,
            names=tuple(names),
            found=found,
            skipped=(*strays, *skipped),
            digest=digest.hexdigest(),
            preparation=self._asked,
            notes=self._told.notes(),
            _located=tuple(located),
            _arithmetic=self._arithmetic,
            _stamps=self._stamps,
        )

    def _open(self, parts: Parts, *, count: bool) -> list[Located]:
        """Return the samples that a sample's files hold: one, or one for each row."""
        _require_partners(parts, self._specs)
        files = frozenset(parts.values())
        self._stamps.update((file, stamp(file)) for file in files)
        file = next(iter(parts.values()))
        sources: dict[str, Source] = (
            self._members(file, count=count)
            if kind_of(file) == ".npz"
            else {
                spec.name: open_source(parts[spec.name], spec, self._asked) for spec in self._specs
            }
        )
        fits = agree(sources, self._by_name, split_open=self._asked.split_batch)
        if count:
            self._told.count(fits, {name: kind_of(part) for name, part in parts.items()})
        rows = next(iter(fits.values())).rows
        return [Located(fits=fits, files=files, row=row) for row in range(rows or 1)]

    def _members(self, file: Path, *, count: bool) -> dict[str, Source]:
        """Open the arrays of an archive, and count its keys that are no input."""
        keys = npz_keys(file)
        names = list(self._by_name)
        matched = match(names, keys, where=file)
        missing = [name for name in names if name not in matched]
        if missing:
            raise DataError(
                f"no array for input {listed(missing)}",
                where=str(file),
                hint=f"{wanted_inputs(self._specs)} It holds {listed(keys)}.{meant(missing, keys)}",
            )
        if count:
            self._foreign.update(key for key in keys if key not in matched.values())
        return {name: open_npz(file, matched[name]) for name in names}

    def _read_checked(self, item: Located) -> dict[str, Array]:
        arrays = read_arrays(item.fits, item.row, self._specs, self._arithmetic)
        for name, array in arrays.items():
            require_finite(array, f"input '{name}'", _file_of(item.fits[name]))
        return arrays


def _file_of(held: Fit) -> str:
    return str(getattr(held.source, "file", held.source.where))


def _require_partners(parts: Parts, specs: Sequence[TensorSpec]) -> None:
    missing = [spec.name for spec in specs if spec.name not in parts]
    if missing:
        raise DataError(
            f"no file for input {listed(missing)}",
            where=str(next(iter(parts.values()))),
            hint="The files of one sample must have the same name in every input's folder.",
        )


def _add_to_digest(digest: hashlib._Hash, name: str, arrays: Mapping[str, Array]) -> None:
    described = [(key, array.dtype.str, array.shape) for key, array in arrays.items()]
    digest.update(repr((name, described)).encode("utf-8", "backslashreplace"))
    for array in arrays.values():
        digest.update(array.reshape(-1).view(np.uint8).data)


def _unusable(bad: Sequence[tuple[str, DataError]], *, found: int, usable: int) -> DataError:
    """Return the first error, with the other unusable samples named and what to do about all."""
    first, error = bad[0]
    others = [name for name, _ in bad[1:]]
    if others and not usable:
        more = "Of all samples none" if len(bad) == found else f"Of the first {len(bad)} none"
        more += " is usable."
    else:
        more = f"Not usable either: {listed(others)}." if others else ""
    skip = "--skip-bad leaves unusable samples out." if usable else ""
    return DataError(
        error.message,
        where=f"{error.where} (sample '{first}')",
        hint=" ".join(filter(None, (error.hint, more, skip))),
    )


def _foreign_arrays(
    path: str, foreign: Mapping[str, int], specs: Sequence[TensorSpec]
) -> DataError:
    return DataError(
        f"arrays that are no input of the model: {listed(list(foreign))}",
        where=path,
        hint=f"{wanted_inputs(specs)} Leave the others out when saving, or give --skip-bad.",
    )
