"""3-Augment (Touvron et al. 2022, "DeiT III", section 3): few and simple changes of color."""

from __future__ import annotations

from functools import partial

from keras_vit.data._imports import tf

_LUMA = (0.299, 0.587, 0.114)
_SIDE = 224.0  # the size for which the blur's radius is stated
_BLUR = (0.1, 2.0)  # standard deviation of the Gaussian, in pixels
JITTER = 0.3


def three_augment(image: tf.Tensor, seed: tf.Tensor, jitter: float = JITTER) -> tf.Tensor:
    """One of grayscale, solarization and blur, each as likely; then brightness, contrast, color.

    The crop and the mirror image, which belong to it in the paper, are those of `Augmentation`.

    Args:
        image: float tensor of static shape `(height, width, channels)`, values 0..255.
        seed: integer tensor of shape `(2,)`; the same seed gives the same changes.
        jitter: brightness, contrast and saturation are multiplied by factors from 1 - jitter to
            1 + jitter.

    Returns:
        float32 tensor of the shape of `image`, values 0..255.

    Example:
        >>> import tensorflow as tf
        >>> three_augment(tf.zeros((8, 8, 3)), (0, 1)).shape.as_list()
        [8, 8, 3]
    """
    draws = tf.random.stateless_uniform((5,), seed)
    choices = [partial(choice, image, draws[1]) for choice in (_gray, _solarize, _blur)]
    image = tf.switch_case(tf.cast(draws[0] * len(choices), tf.int32), choices)
    brightness, contrast, color = tf.unstack(1 + jitter * (2 * draws[2:] - 1))
    image = tf.clip_by_value(image * brightness, 0.0, 255.0)
    image = _between(tf.reduce_mean(_luma(image)), image, contrast)
    return _between(_luma(image), image, color)


def _luma(image: tf.Tensor) -> tf.Tensor:
    """`(height, width, 1)`."""
    if image.shape[-1] == 1:
        return image
    return tf.reduce_sum(image * tf.constant(_LUMA), axis=-1, keepdims=True)


def _between(degenerate: tf.Tensor, image: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Interpolates from the degenerate image (factor 0) to the image (1), and extrapolates."""
    return tf.clip_by_value(degenerate + factor * (image - degenerate), 0.0, 255.0)


def _gray(image: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
    return tf.broadcast_to(_luma(image), tf.shape(image))


def _solarize(image: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
    return tf.where(image < 128, image, 255 - image)


def _blur(image: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """A Gaussian along the rows, then along the columns; the border is mirrored."""
    height, width, channels = image.shape
    scale = min(height, width) / _SIDE
    sigma = scale * (_BLUR[0] + draw * (_BLUR[1] - _BLUR[0]))
    reach = min(max(round(3 * scale * _BLUR[1]), 1), height - 1, width - 1)
    if reach < 1:
        return image
    places = tf.range(-reach, reach + 1, dtype=tf.float32)
    weights = tf.nn.softmax(-(places**2) / (2 * tf.maximum(sigma, 1e-3) ** 2))
    margin = ((reach, reach), (reach, reach), (0, 0))
    image = tf.pad(image, margin, "REFLECT")[None]
    for shape in ((-1, 1, 1, 1), (1, -1, 1, 1)):
        kernel = tf.tile(tf.reshape(weights, shape), (1, 1, channels, 1))
        image = tf.nn.depthwise_conv2d(image, kernel, (1, 1, 1, 1), "VALID")
    return tf.ensure_shape(image[0], (height, width, channels))
