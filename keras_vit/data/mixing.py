"""Two pictures in one: mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019), by batches."""

from __future__ import annotations

from ._imports import tf


def mix_pairs(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mixes every picture of a batch with the one before it, by one share for the whole batch.

    The share is drawn from Beta(alpha, alpha) and the larger part kept, as big_vision's `mixup`.

    Args:
        images: float tensor `(batch, height, width, channels)`.
        labels: float one-hot tensor `(batch, classes)`.
        seed: integer tensor `(2,)`; the same seed gives the same share.
        alpha: parameter of the Beta distribution, above 0; 0.2 is mild, 1 draws shares evenly.

    Returns:
        Images and labels, mixed alike, in the shapes they came in.

    Raises:
        ValueError: alpha is not above 0.

    Example:
        >>> import tensorflow as tf
        >>> _, labels = mix_pairs(tf.zeros((2, 4, 4, 3)), tf.eye(2), (0, 1), alpha=0.2)
        >>> tf.reduce_sum(labels, axis=1).numpy().tolist()
        [1.0, 1.0]
    """
    share = _share(seed, alpha)
    share = tf.maximum(share, 1 - share)
    return _mixed(images, share), _mixed(labels, share)


def cut_pairs(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, alpha: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Puts a box from the picture before it into every picture of a batch, at the same place.

    The area of the box is drawn from Beta(alpha, alpha), its centre evenly over the picture; what
    lies outside is cut off, and labels are mixed by the area that is left.

    Args:
        images: float tensor `(batch, height, width, channels)`.
        labels: float one-hot tensor `(batch, classes)`.
        seed: integer tensor `(2,)`; the same seed gives the same box.
        alpha: parameter of the Beta distribution, above 0; 1 in the paper.

    Returns:
        Images and labels in the shapes they came in.

    Raises:
        ValueError: alpha is not above 0.

    Example:
        >>> import tensorflow as tf
        >>> images = tf.reshape(tf.constant((0.0, 1.0)), (2, 1, 1, 1)) * tf.ones((2, 8, 8, 3))
        >>> cut, labels = cut_pairs(images, tf.eye(2), (0, 1), alpha=1.0)
        >>> bool(tf.reduce_mean(cut[1]) == labels[1, 1])
        True
    """
    share_seed, place_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    size = tf.cast(tf.shape(images)[1:3], tf.float32)
    half = tf.floor(size * tf.sqrt(1 - _share(share_seed, alpha))) / 2
    centre = tf.random.stateless_uniform((2,), place_seed) * size
    begin = tf.clip_by_value(tf.round(centre - half), 0, size)
    end = tf.clip_by_value(tf.round(centre + half), 0, size)

    def covered(axis: int) -> tf.Tensor:
        pixels = tf.range(size[axis])
        return (pixels >= begin[axis]) & (pixels < end[axis])

    box = (covered(0)[:, None] & covered(1))[..., None]
    share = 1 - tf.reduce_prod((end - begin) / size)
    return tf.where(box, tf.roll(images, 1, axis=0), images), _mixed(labels, share)


def mix_or_cut(
    images: tf.Tensor, labels: tf.Tensor, seed: tf.Tensor, mixup: float, cutmix: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """`mix_pairs` with `mixup`, `cut_pairs` with `cutmix`; with both, the one or the other.

    Args:
        images: float tensor `(batch, height, width, channels)`.
        labels: float one-hot tensor `(batch, classes)`.
        seed: integer tensor `(2,)`.
        mixup: alpha of mixup, 0 for none.
        cutmix: alpha of CutMix, 0 for none.

    Returns:
        Images and labels in the shapes they came in.

    Example:
        >>> import tensorflow as tf
        >>> _, labels = mix_or_cut(tf.zeros((2, 4, 4, 3)), tf.eye(2), (0, 1), 0.8, 1.0)
        >>> labels.shape.as_list()
        [2, 2]
    """
    if not cutmix:
        return mix_pairs(images, labels, seed, mixup) if mixup else (images, labels)
    if not mixup:
        return cut_pairs(images, labels, seed, cutmix)
    which_seed, seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    mixed: tuple[tf.Tensor, tf.Tensor] = tf.cond(  # as DeiT, one half of the batches each
        tf.random.stateless_uniform((), which_seed) < 0.5,
        lambda: mix_pairs(images, labels, seed, mixup),
        lambda: cut_pairs(images, labels, seed, cutmix),
    )
    return mixed


def _share(seed: tf.Tensor, alpha: float) -> tf.Tensor:
    """A number drawn from Beta(alpha, alpha)."""
    if alpha <= 0:
        raise ValueError(f"alpha={alpha} must be above 0, for instance 0.2")
    # A pair of Gamma variables, each divided by their sum, is Beta distributed.
    gammas = tf.random.stateless_gamma((2,), seed, alpha)
    return gammas[0] / tf.maximum(tf.reduce_sum(gammas), 1e-30)


def _mixed(values: tf.Tensor, share: tf.Tensor) -> tf.Tensor:
    """Every row of a batch with the one before it."""
    return share * values + (1 - share) * tf.roll(values, 1, axis=0)
