"""A preparation from the words of a command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hbdebug.errors import UsageError
from hbdebug.samples.preparation import Preparation

if TYPE_CHECKING:
    from collections.abc import Sequence


def parse_preparation(
    *,
    dtypes: Sequence[str] = (),
    shapes: Sequence[str] = (),
    resize: str = "",
    color: str = "",
    layout: str = "",
    offset: str = "",
    mean: str = "",
    scale: str = "",
    split_batch: bool = True,
) -> Preparation:
    """Read the options of the command line.

    Args:
        dtypes: ``uint8`` or ``INPUT=uint8`` each.
        shapes: ``1x3x48x192`` or ``INPUT=1x3x48x192`` each.
        resize: ``48x192``, height first, or ``model``.
        color: As in `Preparation`.
        layout: As in `Preparation`.
        offset: Numbers with commas between them.
        mean: Likewise.
        scale: Likewise.
        split_batch: As in `Preparation`.

    Raises:
        UsageError: Something cannot be read.
    """
    return Preparation(
        dtypes=dict(_named(text) for text in dtypes),
        shapes={name: _sizes(value, text) for text in shapes for name, value in [_named(text)]},
        resize=resize if resize in {"", "model"} else _height_and_width(resize),
        color=color.lower(),
        layout=layout.lower(),
        offset=_numbers("offset", offset),
        mean=_numbers("mean", mean),
        scale=_numbers("scale", scale),
        split_batch=split_batch,
    )


def _named(text: str) -> tuple[str, str]:
    # A name may hold an equals sign itself; what follows the last one never does.
    name, _, value = text.rpartition("=")
    return name, value


def _sizes(value: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", value):
        raise UsageError(f"{text!r} is no shape", hint="Write it like 1x3x48x192 or NAME=1x128.")
    return tuple(int(size) for size in value.split("x"))


def _height_and_width(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", text)
    if not match:
        raise UsageError(
            f"{text!r} is no size of images",
            hint="Write height x width, like 48x192, or 'model' for what the input has.",
        )
    return int(match[1]), int(match[2])


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise UsageError(
            f"--{option} {text!r} is no list of numbers",
            hint="Write one number, or one for each channel: 123.675,116.28,103.53.",
        ) from error
