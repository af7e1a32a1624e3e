"""Pre-training without labels: masked patches, and every image a class of its own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from scipy.special import log_softmax

import keras_vit
from keras_vit import data, recipes
from keras_vit.training import compile_model, pretrain, pretraining, unit_slices, visreg
from keras_vit.training import visreg_loss as loss_of_views
from keras_vit.training.masked_patches import CorruptPatches, MaskedPatchPrediction, patch_colors
from tests.backend import refused, reloaded
from tests.bank import fresh, pixels, small
from tests.bank import outputs as predict
from tests.tasks.test_losses import value_and_gradient
from tests.training.common import JIT, StopAt, array, assert_equal, killed

IMAGES = pixels(8, 32, 32, 3)
HYBRID: dict[str, Any] = {"resnet": (), "resnet_width": 32}


def small_task(seed: int | None = 0, **changes: Any) -> MaskedPatchPrediction:
    model = fresh(**{"num_classes": 4, "depth": 1, **changes}, filled=False)
    return MaskedPatchPrediction(model, seed=seed)


def compiled_task(task: MaskedPatchPrediction) -> MaskedPatchPrediction:
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
def test_half_is_corrupted_80_10_10_by_draws_of_the_seed() -> None:
    layer = CorruptPatches(seed=3)
    # Patches that hold their number, from 1, and that of their image.
    numbers = np.broadcast_to(np.arange(1, 65), (500, 64))
    grid = np.stack([numbers, np.arange(500)[:, None] + 0 * numbers], -1).astype("float32")
    patches, chosen = map(array, layer(grid.reshape(500, 8, 8, 2), training=True))
    patches = patches.reshape(500, 64, 2)
    is_mask = (patches == array(layer.mask_token)).all(-1)
    np.testing.assert_array_equal(patches[~is_mask][:, 1], grid[~is_mask][:, 1])
    actual = np.where(is_mask, 0, patches[:, :, 0]).astype(int)
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

    def draws(seed: int) -> list[np.ndarray]:
        layer, ones = CorruptPatches(seed=seed), np.ones((2, 4, 4, 8), "float32")
        return [array(layer(ones, training=training)[1]) for training in (True, True, False)]

    first, other = draws(1), draws(2)
    np.testing.assert_array_equal(draws(1), first)
    assert not np.array_equal(first[:2], other[:2])
    assert not np.array_equal(first[0], first[1])
    np.testing.assert_array_equal(first[2], other[2])  # at rest


def test_predictions_and_labels() -> None:
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
    compiled_task(task)
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


@pytest.mark.every_backend
def test_fit_trains_mask_token_and_model() -> None:
    """Few colors, by heart: below their entropy, and every layer has changed."""
    images = np.repeat(np.arange(0, 240, 60), 4)[:, None, None, None]
    images = np.broadcast_to(images, (16, 32, 32, 3)).astype("uint8")
    images[:, 16:] //= 2
    task = compiled_task(small_task())
    before = {v.path: array(v).copy() for v in task.trainable_variables}
    losses = task.fit(images, epochs=20, batch_size=16, verbose=0).history["loss"]
    shares = np.bincount(array(patch_colors(images, (8, 8))).ravel()) / (16 * 16)
    assert losses[-1] < -(shares[shares > 0] * np.log(shares[shares > 0])).sum() < losses[0]
    for variable in task.trainable_variables:
        assert not np.array_equal(array(variable), before[variable.path]), variable.path
    assert "corrupt_patches/mask_token" in before
    assert not [path for path in before if path.startswith(("pooling", "head_"))]
    np.testing.assert_array_equal(array(task.backbone.get_layer("head").kernel), 0)


def test_transfer_and_file(tmp_path: Path) -> None:
    task = small_task(seed=5, pooling="map")
    model = task.backbone
    for variable in task.trainable_variables:
        variable.assign(np.random.default_rng(0).normal(0, 0.1, variable.shape))
    compiled_task(task).optimizer.build(task.trainable_variables)
    loaded = reloaded(task, tmp_path)
    assert loaded.get_config() == task.get_config()
    for name, values in task(IMAGES).items():
        np.testing.assert_array_equal(array(loaded(IMAGES)[name]), array(values))
    tokens = predict(model.feature_model("encoder_norm"), IMAGES)
    for classifier in (model.with_classifier(7), loaded.backbone.with_classifier(7)):
        actual = predict(classifier.feature_model("encoder_norm"), IMAGES)
        np.testing.assert_allclose(actual, tokens, atol=1e-6)


def test_recipe_in_mixed_precision_with_labels() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    task, recipe = small_task(), recipes.get("masked_patches")
    keras_vit.training.compile_model(task, recipe.scaled(steps=6), 6, jit_compile=JIT)
    labels = np.eye(4, dtype="float32")[np.arange(8) % 4]
    assert np.isfinite(task.fit(IMAGES, labels, epochs=2, verbose=0).history["loss"]).all()
    assert (task.output["logits"].dtype, task.output["logits"].shape) == ("float32", (None, 8, 512))


PHOTOS = pixels(12, 16, 16, 3).astype("uint8")
DIET = replace(recipes.get("diet_cp"), image_size=16, epochs=6, batch_size=4, learning_rate=0.01)
QUIET: dict[str, Any] = {"progress": False, "print_fn": lambda line: None}


def deep(**changes: Any) -> Any:
    return fresh(**{"depth": 3, "hidden_dim": 16, "input_shape": (16, 16, 3), **changes})


@pytest.mark.every_backend
def test_the_loss_is_that_of_the_papers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross-entropy with 0.3 of the label spread, of products with features of length 1."""
    torch = pytest.importorskip("torch")
    networks = []
    monkeypatch.setattr(
        pretraining, "fit", lambda network, *_, **__: networks.append(network) or {"loss": [0.0]}
    )
    model = deep(num_classes=7)
    pretrain(model, PHOTOS, "nowhere", recipe=DIET, blocks=None)
    network = networks[0]
    compile_model(network, DIET, 10)
    x, labels = PHOTOS.astype("float32"), np.arange(12)
    ours = network.evaluate(x, labels, batch_size=12, verbose=0, return_dict=True)["loss"]
    features = torch.tensor(array(model.feature_model("pre_logits")(x)))
    kernel = torch.tensor(array(network.get_layer("head").kernel))
    bound = model.hidden_dim**-0.5  # of torch.nn.Linear
    assert 0.8 * bound < float(kernel.abs().max()) <= bound
    logits = torch.nn.functional.normalize(features.requires_grad_(), dim=1) @ kernel
    theirs = torch.nn.functional.cross_entropy(logits, torch.tensor(labels), label_smoothing=0.3)
    np.testing.assert_allclose(ours, theirs.item(), rtol=1e-5)
    theirs.backward()
    unit, head = (network.get_layer(name) for name in ("unit_length", "head"))
    _, gradient = value_and_gradient(
        lambda x: network.loss(labels, head(unit(x))), features.detach().numpy()
    )
    np.testing.assert_allclose(gradient, features.grad.numpy(), rtol=1e-4, atol=1e-7)


