"""What `keras-vit train` makes of its arguments."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import keras_vit
from keras_vit.training.job import Job, build


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("ViT-Ti/16", {"dropout", "stochastic_depth"}), ("Mixer-S/16", {"stochastic_depth"})],
)
def test_a_recipes_rates_go_to_models_that_have_them(name: str, accepted: set[str]) -> None:
    rates = {"dropout": 0.1, "stochastic_depth": 0.2}
    recipe = replace(keras_vit.recipes.get("finetune_small"), image_size=32, **rates)
    model = build(Job("digits", Path("runs"), model=name), recipe, 5, 3)
    config = model.get_config()
    assert {rate: config[rate] for rate in rates if rate in config} == {
        rate: rates[rate] for rate in accepted
    }
    assert model.output_shape == (None, 5)
    assert not np.any(model.get_layer("head").get_weights()[0])
