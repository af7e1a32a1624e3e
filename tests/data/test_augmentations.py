"""What images are changed by in training: by papers, Pillow, scipy, NumPy and layers of Keras."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from keras_vit import data
from keras_vit.data import ArraySplit, Augmentation, pipeline, plot_augmentations, training_image
from keras_vit.data.augment.affine import Affine, transform
from keras_vit.data.augment.augment_layers import resolve_augment
from keras_vit.data.augment.augmentation import of_image
from keras_vit.data.augment.change import Change
from keras_vit.data.augment.erasing import Erasing
from keras_vit.data.augment.mixtures import draw_mixture, mix_images, mix_rows
from keras_vit.data.augment.rand_augment import MOVES, RandAugment, _gray
from keras_vit.data.augment.three_augment import ThreeAugment
from keras_vit.data.random_numbers import uniform
from keras_vit.tasks import Segmentation
from keras_vit.tasks.class_colors import color_table
from keras_vit_cli import commands as cli
from keras_vit_cli.train.job_recipe import note_of_mirroring, recipe_of
from tests.backend import refused
from tests.data.image_fixtures import flat_folder

tf, ndimage = map(pytest.importorskip, ("tensorflow", "scipy.ndimage"))
IMAGE = np.random.default_rng(0).uniform(0, 255, (9, 12, 2)).astype("float32")
# The option alone, and its amount in a matrix (a, b, c, d, e, f).
CHANGES = {
    "shift": (2, lambda a, b, c, *_: c),
    "zoom": (0.5, lambda a, *_: np.log(a)),
    "rotation": (30.0, lambda a, b, c, d, *_: np.rad2deg(np.arctan2(d, a))),
    "shear": (0.5, lambda a, b, *_: b),
}
PIXELS = np.random.default_rng(0).integers(0, 256, (112, 112, 3)).astype("uint8")
PICTURE = Image.fromarray(PIXELS)


def applied(change: Change, image: np.ndarray, position: int = 0, count: int = 1) -> np.ndarray:
    """`count` versions of an image, in TensorFlow's graph."""
    size = (image.shape[0], image.shape[1])
    draws = change.draw(uniform(5, "test", position, count, change.numbers), size)
    pixels = tf.constant(image, tf.float32)
    images = tf.data.Dataset.from_tensor_slices(draws).map(lambda one: change.apply(pixels, one))
    return np.stack(list(images.as_numpy_iterator()))


def mixed(images: np.ndarray, seed: int, *alphas: float) -> tuple[np.ndarray, np.ndarray]:
    labels = np.eye(len(images), dtype="float32")
    draws = draw_mixture(alphas, images.shape[1:3], seed, 0)
    tensors = {key: tf.constant(value) for key, value in draws.items()}
    others, pixels = np.roll(images, 1, axis=0), tf.constant(images)
    made = mix_images(pixels, tf.constant(others), tensors).numpy()
    np.testing.assert_allclose(mix_images(images, others, draws), made, atol=1e-4)
    return made, mix_rows(labels, np.roll(labels, 1, axis=0), draws)


def test_images_and_labels_are_mixed_alike_in_training_only_and_in_turns() -> None:
    images = np.zeros((4, 2, 2, 1), "float32") + np.arange(4, dtype="float32").reshape(4, 1, 1, 1)
    weights = []
    for seed in range(200):
        made, rows = mixed(images, seed, 0.2, 0.0)
        weight = float(rows[1, 1])
        assert float(rows[1, 0]) == pytest.approx(1 - weight, abs=1e-6)
        np.testing.assert_allclose(made[1], weight, atol=1e-6)
        weights.append(weight)
    assert min(weights) >= 0.5  # the larger part
    # E[max(b, 1-b)] of Beta(0.2, 0.2), by numpy's generator.
    b = np.random.default_rng(0).beta(0.2, 0.2, 100_000)
    assert np.mean(weights) == pytest.approx(np.maximum(b, 1 - b).mean(), abs=0.03)
    split, both = data.load("digits").train, replace(data.AUGMENTATIONS["none"], mixup=1, cutmix=1)
    options = {"channels": 1, "num_classes": 10, "augment": both}
    _, labels = next(iter(data.pipeline(split, 8, 16, **options)))
    assert set(np.unique(labels)) == {0.0, 1.0}
    batches = data.pipeline(split, 8, 16, True, **options).take(80).as_numpy_iterator()
    whole = [bool((images == np.round(images)).all()) for images, _ in batches]
    assert 20 <= sum(whole) <= 60  # cutmix keeps whole levels, mixup does not
    options["augment"] = replace(both, mixup=0, mixed_part=0.25)
    batches = data.pipeline(split, 8, 16, True, **options).take(80).as_numpy_iterator()
    assert 10 <= sum(labels.max(-1).min() < 1 for _, labels in batches) <= 30


