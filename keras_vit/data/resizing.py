"""Resizes of one image that training and evaluation share."""

from keras_vit.data.arrays import Array, array_namespace

PixelSize = tuple[int, int]


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
