"""Mixup mixes images and labels by one and the same share."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data


def test_images_and_labels_are_mixed_alike() -> None:
    images = np.zeros((4, 2, 2, 1), "float32") + np.arange(4, dtype="float32").reshape(4, 1, 1, 1)
    labels = np.eye(4, dtype="float32")
    shares = []
    for seed in range(200):
        mixed, rows = data.mix_pairs(images, labels, (seed, 0), alpha=0.2)
        share = float(rows[1, 1])
        assert float(rows[1, 0]) == pytest.approx(1 - share, abs=1e-6)
        # Picture 1 with its neighbour 0: share x 1 + (1 - share) x 0.
        np.testing.assert_allclose(mixed[1], share, atol=1e-6)
        shares.append(share)
    assert min(shares) >= 0.5  # the larger part is kept
    # E[max(b, 1-b)] of Beta(0.2, 0.2), by numpy's generator.
    b = np.random.default_rng(0).beta(0.2, 0.2, 100_000)
    assert np.mean(shares) == pytest.approx(np.maximum(b, 1 - b).mean(), abs=0.03)


def test_pipeline_mixes_in_training_only_and_by_seed() -> None:
    split = data.load("digits").train

    def first(seed: int, training: bool = True) -> tf.Tensor:
        batches = data.pipeline(
            split, 8, 16, training, seed=seed, channels=1, num_classes=10, mixup=1.0
        )
        return next(iter(batches))[1].numpy()

    np.testing.assert_array_equal(first(1), first(1))
    assert (first(1) != first(2)).any()
    assert first(1).max(axis=1).min() < 1
    assert set(np.unique(first(1, training=False))) == {0.0, 1.0}
    with pytest.raises(ValueError, match="num_classes"):
        data.pipeline(split, 8, 16, True, mixup=0.2)
