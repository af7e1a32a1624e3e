"""One image at a time: recorded outputs of the official code, Pillow, and plain arithmetic."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.data import (
    AUGMENTATIONS,
    EVAL_TRANSFORMS,
    Augmentation,
    evaluation_image,
    training_image,
)
from keras_vit.data.eval_transform import MODES
from tests.data.image_fixtures import IMAGE, PIXELS

tf = pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def golden(shared: Path) -> dict[str, np.ndarray]:
    return dict(np.load(shared / "golden" / "preprocess" / "pp.npz"))


@pytest.mark.parametrize("index", range(4))
def test_stretch_equals_vision_transformer(golden, shared: Path, index: int) -> None:
    tolerance = json.loads((shared / "golden/preprocess/meta.json").read_text())["tolerance"]
    image = evaluation_image(tf.constant(golden[f"image_{index}"]), 32, "stretch")
    expected = golden[f"vit_jax_eval_{index}"]
    np.testing.assert_allclose((image - 127.5) / 127.5, expected, atol=tolerance["atol"])


@pytest.mark.parametrize("index", range(4))
def test_big_vision_equals_big_vision(golden, index: int) -> None:
    # Recorded with resize_small(40)|central_crop(32). Truncation to whole levels may fall to either
    # side: one level, in at most 4 % of the values.
    image = evaluation_image(
        tf.constant(golden[f"image_{index}"]), 32, "big_vision", crop_fraction=0.8
    )
    difference = np.abs(image / 255 * 2 - 1 - golden[f"bv_eval_{index}"])
    assert difference.max() <= 2 / 255 + 1e-6
    assert np.mean(difference > 1e-6) <= 0.04


@pytest.mark.parametrize("size", [(90, 130), (130, 90), (97, 97), (25, 31)])
def test_crop_equals_pillow(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (*size, 3), np.uint8)
    small = min(size)
    height, width = (round(side * 32 / small) for side in size)  # 28 / 0.875 = 32
    # Pillow's bilinear filter widens when it reduces, which is what antialiasing means.
    resized = [
        np.asarray(
            Image.fromarray(pixels[..., c].astype(np.float32)).resize(
                (width, height), Image.Resampling.BILINEAR
            )
        )
        for c in range(3)
    ]
    top, left = (height - 28) // 2, (width - 28) // 2
    expected = np.stack(resized, -1)[top : top + 28, left : left + 28]
    image = evaluation_image(tf.constant(pixels), 28)
    assert image.shape == (28, 28, 3)
    np.testing.assert_allclose(image, expected, atol=1e-2)


@pytest.mark.parametrize("mode", ["crop", "big_vision"])
def test_crop_to_an_oblong_keeps_the_aspect_ratio(mode: str) -> None:
    # The image shows its own coordinates: their slopes give the scale along each axis.
    y, x = np.mgrid[0:200, 0:100].astype(np.float32)
    image = evaluation_image(tf.constant(np.stack([y, x, x], -1)), (28, 42), mode).numpy()
    down, across = np.diff(image[..., 0], axis=0).mean(), np.diff(image[..., 1], axis=1).mean()
    assert down == pytest.approx(across, rel=0.03)
    assert across == pytest.approx(100 / 48, rel=0.03)  # the width is what limits: 42 / 0.875 = 48
    assert image[..., 0].mean() == pytest.approx(99.5, abs=1.1)  # the center, to half a pixel
    assert image[..., 1].mean() == pytest.approx(49.5, abs=1.1)


@pytest.mark.parametrize("shape", [(97, 131), (20, 50), (64, 64)])
def test_stretch_bicubic_equals_pillow(shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype("uint8")
    image = evaluation_image(tf.constant(pixels), (32, 40), "stretch_bicubic").numpy()
    # As floats: Pillow clips and rounds bytes after each of its two passes.
    channels = [Image.fromarray(pixels[..., c].astype("float32")) for c in range(3)]
    resized = [channel.resize((40, 32), Image.Resampling.BICUBIC) for channel in channels]
    np.testing.assert_allclose(image, np.stack(resized, -1).clip(0, 255), atol=1e-2)


def test_every_mode_is_carried_out() -> None:
    assert tuple(EVAL_TRANSFORMS) == MODES


@pytest.mark.parametrize("mode", ["crop", "stretch"])
def test_an_image_of_the_right_size_is_not_changed(mode: str) -> None:
    np.testing.assert_array_equal(evaluation_image(tf.constant(PIXELS), (24, 32), mode), PIXELS)


def test_float32_under_any_policy() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert evaluation_image(tf.constant(PIXELS), 8).dtype == tf.float32
    assert training_image(tf.constant(PIXELS), 8, (0, 0), Augmentation()).dtype == tf.float32


@pytest.mark.parametrize("call", [evaluation_image, training_image])
def test_unknown_sizes_are_known_afterwards(call) -> None:
    rest = () if call is evaluation_image else ((1, 2), Augmentation(shift=1))

    @tf.function(input_signature=[tf.TensorSpec((None, None, 3), tf.uint8)])
    def graph(image: tf.Tensor) -> tf.Tensor:
        result = call(image, (12, 20), *rest)
        assert result.shape == (12, 20, 3)
        return result

    np.testing.assert_allclose(graph(PIXELS), call(tf.constant(PIXELS), (12, 20), *rest), atol=1e-4)


def augmented(augmentation: Augmentation, image: np.ndarray, size, count: int) -> np.ndarray:
    """`count` random versions of one image."""
    seeds = tf.range(2 * count, dtype=tf.int64)
    seeds = tf.data.Dataset.from_tensor_slices(tf.reshape(seeds, (count, 2)))
    images = seeds.map(lambda seed: training_image(image, size, seed, augmentation))
    return np.stack(list(images.as_numpy_iterator()))


def released_areas(count: int) -> np.ndarray:
    """Areas as in vision_transformer's input_pipeline.py for an image of 300 x 400."""
    tf.random.set_seed(0)
    boxes = tf.data.Dataset.range(count).map(
        lambda _: tf.image.sample_distorted_bounding_box(
            (300, 400, 3),
            tf.zeros([0, 0, 4], tf.float32),
            area_range=(0.05, 1.0),
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        ).size[:2]
    )
    return np.array([height * width for height, width in boxes.as_numpy_iterator()]) / (300 * 400)


