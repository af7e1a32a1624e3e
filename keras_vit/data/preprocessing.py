"""One image at a time: from uint8 pixels of any size to the model's size, float32 in [0, 255].

Of tensors, pure TensorFlow graph functions, so that the exported SavedModel runs the same steps as
the evaluation, whatever Keras's dtype policy; of arrays, the same with NumPy and Pillow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import floor
from typing import Any

import numpy as np

from keras_vit._base.errors import as_pair
from keras_vit.data.arrays import NUMPY, Array, array_namespace, map_channels
from keras_vit.data.augment.affine import random_affine
from keras_vit.data.augment.augmentation import Augmentation
from keras_vit.data.augment.boxes import crop_to_box
from keras_vit.data.augment.erasing import random_erasing
from keras_vit.data.augment.rand_augment import rand_augment
from keras_vit.data.augment.three_augment import three_augment
from keras_vit.data.decode.decoder import Crop
from keras_vit.data.eval_transform import (
    CROP_FRACTION,
    INTERPOLATIONS,
    PILLOW_MODES,
    EvalTransform,
    PillowRule,
)
from keras_vit.data.random_numbers import sample_distorted_box

PixelSize = tuple[int, int]


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
    prepared = resize(image, size, transform.crop_fraction, transform.interpolation)
    return _as_float(prepared, size, image.shape[-1])


def training_image(
    image: Array,
    image_size: int | tuple[int, int],
    seed: Array,
    augmentation: Augmentation,
) -> Array:
    """Brings one image to `image_size` with random changes that follow from `seed` alone.

    Args:
        image: uint8 or float array or tensor of shape `(height, width, channels)`, values 0..255.
        image_size: int or `(height, width)` of the result.
        seed: integers of shape `(2,)`; the same seed gives the same changes.
        augmentation: the changes; `mixup` and `cutmix` are left to `pipeline`.

    Returns:
        float32 of the kind of `image`, shape `(*image_size, channels)`, values 0..255.

    Example:
        >>> image = np.zeros((60, 90, 3), "uint8")
        >>> training_image(image, (32, 48), (0, 1), Augmentation()).shape
        (32, 48, 3)
    """
    image = array_namespace(image, seed).convert_to_tensor(image)
    image = crop_to_box(image, training_crop(seed, augmentation))
    return augment_crop(image, image_size, seed, augmentation)


def training_crop(seed: Array, augmentation: Augmentation) -> Crop | None:
    """The box of an inception crop, to decode only this part; None for other crops."""
    if augmentation.crop != "inception":
        return None

    ratios, areas = augmentation.aspect_ratio, (augmentation.min_area, 1.0)

    def crop(shape: Array) -> Array:
        xp = array_namespace(shape)
        if xp is NUMPY:
            return sample_distorted_box(shape, seed, ratios, areas)
        begin, extent, _ = xp.image.stateless_sample_distorted_bounding_box(
            xp.concat([shape, [3]], axis=0),
            xp.zeros((1, 0, 4)),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=ratios,
            area_range=areas,
            use_image_if_no_bounding_boxes=True,
        )
        return xp.concat([begin[:2], extent[:2]], axis=0)

    return crop


def augment_crop(
    image: Array,
    image_size: int | tuple[int, int],
    seed: Array,
    augmentation: Augmentation,
) -> Array:
    """The second half of `training_image`: all that follows the inception crop."""
    size = as_pair(image_size, "image_size")
    channels = image.shape[-1]
    xp = array_namespace(image, seed)
    seeds = xp.unstack(xp.random.experimental.stateless_split(seed, 5))
    flip_seed, crop_seed, shift_seed, operations_seed, erasing_seed = seeds
    if augmentation.flip:  # before the resize, while the image is bytes and mostly smaller
        mirrored = xp.cast(xp.random.stateless_uniform((), flip_seed) < 0.5, xp.int32)
        image = xp.reverse(image, xp.range(1, 1 + mirrored))  # the axis 1, or none
    if augmentation.crop == "random":
        image = _random_crop(image, size, crop_seed)
    else:
        image = _stretch(image, size)
    if augmentation.is_affine:
        image = random_affine(
            image,
            shift_seed,
            augmentation.rotation,
            augmentation.zoom,
            augmentation.shear,
            augmentation.shift,
        )
    elif augmentation.shift:
        margin = (augmentation.shift, augmentation.shift)
        padded = xp.pad(image, (margin, margin, (0, 0)))
        image = xp.image.stateless_random_crop(padded, xp.shape(image), shift_seed)
    image = _as_float(image, size, channels)
    if augmentation.rand_augment is not None:
        pixels = xp.cast(xp.round(image), xp.uint8)
        pixels = rand_augment(
            pixels, operations_seed, *augmentation.rand_augment, augmentation.operations
        )
        image = _as_float(pixels, size, channels)
    if augmentation.three_augment:
        image = three_augment(image, operations_seed)
    if augmentation.erasing:
        image = random_erasing(image, erasing_seed, augmentation.erasing)
    return image


def _as_float(image: Array, size: PixelSize, channels: int | None) -> Array:
    xp = array_namespace(image)
    return xp.ensure_shape(xp.cast(image, xp.float32), (*size, channels))


def _stretch(image: Array, size: PixelSize, *_: object) -> Array:
    return array_namespace(image).image.resize(image, size, "bilinear", antialias=False)


def _stretch_bicubic(image: Array, size: PixelSize, *_: object) -> Array:
    xp = array_namespace(image)
    resized = xp.image.resize(image, size, "bicubic", antialias=True)
    return xp.clip_by_value(resized, 0.0, 255.0)  # cubic curves overshoot


def _small_side_size(image: Array, size: PixelSize, crop_fraction: float) -> Array:
    """The smallest size of the same aspect ratio into which `size / crop_fraction` fits."""
    xp = array_namespace(image)
    target = xp.constant([round(side / crop_fraction) for side in size], xp.float32)
    shape = xp.cast(xp.shape(image)[:2], xp.float32)
    return xp.maximum(xp.cast(xp.round(shape * xp.reduce_max(target / shape)), xp.int32), size)


def _central_crop(image: Array, size: PixelSize) -> Array:
    xp = array_namespace(image)
    top, left = xp.unstack((xp.shape(image)[:2] - size) // 2)
    return image[top : top + size[0], left : left + size[1]]


def _resize_and_crop(image: Array, size: PixelSize, crop_fraction: float, _: None) -> Array:
    xp = array_namespace(image)

    def crop() -> Array:
        resized = _small_side_size(image, size, crop_fraction)
        return _central_crop(xp.image.resize(image, resized, "bilinear", antialias=True), size)

    # An 8 x 8 digit for a model of 8 x 8 pixels should not be enlarged to lose its border.
    fits = xp.reduce_all(xp.shape(image)[:2] == size)
    return xp.cond(fits, lambda: xp.cast(image, xp.float32), crop)


def _big_vision(image: Array, size: PixelSize, crop_fraction: float, _: None) -> Array:
    xp = array_namespace(image)
    resized = xp.image.resize(image, _small_side_size(image, size, crop_fraction), "area")
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


def _random_crop(image: Array, size: PixelSize, seed: Array) -> Array:
    xp = array_namespace(image)
    image = _stretch(image, _small_side_size(image, size, CROP_FRACTION))
    return xp.image.stateless_random_crop(image, (*size, xp.shape(image)[-1]), seed)


# (image, size, crop_fraction, interpolation) -> image.
EVAL_TRANSFORMS: dict[str, Callable[..., Any]] = {
    "crop": _resize_and_crop,
    "stretch": _stretch,
    "stretch_bicubic": _stretch_bicubic,
    "big_vision": _big_vision,
    **{mode: partial(_as_pillow, rule) for mode, rule in PILLOW_MODES.items()},
}
