"""The mean and the standard deviation of each band, over the images that a model is trained on."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from keras_vit.data.sources.splits import Split

# The mean and the standard deviation of each channel.
Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]


def band_statistics(split: Split) -> Statistics:
    """The means and standard deviations of the bands over all pixels of all images of a split.

    In the files' own range: what `normalization=` of a model takes. Every file is read once.

    Args:
        split: One that was loaded with `bands`, mostly `splits.train`: a model must not know
            anything of validation images.

    Raises:
        ValueError: The split has photographs, no image can be read, or a band has one value alone.

    Example:
        >>> import tempfile, pathlib
        >>> from keras_vit.data import load
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for i in range(8):
        ...     file = folder / "ab"[i % 2] / f"{i}.npy"
        ...     file.parent.mkdir(exist_ok=True)
        ...     np.save(file, np.full((4, 4, 2), 1000 * i, "uint16"))
        >>> splits = load(folder, bands="all", val_fraction=0.25)
        >>> means, stds = band_statistics(splits.train)
        >>> len(means), len(stds)
        (2, 2)
    """
    if split.bands is None:
        raise ValueError(f"{split!r} has photographs, 0..255: load rasters with bands='all'.")
    count, mean, squares = 0, np.zeros(split.channels), np.zeros(split.channels)
    for image, _ in split.decoded(split.channels):
        pixels = image.reshape(-1, split.channels).astype("float64")
        # Chan, Golub and LeVeque (1979): as exact for large values as two passes.
        new, total = pixels.mean(axis=0), count + len(pixels)
        squares += ((pixels - new) ** 2).sum(axis=0)
        squares += (new - mean) ** 2 * (count * len(pixels) / total)
        mean += (new - mean) * (len(pixels) / total)
        count = total
    if not count:
        raise ValueError(f"No image of {split!r} can be read: see its report.")
    stds = np.sqrt(squares / count)
    for band, value, std in zip(split.bands, mean, stds, strict=True):
        if not std > 1e-6 * abs(value):
            raise ValueError(
                f"Band {band} is {value:.6g} in every pixel of {split!r}, and says nothing: leave "
                "it out of bands."
            )
    return tuple(map(float, mean)), tuple(map(float, stds))
