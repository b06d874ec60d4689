"""The functions that tables hold, in the precision their argument has.

A table of int8 is computed in float64 and rounded once; one of int16 in float32, operation by
operation, with elementary functions that are rounded correctly. So each function is written once,
in operations of its argument's type, and its elementary functions go through float64. Measured
against HMCT 1.1.0: no entry of an int8 table differs; `hbdebug.lowering.table16` says what int16
ones do.

Operators mean what ONNX says, or the calibrated model's own (``docs/numerics.md``), with one
exception: **HardSigmoid ignores alpha and beta** and is always ``clip(x / 6 + 0.5, 0, 1)``. A
model whose HardSigmoid has other parameters computes another function on the chip.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Values: TypeAlias = NDArray[np.floating[Any]]
    Curve: TypeAlias = Callable[[Values], Values]
    Attributes: TypeAlias = Mapping[str, Any]
    Constants: TypeAlias = Sequence[float]

# ONNX's defaults, as float32 as the file would hold them.
_ELU_ALPHA = 1.0
_LEAKY_ALPHA = 0.01
_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


def curve(op_type: str, attributes: Attributes, constants: Constants = ()) -> Curve:
    """Return the function that a node's table holds.

    Args:
        op_type: Operator of the calibrated model.
        attributes: Its attributes; those that are absent have ONNX's defaults.
        constants: Its constant inputs in order: the exponent of a Pow, the bounds of a Clip.

    Returns:
        A function of float32 or float64 arrays that returns the type it gets. Poles and values
        outside the domain give infinities and NaN, without a warning.

    Raises:
        UnsupportedError: No table of this operator has been seen.
    """
    if op_type in _PLAIN:
        function = _PLAIN[op_type]
    elif op_type in _WITH_PARAMETERS:
        function = _WITH_PARAMETERS[op_type](attributes, constants)
    else:
        raise UnsupportedError(
            f"no table of {op_type} is known",
            hint="Leave the node in float, or report the model.",
        )

    def quiet(x: Values) -> Values:
        with np.errstate(all="ignore"):
            return np.asarray(function(x), x.dtype)

    return quiet


def has_curve(op_type: str) -> bool:
    """Whether `curve` knows the operator."""
    return op_type in _PLAIN or op_type in _WITH_PARAMETERS


def _through_float64(function: Callable[[NDArray[np.float64]], Any]) -> Curve:
    """Return the elementary function, rounded once to the type of its argument."""

    def rounded(x: Values) -> Values:
        return np.asarray(function(x.astype(np.float64)), np.float64).astype(x.dtype)

    return rounded


_exp = _through_float64(np.exp)
_log = _through_float64(np.log)
_sqrt = _through_float64(np.sqrt)
_tanh = _through_float64(np.tanh)
# Tables are short: no need of SciPy.
_erf = _through_float64(np.frompyfunc(math.erf, 1, 1))


def _sigmoid(x: Values) -> Values:
    return 1 / (1 + _exp(-x))


def _swish(x: Values) -> Values:
    return x / (1 + _exp(-x))


def _softplus(x: Values) -> Values:
    return _log(1 + _exp(x))


def _mish(x: Values) -> Values:
    return x * _tanh(_softplus(x))


def _gelu(x: Values) -> Values:
    root = x.dtype.type(math.sqrt(2))
    return x * x.dtype.type(0.5) * (1 + _erf(x / root))


def _hard_sigmoid(x: Values) -> Values:
    return np.clip(x + 3, 0, 6) / 6


def _hard_swish(x: Values) -> Values:
    return x * np.clip(x + 3, 0, 6) / 6


def _softsign(x: Values) -> Values:
    size: Values = np.abs(x)
    return x / (1 + size)


def _elu(attributes: Attributes, _constants: Constants) -> Curve:
    alpha = np.float32(attributes.get("alpha", _ELU_ALPHA))
    return lambda x: np.where(x < 0, alpha * (_exp(x) - 1), x)


def _selu(attributes: Attributes, _constants: Constants) -> Curve:
    alpha = np.float32(attributes.get("alpha", _SELU_ALPHA))
    gamma = np.float32(attributes.get("gamma", _SELU_GAMMA))

    def selu(x: Values) -> Values:
        a, g = x.dtype.type(alpha), x.dtype.type(gamma)
        return np.where(x < 0, g * a * (_exp(x) - 1), g * x)

    return selu


def _leaky_relu(attributes: Attributes, _constants: Constants) -> Curve:
    alpha = np.float32(attributes.get("alpha", _LEAKY_ALPHA))
    return lambda x: np.where(x < 0, alpha * x, x)


def _rsqrt(attributes: Attributes, _constants: Constants) -> Curve:
    epsilon = np.float32(attributes.get("epsilon", 0.0))
    return lambda x: 1 / _sqrt(x + epsilon)


def _pow(_attributes: Attributes, constants: Constants) -> Curve:
    exponent = np.float64(constants[0])
    return _through_float64(lambda x: np.power(x, exponent))


def _clip(_attributes: Attributes, constants: Constants) -> Curve:
    low, high = (np.float32(value) for value in constants)
    return lambda x: np.clip(x, low, high)


_PLAIN: Mapping[str, Curve] = {
    "Abs": np.abs,
    "Atan": _through_float64(np.arctan),
    "Ceil": np.ceil,
    "Cos": _through_float64(np.cos),
    "Erf": _erf,
    "Exp": _exp,
    "Floor": np.floor,
    "HardSigmoid": _hard_sigmoid,
    "HzGelu": _gelu,
    "HzHardSwish": _hard_swish,
    "HzMish": _mish,
    "HzSwish": _swish,
    "Log": _log,
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: np.maximum(x, 0),
    "Round": np.rint,
    "Sigmoid": _sigmoid,
    "Sign": np.sign,
    "Sin": _through_float64(np.sin),
    "Sinh": _through_float64(np.sinh),
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Sqrt": _sqrt,
    "Tanh": _tanh,
}

_WITH_PARAMETERS: Mapping[str, Callable[[Attributes, Constants], Curve]] = {
    "Clip": _clip,
    "Elu": _elu,
    "HzRsqrt": _rsqrt,
    "LeakyRelu": _leaky_relu,
    "Pow": _pow,
    "Selu": _selu,
}
