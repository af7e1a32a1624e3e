"""Predictions for files and splits, in both data formats."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.data import ArraySplit
from keras_vit.evaluation import predict_split
from keras_vit.evaluation.prediction import predict_files
from tests.data.image_fixtures import IMAGE, encode, write


def models() -> list[keras.Model]:
    """One model per data format, with the same weights."""
    sizes = {"patch_size": 8, "hidden_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
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
    assert [name for name, _ in predictions[1]] == [name for name, _ in expected[1]]
    assert [p for _, p in predictions[1]] == pytest.approx([p for _, p in expected[1]], abs=1e-4)


@pytest.mark.parametrize("argument", ["top", "batch_size"])
def test_numbers_out_of_range(pair: list[keras.Model], argument: str) -> None:
    with pytest.raises(ValueError, match=rf"{argument}=0 must be"):
        next(predict_files(pair[0], ["nowhere.jpg"], **{argument: 0}))
