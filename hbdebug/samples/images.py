"""Images through Pillow, which only they need."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import DataError, UsageError
from hbdebug.samples.preparation import COLORS

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
    from PIL.Image import Image

    from hbdebug.samples.preparation import ImageSteps

    Array: TypeAlias = NDArray[Any]

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
"""Which files are images, in lower case."""

# 100 megapixels: what is larger is no input of a network on these chips.
_MOST_PIXELS = 10**8

# Pixels of that number at 8 bytes each, unpacked.
_LARGEST_FILE = 8 * _MOST_PIXELS


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageArray:
    """An image as the array it becomes, without the batch dimension.

    Attributes:
        file: The file.
        shape: In the layout of the input.
        dtype: Always uint8.
        steps: What is done to it.
    """

    file: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    steps: ImageSteps

    @property
    def where(self) -> str:
        """Where the image is, for messages."""
        return str(self.file)

    def read(self, row: int | None = None) -> Array:
        """Decode the image, and bring it to its size, color and layout.

        Raises:
            DataError: It cannot be decoded, or not without loss.
        """
        assert row is None, "an image is one sample"
        with _opened(self.file) as image:
            array = self._array(image)
        array = array.reshape(*array.shape[:2], COLORS[self.steps.color])
        if self.steps.layout == "nchw":
            array = array.transpose(2, 0, 1)
        return np.ascontiguousarray(array)

    def _array(self, image: Image) -> Array:
        from PIL import Image as pillow  # noqa: N813 - an extra

        image = image.convert("RGB")
        if self.steps.resize is not None:
            height, width = self.steps.resize
            image = image.resize((width, height), pillow.Resampling.BILINEAR)
        if self.steps.color == "gray":
            return np.asarray(image.convert("L"))
        if self.steps.color == "yuv444":
            return np.asarray(image.convert("YCbCr"))
        array: Array = np.asarray(image)
        return array[:, :, ::-1] if self.steps.color == "bgr" else array


def open_image(file: Path, steps: ImageSteps) -> ImageArray:
    """Read the header of an image.

    Raises:
        UsageError: Pillow is not installed.
        DataError: The file is no image, or not one of the size that the input has.
    """
    with _opened(file, decode=False) as image:
        width, height = image.size
    found = steps.resize or (height, width)
    wanted = tuple(mine or there for mine, there in zip(steps.wanted, found, strict=True))
    if found != wanted:
        sizes = f"{wanted[0]}x{wanted[1]}"
        raise DataError(
            f"the image is {height}x{width} (height x width), and the model wants {sizes}"
            if steps.resize is None
            else f"--resize gives {found[0]}x{found[1]}, and the model wants {sizes}",
            where=str(file),
            hint=f"Give --resize {sizes} to stretch images, or cut them yourself beforehand.",
        )
    channels = COLORS[steps.color]
    shape = (channels, *found) if steps.layout == "nchw" else (*found, channels)
    return ImageArray(file=file, shape=shape, dtype=np.dtype(np.uint8), steps=steps)


class _opened:  # noqa: N801 - used like the function `open`
    """An image whose decoder's errors and warnings become ours."""

    def __init__(self, file: Path, *, decode: bool = True) -> None:
        self._file, self._decode = file, decode
        self._image: Image | None = None

    def __enter__(self) -> Image:
        try:
            from PIL import Image as pillow  # noqa: N813 - an extra
        except ImportError as error:
            raise UsageError(
                "images are read with Pillow, which is not installed",
                where=str(self._file),
                hint="pip install 'hbdebug[images]'",
            ) from error
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                image = pillow.open(self._content(), formats=("PNG", "JPEG", "BMP"))
                self._image = image
                self._require_plain(image)
                if self._decode:
                    image.load()
                    self._require_opaque(image)
        except DataError:
            self._close()
            raise
        except Exception as error:  # damaged images make decoders raise almost anything
            self._close()
            reason = str(getattr(error, "strerror", None) or error) or type(error).__name__
            raise DataError(
                f"cannot be read as an image: {reason}",
                where=str(self._file),
                hint="The file is damaged, or no PNG, JPEG or BMP: make it again.",
            ) from error
        return image

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._image is not None:
            self._image.close()

    def _content(self) -> io.BytesIO:
        """Return the file in memory: of a file, decoders ask for as much as damaged sizes claim."""
        size = self._file.stat().st_size
        if size > _LARGEST_FILE:
            raise DataError(
                f"the image has {size} bytes, more than {_LARGEST_FILE} are not read",
                where=str(self._file),
            )
        return io.BytesIO(self._file.read_bytes())

    def _require_plain(self, image: Image) -> None:
        width, height = image.size
        if width * height > _MOST_PIXELS:
            raise DataError(
                f"the image has {width * height} pixels, more than {_MOST_PIXELS} are not read",
                where=str(self._file),
            )
        if image.mode not in {"1", "L", "P", "RGB", "RGBA", "LA", "PA"}:
            raise DataError(
                f"the image's mode is {image.mode}, which 8 bits in RGB do not hold unchanged",
                where=str(self._file),
                hint="Save it as 8-bit RGB or gray.",
            )

    def _require_opaque(self, image: Image) -> None:
        if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
            low, _ = image.convert("RGBA").getchannel("A").getextrema()
            if low != 255:
                raise DataError(
                    "the image is transparent in places, which no color stands for",
                    where=str(self._file),
                    hint="Save it without an alpha channel.",
                )
