"""Whether an exported file predicts what its model does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

# The largest difference between probabilities, and with int8 their mean total variation.
TOLERANCE = 1e-3
INT8_TOLERANCE = 0.25
# One image alone and some together: the batch is free.
BATCHES = (1, 7)


def check_images(size: tuple[int, int], channels: int) -> np.ndarray:
    """Smooth colored patterns, uint8 `(8, height, width, channels)`: the same on every machine."""
    height, width = size
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    images = []
    for i in range(sum(BATCHES)):
        random = np.random.default_rng(i)
        waves = [
            np.sin(2 * np.pi * (random.uniform(-6, 6) * x + random.uniform(-6, 6) * y) + phase)
            for phase in random.uniform(0, 6, (channels * 4))
        ]
        images.append(np.stack([sum(waves[c::channels]) for c in range(channels)], -1))
    return np.clip(127.5 + 50 * np.stack(images), 0, 255).astype("uint8")


def check_agreement(
    run: Callable[[np.ndarray], np.ndarray],
    images: np.ndarray,
    expected: np.ndarray,
    quantized: bool,
) -> None:
    """Runs an exported file on batches of two sizes, and refuses it where it differs.

    Args:
        run: From pixels to probabilities.
        images: uint8 `(8, height, width, channels)`.
        expected: The model's probabilities `(8, classes)`.
        quantized: Whether int8 rounds them.

    Raises:
        RuntimeError: Its probabilities differ; the message has the greatest difference.
    """
    start = 0
    for rows in BATCHES:
        part = slice(start, start + rows)
        outputs, truth, start = run(images[part]), expected[part], start + rows
        if outputs.shape != truth.shape:
            raise RuntimeError(
                f"it returns probabilities {outputs.shape} for {rows} images and "
                f"{truth.shape[1]} classes"
            )
        difference = np.abs(outputs - truth)
        if not np.isfinite(difference).all():
            raise RuntimeError("it returns values that are not finite")
        if quantized and (moved := difference.sum(1).mean() / 2) > INT8_TOLERANCE:
            raise RuntimeError(f"int8 moves {moved:.0%} of the probability to other classes")
        if not quantized and difference.max() > TOLERANCE:
            raise RuntimeError(
                f"its probabilities differ from the model's by up to {difference.max():.2g}"
            )
