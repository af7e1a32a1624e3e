"""Rotation, zoom, shear and shift of one image in a single bilinear interpolation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from keras_vit.data._imports import tf
from keras_vit.data.arrays import Array, array_namespace, transform_array
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
        if self.only_shifts:
            offset = np.floor(uniform[:, :2] * (2 * self.shift + 1)).astype("int32") - self.shift
            return {"offset": offset}
        draws = 2 * uniform.T.astype("float64") - 1
        angle = draws[0] * math.radians(self.rotation)
        across, along = np.exp(draws[1] * self.zoom), np.exp(draws[2] * self.zoom)
        cos, sin = np.cos(angle), np.sin(angle)
        # Output pixel (x, y), from the center, is taken from (a x + b y, d x + e y).
        a, b = cos * across, draws[3] * self.shear - sin * across
        d, e = sin * along, cos * along
        y, x = ((side - 1) / 2 for side in size)
        begin_x = x - a * x - b * y + draws[4] * self.shift
        begin_y = y - d * x - e * y + draws[5] * self.shift
        return {"matrix": matrix_rows(a, b, begin_x, d, e, begin_y)}

    def apply(self, image: Array, draws: Draws) -> Array:
        if not self.only_shifts:
            return transform(image, draws["matrix"], "BILINEAR")
        xp = array_namespace(image)
        margin = (self.shift, self.shift)
        padded = xp.pad(image, (margin, margin, (0, 0)))
        begin = xp.concat([draws["offset"] + self.shift, [0]], 0)
        return xp.slice(padded, begin, image.shape)

    def matrices(self, draws: Draws) -> Sequence[Array]:
        if not self.only_shifts:
            return (draws["matrix"],)
        xp = array_namespace(draws["offset"])
        y, x = xp.unstack(xp.cast(draws["offset"], xp.float32))
        return (xp.cast(xp.stack([1.0, 0.0, x, 0.0, 1.0, y]), xp.float32),)

    def _words(self) -> Iterator[str]:
        for name, most in (
            ("shift", f"{self.shift} px"),
            ("rotation", f"{self.rotation:g}°"),
            ("zoom", f"{100 * self.zoom:.3g} %"),
            ("shear", f"{self.shear:g} px"),
        ):
            if getattr(self, name):
                yield f"{name} by up to {most}"

    def __str__(self) -> str:
        return ", ".join(self._words())


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
