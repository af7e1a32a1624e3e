"""RandAugment (Cubuk et al. 2020): a few of sixteen operations, drawn anew for each image.

The operations and their strengths are those of big_vision's `pp/autoaugment.py`; colors equal
Pillow's, which the paper used, to the last level. Everything follows from a seed, and only the
chosen operations are computed. The layer of keras-cv has a random state, which breaks exact resume,
and Keras's takes twenty times as long; `pipeline(augment=...)` takes both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from keras_vit._base.errors import check_choice, check_positive
from keras_vit.data._imports import tf
from keras_vit.data.augment.affine import transform
from keras_vit.data.augment.boxes import box_mask

_GRAY = 128.0  # fills what comes in from outside the image
_SIDE = 224.0  # the size for which the strengths in pixels are stated


def rand_augment(
    image: tf.Tensor,
    seed: tf.Tensor,
    number: int = 2,
    magnitude: float = 10,
    operations: tuple[str, ...] | None = None,
) -> tf.Tensor:
    """Applies `number` operations to one image, each drawn evenly from `operations`.

    Args:
        image: uint8 tensor of static shape `(height, width, channels)`, 1 or 3 channels.
        seed: integer tensor of shape `(2,)`; the same seed gives the same changes.
        number: how many operations follow each other, 1 or more; 2 in the released training.
        magnitude: their strength, 0 to 30; 10, 15 and 20 in the released training. "posterize" and
            "solarize" grow weaker with it, as they do there.
        operations: names in `OPERATIONS`; None for all.

    Returns:
        uint8 tensor of the shape of `image`.

    Raises:
        ValueError: an unknown operation, a number below 1 or a magnitude outside 0..30.

    Example:
        >>> import tensorflow as tf
        >>> rand_augment(tf.zeros((8, 8, 3), tf.uint8), (0, 1), 2, 10).shape.as_list()
        [8, 8, 3]
    """
    check_rand_augment(number, magnitude, operations)
    image = tf.convert_to_tensor(image)
    chosen = [OPERATIONS[name] for name in operations or OPERATIONS]

    def change(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
        which = tf.cast(draw[0] * len(chosen), tf.int32)
        run = [partial(operation, image, magnitude / 10, draw[1:]) for operation in chosen]
        return tf.ensure_shape(tf.switch_case(which, run), image.shape)

    change = tf.function(change, autograph=False)  # traced once, however often it is called
    # Per operation: which one, to which side, and where.
    for draw in tf.unstack(tf.random.stateless_uniform((number, 4), seed)):
        image = change(image, draw)
    return image


def check_rand_augment(
    number: int, magnitude: float, operations: tuple[str, ...] | None = None
) -> None:
    """Raises a ValueError for settings that `rand_augment` does not accept."""
    check_positive(number=number)
    if not 0 <= magnitude <= 30:
        raise ValueError(f"magnitude={magnitude!r} must lie between 0 and 30, for instance 10")
    if operations is not None and not operations:
        raise ValueError(f"operations={operations!r} is empty: name some, or give None for all")
    for name in operations or ():
        check_choice(name, "operation", OPERATIONS)


# --- colors, as Pillow computes them


def _gray(image: tf.Tensor) -> tf.Tensor:
    """Pillow's luma in integers, int32 `(height, width, 1)`."""
    image = tf.cast(image, tf.int32)
    if image.shape[-1] == 1:
        return image
    weights = tf.constant((19595, 38470, 7471))
    return (tf.reduce_sum(image * weights, axis=-1, keepdims=True) + 0x8000) // 2**16


def _blend(degenerate: tf.Tensor, image: tf.Tensor, strength: float) -> tf.Tensor:
    """Interpolates from the degenerate image (factor 0) to the image (1), and extrapolates."""
    factor = strength * 1.8 + 0.1
    degenerate, image = tf.cast(degenerate, tf.float32), tf.cast(image, tf.float32)
    blended = degenerate + factor * (image - degenerate)
    return tf.cast(tf.clip_by_value(blended, 0.0, 255.0), tf.uint8)


def _contrast(image: tf.Tensor, strength: float, _: tf.Tensor) -> tf.Tensor:
    # The released code divides the number of pixels by 256 here, by mistake for the mean gray.
    gray = _gray(image)
    mean = tf.reduce_sum(tf.cast(gray, tf.int64)) / tf.size(gray, tf.int64)
    return _blend(tf.floor(mean + 0.5), image, strength)


def _sharpness(image: tf.Tensor, strength: float, _: tf.Tensor) -> tf.Tensor:
    pixels = tf.cast(image, tf.float32)
    # Pillow's SMOOTH: ones around a five, over 13; the border stays as it is.
    around = 9 * tf.nn.avg_pool2d(pixels[None], 3, 1, "VALID")[0]
    smooth = tf.floor((around + 4 * pixels[1:-1, 1:-1]) / 13 + 0.5)
    margin = ((1, 1), (1, 1), (0, 0))
    inside = tf.pad(tf.ones_like(smooth, tf.bool), margin)
    return _blend(tf.where(inside, tf.pad(smooth, margin), pixels), image, strength)


