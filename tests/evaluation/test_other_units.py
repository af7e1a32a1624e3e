"""Numbers in another unit than those that a model was trained on."""

import numpy as np
import pytest

import keras_vit
from keras_vit import data, tasks
from tests import bank

GRAMS = np.array([[900.0], [1100.0], [1300.0], [1000.0]])


def test_another_unit_is_warned_of() -> None:
    model = bank.fresh(task=tasks.Regression(("weight",)).fitted(GRAMS))
    images = bank.pixels(4, *model.input_shape[1:])
    keras_vit.evaluate(model, (images, GRAMS + 100), print_fn=len)
    kilograms = data.ArraySplit("all", tasks.Regression(("weight",)), images, GRAMS / 1000)
    with pytest.warns(UserWarning, match="weight of most of these images.*another unit"):
        keras_vit.evaluate(model, kilograms, print_fn=len)
