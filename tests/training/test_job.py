"""What `keras-vit train` makes of its arguments."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_vit
from keras_vit.tasks import Classification
from keras_vit.training.refinement import refine
from keras_vit_cli.train.build import build
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.job_recipe import recipe_name, recipe_of


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("ViT-Ti/16", {"dropout", "stochastic_depth"}), ("Mixer-S/16", {"stochastic_depth"})],
)
def test_a_recipes_rates_go_to_models_that_have_them(name: str, accepted: set[str]) -> None:
    rates = {"dropout": 0.1, "stochastic_depth": 0.2}
    recipe = replace(keras_vit.recipes.get("finetune_small"), image_size=32, **rates)
    model = build(Job("digits", Path("runs"), model=name), recipe, Classification(size=5), 3)
    config = model.get_config()
    assert {rate: config[rate] for rate in rates if rate in config} == {
        rate: rates[rate] for rate in accepted
    }
    assert model.output_shape == (None, 5)
    assert not np.any(model.get_layer("head").get_weights()[0])


@pytest.mark.parametrize(
    ("options", "size", "eval_size"),
    [
        ({"recipe": "small_data"}, 64, 0),
        ({"recipe": "small_data", "weights": "w"}, 224, 0),
        ({"recipe": "small_data", "model": "ViT-B/16"}, 224, 0),
        ({"recipe": "finetune_small", "weights": "w"}, 224, 0),
        ({"recipe": "finetune_small", "model": "vit_base_patch16_384"}, 384, 0),
        ({"recipe": "finetune", "weights": "w"}, 384, 0),
        ({"recipe": "finetune", "weights": "w", "image_size": 32}, 32, 0),
        ({"recipe": "finetune", "model": "vit_base_patch16_224"}, 224, 0),
    ],
)
def test_the_size_of_the_images(options: dict[str, Any], size: int, eval_size: int) -> None:
    recipe = recipe_of(Job("photos", Path("runs"), **options))
    assert (recipe.image_size, recipe.eval_size) == (size, eval_size)


@pytest.mark.parametrize("model", [None, "Mixer-S/16"])
def test_a_mixers_weights_are_for_one_size(model: str | None, tmp_path: Path) -> None:
    trained = keras_vit.create("Mixer-S/16", num_classes=5)
    keras_vit.save_weights(trained, tmp_path / "mixer.npz", layout="google")
    job = Job("photos", Path("runs"), weights=str(tmp_path / "mixer.npz"), model=model)
    recipe = replace(recipe_of(job), image_size=320)
    mixer = build(job, recipe, Classification(size=5), 3)
    refined, _ = refine(mixer, replace(recipe, eval_size=384), None, None)
    assert refined.input_shape == (None, 224, 224, 3)


@pytest.mark.parametrize(
    ("images_per_class", "weights", "name"),
    [(8, "w", "finetune_few"), (80, "w", "finetune_small"), (8, None, "from_scratch")],
)
def test_auto_follows_the_images_per_class(
    images_per_class: int, weights: str | None, name: str
) -> None:
    for recipe in (None, "auto"):
        job = Job("photos", Path("runs"), weights=weights, recipe=recipe)
        chosen, reason = recipe_name(job, images_per_class)
        assert chosen == name
        assert reason
        tiny = "from_scratch_tiny" if weights is None else name
        assert recipe_name(job, images_per_class, side=32)[0] == tiny
        assert recipe_name(replace(job, image_size=32), images_per_class)[0] == tiny
    assert recipe_name(replace(job, recipe="deit"), images_per_class) == ("deit", None)
    assert recipe_name(replace(job, data="digits/half"), images_per_class)[0] == "digits"
