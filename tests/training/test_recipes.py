"""The table of recipes, a model that trains, balance, what surrounds `fit`, averages of weights."""

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import data, evaluation, tasks
from keras_vit.models.answers import answers_of
from keras_vit.tasks.balance import log_priors
from keras_vit.tasks.losses import SigmoidCrossentropy, SoftmaxCrossentropy
from keras_vit.training import average_weights, model_stock
from keras_vit.training.compilation import compile_model, optimizer_of, schedule_of
from keras_vit.training.fitting import fit
from keras_vit.training.optimizers import DecoupledAdam, MomentumSGD
from keras_vit.training.probe_choice import accuracy
from keras_vit.training.recipes import RECIPES, Recipe, bit_hyperrule, get
from keras_vit.training.refinement import refine
from keras_vit.training.resume import ResumableRun, RunMismatchError
from keras_vit.training.training_set import hold_out, hold_out_for_coverage, hold_out_to_choose
from keras_vit_cli.train import run as run_module
from keras_vit_cli.train.build import build
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import recipe_name, recipe_of
from keras_vit_cli.train.run import Run
from tests import bank
from tests.backend import refused, reloaded, warned
from tests.bank import TINY, fill, fresh, pixels, small
from tests.training import common
from tests.training.common import BACKEND, Killed, StopAt, assert_equal, killed

IMAGES, LABELS = pixels(8, 32, 32, 3), np.eye(4, dtype="float32")[np.arange(8) % 4]


@pytest.mark.parametrize("name", RECIPES)
def test_every_row_is_complete(name: str) -> None:
    recipe = get(name)
    assert len(recipe.source) > 20
    assert recipe.hardware
    steps = recipe.total_steps(recipe.examples or 1000)
    assert 0 < recipe.warmup_steps(steps) < steps
    values = [float(schedule_of(recipe, steps)(step)) for step in (0, recipe.warmup_steps(steps))]
    np.testing.assert_allclose(values, [0, recipe.learning_rate], rtol=1e-6)
    optimizer_of(recipe, 0.1)
    json.dumps(asdict(recipe))  # the configuration of a run
    if recipe.model:
        keras_vit._base.errors.check_arguments(keras_vit.VisionTransformer, recipe.model)
    small = recipe.scaled(steps=20, batch_size=16)
    assert small.total_steps(123) == 20
    assert 0 < small.warmup_steps(20) < 20


def test_steps_of_the_sources_scaling_and_sizes() -> None:
    assert get("deit").total_steps(get("deit").examples) == 300 * 1252
    linear, root = get("finetune/cifar10"), get("better_plain_vit")
    half = linear.scaled(batch_size=256)
    assert (half.learning_rate, half.steps, half.warmup) == (0.0015, 20_000, 1000)
    quarter = root.scaled(batch_size=256)
    np.testing.assert_allclose(quarter.learning_rate, 5e-4)
    assert quarter.total_steps(1_281_167) == 90 * 5005
    np.testing.assert_allclose(quarter.warmup / quarter.total_steps(1_281_167), 0.0888, atol=1e-4)
    short = linear.scaled(steps=100)
    assert (short.learning_rate, short.total_steps(50_000), short.warmup) == (0.003, 100, 5)
    # A batch as large as a small data set makes one update per epoch: not all are warm-up.
    recipe = get("finetune_small")
    for total, warmup in ((1, 0), (2, 1), (100, 10)):
        assert recipe.warmup_steps(total) == warmup
        assert float(schedule_of(recipe, total)(warmup)) == pytest.approx(recipe.learning_rate)
    sizes = [(1_800, (224, 224)), (20_000, (96, 96)), (500_000, (95, 95))]
    rows = [bit_hyperrule(*size) for size in sizes]
    assert [row.steps for row in rows] == [500, 10_000, 20_000]
    assert [row.mixup for row in rows] == [0, 0.1, 0.1]
    assert [row.image_size for row in rows] == [480, 480, 128]
    schedule = schedule_of(rows[1], 10_000)
    values = [float(schedule(step)) for step in (250, 500, 2_999, 3_000, 6_000, 9_000)]
    np.testing.assert_allclose(values, [1.5e-3, 3e-3, 3e-3, 3e-4, 3e-5, 3e-6], rtol=1e-5)
    for options, size in (
        ({"recipe": "small_data"}, 64),
        ({"recipe": "small_data", "weights": "w"}, 224),
        ({"recipe": "small_data", "model": "ViT-B/16"}, 224),
        ({"recipe": "finetune_small", "model": "vit_base_patch16_384"}, 384),
        ({"recipe": "finetune", "weights": "w"}, 384),
        ({"recipe": "finetune", "weights": "w", "image_size": 32}, 32),
    ):
        recipe = recipe_of(job(**options))
        assert (recipe.image_size, recipe.eval_size) == (size, 0), options
    few = recipe_of(job(recipe="finetune/flowers", batch_size=4))
    assert few.accumulation == few.scaled(batch_size=4).accumulation == 4
    of_any = replace(get("finetune/flowers"), epochs=5, steps=0)
    assert (of_any.scaled(batch_size=256).warmup, of_any.scaled(steps=900).warmup) == (200, 100)
    refused("accumulation=8.*or accumulation=1", replace, get("finetune/flowers"), batch_size=4)


