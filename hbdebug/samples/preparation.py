"""How the data that the user gives become what the model's inputs take.

The order is fixed, and a step that is not asked for is left out: decode (images, to RGB as
stored), resize, color, float32, + offset, - mean, * scale, layout, batch dimension, the model's
dtype. The arithmetic is that of float32, one operation after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hbdebug.errors import DataError, UsageError
from hbdebug.npy import Want, convert
from hbdebug.samples.specs import listed, wanted_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hbdebug.samples.specs import TensorSpec

    Array: TypeAlias = NDArray[Any]

COLORS = {"rgb": 3, "bgr": 3, "gray": 1, "yuv444": 3}
"""Channels by name of the color that images are turned into."""

# What an image input of the chip (its HzPreprocess node) calls the colors we can make.
_COLOR_OF_TYPE = {"RGB": "rgb", "BGR": "bgr", "GRAY": "gray", "YUV_BT601_FULL_RANGE": "yuv444"}

# Above it no value of 8 bits minus 128 can be.
_HIGHEST_OF_128 = 127


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """What the user asks to be done to the data; the default changes nothing.

    Attributes:
        dtypes: Dtype of raw files by input; the key ``""`` stands for every other input. Where
            there is none, the model's.
        shapes: Shape of raw files by input, likewise.
        resize: Height and width that images are brought to; ``model`` for those of the input.
        color: ``rgb``, ``bgr``, ``gray`` or ``yuv444``; empty for what fits the input.
        layout: ``nchw`` or ``nhwc``, the layout of image inputs; empty where the shape shows it.
        offset: Is added first: one number, or one for each channel.
        mean: Is subtracted then, likewise.
        scale: Is multiplied by then, likewise.
        split_batch: Whether files of several samples are split where the model would take them
            whole, its first dimension being open.
        input_types: ``input_type`` of the HzPreprocess node behind an input, by input.
    """

    dtypes: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    resize: tuple[int, int] | str = ""
    color: str = ""
    layout: str = ""
    offset: tuple[float, ...] = ()
    mean: tuple[float, ...] = ()
    scale: tuple[float, ...] = ()
    split_batch: bool = True
    input_types: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what can be meant for no model.

        Raises:
            UsageError: A name or number makes no sense.
        """
        if self.color and self.color not in COLORS:
            raise UsageError(f"no such color: {self.color!r}", hint=f"There are: {_all(COLORS)}.")
        if self.layout not in {"", "nchw", "nhwc"}:
            raise UsageError(f"no such layout: {self.layout!r}", hint="There are: nchw, nhwc.")
        if (
            self.resize not in {"", "model"}
            if isinstance(self.resize, str)
            else min(self.resize) < 1
        ):
            raise UsageError(
                f"{self.resize!r} is no size of images", hint="Give height x width, or 'model'."
            )
        for dtype in self.dtypes.values():
            if not _is_number_type(dtype):
                raise UsageError(
                    f"no such dtype: {dtype!r}",
                    hint="There are: uint8, int8, int16, int32, int64, float16, float32, float64.",
                )
        for name in ("offset", "mean", "scale"):
            if not np.isfinite(getattr(self, name)).all():
                raise UsageError(f"the {name} is not finite")

    def asked(self) -> dict[str, Any]:
        """Return what differs from the default, JSON-ready, for records and journals."""
        found: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "split_batch":
                found |= {} if value else {item.name: False}
            elif value and item.name != "input_types":
                found[item.name] = dict(value) if item.name in {"dtypes", "shapes"} else value
        return found

    def check(self, specs: Sequence[TensorSpec]) -> None:
        """Refuse names of inputs that the model does not have.

        Raises:
            UsageError: There is one.
        """
        known = {"", *(spec.name for spec in specs)}
        wrong = [name for name in {**self.dtypes, **self.shapes} if name not in known]
        if wrong:
            raise UsageError(f"the model has no input {listed(wrong)}", hint=wanted_inputs(specs))

    def raw_dtype(self, spec: TensorSpec) -> np.dtype[Any]:
        """Return the dtype of an input's raw files, little-endian as the vendor's."""
        name = self.dtypes.get(spec.name, self.dtypes.get("", spec.dtype))
        return np.dtype(name).newbyteorder("<")

    def raw_shape(self, spec: TensorSpec) -> tuple[int | None, ...]:
        """Return the shape of an input's raw files as far as it is known."""
        return self.shapes.get(spec.name, self.shapes.get("", spec.shape))

    def image(self, spec: TensorSpec) -> ImageSteps:
        """Return what is done to the images of an input.

        Raises:
            DataError: The input cannot take images, or not without more options.
        """
        where = f"input '{spec.name}'"
        if len(spec.shape) not in {3, 4} or spec.shape[:-3] not in {(), (1,), (None,)}:
            raise DataError(
                f"images are given, and it has {len(spec.shape)} dimensions"
                if len(spec.shape) != 4
                else f"images are given, and its batch is {spec.shape[0]}",
                where=where,
                hint="An image input is [1,C,H,W] or [1,H,W,C]. Give arrays (.npy) instead.",
            )
        layout = self.layout or _layout(spec.shape[-3:])
        if not layout:
            raise DataError(
                f"the shape {list(spec.shape)} does not tell whether it is NCHW or NHWC",
                where=where,
                hint="Give --layout nchw or --layout nhwc.",
            )
        channel, height, width = (
            spec.shape[-3:] if layout == "nchw" else (spec.shape[-1], *spec.shape[-3:-1])
        )
        color = self.color or self._color(spec, channel)
        if channel not in {None, COLORS[color]}:
            raise DataError(
                f"{color} images have {COLORS[color]} channels, and the input has {channel}",
                where=where,
                hint="Give --color gray for one channel and --color rgb or bgr for three, or "
                "--layout if the channels are meant to be elsewhere.",
            )
        if self.resize == "model" and not (height and width):
            raise DataError(
                "the model does not say which size images have",
                where=where,
                hint="Give the size: --resize HEIGHTxWIDTH.",
            )
        size = (height or 0, width or 0) if self.resize == "model" else self.resize
        return ImageSteps(
            resize=None if isinstance(size, str) else size,
            color=color,
            layout=layout,
            wanted=(height, width),
        )

    def _color(self, spec: TensorSpec, channel: int | None) -> str:
        kind = self.input_types.get(spec.name, "")
        if not kind or kind.startswith("FEATURE"):
            return "gray" if channel == 1 else "rgb"
        color = _COLOR_OF_TYPE.get(kind.rpartition("_")[0], "")
        if not color:
            raise DataError(
                f"its type is {kind}, and images are not turned into that by themselves",
                where=f"input '{spec.name}'",
                hint="Give --color yuv444 if the full range of BT.601 (as in JPEG files) is "
                "meant; else prepare the data yourself and give arrays (.npy).",
            )
        return color

    def arithmetic(self, spec: TensorSpec, *, images: bool, applies: bool) -> Arithmetic:
        """Return what is computed with the values of an input.

        Args:
            spec: The input.
            images: Whether its data are images: then an input of type ``..._128`` takes them
                minus 128 without being asked.
            applies: Whether offset, mean and scale are for this input.

        Raises:
            UsageError: The numbers do not fit the channels.
        """
        of_128 = self.input_types.get(spec.name, "").endswith("_128")
        offset = self.offset if applies else ()
        automatic = of_128 and images and not offset
        steps = {
            "offset": (-128.0,) if automatic else offset,
            "mean": self.mean if applies else (),
            "scale": self.scale if applies else (),
        }
        longest = max(map(len, steps.values()))
        axis = 0
        if longest > 1:
            layout = self.layout or _layout(spec.shape[-3:])
            if len(spec.shape) not in {3, 4} or not layout:
                raise UsageError(
                    "its shape does not tell which dimension holds the channels that the values "
                    "of --offset, --mean and --scale are for",
                    where=f"input '{spec.name}'",
                    hint="Give --layout nchw or --layout nhwc, or one value for all channels.",
                )
            axis = -3 if layout == "nchw" else -1
            for name, values in steps.items():
                size = spec.shape[axis]
                if len(values) > 1 and size not in {None, len(values)}:
                    raise UsageError(
                        f"--{name} has {len(values)} values, and the input {size} channels",
                        where=f"input '{spec.name}'",
                        hint="Give one value, or one for each channel.",
                    )
        return Arithmetic(
            **steps,
            axis=axis,
            kind=self.input_types.get(spec.name, ""),
            guarded=of_128 and not images and not self.offset,
            automatic=automatic,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageSteps:
    """What is done to an image before anything is computed with its values.

    Attributes:
        resize: Height and width to bring it to; None to leave it.
        color: What its channels are to be.
        layout: ``nchw`` or ``nhwc``.
        wanted: Height and width of the input; None where the model leaves them open.
    """

    resize: tuple[int, int] | None
    color: str
    layout: str
    wanted: tuple[int | None, int | None]

    def words(self) -> list[str]:
        """Say the steps in order."""
        size = [f"resize {self.resize[0]}x{self.resize[1]} bilinear"] if self.resize else []
        color = {
            "rgb": "RGB",
            "bgr": "RGB->BGR",
            "gray": "gray (BT.601 luma)",
            "yuv444": "RGB->YUV444 (BT.601, full range)",
        }
        return [*size, color[self.color]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Arithmetic:
    """What is computed with the values of an input: ``(x + offset - mean) * scale``.

    Attributes:
        offset: One number, one for each channel, or none.
        mean: Likewise.
        scale: Likewise.
        axis: Dimension of the channels, where there is more than one number.
        kind: The type of an image input of the chip; empty for others.
        guarded: Whether values that cannot be minus 128 are refused.
        automatic: Whether the offset comes from the input's type.
    """

    offset: tuple[float, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    axis: int
    kind: str
    guarded: bool
    automatic: bool

    def __bool__(self) -> bool:
        """Tell whether anything is computed."""
        return bool(self.offset or self.mean or self.scale)

    def apply(self, array: Array, spec: TensorSpec, where: str) -> Array:
        """Compute, in float32.

        Args:
            array: In the layout of the input.
            spec: The input.
            where: File, for messages.

        Raises:
            DataError: Pixels are given as they are to an input that takes them minus 128; there
                are not as many channels as values; or float32 does not hold a value.
        """
        if self.guarded:
            self._require_minus_128(array, spec, where)
        if not self:
            return array
        with np.errstate(over="ignore", invalid="ignore"):
            result = np.array(convert(array, _in_float32(spec), where))
            for name, operation in (
                ("offset", np.add), ("mean", np.subtract), ("scale", np.multiply)
            ):  # fmt: skip
                values = getattr(self, name)
                if values:
                    operation(result, self._shaped(name, values, result, where), out=result)
            # What was computed is rounded to the input's type; nothing in a file is.
            return result.astype(np.float16) if spec.dtype == "float16" else result

    def _shaped(self, name: str, values: tuple[float, ...], array: Array, where: str) -> Array:
        numbers = np.array(values, np.float32)
        if len(values) == 1:
            return numbers[0]  # type: ignore[no-any-return]
        if len(values) != array.shape[self.axis]:
            raise DataError(
                f"--{name} has {len(values)} values, and there are {array.shape[self.axis]} "
                "channels",
                where=where,
            )
        return numbers.reshape(-1, *[1] * (-1 - self.axis))

    def _require_minus_128(self, array: Array, spec: TensorSpec, where: str) -> None:
        if array.dtype == np.uint8:
            what = "and the file holds uint8"
        elif array.size and array.max() > _HIGHEST_OF_128:
            what = f"and the file holds values up to {array.max():g}"
        else:
            return
        raise DataError(
            f"input '{spec.name}' takes pixels minus 128 (its type is {self.kind}), {what}",
            where=where,
            hint="Give --offset -128 if these are pixels from 0 to 255, or --offset 0 to take "
            "the values as they are.",
        )

    def words(self) -> list[str]:
        """Say the steps in order."""
        if not self:
            return []
        found = ["float32"]
        for sign, name in (("+", "offset"), ("-", "mean"), ("*", "scale")):
            values = getattr(self, name)
            if values:
                numbers = ", ".join(f"{value:g}" for value in values)
                found.append(f"{sign} {name} {numbers if len(values) == 1 else f'[{numbers}]'}")
        if self.automatic:
            found[1] += f" (the input's type is {self.kind})"
        return found


def _in_float32(spec: TensorSpec) -> Want:
    what = f"{spec.want.what} is computed in float32: it"
    return Want(what=what, dtype="float32", shape=spec.shape)


def _layout(shape: Sequence[int | None]) -> str:
    """Tell the layout of an image input from its last three sizes; empty if they do not tell."""
    if len(shape) != 3:
        return ""
    first, last = shape[0] in {1, 3}, shape[2] in {1, 3}
    if first == last:
        return "nchw" if first and shape[0] == 3 and shape[2] == 1 else ""
    return "nchw" if first else "nhwc"


def _is_number_type(name: str) -> bool:
    try:
        return np.dtype(name).kind in "fiub"
    except TypeError:
        return False


def _all(names: Mapping[str, int]) -> str:
    return ", ".join(names)
