"""What a kernel returns, and how it is declared.

A kernel takes the operator's inputs by position and its attributes by name, both called as in the
ONNX schema. `kernel` wraps such a function with what all of them share: it drops the attributes
that change no number, refuses the ones nobody knows, and checks types, so that a file with
something new is an error that names it and never a wrong number.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class AccumulatorReport:
    """What happened inside one run of an operator that sums, multiplies or rescales.

    Attributes:
        smallest: Smallest accumulator, before it wraps to 32 bits.
        largest: Largest accumulator, before it wraps to 32 bits.
        wrapped: Number of accumulators outside int32, whose value therefore changed.
        saturated_middles: Number of values between the two shifts that int16 could not hold.
        saturated_outputs: Number of outputs that the output type could not hold; a negative value
            that Relu sets to 0 is none of them.
        elements: Number of output elements.
    """

    smallest: int
    largest: int
    wrapped: int
    saturated_middles: int
    saturated_outputs: int
    elements: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Outcome:
    """Outputs of an operator, in the order of its schema.

    Attributes:
        outputs: One array per output.
        accumulator: What happened on the way; None if it was not asked for (``report=True``), and
            for operators that only move, compare or look up values.
    """

    outputs: tuple[NDArray[Any], ...]
    accumulator: AccumulatorReport | None = None


def kernel(
    *, types: Mapping[str, str], ignores: tuple[str, ...] = ()
) -> Callable[[Callable[..., Outcome]], Callable[..., Outcome]]:
    """Declare a function as the kernel of the operator that it is named after.

    Every kernel then takes the keyword ``report``, whether it has an accumulator or not.

    Args:
        types: For each input, the dtypes it may have, separated by spaces.
        ignores: Attributes of the schema that change no number.

    Returns:
        The decorator. What it returns raises `UnsupportedError` for an unknown attribute or an
        unexpected dtype, and `ModelError` for a required attribute that is missing.
    """

    def declare(function: Callable[..., Outcome]) -> Callable[..., Outcome]:
        name = function.__name__
        parameters = inspect.signature(function).parameters.values()
        inputs = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
        named = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        required = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
        assert types.keys() == set(inputs), f"{name}: types are those of {inputs}"
        allowed = {
            key: frozenset(np.dtype(each) for each in value.split()) for key, value in types.items()
        }

        @functools.wraps(function)
        def run(*arrays: NDArray[Any] | None, report: bool = False, **attributes: Any) -> Outcome:
            used = {key: attributes[key] for key in attributes if key not in ignores}
            _check_names(name, used.keys(), named, required)
            for key, array in zip(inputs, arrays):  # noqa: B905 - the call below counts them
                if array is not None and array.dtype not in allowed[key]:
                    raise UnsupportedError(
                        f"{name} takes {key} of type {' or '.join(types[key].split())},"
                        f" not {array.dtype.name}"
                    )
            if "report" in named:
                used["report"] = report
            return function(*arrays, **used)

        return run

    return declare


def _check_names(name: str, given: Any, named: set[str], required: set[str]) -> None:
    unknown = sorted(set(given) - named)
    if unknown:
        raise UnsupportedError(
            f"{name} has an attribute that hbdebug does not know: {', '.join(unknown)}",
            hint=f"Known are {', '.join(sorted(named - {'report'}))}.",
        )
    missing = sorted(required - set(given) - {"report"})
    if missing:
        raise ModelError(f"{name} lacks the attribute {', '.join(missing)}")


def unsupported(name: str, attribute: str, value: object, known: str) -> UnsupportedError:
    """Return the error for an attribute value that was never seen in a converter's file."""
    return UnsupportedError(
        f"{name} with {attribute} = {value!r} is not supported", hint=f"Supported: {known}."
    )


def require_nhwc(name: str, data_format: str) -> None:
    """Refuse a layout other than NHWC, the only one that the converter writes."""
    if data_format != "NHWC":
        raise unsupported(name, "data_format", data_format, "NHWC")