@pytest.mark.every_backend
def test_a_compiled_recipe_trains_with_all_it_says() -> None:
    model = fresh(num_classes=4, depth=1, filled=False)
    jit_compile = False if BACKEND == "tensorflow" else "auto"
    sizes = {"image_size": 32, "epochs": 0, "steps": 8, "batch_size": 8, "accumulation": 2}
    rates = {"learning_rate": 2e-3, "layer_decay": 0.7, "weight_decay": 1e-3}
    changes = {"decay_follows": "schedule", "loss": "sigmoid", "head_bias": -5.0, "ema": 0.5}
    sam = {"rho": 0.1, "rho_min": 0.05, "alpha": 0.2}
    recipe = Recipe(source="test", model={}, **sizes, **rates, **changes, **sam)
    compile_model(model, recipe, 8, frozen=["patch_embedding/.*"], jit_compile=jit_compile)
    assert set(np.array(model.get_layer("head").bias)) == {-5.0}
    optimizer = model.optimizer
    assert isinstance(optimizer, DecoupledAdam)
    assert (optimizer.schedule_peak, optimizer.weight_decay) == (2e-3, 1e-3)
    assert (optimizer.use_ema, optimizer.gradient_accumulation_steps) == (True, 2)
    frozen = np.array(model.get_layer("patch_embedding").kernel)
    history = model.fit(IMAGES, LABELS, batch_size=4, epochs=8, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    assert "accuracy" in history
    np.testing.assert_array_equal(np.array(model.get_layer("patch_embedding").kernel), frozen)
    groups = zip(model.trainable_variables, optimizer._group_of, strict=True)
    rates = {variable.path: group.learning_rate for variable, group in groups}
    np.testing.assert_allclose(rates["block_0/mlp/dense_0/kernel"], 0.7)
    assert rates["head/bias"] == 1
    np.testing.assert_allclose(rates["class_token/embedding"], 0.7**2)


OUT_OF_RANGE: dict[str, tuple[float, ...]] = {
    "learning_rate": (np.nan, np.inf, 0.0), "label_smoothing": (1.5, np.nan),
    "weight_decay": (-0.1, np.nan), "batch_size": (0, 2.5), "dropout": (1.0,), "ema": (-0.5,),
    "accumulation": (0,), "image_size": (-224,), "clip_norm": (0.0,), "layer_decay": (1.1,),
    "mixup": (-0.2,), "warmup": (-1,), "steps": (-1,), "rho": (np.nan,), "tuned_share": (0.0, 1.5),
    "held_out": (1.0,),
}  # fmt: skip


def test_losses_plain_steps_and_errors() -> None:
    model = fresh(num_classes=4, depth=1, filled=False)
    compile_model(model, get("finetune/flowers"), 500, jit_compile=False)
    assert isinstance(model.optimizer, MomentumSGD)
    assert isinstance(model.loss, SoftmaxCrossentropy)
    assert "train_step" not in vars(model)
    compile_model(model, get("sam/ViT-S/16").scaled(steps=10), 10)
    assert "train_step" in vars(model)
    # A head that has learned keeps its bias.
    model.get_layer("head").bias.assign(np.ones(4))
    compile_model(model, get("augreg").scaled(steps=10), 10)
    assert isinstance(model.loss, SigmoidCrossentropy)
    assert "train_step" not in vars(model)
    assert set(np.array(model.get_layer("head").bias)) == {1.0}
    flowers = get("finetune/flowers")
    refused("'finetune/cifar10'", get, "finetune/cifar1")
    refused(r"recipe\.scaled\(steps=50\)", compile_model, small(), flowers, 50)
    refused("'sigmoid'", replace, get("digits"), loss="hinge")
    refused("epochs=0, steps=0", replace, get("digits"), epochs=0)
    refused("eval_size=8.*image_size=384", replace, get("finetune"), eval_size=8)
    cut = keras_vit.data.Augmentation(cutmix=1.0)
    refused("has cutmix=1.0.*`with_augm", replace, get("digits"), augmentation=cut)
    refused("views='mirror'.*'flip'", replace, get("digits"), views="mirror")
    for name, values in OUT_OF_RANGE.items():
        for value in values:
            refused(f"{name}={value!r} .*(Give|must)", replace, get("digits"), **{name: value})
    for name, value in (("steps", 0), ("batch_size", 1.5)):
        refused(f"{name}={value} .* at least 1", flowers.scaled, **{name: value})
    refused(r"total_steps=2\.5 .* at least 1", compile_model, small(), get("digits"), 2.5)


def job(**options: Any) -> Job:
    return Job("photos", Path("runs"), **options)


def test_a_second_training_keeps_neither_sets_nor_views_of_the_first(tmp_path: Path) -> None:
    model, rows = tiny_vit(), np.tile(np.eye(3), (20, 1))
    task = tasks.Classification(("a", "b", "c"))
    model.task = task.with_coverage(rows.argmax(1), rows, 0.9)
    model.eval_transform = replace(model.eval_transform, views="flip")
    model.save(tmp_path / "model.keras")
    recipe = replace(get("finetune_small"), image_size=model.image_size[0])
    again = build(job(weights=tmp_path / "model.keras"), recipe, task, 3)
    assert (again.is_calibrated, again.eval_transform.views) == (False, None)


RATES = {"dropout": 0.1, "stochastic_depth": 0.2}


def test_a_mixers_weights_are_for_one_size(tmp_path: Path) -> None:
    trained = keras_vit.create("Mixer-S/16", num_classes=5)
    keras_vit.save_weights(trained, tmp_path / "mixer.npz", layout="google")
    of_mixer = job(weights=str(tmp_path / "mixer.npz"))
    recipe = replace(recipe_of(of_mixer), image_size=320)
    mixer = build(of_mixer, recipe, tasks.Classification(size=5), 3)
    refined, _ = refine(mixer, replace(recipe, eval_size=384), None, None)
    assert refined.input_shape == (None, 224, 224, 3)
    with pytest.raises(ValueError, match="token_merging=2 is for the blocks of a Vision"):
        build(replace(of_mixer, token_merging=2), recipe, tasks.Classification(size=5), 3)


def test_auto_follows_the_images_and_rates_the_model() -> None:
    cases = ((8, "w", "finetune_few"), (80, "w", "finetune_small"), (8, None, "from_scratch"))
    for (images, weights, name), recipe in itertools.product(cases, (None, "auto")):
        tiny = "from_scratch_tiny" if weights is None else name
        plain = job(weights=weights, recipe=recipe)
        assert recipe_name(plain, images)[0] == name
        assert recipe_name(plain, images, side=32)[0] == tiny
        assert recipe_name(replace(plain, image_size=32), images)[0] == tiny
        assert recipe_name(replace(plain, recipe="deit"), images) == ("deit", None)
        assert recipe_name(replace(plain, data="digits/half"), images)[0] == "digits"
        for folder in ({"data": "digits/photos"}, {"data": "digits", "labels": "masks"}):
            assert recipe_name(replace(plain, **folder), images)[0] == name
    recipe = replace(get("finetune_small"), image_size=32, **RATES)
    for name, accepted in (("ViT-Ti/16", RATES), ("Mixer-S/16", {"stochastic_depth": 0.2})):
        model = build(job(model=name), recipe, tasks.Classification(size=5), 3)
        config = model.get_config()
        assert {rate: config[rate] for rate in RATES if rate in config} == accepted
        assert model.output_shape == (None, 5)
        assert not np.any(model.get_layer("head").get_weights()[0])


RNG = np.random.default_rng(0)
TINY_RECIPE = Recipe(source="", model={}, image_size=16, epochs=1, batch_size=8, learning_rate=1e-3)


def splits_of(count: int, classes: int = 3) -> data.Splits:
    images = RNG.integers(0, 256, (count, 16, 16, 3)).astype("uint8")
    return common.splits_of(tuple("abcdefgh"[:classes]), images, np.arange(count) % classes)


def tiny_vit(seed: int = 0, **options: Any) -> Any:
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
    assert hold_out(splits, 0.0) == (splits, None)
    refused(["held_out=0.1 of 30", "at least 20", "or held_out=0"], hold_out, splits_of(30), 0.1)
    rest, part = hold_out(splits_of(40), 0.97)
    assert np.bincount(rest.train.labels()).tolist() == [1, 1, 1]


def test_each_step_after_training() -> None:
    model, splits = tiny_vit(), splits_of(60)
    trained = model.get_weights()
    start = [np.ones_like(weights) for weights in trained]
    start[-2:] = np.zeros_like(trained[-2]), np.zeros_like(trained[-1])
    recipe = replace(TINY_RECIPE, tuned_share=0.75, eval_size=24, views="flip")
    refined, facts = refine(model, recipe, start, None)
    assert (facts, refined.input_shape) == ({}, (None, 24, 24, 3))
    assert refined.eval_transform.views == "flip"
    np.testing.assert_array_equal(refined.get_layer("head").get_weights()[0], trained[-2])
    kernel = next(i for i, weights in enumerate(trained) if weights.ndim == 2)
    expected = 0.25 + 0.75 * trained[kernel]
    np.testing.assert_allclose(refined.get_weights()[kernel], expected, atol=1e-6)
    labels, before = evaluation.predict_split(refined, splits.train)
    scaled, facts = refine(refined, TINY_RECIPE, None, splits.train)
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
        raise Killed

    monkeypatch.setattr(ResumableRun, "fit", capture)
    recipe, options = replace(TINY_RECIPE, mixup=mixup), {"print_fn": str, "monitor": None}
    killed(fit, tiny_vit(), recipe, splits_of(60), tmp_path, **options)
    shapes = {name: dataset.element_spec[1].shape.as_list() for name, dataset in batches.items()}
    assert shapes == {"train": [None, 3] if mixup else [None], "val": [None]}


def test_epochs_of_few_images_and_what_a_recipe_freezes(tmp_path: Path) -> None:
    printed: list[str] = []
    options = {"print_fn": printed.append, "monitor": None}
    model, file = tiny_vit(), tmp_path / "one/best.keras"
    recipe = replace(TINY_RECIPE, batch_size=64, frozen=True, views="flip", held_out=0.1)
    fit(model, recipe, splits_of(60), tmp_path / "one", print_fn=printed.append)
    assert "leaves out the recipe's views, held_out" in printed[0]
    assert "1 epoch of 1 step of 60 images" in printed[1]
    counts = [len(each.trainable_variables) for each in (model, keras_vit.load(file), tiny_vit())]
    assert counts == [counts[-1]] * 3
    printed.clear()
    parts = replace(TINY_RECIPE, epochs=1, steps=0, batch_size=15, accumulation=8)
    fit(tiny_vit(), parts, splits_of(60), tmp_path / "parts", **options)
    assert "1 epoch of 30 steps of 2 images" in printed[0]
    numbers = tiny_vit(num_classes=1, task=tasks.Regression(("age",)))
    ages = pixels(20, 16, 16, 3).astype("uint8"), np.arange(20.0)
    fit(numbers, TINY_RECIPE, ages, tmp_path / "ages", print_fn=str, monitor="val_mae")
    refused("splits has two pairs", fit, numbers, TINY_RECIPE, (ages, ages), tmp_path / "two")
    part = splits_of(360)
    part = replace(part, splits={"train": part.train.take(range(32)), "val": part.val})
    printed.clear()
    often = replace(TINY_RECIPE, epochs=24, batch_size=16)
    history = fit(tiny_vit(), often, part, tmp_path / "few", **options)
    assert len(history["val_loss"]) == 2  # 24 passes over 32 images, 360 to validate on
    assert "2 epochs of 24 steps of 16 images" in printed[0]


def combined(weight: float, first: Any, other_weight: float, second: Any) -> list[np.ndarray]:
    pairs = zip(first.get_weights(), second.get_weights(), strict=True)
    return [weight * a + other_weight * b for a, b in pairs]


def test_a_soup_is_the_mean_and_model_stock_nearest_to_the_center() -> None:
    models = [tiny_vit(seed) for seed in range(3)]
    before = [model.get_weights() for model in models]
    soup = average_weights(models)
    assert_equal(soup, [np.mean(parts, axis=0) for parts in zip(*before, strict=True)], atol=1e-6)
    for model, weights in zip(models, before, strict=True):
        assert_equal(model, weights)
    wise = average_weights(models[:2], (0.3, 0.7))  # WiSE-FT
    assert_equal(wise, combined(0.3, models[0], 0.7, models[1]), atol=1e-6)
    # Equation 5 from geometry: where a line to the center is perpendicular to both changes.
    start, first, second = tiny_vit(0), tiny_vit(1), tiny_vit(2)
    origin, changes, rng = start.get_weights(), [], np.random.default_rng(3)
    for tensor in origin:
        # Orthogonal directions and a common one: a known angle.
        a, b, c = (rng.normal(size=tensor.size) for _ in range(3))
        basis, _ = np.linalg.qr(np.stack([a, b, c], 1)) if tensor.size > 2 else (np.eye(3), None)
        changes.append([(basis[:, 2] + basis[:, i]).reshape(tensor.shape) for i in (0, 1)])
    for i, run in enumerate((first, second)):
        run.set_weights([o + c[i] for o, c in zip(origin, changes, strict=True)])
    cosine = 0.5  # of (common + one) and (common + other), all of length 1
    ratio = 2 * cosine / (1 + cosine)
    expected = [o + ratio * (x + y) / 2 for o, (x, y) in zip(origin, changes, strict=True)]
    assert_equal(model_stock(start, [first, second]), expected, atol=1e-5)
    start, first, second = tiny_vit(0), tiny_vit(1), tiny_vit(2)
    assert_equal(model_stock(start, [first, first]), first, atol=1e-6)
    opposed = tiny_vit(3)
    opposed.set_weights(combined(2, start, -1, first))
    assert_equal(model_stock(start, [first, opposed]), start, atol=1e-6)
    start.get_layer("head").set_weights([np.zeros((16, 3)), np.zeros(3)])
    heads = [m.get_layer("head") for m in (model_stock(start, [first, second]), first, second)]
    assert_equal(heads[0], combined(0.5, heads[1], 0.5, heads[2]), atol=1e-6)


BANDS = ((3000.0,) * 3, (500.0,) * 3)


def test_errors_of_averages() -> None:
    wider, headless = tiny_vit(1, num_classes=4), tiny_vit(0, num_classes=0)
    one, other = tiny_vit(0), tiny_vit(1)
    for call, *words in (
        (lambda: average_weights([]), "no model"),
        (lambda: average_weights([one, wider]), "Model 2", "'head/bias' ((3,) and (4,))"),
        (lambda: average_weights([one, other], (0.5, 0.6)), "shares=(0.5, 0.6)", "sum 1"),
        (lambda: average_weights([one], (float("nan"),)), "shares[0]=nan"),
        (lambda: average_weights([one, tiny_vit(normalization=BANDS)]), "the same channels"),
        (lambda: model_stock(one, [other]), "two or more", "not 1"),
        (lambda: model_stock(headless, [one, other]), "differs", "head/"),
    ):
        refused(words, call)
    # Numbers by the scale of the first, labels without thresholds, and nothing of another task.
    numbers = [tasks.Regression(size=1, offset=(o,), scale=(s,)) for o, s in ((50, 10), (48, 12))]
    scaled, x = [tiny_vit(task=task, num_classes=1) for task in numbers], IMAGES[:, :16, :16]
    for soup in (average_weights(scaled), model_stock(scaled[0].with_classifier(1), scaled)):
        found, *rows = (answers_of(m, bank.outputs(m, x)) for m in (soup, *scaled))
        np.testing.assert_allclose(found, np.mean(rows, axis=0), rtol=1e-5)
    labels = [tiny_vit(task=tasks.Multilabel(size=3, thresholds=(0.3, 0.5, t))) for t in (0.4, 0.6)]
    assert warned("from 0.5 on", average_weights, labels).task == tasks.Multilabel(size=3)
    scaled[1].task = replace(numbers[1], units=("kg",))
    refused("Model 2 answers .* in kg, and the first", average_weights, scaled)
    refused("Model 2 answers multilabel of 3, and", average_weights, [one, labels[0]])
    with pytest.warns(UserWarning, match=r"do not descend from the same .* is -?0\.0"):
        average_weights([one, other])  # of other random weights


BALANCED = Recipe(source="", model={}, image_size=8, epochs=2, batch_size=8, learning_rate=3e-3)
COUNTS = [40, 8, 2]
GRAY = {"patch_size": 4, "hidden_dim": 8, "depth": 1, "num_heads": 2, "input_shape": (8, 8, 1)}


def unbalanced(counts: list[int] = COUNTS) -> data.Splits:
    random, parts = np.random.default_rng(0), []
    for of_class in (counts, [20] * 3):
        labels = random.permutation(np.repeat(range(3), of_class))
        images = 60 * labels[:, None, None, None] + random.integers(0, 100, (len(labels), 8, 8, 1))
        parts.append((images.astype("uint8"), labels))
    return common.splits_of(tuple("abc"), *parts[0], parts[1])


def gray_vit(task: tasks.Task | None = None) -> Any:
    keras.utils.set_random_seed(0)
    classes = 3 if task is None else task.outputs
    return keras_vit.VisionTransformer(**GRAY, num_classes=classes, task=task)


def balanced(folder: Path, balance: str, splits: data.Splits | None = None, **options: Any) -> Any:
    model, recipe = gray_vit(), replace(BALANCED, balance=balance)
    fit(model, recipe, splits or unbalanced(), folder, print_fn=lambda line: None, **options)
    return model


@pytest.mark.parametrize("balance", ["sampling", pytest.param("logits", marks=pytest.mark.slow)])
def test_a_resumed_run_ends_with_the_same_weights(balance: str, tmp_path: Path) -> None:
    whole, cut = balanced(tmp_path / "whole", balance), tmp_path / "cut"
    killed(balanced, cut, balance, checkpoint_seconds=0, callbacks=[StopAt(10)])
    # A run with other classes, or another way, is not this one.
    if balance == "logits":  # with "sampling", the loss is the plain one
        np.testing.assert_allclose(whole.loss.log_priors, log_priors(COUNTS))
        refused("loss", balanced, cut, balance, unbalanced([38, 9, 3]), error=RunMismatchError)
    refused("", balanced, cut, "none", error=RunMismatchError)
    for options in ({"seed": 1}, {"augment": "digits"}, {"augment": keras.layers.RandomFlip()}):
        refused("recipe", balanced, cut, balance, error=RunMismatchError, **options)
    assert_equal(balanced(cut, balance, checkpoint_seconds=0), whole)


def test_refusals_and_a_saved_loss(tmp_path: Path) -> None:
    refused("targets=splits", compile_model, gray_vit(), replace(BALANCED, balance="weights"), 9)
    recipe = replace(BALANCED, balance="logits")
    with pytest.raises(ValueError, match="give 'weights', or leave it out"):
        compile_model(gray_vit(tasks.Multilabel(size=3)), recipe, 9, targets=np.zeros((4, 3)))
    refused("balance='weight'", replace, BALANCED, balance="weight")
    model = gray_vit()
    compile_model(model, recipe, 9, targets=[0, 0, 1, 2])
    loaded = reloaded(model, tmp_path)
    np.testing.assert_allclose(loaded.loss.log_priors, np.log([0.5, 0.25, 0.25]))
    images = np.zeros((2, 8, 8, 1), "float32")
    np.testing.assert_allclose(model.predict(images), loaded.predict(images), atol=1e-6)


def test_several_labels_start_at_the_mean_of_the_weighted_loss(tmp_path: Path) -> None:
    """Where present labels weigh as much as absent ones, that is a probability of one half."""
    task, labels = tasks.Multilabel(("a", "b")), np.zeros((100, 2), "float32")
    labels[:50, 0], labels[:2, 1] = 1, 1
    splits = common.splits_of(task, np.zeros((100, 8, 8, 1), np.uint8), labels)
    model, recipe = gray_vit(task), replace(BALANCED, balance="weights", learning_rate=1e-9)
    fit(model, recipe.scaled(steps=2), splits, tmp_path, print_fn=lambda line: None)
    # 98 absent ones are 93.4 effective ones, and one more of each side is counted.
    bias = [0, np.log(3 / 99) + np.log((1 - 0.999**98) / (1 - 0.999**2))]
    np.testing.assert_allclose(model.get_layer("head").bias, bias, atol=1e-5)


def test_a_probe_and_its_choice_are_balanced() -> None:
    split, model = unbalanced().train, gray_vit()
    labels, scores = evaluation.predict_split(model, split)
    metrics = pytest.importorskip("sklearn.metrics")
    expected = metrics.balanced_accuracy_score(labels, scores.argmax(1))
    assert accuracy(model, split, replace(BALANCED, balance="weights")) == pytest.approx(expected)
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
    splits = unbalanced([60, 45, 30])
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
    labels = unbalanced([60, 45, 30]).train.labels()
    splits = grouped(np.where(labels == 2, 0, 1 + np.arange(135) // 5))
    for seed in range(5):
        rest, _ = hold_out_to_choose(splits, seed)
        assert set(rest.train.labels()) == {0, 1, 2}
    assert set(hold_out(splits, 0.3)[0].train.labels()) == {0, 1, 2}
    refused("all training images of c: give another seed", hold_out, splits, 0.7)
    refused("all training images of a: give", hold_out_for_coverage, grouped(labels), 0.983)


def test_the_command_counts_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def printed(splits: data.Splits, **options: Any) -> list[str]:
        lines: list[str] = []
        monkeypatch.setattr(run_module, "load_splits", lambda job: splits)
        Run(Job("digits", tmp_path / "run", recipe="digits", **options), lines.append).load()
        return [line for line in lines if line.startswith(("training images", "note: rare"))]

    counts = "training images: a 40, b 8, c 2: 20 times as many of the largest as of the smallest"
    note = "note: rare ones are predicted seldom; --balance (weights, logits, sampling) may help"
    assert printed(unbalanced()) == [counts, note]
    assert printed(unbalanced(), balance="logits") == [counts]
    assert printed(unbalanced([10, 9, 8]), balance="logits") == []
    assert Job("d", tmp_path, balance="logits").identity != Job("d", tmp_path).identity
    ages = tasks.Regression(("age",)), np.zeros((4, 8, 8, 1), np.uint8), np.arange(4.0)
    refused("'logits' is not for regression", printed, common.splits_of(*ages), balance="logits")


CASES = {
    "sides": (tasks.Classification(("turn left", "turn right")), "without mirror images: they"),
    "others": (tasks.Classification(("cat", "dog")), ""),
    "places": (tasks.Regression(("eye_x", "eye_y")), "without mirror images and random crops"),
    "an angle": (tasks.Regression(("steering angle", "speed")), "show another 'steering angle'"),
}


@pytest.mark.parametrize("case", CASES)
def test_images_are_not_mirrored_where_names_say_so(case: str, tmp_path: Path) -> None:
    task, expected = CASES[case]
    images = np.random.default_rng(0).integers(0, 255, (8, 16, 16, 3), np.uint8)
    labels = np.arange(16).reshape(8, 2) * 1.0 if task.are_numbers else np.arange(8) % 2
    recipe = keras_vit.recipes.get("finetune_small").scaled(steps=1, batch_size=4)
    lines: list[str] = []
    model = bank.fresh(task=task.fitted(labels), input_shape=(16, 16, 3))
    keras_vit.fit(model, recipe, (images, labels), tmp_path, print_fn=lines.append)
    assert any("without mirror" in line for line in lines) == bool(expected)
    assert expected in " ".join(lines)
    # Numbers that a crop would move are trained on whole images, and predicted from them.
    built = build(Job("photos", tmp_path, model="ViT-Ti/16"), recipe, task, 3)
    assert model.eval_transform.is_whole == task.are_numbers == built.eval_transform.is_whole
