"""One image at a time: from uint8 pixels of any size to the model's size, float32 in [0, 255].

Of tensors, pure TensorFlow graph functions, so that the exported SavedModel runs the same steps as
the evaluation, whatever Keras's dtype policy; of arrays, the same with NumPy and Pillow.
"""

from collections.abc import Callable
from functools import partial
from math import floor
from typing import Any

import numpy as np

from keras_vit._base.errors import as_pair
from keras_vit.data.arrays import Array, array_namespace, map_channels
from keras_vit.data.eval_transform import (
    CROP_FRACTION,
    INTERPOLATIONS,
    PILLOW_MODES,
    EvalTransform,
    PillowRule,
)
from keras_vit.data.resizing import PixelSize, part_to_resize, small_side_size, stretch


def scaled_sides(size: PixelSize, crop_fraction: float) -> PixelSize:
    """`size / crop_fraction`, rounded down; a fraction is rarely exact, such as 224 / 248."""
    height, width = (floor(side / crop_fraction + 1e-6) for side in size)
    return height, width


def evaluation_image(
    image: Array,
    image_size: int | tuple[int, int],
    transform: EvalTransform | str = "crop",
    crop_fraction: float = CROP_FRACTION,
    interpolation: str | None = None,
) -> Array:
    """Resizes one image to `image_size`, without randomness.

    - "crop": resize the small side to size / crop_fraction, bilinear with antialiasing, and crop
      the center. An image of exactly `image_size` stays as it is.
    - "stretch": resize to the size, bilinear, and let the aspect ratio change, as
      vision_transformer's `input_pipeline.py` does.
    - "stretch_bicubic": the same, bicubic with antialiasing, as Hugging Face prepares images for
      the weights that timm converted.
    - "big_vision": `resize_small` by area averaging, rounded down to integers, and
      `central_crop`, as big_vision's `pp/ops_image.py` does.
    - "timm_center", "timm_squash": as timm's `crop_mode` "center" and "squash" of Pillow images,
      rounded to integers after each axis: resize the small side (center) or both sides (squash) to
      size / crop_fraction, rounded down, with antialiasing, and crop the center.
    - "huggingface_crop", "huggingface_stretch": the same as transformers' image processors do,
      whose center lies half a pixel higher where a border has an odd number of pixels.

    Args:
        image: uint8 or float array or tensor of shape `(height, width, channels)`, values 0..255.
        image_size: int or `(height, width)` of the result.
        transform: an `EvalTransform`, such as `model.eval_transform`; or its mode, a key of
            `EVAL_TRANSFORMS`.
        crop_fraction: beside a mode: the part of the resized small side that the crop keeps, in
            (0, 1].
        interpolation: beside a mode: "bilinear", "bicubic" or "lanczos", of timm's and Hugging
            Face's modes; None for bicubic. The other modes have their own.

    Returns:
        float32 of the kind of `image`, shape `(*image_size, channels)`, values 0..255.

    Raises:
        ValueError: unknown mode or interpolation, or a size or fraction out of range.

    Example:
        >>> evaluation_image(np.zeros((60, 90, 3), "uint8"), 32).shape
        (32, 32, 3)
    """
    size = as_pair(image_size, "image_size")
    if isinstance(transform, str):
        transform = EvalTransform(transform, crop_fraction, interpolation)
    resize = EVAL_TRANSFORMS[transform.mode]
    if transform.crops_long_side:
        image = _without_far_ends(image, size)
    prepared = resize(image, size, transform.crop_fraction, transform.interpolation)
    xp = array_namespace(prepared)
    return xp.ensure_shape(xp.cast(prepared, xp.float32), (*size, image.shape[-1]))


def evaluation_mask(mask: Array, image_size: int | tuple[int, int]) -> Array:
    """Resize the label of each pixel to `image_size`, that of the nearest pixel.

    As `evaluation_image` moves the image where that `is_whole`.

    Args:
        mask: integers or floats `(height, width, ...)`, array or tensor.

    >>> evaluation_mask(np.array([[1, 2]], "int32"), (1, 4)).tolist()
    [[1, 1, 2, 2]]
    """
    size, xp = as_pair(image_size, "image_size"), array_namespace(mask)
    shape = xp.cast(xp.shape(mask)[:2], xp.float32)
    rows, columns = (
        xp.cast(xp.floor((xp.range(side, dtype=xp.float32) + 0.5) * shape[axis] / side), xp.int32)
        for axis, side in enumerate(size)
    )
    places = xp.stack(
        [xp.broadcast_to(rows[:, None], size), xp.broadcast_to(columns, size)], axis=-1
    )
    return xp.gather_nd(mask, places)


