"""Mutated data files: every one is a sample or a clear error, soon and in little memory.

    python -m tests.fuzz_data --count 20000 --seed 0

Files of every kind are cut, flipped, spliced and given heads that lie; then they are opened as the
samples of inputs of several shapes. What may come out is samples, or an `HbdebugError`.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from hbdebug.errors import HbdebugError
from hbdebug.samples import TensorSpec, open_samples

SPECS = (
    TensorSpec(name="x", dtype="float32", shape=(1, 3, 4, 5)),
    TensorSpec(name="x", dtype="float32", shape=(None, 3, None, None), batched=True),
    TensorSpec(name="x", dtype="int64", shape=(1, None)),
    TensorSpec(name="x", dtype="uint8", shape=(4, 5, 3)),
    TensorSpec(name="x", dtype="float16", shape=()),
)

# A sample of these inputs takes a few hundred bytes; what decoders hold is below this.
_MEMORY = 64 << 20
_SECONDS = 20.0


def seeds(random: np.random.Generator) -> dict[str, bytes]:
    """Return files that are right, by their names."""
    array = random.random((1, 3, 4, 5)).astype(np.float32)
    found = {"0.bin": array.tobytes()}
    for name, value in {"0.npy": array, "1.npy": np.asfortranarray(np.repeat(array, 3, 0))}.items():
        stream = io.BytesIO()
        np.save(stream, value)
        found[name] = stream.getvalue()
    for name, save in {"0.npz": np.savez, "1.npz": np.savez_compressed}.items():
        stream = io.BytesIO()
        save(stream, x=np.repeat(array, 2, 0))
        found[name] = stream.getvalue()
    pixels = random.integers(0, 256, (4, 5, 3), np.uint8)
    for suffix, form in ((".png", "PNG"), (".jpg", "JPEG"), (".bmp", "BMP")):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, form)
        found[f"0{suffix}"] = stream.getvalue()
    return found


def mutated(content: bytes, others: list[bytes], random: np.random.Generator) -> bytes:
    """Return a file with one to four faults."""
    data = bytearray(content)
    for _ in range(random.integers(1, 5)):
        kind = random.integers(6)
        at = int(random.integers(len(data) + 1))
        if kind == 0:
            del data[at:]
        elif kind == 1 and data:
            data[at % len(data)] = int(random.integers(256))
        elif kind == 2:
            data[at:at] = random.bytes(int(random.integers(1, 40)))
        elif kind == 3:
            other = others[int(random.integers(len(others)))]
            data[at:] = other[int(random.integers(len(other))) :]
        elif kind == 4:
            # A number in a head, made large: sizes and offsets are lies then.
            data[at : at + 4] = b"\xff\xff\xff\x7f"
        else:
            head = bytes(data)
            digits = random.choice([b"(1, 3", b"4, 5", b"'<f4'", b"False"])
            lie = random.choice([b"(-1, 9", b"99999999999", b"'|O8'", b"(((("])
            data = bytearray(head.replace(digits, lie))
    return bytes(data)


def run(count: int, seed: int) -> Counter[str]:
    """Open mutated files; return how many gave what.

    Raises:
        AssertionError: One took too long or too much memory.
        Exception: Anything but an `HbdebugError` came out.
    """
    random = np.random.default_rng(seed)
    files = seeds(random)
    names = list(files)
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        tracemalloc.start()
        for number in range(count):
            name = names[number % len(names)]
            path = Path(folder) / name
            path.write_bytes(mutated(files[name], list(files.values()), random))
            spec = SPECS[int(random.integers(len(SPECS)))]
            started = time.monotonic()
            tracemalloc.reset_peak()
            try:
                samples = open_samples(path, [spec])
                for _ in samples:
                    pass
                outcomes["samples"] += 1
            except HbdebugError as error:
                outcomes[type(error).__name__] += 1
            except BaseException as error:
                kept = Path(tempfile.gettempdir()) / f"hbdebug-fuzz-{seed}-{number}-{name}"
                kept.write_bytes(path.read_bytes())
                raise RuntimeError(f"{kept} as {spec}") from error
            assert tracemalloc.get_traced_memory()[1] < _MEMORY, (name, number, spec)
            assert time.monotonic() - started < _SECONDS, (name, number, spec)
            path.unlink()
        tracemalloc.stop()
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(dict(run(arguments.count, arguments.seed)))  # noqa: T201 - the script's result


if __name__ == "__main__":
    main()
