"""Rotation, zoom, shear and shift against scipy's interpolation."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
ndimage = pytest.importorskip("scipy.ndimage")

from keras_vit.data import Augmentation, training_image  # noqa: E402
from keras_vit.data.augment.affine import random_affine, transform  # noqa: E402

IMAGE = np.random.default_rng(0).uniform(0, 255, (9, 12, 2)).astype("float32")


def test_transform_equals_scipy() -> None:
    matrix = (0.9, 0.2, 0.4, -0.3, 1.1, 1.2)
    a, b, c, d, e, f = matrix
    seen = transform(tf.constant(IMAGE), matrix, "BILINEAR").numpy()
    for channel in range(2):
        # scipy's axes are rows and columns: (y, x) from (e y + d x + f, b y + a x + c).
        expected = ndimage.affine_transform(
            np.pad(IMAGE[..., channel], 4),
            [[e, d], [b, a]],
            # In the padded image, whose zeros are what comes in.
            np.array([f, c]) + 4,
            output_shape=IMAGE.shape[:2],
            order=1,
        )
        np.testing.assert_allclose(seen[..., channel], expected, atol=1e-3)


@pytest.mark.parametrize(
    ("option", "value", "change"),
    [
        # What the option alone does to the place of the image's brightest point.
        ("shift", 2.0, "center"),
        ("zoom", 0.5, "size"),
        ("rotation", 30.0, "angle"),
        ("shear", 0.5, "slant"),
    ],
)
def test_each_change_stays_within_its_range(option: str, value: float, change: str) -> None:
    """Moments of a bright bar: its center, its lengths and its direction."""
    rows, columns = np.mgrid[0:41, 0:41] - 20.0
    bar = np.exp(-((columns / 8) ** 2) - (rows / 4) ** 2).astype("float32")[..., None] * 255
    seen = []
    for seed in range(60):
        image = random_affine(tf.constant(bar), (seed, 1), **{option: value}).numpy()[..., 0]
        weight = image / image.sum()
        y, x = (weight * rows).sum(), (weight * columns).sum()
        xx, yy, xy = (
            (weight * (columns - x) ** 2).sum(),
            (weight * (rows - y) ** 2).sum(),
            (weight * (columns - x) * (rows - y)).sum(),
        )
        seen.append(
            {
                "center": x,
                "size": np.log(np.sqrt(xx / 32)),
                "angle": np.rad2deg(np.arctan2(2 * xy, xx - yy) / 2),
                "slant": xy / yy,
            }[change]
        )
    largest = np.abs(seen).max()
    assert 0.8 * value < largest < 1.05 * value
    assert abs(np.mean(seen)) < 0.4 * value  # either side


def test_nothing_drawn_is_no_change_and_the_seed_decides() -> None:
    image = tf.constant(IMAGE)
    np.testing.assert_allclose(random_affine(image, (0, 1)), IMAGE, atol=1e-3)
    options = {"rotation": 20.0, "zoom": 0.2, "shear": 0.2, "shift": 1.0}
    first = random_affine(image, (3, 4), **options).numpy()
    np.testing.assert_array_equal(first, random_affine(image, (3, 4), **options))
    assert np.abs(first - random_affine(image, (3, 5), **options)).max() > 1


def test_training_images_are_turned_in_their_range_of_values() -> None:
    augmentation = Augmentation(crop="resize", flip=False, rotation=20, zoom=0.2, shift=1)
    pixels = IMAGE.astype("uint8")
    image = training_image(tf.constant(pixels), (9, 12), (0, 1), augmentation).numpy()
    assert image.dtype == "float32"
    assert image.shape == IMAGE.shape
    assert image.min() >= 0
    assert image.max() <= 255
    assert np.abs(image - pixels).max() > 1