def test_boxes_are_cut_and_labels_follow_the_area() -> None:
    images = np.broadcast_to(np.arange(4.0).reshape(4, 1, 1, 1), (4, 20, 30, 1)).astype("float32")
    areas, tops = [], set()
    for seed in range(300):
        cut, rows = mixed(images, seed, 0.0, 1.0)
        box = cut[2, ..., 0] == 1  # image 1 within image 2
        assert set(np.unique(cut[2])) <= {1.0, 2.0}
        np.testing.assert_array_equal(box, cut[0, ..., 0] == 3)
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
    sides, centers = np.sqrt(rng.random((100_000, 1))) / 2, rng.random((100_000, 2))
    extents = (centers + sides).clip(0, 1) - (centers - sides).clip(0, 1)
    assert np.mean(areas) == pytest.approx(extents.prod(1).mean(), abs=0.04)


def erased(count: int, probability: float) -> np.ndarray:
    """Images of -1, but for what random erasing has drawn."""
    return applied(Erasing(probability), np.full((60, 80, 3), -1.0), count=count)


def test_erased_boxes_are_those_of_the_paper() -> None:
    images = erased(400, 1.0)
    boxes = (images >= 0).all(-1)
    np.testing.assert_array_equal(boxes, (images >= 0).any(-1))
    areas = boxes.mean((1, 2))
    assert 0.015 < areas.min() < 0.04
    assert 0.28 < areas.max() < 0.345
    ratios = []
    for box in boxes:
        inside = np.argwhere(box)
        low, high = inside.min(0), inside.max(0) + 1
        assert box.sum() == np.prod(high - low)  # a rectangle
        ratios.append((high - low)[0] / (high - low)[1])
    assert 0.28 < min(ratios) < 0.5 < 2 < max(ratios) < 3.6
    quartiles = np.quantile(images[images >= 0], [0, 0.25, 0.5, 0.75, 1])
    np.testing.assert_allclose(quartiles, [0, 63.75, 127.5, 191.25, 255], atol=1)
    images = erased(400, 0.25)
    assert 66 <= (images >= 0).any((1, 2, 3)).sum() <= 134  # four standard deviations
    # Rare boxes lie anywhere, too: their place does not hang on the draw that let them be.
    assert len({int(np.argwhere(i >= 0)[:, 0].min()) for i in images if (i >= 0).any()}) > 15


def test_affine_changes_equal_scipy() -> None:
    matrix = a, b, c, d, e, f = (0.9, 0.2, 0.4, -0.3, 1.1, 1.2)
    seen = transform(tf.constant(IMAGE), matrix, "BILINEAR").numpy()
    for channel in range(2):
        # scipy's axes are rows and columns: (y, x) from (e y + d x + f, b y + a x + c).
        place = np.array([f, c]) + 4  # in the padded image, whose zeros are what comes in
        padded = np.pad(IMAGE[..., channel], 4)
        options = {"output_shape": IMAGE.shape[:2], "order": 1}
        expected = ndimage.affine_transform(padded, [[e, d], [b, a]], place, **options)
        np.testing.assert_allclose(seen[..., channel], expected, atol=1e-3)


@pytest.mark.parametrize("option", CHANGES)
def test_each_change_stays_within_its_range(option: str) -> None:
    value, amount = CHANGES[option]
    draws = Affine(**{option: value}).draw(uniform(5, "test", 0, 60, 6), (41, 41))
    seen = amount(*draws["matrix"].T)
    assert 0.8 * value < np.abs(seen).max() <= 1.001 * value
    assert abs(np.mean(seen)) < 0.4 * value  # either side


