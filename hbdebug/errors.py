"""Every error hbdebug raises on purpose, and the exit code each one becomes.

* HbdebugError                     70  base; its text is meant for the terminal
  * GateMissed                      1  a gate the user set (``--fail-below``) was missed
  * UsageError                      2  an option or a selector makes no sense here
  * ModelError                      3  the model cannot be analysed as given
    * RuntimeCrash                  3  a process in which it ran was killed, or killed itself
    * UnsupportedError              5  it holds an operator or attribute hbdebug does not know
  * DataError                       4  the calibration data do not fit the model

A message says what failed; ``where`` says in which file, node, tensor or sample; ``hint`` says
what to do about it::

    try:
        model = hbdebug.load("cls_calibrated_model.onnx")
    except hbdebug.HbdebugError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
"""

from __future__ import annotations


class HbdebugError(Exception):
    """Base of every error a user can cause.

    Args:
        message: What failed, one sentence without a final full stop.
        where: File, node, tensor or sample in which it failed; empty when there is no place.
        hint: What the user can do about it; empty when nothing is known.
    """

    exit_code = 70

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return ``where: message`` and, on lines of their own, what to do."""
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class GateMissed(HbdebugError):  # noqa: N818 - a missed gate is an outcome the user asked for
    """The result is worse than the bar that the user set."""

    exit_code = 1


class UsageError(HbdebugError):
    """An option, a selector or a combination of them makes no sense for this model."""

    exit_code = 2


class ModelError(HbdebugError):
    """The model cannot be analysed as given."""

    exit_code = 3


class RuntimeCrash(ModelError):  # noqa: N818 - it is the runtime that failed, and it did crash
    """The process in which a part of the model ran ended without a word (``--isolate``)."""


class UnsupportedError(ModelError):
    """The model holds an operator, attribute or quantized type that hbdebug does not know."""

    exit_code = 5


class DataError(HbdebugError):
    """The calibration data are missing, unreadable or do not fit the model."""

    exit_code = 4


def first_line(error: Exception) -> str:
    """Return the first line of what a library said; more of it is for its own developers."""
    return str(error).strip().splitlines()[0]
