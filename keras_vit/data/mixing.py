"""Mixup: training on straight lines between pairs of pictures (Zhang et al. 2018)."""

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
    if alpha <= 0:
        raise ValueError(f"alpha={alpha} must be above 0, for instance 0.2")
    # A pair of Gamma variables, each divided by their sum, is Beta distributed.
    gammas = tf.random.stateless_gamma((2,), seed, alpha)
    share = gammas[0] / tf.maximum(tf.reduce_sum(gammas), 1e-30)
    share = tf.maximum(share, 1 - share)
    return (
        share * images + (1 - share) * tf.roll(images, 1, axis=0),
        share * labels + (1 - share) * tf.roll(labels, 1, axis=0),
    )
