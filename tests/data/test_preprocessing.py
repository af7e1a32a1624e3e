"""One image at a time: recorded outputs of the official code, Pillow, arithmetic; no TensorFlow."""

import functools
import itertools
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit import data
from keras_vit._base.version import install_command
from keras_vit.data import Augmentation, evaluation_image, pipeline, training_image
from keras_vit.data.augment.rand_augment import RandAugment
from keras_vit.data.eval_transform import INTERPOLATIONS, MODES, PILLOW_MODES, EvalTransform
from keras_vit.data.random_numbers import uniform
from tests.backend import refused
from tests.conftest import REPOSITORY
from tests.data.image_fixtures import IMAGE, PIXELS, encode, smooth, write

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


def test_inception_crops_as_released_flips_and_random_crops() -> None:
    # Pixels show their coordinates, so every crop tells where it was cut: slope x size = extent.
    y, x = np.mgrid[0:300, 0:400].astype(np.float32)
    crops = augmented(Augmentation(flip=False), np.stack([y, x], -1), 20, 2000)
    middle = crops[:, 5:15, 5:15]  # the border repeats pixels where a small crop is enlarged
    heights = 20 * np.diff(middle[..., 0], axis=1).mean((1, 2))
    widths = 20 * np.diff(middle[..., 1], axis=2).mean((1, 2))
    areas, ratios = heights * widths / (300 * 400), widths / heights
    assert 0.7 < ratios.min() < 0.8
    assert 1.25 < ratios.max() < 1.4
    # As in vision_transformer's input_pipeline.py.
    options = {"min_object_covered": 0, "use_image_if_no_bounding_boxes": True}
    options |= {"area_range": (0.05, 1.0)}
    box = functools.partial(tf.image.stateless_sample_distorted_bounding_box, **options)
    image = (300, 400, 3), tf.zeros([0, 0, 4], tf.float32)
    boxes = tf.data.Dataset.range(2000).map(lambda row: box(*image, seed=[row, row]).size[:2])
    released = np.array([height * width for height, width in boxes.as_numpy_iterator()])
    fractions = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9]
    expected = np.quantile(released / (300 * 400), fractions)
    np.testing.assert_allclose(np.quantile(areas, fractions), expected, atol=0.03)
    assert (crops[:, 0, 0].std(0) > (30, 40)).all()
    assert (crops >= 0).all()
    assert (crops.max((0, 1, 2)) <= (299, 399)).all()
    versions = augmented(Augmentation(crop="resize"), PIXELS, (24, 32), 400)
    flipped = (versions == PIXELS[:, ::-1]).all((1, 2, 3))
    assert (flipped | (versions == PIXELS).all((1, 2, 3))).all()
    assert 160 <= flipped.sum() <= 240  # four standard deviations
    places = np.stack([y, x], -1)[:64, :96]
    crops = augmented(Augmentation(crop="random", flip=False), places, 28, 60)
    scale = np.diff(crops[:, 4:24, 4:24], axis=2)[..., 1]
    np.testing.assert_allclose(scale, 64 / 32, atol=1e-4)  # 28 / 0.875 = 32 for the small side
    assert len(np.unique(crops[:, 10, 10, 0].round(2))) == 5  # 32 - 28 + 1 places


# Images that NumPy and Pillow prepare are those of TensorFlow's graphs.
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
def test_arrays_in_training(name: str) -> None:
    augmentation, size = SETTINGS[name], (48, 56)
    for image, position in itertools.product(IMAGES, range(4)):
        draws = augmentation.draw(size, seed=5, position=position)
        array, tensor = (
            training_image(pixels, size, draws, augmentation)
            for pixels in (image, tf.constant(image))
        )
        assert_alike(array, tensor, *ROUNDED.get(name, ()))


@pytest.mark.parametrize("name", data.OPERATIONS)
def test_operations_on_arrays(name: str) -> None:
    for image, magnitude, position in itertools.product(IMAGES, (1, 10, 17), range(2)):
        operation = RandAugment(1, magnitude, (name,))
        draws = operation.draw(uniform(0, name, position, 1, 4), image.shape[:2])
        draws = {key: value[0] for key, value in draws.items()}
        pixels = image.astype("float32")
        array, tensor = (operation.apply(p, draws) for p in (pixels, tf.constant(pixels)))
        assert_alike(array, tensor, *ROUNDED.get(name, ()))


