"""Masked patch prediction: what is corrupted, what is predicted, and what the model learns."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

import keras_vit
from keras_vit import recipes
from keras_vit.training.masked_patches import CorruptPatches, MaskedPatchPrediction, patch_colors
from tests.backend import reloaded
from tests.bank import fresh, pixels, small
from tests.bank import outputs as predict
from tests.training.common import JIT, array

IMAGES = pixels(8, 32, 32, 3)
HYBRID: dict[str, Any] = {"resnet": (), "resnet_width": 32}


def small_task(seed: int | None = 0, **changes: Any) -> MaskedPatchPrediction:
    model = fresh(**{"num_classes": 4, "depth": 1, **changes}, filled=False)
    return MaskedPatchPrediction(model, seed=seed)


def compiled(task: MaskedPatchPrediction) -> MaskedPatchPrediction:
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    task.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"], jit_compile=JIT)
    return task


def colors_of(images: np.ndarray, size: tuple[int, int], parts: int) -> np.ndarray:
    """Patch by patch, in integers where pixels are: the definition."""
    rows, columns = images.shape[1] // size[0], images.shape[2] // size[1]
    actual = np.zeros((len(images), rows * columns), int)
    for image, row in zip(images.astype("float64"), actual, strict=True):
        for i in range(rows * columns):
            y, x = i // columns * size[0], i % columns * size[1]
            for mean in image[y : y + size[0], x : x + size[1]].mean(axis=(0, 1)):
                row[i] = row[i] * parts + min(int(mean * parts / 256), parts - 1)
    return actual


def test_colors_are_the_mean_in_few_bits() -> None:
    cases = (((16, 16, 3), (4, 4), 3), ((12, 22, 3), (4, 8), 2), ((8, 8, 1), (2, 2), 3))
    for shape, size, bits in cases:
        images = pixels(5, *shape) // np.arange(1, 6, dtype="uint8")[:, None, None, None]
        images[0, : size[0], : size[1]] = 255
        expected = colors_of(images, size, 2**bits)
        np.testing.assert_array_equal(array(patch_colors(images, size, bits)), expected)
        first = patch_colors(images.transpose(0, 3, 1, 2), size, bits, "channels_first")
        np.testing.assert_array_equal(array(first), expected)
        assert expected.max() == 2 ** (bits * shape[2]) - 1


@pytest.mark.every_backend
def test_half_is_corrupted_80_10_10() -> None:
    layer = CorruptPatches(seed=3)
    # Patches that hold their number, from 1, and that of their image.
    numbers = np.broadcast_to(np.arange(1, 65), (500, 64))
    grid = np.stack([numbers, np.arange(500)[:, None] + 0 * numbers], -1).astype("float32")
    patches, chosen = map(array, layer(grid.reshape(500, 8, 8, 2), training=True))
    patches = patches.reshape(500, 64, 2)
    is_mask = (patches == array(layer.mask_token)).all(-1)
    # An embedding that is not the mask still comes from the same image.
    np.testing.assert_array_equal(patches[~is_mask][:, 1], grid[~is_mask][:, 1])
    actual = np.where(is_mask, 0, patches[:, :, 0]).astype(int)
    assert chosen.shape == (500, 32)
    assert all(len(set(row)) == 32 for row in chosen)
    is_chosen = np.zeros(actual.shape, bool)
    np.put_along_axis(is_chosen, chosen, True, axis=1)
    # All positions alike; four standard deviations of the mean of 500 tosses.
    np.testing.assert_allclose(is_chosen.mean(axis=0), 0.5, atol=4 * 0.5 / np.sqrt(500))
    np.testing.assert_array_equal(actual[~is_chosen], numbers[~is_chosen])
    mask, same = actual[is_chosen] == 0, actual[is_chosen] == numbers[is_chosen]
    swap, tosses = ~mask & ~same, is_chosen.sum()
    for outcome, probability in ((mask, 0.8), (swap, 0.1), (same, 0.1)):
        deviation = np.sqrt(probability * (1 - probability) / tosses)  # standard deviation
        np.testing.assert_allclose(outcome.mean(), probability, atol=4 * deviation)
    # What comes instead is any of the other 63, all alike: chi-square of 62 degrees of freedom.
    away = (actual[is_chosen][swap] - numbers[is_chosen][swap]) % 64
    counts = np.bincount(away, minlength=64)[1:]
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 62 + 4 * np.sqrt(2 * 62)


@pytest.mark.every_backend
def test_draws_follow_from_the_seed() -> None:
    def draws(seed: int | None, training: bool) -> list[np.ndarray]:
        keras.utils.set_random_seed(4)
        layer, ones = CorruptPatches(seed=seed), np.ones((2, 4, 4, 8), "float32")
        return [array(layer(ones, training=training)[1]) for _ in range(2)]

    first, other = draws(1, True), draws(2, True)
    np.testing.assert_array_equal(draws(1, True), first)
    np.testing.assert_array_equal(draws(None, True), draws(None, True))
    assert not np.array_equal(first, other)
    assert not np.array_equal(first[0], first[1])
    at_rest = draws(1, False) + draws(2, False)
    for actual in at_rest[1:]:
        np.testing.assert_array_equal(actual, at_rest[0])


def test_predictions_labels_and_errors() -> None:
    """Without any corruption, the logits of the task are its head on the tokens of the model."""
    model = fresh(depth=1, num_classes=4, num_registers=2, filled=False)
    task = MaskedPatchPrediction(model, 0.25, 0.0, 0.0)
    head = task.get_layer("head")
    head.kernel.assign(np.random.default_rng(0).normal(size=head.kernel.shape))
    outputs = task.predict(IMAGES, verbose=0)
    tokens = predict(model.feature_model("encoder_norm"), IMAGES)[:, 3:]
    chosen = array(task.get_layer("corrupt_patches")(np.zeros((8, 4, 4, 32)))[1])
    rows = np.arange(8)[:, None]
    expected = array(head(tokens))[rows, chosen]
    np.testing.assert_allclose(outputs["logits"], expected, atol=2e-5)
    truth = colors_of(IMAGES, (8, 8), 8)[rows, chosen]
    np.testing.assert_array_equal(outputs["colors"], truth)
    # The loss that fit shows, from its definition; labels are not looked at.
    compiled(task)
    loss = -np.take_along_axis(log_softmax(expected, -1), truth[..., None], -1).mean()
    accuracy = (expected.argmax(-1) == truth).mean()
    for figures in (task.evaluate(IMAGES, np.arange(8), verbose=0), task.test_on_batch(IMAGES)):
        np.testing.assert_allclose(figures, [loss, accuracy], rtol=1e-4)
    for changes in (
        {"include_preprocessing": False, "pooling": "gap"},
        {"data_format": "channels_first", "input_shape": (3, 32, 32)},
        {**HYBRID, "patch_size": 2},
    ):
        task, images = small_task(**changes), IMAGES.astype("float32")
        if "include_preprocessing" in changes:
            images = images / 127.5 - 1
        if "data_format" in changes:
            images = images.transpose(0, 3, 1, 2)
        actual = array(task(images)["colors"])
        chosen = array(task.get_layer("corrupt_patches")(np.zeros((8, 4, 4, 32)))[1])
        expected = colors_of(IMAGES, (8, 8), 8)[np.arange(8)[:, None], chosen]
        # 127.5 (x / 127.5) rounds: a mean on the border of two parts may fall to either.
        assert (actual == expected).mean() > (0.98 if images.min() < 0 else 0.999), changes
    for changes, words in (
        ({"input_shape": (None, None, 3)}, r"with_input_shape\(\(224, 224, 3\)\)"),
        ({"token_merging": 2}, "token_merging=0 and patch_dropout=0"),
        ({"patch_dropout": 0.5}, "token_merging=0 and patch_dropout=0"),
        ({**HYBRID, "patch_size": 1, "input_shape": (33, 32, 3)}, "input_shape that they divide"),
    ):
        with pytest.raises(ValueError, match=words):
            small_task(**changes)
    for call, words in (
        (lambda: MaskedPatchPrediction(keras.Sequential()), "Give a VisionTransformer"),
        (lambda: CorruptPatches(mask_ratio=0), r"mask_ratio=0 must be in \(0, 1\]"),
        (lambda: CorruptPatches(0.5, 0.9, 0.2), r"0\.9 and random_patch_probability=0\.2"),
        (lambda: MaskedPatchPrediction(small(), bits=0), "bits=0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.every_backend
def test_fit_trains_mask_token_and_model() -> None:
    """Few colors, by heart: below their entropy, and every layer has changed."""
    images = np.repeat(np.arange(0, 240, 60), 4)[:, None, None, None]
    images = np.broadcast_to(images, (16, 32, 32, 3)).astype("uint8")
    images[:, 16:] //= 2
    task = compiled(small_task())
    before = {v.path: array(v).copy() for v in task.trainable_variables}
    losses = task.fit(images, epochs=20, batch_size=16, verbose=0).history["loss"]
    shares = np.bincount(array(patch_colors(images, (8, 8))).ravel()) / (16 * 16)
    assert losses[-1] < -(shares[shares > 0] * np.log(shares[shares > 0])).sum() < losses[0]
    for variable in task.trainable_variables:
        assert not np.array_equal(array(variable), before[variable.path]), variable.path
    assert "corrupt_patches/mask_token" in before
    assert not [path for path in before if path.startswith(("pooling", "head_"))]
    # What was trained is the model itself; its head did not change.
    np.testing.assert_array_equal(array(task.backbone.get_layer("head").kernel), 0)


def test_transfer_and_file(tmp_path: Path) -> None:
    task = small_task(seed=5, pooling="map")
    model = task.backbone
    for variable in task.trainable_variables:
        variable.assign(np.random.default_rng(0).normal(0, 0.1, variable.shape))
    compiled(task).optimizer.build(task.trainable_variables)
    loaded = reloaded(task, tmp_path)
    assert isinstance(loaded, MaskedPatchPrediction)
    assert loaded.get_config() == task.get_config()
    for name, values in task(IMAGES).items():
        np.testing.assert_array_equal(array(loaded(IMAGES)[name]), array(values))
    tokens = predict(model.feature_model("encoder_norm"), IMAGES)
    for classifier in (model.with_classifier(7), loaded.backbone.with_classifier(7)):
        assert classifier.output_shape == (None, 7)
        actual = predict(classifier.feature_model("encoder_norm"), IMAGES)
        np.testing.assert_allclose(actual, tokens, atol=1e-6)


def test_recipe_in_mixed_precision_with_labels() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    task, recipe = small_task(), recipes.get("masked_patches")
    keras_vit.training.compile_model(task, recipe.scaled(steps=6), 6, jit_compile=JIT)
    labels = np.eye(4, dtype="float32")[np.arange(8) % 4]
    assert np.isfinite(task.fit(IMAGES, labels, epochs=2, verbose=0).history["loss"]).all()
    assert (task.output["logits"].dtype, task.output["logits"].shape) == ("float32", (None, 8, 512))
