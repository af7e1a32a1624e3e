"""Resizes of one image that training and evaluation share."""

from keras_vit.data.arrays import Array, array_namespace

PixelSize = tuple[int, int]
MOST_SIDES = 16  # short sides of an image, of which a part as long is resized


def stretch(image: Array, size: Array | PixelSize) -> Array:
    """Resize an image to this height and width, bilinear without antialiasing, as float32."""
    return array_namespace(image).image.resize(image, size, "bilinear", antialias=False)


def small_side_size(shape: Array, size: PixelSize, crop_fraction: float) -> Array:
    """Return the smallest size of the same aspect ratio into which `size / crop_fraction` fits.

    Args:
        shape: height and width of the image, an int32 array or tensor.
        crop_fraction: the part of the small side that the crop keeps.

    Returns:
        int32 `(2,)`.
    """
    xp = array_namespace(shape)
    target = xp.constant([round(side / crop_fraction) for side in size], xp.float32)
    sides = xp.cast(shape, xp.float32)
    return xp.maximum(xp.cast(xp.round(sides * xp.reduce_max(target / sides)), xp.int32), size)


def part_to_resize(shape: Array, size: PixelSize) -> Array:
    """Return the sides of the part of an image that a crop of it is cut from, int32 `(2,)`.

    That is all of it, but for a strip: resized whole by its small side, one of 30,000 x 2 pixels
    for a model of 224 would take 12 GB.

    >>> import numpy as np
    >>> part_to_resize(np.array([2, 30_000], "int32"), (8, 8)).tolist()
    [2, 32]
    """
    most = MOST_SIDES * -(-max(size) // min(size)) * array_namespace(shape).reduce_min(shape)
    return array_namespace(shape).minimum(shape, most)
