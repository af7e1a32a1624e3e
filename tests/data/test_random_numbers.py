"""TensorFlow's stateless random numbers, bit for bit."""

import numpy as np
import pytest
from keras_vit.data import random_numbers as ours

tf = pytest.importorskip("tensorflow")

RANDOM = np.random.default_rng(0)
SEEDS = [
    *RANDOM.integers(0, 10_000, (20, 2)),  # as the pipeline's: the number of an image, and a seed
    *RANDOM.integers(-(2**63), 2**63, (20, 2)),
    (0, 0),
    (3, -1),
]


@pytest.mark.parametrize("shape", [(), (5,), (0,), (30, 7), (70, 3)])
def test_uniform(shape: tuple[int, ...]) -> None:
    for seed in SEEDS:
        for low, high in ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)):
            for dtype in ("float32", "float64"):
                numbers = ours.stateless_uniform(shape, seed, low, high, dtype)
                expected = tf.random.stateless_uniform(shape, seed, low, high, dtype).numpy()
                assert numbers.dtype == expected.dtype
                np.testing.assert_array_equal(numbers, expected)


def test_integers() -> None:
    for seed in SEEDS:
        expected = tf.random.stateless_uniform((3,), seed, 0, tf.int32.max, tf.int32)
        np.testing.assert_array_equal(ours.stateless_integers(3, seed), expected)


def test_seeds_from_seeds() -> None:
    for seed in SEEDS:
        for number in (1, 2, 5, 40):
            seeds = ours.stateless_split(seed, number)
            expected = tf.random.experimental.stateless_split(seed, number).numpy()
            assert seeds.dtype == expected.dtype
            np.testing.assert_array_equal(seeds, expected)
            folded = tf.random.experimental.stateless_fold_in(seed, number).numpy()
            np.testing.assert_array_equal(ours.stateless_fold_in(seed, number), folded)


@pytest.mark.parametrize("count", [0, 1, 2, 99, 100_000])
def test_shuffle(count: int) -> None:
    for seed in SEEDS[::7] if count > 1000 else SEEDS:
        expected = tf.random.experimental.stateless_shuffle(tf.range(count), seed)
        np.testing.assert_array_equal(ours.stateless_shuffle(np.arange(count), seed), expected)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 2.5])
def test_gamma(alpha: float) -> None:
    seeds = np.stack([np.arange(300), RANDOM.integers(0, 100, 300)], axis=1)
    for seed in seeds:  # one sample in twenty is rejected, and drawn again
        expected = tf.random.stateless_gamma((2,), seed, alpha)
        np.testing.assert_array_equal(ours.stateless_gamma((2,), seed, alpha), expected)


WHOLE_IMAGE = {"min_object_covered": 0.0, "use_image_if_no_bounding_boxes": True}


@pytest.mark.parametrize("largest", [12, 3000])  # where rounding decides, and of photographs
def test_boxes(largest: int) -> None:
    for seed in RANDOM.integers(0, 10_000, (500, 2)):
        shape = tuple(RANDOM.integers(1, largest, 2).tolist())
        area = (RANDOM.choice([0.05, 0.3, 0.8, 1.0]), 1.0)
        ratios = tuple(np.sort(RANDOM.uniform(0.1, 6, 2))) if seed[0] % 2 else (3 / 4, 4 / 3)
        image = (*shape, 3), tf.zeros((1, 0, 4)), seed
        options = {"aspect_ratio_range": ratios, "area_range": area, **WHOLE_IMAGE}
        begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(*image, **options)
        box = ours.sample_distorted_box(shape, seed, ratios, area)
        np.testing.assert_array_equal(box, [*begin[:2], *extent[:2]])
