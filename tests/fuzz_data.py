"""Damaged calibration data: whatever lies in a file, it is a sample or a clear error.

``python -m tests.fuzz_data --count 50000 --seed 7`` tries so many files and says what came of them.
"""

from __future__ import annotations

import argparse
import io
import random
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np

from hbdebug.errors import HbdebugError
from hbdebug.samples import Preparation, TensorSpec, open_samples

SPECS = (
    TensorSpec(name="x", dtype="float32", shape=(1, 3, 4, 5)),
    TensorSpec(name="x", dtype="float32", shape=(None, 3, None, None)),
    TensorSpec(name="x", dtype="uint8", shape=(None, 4, 5, 3)),
    TensorSpec(name="x", dtype="int64", shape=(1, None)),
    TensorSpec(name="x", dtype="float16", shape=()),
    TensorSpec(name="x", dtype="bool", shape=(None,)),
)

# The largest honest file here has some kilobytes; a decoder takes some hundred for itself.
MOST_MEMORY = 8 << 20

_SHAPES = [
    (1, 3, 4, 5), (3, 4, 5), (7, 3, 4, 5), (2, 1, 3, 4, 5), (0, 3, 4, 5), (1, 4, 5, 3), (4, 5),
    (1, 9), (9,), (), (5, 7), (0,),
]  # fmt: skip
_DTYPES = ["float32", "float64", "uint8", "int64", "float16", "bool", ">f4", "complex64", "U3"]

# Lies for the place of a shape: negative, far beyond memory, of other types, far too many.
_LIES = [
    b"(-1, 60)", b"(99999999999, 3, 4, 5)", b"(0, 9223372036854775807)", b"(1.5, 3)", b"('a',)",
    b"(" + b"1," * 80 + b")", b"(1 << 40,)", b"(True, 3, 4, 5)", b"None", b"((1,),)",
    b"(1, 3, 4, 5000000000)", b"(4611686018427387904, 4)",
]  # fmt: skip


def honest(rng: random.Random) -> tuple[str, bytes]:
    """Return the suffix and content of a file as a user may give it."""
    kind = rng.choice([".npy", ".npz", ".bin", ".png", ".jpg", ".bmp"])
    array = _array(rng)
    buffer = io.BytesIO()
    if kind == ".npy":
        np.save(buffer, np.asfortranarray(array) if rng.random() < 0.2 else array)
    elif kind == ".npz":
        write = rng.choice([np.savez, np.savez_compressed])
        write(buffer, **{rng.choice(["x", "X", "y"]): array})
    elif kind == ".bin":
        return kind, array.tobytes()
    else:
        from PIL import Image

        mode = rng.choice(["RGB", "L", "RGBA", "P", "1", "I;16"] if kind == ".png" else ["RGB"])
        image = Image.new(mode, rng.choice([(5, 4), (5, 4), (31, 17)]))
        image.save(buffer, {".jpg": "JPEG"}.get(kind, kind[1:].upper()))
    return kind, buffer.getvalue()


def _array(rng: random.Random) -> np.ndarray:
    # Half of the arrays fit the first input, so that more than headers is read.
    plain = rng.random() < 0.5
    shape = rng.choice(_SHAPES[:4] if plain else _SHAPES)
    dtype = "float32" if plain else rng.choice(_DTYPES)
    values = np.random.default_rng(rng.randrange(1 << 32)).integers(0, 2, shape)
    return values.astype(dtype)


