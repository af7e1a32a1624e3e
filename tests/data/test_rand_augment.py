"""RandAugment's operations against Pillow and NumPy, and how they are chosen."""

from functools import partial

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from keras_vit.data import OPERATIONS, Augmentation, training_image
from keras_vit.data.augment.rand_augment import RandAugment, _gray
from keras_vit.data.random_numbers import uniform

tf = pytest.importorskip("tensorflow")
NOISE = np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8)
NARROW = (NOISE // 3 + 40).astype(np.uint8)  # with room to stretch
FLAT = np.full((40, 48, 3), (7, 100, 255), np.uint8)
IMAGES = {"noise": NOISE, "narrow": NARROW, "flat": FLAT}


def apply(name: str, image: np.ndarray, magnitude: float, *draw: float) -> np.ndarray:
    return augmented(image, RandAugment(1, magnitude, (name,)), (0, *(draw or (0.9, 0, 0))))


def augmented(image: np.ndarray, change: RandAugment, numbers: object) -> np.ndarray:
    draws = change.draw(np.array([numbers], "float32"), image.shape[:2])
    draws = {key: tf.constant(value[0]) for key, value in draws.items()}
    return change.apply(tf.constant(image, tf.float32), draws).numpy().astype("uint8")


# And what a blend may differ by: it is truncated, and an integer may fall to either side.
PILLOW = {
    "autocontrast": (0, lambda image, m: ImageOps.autocontrast(image)),
    "equalize": (0, lambda image, m: ImageOps.equalize(image)),
    "invert": (0, lambda image, m: ImageOps.invert(image)),
    "posterize": (0, lambda image, m: ImageOps.posterize(image, min(int(m / 10 * 4), 8))),
    "solarize": (0, lambda image, m: ImageOps.solarize(image, int(m / 10 * 256))),
}
for name in ("Color", "Contrast", "Brightness", "Sharpness"):
    enhance = getattr(ImageEnhance, name)
    PILLOW[name.lower()] = 1, lambda image, m, kind=enhance: kind(image).enhance(m * 0.18 + 0.1)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("name", PILLOW)
def test_colors_are_pillows(name: str, image: str) -> None:
    most, change = PILLOW[name]
    for magnitude in (3, 9, 15):
        expected = np.asarray(change(Image.fromarray(IMAGES[image]), magnitude))
        difference = np.abs(apply(name, IMAGES[image], magnitude).astype(int) - expected)
        assert difference.max() <= most
        assert (difference > 0).mean() < 0.01


def test_gray_and_rotation_are_pillows_and_solarize_add_and_cutout() -> None:
    expected = np.asarray(Image.fromarray(NOISE).convert("L"))
    np.testing.assert_array_equal(_gray(tf.constant(NOISE))[..., 0], expected)
    expected = np.where(NOISE < 128, np.minimum(NOISE.astype(int) + 55, 255), NOISE)
    np.testing.assert_array_equal(apply("solarize_add", NOISE, 5), expected)
    middle = (apply("cutout", FLAT, 10, 0.0, 0.5, 0.5) == 128).all(-1)
    corner = (apply("cutout", FLAT, 10, 0.0, 0.0, 0.0) == 128).all(-1)
    expected = np.zeros((40, 48), bool)
    expected[20 - 7 : 20 + 7, 24 - 8 : 24 + 8] = True  # 40 / 224 of each side, both ways
    np.testing.assert_array_equal(middle, expected)
    assert corner.sum() == 7 * 8
    smooth = np.asarray(Image.fromarray(NOISE).resize((48, 40)).reduce(8).resize((48, 40)))
    turned = Image.fromarray(smooth).rotate(-30, fillcolor=(128, 128, 128))
    result = [apply("rotate", smooth, 10, draw, 0, 0) for draw in (0.1, 0.9)]
    fractions = [(f == np.asarray(turned)).all(-1).mean() for f in result]
    assert max(fractions) > 0.97
    assert min(fractions) < 0.7


@pytest.mark.parametrize(("draw", "sign"), [(0.9, 1), (0.1, -1)])
@pytest.mark.parametrize("name", ["shear_x", "shear_y", "translate_x", "translate_y", "rotate"])
def test_geometry(name: str, draw: float, sign: int) -> None:
    angle, shear = np.deg2rad(18.3) * sign, 0.183 * sign
    across, down = 0.61 * 100 / 224 * 48 * sign, 0.61 * 100 / 224 * 40 * sign
    cos, sin = np.cos(angle), np.sin(angle)
    sources = {
        "shear_x": lambda x, y: (x + shear * y, y),
        "shear_y": lambda x, y: (x, y + shear * x),
        "translate_x": lambda x, y: (x + across, y),
        "translate_y": lambda x, y: (x, y + down),
        "rotate": lambda x, y: (
            cos * (x - 23.5) - sin * (y - 19.5) + 23.5,
            sin * (x - 23.5) + cos * (y - 19.5) + 19.5,
        ),
    }
    # Output (x, y) from the nearest pixel to source(x, y), gray from outside.
    y, x = np.mgrid[0:40, 0:48].astype(np.float64)
    column, row = (np.rint(places).astype(int) for places in sources[name](x, y))
    inside = (column >= 0) & (column < 48) & (row >= 0) & (row < 40)
    moved = np.where(inside[..., None], NOISE[row.clip(0, 39), column.clip(0, 47)], 128)
    # Where the source lies half way between two pixels, float32 may choose the other one.
    assert (apply(name, NOISE, 6.1, draw, 0, 0) != moved).any(-1).mean() < 0.003


@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_is_chosen_as_often(channels: int) -> None:
    image = NARROW[..., :channels]
    pixels = tf.constant(image, tf.float32)
    versions = {
        name: {apply(name, image, 5, side, 0.5, 0.5).tobytes() for side in (0.1, 0.9)}
        for name in OPERATIONS
        if name != "cutout"
    }
    change = RandAugment(1, 5)
    draws = change.draw(uniform(0, "rand_augment", 0, 800, 4), image.shape[:2])
    made = tf.data.Dataset.from_tensor_slices(draws).map(partial(change.apply, pixels))
    outputs = [output.astype("uint8").tobytes() for output in made.as_numpy_iterator()]
    counts = {name: sum(output in v for output in outputs) for name, v in versions.items()}
    # 50 each are expected; five standard deviations. On gray, "color" leaves what it finds.
    told = [count for name, count in counts.items() if image.tobytes() not in versions[name]]
    assert 16 < min(told) <= max(told) < 84, counts
    assert sum(told) < 800 - 16  # and cutout


def test_operations_follow_each_other_in_training_images() -> None:
    for number, expected in ((1, 255 - NOISE), (2, NOISE)):  # inverted twice
        options = {"rand_augment": (number, 10), "operations": ("invert",)}
        augmentation = Augmentation("resize", flip=False, **options)
        draws = augmentation.draw((40, 48), seed=0, position=1)
        result = training_image(NOISE, (40, 48), draws, augmentation)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, expected)
