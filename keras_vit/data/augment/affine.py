"""Rotation, zoom, shear and shift of one image in a single bilinear interpolation."""

from __future__ import annotations

import math
from typing import Any

from keras_vit.data._imports import tf


def random_affine(
    image: tf.Tensor,
    seed: tf.Tensor,
    rotation: float = 0.0,
    zoom: float = 0.0,
    shear: float = 0.0,
    shift: float = 0.0,
) -> tf.Tensor:
    """Changes the geometry of one image, by amounts drawn evenly on either side of no change.

    What comes in from outside the image is black. Around the center: the row of an output pixel
    follows from its place by rotation, then zoom of each axis by itself, then shear along x.

    Args:
        image: float tensor of shape `(height, width, channels)`.
        seed: integer tensor of shape `(2,)`; the same seed gives the same change.
        rotation: largest angle in degrees.
        zoom: largest logarithm of the factor by which each axis is scaled, such as 0.1 for 10 %.
        shear: largest shift along x per pixel along y.
        shift: largest shift in pixels along each axis, fractions of a pixel included.

    Returns:
        float32 tensor of the shape of `image`.

    Example:
        >>> import tensorflow as tf
        >>> random_affine(tf.ones((8, 8, 1)), (0, 1), rotation=15).shape.as_list()
        [8, 8, 1]
    """
    draws = tf.random.stateless_uniform((6,), seed, -1.0, 1.0)
    angle = draws[0] * math.radians(rotation)
    across, along = tf.exp(draws[1] * zoom), tf.exp(draws[2] * zoom)
    cos, sin = tf.cos(angle), tf.sin(angle)
    # Output pixel (x, y), from the center, is taken from (a x + b y, d x + e y).
    a, b = cos * across, draws[3] * shear - sin * across
    d, e = sin * along, cos * along
    height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
    x, y = (width - 1) / 2, (height - 1) / 2
    begin_x = x - a * x - b * y + draws[4] * shift
    begin_y = y - d * x - e * y + draws[5] * shift
    return transform(image, (a, b, begin_x, d, e, begin_y), "BILINEAR")


def transform(
    image: tf.Tensor, matrix: tuple[Any, ...], interpolation: str, fill_value: float = 0.0
) -> tf.Tensor:
    """Takes output pixel (x, y) from (a x + b y + c, d x + e y + f)."""
    row = tf.stack([tf.cast(value, tf.float32) for value in (*matrix, 0, 0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=row[None],
        output_shape=tf.shape(image)[:2],
        fill_value=fill_value,
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )[0]