def damaged(rng: random.Random, content: bytes) -> bytes:
    """Return the content after some of what disks, transfers and malice do."""
    data = bytearray(content)
    for _ in range(rng.randrange(4)):
        what = rng.randrange(7)
        place = rng.randrange(len(data)) if data else 0
        near = min(place, rng.choice([16, 130, len(data)]))
        if what == 0:
            del data[place:]
        elif what == 1 and data:
            data[near - (near == len(data))] ^= 1 << rng.randrange(8)
        elif what == 2 and data:
            data[near - (near == len(data))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
        elif what == 3:
            data[place:place] = rng.randbytes(rng.randrange(1, 40))
        elif what == 4:
            start = data.find(b"'shape': ")
            stop = data.find(b")", start) + 1
            if start >= 0 and stop:
                lie = rng.choice(_LIES)
                data[start + 9 : stop] = lie
        elif what == 5:
            data[near : near + 4] = rng.choice([b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f"])
        else:
            data += content[: rng.randrange(len(content) + 1)]
    return bytes(data)


def preparation(rng: random.Random, suffix: str) -> Preparation:
    """Return something to do that fits the kind of file, often nothing."""
    numbers = {"mean": (1.0,), "scale": (0.5,)} if rng.random() < 0.2 else {}
    if rng.random() < 0.1:
        numbers["input_types"] = {"x": rng.choice(["RGB_128", "GRAY_128", "YUV444_128"])}
    if suffix == ".bin":
        dtypes = {"": rng.choice(["uint8", "float32"])} if rng.random() < 0.5 else {}
        shapes = {"": rng.choice(_SHAPES)} if rng.random() < 0.3 else {}
        return Preparation(dtypes=dtypes, shapes=shapes, **numbers)
    if suffix in {".npy", ".npz"}:
        return Preparation(split_batch=rng.random() < 0.5, **numbers)
    return Preparation(
        resize=rng.choice(["", "model", (4, 5), (3, 3)]),
        color=rng.choice(["", "rgb", "bgr", "gray", "yuv444"]),
        layout=rng.choice(["", "nchw", "nhwc"]),
        **numbers,
    )


def attempt(folder: Path, rng: random.Random) -> str:
    """Give one file to the reader.

    Returns:
        ``sample``, or the name of the error that refused it.

    Raises:
        AssertionError: What it read is not what the input takes.
        Exception: Anything but the errors that are meant for the user.
    """
    suffix, content = honest(rng)
    spec = SPECS[0] if rng.random() < 0.5 else rng.choice(SPECS)
    asked = preparation(rng, suffix)
    if rng.random() < 0.05:
        suffix = rng.choice([".npy", ".npz", ".bin", ".png"])
    file = folder / f"0{suffix}"
    file.write_bytes(damaged(rng, content))
    try:
        samples = open_samples(file, [spec], preparation=asked, skip_bad=rng.random() < 0.3)
        arrays = [sample["x"] for _, sample in samples]
    except HbdebugError as error:
        return type(error).__name__
    finally:
        file.unlink()
    for array in arrays:
        assert array.dtype == spec.dtype
        assert len(array.shape) == len(spec.shape)
        assert all(want in {None, size} for size, want in zip(array.shape, spec.shape, strict=True))
        assert array.dtype.kind != "f" or np.isfinite(array).all()
    return "sample"


def fuzz(count: int, seed: int, *, memory: bool = True) -> Counter[str]:
    """Try ``count`` damaged files.

    Args:
        count: How many.
        seed: Of everything that is drawn.
        memory: Whether to watch how much memory each takes; slower.

    Returns:
        How many became samples, and how many were refused with which error.

    Raises:
        AssertionError: A file was neither; the message says which.
    """
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        if memory:
            tracemalloc.start()
        try:
            for number in range(count):
                tracemalloc.reset_peak()
                before = tracemalloc.get_traced_memory()[0]
                try:
                    found[attempt(Path(folder), random.Random(f"{seed} {number}"))] += 1
                except Exception as error:
                    raise AssertionError(f"file {number} of seed {seed}: {error!r}") from error
                taken = tracemalloc.get_traced_memory()[1] - before
                assert taken < MOST_MEMORY, f"file {number} of seed {seed}: {taken} bytes"
        finally:
            tracemalloc.stop()
    return found


def replay(seed: int, number: int) -> str:
    """Try one file again, alone."""
    with tempfile.TemporaryDirectory() as folder:
        return attempt(Path(folder), random.Random(f"{seed} {number}"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Try damaged data files.")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.stdout.write(f"{dict(fuzz(arguments.count, arguments.seed, memory=False))}\n")
