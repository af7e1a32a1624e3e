"""The mean and the standard deviation of each band, over the images that a model is trained on."""

from typing import TypeAlias

import numpy as np

from keras_vit.data.sources.splits import Split

# The mean and the standard deviation of each channel.
Statistics: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]


def band_statistics(split: Split) -> Statistics:
    """Return the means and standard deviations of a split's bands, over all pixels of all images.

    In the files' own range: what `normalization=` of a model takes. Every file is read once. Pixels
    without a value do not count, unless `load(nodata=)` wrote a number there.

    Args:
        split: One that was loaded with `bands`, mostly `splits.train`: a model must not know
            anything of validation images.

    Raises:
        ValueError: The split has photographs, no image can be read, or a band has one value alone
            or none.

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
    images, (count, mean, squares) = 0, np.zeros((3, split.channels))
    for image, _ in split.decoded(split.channels):
        pixels = image.reshape(-1, split.channels).astype("float64")
        values, images = np.isfinite(pixels), images + 1
        # Chan, Golub and LeVeque (1979): as exact for large values as two passes.
        added = values.sum(axis=0)
        total = np.maximum(count + added, 1)
        new = np.where(values, pixels, 0).sum(axis=0) / np.maximum(added, 1)
        squares += (np.where(values, pixels - new, 0) ** 2).sum(axis=0)
        squares += (new - mean) ** 2 * (count * added / total)
        mean += (new - mean) * (added / total)
        count += added
    if not images:
        raise ValueError(f"No image of {split!r} can be read: see its report.")
    if not count.all():
        raise ValueError(
            f"Band {split.bands[int(count.argmin())]} does not have a value in any pixel of "
            f"{split!r}: leave it out of bands."
        )
    stds = np.sqrt(squares / count)
    for band, value, std in zip(split.bands, mean, stds, strict=True):
        if not std > 1e-6 * abs(value):
            raise ValueError(
                f"Band {band} is {value:.6g} in every pixel of {split!r}, and says nothing: leave "
                "it out of bands."
            )
    return tuple(map(float, mean)), tuple(map(float, stds))
