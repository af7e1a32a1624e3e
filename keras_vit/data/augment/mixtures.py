"""Two images in one, batch by batch: mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019).

Keras and keras-cv have layers for both, which `pipeline(augment=...)` takes, too. Here an image is
mixed with the one before it, so that each of several processes decodes few images of the others.
"""

from __future__ import annotations

from keras_vit.data._imports import tf
from keras_vit.data.augment.boxes import box_mask


def mixup(
    images: tf.Tensor,
    labels: tf.Tensor,
    seed: tf.Tensor,
    alpha: float,
    images_before: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Blends every image of a batch with the one before it, all with the same weight.

    The weight is drawn from Beta(alpha, alpha); the image itself gets the larger part, as in
    big_vision's `mixup`.

    Args:
        images: float tensor `(batch, height, width, channels)`.
        labels: float rows `(batch, columns)`: one-hot, of several labels, or of numbers.
        seed: integer tensor `(2,)`; the same seed gives the same weight.
        alpha: parameter of the Beta distribution, above 0; 0.2 is mild, 1 draws evenly.
        images_before: the image before each of `images`, where these are some rows of a batch with
            these labels.

    Returns:
        Images and labels, mixed alike, in the shapes they came in.

    Raises:
        ValueError: alpha is not above 0.

    Example:
        >>> import tensorflow as tf
        >>> _, labels = mixup(tf.zeros((2, 4, 4, 3)), tf.eye(2), (0, 1), alpha=0.2)
        >>> tf.reduce_sum(labels, axis=1).numpy().tolist()
        [1.0, 1.0]
    """
    weight = _sample_beta(seed, alpha)
    weight = tf.maximum(weight, 1 - weight)
    before = _before(images) if images_before is None else images_before
    return _blend(images, before, weight), _blend(labels, _before(labels), weight)


def cutmix(
    images: tf.Tensor,
    labels: tf.Tensor,
    seed: tf.Tensor,
    alpha: float,
    images_before: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Pastes a box from the image before it into every image of a batch, at the same place.

    The area of the box is drawn from Beta(alpha, alpha), its center evenly over the image; what
    lies outside is cut off, and labels are mixed by the area that remains. The arguments are those
    of `mixup`; alpha is 1 in the paper.

    Example:
        >>> import tensorflow as tf
        >>> images = tf.reshape(tf.constant((0.0, 1.0)), (2, 1, 1, 1)) * tf.ones((2, 8, 8, 3))
        >>> cut, labels = cutmix(images, tf.eye(2), (0, 1), alpha=1.0)
        >>> bool(tf.reduce_mean(cut[1]) == labels[1, 1])
        True
    """
    area_seed, place_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    size = tf.cast(tf.shape(images)[1:3], tf.float32)
    half = tf.floor(size * tf.sqrt(1 - _sample_beta(area_seed, alpha))) / 2
    center = tf.random.stateless_uniform((2,), place_seed) * size
    begin = tf.clip_by_value(tf.round(center - half), 0, size)
    end = tf.clip_by_value(tf.round(center + half), 0, size)
    box = box_mask(begin, end, tf.unstack(size))
    weight = 1 - tf.reduce_prod((end - begin) / size)
    before = _before(images) if images_before is None else images_before
    return tf.where(box, before, images), _blend(labels, _before(labels), weight)


def mixup_or_cutmix(
    images: tf.Tensor,
    labels: tf.Tensor,
    seed: tf.Tensor,
    mixup_alpha: float,
    cutmix_alpha: float,
    images_before: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """`mixup`, `cutmix` or, where both alphas are above 0, one by a fair coin, as in DeiT."""
    if not mixup_alpha and not cutmix_alpha:
        return images, labels
    if not cutmix_alpha:
        return mixup(images, labels, seed, mixup_alpha, images_before)
    if not mixup_alpha:
        return cutmix(images, labels, seed, cutmix_alpha, images_before)
    coin_seed, seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    return tf.cond(
        tf.random.stateless_uniform((), coin_seed) < 0.5,
        lambda: mixup(images, labels, seed, mixup_alpha, images_before),
        lambda: cutmix(images, labels, seed, cutmix_alpha, images_before),
    )


def _sample_beta(seed: tf.Tensor, alpha: float) -> tf.Tensor:
    """A sample of Beta(alpha, alpha)."""
    if alpha <= 0:
        raise ValueError(f"alpha={alpha} must be above 0, for instance 0.2")
    # Two Gamma variables, each divided by their sum, are Beta distributed.
    gammas = tf.random.stateless_gamma((2,), seed, alpha)
    return gammas[0] / tf.maximum(tf.reduce_sum(gammas), 1e-30)


def _before(values: tf.Tensor) -> tf.Tensor:
    """For every row of a batch, the one before it."""
    return tf.roll(values, 1, axis=0)


def _blend(values: tf.Tensor, before: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
    return weight * values + (1 - weight) * before