def test_three_augment_equals_pillow_up_to_its_rounding() -> None:
    chosen, images = set(), applied(ThreeAugment(), PIXELS, count=12)
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for draws, image in zip(uniform(5, "test", 0, 12, 5), images, strict=True):
        chosen.add(int(draws[0] * 3))
        if draws[0] < 1 / 3:
            changed = PICTURE.convert("L").convert("RGB")
        elif draws[0] < 2 / 3:
            changed = ImageOps.solarize(PICTURE, 128)
        else:
            width = (0.1 + 1.9 * draws[1]) / 2  # half the size that the radius is stated for
            options = {"mode": "mirror", "radius": (3, 3, 0)}
            blurred = ndimage.gaussian_filter(PIXELS.astype(float), (width, width, 0), **options)
            changed = Image.fromarray(np.rint(blurred).astype("uint8"))
        for enhancer, factor in zip(enhancers, draws[2:], strict=True):
            changed = enhancer(changed).enhance(0.7 + 0.6 * float(factor))
        # Pillow rounds to integers after each of four changes.
        np.testing.assert_allclose(image, np.asarray(changed, float), atol=4)
    assert chosen == {0, 1, 2}
    for shape in ((1, 1, 3), (8, 8, 1), (33, 64, 3)):
        images = applied(ThreeAugment(), np.random.default_rng(0).uniform(0, 255, shape), count=6)
        assert images.shape == (6, *shape)
        assert 0 <= images.min() <= images.max() <= 255


MOVING = {"rotation": 25, "zoom": 0.2, "shear": 0.2, "shift": 4}
TURNS = {"rand_augment": (2, 12), "operations": tuple(MOVES)}
GEOMETRY = {
    "inception": Augmentation(min_area=0.3),
    "random crop": Augmentation(crop="random"),
    "shift": Augmentation(crop="resize", shift=5),
    "affine": Augmentation(crop="resize", **MOVING),
    "operations": Augmentation(**TURNS),
    "all": Augmentation(min_area=0.3, **MOVING, **TURNS),
}
EVERYTHING = replace(GEOMETRY["all"], erasing=0.5, three_augment=True)


def test_draws_follow_from_seed_position_view_and_their_own_name_alone() -> None:
    draw, same = partial(EVERYTHING.draw, 24), np.testing.assert_array_equal
    draws = draw(3, 500, count=40)
    # Together or one by one, from wherever, even after ImageNet's millions of images.
    for first in (500, 10**12):
        tf.nest.map_structure(same, draw(3, first + 17), of_image(draw(3, first, count=40), 17))
    fewer = replace(EVERYTHING, erasing=0.0).draw(24, 3, 500, count=40)
    tf.nest.map_structure(same, fewer, {name: draws[name] for name in fewer})
    for other in (draw(4, 500, count=40), draw(3, 540, count=40), draw(3, 500, count=40, view=1)):
        assert (other["crop"]["place"] != draws["crop"]["place"]).all()
    streams = [uniform(3, name, 0, 4000, 1)[:, 0] for name in ("crop", "erasing", "affine")]
    assert np.abs(np.corrcoef(streams) - np.eye(3)).max() < 0.08  # five standard deviations


@pytest.mark.parametrize("as_array", [np.asarray, tf.constant], ids=["numpy", "tensorflow"])
@pytest.mark.parametrize("name", GEOMETRY)
def test_masks_and_boxes_move_with_their_image(name: str, as_array) -> None:
    moves, size, wrong, seen = GEOMETRY[name], (56, 64), [], 0
    mask = np.ones((70, 100), "uint8")
    mask[14:40, 30:75] = 2
    boxes = as_array(np.array([[14, 30, 40, 75], [-9, -9, -1, -1]], "float32"))
    for position in range(12):
        draws = tf.nest.map_structure(as_array, moves.draw(size, seed=1, position=position))
        how = {"image_size": size, "draws": draws, "augmentation": moves}
        pixels = np.asarray(training_image(as_array(100 * mask[..., None]), **how))[..., 0]
        moved = np.asarray(data.training_mask(as_array(mask), **how))
        assert (moved.dtype, moved.shape) == (mask.dtype, size)
        # Gray comes in by an operation, and black by an affine change or shift.
        wrong.append((moved != np.where(pixels == 128, 0, np.round(pixels / 100))).mean())
        edges, outside = np.asarray(data.training_boxes(boxes, mask.shape, **how))
        assert (outside[:2] == outside[2:]).any()
        inside = np.argwhere(moved == 2)
        if len(inside):
            found = np.concatenate([inside.min(0), inside.max(0) + 1])
            beyond = (found - edges) * [-1, -1, 1, 1]  # turned, it is smaller than its box
            assert beyond.max() <= 1
            assert beyond.min() >= -1 or moves.changes
            seen += 1
    assert seen >= 8
    # Between two levels, bilinear pixels are neither: the borders, a few pixels in a hundred.
    assert max(wrong) < 0.06
    assert np.mean(wrong) < 0.025
    both = [(how, how.draw(size, seed=1, position=3)) for how in (EVERYTHING, GEOMETRY["all"])]
    np.testing.assert_array_equal(*(data.training_mask(mask, size, d, how) for how, d in both))