def test_inception_crop_is_distributed_as_released() -> None:
    # Pixels show their coordinates, so every crop tells where it was cut: slope x size = extent.
    y, x = np.mgrid[0:300, 0:400].astype(np.float32)
    crops = augmented(Augmentation(flip=False), np.stack([y, x], -1), 20, 600)
    middle = crops[:, 5:15, 5:15]  # the border repeats pixels where a small crop is enlarged
    heights = 20 * np.diff(middle[..., 0], axis=1).mean((1, 2))
    widths = 20 * np.diff(middle[..., 1], axis=2).mean((1, 2))
    areas, ratios = heights * widths / (300 * 400), widths / heights
    assert areas.min() == pytest.approx(0.05, abs=0.03)
    assert areas.max() > 0.9
    assert 0.7 < ratios.min() < 0.8
    assert 1.25 < ratios.max() < 1.4
    fractions = [0.1, 0.25, 0.5, 0.75, 0.9]
    expected = np.quantile(released_areas(2000), fractions)
    np.testing.assert_allclose(np.quantile(areas, fractions), expected, atol=0.06)
    tops, lefts = crops[:, 0, 0, 0], crops[:, 0, 0, 1]
    assert tops.std() > 30
    assert lefts.std() > 40
    assert (crops >= 0).all()
    assert crops[..., 0].max() <= 299
    assert crops[..., 1].max() <= 399


def test_min_area_bounds_the_crop() -> None:
    y, x = np.mgrid[0:200, 0:200].astype(np.float32)
    crops = augmented(Augmentation(min_area=0.8, flip=False), np.stack([y, x], -1), 20, 100)
    extents = 20 * np.diff(crops[:, 5:15, 5:15, 0], axis=1).mean((1, 2))
    assert extents.min() > 200 * np.sqrt(0.8 * 3 / 4) - 3


def test_flip_mirrors_half_of_the_images() -> None:
    pixels = PIXELS.astype(np.float32)
    versions = augmented(Augmentation(crop="resize"), PIXELS, (24, 32), 400)
    flipped = (versions == pixels[:, ::-1]).all((1, 2, 3))
    assert (flipped | (versions == pixels).all((1, 2, 3))).all()
    assert 160 <= flipped.sum() <= 240  # four standard deviations


def test_shift_moves_over_black() -> None:
    versions = augmented(AUGMENTATIONS["digits"], PIXELS, (24, 32), 100)
    padded = np.pad(PIXELS, ((1, 1), (1, 1), (0, 0))).astype(np.float32)
    places = {(t, s): padded[t : t + 24, s : s + 32] for t in range(3) for s in range(3)}
    seen = [next(p for p, image in places.items() if (image == v).all()) for v in versions]
    assert set(seen) == set(places)


def test_random_crop_is_a_window_of_the_resized_image() -> None:
    y, x = np.mgrid[0:64, 0:96].astype(np.float32)
    crops = augmented(Augmentation(crop="random", flip=False), np.stack([y, x], -1), 28, 60)
    scale = np.diff(crops[:, 4:24, 4:24], axis=2)[..., 1]
    np.testing.assert_allclose(scale, 64 / 32, atol=1e-4)  # 28 / 0.875 = 32 for the small side
    assert len(np.unique(crops[:, 10, 10, 0].round(2))) == 5  # 32 - 28 + 1 places
    assert len(np.unique(crops[:, 10, 10, 1].round(2))) > 12  # of 48 - 28 + 1


def test_the_seed_decides() -> None:
    def version(*seed: int) -> np.ndarray:
        return training_image(tf.constant(PIXELS), 16, seed, Augmentation(shift=2)).numpy()

    np.testing.assert_array_equal(version(3, 4), version(3, 4))
    assert (version(3, 4) != version(3, 5)).any()
    assert (version(3, 4) != version(4, 4)).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"transform": "center"}, "mode='center' is not known. Give one of: 'crop', 'stretch'"),
        ({"crop_fraction": 0.0}, r"crop_fraction=0.0 must lie in \(0, 1\]"),
        ({"image_size": 0}, "image_size=0 is not a size"),
        ({"image_size": (8, 8, 3)}, r"image_size=\(8, 8, 3\) is not a size"),
    ],
)
def test_evaluation_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluation_image(np.asarray(IMAGE), **{"image_size": 8, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"crop": "center"}, "crop='center' is not known. Give one of: 'inception', 'random'"),
        ({"min_area": 0.0}, r"min_area=0.0 must lie in \(0, 1\]"),
        ({"aspect_ratio": (2.0, 1.0)}, r"aspect_ratio=\(2.0, 1.0\) must be \(low, high\)"),
        ({"shift": -1}, "shift=-1 must be"),
        ({"rotation": 181}, r"rotation=181 must lie in \[0, 180\]"),
        ({"zoom": float("nan")}, r"zoom=nan must lie in \[0, 1\]"),
        ({"shear": -0.1}, r"shear=-0.1 must lie in \[0, 1\]"),
    ],
)
def test_augmentation_errors(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(**arguments)
