"""Rotation, zoom, shear and shift of one image in a single bilinear interpolation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from keras_vit.data._imports import tf
from keras_vit.data.arrays import Array, transform_array
from keras_vit.data.augment.change import Change, Draws, matrix_rows

_LARGEST = {"rotation": 180, "zoom": 1, "shear": 1}


@dataclass(frozen=True)
class Affine(Change):
    """Changes the geometry by amounts drawn evenly on either side of no change.

    What comes in from outside the image is black. Around the center: the row of an output pixel
    follows from its place by rotation, then zoom of each axis by itself, then shear along x.

    Args:
        rotation: largest angle in degrees.
        zoom: largest logarithm of the factor by which each axis is scaled, such as 0.1 for 10 %.
        shear: largest shift along x per pixel along y.
        shift: largest shift in pixels along each axis: in whole pixels where it is alone.
    """

    rotation: float = 0.0
    zoom: float = 0.0
    shear: float = 0.0
    shift: int = 0
    numbers = 6

    def __post_init__(self) -> None:
        if self.shift < 0:
            raise ValueError(f"shift={self.shift} must be a number of pixels, 0 or more")
        for name, largest in _LARGEST.items():
            if not 0 <= (value := getattr(self, name)) <= largest:
                raise ValueError(f"{name}={value} must lie in [0, {largest}]; 0 turns it off")

    @property
    def only_shifts(self) -> bool:
        return not (self.rotation or self.zoom or self.shear)

    def draw(self, uniform: np.ndarray, size: tuple[int, int]) -> Draws:
        uniform = uniform.T.astype("float64")
        angle, across, along, shear, *shift = 2 * uniform - 1
        angle = angle * math.radians(self.rotation)
        across, along = np.exp(across * self.zoom), np.exp(along * self.zoom)
        cos, sin = np.cos(angle), np.sin(angle)
        # Output pixel (x, y), from the center, is taken from (a x + b y, d x + e y).
        a, b = cos * across, shear * self.shear - sin * across
        d, e = sin * along, cos * along
        y, x = ((side - 1) / 2 for side in size)
        right, down = (self.shift * part for part in shift)
        if self.only_shifts:  # by integers, each as likely
            right, down = np.floor(uniform[4:] * (2 * self.shift + 1)) - self.shift
        begin_x, begin_y = x - a * x - b * y + right, y - d * x - e * y + down
        return {"matrix": matrix_rows(a, b, begin_x, d, e, begin_y)}

    def apply(self, image: Array, draws: Draws) -> Array:
        return transform(image, draws["matrix"], "NEAREST" if self.only_shifts else "BILINEAR")

    def __str__(self) -> str:
        most = {
            "shift": f"{self.shift} px",
            "rotation": f"{self.rotation:g}°",
            "zoom": f"{100 * self.zoom:.3g} %",
            "shear": f"{self.shear:g} px",
        }
        return ", ".join(f"{n} by up to {value}" for n, value in most.items() if getattr(self, n))


def transform(image: Array, matrix: Array, interpolation: str, fill_value: float = 0.0) -> Array:
    """Take output pixel (x, y) from (a x + b y + c, d x + e y + f), of a matrix `(6,)`."""
    if isinstance(image, np.ndarray):
        return transform_array(image, matrix, interpolation, fill_value)
    row = tf.concat([tf.cast(matrix, tf.float32), [0.0, 0.0]], 0)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=row[None],
        output_shape=tf.shape(image)[:2],
        fill_value=fill_value,
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )[0]
