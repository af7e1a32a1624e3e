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
from keras_vit_cli.serve.images import prepare
from keras_vit_cli.serve.model import load_served
from tests import bank
from tests.data.image_fixtures import IMAGE, encode, orientation, png_of_twelve_bits, write
from tests.exporting.artifacts import Artifacts, formats

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


def sensitive_model() -> Any:
    """One that sees parts of a level, also in images that are nearly black."""
    sizes = {**bank.TINY, "num_classes": 3, "input_shape": (16, 24, 3)}
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
    pixels = [prepare(served, file.read_bytes(), data.MAX_PIXELS) for file in files]
    for seen, file in zip(pixels, files, strict=True):
        np.testing.assert_array_equal(seen, data.read_image(file, (16, 24)))
    np.testing.assert_allclose(served.predict(np.stack(pixels)), answers(model, files), atol=1e-5)


@pytest.mark.thorough
def test_bytes_and_splits(model: Any, files: list[Path], artifacts: Artifacts) -> None:
    tf, expected = pytest.importorskip("tensorflow"), answers(model, files)
    saved_model = tf.saved_model.load(str(artifacts.path("sensitive")))
    serve = saved_model.signatures["serving_default"]
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
    with pytest.warns(
        keras_vit.data.DataRangeWarning, match="model.onnx takes pixels from 0 to 255"
    ):
        file.predict(images / 255)
    images[1, 2, 3] = np.nan
    with pytest.raises(ValueError, match="hold nan, first in image 1"):
        file.predict(images)