def _without_far_ends(image: Array, size: PixelSize) -> Array:
    """Cut what lies far beside the center of a strip, of which a crop shows nothing."""
    xp = array_namespace(image)
    sides = xp.shape(image)[:2]
    ends = (sides - part_to_resize(sides, size)) // 2
    top, left, bottom, right = xp.unstack(xp.concat([ends, sides - ends], 0))
    return image[top:bottom, left:right]


def _stretch_bicubic(image: Array, size: PixelSize, *_: object) -> Array:
    xp = array_namespace(image)
    resized = xp.image.resize(image, size, "bicubic", antialias=True)
    return xp.clip_by_value(resized, 0.0, 255.0)  # cubic curves overshoot


def _central_crop(image: Array, size: PixelSize) -> Array:
    xp = array_namespace(image)
    top, left = xp.unstack((xp.shape(image)[:2] - size) // 2)
    return image[top : top + size[0], left : left + size[1]]


def _resize_and_crop(image: Array, size: PixelSize, crop_fraction: float, _: None) -> Array:
    xp = array_namespace(image)

    def crop() -> Array:
        resized = small_side_size(xp.shape(image)[:2], size, crop_fraction)
        return _central_crop(xp.image.resize(image, resized, "bilinear", antialias=True), size)

    # An 8 x 8 digit for a model of 8 x 8 pixels should not be enlarged to lose its border.
    fits = xp.reduce_all(xp.shape(image)[:2] == size)
    return xp.cond(fits, lambda: xp.cast(image, xp.float32), crop)


def _big_vision(image: Array, size: PixelSize, crop_fraction: float, _: None) -> Array:
    xp = array_namespace(image)
    resized = xp.image.resize(
        image, small_side_size(xp.shape(image)[:2], size, crop_fraction), "area"
    )
    # big_vision casts back to uint8 after every resize, which truncates.
    return _central_crop(xp.floor(xp.clip_by_value(resized, 0.0, 255.0)), size)


def _as_pillow(
    rule: PillowRule,
    image: Array,
    size: PixelSize,
    crop_fraction: float,
    interpolation: str | None,
) -> Array:
    """Pillow's `resize`, which rounds to integers after each axis, and a central crop."""
    xp = array_namespace(image)
    shape = xp.cast(xp.shape(image)[:2], xp.int64)
    target = xp.constant(scaled_sides(size, crop_fraction), xp.int64)
    if rule.keeps_ratio and size[0] == size[1]:
        target = shape * target // xp.reduce_min(shape)
    elif rule.keeps_ratio:
        ratio = xp.reduce_min(shape / target)
        target = xp.maximum(xp.cast(xp.round(xp.cast(shape, xp.float64) / ratio), xp.int64), size)
    image = _resize_as_pillow(image, target, interpolation or "bicubic")
    margins = xp.cast(target - size, xp.float64) / 2
    begin = xp.round(margins) if rule.rounds_center else xp.floor(margins)
    top, left = xp.unstack(xp.cast(begin, xp.int32))
    return image[top : top + size[0], left : left + size[1]]


def _resize_as_pillow(image: Array, target: Array, interpolation: str) -> Array:
    """Pillow's `resize` of bytes, which rounds to integers after each axis."""
    if isinstance(image, np.ndarray) and image.dtype == np.uint8:
        from PIL.Image import Resampling

        size, filter = target[::-1].tolist(), Resampling[interpolation.upper()]
        return map_channels(image, lambda channel: channel.resize(size, filter))
    xp = array_namespace(image)
    shape = xp.cast(xp.shape(image)[:2], xp.int64)
    rows, columns = xp.unstack(shape - target)
    # Which axis comes first changes the rounding; this is Pillow 13's choice for all of 4,464
    # random sizes. Some earlier versions always begin with the columns.
    rows_first = rows > xp.maximum(2 * columns, 0)
    one_axis = xp.where([rows_first, ~rows_first], target, shape)
    for sides in (one_axis, target):
        method = INTERPOLATIONS[interpolation]
        resized = xp.image.resize(image, xp.cast(sides, xp.int32), method, antialias=True)
        image = xp.floor(xp.clip_by_value(resized, 0.0, 255.0) + 0.5)
    return image


# (image, size, crop_fraction, interpolation) -> image.
EVAL_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "crop": _resize_and_crop,
    "stretch": lambda image, size, *_: stretch(image, size),
    "stretch_bicubic": _stretch_bicubic,
    "big_vision": _big_vision,
    **{mode: partial(_as_pillow, rule) for mode, rule in PILLOW_MODES.items()},
}
