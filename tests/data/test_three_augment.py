"""3-Augment against Pillow's and scipy's grayscale, solarization, blur and enhancements."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

tf = pytest.importorskip("tensorflow")
ndimage = pytest.importorskip("scipy.ndimage")

from keras_vit.data import Augmentation, training_image  # noqa: E402
from keras_vit.data.augment.three_augment import three_augment  # noqa: E402

PIXELS = np.random.default_rng(0).integers(0, 256, (112, 112, 3)).astype("uint8")
PICTURE = Image.fromarray(PIXELS)


def draws(seed: int) -> np.ndarray:
    return tf.random.stateless_uniform((5,), (seed, 0)).numpy()


def by_hand(seed: int) -> np.ndarray:
    """The same changes with Pillow's and scipy's functions."""
    choice, sigma, *factors = draws(seed)
    if choice < 1 / 3:
        changed = PICTURE.convert("L").convert("RGB")
    elif choice < 2 / 3:
        changed = ImageOps.solarize(PICTURE, 128)
    else:
        width = (0.1 + 1.9 * sigma) / 2  # half the size that the radius is stated for
        blurred = ndimage.gaussian_filter(
            PIXELS.astype(float), (width, width, 0), mode="mirror", radius=(3, 3, 0)
        )
        changed = Image.fromarray(np.rint(blurred).astype("uint8"))
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for enhancer, factor in zip(enhancers, factors, strict=True):
        changed = enhancer(changed).enhance(0.7 + 0.6 * float(factor))
    return np.asarray(changed, float)


def test_it_equals_pillow_up_to_its_rounding() -> None:
    chosen = set()
    for seed in range(12):
        chosen.add(int(draws(seed)[0] * 3))
        image = three_augment(tf.cast(PIXELS, tf.float32), (seed, 0)).numpy()
        # Pillow rounds to integers after each of four changes.
        np.testing.assert_allclose(image, by_hand(seed), atol=4)
    assert chosen == {0, 1, 2}


def test_the_seed_decides_and_every_size_and_channel_works() -> None:
    for shape in ((1, 1, 3), (8, 8, 1), (33, 64, 3)):
        pixels = tf.constant(np.random.default_rng(0).uniform(0, 255, shape), tf.float32)
        for seed in range(6):
            image = three_augment(pixels, (seed, 1)).numpy()
            np.testing.assert_array_equal(image, three_augment(pixels, (seed, 1)))
            assert image.shape == shape
            assert image.min() >= 0
            assert image.max() <= 255


def test_training_images_have_it() -> None:
    plain = Augmentation(crop="resize", flip=False)
    changed = Augmentation(crop="resize", flip=False, three_augment=True)
    before, after = (
        training_image(tf.constant(PIXELS), 112, (0, 1), augmentation).numpy()
        for augmentation in (plain, changed)
    )
    np.testing.assert_array_equal(before, PIXELS)
    assert np.abs(after - before).mean() > 1
