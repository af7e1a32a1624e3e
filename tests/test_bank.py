"""The bank of small models gives every test the same model."""

import keras
import numpy as np
import pytest

from tests import bank


@pytest.mark.parametrize("change", ["weights", "names", "frozen", "compiled"])
def test_what_a_test_changes_is_as_before_in_the_next(change: str) -> None:
    model = bank.tiny()
    weights, config = model.get_weights(), model.get_config()
    if change == "weights":
        model.set_weights([w + 1 for w in weights])
    elif change == "names":
        model.class_names = ("a", "b")
    elif change == "frozen":
        model.get_layer("head").trainable = False
    else:
        model.compile("sgd", keras.losses.MeanSquaredError())
    bank.restore()
    again = bank.tiny()
    assert (again.get_config(), again.compiled) == (config, False)
    assert len(again.trainable_weights) == len(weights)
    assert all(map(np.array_equal, again.get_weights(), weights))
    assert (again is model) == (change == "weights")