NOISE = np.random.default_rng(0).integers(0, 256, (40, 48, 3), np.uint8)
NARROW = (NOISE // 3 + 40).astype(np.uint8)  # with room to stretch
FLAT = np.full((40, 48, 3), (7, 100, 255), np.uint8)
IMAGES = {"noise": NOISE, "narrow": NARROW, "flat": FLAT}


def apply(name: str, image: np.ndarray, magnitude: float, *draw: float) -> np.ndarray:
    change, numbers = RandAugment(1, magnitude, (name,)), (0, *(draw or (0.9, 0, 0)))
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


def test_gray_is_pillows_and_solarize_add_two_operations_and_cutout() -> None:
    expected = np.asarray(Image.fromarray(NOISE).convert("L"))
    np.testing.assert_array_equal(_gray(tf.constant(NOISE))[..., 0], expected)
    expected = np.where(NOISE < 128, np.minimum(NOISE.astype(int) + 55, 255), NOISE)
    np.testing.assert_array_equal(apply("solarize_add", NOISE, 5), expected)
    np.testing.assert_array_equal(applied(RandAugment(2, 10, ("invert",)), NOISE), [NOISE])
    middle = (apply("cutout", FLAT, 10, 0.0, 0.5, 0.5) == 128).all(-1)
    expected = np.zeros((40, 48), bool)
    expected[20 - 7 : 20 + 7, 24 - 8 : 24 + 8] = True  # 40 / 224 of each side, both ways
    np.testing.assert_array_equal(middle, expected)
    assert (apply("cutout", FLAT, 10, 0.0, 0.0, 0.0) == 128).all(-1).sum() == 7 * 8


@pytest.mark.parametrize(("draw", "sign"), [(0.9, 1), (0.1, -1)])
@pytest.mark.parametrize("name", ["shear_x", "shear_y", "translate_x", "translate_y", "rotate"])
def test_geometry_is_pillows(name: str, draw: float, sign: int) -> None:
    angle, shear, shift = np.deg2rad(18.3) * sign, 0.183 * sign, 0.61 * 100 / 224 * sign
    cos, sin = np.cos(angle), np.sin(angle)
    # Output (x, y) from the nearest pixel to (a x + b y + c, d x + e y + f), gray from outside.
    a, b, c, d, e, f = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift * 48, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift * 40),
        "rotate": (cos, -sin, 23.5, sin, cos, 19.5),
    }[name]
    if name == "rotate":  # around the middle
        c, f = c - a * 23.5 - b * 19.5, f - d * 23.5 - e * 19.5
    # Pillow's pixels have their centers at 0.5.
    affine = (a, b, c + (1 - a - b) / 2, d, e, f + (1 - d - e) / 2)
    picture = Image.fromarray(NOISE).transform((48, 40), 0, affine, fillcolor=(128,) * 3)
    # Where the source lies half way between two pixels, float32 may choose the other one.
    assert (apply(name, NOISE, 6.1, draw, 0, 0) != np.asarray(picture)).any(-1).mean() < 0.003