RECORDED = json.loads((Path(__file__).parents[1] / "golden/visreg.json").read_text())


@pytest.mark.every_backend
@pytest.mark.parametrize(("peer", "epsilon"), [("lightly", 1e-4), ("stable-pretraining", 1e-6)])
def test_visreg_is_that_of_its_peers(peer: str, epsilon: float) -> None:
    z, slices = (np.array(RECORDED[name], "float32") for name in ("projections", "directions"))
    slices /= np.linalg.norm(slices, axis=0)
    loss, gradient = value_and_gradient(
        lambda x: loss_of_views(x, slices, epsilon=epsilon, **RECORDED["arguments"]), z
    )
    np.testing.assert_allclose(loss, RECORDED[peer]["loss"], rtol=2e-6)
    np.testing.assert_allclose(gradient.ravel(), RECORDED[peer]["gradient"], rtol=1e-4, atol=1e-6)
    # Where all images are alike, there is a way out, and nothing that is not finite.
    collapsed = value_and_gradient(lambda x: loss_of_views(x, slices), np.ones_like(z))
    assert all(np.isfinite(values).all() for values in collapsed)


@pytest.mark.every_backend
def test_slices_follow_from_a_seed_and_a_step() -> None:
    seeds = keras.random.SeedGenerator(3), keras.random.SeedGenerator(3)
    first, second = (array(unit_slices(32, 500, seeds[0])) for _ in range(2))
    state = array(seeds[1].state)
    seeds[1].state.assign(np.array([state[0], 1], state.dtype))
    np.testing.assert_array_equal(array(unit_slices(32, 500, seeds[1])), second)
    assert np.abs((first * second).sum(0)).mean() < 0.2
    # Of length 1, and none is preferred: along each axis, the mean square of 500 is 1/32.
    np.testing.assert_allclose((first**2).sum(0), 1, rtol=1e-5)
    np.testing.assert_allclose((first**2).mean(1), 1 / 32, rtol=4 * np.sqrt(2 / 500))


