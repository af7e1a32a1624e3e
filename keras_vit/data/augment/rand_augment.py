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
from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.affine import transform
from keras_vit.data.augment.boxes import box_mask

_GRAY = 128.0  # fills what comes in from outside the image
_SIDE = 224.0  # the size for which the strengths in pixels are stated


def rand_augment(
    image: Array,
    seed: Array,
    number: int = 2,
    magnitude: float = 10,
    operations: tuple[str, ...] | None = None,
) -> Array:
    """Applies `number` operations to one image, each drawn evenly from `operations`.

    Args:
        image: uint8 array or tensor of static shape `(height, width, channels)`, 1 or 3 channels.
        seed: integers of shape `(2,)`; the same seed gives the same changes.
        number: how many operations follow each other, 1 or more; 2 in the released training.
        magnitude: their strength, 0 to 30; 10, 15 and 20 in the released training. "posterize" and
            "solarize" grow weaker with it, as they do there.
        operations: names in `OPERATIONS`; None for all.

    Returns:
        uint8, of the kind and shape of `image`.

    Raises:
        ValueError: an unknown operation, a number below 1 or a magnitude outside 0..30.

    Example:
        >>> import numpy as np
        >>> rand_augment(np.zeros((8, 8, 3), "uint8"), (0, 1), 2, 10).shape
        (8, 8, 3)
    """
    check_rand_augment(number, magnitude, operations)
    xp = array_namespace(image, seed)
    image = xp.convert_to_tensor(image)
    chosen = [OPERATIONS[name] for name in operations or OPERATIONS]

    def change(image: Array, draw: Array) -> Array:
        which = xp.cast(draw[0] * len(chosen), xp.int32)
        run = [partial(operation, image, magnitude / 10, draw[1:]) for operation in chosen]
        return xp.ensure_shape(xp.switch_case(which, run), image.shape)

    change = xp.function(change, autograph=False)  # traced once, however often it is called
    # Per operation: which one, to which side, and where.
    for draw in xp.unstack(xp.random.stateless_uniform((number, 4), seed)):
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


def _gray(image: Array) -> Array:
    """Pillow's luma in integers, int32 `(height, width, 1)`."""
    xp = array_namespace(image)
    image = xp.cast(image, xp.int32)
    if image.shape[-1] == 1:
        return image
    weights = xp.constant((19595, 38470, 7471), xp.int32)
    return (xp.reduce_sum(image * weights, axis=-1, keepdims=True) + 0x8000) // 2**16


def _blend(degenerate: Array, image: Array, strength: float) -> Array:
    """Interpolates from the degenerate image (factor 0) to the image (1), and extrapolates."""
    xp = array_namespace(image)
    factor = strength * 1.8 + 0.1
    degenerate, image = xp.cast(degenerate, xp.float32), xp.cast(image, xp.float32)
    blended = degenerate + factor * (image - degenerate)
    return xp.cast(xp.clip_by_value(blended, 0.0, 255.0), xp.uint8)


def _contrast(image: Array, strength: float, _: Array) -> Array:
    xp = array_namespace(image)
    # The released code divides the number of pixels by 256 here, by mistake for the mean gray.
    gray = _gray(image)
    mean = xp.reduce_sum(xp.cast(gray, xp.int64)) / xp.size(gray, xp.int64)
    return _blend(xp.floor(mean + 0.5), image, strength)


def _sharpness(image: Array, strength: float, _: Array) -> Array:
    xp = array_namespace(image)
    pixels = xp.cast(image, xp.float32)
    # Pillow's SMOOTH: ones around a five, over 13; the border stays as it is.
    rows = pixels[:-2] + pixels[1:-1] + pixels[2:]
    around = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    smooth = xp.floor((around + 4 * pixels[1:-1, 1:-1]) / 13 + 0.5)
    margin = ((1, 1), (1, 1), (0, 0))
    inside = xp.pad(xp.ones_like(smooth, xp.bool), margin)
    return _blend(xp.where(inside, xp.pad(smooth, margin), pixels), image, strength)


