"""Predictions for files and splits, in both data formats."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.data import ArraySplit
from keras_vit.data.decode.image_files import prepare_file
from keras_vit.evaluation import predict_split
from keras_vit.evaluation.prediction import predict_files
from keras_vit.tasks import Multilabel, Ordinal, Regression, Task
from tests.data.image_fixtures import IMAGE, encode, write

pytestmark = pytest.mark.every_backend

SIZES: dict[str, Any] = {"patch_size": 8, "hidden_dim": 16, "depth": 1, "num_heads": 2}


def models() -> list[keras.Model]:
    """One model per data format, with the same weights."""
    sizes = {**SIZES, "num_classes": 3}
    last = keras_vit.VisionTransformer(**sizes, input_shape=(24, 32, 3))
    random = np.random.default_rng(0)
    last.set_weights([random.normal(size=w.shape).astype("float32") for w in last.get_weights()])
    first = keras_vit.VisionTransformer(
        **sizes, input_shape=(3, 24, 32), data_format="channels_first"
    )
    first.set_weights(last.get_weights())
    return [last, first]


@pytest.fixture(scope="module")
def pair() -> list[keras.Model]:
    return models()


def test_a_split(pair: list[keras.Model]) -> None:
    pytest.importorskip("tensorflow")
    images = np.random.default_rng(1).integers(0, 256, (5, 24, 32, 3)).astype("uint8")
    split = ArraySplit("val", ("a", "b", "c"), images, np.array([0, 1, 2, 0, 1]))
    (labels, expected), (_, scores) = (predict_split(model, split, 2) for model in pair)
    assert labels.tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_allclose(expected, pair[0].predict(images, verbose=0), atol=1e-4)
    np.testing.assert_allclose(scores, expected, atol=1e-4)


def test_files(pair: list[keras.Model], tmp_path: Path) -> None:
    write(tmp_path, {"1.png": encode(IMAGE, "PNG"), "2.jpg": b"\xff\xd8\xff"})
    files = [tmp_path / name for name in ("1.png", "2.jpg", "3.jpg")]
    (expected, *reasons), (predictions, *_) = (list(predict_files(model, files)) for model in pair)
    assert [reason for _, reason in reasons] == [
        "the JPEG file is damaged or incomplete",
        "No such file or directory",
    ]
    np.testing.assert_allclose(predictions[1], expected[1], atol=1e-4)


@pytest.mark.parametrize("task", [Multilabel(size=3), Regression(("kg",)), Ordinal(size=3)])
def test_files_are_answered_by_the_task(task: Task, tmp_path: Path) -> None:
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(24, 32, 3), task=task)
    model.get_layer("head").bias.assign(np.arange(1, 1 + task.outputs))
    write(tmp_path, {"1.png": encode(IMAGE, "PNG")})
    ((_, answer),) = predict_files(model, [tmp_path / "1.png"])
    pixels = prepare_file(tmp_path / "1.png", (24, 32))
    expected = task.answers(keras.ops.convert_to_numpy(model(pixels[None])))
    np.testing.assert_allclose(answer, expected[0], atol=1e-5)
    assert answer.shape == (task.size,)


def test_batches_with_broken_files_have_the_answers_of_single_files(
    pair: list[keras.Model], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    images = {
        f"{i}.png": encode(Image.fromarray(random.integers(0, 255, (24, 32, 3), "uint8")), "PNG")
        for i in range(7)
    }
    write(tmp_path, {**images, "2.png": b"broken", "5.png": b""})
    files = sorted(tmp_path.iterdir())
    rows = list(predict_files(pair[0], iter(files), batch_size=3))
    assert [file for file, _ in rows] == files
    for file, answer in rows:
        ((_, alone),) = predict_files(pair[0], [file])
        if isinstance(alone, str):
            assert answer == alone
        else:
            np.testing.assert_allclose(answer, alone, atol=1e-5)


def test_numbers_out_of_range(pair: list[keras.Model]) -> None:
    with pytest.raises(ValueError, match=r"batch_size=0 must be"):
        next(predict_files(pair[0], ["nowhere.jpg"], batch_size=0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 0}, "not one score per class"),
        ({"num_classes": 1}, r"mean is not known.*model\.task = "),
        ({"num_classes": 2, "include_preprocessing": False}, "takes normalized pixels"),
    ],
)
def test_models_without_answers_to_pixels(options: dict[str, Any], message: str) -> None:
    model = keras_vit.VisionTransformer(**SIZES, input_shape=(24, 32, 3), **options)
    with pytest.raises(ValueError, match=message):
        next(predict_files(model, ["nowhere.jpg"]))
