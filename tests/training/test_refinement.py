"""What surrounds `fit` in a recipe, and averages of weights against their papers' equations."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_vit import data, evaluation
from keras_vit.models.answers import answers_of
from keras_vit.training import average_weights, model_stock
from keras_vit.training.fitting import fit
from keras_vit.training.recipes import Recipe
from keras_vit.training.refinement import refine
from keras_vit.training.resume import ResumableRun
from keras_vit.training.training_set import hold_out
from tests.bank import TINY, fill, fresh
from tests.training import common
from tests.training.common import assert_equal, refused

RNG = np.random.default_rng(0)
RECIPE = Recipe(source="", model={}, image_size=16, epochs=1, batch_size=8, learning_rate=1e-3)


def splits_of(count: int, classes: int = 3) -> data.Splits:
    images = RNG.integers(0, 256, (count, 16, 16, 3)).astype("uint8")
    return common.splits_of(tuple("abcdefgh"[:classes]), images, np.arange(count) % classes)


def build(seed: int = 0, **options: Any) -> Any:
    model = fresh(**{**TINY, "num_classes": 3, **options}, filled=False)
    fill(model, seed, scale=0.3)
    return model


def test_a_part_of_every_class_is_kept_from_training() -> None:
    splits = splits_of(90)
    rest, part = hold_out(splits, 1 / 3)
    assert (len(rest.train), len(part)) == (60, 30)
    assert np.bincount(part.labels()).tolist() == [10, 10, 10]
    pixels = [split.as_arrays()[0].reshape(len(split), -1) for split in (rest.train, part)]
    both = {row.tobytes() for array in pixels for row in array}
    assert len(both) == 90  # none is in both, and none is lost
    again, other = (hold_out(splits, 1 / 3, seed=seed)[1].as_arrays()[0] for seed in (0, 1))
    np.testing.assert_array_equal(again, part.as_arrays()[0])
    assert (other != part.as_arrays()[0]).any()
    assert hold_out(splits, 0.0) == (splits, None)
    with refused("held_out=0.1 of 30", "at least 20", "or held_out=0"):
        hold_out(splits_of(30), 0.1)
    # Every class keeps an image, whatever the part.
    rest, part = hold_out(splits_of(40), 0.97)
    assert np.bincount(rest.train.labels()).tolist() == [1, 1, 1]


def test_each_step_after_training() -> None:
    model, splits = build(), splits_of(60)
    trained = model.get_weights()
    start = [np.ones_like(weights) for weights in trained]
    start[-2:] = np.zeros_like(trained[-2]), np.zeros_like(trained[-1])
    recipe = replace(RECIPE, tuned_share=0.75, eval_size=24, views="flip")
    refined, facts = refine(model, recipe, start, None)
    assert (facts, refined.input_shape) == ({}, (None, 24, 24, 3))
    assert refined.eval_transform.views == "flip"
    np.testing.assert_array_equal(refined.get_layer("head").get_weights()[0], trained[-2])
    kernel = next(i for i, weights in enumerate(trained) if weights.ndim == 2)
    expected = 0.25 + 0.75 * trained[kernel]
    np.testing.assert_allclose(refined.get_weights()[kernel], expected, atol=1e-6)
    labels, before = evaluation.predict_split(refined, splits.train)
    scaled, facts = refine(refined, RECIPE, None, splits.train)
    assert facts == {"temperature": evaluation.fit_temperature(labels, before), "held_out": 60}
    _, after = evaluation.predict_split(scaled, splits.train)
    answers = [answers_of(refined, scores)[np.arange(60), labels] for scores in (after, before)]
    crossentropy, of_before = (-np.log(chosen).mean() for chosen in answers)
    assert crossentropy < of_before


@pytest.mark.parametrize("mixup", [0.0, 0.2])
def test_labels_are_rows_only_where_mixed(mixup: float, tmp_path: Path, monkeypatch: Any) -> None:
    """Of 21,843 classes, the rows of one batch of 4,096 images are 358 MB."""
    batches = {}

    def capture(self: ResumableRun, model: object, make: object, *args, **options) -> None:
        batches["train"], batches["val"] = make(0), options["validation_data"]
        raise KeyboardInterrupt

    monkeypatch.setattr(ResumableRun, "fit", capture)
    recipe = replace(RECIPE, mixup=mixup)
    with pytest.raises(KeyboardInterrupt):
        fit(build(), recipe, splits_of(60), tmp_path, print_fn=str, monitor=None)
    shapes = {name: dataset.element_spec[1].shape.as_list() for name, dataset in batches.items()}
    assert shapes == {"train": [None, 3] if mixup else [None], "val": [None]}


def test_epochs_of_few_images(tmp_path: Path) -> None:
    """One is singular; 32 images are not validated after each pass."""
    printed: list[str] = []
    options = {"print_fn": printed.append, "monitor": None}
    fit(build(), replace(RECIPE, batch_size=64), splits_of(60), tmp_path / "one", **options)
    assert "1 epoch of 1 step of 60 images" in printed[0]
    part = splits_of(360)
    part = replace(part, splits={"train": part.train.take(range(32)), "val": part.val})
    printed.clear()
    often = replace(RECIPE, epochs=24, batch_size=16)
    history = fit(build(), often, part, tmp_path / "few", **options)
    assert len(history["val_loss"]) == 2  # 24 passes over 32 images, 360 to validate on
    assert "2 epochs of 24 steps of 16 images" in printed[0]


def combined(weight: float, first: Any, other_weight: float, second: Any) -> list[np.ndarray]:
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return [weight * a + other_weight * b for a, b in pairs]


def test_a_soup_is_the_mean_and_model_stock_nearest_to_the_center() -> None:
    models = [build(seed) for seed in range(3)]
    before = [model.get_weights() for model in models]
    soup = average_weights(models)
    assert_equal(soup, [np.mean(parts, axis=0) for parts in zip(*before, strict=True)], atol=1e-6)
    for model, weights in zip(models, before, strict=True):
        assert_equal(model, weights)
    wise = average_weights(models[:2], (0.3, 0.7))  # WiSE-FT
    assert_equal(wise, combined(0.3, models[0], 0.7, models[1]), atol=1e-6)
    # Equation 5 from geometry: where a line to the center is perpendicular to both changes.
    start, first, second = build(0), build(1), build(2)
    origin, changes, rng = start.get_weights(), [], np.random.default_rng(3)
    for tensor in origin:
        # Orthogonal directions and a common one: a known angle.
        a, b, c = (rng.normal(size=tensor.size) for _ in range(3))
        basis, _ = np.linalg.qr(np.stack([a, b, c], 1)) if tensor.size > 2 else (np.eye(3), None)
        changes.append([(basis[:, 2] + basis[:, i]).reshape(tensor.shape) for i in (0, 1)])
    for i, run in enumerate((first, second)):
        run.set_weights([o + c[i] for o, c in zip(origin, changes, strict=True)])
    stock = model_stock(start, [first, second])
    cosine = 0.5  # of (common + one) and (common + other), all of length 1
    ratio = 2 * cosine / (1 + cosine)
    expected = [o + ratio * (x + y) / 2 for o, (x, y) in zip(origin, changes, strict=True)]
    assert_equal(stock, expected, atol=1e-5)
    start, first, second = build(0), build(1), build(2)
    assert_equal(model_stock(start, [first, first]), first, atol=1e-6)
    opposed = build(3)
    opposed.set_weights(combined(2, start, -1, first))
    assert_equal(model_stock(start, [first, opposed]), start, atol=1e-6)
    # A head that starts from zeros is the mean.
    start.get_layer("head").set_weights([np.zeros((16, 3)), np.zeros(3)])
    heads = [m.get_layer("head") for m in (model_stock(start, [first, second]), first, second)]
    assert_equal(heads[0], combined(0.5, heads[1], 0.5, heads[2]), atol=1e-6)


def test_errors_of_averages() -> None:
    wider, headless = build(1, num_classes=4), build(0, num_classes=0)
    for call, *words in (
        (lambda: average_weights([]), "no model"),
        (lambda: average_weights([build(0), wider]), "Model 1", "'head/bias' ((3,) and (4,))"),
        (lambda: average_weights([build(0), build(1)], (0.5, 0.6)), "shares=(0.5, 0.6)", "sum 1"),
        (lambda: average_weights([build(0)], (float("nan"),)), "shares[0]=nan"),
        (lambda: model_stock(build(0), [build(1)]), "two or more", "not 1"),
        (lambda: model_stock(headless, [build(1), build(2)]), "differs", "head/"),
    ):
        with refused(*words):
            call()