def _look_up(image: tf.Tensor, tables: tf.Tensor) -> tf.Tensor:
    """Replaces every level by its entry in the table of its channel, `(channels, 256)`."""
    channels = image.shape[-1]
    places = tf.cast(image, tf.int32) + 256 * tf.range(channels)
    return tf.gather(tf.reshape(tf.cast(tables, tf.uint8), (-1,)), places)


def _autocontrast(image: tf.Tensor, *_: Any) -> tf.Tensor:
    low = tf.cast(tf.reduce_min(image, axis=(0, 1)), tf.float64)[:, None]
    high = tf.cast(tf.reduce_max(image, axis=(0, 1)), tf.float64)[:, None]
    levels = tf.range(256, dtype=tf.float64)
    scale = 255.0 / tf.maximum(high - low, 1.0)
    stretched = tf.clip_by_value(levels * scale - low * scale, 0.0, 255.0)
    return _look_up(image, tf.where(high > low, stretched, levels))


def _equalize(image: tf.Tensor, *_: Any) -> tf.Tensor:
    channels = image.shape[-1]
    places = tf.cast(image, tf.int32) + 256 * tf.range(channels)
    counts = tf.math.bincount(tf.reshape(places, (-1,)), minlength=256 * channels)
    counts = tf.reshape(counts[: 256 * channels], (channels, 256))
    highest = tf.cast(tf.reduce_max(image, axis=(0, 1)), tf.int32)
    of_highest = tf.gather(counts, highest[:, None], batch_dims=1)
    step = (tf.reduce_sum(counts, axis=1, keepdims=True) - of_highest) // 255
    below = tf.cumsum(counts, axis=1, exclusive=True)
    tables = tf.minimum((below + step // 2) // tf.maximum(step, 1), 255)
    return _look_up(image, tf.where(step > 0, tables, tf.range(256)))


def _posterize(image: tf.Tensor, strength: float, _: tf.Tensor) -> tf.Tensor:
    bits = min(int(strength * 4), 8)
    return tf.bitwise.bitwise_and(image, (0xFF << (8 - bits)) & 0xFF)


def _solarize(image: tf.Tensor, strength: float, _: tf.Tensor) -> tf.Tensor:
    threshold = int(strength * 256)
    return image if threshold > 255 else tf.where(image < threshold, image, 255 - image)


def _solarize_add(image: tf.Tensor, strength: float, _: tf.Tensor) -> tf.Tensor:
    brighter = tf.minimum(tf.cast(image, tf.int32) + int(strength * 110), 255)
    return tf.where(image < 128, tf.cast(brighter, tf.uint8), image)


# --- geometry, with nearest-neighbor interpolation as released


def _transform(image: tf.Tensor, matrix: tuple[Any, ...]) -> tf.Tensor:
    return transform(image, matrix, "NEAREST", _GRAY)


def _signed(strength: tf.Tensor | float, draw: tf.Tensor) -> tf.Tensor:
    return tf.where(draw[0] < 0.5, -strength, strength)


def _rotate(image: tf.Tensor, strength: float, draw: tf.Tensor) -> tf.Tensor:
    angle = _signed(math.radians(30 * strength), draw)
    cos, sin = tf.cos(angle), tf.sin(angle)
    x, y = (image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2
    return _transform(image, (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y))


def _cutout(image: tf.Tensor, strength: float, draw: tf.Tensor) -> tf.Tensor:
    """A gray box of up to 80 of 224 pixels around a point that may lie at the border."""
    size = tuple(image.shape[:2])
    center = tf.floor(draw[1:] * size)
    half = [int(40 / _SIDE * side * strength) for side in size]
    box = box_mask(center - half, center + half, size)
    return tf.where(box, tf.constant(int(_GRAY), tf.uint8), image)


def _shear(strength: float, draw: tf.Tensor) -> tf.Tensor:
    return _signed(0.3 * strength, draw)


def _pixels(length: int, strength: float, draw: tf.Tensor) -> tf.Tensor:
    """By how much an axis of this length is translated."""
    return _signed(100 / _SIDE * length * strength, draw)


# (image, strength, draw) -> image: strength is magnitude / 10, draw has three numbers in [0, 1).
OPERATIONS: dict[str, Callable[..., Any]] = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": lambda image, *_: 255 - image,
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "color": lambda image, strength, _: _blend(_gray(image), image, strength),
    "contrast": _contrast,
    "brightness": lambda image, strength, _: _blend(0.0, image, strength),
    "sharpness": _sharpness,
    "shear_x": lambda image, *how: _transform(image, (1, _shear(*how), 0, 0, 1, 0)),
    "shear_y": lambda image, *how: _transform(image, (1, 0, 0, _shear(*how), 1, 0)),
    "translate_x": lambda image, *how: _transform(
        image, (1, 0, _pixels(image.shape[1], *how), 0, 1, 0)
    ),
    "translate_y": lambda image, *how: _transform(
        image, (1, 0, 0, 0, 1, _pixels(image.shape[0], *how))
    ),
    "cutout": _cutout,
}
