"""Features are the model's pooled pre-logits, cached until something changes."""

import importlib
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import data
from keras_vit.evaluation import features
from tests.bank import outputs, pixels, tiny
from tests.data.image_fixtures import flat_folder

pytest.importorskip("tensorflow")


def build(**changes: object) -> Any:
    return tiny(**{"patch_size": 4, "hidden_dim": 8, "input_shape": (8, 8, 1), **changes})


def split_of(images: int = 11, *shape: int, seed: int = 0) -> data.ArraySplit:
    content = pixels(images, *(shape or (8, 8, 1)), seed=seed)
    return data.ArraySplit("train", ("a", "b", "c"), content, np.arange(images) % 3)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry per computation of features, here replaced by random ones."""
    calls: list[str] = []

    def sample(model: keras.Model, split: data.Split, *_: object) -> tuple[np.ndarray, np.ndarray]:
        calls.append(split.name)
        random = np.random.default_rng(len(split))
        return random.normal(size=(len(split), 8)).astype(np.float32), split.labels()

    # By name, because `keras_vit.evaluation.features` is the function.
    module = importlib.import_module("keras_vit.evaluation.features")
    monkeypatch.setattr(module, "_compute", sample)
    return calls


@pytest.mark.every_backend
def test_features_are_the_pooled_pre_logits() -> None:
    split, model = split_of(), build()
    images, labels = split.as_arrays()
    x, y = features(model, split, batch_size=4)  # the last batch is not full
    assert x.dtype == np.float32
    np.testing.assert_array_equal(y, labels)
    with model.only_pooled_tokens():
        expected = outputs(model.feature_model("pre_logits"), images.astype("float32"))
    np.testing.assert_allclose(x, expected, atol=2e-6)
    # Of mixed precision, they are float32 too: eight bits of mantissa, features of size 1.
    low, _ = features(build(dtype="mixed_bfloat16"), split, batch_size=4)
    assert low.dtype == np.float32
    assert np.abs(low - expected).mean() < 0.02


def test_images_are_prepared_by_eval_transform() -> None:
    split, changed = split_of(4, 20, 30, 1), build().copy()
    for transform in ({"mode": "stretch"}, {"crop_fraction": 0.5}):
        changed.eval_transform = transform
        images = split.as_arrays()[0]
        prepared = [data.evaluation_image(image, 8, changed.eval_transform) for image in images]
        expected = outputs(build().feature_model("pre_logits"), np.stack(prepared))
        np.testing.assert_allclose(features(changed, split)[0], expected, atol=2e-6)


@pytest.mark.every_backend
def test_channels_first() -> None:
    split, last = split_of(5, 12, 20, 3), build(input_shape=(8, 16, 3))
    first = build(input_shape=(3, 8, 16), data_format="channels_first")
    first.set_weights(last.get_weights())
    expected = features(last, split, batch_size=2)[0]
    np.testing.assert_allclose(features(first, split, batch_size=2)[0], expected, atol=2e-6)


def test_features_are_cached_until_a_change(tmp_path: Path, computed: list) -> None:
    model = build()
    first = features(model, split_of(), tmp_path)
    second = features(model.with_classifier(7), split_of(), tmp_path)  # the head does not matter
    assert len(computed) == 1
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    assert [file.suffix for file in tmp_path.iterdir()] == [".npz"]  # nothing temporary stays
    other_weights, other_evaluation = model.copy(), model.copy()
    kernel = other_weights.get_layer("patch_embedding").weights[0]
    kernel.assign(kernel + 1e-3)
    other_evaluation.eval_transform = {"mode": "stretch"}
    other_function = build(activation="gelu")  # of the same weights
    models = (model, other_weights, other_evaluation, other_function)
    variants = [(each, split_of()) for each in models]
    variants += [(model, split_of(seed=1)), (model, split_of(images=10))]
    for case in variants:
        features(*case, tmp_path)
    assert len(computed) == len(list(tmp_path.iterdir())) == len(variants)


@pytest.mark.usefixtures("computed")
def test_a_damaged_file_is_replaced(tmp_path: Path, monkeypatch: Any) -> None:
    model = build()
    expected, _ = features(model, split_of(), tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[content.find(expected.tobytes()) + 5] ^= 1
    for damaged in (*(content[: int(len(content) * part)] for part in (0, 0.3, 0.9)), flipped):
        file.write_bytes(damaged)
        with pytest.warns(UserWarning, match="damaged and computed again"):
            x, _ = features(model, split_of(), tmp_path)
        np.testing.assert_array_equal(x, expected)
        assert file.read_bytes() == content

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        features(model, split_of(seed=1), tmp_path)
    assert list(tmp_path.iterdir()) == [file]


def test_files_are_identified_by_size_and_time(tmp_path: Path, computed: list[str]) -> None:
    model = build(input_shape=(8, 8, 3))
    images = flat_folder(tmp_path / "images", count=3)

    def computations(**options: Any) -> int:
        features(model, data.load(images, **options).train, tmp_path / "cache")
        return len(computed)

    assert [computations(), computations()] == [1, 1]
    os.utime(data.load(images).train.files[0], ns=(1, 1))
    assert computations() == 2
    assert computations(reader="grain") == 3  # whose pixels are others
