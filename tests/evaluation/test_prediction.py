"""Predictions for files and splits, in both data formats."""

from pathlib import Path

import keras
import numpy as np
import pytest
from PIL import Image

from keras_vit import VisionTransformer
from keras_vit.data import ArraySplit
from keras_vit.data.decode.image_files import prepare_file
from keras_vit.evaluation import predict_split
from keras_vit.evaluation.prediction import predict_files
from keras_vit.tasks import Multilabel, Ordinal, Regression, Task
from tests.backend import rows
from tests.bank import TINY, fill, fresh, outputs, pixels
from tests.data.image_fixtures import IMAGE, encode, write

pytest.importorskip("tensorflow")


@pytest.fixture(scope="module")
def pair() -> list[keras.Model]:
    """One model per data format, with the same weights."""
    sizes = {**TINY, "num_classes": 3, "input_shape": (24, 32, 3)}
    pair = [fresh(**sizes)]
    fill(pair[0], scale=1)
    pair.append(fresh(**sizes | {"input_shape": (3, 24, 32)}, data_format="channels_first"))
    pair[1].set_weights(pair[0].get_weights())
    return pair


@pytest.mark.every_backend
def test_a_split_and_files_of_which_some_are_broken(pair: list, tmp_path: Path) -> None:
    images = pixels(5, 24, 32, 3)
    split = ArraySplit("val", ("a", "b", "c"), images, np.array([0, 1, 2, 0, 1]))
    (labels, expected), (_, scores) = (predict_split(model, split, 2) for model in pair)
    assert labels.tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_allclose(expected, outputs(pair[0], images.astype("float32")), atol=1e-4)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    # Broken files leave the others their answers.
    images = map(Image.fromarray, pixels(7, 24, 32, 3))
    files = {f"{i}.png": encode(image, "PNG") for i, image in enumerate(images)}
    write(tmp_path, {**files, "2.png": b"broken", "5.png": b""})
    files = sorted(tmp_path.iterdir())
    predictions = list(predict_files(pair[0], iter(files), batch_size=3))
    assert [file for file, _ in predictions] == files
    for file, answer in predictions:
        ((_, alone),) = predict_files(pair[0], [file])
        if isinstance(alone, str):
            assert answer == alone
        else:
            np.testing.assert_allclose(answer, alone, atol=1e-5)


def test_files(pair: list[keras.Model], tmp_path: Path) -> None:
    write(tmp_path, {"1.png": encode(IMAGE, "PNG"), "2.jpg": b"\xff\xd8\xff"})
    files = [tmp_path / name for name in ("1.png", "2.jpg", "3.jpg")]
    (expected, *rest), (predictions, *_) = (list(predict_files(model, files)) for model in pair)
    reasons = ["the JPEG file is damaged or incomplete", "No such file or directory"]
    assert [reason for _, reason in rest] == reasons
    np.testing.assert_allclose(predictions[1], expected[1], atol=1e-4)


@pytest.mark.parametrize(
    "task", rows([Multilabel(size=3), Regression(("kg",)), Ordinal(size=3)], [Ordinal(size=3)])
)
def test_files_are_answered_by_the_task(task: Task, tmp_path: Path) -> None:
    sizes = {name: size for name, size in TINY.items() if name != "num_classes"}
    model = VisionTransformer(**sizes | {"input_shape": (24, 32, 3)}, task=task)
    model.get_layer("head").bias.assign(np.arange(1, 1 + task.outputs))
    file = write(tmp_path, {"1.png": encode(IMAGE, "PNG")}) / "1.png"
    ((_, answer),) = predict_files(model, [file])
    expected = task.answers(outputs(model, prepare_file(file, (24, 32))[None]))
    np.testing.assert_allclose(answer, expected[0], atol=1e-5)
    assert answer.shape == (task.size,)
