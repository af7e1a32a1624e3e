"""Boxes within an image: cut out, or as a mask."""

from collections.abc import Callable, Sequence
from typing import Any

from keras_vit.data.arrays import Array, array_namespace


def crop_to_box(image: Array, crop: Callable[[Any], Any] | None) -> Array:
    """Cut the box that `crop` returns for the image's size (`decoder.Crop`); None: keep it all."""
    if crop is None:
        return image
    xp = array_namespace(image)
    box = crop(xp.shape(image)[:2])
    begin, size = xp.concat([box[:2], [0]], 0), xp.concat([box[2:], [-1]], 0)
    return xp.ensure_shape(xp.slice(image, begin, size), (None, None, image.shape[-1]))


def box_mask(begin: Array, end: Array, size: Sequence[Any]) -> Array:
    """bool `(height, width, 1)`: which pixels lie in the box from `begin` to `end`, both (y, x)."""
    xp = array_namespace(begin)
    y, x = (xp.range(side, dtype=xp.float32) for side in size)
    rows, columns = (y >= begin[0]) & (y < end[0]), (x >= begin[1]) & (x < end[1])
    return (rows[:, None] & columns)[..., None]
