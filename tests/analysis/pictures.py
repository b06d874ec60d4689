"""Synthetic inputs that are like real ones: pictures, feature maps, masks, spectrograms."""

from __future__ import annotations

import numpy as np

MEAN = np.array([0.485, 0.456, 0.406]).reshape(1, 3, 1, 1)
STD = np.array([0.229, 0.224, 0.225]).reshape(1, 3, 1, 1)


def pixels(seed, size=(48, 64), channels=3):
    """A picture with the spectrum of natural ones (amplitude 1/f), as bytes from black to white."""
    random = np.random.default_rng(seed)
    rows = np.fft.fftfreq(size[0])[:, None]
    columns = np.fft.fftfreq(size[1])[None, :]
    frequency = np.maximum(np.hypot(rows, columns), 1 / max(size))

    def plane():
        spectrum = np.fft.fft2(random.normal(size=size)) / frequency
        return np.fft.ifft2(spectrum).real

    shared = plane()
    planes = np.stack([shared + 0.3 * plane() for _ in range(channels)])
    low, high = (planes.reshape(channels, -1).min(1), planes.reshape(channels, -1).max(1))
    scaled = (planes - low[:, None, None]) / (high - low)[:, None, None]
    return np.rint(scaled * 255)[None].astype(np.float64)


def imagenet(image):
    """Normalize pixels in 0 ... 255 as torchvision documents it."""
    return (image / 255 - MEAN) / STD


def feature_map(seed, channels=32):
    """What random filters and a Relu make of a picture, at half its size."""
    random = np.random.default_rng(seed)
    image = pixels(seed, (50, 66))[0] / 255 - 0.5
    found = []
    for _ in range(channels):
        kernel = random.normal(size=(3, 3, 3))
        rows, columns = image.shape[1] - 2, image.shape[2] - 2
        parts = [
            kernel[c, i, j] * image[c, i : i + rows, j : j + columns]
            for c in range(3)
            for i in range(3)
            for j in range(3)
        ]
        found.append(np.maximum(np.sum(parts, axis=0), 0)[::2, ::2])
    return np.stack(found)[None]


def voice(seed, samples=8000):
    """A sound of a voice's kind: a few swelling harmonics and breath."""
    random = np.random.default_rng(seed)
    time = np.arange(samples) / 8000
    pitch = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * 2 * time)) / 8000
    tone = sum(np.sin(k * pitch) / k for k in range(1, 12))
    return tone * np.maximum(np.sin(2 * np.pi * 1.5 * time), 0) + 0.02 * random.normal(size=samples)


def short_time_spectrum(signal, window=256, step=128):
    """Complex spectrum of shape ``[frequencies, frames]``, with a Hann window."""
    starts = range(0, signal.size - window, step)
    frames = np.stack([signal[start : start + window] for start in starts])
    return np.fft.rfft(frames * np.hanning(window), axis=1).T
