"""How many samples a file holds: the rule by which batches are split.

The models of these chips run on one sample at a time, so that is what is measured, whatever the
files hold. An array for an input is, in this order,

* *whole*: of the input's own shape;
* *without the batch dimension*: that shape without its first dimension of 1 (or any);
* *a batch*: that shape, with k instead of 1 in front; its k rows are samples;
* *stacked*: that shape behind one more dimension of k; likewise.

An array that the model would take whole, its first dimension being open, is a batch as well if
every input of the model has one of k rows in front, none has fewer than two dimensions, and the
model calls the dimension nothing or a name that does not speak of a length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from hbdebug.errors import DataError
from hbdebug.npy import fits, wrong_shape
from hbdebug.samples.specs import listed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from hbdebug.samples.sources import Source
    from hbdebug.samples.specs import TensorSpec

    Array: TypeAlias = NDArray[Any]

_NO_BATCH = re.compile(
    "seq|len|time|frame|step|token|word|height|width|point|row|box|anchor|node|past|cache",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """How the array of a file becomes arrays for an input.

    Attributes:
        source: The array.
        rows: Number of samples along its first dimension; 0 if it is one sample as a whole.
        batch: Whether the batch dimension is put in front, of the array or of each row.
    """

    source: Source
    rows: int
    batch: bool

    def read(self, row: int) -> Array:
        """Read one sample, in the dtype of the file."""
        array = self.source.read(row if self.rows else None)
        return array[None] if self.batch else array


def fit(source: Source, spec: TensorSpec) -> Fit:
    """Tell how an array fits an input.

    Raises:
        DataError: It does not.
    """
    shape, want = source.shape, spec.shape
    if fits(shape, want):
        return Fit(source=source, rows=0, batch=False)
    if want and fits((1, *shape), want):
        return Fit(source=source, rows=0, batch=True)
    if want[:1] == (1,) and shape and shape[0] > 0 and fits((1, *shape[1:]), want):
        return Fit(source=source, rows=shape[0], batch=True)
    if shape and shape[0] > 0 and fits(shape[1:], want):
        return Fit(source=source, rows=shape[0], batch=False)
    raise wrong_shape(shape, source.dtype, spec.want, source.where)


def agree(
    sources: Mapping[str, Source], specs: Mapping[str, TensorSpec], *, split_open: bool
) -> dict[str, Fit]:
    """Tell how the arrays of all inputs fit, and that they hold equally many samples.

    Args:
        sources: By input.
        specs: By input.
        split_open: Whether arrays that would be taken whole are split.

    Raises:
        DataError: An array does not fit its input, or they hold different numbers of samples.
    """
    found = {name: fit(source, specs[name]) for name, source in sources.items()}
    counts = {name: item.rows for name, item in found.items()}
    opened = {
        name: item.source.shape[0]
        for name, item in found.items()
        if not item.rows and not item.batch and _is_open_batch(specs[name])
    }
    rest = {count for name, count in counts.items() if name not in opened}
    sizes = {*opened.values(), *rest}
    if split_open and opened and len(sizes) == 1 and min(sizes) > 1:
        for name, count in opened.items():
            found[name] = Fit(source=found[name].source, rows=count, batch=True)
        return found
    if len(set(counts.values())) > 1:
        several = next(name for name, count in counts.items() if count)
        words = [
            f"{listed([name])} {count} samples" if count else f"{listed([name])} one"
            for name, count in counts.items()
        ]
        raise DataError(
            f"the inputs' arrays hold different numbers of samples: {', '.join(words)}",
            where=found[several].source.where,
            hint="Give each input an array with the same number of samples in front, or one "
            "file for each sample.",
        )
    return found


def _is_open_batch(spec: TensorSpec) -> bool:
    """Tell whether an open first dimension can be taken for the batch."""
    return len(spec.shape) > 1 and spec.shape[0] is None and not _NO_BATCH.search(spec.leading)
