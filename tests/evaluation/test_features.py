"""Features are the model's pooled pre-logits, cached until something changes."""

import importlib
import os
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data
from keras_vit.evaluation import features
from tests.data.image_fixtures import flat_folder

pytest.importorskip("tensorflow")


def build(**changes: object) -> keras_vit.VisionTransformer:
    keras.utils.set_random_seed(3)
    arguments = {
        "patch_size": 4,
        "hidden_dim": 8,
        "depth": 1,
        "num_heads": 2,
        "input_shape": (8, 8, 1),
        "num_classes": 3,
    }
    return keras_vit.VisionTransformer(**{**arguments, **changes})


@pytest.fixture(scope="module")
def model() -> keras_vit.VisionTransformer:
    return build()


def split_of(images: int = 11, seed: int = 0) -> data.ArraySplit:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (images, 8, 8, 1), np.uint8)
    return data.ArraySplit("train", ("a", "b", "c"), pixels, np.arange(images) % 3)


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
def test_features_are_the_pooled_pre_logits(model: keras_vit.VisionTransformer) -> None:
    split = split_of()
    images, labels = split.as_arrays()
    x, y = features(model, split, batch_size=4)  # the last batch is not full
    assert x.dtype == np.float32
    np.testing.assert_array_equal(y, labels)
    with model.only_pooled_tokens():
        expected = model.feature_model("pre_logits")(images.astype("float32"))
    np.testing.assert_allclose(x, keras.ops.convert_to_numpy(expected), atol=2e-6)


def test_images_are_prepared_by_eval_transform(model: keras_vit.VisionTransformer) -> None:
    images = np.random.default_rng(0).integers(0, 256, (4, 20, 30, 1), np.uint8)
    split = data.ArraySplit("val", ("a", "b"), images, np.zeros(4, int))
    stretching = model.copy()
    stretching.eval_transform = {"mode": "stretch"}
    tight = model.copy()
    tight.eval_transform = {"crop_fraction": 0.5}
    for changed in (stretching, tight):
        prepared = np.stack(
            [data.evaluation_image(image, 8, changed.eval_transform) for image in images]
        )
        expected = keras.ops.convert_to_numpy(model.feature_model("pre_logits")(prepared))
        np.testing.assert_allclose(features(changed, split)[0], expected, atol=2e-6)


@pytest.mark.every_backend
def test_channels_first() -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 12, 20, 3), np.uint8)
    split = data.ArraySplit("val", ("a", "b"), images, np.arange(5) % 2)
    last = build(input_shape=(8, 16, 3))
    first = build(input_shape=(3, 8, 16), data_format="channels_first")
    first.set_weights(last.get_weights())
    expected = features(last, split, batch_size=2)[0]
    np.testing.assert_allclose(features(first, split, batch_size=2)[0], expected, atol=2e-6)


def test_features_are_cached(
    model: keras_vit.VisionTransformer, tmp_path: Path, computed: list[str]
) -> None:
    first = features(model, split_of(), tmp_path)
    second = features(model.with_classifier(7), split_of(), tmp_path)  # the head does not matter
    assert len(computed) == 1
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    (file,) = tmp_path.iterdir()  # nothing temporary stays
    assert file.suffix == ".npz"


def test_every_change_is_computed_again(
    model: keras_vit.VisionTransformer, tmp_path: Path, computed: list[str]
) -> None:
    other_weights = model.copy()
    kernel = other_weights.get_layer("patch_embedding").weights[0]
    kernel.assign(kernel + 1e-3)
    other_evaluation = model.copy()
    other_evaluation.eval_transform = {"mode": "stretch"}
    variants = [
        (model, split_of()),
        (other_weights, split_of()),
        (other_evaluation, split_of()),
        (build(activation="gelu"), split_of()),  # the same weights, another function
        (model, split_of(seed=1)),
        (model, split_of(images=10)),
    ]
    for case in variants:
        features(*case, tmp_path)
    assert len(computed) == len(list(tmp_path.iterdir())) == len(variants)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_computed_again(
    model: keras_vit.VisionTransformer, tmp_path: Path, computed: list[str], share: float
) -> None:
    expected, _ = features(model, split_of(), tmp_path)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.warns(UserWarning, match="damaged and computed again"):
        x, _ = features(model, split_of(), tmp_path)
    np.testing.assert_array_equal(x, expected)
    assert file.read_bytes() == content


def test_a_flipped_bit_is_detected(
    model: keras_vit.VisionTransformer, tmp_path: Path, computed: list[str]
) -> None:
    expected, _ = features(model, split_of(), tmp_path)
    (file,) = tmp_path.iterdir()
    contents = bytearray(file.read_bytes())
    position = contents.find(expected.tobytes())
    contents[position + 5] ^= 1
    file.write_bytes(contents)
    with pytest.warns(UserWarning, match="damaged"):
        x, _ = features(model, split_of(), tmp_path)
    np.testing.assert_array_equal(x, expected)


def test_a_failed_write_leaves_no_file(
    model: keras_vit.VisionTransformer,
    tmp_path: Path,
    computed: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        features(model, split_of(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_files_are_identified_by_size_and_time(tmp_path: Path, computed: list[str]) -> None:
    model = build(input_shape=(8, 8, 3))
    images = flat_folder(tmp_path / "images", count=3)
    cache = tmp_path / "cache"

    def run() -> np.ndarray:
        return features(model, data.load(images).train, cache)[0]

    before = run()
    np.testing.assert_array_equal(run(), before)
    assert len(computed) == 1
    os.utime(data.load(images).train.files[0], ns=(1, 1))
    run()
    assert len(computed) == 2
    features(model, data.load(images, reader="grain").train, cache)  # whose pixels are others
    assert len(computed) == 3


def test_errors(model: keras_vit.VisionTransformer) -> None:
    with pytest.raises(ValueError, match='Build it with pooling="token"'):
        features(build(pooling=None), split_of())
    with pytest.raises(ValueError, match="batch_size=0"):
        features(model, split_of(), batch_size=0)


@pytest.mark.every_backend
def test_mixed_precision_gives_float32(model: keras_vit.VisionTransformer) -> None:
    x, _ = features(build(dtype="mixed_bfloat16"), split_of())
    reference = model.feature_model("pre_logits")(split_of().as_arrays()[0].astype("float32"))
    assert x.dtype == np.float32
    difference = np.abs(x - keras.ops.convert_to_numpy(reference))
    assert difference.mean() < 0.02  # eight bits of mantissa, features of size 1
