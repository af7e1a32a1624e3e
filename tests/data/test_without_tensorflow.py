"""Pillow and NumPy, where TensorFlow is not the backend, see what the pipeline sees."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit._base.version import install_command
from keras_vit.data import FileSplit, decode_image, evaluation_image, pipeline, read_image
from keras_vit.data.decode.pillow import decode_with_pillow
from keras_vit.data.eval_transform import INTERPOLATIONS, PILLOW_MODES, EvalTransform
from tests.conftest import REPOSITORY
from tests.data.image_fixtures import one_quick

# TensorFlow decodes JPEG files with a fast transform, Pillow with an exact one. Measured over 61
# photographs, four modes, 96 and 224 pixels: at most 8.4 of 255 levels, and 1.16 in the mean of an
# image.
MOST, MEAN = 9.0, 1.25
PREDICT = """
import sys
from pathlib import Path
import keras, keras_vit
from keras_vit.evaluation.prediction import predict_files
model = keras.saving.load_model(sys.argv[1])
for file, answer in predict_files(model, sys.argv[3:]):
    print(Path(file).name, answer if isinstance(answer, str) else [
        (row["class"], round(row["probability"], 5))
        for row in model.task.describe(answer, 3)["predictions"]])
if keras.backend.backend() != "tensorflow":
    from keras_vit_cli.inspect.inspect_files import inspect_files
    small = keras_vit.VisionTransformer(
        patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3), num_classes=2)
    assert inspect_files(small, sys.argv[3:4], sys.argv[2]) == {}
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


def photographs(shared: Path) -> list[Path]:
    return sorted((shared / "photos" / "flowers").glob("*/*.jpg"))[::75]


@pytest.mark.parametrize("mode", ["crop", "stretch_bicubic"])
def test_real_photographs_are_nearly_the_same(shared: Path, mode: str) -> None:
    tf = pytest.importorskip("tensorflow")
    for file in photographs(shared):
        contents = file.read_bytes()
        expected = evaluation_image(decode_image(contents), 96, mode).numpy()
        pixels = evaluation_image(decode_with_pillow(contents), (96, 96), mode)
        differences = np.abs(pixels - expected)
        assert differences.max() <= MOST
        assert differences.mean() <= MEAN
        # The transform explains all of it: the exact one gives the same pixels.
        exact = tf.io.decode_jpeg(contents, 3, dct_method="INTEGER_ACCURATE")
        np.testing.assert_allclose(pixels, evaluation_image(exact, 96, mode), atol=0.02)


@pytest.mark.parametrize("mode", PILLOW_MODES)
@pytest.mark.parametrize("interpolation", one_quick(INTERPOLATIONS))
def test_pillows_own_resize(shared: Path, mode: str, interpolation: str) -> None:
    """TensorFlow's graph rounds as Pillow does, except where a value lies halfway."""
    pytest.importorskip("tensorflow")
    for file in photographs(shared)[:12]:
        contents = file.read_bytes()
        image = decode_image(contents, decoder="pillow")
        np.testing.assert_array_equal(image, decode_with_pillow(contents))
        for size in ((64, 64), (96, 64), (225, 225)):
            expected = evaluation_image(image.numpy(), size, mode, 0.9, interpolation)
            pixels = evaluation_image(image, size, mode, 0.9, interpolation).numpy()
            assert pixels.shape == expected.shape
            assert np.abs(pixels - expected).max() <= 2
            # Bilinear weights are simple fractions, of which more give exact halves.
            assert np.mean(pixels != expected) <= (0.06 if interpolation == "bilinear" else 0.002)


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
    pytest.importorskip("tensorflow")
    files = photographs(shared)[:4]
    split = FileSplit("val", ("flower",), files, [0] * len(files), verified=True)

    def batch(**decoder: str) -> np.ndarray:
        batches = pipeline(split, 96, 4, eval_transform={"mode": "crop", **decoder})
        return next(iter(batches))[0].numpy()

    for decoder in ("tensorflow", "pillow"):
        read = np.stack([read_image(file, 96, decoder=decoder) for file in files])
        np.testing.assert_allclose(read, batch(decoder=decoder), atol=0.02)
    np.testing.assert_array_equal(batch(), batch(decoder="tensorflow"))
    assert np.abs(batch() - batch(decoder="pillow")).max() > 1
    with pytest.raises(ValueError, match="decoder='cv2' is not known"):
        pipeline(split, 96, 4, eval_transform=EvalTransform(decoder="cv2"))
    with pytest.raises(ValueError, match="decoder='cv2' is not known"):
        read_image(files[0], 96, decoder="cv2")


def test_predictions_and_inspections_need_no_tensorflow(shared, tmp_path, run_python) -> None:
    weights = shared / "weights/vit_tiny_patch16_224.augreg_in21k_ft_in1k/model.safetensors"
    keras_vit.load(weights).save(tmp_path / "model.keras")
    broken, text, missing = (tmp_path / f"{name}.jpg" for name in ("broken", "text", "missing"))
    broken.write_bytes(photographs(shared)[0].read_bytes()[:3000])
    text.write_text("no photograph")
    files = [*photographs(shared)[:12], broken, text, missing]
    pytest.importorskip("matplotlib")
    arguments = [str(tmp_path / "model.keras"), str(tmp_path / "out"), *map(str, files)]
    answers = {}
    for backend in ("tensorflow", "jax"):
        pytest.importorskip(backend)
        *answers[backend], imported = run_python(PREDICT, backend, *arguments).splitlines()
        assert imported == str(backend == "tensorflow")
    assert (tmp_path / "out" / "index.html").is_file()
    # The decoders differ (see above): sure predictions are the same, others differ a little.
    differences = []
    for ours, theirs in zip(answers["jax"][:12], answers["tensorflow"][:12], strict=True):
        answer, expected = (dict(ast.literal_eval(one.split(" ", 1)[1])) for one in (ours, theirs))
        (best, p), (_, second), *_ = expected.items()
        differences.append(abs(answer.get(best, 0.0) - p))
        if p - second > 0.2:
            assert next(iter(answer)) == best
    assert np.mean(differences) < 0.03
    broken, text, missing = answers["jax"][12:]
    assert answers["tensorflow"][12:] == [broken, text, missing]
    assert broken == "broken.jpg the JPEG file is damaged or incomplete"
    assert text == "text.jpg not a JPEG, PNG, BMP, GIF or WebP file"
    assert missing == "missing.jpg No such file or directory"


def test_an_import_is_light_a_missing_package_explained_and_gpus_left_alone(run_python) -> None:
    """On JAX: Keras imports TensorFlow on its own backend, and Pillow where it finds it, on all."""
    light, explained, seen = run_python(IMPORTS, backend="jax", new=True).splitlines()
    assert light == "[] False"
    assert explained == f"keras_vit.data needs tensorflow: {install_command('tensorflow')}"
    assert seen == "seen [] GPU"


@pytest.mark.parametrize("backend", ["jax", pytest.param("torch", marks=pytest.mark.slow)])
def test_commands_read_the_data_of_other_backends_in_silence(backend: str, tmp_path: Path) -> None:
    """The library leaves its host's standard error alone, whatever TensorFlow writes to it."""
    pytest.importorskip(backend)
    pytest.importorskip("tensorflow")
    environment = {name: value for name, value in os.environ.items() if name[:3] != "TF_"}
    environment |= {"KERAS_BACKEND": backend, "PYTHONPATH": str(REPOSITORY)}
    words = ["augment", "--data", "digits", "--out", str(tmp_path / "digits.png")]
    command = [sys.executable, "-m", "keras_vit_cli", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
