"""Pillow and NumPy, where TensorFlow is not the backend, see what the pipeline sees."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_vit._base.version import install_command
from keras_vit.data import FileSplit, evaluation_image, pipeline, read_image
from tests.backend import refused
from tests.conftest import REPOSITORY
from tests.data.image_fixtures import IMAGE, encode, write

# TensorFlow decodes JPEG files with a fast transform, Pillow with an exact one. Measured over 61
# photographs, four modes, 96 and 224 pixels: at most 8.4 of 255 levels, and 1.16 in the mean of an
# image.
MOST, MEAN = 9.0, 1.25
PREDICT = """
import sys
import keras_vit
from keras_vit.evaluation.prediction import predict_files
from keras_vit_cli.inspect.inspect_files import inspect_files
model = keras_vit.VisionTransformer(
    patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3), num_classes=2)
for _, answer in predict_files(model, sys.argv[2:]):
    print(answer if isinstance(answer, str) else len(answer))
assert inspect_files(model, sys.argv[2:3], sys.argv[1]) == {}
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
    expected = np.asarray(squashed)[12:236, 12:236]
    for mode in ("timm_squash", "huggingface_stretch"):
        pixels = evaluation_image(image, (224, 224), mode, 0.9, "bilinear")
        np.testing.assert_array_equal(pixels, expected)


def test_one_decoder_for_pipeline_and_files(shared: Path) -> None:
    """`decoder="pillow"` moves the pixels of the pipeline and of `read_image`, and no others."""
    tf = pytest.importorskip("tensorflow")
    files = sorted((shared / "photos" / "flowers").glob("*/*.jpg"))[::300]
    split = FileSplit("val", ("flower",), files, [0] * len(files), verified=True)

    def batch(**decoder: str) -> np.ndarray:
        batches = pipeline(split, 96, len(files), eval_transform={"mode": "crop", **decoder})
        return next(iter(batches))[0].numpy()

    made = {decoder: batch(decoder=decoder) for decoder in ("tensorflow", "pillow")}
    for decoder, images in made.items():
        read = np.stack([read_image(file, 96, decoder=decoder) for file in files])
        np.testing.assert_allclose(read, images, atol=0.02)
    np.testing.assert_array_equal(batch(), made["tensorflow"])
    differences = np.abs(made["tensorflow"] - made["pillow"])
    assert 1 < differences.max() <= MOST
    assert differences.mean((1, 2, 3)).max() <= MEAN
    # The transform explains all of it: the exact one gives the same pixels.
    for file, image in zip(files, made["pillow"], strict=True):
        exact = tf.io.decode_jpeg(file.read_bytes(), 3, dct_method="INTEGER_ACCURATE")
        np.testing.assert_allclose(image, evaluation_image(exact, 96, "crop"), atol=0.02)
    for call in (lambda: batch(decoder="cv2"), lambda: read_image(files[0], 96, decoder="cv2")):
        refused("decoder='cv2' is not known", call)


def test_predictions_and_inspections_need_no_tensorflow(tmp_path, run_python) -> None:
    for backend in ("jax", "matplotlib"):
        pytest.importorskip(backend)
    write(tmp_path, {"photo.jpg": encode(IMAGE, "JPEG"), "text.jpg": b"no photograph"})
    files = [str(tmp_path / f"{name}.jpg") for name in ("photo", "text", "missing")]
    printed = run_python(PREDICT, "jax", str(tmp_path / "out"), *files).splitlines()
    assert (tmp_path / "out" / "index.html").is_file()
    text = "not a JPEG, PNG, BMP, GIF or WebP file"
    assert printed == ["2", text, "No such file or directory", "False"]


def test_an_import_is_light_a_missing_package_explained_and_gpus_left_alone(run_python) -> None:
    """On JAX: Keras imports TensorFlow on its own backend, and Pillow where it finds it, on all."""
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