@pytest.mark.every_backend
def test_a_killed_visreg_ends_with_the_same_weights(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(visreg, "_WIDTHS", (8, 16, 16, 8))
    monkeypatch.setattr(visreg, "SLICES", 32)
    recipe = replace(recipes.get("visreg"), image_size=16, epochs=4, batch_size=5)
    options = {"recipe": recipe, "method": "visreg", "blocks": None, "views": 3, **QUIET}
    first = array(deep().weights[0])

    def run(folder: str, **more: Any) -> tuple[Any, Any]:
        model = deep()
        return model, pretrain(model, PHOTOS, tmp_path / folder, **{**options, **more})

    whole, history = run("whole")
    assert {"loss", "val_loss"} <= set(history)
    assert "val_accuracy" not in history
    assert (array(whole.weights[0]) != first).any()
    killed(run, "part", callbacks=[StopAt(7)], checkpoint_seconds=0)
    resumed, again = run("part", callbacks=[StopAt(100)], checkpoint_seconds=0)
    assert_equal(resumed, whole)
    assert again["loss"] == history["loss"]
    refused("views was 3, is 2", run, "part", views=2)


def test_the_last_blocks_learn_to_recognize_images(tmp_path: Path) -> None:
    model = deep(num_classes=7)
    model.get_layer("patch_embedding").trainable = False
    before = {v.path: array(v).copy() for v in model.weights}
    history = pretrain(model, PHOTOS, tmp_path, recipe=DIET, blocks=1, **QUIET)
    changed = {v.path.split("/")[0] for v in model.weights if (array(v) != before[v.path]).any()}
    assert changed == {"block_2", "encoder_norm"}  # and its own head is as it was
    assert model.seen_images.counts == {"trained on": len(PHOTOS)}
    assert {layer.name for layer in model.layers if not layer.trainable} == {"patch_embedding"}
    # The head alone warms up, in the first tenth; then the rate falls to 0.
    rates = history["learning_rate"]
    assert len(rates) == 7
    assert max(rates) == max(rates[:2]) <= 0.01
    assert rates[1:] == sorted(rates[1:], reverse=True)
    assert history["val_loss"][-1] < history["val_loss"][0]
    once = replace(DIET, epochs=1)
    pretrain(model, PHOTOS, tmp_path / "whole", recipe=once, blocks=None, **QUIET)
    changed = {v.path.split("/")[0] for v in model.weights if (array(v) != before[v.path]).any()}
    assert changed >= {"patch_embedding", "block_0", "block_1", "block_2"}
    assert [path.name for path in (tmp_path / "whole").iterdir()] == ["all"]
    digits: Any = data.load("digits").train
    numbered = digits.as_instances().take([5, 3])
    assert (numbered.labels().tolist(), numbered.num_classes) == ([5, 3], len(digits))


def pretrained(model: Any = None, images: Any = PHOTOS, **options: Any) -> Any:
    return pretrain(model or deep(), images, "nowhere", recipe=DIET, **QUIET, **options)


Z = np.zeros((2, 3, 4), "float32")
ODD = {**HYBRID, "patch_size": 1, "input_shape": (33, 32, 3)}
REFUSED: list[tuple[Any, list[str]]] = [
    (lambda: small_task(input_shape=(None, None, 3)), ["with_input_shape((224, 224, 3))"]),
    (lambda: small_task(token_merging=2), ["token_merging=0 and patch_dropout=0"]),
    (lambda: small_task(patch_dropout=0.5), ["token_merging=0 and patch_dropout=0"]),
    (lambda: small_task(**ODD), ["input_shape that they divide"]),
    (lambda: small_task(normalization=((9e3,) * 3, (1e3,) * 3)), ["bands in a range of their own"]),
    (lambda: MaskedPatchPrediction(keras.Sequential()), ["Give a VisionTransformer"]),
    (lambda: CorruptPatches(mask_ratio=0), ["mask_ratio=0 must be in (0, 1]"]),
    (lambda: CorruptPatches(0.5, 0.9, 0.2), ["0.9 and random_patch_probability=0.2"]),
    (lambda: MaskedPatchPrediction(small(), bits=0), ["bits=0"]),
    (lambda: pretrained(blocks=4), ["has 3 blocks", "blocks=4", "at most as many"]),
    (lambda: pretrained(blocks=0), ["blocks=0"]),
    (lambda: pretrained(images=PHOTOS[:1]), ["1 images to pre-train on"]),
    (lambda: pretrained(images="photos"), ["images=str", "keras_vit.data.load"]),
    (lambda: pretrained(deep(pooling=None, num_classes=0)), ["not one vector"]),
    (lambda: pretrained(method="dino"), ["method='dino'", "'diet', 'visreg'"]),
    (lambda: pretrained(method="visreg", views=1), ["views=1 must be 2 or more"]),
    (lambda: loss_of_views(Z, Z[0]), ["(2, 3, 4)", "(3, 4)", "(size, slices)"]),
    (lambda: loss_of_views(Z, Z[0].T, weight=1.5), ["weight=1.5"]),
    (lambda: loss_of_views(Z, Z[0].T, num_global=3), ["num_global=3", "1 to the 2 views"]),
    (lambda: loss_of_views(Z, Z[0].T, epsilon=0), ["epsilon=0"]),
]


@pytest.mark.parametrize(("make", "words"), REFUSED)
def test_what_does_not_fit_is_refused(make: Any, words: list[str]) -> None:
    refused(words, make)