def _look_up(image: Array, tables: Array) -> Array:
    """Replaces every level by its entry in the table of its channel, `(channels, 256)`."""
    xp = array_namespace(image)
    channels = image.shape[-1]
    places = xp.cast(image, xp.int32) + 256 * xp.range(channels)
    return xp.gather(xp.reshape(xp.cast(tables, xp.uint8), (-1,)), places)


def _autocontrast(image: Array, *_: Any) -> Array:
    xp = array_namespace(image)
    low = xp.cast(xp.reduce_min(image, axis=(0, 1)), xp.float64)[:, None]
    high = xp.cast(xp.reduce_max(image, axis=(0, 1)), xp.float64)[:, None]
    levels = xp.range(256, dtype=xp.float64)
    scale = 255.0 / xp.maximum(high - low, 1.0)
    stretched = xp.clip_by_value(levels * scale - low * scale, 0.0, 255.0)
    return _look_up(image, xp.where(high > low, stretched, levels))


def _equalize(image: Array, *_: Any) -> Array:
    xp = array_namespace(image)
    channels = image.shape[-1]
    places = xp.cast(image, xp.int32) + 256 * xp.range(channels)
    counts = xp.math.bincount(xp.reshape(places, (-1,)), minlength=256 * channels)
    counts = xp.reshape(counts[: 256 * channels], (channels, 256))
    highest = xp.cast(xp.reduce_max(image, axis=(0, 1)), xp.int32)
    of_highest = xp.gather(counts, highest[:, None], batch_dims=1)
    step = (xp.reduce_sum(counts, axis=1, keepdims=True) - of_highest) // 255
    below = xp.cumsum(counts, axis=1) - counts
    tables = xp.minimum((below + step // 2) // xp.maximum(step, 1), 255)
    return _look_up(image, xp.where(step > 0, tables, xp.range(256)))


def _posterize(image: Array, strength: float, _: Array) -> Array:
    bits = min(int(strength * 4), 8)
    return image & ((0xFF << (8 - bits)) & 0xFF)


def _solarize(image: Array, strength: float, _: Array) -> Array:
    xp = array_namespace(image)
    threshold = int(strength * 256)
    return image if threshold > 255 else xp.where(image < threshold, image, 255 - image)


def _solarize_add(image: Array, strength: float, _: Array) -> Array:
    xp = array_namespace(image)
    brighter = xp.minimum(xp.cast(image, xp.int32) + int(strength * 110), 255)
    return xp.where(image < 128, xp.cast(brighter, xp.uint8), image)


# --- geometry, with nearest-neighbor interpolation as released


def _transform(image: Array, matrix: tuple[Any, ...]) -> Array:
    return transform(image, matrix, "NEAREST", _GRAY)


def _signed(strength: Array | float, draw: Array) -> Array:
    return array_namespace(draw).where(draw[0] < 0.5, -strength, strength)


def _rotate(image: Array, strength: float, draw: Array) -> Array:
    xp = array_namespace(draw)
    angle = _signed(math.radians(30 * strength), draw)
    cos, sin = xp.cos(angle), xp.sin(angle)
    x, y = (image.shape[1] - 1) / 2, (image.shape[0] - 1) / 2
    return _transform(image, (cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y))


def _cutout(image: Array, strength: float, draw: Array) -> Array:
    """A gray box of up to 80 of 224 pixels around a point that may lie at the border."""
    xp = array_namespace(image)
    size = tuple(image.shape[:2])
    center = xp.floor(draw[1:] * xp.constant(size, xp.float32))
    half = [int(40 / _SIDE * side * strength) for side in size]
    box = box_mask(center - half, center + half, size)
    return xp.where(box, xp.constant(int(_GRAY), xp.uint8), image)


def _shear(strength: float, draw: Array) -> Array:
    return _signed(0.3 * strength, draw)


def _pixels(length: int, strength: float, draw: Array) -> Array:
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
