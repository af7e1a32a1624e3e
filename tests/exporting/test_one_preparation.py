"""An image file has one answer: of a model, of each file exported from it, and of a server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data
from keras_vit.data.decode.image_files import prepare_contents
from keras_vit.evaluation import predict_split
from keras_vit.evaluation.prediction import predict_files
from keras_vit.models.answers import answers_of
from keras_vit_cli.serve.images import preparation
from keras_vit_cli.serve.model import load_served
from tests import bank
from tests.backend import refused, warned
from tests.data.image_fixtures import IMAGE, encode, orientation, png_of_twelve_bits, write
from tests.exporting.artifacts import Artifacts, evaluation_images, exported, formats, probabilities
from tests.models.test_common import build

pytestmark = pytest.mark.filterwarnings("ignore::keras_vit.data.DataRangeWarning")
DEEP = np.linspace(0, 65535, 40 * 30).reshape(40, 30).astype("uint16")
PALETTE = IMAGE.convert("RGBA").quantize(32)
FILES: dict[str, Callable[[], bytes]] = {
    "dark, 16 bits": png_of_twelve_bits,
    "gray, 16 bits": lambda: encode(Image.fromarray(DEEP), "PNG"),
    "palette with alpha": lambda: encode(PALETTE, "PNG", transparency=bytes(range(32))),
    "turned by EXIF": lambda: encode(IMAGE, "JPEG", exif=orientation(6)),
    "CMYK": lambda: encode(IMAGE.convert("CMYK"), "JPEG"),
}


def sensitive_model(**changes: Any) -> Any:
    sizes = {**bank.TINY, "num_classes": 3, "input_shape": (16, 24, 3), **changes}
    model, random = keras_vit.VisionTransformer(**sizes), np.random.default_rng(0)
    for weight in model.trainable_variables:
        weight.assign(random.normal(0, 0.5, weight.shape))
    kernel = random.normal(0, 1, (8, 8, 3, 16))  # of sum zero: how dark an image is does not count
    model.get_layer("patch_embedding").kernel.assign(40 * (kernel - kernel.mean((0, 1, 2))))
    model.get_layer("position_embedding").embedding.assign(np.zeros((1, 7, 16)))
    model.class_names = ("ant", "bee", "cat")
    return model


@pytest.fixture
def model(artifacts: Artifacts) -> Any:
    return artifacts.model("sensitive", sensitive_model)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    contents = {f"{i}.png": make() for i, make in enumerate(FILES.values())}
    folder = write(tmp_path_factory.mktemp("files"), contents)
    return [folder / name for name in contents]


def answers(classifier: Any, files: list[Path]) -> np.ndarray:
    return np.stack([answer for _, answer in predict_files(classifier, files)])


@formats("onnx", "tf_saved_model", "torch", of=("onnx", "tf_saved_model", "litert", "torch"))
def test_files_predict(format: str, model: Any, files: list[Path], artifacts: Artifacts) -> None:
    expected, file = answers(model, files), artifacts.file("sensitive", format)
    np.testing.assert_allclose(answers(file, files), expected, atol=2e-5)
    # Rounded to levels, as they were before, the pixels would be other ones.
    batch = np.stack([prepare_contents(file.read_bytes(), (16, 24)) for file in files])
    rounded = answers_of(model, bank.outputs(model, np.rint(batch)))
    assert np.abs(rounded - expected).max() > 5e-4


def test_a_server_sees_the_same_pixels(model: Any, files: list[Path], tmp_path: Path) -> None:
    model.save(tmp_path / "model.keras")
    served = load_served(tmp_path / "model.keras")
    pixels = [prepare_contents(*preparation(served, f.read_bytes(), 2**26)) for f in files]
    for seen, file in zip(pixels, files, strict=True):
        np.testing.assert_array_equal(seen, data.read_image(file, (16, 24)))
    np.testing.assert_allclose(served.predict(np.stack(pixels)), answers(model, files), atol=1e-5)


@pytest.mark.thorough
def test_bytes_and_splits(model: Any, files: list[Path], artifacts: Artifacts) -> None:
    tf, expected = pytest.importorskip("tensorflow"), answers(model, files)
    serve = tf.saved_model.load(str(artifacts.path("sensitive"))).signatures["serving_default"]
    outputs = serve(contents=tf.constant([file.read_bytes() for file in files]))
    np.testing.assert_allclose(outputs["probabilities"], expected, atol=2e-5)
    split = data.FileSplit("val", model.class_names, files, [0] * len(files), verified=True)
    _, scores = predict_split(model, split)
    np.testing.assert_allclose(answers_of(model, scores), expected, atol=1e-5)
    _, outputs = predict_split(artifacts.file("sensitive", "litert"), split)
    np.testing.assert_allclose(outputs, expected, atol=2e-5)


def test_a_file_takes_bytes_and_looks_at_the_range(model: Any, artifacts: Artifacts) -> None:
    """A file's contract is uint8 `images`, as ever; floats are a second entry."""
    interpreters = pytest.importorskip("ai_edge_litert.interpreter")
    interpreter = interpreters.Interpreter(str(artifacts.path("sensitive", "litert")))
    assert interpreter.get_input_details()[0]["dtype"] is np.uint8
    assert list(interpreter.get_signature_list()) == ["images", "pixels"]
    file = artifacts.file("sensitive", "onnx")
    images = np.random.default_rng(0).uniform(0, 255, (5, 16, 24, 3))
    file.predict(images)
    warned("takes pixels from 0 to 255", file.predict, images / 255, kind=data.DataRangeWarning)
    images[1, 2, 3] = np.nan
    refused("hold nan, first in image 1", file.predict, images)