@pytest.mark.parametrize("mode", [mode for mode in MODES if EvalTransform(mode).crops_long_side])
def test_strips_are_prepared_in_little_memory(mode: str) -> None:
    strip = np.random.default_rng(0).integers(0, 256, (2, 3000, 3), np.uint8)
    whole = data.preprocessing.EVAL_TRANSFORMS[mode](strip, (16, 16), 0.875, None)
    assert_alike(evaluation_image(strip, 16, mode), tf.constant(whole, tf.float32), 1.0)
    tracemalloc.start()
    transfer, size = data.AUGMENTATIONS["transfer"], (16, 16)
    for pixels in (strip, strip.swapaxes(0, 1)):
        long = np.repeat(pixels, 10, axis=pixels.shape.index(3000))
        evaluation_image(long, 16, mode)
        training_image(long, size, transfer.draw(size, seed=0, position=0), transfer)
    assert tracemalloc.get_traced_memory()[1] < 1e6  # 9 pixels of 135,000: 65 MB
    tracemalloc.stop()


@pytest.mark.parametrize("mode", MODES)
def test_arrays_in_evaluation(mode: str) -> None:
    images = IMAGES if mode in PILLOW_MODES else [*IMAGES, *NOISE]
    for interpolation in INTERPOLATIONS if mode in PILLOW_MODES else (None,):
        how = EvalTransform(mode, 0.9, interpolation)
        for image, size in itertools.product(images, SIZES):
            for pixels in (image, image.astype("float32")):
                tensor = evaluation_image(tf.constant(pixels), size, how)
                # What is rounded to integers may fall to either side.
                most = 1.0 if mode in ("big_vision", *PILLOW_MODES) else 0.02
                assert_alike(evaluation_image(pixels, size, how), tensor, most)


# TensorFlow decodes JPEG files with a fast transform, Pillow with an exact one. Of 61 photographs,
# four modes, 96 and 224 pixels they differ by at most 8.4 of 255 levels, 1.16 in an image's mean.
MOST, MEAN = 9.0, 1.25
PREDICT = """
import sys
from pathlib import Path
import keras_vit
from keras_vit.evaluation.prediction import predict_files
from keras_vit_cli.inspect.inspect_files import inspect_files
from keras_vit_cli.options.inspect import InspectOptions
model = keras_vit.VisionTransformer(
    patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3), num_classes=2)
for _, answer in predict_files(model, sys.argv[2:]):
    print(answer if isinstance(answer, str) else len(answer))
out, file, *_ = map(Path, sys.argv[1:])
assert inspect_files(model, InspectOptions(model=out, files=(file,), out=out)) == {}
print("tensorflow" in sys.modules)
"""
IMPORTS = """
import sys, keras
before = set(sys.modules)
import keras_vit.data
heavy = {"tensorflow", "tensorflow_datasets", "sklearn", "PIL"}
print(sorted(heavy & (set(sys.modules) - before)), "tensorflow" in sys.modules)

sys.modules["tensorflow"] = None  # as if it were not installed
try:
    keras_vit.data.decode_image(b"")
except ImportError as error:
    print(error)

# A stand-in, for there may be no GPU here; as on JAX and torch, where Keras may import TensorFlow
# before this package does.
import types
tensorflow = types.ModuleType("tensorflow")
tensorflow.config = types.SimpleNamespace(set_visible_devices=lambda *seen: print("seen", *seen))
sys.modules["tensorflow"] = tensorflow
sys.argv = ["keras-vit", "evaluate", "none.keras", "--data", "none"]
import keras_vit_cli.exit_status, keras_vit_cli.start
keras_vit_cli.start.find_spec = lambda name: True
keras_vit_cli.exit_status.check_needs = lambda options: None  # before anything is imported
sys.exit(keras_vit_cli.start.main() != 2)
"""


