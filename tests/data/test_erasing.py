"""Random erasing: how often, how much, where and with what."""

import numpy as np
import pytest

from keras_vit.data import random_erasing

tf = pytest.importorskip("tensorflow")


def erased(count: int, probability: float, shape=(60, 80, 3)) -> np.ndarray:
    blank = tf.fill(shape, -1.0)
    seeds = np.stack([np.arange(count), np.full(count, 5)], 1)
    images = tf.data.Dataset.from_tensor_slices(seeds).map(
        lambda seed: random_erasing(blank, seed, probability)
    )
    return np.stack(list(images.as_numpy_iterator()))


def test_boxes_are_those_of_the_paper() -> None:
    images = erased(400, 1.0)
    boxes = (images >= 0).all(-1)
    np.testing.assert_array_equal(boxes, (images >= 0).any(-1))
    areas = boxes.mean((1, 2))
    assert 0.015 < areas.min() < 0.04
    assert 0.28 < areas.max() < 0.345
    ratios, corners = [], []
    for box in boxes:
        inside = np.argwhere(box)
        low, high = inside.min(0), inside.max(0) + 1
        assert box.sum() == np.prod(high - low)  # a rectangle
        ratios.append((high - low)[0] / (high - low)[1])
        corners.append((low[0] == 0, high[0] == 60, low[1] == 0, high[1] == 80))
    assert 0.28 < min(ratios) < 0.5
    assert 2 < max(ratios) < 3.6
    assert np.sum(corners, axis=0).min() >= 1  # up to every border
    noise = images[images >= 0]
    np.testing.assert_allclose(
        np.quantile(noise, [0, 0.25, 0.5, 0.75, 1]), [0, 63.75, 127.5, 191.25, 255], atol=1
    )


def test_probability_and_seed() -> None:
    images = erased(400, 0.25)
    count = (images >= 0).any((1, 2, 3)).sum()
    assert 66 <= count <= 134  # four standard deviations
    np.testing.assert_array_equal(images[:20], erased(20, 0.25))
    # Rare boxes lie anywhere, too: their place does not hang on the draw that let them be.
    tops = [int(np.argwhere(i >= 0)[:, 0].min()) for i in images if (i >= 0).any()]
    assert len(set(tops)) > 15
