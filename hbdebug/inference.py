"""Run a model on the arrays of one sample, from files to files, as ``hbdebug run`` does."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import DataError, UsageError
from hbdebug.integer_run import IntegerRunner
from hbdebug.loading import load_to_run
from hbdebug.model import Assignment, IntegerModel
from hbdebug.names import close_matches
from hbdebug.npy import describe
from hbdebug.report.outputs import RunRecord, SavedTensor
from hbdebug.report.record import write_bytes_atomic, write_text_atomic
from hbdebug.samples import read_input, wanted_inputs
from hbdebug.slices import Slicer
from hbdebug.threads import one_blas_thread
from hbdebug.walk import Walker

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.model import QuantModel
    from hbdebug.samples import TensorSpec

    Keep = Callable[[str, NDArray[Any]], None]

TENSORS = "tensors"
"""Folder for tensors inside the model; with ``.json``, the file that lists them."""

# What every file system takes as a name, with room for a number and the extension.
_LONGEST_NAME = 120


def run_files(
    model: str | os.PathLike[str],
    files: Sequence[str | os.PathLike[str]] = (),
    *,
    named: Sequence[str] = (),
    folder: str | os.PathLike[str],
    all_tensors: bool = False,
) -> RunRecord:
    """Run a quantized model in integers, or a calibrated one as calibrated, and write its outputs.

    Args:
        model: A quantized or calibrated model.
        files: One ``.npy`` or raw file for each input that ``named`` does not give; of several,
            each is for the input that is called like it, without the extension.
        named: Inputs given as ``NAME=FILE``.
        folder: Where the outputs go, each to ``<name>.npy`` with characters outside
            ``A-Za-z0-9._-`` replaced by ``_``.
        all_tensors: Write every tensor inside the model, too: to `TENSORS` in that folder.

    Returns:
        How it was run, and what was written.

    Raises:
        UsageError: Files and inputs cannot be paired, or an output cannot be written.
        DataError: A file is unreadable, not finite, or not what the input wants.
        ModelError: The model cannot be run.
    """
    loaded = load_to_run(model)
    paths = pair(loaded.inputs, [Path(file) for file in files], named)
    inputs = {spec.name: _read(paths[spec.name], spec) for spec in loaded.inputs}
    outputs = _Files(Path(folder))
    inner = _Files(Path(folder) / TENSORS)
    made = {spec.name for spec in loaded.outputs}

    def keep(name: str, array: NDArray[Any]) -> None:
        if name not in made:
            inner.write(name, array)

    arithmetic, values = _forward(loaded, inputs, keep if all_tensors else None)
    for name, array in values.items():
        outputs.write(name, array)
    index = _write_index(Path(folder), inner.saved) if all_tensors else ""
    return RunRecord(
        model=loaded.path,
        kind=", ".join(filter(None, (loaded.kind, loaded.producer))),
        nodes=len(loaded.nodes),
        arithmetic=arithmetic,
        inputs={
            name: f"{describe(array.dtype, array.shape)} from {paths[name]}"
            for name, array in inputs.items()
        },
        outputs=tuple(outputs.saved),
        others=tuple(inner.saved),
        index=index,
        warnings=loaded.warnings,
    )


def _forward(
    model: QuantModel, inputs: Mapping[str, NDArray[Any]], keep: Keep | None
) -> tuple[str, dict[str, NDArray[Any]]]:
    """Run a model in the arithmetic of its stage; return that in words, and the outputs."""
    if isinstance(model, IntegerModel):
        with one_blas_thread():
            return "in integers", IntegerRunner(model).forward(inputs, keep=keep)
    walker = Walker(model, Slicer(model))
    values = walker.forward(inputs, Assignment.as_calibrated(model), keep=keep)
    return "fake-quantized in float32, as calibrated", values


# Inputs.


def pair(
    specs: Sequence[TensorSpec], files: Sequence[Path], named: Sequence[str]
) -> dict[str, Path]:
    """Tell which file is for which input.

    Args:
        specs: The model's inputs.
        files: Files to be paired by name; a single one for a single input has any name.
        named: ``NAME=FILE`` each.

    Returns:
        Input name -> file, for every input.

    Raises:
        UsageError: An input has no file or two, or a file no input.
    """
    paired: dict[str, Path] = {}
    for text in named:
        name, file = _named(text, specs)
        _add(paired, name, file, specs)
    rest = [spec.name for spec in specs if spec.name not in paired]
    if len(rest) == len(files) == 1:
        return {**paired, rest[0]: files[0]}
    for file in files:
        fits = [spec.name for spec in specs if spec.name == file.stem]
        fits = fits or [spec.name for spec in specs if _plain(spec.name) == _plain(file.stem)]
        if len(fits) != 1:
            message = f"fits {' and '.join(fits)}" if fits else "is called like no input"
            raise UsageError(message, where=str(file), hint=_how_to_name(specs))
        _add(paired, fits[0], file, specs)
    missing = [spec.name for spec in specs if spec.name not in paired]
    if missing:
        names = ", ".join(f"'{name}'" for name in missing)
        raise UsageError(f"no file for input {names}", hint=_how_to_name(specs))
    return paired


def _named(text: str, specs: Sequence[TensorSpec]) -> tuple[str, Path]:
    # A name may hold an equals sign itself, so the model's names are tried first.
    for spec in specs:
        if text.startswith(f"{spec.name}="):
            return spec.name, Path(text[len(spec.name) + 1 :])
    name, equals, _ = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is not NAME=FILE", hint=_how_to_name(specs))
    close = close_matches(name, [spec.name for spec in specs])
    raise UsageError(
        f"the model has no input {name!r}",
        hint=" ".join(filter(None, (close, wanted_inputs(specs)))),
    )


def _add(paired: dict[str, Path], name: str, file: Path, specs: Sequence[TensorSpec]) -> None:
    if name in paired:
        raise UsageError(
            f"input '{name}' is given twice: {paired[name]} and {file}", hint=wanted_inputs(specs)
        )
    paired[name] = file


def _how_to_name(specs: Sequence[TensorSpec]) -> str:
    return f"{wanted_inputs(specs)} Name the files like the inputs, or give --input NAME=FILE."


def _read(file: Path, spec: TensorSpec) -> NDArray[Any]:
    what = f"input '{spec.name}'"
    if not file.exists():
        raise DataError("no such file", where=str(file), hint=f"It was given for {what}.")
    return read_input(file, spec)


# Outputs.


class _Files:
    """Writes tensors to one folder, under names that every file system takes.

    Attributes:
        saved: What was written, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.saved: list[SavedTensor] = []
        self._folder = folder
        self._taken: set[str] = set()

    def write(self, name: str, array: NDArray[Any]) -> None:
        """Write one tensor."""
        file = self._folder / f"{self._stem(name)}.npy"
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(array, order="C"), allow_pickle=False)
        write_bytes_atomic(file, buffer.getvalue())
        low, high = (array.min().item(), array.max().item()) if array.size else (None, None)
        self.saved.append(
            SavedTensor(
                name=name,
                dtype=array.dtype.name,
                shape=array.shape,
                low=low,
                high=high,
                file=str(file),
            )
        )

    def _stem(self, name: str) -> str:
        """Return a file name that was not used yet, also where case makes no difference."""
        plain = _plain(name).lstrip(".") or "_"
        if len(plain) > _LONGEST_NAME:
            digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            plain = f"{plain[:_LONGEST_NAME]}_{digest}"
        stem, count = plain, 1
        while stem.casefold() in self._taken:
            count += 1
            stem = f"{plain}_{count}"
        self._taken.add(stem.casefold())
        return stem


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)


def _write_index(folder: Path, saved: Sequence[SavedTensor]) -> str:
    """Write which tensor is in which file, in the order in which they were made."""
    path = folder / f"{TENSORS}.json"
    lines = ",\n".join(
        f" {json.dumps(item.name)}: "
        + json.dumps(
            {
                "file": f"{TENSORS}/{Path(item.file).name}",
                "dtype": item.dtype,
                "shape": list(item.shape),
            }
        )
        for item in saved
    )
    write_text_atomic(path, f"{{\n{lines}\n}}\n")
    return str(path)