@pytest.mark.parametrize("channels", [1, 3])
def test_every_operation_is_chosen_as_often(channels: int) -> None:
    image = NARROW[..., :channels]
    pixels = tf.constant(image, tf.float32)
    versions = {
        name: {apply(name, image, 5, side, 0.5, 0.5).tobytes() for side in (0.1, 0.9)}
        for name in data.OPERATIONS
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


COUNT, SIZE = 8, 12
CLASSES = tuple("abcdefgh")  # one per image, so that a label tells which images were mixed
EIGHT = np.random.default_rng(0).integers(0, 256, (COUNT, SIZE, SIZE, 3), np.uint8)
SPLIT = ArraySplit("train", CLASSES, EIGHT, np.arange(COUNT), augment="tiny")
PLAIN = EIGHT.astype("float32")  # in the order of their classes
LAYERS = keras.layers
SEEDED: dict[str, Any] = {
    "one": lambda: LAYERS.RandomRotation(0.1),
    "sequential": lambda: keras.Sequential([LAYERS.RandomZoom(0.2), LAYERS.RandomBrightness(0.2)]),
    "pipeline and mixing": lambda: [
        LAYERS.Pipeline([LAYERS.RandomFlip(), LAYERS.RandomContrast(0.3)]),
        LAYERS.MixUp(),
        LAYERS.CutMix(),
    ],
    "after a name": lambda: ["transfer", LAYERS.RandomErasing(factor=1.0)],
    "callable": lambda: lambda image: 255 - image,
}


def batches(augment: Any, count: int | None = None, **options: Any) -> Any:
    """Images and labels of one pass, or of `count` batches, as arrays."""
    options = {"training": True, "num_classes": COUNT, "seed": 3, **options}
    dataset = pipeline(SPLIT, SIZE, 4, augment=augment, **options)
    assert {spec.dtype for spec in dataset.element_spec} == {tf.float32}
    parts = list(dataset.take(-1 if count is None else count).as_numpy_iterator())
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


@pytest.mark.every_backend
@pytest.mark.parametrize("make", [keras.layers.AutoContrast, keras.layers.RandomGrayscale])
def test_images_equal_those_of_the_layer_itself(make: Any) -> None:
    layer = make() if make is keras.layers.AutoContrast else make(factor=1.0)
    images, labels = batches(["none", layer])
    expected = keras.ops.convert_to_numpy(layer(PLAIN, training=True))
    np.testing.assert_allclose(images, expected[labels.argmax(-1)], atol=1e-3)


def test_layers_replace_all_but_the_crop_in_every_process(monkeypatch) -> None:
    """Neither the flip nor the shift of the split's own augmentation is applied as well."""
    images, labels = batches(keras.layers.RandomFlip("horizontal"), 20, repeat=True)
    originals = PLAIN[labels.argmax(-1)]
    same = (images == originals).all((1, 2, 3))
    mirrored = (images == originals[:, :, ::-1]).all((1, 2, 3))
    np.testing.assert_array_equal(same, ~mirrored)
    assert 20 < mirrored.sum() < 60  # of 80: per image, not per batch
    assert set(mirrored.reshape(20, 4).sum(1)) - {0, 4}
    everything = Augmentation(min_area=0.3, rand_augment=(2, 10), mixup=0.2, erasing=0.1)
    flip = keras.layers.RandomFlip()
    assert resolve_augment(None, everything) == (everything, ())
    assert resolve_augment(flip, everything) == (Augmentation(min_area=0.3, flip=False), (flip,))
    assert resolve_augment([everything, flip], Augmentation()) == (everything, (flip,))
    layers = ["none", keras.layers.RandomFlip(), keras.layers.MixUp()]
    whole = batches(layers)
    monkeypatch.setattr("keras_vit.data.batch_plan.rows_of_process", lambda count: np.array([1, 2]))
    images, labels = batches(layers)
    np.testing.assert_array_equal(labels, whole[1])
    np.testing.assert_array_equal(images, whole[0][[1, 2, 5, 6]])

    def swap(images: Any, labels: Any) -> tuple[Any, Any]:
        order = tf.random.shuffle(tf.range(tf.shape(images)[0]))
        return tf.gather(images, order), tf.gather(labels, order)

    refused(r"swap may draw from .* differs between processes", batches, swap)


@pytest.mark.every_backend
def test_callables_get_batches_and_may_have_conditions() -> None:
    def blend(images: Any, labels: Any) -> tuple[Any, Any]:
        return (images + images[::-1]) / 2, (labels + labels[::-1]) / 2

    _check_mixed(*batches(["none", blend]))

    def brighten(image: Any) -> Any:
        if tf.reduce_mean(image) > 300:  # AutoGraph, as in `Dataset.map`
            return image
        return image + 1

    images, labels = batches(["none", brighten])
    expected = np.minimum(PLAIN[labels.argmax(-1)] + 1, 255)  # clipped
    np.testing.assert_array_equal(images, expected)


@pytest.mark.parametrize("name", SEEDED)
def test_numbers_follow_from_the_seed(name: str) -> None:
    def drawn(count: int, **options: Any) -> Any:
        return batches(SEEDED[name](), count, repeat=True, **options)

    first = drawn(4)
    keras.utils.set_random_seed(7)
    for before, after, late in zip(first, drawn(4), drawn(3, start_step=1), strict=True):
        np.testing.assert_array_equal(after, before)
        np.testing.assert_array_equal(late, before[4:])
    if name != "callable":
        assert not np.array_equal(np.sort(drawn(4, seed=4)[0], 0), np.sort(first[0], 0))


def test_mixup_and_cutmix_mix_images_as_labels() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")  # which changes nothing of them
    layer = keras.layers.MixUp(alpha=1.0)
    _check_mixed(*batches(["none", layer], seed=5))
    assert layer.dtype_policy.name == "mixed_bfloat16"
    assert "_get_seed_generator" not in vars(layer)
    images, labels = batches(["none", keras.layers.CutMix()], seed=5)
    np.testing.assert_allclose(labels.sum(-1), 1, atol=1e-6)
    for image, label in zip(images, labels, strict=True):
        shares = [(image == original).all(-1).mean() for original in PLAIN]
        np.testing.assert_allclose(shares, label, atol=0.2)  # whole pixels of 12 x 12


def _check_mixed(images: np.ndarray, labels: np.ndarray) -> None:
    np.testing.assert_allclose(labels.sum(-1), 1, atol=1e-6)
    assert (labels.max(-1) < 0.999).any()
    np.testing.assert_allclose(images, np.tensordot(labels, PLAIN, 1), atol=1e-2)


def test_errors() -> None:
    refused("augment=3 is a int. Give an Augmentation", batches, 3, error=TypeError)
    refused("Give one of: 'inception', .* a layer itself, such as keras", batches, "strong")
    refused("'tiny' must come first", batches, [lambda image: image, "tiny"])
    refused(r"shape \(3, 12, 3\) for \(12, 12, 3\)", batches, lambda image: image[:3])
    refused("dtype bool: expected float32", batches, lambda image: image > 3)
    refused("dtype string|not a tensor", batches, lambda image: "image")
    refused("pixels from 0 to 1 for an image", batches, lambda image: image / 255)
    refused("pixels from 0 to 6.5e", batches, lambda image: image * 255)
    refused("pixels from nan to nan", batches, lambda image: image * float("nan"))
    refused("cannot change images of", batches, lambda image: image.numpy())
    refused(r"expected \(images, labels\)", batches, lambda images, labels: images)
    refused("value_range=", batches, keras.layers.RandomContrast(0.2, value_range=(0, 1)))
    refused("'channels_last'", batches, keras.layers.MixUp(data_format="channels_first"))
    refused("give keras.*Flip first", batches, [keras.layers.MixUp(), keras.layers.RandomFlip()])
    refused("mixes twice", batches, [Augmentation(mixup=0.2), keras.layers.MixUp()])


def test_the_option_of_train(monkeypatch, command) -> None:
    """tests/cli/test_tasks.py has that --resume compares it."""
    jobs: list[Any] = []
    monkeypatch.setattr(cli, "train", lambda job, print_fn: jobs.append(job))
    command("train --data digits --augment tiny")
    (job,) = jobs
    named = recipe_of(replace(job, recipe="deit"))
    assert (named.augmentation.shift, named.mixup, named.cutmix) == (4, 0, 0)
    recipe = recipe_of(replace(job, recipe="deit", augment=(keras.layers.RandomFlip(),)))
    assert recipe.augment == Augmentation(min_area=recipe.augmentation.min_area, flip=False)
    refused("features once", recipe_of, replace(job, freeze_backbone=True, weights="w"))
    # What the note on mirrored images proposes is accepted.
    frozen = replace(job, freeze_backbone=True, weights="w", augment=("none",))
    assert note_of_mirroring(frozen, recipe_of(frozen)) == ""
    seen_twice = replace(recipe_of(frozen), views="flip")
    assert note_of_mirroring(frozen, seen_twice).endswith("give --views one")
    assert "--augment none or digits" in note_of_mirroring(job, recipe_of(job))
    said = command("train --data digits --augment keras.layers.RandomFlip", status=2)
    assert "'inception', 'randaugment', 'transfer'" in said


def test_a_sheet_has_a_row_per_image_a_column_per_pass_and_a_bound(tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    figures: list[Any] = []

    def save(figure: Any, path: Path, **_: Any) -> None:
        figures.append(figure)
        Path(path).touch()

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", save)
    images = np.full((60, 8, 8, 3), 40, np.uint8)
    images[:, :, :4] = np.arange(60)[:, None, None, None] * 4 + 1
    split = ArraySplit("train", ("a", "b"), images, np.arange(60) % 2)
    plain = Augmentation(crop="resize", flip=False)
    plot = partial(plot_augmentations, split, image_size=8)
    plot(tmp_path / "plot.png", augment=plain, images=3, versions=2)
    for place, cell in enumerate(figures[0].axes):  # the image as it is, and twice, unchanged
        index = (0, 29, 59)[place // 3]
        assert cell.get_title() == ("" if place % 3 else "ab"[index % 2])
        np.testing.assert_allclose(cell.images[0].get_array(), images[index] / 255, atol=1e-6)
    assert place == 8
    plot(tmp_path / "mixed.png", augment=replace(plain, mixup=1.0), images=3, versions=2)
    assert any("%" in cell.get_title() for cell in figures[1].axes)
    masks = ArraySplit("train", Segmentation(("a", "b")), images[:3], images[:3, ..., 0] % 2)
    plot_augmentations(masks, tmp_path / "masks.png", 8, augment=plain, images=3, versions=2)
    below, colors = figures.pop().axes[3:6], color_table()[masks.as_arrays()[1][0]]
    assert all((cell.images[0].get_array() == colors).all() for cell in below)
    layers = [Augmentation(min_area=0.3, erasing=0.25), keras.layers.MixUp()]
    plot(tmp_path / "many.png", augment=layers, images=60, versions=1)
    words = "inception crop of at least 30 %, flip, random erasing of 25 %, keras.layers.MixUp"
    assert figures[2].get_suptitle() == words
    assert max(figures[2].get_size_inches() * figures[2].dpi) == pytest.approx(8000)


def test_paths_of_plots_that_are_refused_and_the_command(tmp_path: Path, command) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "folder").mkdir()
    (tmp_path / "theirs.png").write_bytes(b"theirs")
    for name, error, message in (
        ("path.txt", ValueError, "does not have the suffix of an image: give one of .*png"),
        ("folder", FileExistsError, "folder is a folder: give a file, such as plot.png"),
        ("theirs.png", FileExistsError, "theirs.png exists, and is not a PNG file that"),
    ):
        refused(message, plot_augmentations, SPLIT, tmp_path / name, 8, overwrite=True, error=error)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "theirs.png"]
    assert (tmp_path / "theirs.png").read_bytes() == b"theirs"
    # Broken files are skipped, and the last line is the next command.
    photos, path = flat_folder(tmp_path / "my photos", 3), tmp_path / "new" / "plot.png"
    sorted(photos.glob("*/*"))[0].write_bytes(b"not an image")
    options = "augment --image-size 16 --images 100 --versions 1 --data"
    augment = partial(command, options, photos, "--out", path, "--recipe")
    *_, place, last = augment("digits").splitlines()
    assert f"written to {path}" in place
    assert last == f"next: keras-vit train --data '{photos}' --recipe digits"
    written = path.read_bytes()
    for recipe, words in (("dei", "deit"), ("digits", "--overwrite")):
        assert words in augment(recipe, status=2)
    path.write_bytes(written + b"\0")
    augment("digits", "--overwrite")
    assert path.read_bytes() == written
    # No recipe that nobody asked for, and none for weights without a place for them.
    for recipe in ((), ("--recipe", "finetune_small")):
        last = command(options, photos, "--out", path, *recipe, "--overwrite").splitlines()[-1]
        words = " ".join(["", *recipe]).replace(" --recipe", " --weights FILE --recipe")
        assert last == f"next: keras-vit train --data '{photos}'{words}"
