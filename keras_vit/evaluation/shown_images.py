"""Some images of a split, decoded to be looked at."""

from collections.abc import Sequence
from itertools import islice

import numpy as np

from keras_vit import data
from keras_vit.data.decode.rasters import shown


def images_at(
    split: data.Split, indices: Sequence[int], largest: int | None = None
) -> list[np.ndarray]:
    """Return some images of a split, decoded and not cropped.

    Args:
        largest: The larger side in pixels to which larger images are reduced as soon as they are
            decoded, so that a few photographs do not fill the memory; None keeps their size.

    Returns:
        uint8 arrays `(height, width, 3)`, in the order of `indices`; bands as
        `keras_vit.data.decode.rasters.shown` makes them.

    Raises:
        ValueError: An index is outside the split.

    >>> [image.shape for image in images_at(data.load("digits").val, [5, 3])]
    [(8, 8, 3), (8, 8, 3)]
    """
    if not indices:
        return []
    if min(indices) < 0 or max(indices) >= len(split):
        raise ValueError(
            f"indices from {min(indices)} to {max(indices)} are not all examples of {split!r}. "
            f"Give integers from 0 to {len(split) - 1}."
        )
    ascending, channels = sorted(set(indices)), 3 if split.bands is None else split.channels
    if split.skips:  # where only those that decode are counted
        places = set(ascending)
        decoded = enumerate(islice(split.decoded(channels), ascending[-1] + 1))
        images = [image for place, (image, _) in decoded if place in places]
    else:
        images = [image for image, _ in split.decoded(channels, ascending)]
    if split.bands is not None:
        images = [shown(image) for image in images]
    by_index = dict(zip(ascending, (_reduced(image, largest) for image in images), strict=True))
    return [by_index[index] for index in indices]


def _reduced(image: np.ndarray, largest: int | None) -> np.ndarray:
    if largest is None or max(image.shape[:2]) <= largest:
        return image
    from PIL import Image

    is_gray = image.shape[-1] == 1
    reduced = Image.fromarray(image[..., 0] if is_gray else image)
    reduced.thumbnail((largest, largest))
    pixels = np.asarray(reduced)
    return pixels[..., None] if is_gray else pixels
