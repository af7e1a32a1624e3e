"""Features, the pooled pre-logits, predictions of files and splits; and `keras-vit evaluate`."""

import importlib
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

import keras_vit
from keras_vit import data, tasks
from keras_vit.evaluation import classification_report, features, fewshot_table, predict_split
from keras_vit.evaluation.prediction import predict_files
from keras_vit.tasks import Regression
from tests.backend import warned
from tests.bank import TINY, fill, fresh, outputs, pixels, tiny
from tests.conftest import Command
from tests.data.image_fixtures import encode, flat_folder, plain, write

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
    np.testing.assert_array_equal(y, labels)
    with model.only_pooled_tokens():
        expected = outputs(model.feature_model("pre_logits"), images.astype("float32"))
    np.testing.assert_allclose(x, expected, atol=2e-6)
    # Of mixed precision, they are float32 too: eight bits of mantissa, features of size 1.
    low, _ = features(build(dtype="mixed_bfloat16"), split, batch_size=4)
    assert low.dtype == np.float32
    assert np.abs(low - expected).mean() < 0.02
    split, last = split_of(5, 12, 20, 3), build(input_shape=(8, 16, 3))
    first = build(input_shape=(3, 8, 16), data_format="channels_first")
    first.set_weights(last.get_weights())
    expected = features(last, split, batch_size=2)[0]
    np.testing.assert_allclose(features(first, split, batch_size=2)[0], expected, atol=2e-6)


def test_images_are_prepared_by_eval_transform() -> None:
    split, changed = split_of(4, 20, 30, 1), build().copy()
    for transform in ({"mode": "stretch"}, {"crop_fraction": 0.5}):
        changed.eval_transform = transform
        images = split.as_arrays()[0]
        prepared = [data.evaluation_image(image, 8, changed.eval_transform) for image in images]
        expected = outputs(build().feature_model("pre_logits"), np.stack(prepared))
        np.testing.assert_allclose(features(changed, split)[0], expected, atol=2e-6)


def test_features_are_cached_until_a_change(tmp_path: Path, computed: list) -> None:
    model = build()
    first = features(model, split_of(), tmp_path)
    second = features(model.with_classifier(7), split_of(), tmp_path)  # the head does not matter
    assert len(computed) == 1
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
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
def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    model = build()
    expected, _ = features(model, split_of(), tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    flipped = bytearray(content)
    flipped[content.find(expected.tobytes()) + 5] ^= 1
    for damaged in (*(content[: int(len(content) * part)] for part in (0, 0.3, 0.9)), flipped):
        file.write_bytes(damaged)
        x, _ = warned("damaged and computed again", features, model, split_of(), tmp_path)
        np.testing.assert_array_equal(x, expected)
        assert file.read_bytes() == content
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


@pytest.mark.every_backend
def test_a_split_and_files_of_which_some_are_broken(tmp_path: Path) -> None:
    sizes, images = {**TINY, "num_classes": 3, "input_shape": (24, 32, 3)}, pixels(5, 24, 32, 3)
    model = fresh(**sizes)
    fill(model, scale=1)
    first = fresh(**sizes | {"input_shape": (3, 24, 32)}, data_format="channels_first")
    first.set_weights(model.get_weights())
    split = data.ArraySplit("val", ("a", "b", "c"), images, np.array([0, 1, 2, 0, 1]))
    (labels, expected), (_, scores) = (predict_split(each, split, 2) for each in (model, first))
    assert labels.tolist() == [0, 1, 2, 0, 1]
    np.testing.assert_allclose(expected, outputs(model, images.astype("float32")), atol=1e-4)
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    images = map(Image.fromarray, pixels(7, 24, 32, 3))
    files = {f"{i}.png": encode(image, "PNG") for i, image in enumerate(images)}
    write(tmp_path, {**files, "2.png": b"broken", "5.png": b""})
    files = sorted(tmp_path.iterdir())
    predictions = list(predict_files(model, iter(files), batch_size=3))
    assert [file for file, _ in predictions] == files
    for file, answer in predictions:
        ((_, alone),) = predict_files(model, [file])
        if isinstance(alone, str):
            assert answer == alone
        else:
            np.testing.assert_allclose(answer, alone, atol=1e-5)


def test_features_and_own_classes(tmp_path: Path, command: Command) -> None:
    files = {f"dark/{i}.png": plain(3 * i) for i in range(20)}  # by their gray level
    files |= {f"light/{i}.png": plain(190 + 3 * i) for i in range(20)}
    images, cache = write(tmp_path / "images", files), tmp_path / "cache"
    file, model = tmp_path / "model.keras", fresh(**TINY)
    model.class_names = ("dark", "light")
    model.save(file)
    options = ["--probe", "--knn", 3, "--fewshot", 1, 5, "--seeds", 4, "--cache-dir", cache]
    words = ["evaluate", file, "--data", images]
    printed, splits = command(*words, *options), data.load(images)
    four = (*features(model, splits.train, cache), *features(model, splits.val, cache))
    for row in fewshot_table(*four, shots=(1, 5), seeds=range(4)):
        line = next(x for x in printed.splitlines() if f"{row.shots}-shot" in x)
        assert f"{row.mean:.2%}" in line
        assert f"± {100 * row.spread:.2f} over 4 seeds" in line
    # Its own classes; nothing says which images it has seen, and all are scored.
    printed = " ".join(command(*words).split())
    assert "40 images; vision_transformer does not have a record of those it was made" in printed
    printed = command(*words, "--split", "val")
    labels, scores = predict_split(model, splits.val)
    expected = outputs(model, np.stack([data.read_image(path, 16) for path in splits.val.files]))
    np.testing.assert_allclose(scores, expected, atol=1e-4)
    np.testing.assert_array_equal(labels, splits.val.labels())
    assert str(classification_report(labels, expected, ("dark", "light"))) in printed


def test_numbers_in_another_unit_are_warned_of() -> None:
    grams = np.array([[900.0], [1100.0], [1300.0], [1000.0]])
    model = fresh(task=Regression(("weight",)).fitted(grams))
    images = pixels(4, *model.input_shape[1:])
    keras_vit.evaluate(model, (images, grams + 100), print_fn=len)
    kilograms = data.ArraySplit("all", Regression(("weight",)), images, grams / 1000)
    warned("weight of most.*another unit", keras_vit.evaluate, model, kilograms, print_fn=len)
    meters = data.ArraySplit("all", tasks.Depth(), images, np.full(images.shape[:3], 3.0))
    model = fresh(task=tasks.Depth().fitted(meters.labels() * 1000))
    warned(r"0\.001 times .*another unit", keras_vit.evaluate, model, meters, print_fn=len)
