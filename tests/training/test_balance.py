"""`balance` of a recipe: in `fit`, resumed, in a probe, on the command line; groups held out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation
from keras_vit.tasks import Multilabel, Regression, Task
from keras_vit.tasks.balance import log_priors
from keras_vit.training.compilation import compile_model
from keras_vit.training.fitting import fit
from keras_vit.training.probe_choice import balanced_accuracy
from keras_vit.training.recipes import Recipe
from keras_vit.training.resume import RunMismatchError
from keras_vit.training.training_set import hold_out, hold_out_to_choose
from keras_vit_cli.train import run as run_module
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import Run
from tests.backend import reloaded
from tests.training import common
from tests.training.common import StopAt, assert_equal

RECIPE = Recipe(source="", model={}, image_size=8, epochs=2, batch_size=8, learning_rate=3e-3)
COUNTS = [40, 8, 2]
SIZES = {"patch_size": 4, "hidden_dim": 8, "depth": 1, "num_heads": 2, "input_shape": (8, 8, 1)}


def splits_of(counts: list[int] = COUNTS) -> data.Splits:
    random, parts = np.random.default_rng(0), []
    for of_class in (counts, [20] * 3):
        labels = random.permutation(np.repeat(range(3), of_class))
        images = 60 * labels[:, None, None, None] + random.integers(0, 100, (len(labels), 8, 8, 1))
        parts.append((images.astype("uint8"), labels))
    return common.splits_of(tuple("abc"), *parts[0], parts[1])


def build(task: Task | None = None) -> Any:
    keras.utils.set_random_seed(0)
    classes = 3 if task is None else task.outputs
    return keras_vit.VisionTransformer(**SIZES, num_classes=classes, task=task)


def train(folder: Path, balance: str, splits: data.Splits | None = None, **options: Any) -> Any:
    model, recipe = build(), replace(RECIPE, balance=balance)
    fit(model, recipe, splits or splits_of(), folder, print_fn=lambda line: None, **options)
    return model


@pytest.mark.parametrize("balance", ["sampling", pytest.param("logits", marks=pytest.mark.slow)])
def test_a_resumed_run_ends_with_the_same_weights(balance: str, tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", balance)
    options = {"checkpoint_seconds": 0, "callbacks": [StopAt(10, KeyboardInterrupt)]}
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", balance, **options)
    # A run with other classes, or another way, is not this one.
    if balance == "logits":  # with "sampling", the loss is the plain one
        np.testing.assert_allclose(whole.loss.log_priors, log_priors(COUNTS))
        with pytest.raises(RunMismatchError, match="loss"):
            train(tmp_path / "cut", balance, splits_of([38, 9, 3]))
    with pytest.raises(RunMismatchError):
        train(tmp_path / "cut", "none")
    assert_equal(train(tmp_path / "cut", balance, checkpoint_seconds=0), whole)


def test_refusals_and_a_saved_loss(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"targets=splits\.train\.labels\(\)"):
        compile_model(build(), replace(RECIPE, balance="weights"), 9)
    recipe = replace(RECIPE, balance="logits")
    with pytest.raises(ValueError, match="give 'weights', or leave it out"):
        compile_model(build(Multilabel(size=3)), recipe, 9, targets=np.zeros((4, 3)))
    with pytest.raises(ValueError, match="balance='weight'"):
        replace(RECIPE, balance="weight")
    model = build()
    compile_model(model, recipe, 9, targets=[0, 0, 1, 2])
    loaded = reloaded(model, tmp_path)
    np.testing.assert_allclose(loaded.loss.log_priors, np.log([0.5, 0.25, 0.25]))
    images = np.zeros((2, 8, 8, 1), "float32")
    np.testing.assert_allclose(model.predict(images), loaded.predict(images), atol=1e-6)


def test_several_labels_start_at_the_mean_of_the_weighted_loss(tmp_path: Path) -> None:
    """Where present labels weigh as much as absent ones, that is a probability of one half."""
    task, labels = Multilabel(("a", "b")), np.zeros((100, 2), "float32")
    labels[:50, 0], labels[:2, 1] = 1, 1
    splits = common.splits_of(task, np.zeros((100, 8, 8, 1), np.uint8), labels)
    model, recipe = build(task), replace(RECIPE, balance="weights", learning_rate=1e-9)
    fit(model, recipe.scaled(steps=2), splits, tmp_path, print_fn=lambda line: None)
    # 98 absent ones are 93.4 effective ones, and one more of each side is counted.
    bias = [0, np.log(3 / 99) + np.log((1 - 0.999**98) / (1 - 0.999**2))]
    np.testing.assert_allclose(model.get_layer("head").bias, bias, atol=1e-5)


def test_a_probe_and_its_choice_are_balanced() -> None:
    split, model = splits_of().train, build()
    labels, scores = evaluation.predict_split(model, split)
    metrics = pytest.importorskip("sklearn.metrics")
    expected = metrics.balanced_accuracy_score(labels, scores.argmax(1))
    assert balanced_accuracy(model, split, 8) == pytest.approx(expected)
    linear_model = pytest.importorskip("sklearn.linear_model")
    random, ways = np.random.default_rng(0), ("weights", "logits", "sampling")
    y, test_y = np.repeat([0, 1], [200, 20]), np.repeat([0, 1], 500)
    x, test_x = (random.normal(size=(len(of), 3)) + 0.8 * of[:, None] for of in (y, test_y))
    known = x, y, test_x, test_y
    probes = {way: evaluation.linear_probe(*known, balance=way) for way in ("none", *ways)}
    for way in ways:  # the test features are of classes alike
        assert probes[way].accuracy > probes["none"].accuracy + 0.05
    np.testing.assert_allclose(probes["logits"].kernel, probes["none"].kernel)
    shift = probes["none"].bias - probes["logits"].bias
    np.testing.assert_allclose(shift, np.log([200 / 220, 20 / 220]), rtol=1e-4)
    probe = probes["sampling"]
    scale, mean = x.std(axis=0), x.mean(axis=0)
    theirs = linear_model.LogisticRegression(C=probe.strength, class_weight="balanced")
    theirs.fit((x - mean) / scale, y)
    ours = (test_x @ probe.kernel + probe.bias).argmax(1)
    np.testing.assert_array_equal(theirs.predict((test_x - mean) / scale), ours)


def grouped(groups: np.ndarray) -> data.Splits:
    splits = splits_of([60, 45, 30])
    train: Any = splits.train.take(range(135))
    train.groups = groups
    train._per_example = (*train._per_example, "groups")
    return replace(splits, splits={**splits.splits, "train": train})


def test_groups_are_held_out_as_a_whole() -> None:
    splits = grouped(np.random.default_rng(1).integers(0, 27, 135))
    kept = [hold_out(splits, 0.2), hold_out(splits, 0.2, seed=1), hold_out_to_choose(splits)]
    for number, (rest, part) in enumerate(kept):
        assert not set(rest.train.groups) & set(part.groups)
        assert len(rest.train) + len(part) == 135
        assert 15 <= len(part) <= 40
        assert number == 2 or np.bincount(part.labels(), minlength=3).min() >= 2
    # A class of one group stays in training.
    labels = splits_of([60, 45, 30]).train.labels()
    splits = grouped(np.where(labels == 2, 0, 1 + np.arange(135) // 5))
    for seed in range(5):
        rest, _ = hold_out_to_choose(splits, seed)
        assert set(rest.train.labels()) == {0, 1, 2}
    assert set(hold_out(splits, 0.3)[0].train.labels()) == {0, 1, 2}
    with pytest.raises(ValueError, match="all training images of c: give another seed"):
        hold_out(splits, 0.7)  # where most of every class is to be held out


def test_the_command_counts_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(splits: data.Splits, **options: Any) -> list[str]:
        lines: list[str] = []
        monkeypatch.setattr(run_module, "load_splits", lambda job: splits)
        Run(Job("digits", tmp_path / "run", recipe="digits", **options), lines.append).load()
        return [line for line in lines if line.startswith(("training images", "note: rare"))]

    counts = "training images: a 40, b 8, c 2: 20 times as many of the largest as of the smallest"
    note = "note: rare ones are predicted seldom; --balance (weights, logits, sampling) may help"
    assert printed(splits_of()) == [counts, note]
    assert printed(splits_of(), balance="logits") == [counts]
    assert printed(splits_of([10, 9, 8]), balance="logits") == []
    assert Job("d", tmp_path, balance="logits").identity != Job("d", tmp_path).identity
    ages = Regression(("age",)), np.zeros((4, 8, 8, 1), np.uint8), np.arange(4.0)
    with pytest.raises(ValueError, match="balance='logits' is not for regression targets"):
        printed(common.splits_of(*ages), balance="logits")
