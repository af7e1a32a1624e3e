"""Boxes within an image: cut out, or as a mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras_vit.data._imports import tf


def crop_to_box(image: tf.Tensor, crop: Callable[[Any], Any] | None) -> tf.Tensor:
    """The box that `crop` returns for the size of an image, see `decoder.Crop`; None for all."""
    if crop is None:
        return image
    box = crop(tf.shape(image)[:2])
    begin, size = tf.concat([box[:2], [0]], 0), tf.concat([box[2:], [-1]], 0)
    part = tf.slice(image, begin, size)
    part.set_shape((None, None, image.shape[-1]))
    return part


def box_mask(begin: Sequence[float], end: Sequence[float], size: Sequence[float]) -> tf.Tensor:
    """bool `(height, width, 1)`: which pixels lie in the box from `begin` to `end`, both (y, x)."""
    y, x = (tf.range(side, dtype=tf.float32) for side in size)
    rows, columns = (y >= begin[0]) & (y < end[0]), (x >= begin[1]) & (x < end[1])
    return (rows[:, None] & columns)[..., None]
