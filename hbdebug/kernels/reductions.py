"""Reductions along one axis: sums that are rescaled, maxima, and the places of maxima."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import UnsupportedError
from hbdebug.kernels.arithmetic import Accumulator, exact_float, magnitude, rescale, stage
from hbdebug.kernels.outcome import Outcome, kernel, unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


@kernel(types={"X": "int8 int16"}, ignores=("data_format",))
def HzSQuantizedReduceSum(
    X: NDArray[Any],
    *,
    axis: int,
    accu_right_shift: Sequence[int],
    scale: Sequence[int],
    out_shift: Sequence[int],
    output_bit: int = 8,
    report: bool = False,
) -> Outcome:
    """Sum along one axis, which stays with length 1, and rescale.

    Of the lists only the first element counts.

    Args:
        X: Values.
        axis: Axis, not negative.
        accu_right_shift: First shift, which floors.
        scale: Multiplier.
        out_shift: Second shift, which rounds half up.
        output_bit: 8 or 16.
        report: Whether to say what the accumulator did.
    """
    name = "HzSQuantizedReduceSum"
    _check_axis(name, X, axis)
    way = stage(
        name, accu_right_shift[:1], scale[:1], out_shift[:1], output_bit, round_out_shift=True
    )
    return rescale(total(X, (axis,)), way, report=report)


@kernel(types={"X": "int8 int16"}, ignores=("data_format",))
def HzSQuantizedReduceMean(
    X: NDArray[Any],
    *,
    axis: int,
    accu_right_shift: Sequence[int],
    scale: Sequence[int],
    out_shift: Sequence[int],
    output_bit: int = 8,
    report: bool = False,
) -> Outcome:
    """Compute `HzSQuantizedReduceSum`; the division is part of the scale.

    Args:
        X: Values.
        axis: Axis, not negative.
        accu_right_shift: First shift, which floors.
        scale: Multiplier.
        out_shift: Second shift, which rounds half up.
        output_bit: 8 or 16.
        report: Whether to say what the accumulator did.
    """
    return HzSQuantizedReduceSum(
        X,
        axis=axis,
        accu_right_shift=accu_right_shift,
        scale=scale,
        out_shift=out_shift,
        output_bit=output_bit,
        report=report,
    )


@kernel(types={"X": "int8 int16"}, ignores=("data_format", "output_bit"))
def HzQuantizedReduceMax(X: NDArray[Any], *, axis: int) -> Outcome:
    """Take the maximum along one axis, which stays with length 1.

    Args:
        X: Values.
        axis: Axis, not negative.
    """
    _check_axis("HzQuantizedReduceMax", X, axis)
    return Outcome(outputs=(X.max(axis=axis, keepdims=True),))


@kernel(types={"X": "int8 int16"}, ignores=("output_bit",))
def HzQuantizedArgMax(X: NDArray[Any], *, axis: int) -> Outcome:
    """Find the first maximum along one axis, which stays with length 1.

    Args:
        X: Values.
        axis: Axis, not negative.

    Returns:
        Indices, in the type of X.

    Raises:
        UnsupportedError: That type cannot hold the indices of the axis.
    """
    _check_axis("HzQuantizedArgMax", X, axis)
    _check_indices("HzQuantizedArgMax", X.shape[axis], X.dtype)
    y = np.expand_dims(X.argmax(axis=axis), axis)
    return Outcome(outputs=(y.astype(X.dtype),))


@kernel(types={"X": "int8 int16 int32"}, ignores=("data_format",))
def HzQuantizedTopK(
    X: NDArray[Any],
    *,
    k: int,
    axis: int = 0,
    largest: int = 1,
    sorted: int = 1,  # noqa: A002 - so it is called in the schema
    is_output_indices: int = 1,
    output_indices_bit: int = 32,
) -> Outcome:
    """Find the k largest or smallest values along one axis, best first.

    Equal values come in the order of their indices.

    Args:
        X: Values.
        k: Number of values.
        axis: Axis, not negative.
        largest: 1 for the largest, 0 for the smallest.
        sorted: Must be 1.
        is_output_indices: Whether there is a second output.
        output_indices_bit: 16 or 32, the width of the indices.
    """
    name = "HzQuantizedTopK"
    _check_axis(name, X, axis)
    if not sorted:
        raise unsupported(name, "sorted", sorted, "1")
    if output_indices_bit not in {16, 32}:
        raise unsupported(name, "output_indices_bit", output_indices_bit, "16 and 32")
    if not 0 < k <= X.shape[axis]:
        raise unsupported(name, "k", k, f"1 to {X.shape[axis]}, the length of the axis")
    dtype = np.dtype(f"int{output_indices_bit}")
    _check_indices(name, X.shape[axis], dtype)
    keys = X.astype(np.int64)
    order = np.argsort(-keys if largest else keys, axis=axis, kind="stable")
    order = order.take(np.arange(k), axis=axis)
    values = np.take_along_axis(X, order, axis)
    return Outcome(outputs=(values, order.astype(dtype)) if is_output_indices else (values,))


def total(x: NDArray[Any], axes: tuple[int, ...]) -> Accumulator:
    """Return the sums over some axes, which stay with length 1."""
    count = int(np.prod([x.shape[axis] for axis in axes]))
    bound = count * magnitude(x)
    values = x.sum(axis=axes, keepdims=True, dtype=np.int32 if bound < 1 << 31 else np.int64)
    return Accumulator(values=values.astype(exact_float(bound)), bound=bound)


def _check_axis(name: str, x: NDArray[Any], axis: int) -> None:
    # The vendor's executor crashes on a negative axis.
    if not 0 <= axis < x.ndim:
        raise unsupported(name, "axis", axis, f"0 to {x.ndim - 1}")


def _check_indices(name: str, length: int, dtype: np.dtype[Any]) -> None:
    if length - 1 > np.iinfo(dtype).max:
        raise UnsupportedError(f"{name} over {length} values: {dtype.name} cannot hold the index")
