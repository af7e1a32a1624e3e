"""3-Augment (Touvron et al. 2022, "DeiT III", section 3): few and simple changes of color."""

from __future__ import annotations

from functools import partial

from keras_vit.data.arrays import Array, array_namespace

_LUMA = (0.299, 0.587, 0.114)
_SIDE = 224.0  # the size for which the blur's radius is stated
_BLUR = (0.1, 2.0)  # standard deviation of the Gaussian, in pixels
JITTER = 0.3


def three_augment(image: Array, seed: Array, jitter: float = JITTER) -> Array:
    """One of grayscale, solarization and blur, each as likely; then brightness, contrast, color.

    The crop and the mirror image, which belong to it in the paper, are those of `Augmentation`.

    Args:
        image: float array or tensor of static shape `(height, width, channels)`, values 0..255.
        seed: integers of shape `(2,)`; the same seed gives the same changes.
        jitter: brightness, contrast and saturation are multiplied by factors from 1 - jitter to
            1 + jitter.

    Returns:
        float32, of the kind and shape of `image`, values 0..255.

    Example:
        >>> import numpy as np
        >>> three_augment(np.zeros((8, 8, 3), "float32"), (0, 1)).shape
        (8, 8, 3)
    """
    xp = array_namespace(image)
    draws = xp.random.stateless_uniform((5,), seed)
    choices = [partial(choice, image, draws[1]) for choice in (_gray, _solarize, _blur)]
    image = xp.switch_case(xp.cast(draws[0] * len(choices), xp.int32), choices)
    brightness, contrast, color = xp.unstack(1 + jitter * (2 * draws[2:] - 1))
    image = xp.clip_by_value(image * brightness, 0.0, 255.0)
    image = _between(xp.reduce_mean(_luma(image)), image, contrast)
    return _between(_luma(image), image, color)


def _luma(image: Array) -> Array:
    """`(height, width, 1)`."""
    if image.shape[-1] == 1:
        return image
    xp = array_namespace(image)
    return xp.reduce_sum(image * xp.constant(_LUMA, xp.float32), axis=-1, keepdims=True)


def _between(degenerate: Array, image: Array, factor: Array) -> Array:
    """Interpolates from the degenerate image (factor 0) to the image (1), and extrapolates."""
    xp = array_namespace(image)
    return xp.clip_by_value(degenerate + factor * (image - degenerate), 0.0, 255.0)


def _gray(image: Array, _: Array) -> Array:
    xp = array_namespace(image)
    return xp.broadcast_to(_luma(image), xp.shape(image))


def _solarize(image: Array, _: Array) -> Array:
    return array_namespace(image).where(image < 128, image, 255 - image)


def _blur(image: Array, draw: Array) -> Array:
    """A Gaussian along the rows, then along the columns; the border is mirrored."""
    xp = array_namespace(image)
    height, width, channels = image.shape
    scale = min(height, width) / _SIDE
    sigma = scale * (_BLUR[0] + draw * (_BLUR[1] - _BLUR[0]))
    reach = min(max(round(3 * scale * _BLUR[1]), 1), height - 1, width - 1)
    if reach < 1:
        return image
    places = xp.range(-reach, reach + 1, dtype=xp.float32)
    weights = xp.nn.softmax(-(places**2) / (2 * xp.maximum(sigma, 1e-3) ** 2))
    margin = ((reach, reach), (reach, reach), (0, 0))
    image = xp.pad(image, margin, "REFLECT")[None]
    for shape in ((-1, 1, 1, 1), (1, -1, 1, 1)):
        kernel = xp.tile(xp.reshape(weights, shape), (1, 1, channels, 1))
        image = xp.nn.depthwise_conv2d(image, kernel, (1, 1, 1, 1), "VALID")
    return xp.ensure_shape(image[0], (height, width, channels))
