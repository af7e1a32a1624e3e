"""Rotation, zoom, shear and shift of one image in a single bilinear interpolation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from keras_vit.data._imports import tf
from keras_vit.data.arrays import Array, array_namespace, transform_array


def random_affine(
    image: Array,
    seed: Array,
    rotation: float = 0.0,
    zoom: float = 0.0,
    shear: float = 0.0,
    shift: float = 0.0,
) -> Array:
    """Changes the geometry of one image, by amounts drawn evenly on either side of no change.

    What comes in from outside the image is black. Around the center: the row of an output pixel
    follows from its place by rotation, then zoom of each axis by itself, then shear along x.

    Args:
        image: float array or tensor of shape `(height, width, channels)`.
        seed: integers of shape `(2,)`; the same seed gives the same change.
        rotation: largest angle in degrees.
        zoom: largest logarithm of the factor by which each axis is scaled, such as 0.1 for 10 %.
        shear: largest shift along x per pixel along y.
        shift: largest shift in pixels along each axis, fractions of a pixel included.

    Returns:
        float32, of the kind and shape of `image`.

    Example:
        >>> random_affine(np.ones((8, 8, 1), "float32"), (0, 1), rotation=15).shape
        (8, 8, 1)
    """
    xp = array_namespace(image)
    draws = xp.random.stateless_uniform((6,), seed, -1.0, 1.0)
    angle = draws[0] * math.radians(rotation)
    across, along = xp.exp(draws[1] * zoom), xp.exp(draws[2] * zoom)
    cos, sin = xp.cos(angle), xp.sin(angle)
    # Output pixel (x, y), from the center, is taken from (a x + b y, d x + e y).
    a, b = cos * across, draws[3] * shear - sin * across
    d, e = sin * along, cos * along
    height, width = xp.unstack(xp.cast(xp.shape(image)[:2], xp.float32))
    x, y = (width - 1) / 2, (height - 1) / 2
    begin_x = x - a * x - b * y + draws[4] * shift
    begin_y = y - d * x - e * y + draws[5] * shift
    return transform(image, (a, b, begin_x, d, e, begin_y), "BILINEAR")


def transform(
    image: Array, matrix: tuple[Any, ...], interpolation: str, fill_value: float = 0.0
) -> Array:
    """Takes output pixel (x, y) from (a x + b y + c, d x + e y + f)."""
    if isinstance(image, np.ndarray):
        return transform_array(image, matrix, interpolation, fill_value)
    row = tf.stack([tf.cast(value, tf.float32) for value in (*matrix, 0, 0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=row[None],
        output_shape=tf.shape(image)[:2],
        fill_value=fill_value,
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )[0]
