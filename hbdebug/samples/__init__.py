"""Calibration data on disk as a re-iterable stream of named arrays, checked once.

A *sample* is one array for each input of the model. These layouts hold them:

* ``calib/<input>/*``: a folder for each input, paired by file stem (what the vendor dumps);
* ``calib/*``, or a single file: a model with one input;
* ``calib/*.npz``, or a single ``.npz`` file, whose keys are the inputs' names.

Files are ``.npy``, images (PNG, JPEG, BMP), or raw: values without a header, under any suffix
that is not one of a text. A file may hold one sample, with the batch dimension or without, or
several along the first dimension (`hbdebug.samples.batches`); what is done to the values is in
`hbdebug.samples.preparation`.

Names of inputs may hold ``/`` or ``:``. A folder or a key fits an input whose name is equal, else
one whose name is equal once every character outside ``A-Za-z0-9._-`` is replaced by ``_``.

Samples come in natural order (2 before 10). Nothing is left out silently: a file or folder that
is no sample is an error, or listed in `Samples.skipped` with ``skip_bad``. Only names that begin
with a dot (``.DS_Store``, ``.gitignore``) are passed over.
"""

from __future__ import annotations

from hbdebug.samples.opened import open_samples, read_input
from hbdebug.samples.options import parse_preparation
from hbdebug.samples.preparation import Preparation
from hbdebug.samples.specs import (
    Skipped,
    TensorSpec,
    require_readable_type,
    wanted_inputs,
)
from hbdebug.samples.stream import Samples

__all__ = [
    "Preparation",
    "Samples",
    "Skipped",
    "TensorSpec",
    "open_samples",
    "parse_preparation",
    "read_input",
    "require_readable_type",
    "wanted_inputs",
]
