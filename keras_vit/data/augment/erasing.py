"""Random erasing: a box of noise over a part of the image (Zhong et al. 2020)."""

from __future__ import annotations

import math

from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.boxes import box_mask

AREA = (0.02, 1 / 3)  # fraction of the image, as in the paper and in DeiT
ASPECT_RATIO = (0.3, 1 / 0.3)
_ATTEMPTS = 10  # random boxes, of which the first that fits is taken


def random_erasing(image: Array, seed: Array, probability: float) -> Array:
    """Fills a random box of one image with uniform noise in 0..255.

    Args:
        image: float array or tensor of static shape `(height, width, channels)`, values 0..255.
        seed: integers of shape `(2,)`; the same seed gives the same box and noise.
        probability: how often, in [0, 1]; DeiT takes 0.25.

    Returns:
        Another like `image`.

    Example:
        >>> import numpy as np
        >>> erased = random_erasing(np.full((32, 32, 3), -1.0), (0, 1), probability=1.0)
        >>> bool(0.02 < np.mean(erased >= 0) < 0.34)
        True
    """
    xp = array_namespace(image)
    height, width, _ = image.shape
    box_seed, noise_seed = xp.unstack(xp.random.experimental.stateless_split(seed, 2))
    draws = xp.random.stateless_uniform((_ATTEMPTS + 1, 2), box_seed)

    def erase() -> Array:
        log_low, log_high = map(math.log, ASPECT_RATIO)
        area = height * width * (AREA[0] + (AREA[1] - AREA[0]) * draws[1:, 0])
        aspect = xp.exp(log_low + (log_high - log_low) * draws[1:, 1])
        sides = xp.round(xp.sqrt(xp.stack([area * aspect, area / aspect], axis=1)))
        fits = xp.reduce_all(sides < (height, width), axis=1)
        side = xp.where(xp.reduce_any(fits), sides[xp.argmax(fits)], 0.0)
        # The first row decides whether to erase; stretched to [0, 1) again, it is the place.
        place = xp.stack([draws[0, 0] / probability, draws[0, 1]])
        begin = xp.floor(place * (xp.constant((height, width), xp.float32) - side + 1))

        box = box_mask(begin, begin + side, (height, width))
        noise = xp.random.stateless_uniform(image.shape, noise_seed, maxval=255.0)
        return xp.where(box, noise, image)

    return xp.cond(draws[0, 0] < probability, erase, lambda: image)
