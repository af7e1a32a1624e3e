"""One image at a time: recorded outputs of the official code, Pillow, and plain arithmetic."""

import json

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit.data import AUGMENTATIONS, Augmentation, evaluation_image, training_image
from tests.data.image_fixtures import PIXELS

tf = pytest.importorskip("tensorflow")


def test_images_equal_those_of_vision_transformer_and_big_vision(shared) -> None:
    golden = np.load(shared / "golden" / "preprocess" / "pp.npz")
    tolerance = json.loads((shared / "golden/preprocess/meta.json").read_text())["tolerance"]
    for index in range(4):
        photo = tf.constant(golden[f"image_{index}"])
        image = evaluation_image(photo, 32, "stretch")
        expected = golden[f"vit_jax_eval_{index}"]
        np.testing.assert_allclose((image - 127.5) / 127.5, expected, atol=tolerance["atol"])
        # Recorded with resize_small(40)|central_crop(32). Truncation to whole levels may fall to
        # either side: one level, in at most 4 % of the values.
        image = evaluation_image(photo, 32, "big_vision", crop_fraction=0.8)
        difference = np.abs(image / 255 * 2 - 1 - golden[f"bv_eval_{index}"])
        assert difference.max() <= 2 / 255 + 1e-6
        assert np.mean(difference > 1e-6) <= 0.04


def pillow_resized(pixels: np.ndarray, size: tuple[int, int], how: Image.Resampling) -> np.ndarray:
    """As floats: Pillow clips and rounds bytes after each of its two passes."""
    bands = [Image.fromarray(pixels[..., c].astype("float32")) for c in range(3)]
    return np.stack([np.asarray(band.resize(size[::-1], how)) for band in bands], -1)


@pytest.mark.parametrize("size", [(90, 130), (130, 90), (97, 97), (25, 31), (20, 50)])
@pytest.mark.parametrize("across", [28, 42])
def test_crop_and_stretch_equal_pillow(size: tuple[int, int], across: int) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (*size, 3), np.uint8)
    scale = max(28 / 0.875 / size[0], across / 0.875 / size[1])
    height, width = (round(side * scale) for side in size)
    # Pillow's bilinear filter widens when it reduces, which is what antialiasing means.
    resized = pillow_resized(pixels, (height, width), Image.Resampling.BILINEAR)
    top, left = (height - 28) // 2, (width - across) // 2
    image = evaluation_image(tf.constant(pixels), (28, across))
    assert image.shape == (28, across, 3)
    np.testing.assert_allclose(image, resized[top : top + 28, left : left + across], atol=1e-2)
    image = evaluation_image(tf.constant(pixels), (32, 40), "stretch_bicubic").numpy()
    stretched = pillow_resized(pixels, (32, 40), Image.Resampling.BICUBIC).clip(0, 255)
    np.testing.assert_allclose(image, stretched, atol=1e-2)


def test_images_of_the_right_size_and_policies() -> None:
    for mode in ("crop", "stretch"):
        np.testing.assert_array_equal(evaluation_image(tf.constant(PIXELS), (24, 32), mode), PIXELS)
    keras.config.set_dtype_policy("mixed_bfloat16")
    assert evaluation_image(tf.constant(PIXELS), 8).dtype == tf.float32
    draws = Augmentation().draw(8, 0, 0)
    assert training_image(tf.constant(PIXELS), 8, draws, Augmentation()).dtype == tf.float32


def augmented(augmentation: Augmentation, image: np.ndarray, size, count: int) -> np.ndarray:
    """`count` random versions of one image."""
    draws = tf.data.Dataset.from_tensor_slices(augmentation.draw(size, 0, 0, count=count))
    images = draws.map(lambda draws: training_image(tf.constant(image), size, draws, augmentation))
    return np.stack(list(images.as_numpy_iterator()))


def test_inception_crops_as_released_flips_shifts_and_random_crops() -> None:
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
    # As in vision_transformer's input_pipeline.py.
    tf.random.set_seed(0)
    options = {"min_object_covered": 0, "use_image_if_no_bounding_boxes": True}
    options |= {"area_range": (0.05, 1.0)}
    image = (300, 400, 3), tf.zeros([0, 0, 4], tf.float32)
    boxes = tf.data.Dataset.range(2000).map(
        lambda _: tf.image.sample_distorted_bounding_box(*image, **options).size[:2]
    )
    released = np.array([height * width for height, width in boxes.as_numpy_iterator()])
    fractions = [0.1, 0.25, 0.5, 0.75, 0.9]
    expected = np.quantile(released / (300 * 400), fractions)
    np.testing.assert_allclose(np.quantile(areas, fractions), expected, atol=0.06)
    assert (crops[:, 0, 0].std(0) > (30, 40)).all()
    assert (crops >= 0).all()
    assert (crops.max((0, 1, 2)) <= (299, 399)).all()
    # `min_area` bounds the crop.
    square = np.stack(np.mgrid[0:200, 0:200].astype(np.float32), -1)
    crops = augmented(Augmentation(min_area=0.8, flip=False), square, 20, 100)
    extents = 20 * np.diff(crops[:, 5:15, 5:15, 0], axis=1).mean((1, 2))
    assert extents.min() > 200 * np.sqrt(0.8 * 3 / 4) - 3
    versions = augmented(Augmentation(crop="resize"), PIXELS, (24, 32), 400)
    flipped = (versions == PIXELS[:, ::-1]).all((1, 2, 3))
    assert (flipped | (versions == PIXELS).all((1, 2, 3))).all()
    assert 160 <= flipped.sum() <= 240  # four standard deviations
    versions = augmented(AUGMENTATIONS["digits"], PIXELS, (24, 32), 100)
    padded = np.pad(PIXELS, ((1, 1), (1, 1), (0, 0))).astype(np.float32)
    places = {(t, s): padded[t : t + 24, s : s + 32] for t in range(3) for s in range(3)}
    seen = [next(p for p, image in places.items() if (image == v).all()) for v in versions]
    assert set(seen) == set(places)
    # A random crop is a window of the resized image.
    y, x = np.mgrid[0:64, 0:96].astype(np.float32)
    crops = augmented(Augmentation(crop="random", flip=False), np.stack([y, x], -1), 28, 60)
    scale = np.diff(crops[:, 4:24, 4:24], axis=2)[..., 1]
    np.testing.assert_allclose(scale, 64 / 32, atol=1e-4)  # 28 / 0.875 = 32 for the small side
    assert len(np.unique(crops[:, 10, 10, 0].round(2))) == 5  # 32 - 28 + 1 places
    assert len(np.unique(crops[:, 10, 10, 1].round(2))) > 12  # of 48 - 28 + 1
