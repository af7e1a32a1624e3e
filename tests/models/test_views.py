"""Test-time augmentation against views that are cut and resized by hand."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit.evaluation import predict_split
from keras_vit.evaluation.prediction import predict_files
from keras_vit.models.answers import answers_of
from keras_vit.models.views import VIEWS
from tests.backend import numpy, rows
from tests.bank import TINY, fill, fresh, outputs, pixels

IMAGES = pixels(2, 32, 24, 3).astype("float32")


def build(**options: Any) -> Any:
    model = fresh(**{**TINY, "num_classes": 3, "input_shape": (32, 24, 3), **options}, filled=False)
    fill(model, scale=0.3)
    return model


def views_by_hand(images: np.ndarray, views: str) -> list[np.ndarray]:
    """Channels last. Corners of 28 x 21 of 32 x 24 pixels, enlarged again."""
    seen = [images]
    for top, left in ((0, 0), (0, 3), (4, 0), (4, 3)) if views == "crops" else ():
        corner = images[:, top : top + 28, left : left + 21]
        seen.append(numpy(keras.ops.image.resize(corner, (32, 24), data_format="channels_last")))
    return [view for image in seen for view in (image, image[:, :, ::-1])]


CASES = [("crops", {}), ("flip", {}), ("flip", {"classifier_activation": "softmax"})]


@pytest.mark.parametrize(("views", "options"), rows(CASES, CASES[:1]))
def test_scores_are_the_mean_of_the_views_probabilities(views: str, options: dict) -> None:
    model = build(**options)
    averaged, by_hand = model.with_views(views), views_by_hand(IMAGES, views)
    expected = np.mean([answers_of(model, model(view)) for view in by_hand], axis=0)
    scores = outputs(averaged, IMAGES)
    np.testing.assert_allclose(answers_of(model, scores), expected, atol=1e-5)
    assert len(VIEWS[views]) == len(by_hand)
    first = build(input_shape=(3, 32, 24), data_format="channels_first", **options)
    others = outputs(first.with_views(views), np.moveaxis(IMAGES, -1, 1))
    np.testing.assert_allclose(others, scores, atol=1e-5)


def test_one_view_is_the_model_and_names_are_checked() -> None:
    model = build()
    assert model.with_views() is model
    with pytest.raises(ValueError, match="views='mirror' is not known"):
        model.with_views("mirror")
    with pytest.raises(ValueError, match="images of any size"):
        build(input_shape=(None, None, 3)).with_views("flip")


@pytest.mark.backends("tensorflow")
def test_the_models_views_are_saved_and_used_by_every_prediction(tmp_path: Path) -> None:
    model = build(num_classes=2)
    model.class_names = ("a", "b")
    model.eval_transform = {"mode": "stretch", "views": "crops"}
    model.save(tmp_path / "model.keras")
    loaded = keras_vit.load(tmp_path / "model.keras")
    assert loaded.eval_transform == model.eval_transform
    for i, image in enumerate(pixels(16, 40, 30, 3)):  # two classes of eight images each
        folder = tmp_path / "photos" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i // 2}.png")
    splits = keras_vit.data.load(str(tmp_path / "photos"))
    _, scores = predict_split(loaded, splits.val)
    single = model.copy()
    single.eval_transform = {"mode": "stretch"}
    batches = keras_vit.data.pipeline(splits.val, (32, 24), 2, eval_transform="stretch")
    images = np.concatenate([images for images, _ in batches.as_numpy_iterator()])
    expected = outputs(single.with_views("crops"), images)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    assert np.abs(scores - outputs(single, images)).max() > 1e-3
    ((_, answer),) = predict_files(loaded, [splits.val.files[0]])
    np.testing.assert_allclose(answer, answers_of(model, expected)[0], atol=1e-4)
