"""Resampled splits: how often each class is drawn, and the same stream wherever it starts."""

import numpy as np
import pytest

from keras_vit.data import pipeline
from keras_vit.data.sources.array_splits import ArraySplit, DecodedSplit
from keras_vit.tasks.balance import sampling_rates
from tests.data.batches import check_stopped_run

pytest.importorskip("tensorflow")
COUNTS = [60, 30, 8, 2]
LABELS = np.random.default_rng(0).permutation(np.repeat(range(4), COUNTS))
# An image's first pixel is its place, and the second its label.
IMAGES = np.zeros((100, 4, 4, 1), np.uint8)
IMAGES[:, 0, 0, 0], IMAGES[:, 0, 1, 0] = np.arange(100), LABELS
SPLIT = ArraySplit("train", tuple("abcd"), IMAGES, LABELS)
RESAMPLED = SPLIT.resampled(sampling_rates(COUNTS))


def drawn(split: ArraySplit, epoch: int = 0, start: int = 0, seed: int = 7) -> np.ndarray:
    """Places and labels of a shuffled pass, `(2, images)`."""
    rows = [tuple(map(int, row)) for row in split.dataset(seed, epoch, start).as_numpy_iterator()]
    return np.array(rows).T


def test_every_class_is_drawn_as_often_other_rates_and_stopped_streams() -> None:
    times = np.zeros(100)
    for epoch in range(40):
        places, labels = drawn(RESAMPLED, epoch)
        np.testing.assert_array_equal(labels, LABELS[places])
        assert np.abs(np.bincount(labels) - 25).max() <= 1
        counts = np.bincount(places, minlength=100)
        for label, count in enumerate(COUNTS):
            rate = 25 / count  # systematic sampling rounds it down or up for each image
            assert set(counts[label == LABELS]) <= {int(rate), int(rate) + 1}
        times += counts
    # Over many passes all images of a class are drawn alike: 40 * 25 / 60 = 16.7 +- 3.1.
    assert 5 < times[LABELS == 0].min() <= times[LABELS == 0].max() < 29
    # Passes follow from seed and number alone.
    first = drawn(RESAMPLED)
    np.testing.assert_array_equal(drawn(RESAMPLED), first)
    np.testing.assert_array_equal(drawn(RESAMPLED, start=37), first[:, 37:])
    for other in (drawn(RESAMPLED, epoch=1), drawn(RESAMPLED, seed=8)):
        assert (other[0] != first[0]).any()
    assert (np.diff(first[1]) != 0).sum() > 50  # not class after class
    assert set(drawn(SPLIT.resampled([0, 0, 1, 0]))[1]) == {2}
    assert sorted(drawn(SPLIT.resampled([1, 1, 1, 1]))[0]) == list(range(100))
    rows = [int(place) for place, _ in RESAMPLED.dataset().as_numpy_iterator()]
    assert rows == list(range(100))
    labels = [labels for _, labels in pipeline(RESAMPLED, 4, 32, channels=1)]
    np.testing.assert_array_equal(np.concatenate(labels), LABELS)
    # Parts and copies keep the rates.
    assert SPLIT.sampling_rates is None
    part = RESAMPLED.take(np.flatnonzero(LABELS > 0))
    assert np.abs(np.bincount(drawn(part)[1])[1:] - 40 / 3).max() <= 1
    np.testing.assert_array_equal(drawn(DecodedSplit(RESAMPLED, 1)), drawn(RESAMPLED))
    # An image that is drawn twice is augmented anew.
    noise = np.random.default_rng(1).integers(0, 256, (100, 32, 32, 1)).astype("uint8")
    split = ArraySplit("train", tuple("abcd"), noise, LABELS).resampled(sampling_rates(COUNTS))
    images, labels = next(iter(pipeline(split, 4, 100, training=True, channels=1)))
    rare = images.numpy()[labels.numpy() == 3]
    assert len({image.tobytes() for image in rare}) == len(rare) >= 24
    # A stream goes on at any step: stopped within a pass, across its end, and in the third.
    for cache in (False, True):
        options = {"augment": "none", "seed": 3, "channels": 1, "cache": cache}
        check_stopped_run(RESAMPLED, 16, 20, (1, 6, 7, 19), **options)
        batches = pipeline(RESAMPLED, 4, 16, True, repeat=True, **options).take(20)
        labels = np.concatenate([labels for _, labels in batches])
        assert np.abs(np.bincount(labels) - 80).max() < 12
