"""Image files -> what a model takes; needs Pillow (``pip install hbdebug[images]``)."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np

from hbdebug.errors import DataError, UsageError
from hbdebug.npy import describe
from hbdebug.samples.preparation import arithmetic_in_words, compute

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from hbdebug.npy import Want
    from hbdebug.samples.preparation import Preparation

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
"""Suffixes of the files that are read as images."""

# A file that claims more pixels than a camera takes, or than its bytes can hold by any of these
# formats, lies; decoding it would take gigabytes.
_MOST_PIXELS = 1 << 27
_MOST_PIXELS_A_BYTE = 4096
_FEW_PIXELS = 1 << 16


def read_image(
    file: Path, name: str, want: Want, preparation: Preparation
) -> tuple[NDArray[Any], str]:
    """Read an image and prepare it.

    Args:
        file: The image.
        name: The model's input.
        want: What the input takes.
        preparation: What to do to the image.

    Returns:
        The array in the wanted type and shape, and in words what was done.

    Raises:
        DataError: The file is no image, or of another size than the model takes.
        UsageError: The options do not fit the input, or Pillow is missing.
    """
    layout = _layout(want, preparation)
    channels = _sizes(want, layout)[0]
    color = preparation.color or ("gray" if channels == 1 else "rgb")
    if channels is not None and channels != (1 if color == "gray" else 3):
        raise UsageError(
            f"{want.what} has {channels} channels, and an image as {color} has "
            f"{1 if color == 'gray' else 3}",
            hint="Choose another --color, or prepare the samples as .npy files.",
        )
    pixels = _decoded(file, color, preparation.resize)
    steps = [f"decoded to {'gray' if color == 'gray' else 'RGB'}"]
    if preparation.resize is not None:
        steps.append("resized to {}x{} (bilinear)".format(*preparation.resize))
    if color == "bgr":
        pixels = pixels[..., ::-1]
        steps.append("channels in BGR order")
    _require_size(pixels.shape[:2], want, layout, str(file))
    offset = preparation.offset_for(name, pixels=True)
    steps += arithmetic_in_words(preparation, offset)
    values: NDArray[Any] = compute(pixels, preparation, offset, 2)
    if layout == "nchw":
        values = values.transpose(2, 0, 1)
    if len(want.shape) == 2:
        values = values.reshape(pixels.shape[:2])
    elif len(want.shape) == 4:
        values = values[None]
    steps.append(f"{layout.upper()} {want.dtype}")
    return _typed(values, want, str(file)), f"images are {', '.join(steps)}"


def _typed(values: NDArray[Any], want: Want, where: str) -> NDArray[Any]:
    """Return values in the input's type, which integers may not hold."""
    target = np.dtype(want.dtype)
    typed = np.ascontiguousarray(values.astype(target))
    if target.kind != "f" and not np.array_equal(typed, values):
        raise DataError(
            f"{want.what} is {target}, which cannot hold what the image becomes "
            f"(from {values.min():g} to {values.max():g})",
            where=where,
            hint="Leave --mean and --scale out, or give --offset.",
        )
    return typed


def _layout(want: Want, preparation: Preparation) -> str:
    """Return the model's layout; by the place where 1 or 3 channels fit, when it is not given."""
    if len(want.shape) == 2:
        return "nhwc"
    if len(want.shape) not in {3, 4} or (len(want.shape) == 4 and want.shape[0] not in {1, None}):
        raise UsageError(
            f"{want.what} is {describe(want.dtype, want.shape)}, which is no image",
            hint="Prepare its samples as .npy files.",
        )
    if preparation.layout:
        return preparation.layout
    first, last = (want.shape[-3] in {1, 3}, want.shape[-1] in {1, 3})
    if first == last:
        raise UsageError(
            f"the layout of {want.what}, {describe(want.dtype, want.shape)}, cannot be told",
            hint="Say which it is: --layout nchw or --layout nhwc.",
        )
    return "nchw" if first else "nhwc"


def _sizes(want: Want, layout: str) -> tuple[int | None, int | None, int | None]:
    """Return channels, height and width that the input takes."""
    if len(want.shape) == 2:
        return 1, want.shape[0], want.shape[1]
    one, two, three = want.shape[-3:]
    return (one, two, three) if layout == "nchw" else (three, one, two)


def _require_size(size: tuple[int, ...], want: Want, layout: str, where: str) -> None:
    _, height, width = _sizes(want, layout)
    if (height or size[0], width or size[1]) != size:
        raise DataError(
            f"the image is {size[0]}x{size[1]} (height x width), and {want.what} takes "
            f"{height or '?'}x{width or '?'}",
            where=where,
            hint=f"--resize {height or size[0]}x{width or size[1]} stretches images to that size; "
            "if the model was trained on padded or cropped ones, prepare them so yourself.",
        )


def _decoded(file: Path, color: str, resize: tuple[int, int] | None) -> NDArray[np.uint8]:
    """Return pixels as uint8 ``[height, width, channels]``, RGB or gray."""
    try:
        from PIL import Image  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise UsageError(
            "images need Pillow", where=str(file), hint="pip install 'hbdebug[images]'"
        ) from error
    try:
        # Out of memory, not from the file: there a read of what a head claims allocates it.
        content = file.read_bytes()
        with Image.open(io.BytesIO(content)) as image:
            # Before a pixel is decoded: a small file can claim any size.
            held = max(len(content) * _MOST_PIXELS_A_BYTE, _FEW_PIXELS)
            if image.width * image.height <= min(held, _MOST_PIXELS):
                picture = image.convert("L" if color == "gray" else "RGB")
                if resize is not None:
                    picture = picture.resize((resize[1], resize[0]), Image.Resampling.BILINEAR)
                pixels = np.asarray(picture, np.uint8)
                return pixels.reshape(*pixels.shape[:2], -1)
            reason = f"it claims {image.width} x {image.height} pixels, which it cannot hold"
    except Exception as error:  # noqa: BLE001 - damaged images make Pillow raise almost anything
        reason = f"cannot be read as an image: {str(error) or type(error).__name__}"
    raise DataError(
        reason,
        where=str(file),
        hint="The file is damaged, or no image: make it again, or move it away.",
    )
