"""Two images in one, batch by batch: mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019).

Keras and keras-cv have layers for both, which `pipeline(augment=...)` takes, too. Here an image is
mixed with the one before it, so that each of several processes decodes few images of the others.
"""

import numpy as np

from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.boxes import box_mask
from keras_vit.data.augment.change import Draws
from keras_vit.data.random_numbers import generator


def draw_mixture(
    alphas: tuple[float, float],
    size: tuple[int, int],
    seed: int,
    position: int,
    part: float = 1.0,
) -> Draws:
    """Draw how every image of a batch is mixed with the one before it, all alike.

    Of mixup, the weight is drawn from Beta(alpha, alpha); the image itself gets the larger part, as
    in big_vision's `mixup`. Of CutMix, the area of the box that is pasted is drawn from it, and its
    center evenly over the image; what lies outside is cut off, and labels are mixed by the area
    that remains.

    Args:
        alphas: of mixup and of CutMix, one of them above 0. Where both are, a fair coin decides, as
            in DeiT.
        position: of the first image of the batch.

    Returns:
        `weight`, that of the image and its label, which is 1 where nothing is mixed, and `box`
        `(top, left, bottom, right)`, empty where images are blended; float32.

    >>> draws = draw_mixture((0.2, 0.0), (8, 8), seed=0, position=0)
    >>> bool(0.5 <= draws["weight"] <= 1), draws["box"].tolist()
    (True, [0.0, 0.0, 0.0, 0.0])
    """
    draws = generator(seed, "mixture", position)
    coin, *center = draws.random(3)
    pasted = alphas[1] > 0 and (not alphas[0] or coin < 0.5)
    alpha = alphas[1] if pasted else alphas[0]
    weight, box = draws.beta(alpha, alpha), np.zeros(4)
    if pasted:
        sides = np.array(size)
        half = np.floor(sides * np.sqrt(1 - weight)) / 2
        middle = center * sides
        begin, end = (np.round(middle + d).clip(0, sides) for d in (-half, half))
        weight, box = 1 - np.prod((end - begin) / sides), np.concatenate([begin, end])
    else:
        weight = max(weight, 1 - weight)
    if draws.random() >= part:  # drawn last: a part of 1 changes no earlier number
        weight, box = 1.0, np.zeros(4)
    return {"weight": np.array(weight, "float32"), "box": box.astype("float32")}


def mix_images(images: Array, others: Array, draws: Draws) -> Array:
    """Mix each image `(height, width, channels)` of a batch, float32, with one of `others`."""
    xp, box = array_namespace(images), draws["box"]

    def paste() -> Array:
        return xp.where(box_mask(box[:2], box[2:], images.shape[1:3]), others, images)

    return xp.cond(box[2] > box[0], paste, lambda: mix_rows(images, others, draws))


def mix_rows(rows: Array, others: Array, draws: Draws) -> Array:
    """Blend each row of numbers, such as a one-hot label, with one of `others`."""
    return draws["weight"] * rows + (1 - draws["weight"]) * others
