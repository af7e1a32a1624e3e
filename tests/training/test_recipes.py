"""The table of recipes: complete rows, scaling, a model that trains, and what a job makes of it."""

import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit.tasks import Classification
from keras_vit.tasks.losses import SigmoidCrossentropy, SoftmaxCrossentropy
from keras_vit.training.compilation import compile_model, optimizer_of, schedule_of
from keras_vit.training.optimizers import DecoupledAdam, MomentumSGD
from keras_vit.training.recipes import RECIPES, Recipe, bit_hyperrule, get
from keras_vit.training.refinement import refine
from keras_vit_cli.train.build import build
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import recipe_name, recipe_of
from tests.bank import fresh, pixels, small
from tests.training.common import BACKEND

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
    # BiT-HyperRule goes by the size of the data.
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
    for call, words in (
        (lambda: get("finetune/cifar1"), "'finetune/cifar10'"),
        (lambda: compile_model(small(), flowers, 50), r"recipe\.scaled\(steps=50\)"),
        (lambda: replace(get("digits"), loss="hinge"), "'sigmoid'"),
        (lambda: replace(get("digits"), epochs=0), "epochs=0, steps=0"),
        (lambda: replace(get("finetune"), eval_size=8), "eval_size=8.*image_size=384"),
        (lambda: replace(get("digits"), views="mirror"), "views='mirror'.*'flip'"),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    for name, values in OUT_OF_RANGE.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name}={value!r} .*(Give|must be)"):
                replace(get("finetune_small"), **{name: value})
    for name, value in (("steps", 0), ("batch_size", 1.5)):
        with pytest.raises(ValueError, match=f"{name}={value} .* at least 1"):
            flowers.scaled(**{name: value})
    with pytest.raises(ValueError, match=r"total_steps=2\.5 .* at least 1"):
        compile_model(small(), get("digits"), 2.5)


def job(**options: Any) -> Job:
    return Job("photos", Path("runs"), **options)


RATES = {"dropout": 0.1, "stochastic_depth": 0.2}


def test_a_mixers_weights_are_for_one_size(tmp_path: Path) -> None:
    trained = keras_vit.create("Mixer-S/16", num_classes=5)
    keras_vit.save_weights(trained, tmp_path / "mixer.npz", layout="google")
    of_mixer = job(weights=str(tmp_path / "mixer.npz"))
    recipe = replace(recipe_of(of_mixer), image_size=320)
    mixer = build(of_mixer, recipe, Classification(size=5), 3)
    refined, _ = refine(mixer, replace(recipe, eval_size=384), None, None)
    assert refined.input_shape == (None, 224, 224, 3)
    with pytest.raises(ValueError, match="token_merging=2 is for the blocks of a Vision"):
        build(replace(of_mixer, token_merging=2), recipe, Classification(size=5), 3)


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
    recipe = replace(get("finetune_small"), image_size=32, **RATES)
    for name, accepted in (("ViT-Ti/16", RATES), ("Mixer-S/16", {"stochastic_depth": 0.2})):
        model = build(job(model=name), recipe, Classification(size=5), 3)
        config = model.get_config()
        assert {rate: config[rate] for rate in RATES if rate in config} == accepted
        assert model.output_shape == (None, 5)
        assert not np.any(model.get_layer("head").get_weights()[0])
