"""What is done to images and raw files on their way into a model, in a stated order.

``.npy`` and ``.npz`` files hold what the model is to receive, and nothing is done to them. An image
is decoded, resized, its channels put in order; then, as a raw file once its bytes are numbers, it
goes through ``(pixels + offset - mean) * scale`` in float32, and gets the model's layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hbdebug.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from numpy.typing import NDArray

COLORS = ("rgb", "bgr", "gray")
LAYOUTS = ("nchw", "nhwc")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """How images and raw files become what a model takes.

    Attributes:
        dtypes: Input name -> NumPy dtype name of its raw files; the empty name stands for every
            other input. Without an entry it is the model's own type.
        color: Order of an image's channels: ``rgb``, ``bgr`` or ``gray``; empty for RGB, or gray
            where the model has one channel.
        resize: Height and width that images are resized to (bilinear); None leaves them alone.
        mean: Subtracted, one number or one for each channel; nothing when empty.
        scale: Factors after that, likewise.
        offset: Added first, to every value; None for the one that the model's own preprocessing
            asks for.
        layout: The model's layout of images, ``nchw`` or ``nhwc``; empty tells it by the shape.
        keep_batch: Whether a file's first dimension goes into the model as its batch, instead of
            being taken apart into samples.
        image_offsets: Input name -> what the chip's runtime adds to the pixels of this input: -128
            where the model's HzPreprocess node expects them so.
    """

    dtypes: Mapping[str, str] = field(default_factory=dict)
    color: str = ""
    resize: tuple[int, int] | None = None
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    offset: float | None = None
    layout: str = ""
    keep_batch: bool = False
    image_offsets: Mapping[str, int] = field(default_factory=dict)

    @property
    def computes(self) -> bool:
        """Whether an option asks for arithmetic."""
        return bool(self.mean or self.scale or self.offset)

    @property
    def for_images(self) -> bool:
        """Whether an option makes sense for images only."""
        return bool(self.color or self.resize or self.layout)

    def dtype_of(self, name: str, default: str) -> str:
        """Return the type of an input's raw files."""
        return self.dtypes.get(name) or self.dtypes.get("") or default

    def offset_for(self, name: str, *, pixels: bool) -> float:
        """Return what is added to an input's values.

        Args:
            name: The input.
            pixels: Whether the values are pixels, 0 to 255.
        """
        if self.offset is not None:
            return self.offset
        return self.image_offsets.get(name, 0) if pixels else 0


def parse_preparation(
    *,
    dtypes: Sequence[str] = (),
    color: str = "",
    resize: str = "",
    mean: str = "",
    scale: str = "",
    offset: float | None = None,
    layout: str = "",
    keep_batch: bool = False,
) -> Preparation:
    """Read what the user wrote.

    Args:
        dtypes: ``uint8``, or ``INPUT=uint8``, for raw files.
        color: One of `COLORS`.
        resize: ``48x192``, height first.
        mean: ``127.5`` or ``123.7,116.3,103.5``.
        scale: Likewise.
        offset: A number.
        layout: One of `LAYOUTS`.
        keep_batch: As in `Preparation`.

    Raises:
        UsageError: Something is not written as it should be.
    """
    return Preparation(
        dtypes=dict(_dtype(text) for text in dtypes),
        color=_one_of(color, COLORS, "--color"),
        resize=_size(resize),
        mean=_numbers(mean, "--mean"),
        scale=_numbers(scale, "--scale"),
        offset=offset,
        layout=_one_of(layout, LAYOUTS, "--layout"),
        keep_batch=keep_batch,
    )


def _dtype(text: str) -> tuple[str, str]:
    name, _, dtype = text.rpartition("=")
    try:
        known = np.dtype(dtype)
    except TypeError:
        known = None
    if known is None or known.kind not in "fiub":
        raise UsageError(
            f"--dtype {text!r}: no such type of numbers",
            hint="Write it like uint8, float32, or INPUT=uint8 for one of several inputs.",
        )
    return name, str(known.name)


def _one_of(text: str, known: Sequence[str], option: str) -> str:
    if text and text.lower() not in known:
        raise UsageError(f"{option} {text!r} is none of {', '.join(known)}")
    return text.lower()


def _size(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(
            f"--resize {text!r} is no size", hint="Write height and width like 224x320."
        )
    return int(parts[0]), int(parts[1])


def _numbers(text: str, option: str) -> tuple[float, ...]:
    if not text:
        return ()
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not np.isfinite(found).all():
        raise UsageError(
            f"{option} {text!r} holds no numbers",
            hint="Write one number, or one for each channel with commas: 123.675,116.28,103.53.",
        )
    return found


def compute(
    values: NDArray[Any], preparation: Preparation, offset: float, channel_axis: int
) -> NDArray[np.float32]:
    """Return ``(values + offset - mean) * scale`` in float32.

    Args:
        values: Any shape and type of numbers.
        preparation: Has mean and scale.
        offset: What is added first.
        channel_axis: Axis along which mean and scale have one number for each entry.

    Raises:
        UsageError: Mean or scale have another number of entries than there are channels.
    """
    result = values.astype(np.float32)
    if offset:
        result += np.float32(offset)
    for numbers, what, apply in (
        (preparation.mean, "--mean", np.subtract),
        (preparation.scale, "--scale", np.multiply),
    ):
        if not numbers:
            continue
        channels = values.shape[channel_axis] if values.ndim else 1
        if len(numbers) not in {1, channels}:
            raise UsageError(
                f"{what} has {len(numbers)} numbers for {channels} channels",
                hint="Give one number, or one for each channel.",
            )
        shape = [1] * values.ndim
        if len(numbers) > 1:
            shape[channel_axis] = channels
        apply(result, np.asarray(numbers, np.float32).reshape(shape), out=result)
    return result


def arithmetic_in_words(preparation: Preparation, offset: float) -> list[str]:
    """Return the steps of `compute` for the report, in order."""
    words = []
    if offset:
        words.append(f"plus {offset:g}" if offset > 0 else f"minus {-offset:g}")
    if preparation.mean:
        words.append(f"minus mean {_listed(preparation.mean)}")
    if preparation.scale:
        words.append(f"times scale {_listed(preparation.scale)}")
    return words


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