def test_the_sizes_and_the_center_of_timm_and_hugging_face() -> None:
    """Checked by hand: 224 / 0.9 is 248 rounded down; the long side is rounded down, too."""
    image = np.zeros((300, 401, 3), "uint8")
    image[:, 200:] = 255
    timm = evaluation_image(image, (224, 224), "timm_center", 0.9)
    theirs = evaluation_image(image, (224, 224), "huggingface_crop", 0.9)
    resized = Image.fromarray(image).resize((331, 248), Image.Resampling.BICUBIC)
    # (331 - 224) / 2 is 53.5: torchvision rounds to 54, transformers down.
    np.testing.assert_array_equal(timm, np.asarray(resized)[12:236, 54:278])
    np.testing.assert_array_equal(theirs, np.asarray(resized)[12:236, 53:277])
    squashed = Image.fromarray(image).resize((248, 248), Image.Resampling.BILINEAR)
    for mode in ("timm_squash", "huggingface_stretch"):
        pixels = evaluation_image(image, (224, 224), mode, 0.9, "bilinear")
        np.testing.assert_array_equal(pixels, np.asarray(squashed)[12:236, 12:236])


def test_one_decoder_for_pipeline_and_files(shared: Path) -> None:
    files = sorted((shared / "photos" / "flowers").glob("*/*.jpg"))[::300]
    split = data.FileSplit("val", ("flower",), files, [0] * len(files), verified=True)

    def batch(**decoder: str) -> np.ndarray:
        batches = pipeline(split, 96, len(files), eval_transform={"mode": "crop", **decoder})
        return next(iter(batches))[0].numpy()

    made = {decoder: batch(decoder=decoder) for decoder in ("tensorflow", "pillow")}
    for decoder, images in made.items():
        read = np.stack([data.read_image(file, 96, decoder=decoder) for file in files])
        np.testing.assert_allclose(read, images, atol=0.02)
    np.testing.assert_array_equal(batch(), made["tensorflow"])
    differences = np.abs(made["tensorflow"] - made["pillow"])
    assert 1 < differences.max() <= MOST
    assert differences.mean((1, 2, 3)).max() <= MEAN
    # The transform explains all of it: the exact one gives the same pixels.
    for file, image in zip(files, made["pillow"], strict=True):
        exact = tf.io.decode_jpeg(file.read_bytes(), 3, dct_method="INTEGER_ACCURATE")
        np.testing.assert_allclose(image, evaluation_image(exact, 96, "crop"), atol=0.02)
    refused("decoder='cv2' is not known", batch, decoder="cv2")
    refused("decoder='cv2' is not known", data.read_image, files[0], 96, decoder="cv2")


def test_predictions_and_inspections_need_no_tensorflow(tmp_path, run_python) -> None:
    for backend in ("jax", "matplotlib"):
        pytest.importorskip(backend)
    write(tmp_path, {"photo.jpg": encode(IMAGE, "JPEG"), "text.jpg": b"no photograph"})
    files = [str(tmp_path / f"{name}.jpg") for name in ("photo", "text", "missing")]
    printed = run_python(PREDICT, "jax", str(tmp_path / "out"), *files).splitlines()
    assert (tmp_path / "out" / "index.html").is_file()
    text = "not a JPEG, PNG, BMP, GIF, WebP, TIFF, AVIF or HEIC file"
    assert printed == ["2", text, "No such file or directory", "False"]
    # An import is light, a missing package explained, and GPUs are left alone. (On JAX: Keras
    # imports TensorFlow on its own backend, and Pillow where it finds it, on all.)
    light, explained, seen = run_python(IMPORTS, backend="jax", new=True).splitlines()
    assert light == "[] False"
    assert explained == f"keras_vit.data needs tensorflow: {install_command('tensorflow')}"
    assert seen == "seen [] GPU"


def test_commands_read_the_data_of_other_backends_in_silence(tmp_path: Path) -> None:
    """The library leaves its host's standard error alone, whatever TensorFlow writes to it."""
    for backend in ("tensorflow", "jax"):
        pytest.importorskip(backend)
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    environment |= {"KERAS_BACKEND": "jax", "PYTHONPATH": str(REPOSITORY)}
    words = ["augment", "--data", "digits", "--out", str(tmp_path / "digits.png")]
    command = [sys.executable, "-m", "keras_vit_cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
