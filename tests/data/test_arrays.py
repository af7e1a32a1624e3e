"""Images that NumPy and Pillow prepare are those of TensorFlow's graphs."""

import itertools

import numpy as np
import pytest

from keras_vit import data
from keras_vit.data import Augmentation, _imports, evaluation_image, training_image
from keras_vit.data.augment.affine import transform
from keras_vit.data.augment.rand_augment import RandAugment
from keras_vit.data.eval_transform import INTERPOLATIONS, MODES, PILLOW_MODES, EvalTransform
from keras_vit.data.random_numbers import uniform
from tests.data.image_fixtures import smooth

tf = pytest.importorskip("tensorflow")
RANDOM = np.random.default_rng(0)


IMAGES = [np.asarray(smooth(RANDOM, *size)) for size in ((83, 61), (45, 97), (224, 224))]
IMAGES[1] = IMAGES[1][..., :1]
NOISE = [RANDOM.integers(0, 256, (*size, 3)).astype("uint8") for size in ((7, 300), (40, 24))]
SIZES = ((32, 32), (64, 48), (40, 24))
SETTINGS = {
    **data.AUGMENTATIONS,
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
    augmentation, size = SETTINGS[name], (48, 56)
    for image, position in itertools.product(IMAGES, range(4)):
        draws = augmentation.draw(size, seed=5, position=position)
        array, tensor = (
            training_image(pixels, size, draws, augmentation)
            for pixels in (image, tf.constant(image))
        )
        assert_alike(array, tensor, *ROUNDED.get(name, ()))


@pytest.mark.parametrize("name", data.OPERATIONS)
def test_operations(name: str) -> None:
    for image, magnitude, position in itertools.product(IMAGES, (1, 10, 17), range(2)):
        operation = RandAugment(1, magnitude, (name,))
        draws = operation.draw(uniform(0, name, position, 1, 4), image.shape[:2])
        draws = {key: value[0] for key, value in draws.items()}
        pixels = image.astype("float32")
        array, tensor = (operation.apply(p, draws) for p in (pixels, tf.constant(pixels)))
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


def test_arrays_do_not_touch_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    def untouched(_: object, name: str) -> None:
        raise AssertionError(f"tf.{name}")

    monkeypatch.setattr(_imports._LazyModule, "__getattr__", untouched)
    for image in IMAGES[:2]:
        for augmentation in SETTINGS.values():
            draws = augmentation.draw(16, seed=1, position=2)
            assert isinstance(training_image(image, 16, draws, augmentation), np.ndarray)
        for mode in MODES:
            assert isinstance(evaluation_image(image, 16, mode), np.ndarray)
    with pytest.raises(AssertionError, match=r"tf\."):
        evaluation_image(tf.constant(IMAGES[0]), 16)