# In an interpreter of its own: it fails where the package would be imported.
SERVE = """
import sys
import numpy as np
import tensorflow as tf

sys.modules.update({"keras": None, "keras_vit": None})
to, model, *files = sys.argv[1:]
served = tf.saved_model.load(model).signatures
answer = served["serving_default"](contents=tf.constant([open(f, "rb").read() for f in files]))
np.save(to, answer["probabilities"])
for empty in (served["serving_default"](contents=tf.zeros(0, tf.string)),
              served["images"](images=tf.zeros((0, 9, 9, 3), tf.uint8))):
    assert empty["probabilities"].shape == (0, 5) and empty["top_classes"].shape == (0, 3)
"""
NAMES = ["ant", "bee", "cat", "dog", "elk"]
HOSTILE_NAMES = ["[/b]", "a\nb", "\udcff", "\x1b[31m", ""]


def served(path: Path, files: list[Path]) -> dict[str, Any]:
    import tensorflow as tf

    contents = tf.constant([file.read_bytes() for file in files], tf.string)
    loaded = tf.saved_model.load(str(path))  # its variables go with it
    answer = loaded.signatures["serving_default"](contents=contents)
    return {name: values.numpy() for name, values in answer.items()}


@pytest.fixture
def photographs(tmp_path: Path) -> list[Path]:
    random = np.random.default_rng(0)
    files = [tmp_path / name for name in ("0.jpg", "1.png", "2.jpg", "3.png", "4.bmp")]
    for i, file in enumerate(files):
        pixels = random.integers(0, 256, (40 + 9 * i, 70 - 5 * i, 3)).astype("uint8")
        Image.fromarray(pixels).save(file)
    return files


