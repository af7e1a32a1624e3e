"""Images that NumPy and Pillow prepare, and random numbers, are those of TensorFlow's graphs."""

import itertools

import numpy as np
import pytest
from PIL import Image

from keras_vit.data import AUGMENTATIONS, OPERATIONS, Augmentation, _imports, evaluation_image
from keras_vit.data import random_numbers as ours
from keras_vit.data.augment.affine import random_affine, transform
from keras_vit.data.augment.erasing import random_erasing
from keras_vit.data.augment.mixtures import mixup_or_cutmix
from keras_vit.data.augment.rand_augment import rand_augment
from keras_vit.data.augment.three_augment import three_augment
from keras_vit.data.eval_transform import INTERPOLATIONS, MODES, PILLOW_MODES, EvalTransform
from keras_vit.data.preprocessing import training_crop, training_image

tf = pytest.importorskip("tensorflow")
RANDOM = np.random.default_rng(0)
SEEDS = [np.array(seed) for seed in ((0, 0), (1, 5), (12, 5), (2**40, 3))]


def photograph(height: int, width: int, channels: int) -> np.ndarray:
    """Smooth between a few random colors."""
    small = RANDOM.integers(0, 256, (height // 9 + 2, width // 9 + 2, channels), "uint8")
    bands = [Image.fromarray(small[..., c]).resize((width, height)) for c in range(channels)]
    return np.stack([np.asarray(band) for band in bands], axis=-1)


IMAGES = [photograph(61, 83, 3), photograph(97, 45, 1), photograph(224, 224, 3)]
NOISE = [RANDOM.integers(0, 256, (*size, 3)).astype("uint8") for size in ((7, 300), (40, 24))]
SIZES = ((32, 32), (64, 48), (224, 224), (40, 24))
SETTINGS = {
    **AUGMENTATIONS,
    "random crop and erasing": Augmentation(crop="random", erasing=0.7),
    "large crops": Augmentation(min_area=0.8, aspect_ratio=(0.2, 5.0)),
    "three_augment": Augmentation(three_augment=True),
    "affine": Augmentation(crop="resize", rotation=20, zoom=0.2, shear=0.1, shift=3),
}
# Sines, exponentials and sums of two libraries, whose last bit may differ: by a little, or, of
# the nearest pixel, here and there by much.
ROUNDED = {"three_augment": (0.02, 0.0), "affine": (0.02, 0.0)}
ROUNDED |= dict.fromkeys(("randaugment", "rotate"), (0.0, 1e-3))


def assert_alike(array: np.ndarray, tensor: object, most: float = 0.0, but: float = 0.0) -> None:
    """Within `most` levels, except for this part of the values."""
    expected = tensor.numpy()
    assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
    assert np.mean(np.abs(array.astype("float32") - expected) > most) <= but


@pytest.mark.parametrize("name", SETTINGS)
def test_training(name: str) -> None:
    augmentation = SETTINGS[name]
    for image, seed in itertools.product(IMAGES, SEEDS):
        if crop := training_crop(seed, augmentation):
            shape = np.array(image.shape[:2])
            np.testing.assert_array_equal(crop(shape), crop(tf.constant(shape, tf.int32)))
        array = training_image(image, (48, 56), seed, augmentation)
        tensor = training_image(tf.constant(image), (48, 56), seed, augmentation)
        assert_alike(array, tensor, *ROUNDED.get(name, ()))


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(name: str) -> None:
    draws = (0.2, 0.4, 0.9), (0.8, 0.0, 0.5)
    for image, magnitude, draw in itertools.product(IMAGES, (0.1, 1.0, 1.7), draws):
        array = OPERATIONS[name](image, magnitude, np.array(draw, "float32"))
        tensor = OPERATIONS[name](tf.constant(image), magnitude, tf.constant(draw))
        assert_alike(array, tensor, *ROUNDED.get(name, ()))


@pytest.mark.parametrize("mode", MODES)
def test_evaluation(mode: str) -> None:
    images = IMAGES if mode in PILLOW_MODES else [*IMAGES, *NOISE]
    for interpolation in INTERPOLATIONS if mode in PILLOW_MODES else (None,):
        how = EvalTransform(mode, 0.9, interpolation)
        for image, size in itertools.product(images, SIZES):
            for pixels in (image, image.astype("float32")):
                tensor = evaluation_image(tf.constant(pixels), size, how)
                # What is rounded to integers may fall to either side.
                most = 1.0 if mode in ("big_vision", *PILLOW_MODES) else 0.02
                assert_alike(evaluation_image(pixels, size, how), tensor, most)


def test_nearest_and_bilinear_pixels_are_the_same_bits() -> None:
    for places in RANDOM.choice([0, 0.3, -0.3, 0.5, 1.5, -0.25, 20.3], (60, 6)):
        image = RANDOM.integers(0, 256, (*RANDOM.integers(1, 40, 2), 2)).astype("uint8")
        matrix = (1 + places[0], *places[1:4], 1 + places[4], places[5])
        for method, pixels in (("NEAREST", image), ("BILINEAR", image.astype("float32"))):
            tensor = transform(tf.constant(pixels), matrix, method, 128.0)
            assert_alike(transform(pixels, matrix, method, 128.0), tensor)


@pytest.mark.parametrize("alphas", [(0.2, 0.0), (0.0, 1.0), (0.8, 1.0), (0.0, 0.0)])
def test_mixtures(alphas: tuple[float, float]) -> None:
    images = RANDOM.uniform(0, 255, (5, 16, 24, 3)).astype("float32")
    labels = np.eye(5, dtype="float32")
    for seed in RANDOM.integers(0, 10_000, (20, 2)):
        for before in (None, images[[3, 0, 1, 2, 3]]):
            arrays = mixup_or_cutmix(images, labels, seed, *alphas, before)
            tensors = mixup_or_cutmix(tf.constant(images), labels, seed, *alphas, before)
            assert_alike(arrays[0], tensors[0], 1e-4)
            assert_alike(arrays[1], tf.convert_to_tensor(tensors[1]), 1e-6)


def test_arrays_do_not_touch_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    def untouched(_: object, name: str) -> None:
        raise AssertionError(f"tf.{name}")

    monkeypatch.setattr(_imports._LazyModule, "__getattr__", untouched)
    for image in IMAGES[:2]:
        for augmentation in SETTINGS.values():
            assert isinstance(training_image(image, 16, (1, 2), augmentation), np.ndarray)
        for mode in MODES:
            assert isinstance(evaluation_image(image, 16, mode), np.ndarray)
        pixels = image.astype("float32")
        rand_augment(image, (1, 2), 40)
        for seed in SEEDS:
            random_affine(pixels, seed, rotation=10)
            random_erasing(pixels, seed, 1.0)
            three_augment(pixels, seed)
            mixup_or_cutmix(pixels[None], np.ones((1, 1)), seed, 0.2, 1.0)
    with pytest.raises(AssertionError, match=r"tf\."):
        evaluation_image(tf.constant(IMAGES[0]), 16)


# TensorFlow's stateless random numbers, bit for bit: of seeds as the pipeline's, the number of an
# image and a seed, and of any.
MANY_SEEDS = [*RANDOM.integers(0, 10_000, (20, 2)), *RANDOM.integers(-(2**63), 2**63, (20, 2))]
MANY_SEEDS += [(0, 0), (3, -1)]


def test_random_numbers() -> None:
    shapes, dtypes = [(), (5,), (0,), (30, 7), (70, 3)], ("float32", "float64")
    ranges = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
    for shape, seed, (low, high), dtype in itertools.product(shapes, MANY_SEEDS, ranges, dtypes):
        numbers = ours.stateless_uniform(shape, seed, low, high, dtype)
        expected = tf.random.stateless_uniform(shape, seed, low, high, dtype).numpy()
        assert numbers.dtype == expected.dtype
        np.testing.assert_array_equal(numbers, expected)
    for seed in MANY_SEEDS:
        expected = tf.random.stateless_uniform((3,), seed, 0, tf.int32.max, tf.int32)
        np.testing.assert_array_equal(ours.stateless_integers(3, seed), expected)
        for number in (1, 2, 5, 40):
            seeds = ours.stateless_split(seed, number)
            expected = tf.random.experimental.stateless_split(seed, number).numpy()
            assert seeds.dtype == expected.dtype
            np.testing.assert_array_equal(seeds, expected)
            folded = tf.random.experimental.stateless_fold_in(seed, number).numpy()
            np.testing.assert_array_equal(ours.stateless_fold_in(seed, number), folded)
    for count in (0, 1, 2, 99, 100_000):
        for seed in MANY_SEEDS[::7] if count > 1000 else MANY_SEEDS:
            expected = tf.random.experimental.stateless_shuffle(tf.range(count), seed)
            np.testing.assert_array_equal(ours.stateless_shuffle(np.arange(count), seed), expected)
    for alpha in (0.1, 0.2, 0.8, 1.0, 2.5):
        seeds = np.stack([np.arange(300), RANDOM.integers(0, 100, 300)], axis=1)
        for seed in seeds:  # one sample in twenty is rejected, and drawn again
            expected = tf.random.stateless_gamma((2,), seed, alpha)
            np.testing.assert_array_equal(ours.stateless_gamma((2,), seed, alpha), expected)
    for largest in (12, 3000):  # where rounding decides, and of photographs
        for seed in RANDOM.integers(0, 10_000, (500, 2)):
            shape = tuple(RANDOM.integers(1, largest, 2).tolist())
            area = (RANDOM.choice([0.05, 0.3, 0.8, 1.0]), 1.0)
            ratios = tuple(np.sort(RANDOM.uniform(0.1, 6, 2))) if seed[0] % 2 else (3 / 4, 4 / 3)
            image = (*shape, 3), tf.zeros((1, 0, 4)), seed
            options = {"min_object_covered": 0.0, "use_image_if_no_bounding_boxes": True}
            options |= {"aspect_ratio_range": ratios, "area_range": area}
            begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(*image, **options)
            box = ours.sample_distorted_box(shape, seed, ratios, area)
            np.testing.assert_array_equal(box, [*begin[:2], *extent[:2]])
