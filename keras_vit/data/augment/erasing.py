"""Random erasing: a box of noise over a part of the image (Zhong et al. 2020)."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.boxes import box_mask
from keras_vit.data.augment.change import Change, Draws
from keras_vit.data.random_numbers import uniform as random_numbers

AREA = (0.02, 1 / 3)  # fraction of the image, as in the paper and in DeiT
ASPECT_RATIO = (0.3, 1 / 0.3)
_ATTEMPTS = 10  # random boxes, of which the first that fits is taken


@dataclass(frozen=True)
class Erasing(Change):
    """Fills a random box of an image with uniform noise in 0..255.

    Args:
        probability: how often, in [0, 1]; DeiT takes 0.25.
    """

    probability: float
    numbers = 5 + 2 * _ATTEMPTS
    of_bytes = True

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"erasing={self.probability} must lie in [0, 1], for instance 0.25")

    def draw(self, uniform: np.ndarray, size: tuple[int, int]) -> Draws:
        """Draw the box, empty where nothing is erased, and the place of its noise."""
        areas, aspects = np.split(uniform[:, 5:].astype("float64"), 2, axis=1)
        areas = math.prod(size) * (AREA[0] + (AREA[1] - AREA[0]) * areas)
        low, high = map(math.log, ASPECT_RATIO)
        aspects = np.exp(low + (high - low) * aspects)
        sides = np.round(np.sqrt(np.stack([areas * aspects, areas / aspects], axis=-1)))
        fits = (sides < size).all(-1)
        side = sides[np.arange(len(sides)), fits.argmax(1)]
        erased = fits.any(1) & (uniform[:, 0] < self.probability)
        side = np.where(erased[:, None], side, 0)
        begin = np.floor(uniform[:, 1:3] * (size - side + 1))
        return {
            "box": np.concatenate([begin, begin + side], 1).astype("float32"),
            "noise": (uniform[:, 3:5] * size).astype("int32"),
        }

    def apply(self, image: Array, draws: Draws) -> Array:
        xp = array_namespace(image)
        box = draws["box"]

        def erase() -> Array:
            noise = xp.roll(xp.constant(_noise(*image.shape)), draws["noise"], (0, 1))
            return xp.where(box_mask(box[:2], box[2:], image.shape[:2]), noise, image)

        return xp.cond(box[2] > box[0], erase, lambda: image)

    def __str__(self) -> str:
        return f"random erasing of {100 * self.probability:.3g} %"


@lru_cache(maxsize=4)
def _noise(height: int, width: int, channels: int) -> np.ndarray:
    """Evenly spaced levels in random order, which images take from different places."""
    count = height * width * channels
    order = random_numbers(0, "noise", 0, 1, count).argsort(kind="stable")
    return (order * (255 / count)).astype("float32").reshape(height, width, channels)
