"""Random erasing: a box of noise over a part of the image (Zhong et al. 2020)."""

from __future__ import annotations

import math

from keras_vit.data._imports import tf
from keras_vit.data.augment.boxes import box_mask

AREA = (0.02, 1 / 3)  # fraction of the image, as in the paper and in DeiT
ASPECT_RATIO = (0.3, 1 / 0.3)
_ATTEMPTS = 10  # random boxes, of which the first that fits is taken


def random_erasing(image: tf.Tensor, seed: tf.Tensor, probability: float) -> tf.Tensor:
    """Fills a random box of one image with uniform noise in 0..255.

    Args:
        image: float tensor of static shape `(height, width, channels)`, values 0..255.
        seed: integer tensor of shape `(2,)`; the same seed gives the same box and noise.
        probability: how often, in [0, 1]; DeiT takes 0.25.

    Returns:
        A tensor like `image`.

    Example:
        >>> import tensorflow as tf
        >>> erased = random_erasing(tf.fill((32, 32, 3), -1.0), (0, 1), probability=1.0)
        >>> 0.02 < float(tf.reduce_mean(tf.cast(erased >= 0, tf.float32))) < 0.34
        True
    """
    height, width, _ = image.shape
    box_seed, noise_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    draws = tf.random.stateless_uniform((_ATTEMPTS + 1, 2), box_seed)

    def erase() -> tf.Tensor:
        log_low, log_high = map(math.log, ASPECT_RATIO)
        area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * draws[1:, 0])
        aspect = tf.exp(log_low + (log_high - log_low) * draws[1:, 1])
        sides = tf.round(tf.sqrt(tf.stack([area * aspect, area / aspect], axis=1)))
        fits = tf.reduce_all(sides < (height, width), axis=1)
        side = tf.where(tf.reduce_any(fits), sides[tf.argmax(fits)], 0.0)
        # The first row decides whether to erase; stretched to [0, 1) again, it is the place.
        place = tf.stack([draws[0, 0] / probability, draws[0, 1]])
        begin = tf.floor(place * (tf.constant((height, width), tf.float32) - side + 1))

        box = box_mask(begin, begin + side, (height, width))
        noise = tf.random.stateless_uniform(image.shape, noise_seed, maxval=255.0)
        return tf.where(box, noise, image)

    return tf.cond(draws[0, 0] < probability, erase, lambda: image)
