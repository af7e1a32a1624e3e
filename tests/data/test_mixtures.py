"""Mixup and CutMix change images and labels alike."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from keras_vit import data


def test_images_and_labels_are_mixed_alike() -> None:
    images = np.zeros((4, 2, 2, 1), "float32") + np.arange(4, dtype="float32").reshape(4, 1, 1, 1)
    labels = np.eye(4, dtype="float32")
    weights = []
    for seed in range(200):
        mixed, rows = data.mixup(tf.constant(images), labels, (seed, 0), alpha=0.2)
        weight = float(rows[1, 1])
        assert float(rows[1, 0]) == pytest.approx(1 - weight, abs=1e-6)
        # Image 1 with image 0: weight x 1 + (1 - weight) x 0.
        np.testing.assert_allclose(mixed[1], weight, atol=1e-6)
        weights.append(weight)
    assert min(weights) >= 0.5  # the larger part
    # E[max(b, 1-b)] of Beta(0.2, 0.2), by numpy's generator.
    b = np.random.default_rng(0).beta(0.2, 0.2, 100_000)
    assert np.mean(weights) == pytest.approx(np.maximum(b, 1 - b).mean(), abs=0.03)


def test_pipeline_mixes_in_training_only_and_by_seed() -> None:
    split = data.load("digits").train
    augment = replace(data.AUGMENTATIONS["digits"], mixup=1.0)

    def first(seed: int, training: bool = True) -> tf.Tensor:
        batches = data.pipeline(
            split, 8, 16, training, seed=seed, augment=augment, channels=1, num_classes=10
        )
        return next(iter(batches))[1].numpy()

    np.testing.assert_array_equal(first(1), first(1))
    assert (first(1) != first(2)).any()
    assert first(1).max(axis=1).min() < 1
    assert set(np.unique(first(1, training=False))) == {0.0, 1.0}
    with pytest.raises(ValueError, match="num_classes"):
        data.pipeline(split, 8, 16, True, augment=augment)


def test_boxes_are_cut_and_labels_follow_the_area() -> None:
    images = np.broadcast_to(np.arange(4.0).reshape(4, 1, 1, 1), (4, 20, 30, 1)).astype("float32")
    labels = np.eye(4, dtype="float32")
    areas, tops = [], set()
    for seed in range(300):
        cut, rows = data.cutmix(tf.constant(images), labels, (seed, 0), alpha=1.0)
        box = cut[2, ..., 0].numpy() == 1  # image 1 within image 2
        assert set(np.unique(cut[2])) <= {1.0, 2.0}
        np.testing.assert_array_equal(box, cut[0, ..., 0].numpy() == 3)
        inside = np.argwhere(box)
        if len(inside):  # a rectangle, without holes
            low, high = inside.min(0), inside.max(0) + 1
            assert box.sum() == np.prod(high - low)
            tops.add(int(low[0]))
        assert float(rows[2, 1]) == pytest.approx(box.mean(), abs=1e-6)
        assert float(rows[2, 2]) == pytest.approx(1 - box.mean(), abs=1e-6)
        areas.append(box.mean())
    assert len(tops) > 10
    # Independent: boxes of area 1 - Beta(1, 1) around an even center, cut off at the border.
    rng = np.random.default_rng(0)
    sides = np.sqrt(rng.random((100_000, 1))) / 2
    centers = rng.random((100_000, 2))
    extents = (centers + sides).clip(0, 1) - (centers - sides).clip(0, 1)
    assert np.mean(areas) == pytest.approx(extents.prod(1).mean(), abs=0.04)


def test_mixup_and_cutmix_take_turns() -> None:
    split = data.load("digits").train
    augment = replace(data.AUGMENTATIONS["none"], mixup=1.0, cutmix=1.0)
    batches = data.pipeline(split, 8, 16, True, channels=1, augment=augment, num_classes=10)
    whole = [bool((x == np.round(x)).all()) for x, _ in batches.take(80).as_numpy_iterator()]
    assert 20 <= sum(whole) <= 60  # cutmix keeps whole levels, mixup does not
    for name in ("mixup", "cutmix"):
        with pytest.raises(ValueError, match=f"{name}=-1 must be at least 0"):
            data.Augmentation(**{name: -1})
    with pytest.raises(ValueError, match=r"cutmix=0\.5 mix one-hot labels: give num_classes"):
        data.pipeline(split, 8, 16, True, augment=data.Augmentation(cutmix=0.5))