@pytest.mark.thorough
def test_serves_as_predict_does(
    photographs: list[Path], artifacts: Artifacts, tmp_path: Path, run_python: Callable[..., str]
) -> None:
    model, images = artifacts.model("token"), evaluation_images(photographs[:-1], (32, 32))
    path, file = artifacts.path("token", class_names=NAMES, top_k=3), tmp_path / "answers.npy"
    run_python(SERVE, None, str(file), str(path), *map(str, photographs), new=True)
    answer, expected = served(path, photographs), probabilities(model, images)
    assert answer["valid"].tolist() == [True] * 4 + [False]
    np.testing.assert_allclose(answer["probabilities"][:4], expected, atol=1e-5)
    np.testing.assert_allclose(np.load(file), answer["probabilities"], atol=1e-6)
    order = np.argsort(-expected, axis=1)[:, :3]
    names = [[name.decode() for name in row] for row in answer["top_classes"][:4]]
    assert names == [[NAMES[i] for i in row] for row in order]
    # The bad file is a marked row, and the batch around it is served.
    assert not answer["probabilities"][4].any()
    assert set(answer["top_classes"][4]) == {b""}
    # A model of any size is written for one.
    artifacts.model("any size").class_names = tuple("abcde")
    answer = served(artifacts.path("any size", image_size=(40, 24)), photographs[:-1])
    images = evaluation_images(photographs[:-1], (40, 24))
    expected = probabilities(artifacts.model("any size"), images)
    np.testing.assert_allclose(answer["probabilities"], expected, atol=1e-5)


@pytest.mark.thorough
def test_names_and_limits_that_nobody_expects(artifacts: Artifacts, tmp_path: Path) -> None:
    """A photograph that its EXIF data turns, the same upright, and one that is too large."""
    pixels = bank.pixels(40, 70, 3)
    files = [tmp_path / f"{name}.png" for name in ("turned", "upright", "large")]
    Image.fromarray(pixels).save(files[0], exif=orientation(6))
    Image.fromarray(np.rot90(pixels, -1).copy()).save(files[1])
    Image.new("1", (10_000, 10_000)).save(files[2])
    artifacts.model("one block", lambda: build("token", depth=1))
    path = artifacts.path("one block", class_names=HOSTILE_NAMES)
    answer = served(path, files)
    assert answer["valid"].tolist() == [True, True, False]
    first, second, _ = answer["probabilities"]
    np.testing.assert_array_equal(first, second)
    names = [name.encode("utf-8", "surrogateescape") for name in HOSTILE_NAMES]
    order = np.argsort(-first, kind="stable")
    assert answer["top_classes"][0].tolist() == [names[i] for i in order]

    limited = artifacts.path("one block", max_pixels=40 * 70 - 1)
    assert served(limited, files)["valid"].tolist() == [False] * 3


@pytest.mark.slow
def test_prepared_images_and_those_of_other_channels(tmp_path: Path) -> None:
    """Not prepared again where that changes an image of the model's size, as those of timm do."""
    import tensorflow as tf

    model = build("token", depth=1)
    model.eval_transform = {"mode": "timm_center", "crop_fraction": 0.5, "interpolation": "bicubic"}
    file, images = exported(tmp_path / "timm", model), bank.pixels(2, 32, 32, 3)
    np.testing.assert_allclose(file.predict(images), probabilities(model, images), atol=1e-5)
    larger = images.repeat(2, axis=1).repeat(2, axis=2)
    serve_images = tf.saved_model.load(str(file.path)).signatures["images"]
    answer = serve_images(images=tf.constant(larger))["probabilities"].numpy()
    prepare = keras_vit.data.evaluation_image
    center = [prepare(tf.constant(image), (32, 32), model.eval_transform) for image in larger]
    np.testing.assert_allclose(answer, probabilities(model, np.stack(center)), atol=1e-5)
    # Files of images have one, three or four channels: no signature takes the bytes of others.
    model, images = build("token", input_shape=(32, 32, 5), depth=1), bank.pixels(2, 48, 40, 5)
    file, part = exported(tmp_path, model), images[:, :32, :32]
    assert file.contract.channels == 5
    np.testing.assert_allclose(file.predict(part), probabilities(model, part), atol=1e-4)
    signatures = tf.saved_model.load(str(file.path)).signatures
    assert sorted(signatures) == ["images", "pixels"]
    assert signatures["images"](images=tf.constant(images))["probabilities"].shape == (2, 5)
