"""3-Augment (Touvron et al. 2022, "DeiT III", section 3): few and simple changes of color."""

from functools import partial

import numpy as np

from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.change import Change, Draws

_LUMA = (0.299, 0.587, 0.114)
_SIDE = 224.0  # the size for which the blur's radius is stated
_BLUR = (0.1, 2.0)  # standard deviation of the Gaussian, in pixels
_JITTER = 0.3  # by how much the factors of brightness, contrast and saturation differ from 1


class ThreeAugment(Change):
    """One of grayscale, solarization and blur, each as likely; then brightness, contrast, color.

    The crop and the mirror image, which belong to it in the paper, are those of `Augmentation`.
    """

    numbers = 5
    of_bytes = True

    def draw(self, uniform: np.ndarray, size: tuple[int, int]) -> Draws:
        scale = min(size) / _SIDE
        reach = min(max(round(3 * scale * _BLUR[1]), 1), min(size) - 1)
        sigma = scale * (_BLUR[0] + uniform[:, 1:2] * (_BLUR[1] - _BLUR[0]))
        places = np.arange(-reach, reach + 1)
        weights = np.exp(-(places**2) / (2 * np.maximum(sigma, 1e-3) ** 2))
        return {
            "which": (uniform[:, 0] * 3).astype("int32"),
            "blur": (weights / weights.sum(1, keepdims=True)).astype("float32"),
            "factors": 1 + _JITTER * (2 * uniform[:, 2:] - 1),
        }

    def apply(self, image: Array, draws: Draws) -> Array:
        xp = array_namespace(image)
        choices = [partial(choice, image, draws["blur"]) for choice in (_gray, _solarize, _blur)]
        image = xp.switch_case(xp.convert_to_tensor(draws["which"]), choices)
        brightness, contrast, color = xp.unstack(draws["factors"])
        image = xp.clip_by_value(image * brightness, 0.0, 255.0)
        image = _between(xp.reduce_mean(_luma(image)), image, contrast)
        return _between(_luma(image), image, color)

    def __str__(self) -> str:
        return "3-Augment"


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


def _blur(image: Array, weights: Array) -> Array:
    """Return a Gaussian along the rows, then along the columns; the border is mirrored."""
    xp = array_namespace(image)
    height, width, channels = image.shape
    reach = (weights.shape[0] - 1) // 2
    if reach < 1:
        return image
    margin = ((reach, reach), (reach, reach), (0, 0))
    image = xp.pad(image, margin, "REFLECT")[None]
    for shape in ((-1, 1, 1, 1), (1, -1, 1, 1)):
        kernel = xp.tile(xp.reshape(weights, shape), (1, 1, channels, 1))
        image = xp.nn.depthwise_conv2d(image, kernel, (1, 1, 1, 1), "VALID")
    return xp.ensure_shape(image[0], (height, width, channels))
