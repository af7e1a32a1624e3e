"""Two images in one, batch by batch: mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019).

Keras and keras-cv have layers for both, which `pipeline(augment=...)` takes, too. Here an image is
mixed with the one before it, so that each of several processes decodes few images of the others.
"""

from __future__ import annotations

from typing import Any

from keras_vit.data.arrays import Array, array_namespace
from keras_vit.data.augment.boxes import box_mask


def mixup(
    images: Array,
    labels: Array,
    seed: Array,
    alpha: float,
    images_before: Array | None = None,
) -> tuple[Array, Array]:
    """Blends every image of a batch with the one before it, all with the same weight.

    The weight is drawn from Beta(alpha, alpha); the image itself gets the larger part, as in
    big_vision's `mixup`.

    Args:
        images: float array or tensor `(batch, height, width, channels)`.
        labels: float rows `(batch, columns)`: one-hot, of several labels, or of numbers.
        seed: integers `(2,)`; the same seed gives the same weight.
        alpha: parameter of the Beta distribution, above 0; 0.2 is mild, 1 draws evenly.
        images_before: the image before each of `images`, where these are some rows of a batch with
            these labels.

    Returns:
        Images and labels, mixed alike, in the kinds and shapes they came in.

    Raises:
        ValueError: alpha is not above 0.

    Example:
        >>> import numpy as np
        >>> images, labels = np.zeros((2, 4, 4, 3), "float32"), np.eye(2, dtype="float32")
        >>> mixup(images, labels, (0, 1), alpha=0.2)[1].sum(axis=1).tolist()
        [1.0, 1.0]
    """
    xp = array_namespace(images)
    weight = _sample_beta(xp, seed, alpha)
    weight = xp.maximum(weight, 1 - weight)
    before = _before(images) if images_before is None else images_before
    return _blend(images, before, weight), _blend(labels, _before(labels), weight)


def cutmix(
    images: Array,
    labels: Array,
    seed: Array,
    alpha: float,
    images_before: Array | None = None,
) -> tuple[Array, Array]:
    """Pastes a box from the image before it into every image of a batch, at the same place.

    The area of the box is drawn from Beta(alpha, alpha), its center evenly over the image; what
    lies outside is cut off, and labels are mixed by the area that remains. The arguments are those
    of `mixup`; alpha is 1 in the paper.

    Example:
        >>> import numpy as np
        >>> images = np.stack([np.zeros((8, 8, 3)), np.ones((8, 8, 3))]).astype("float32")
        >>> cut, labels = cutmix(images, np.eye(2, dtype="float32"), (0, 1), alpha=1.0)
        >>> bool(cut[1].mean() == labels[1, 1])
        True
    """
    xp = array_namespace(images)
    area_seed, place_seed = xp.unstack(xp.random.experimental.stateless_split(seed, 2))
    size = xp.cast(xp.shape(images)[1:3], xp.float32)
    half = xp.floor(size * xp.sqrt(1 - _sample_beta(xp, area_seed, alpha))) / 2
    center = xp.random.stateless_uniform((2,), place_seed) * size
    begin = xp.clip_by_value(xp.round(center - half), 0, size)
    end = xp.clip_by_value(xp.round(center + half), 0, size)
    box = box_mask(begin, end, xp.unstack(size))
    weight = 1 - xp.reduce_prod((end - begin) / size)
    before = _before(images) if images_before is None else images_before
    return xp.where(box, before, images), _blend(labels, _before(labels), weight)


def mixup_or_cutmix(
    images: Array,
    labels: Array,
    seed: Array,
    mixup_alpha: float,
    cutmix_alpha: float,
    images_before: Array | None = None,
) -> tuple[Array, Array]:
    """`mixup`, `cutmix` or, where both alphas are above 0, one by a fair coin, as in DeiT."""
    if not mixup_alpha and not cutmix_alpha:
        return images, labels
    if not cutmix_alpha:
        return mixup(images, labels, seed, mixup_alpha, images_before)
    if not mixup_alpha:
        return cutmix(images, labels, seed, cutmix_alpha, images_before)
    xp = array_namespace(images)
    coin_seed, seed = xp.unstack(xp.random.experimental.stateless_split(seed, 2))
    return xp.cond(
        xp.random.stateless_uniform((), coin_seed) < 0.5,
        lambda: mixup(images, labels, seed, mixup_alpha, images_before),
        lambda: cutmix(images, labels, seed, cutmix_alpha, images_before),
    )


def _sample_beta(xp: Any, seed: Array, alpha: float) -> Array:
    """A sample of Beta(alpha, alpha)."""
    if alpha <= 0:
        raise ValueError(f"alpha={alpha} must be above 0, for instance 0.2")
    # Two Gamma variables, each divided by their sum, are Beta distributed.
    gammas = xp.random.stateless_gamma((2,), seed, alpha)
    return gammas[0] / xp.maximum(xp.reduce_sum(gammas), 1e-30)


def _before(values: Array) -> Array:
    """For every row of a batch, the one before it."""
    return array_namespace(values).roll(values, 1, axis=0)


def _blend(values: Array, before: Array, weight: Array) -> Array:
    return weight * values + (1 - weight) * before
