"""Decisions that share a random number are as good as those with one each."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers._dropout import Dropout
from tests.backend import numpy

pytestmark = pytest.mark.every_backend


def kept(rate: float, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    values = numpy(Dropout(rate, seed=seed)(ops.ones(shape), training=True))
    np.testing.assert_allclose(np.unique(values), [0, 1 / (1 - rate)], rtol=1e-6)
    return values > 0


@pytest.mark.parametrize("rate", [0.03, 0.1, 0.5, 0.9])
def test_as_many_as_the_rate_says_each_for_itself(rate: float) -> None:
    rows, length = 40_000, 16  # of two numbers a row
    values = kept(rate, (rows, length))
    six_sigma = 6 * np.sqrt(rate * (1 - rate) / rows)
    np.testing.assert_allclose(values.mean(0), 1 - rate, atol=six_sigma)
    assert np.abs(np.corrcoef(values.T) - np.eye(length)).max() < 6 / np.sqrt(rows)
    # How many of a row: binomial, so that its variance is the sum of theirs.
    variance = values.sum(1).var() / (length * rate * (1 - rate))
    assert abs(variance - 1) < 0.06


def test_other_draws_at_every_call_and_the_same_of_the_same_seed() -> None:
    layer = Dropout(0.5, seed=3)
    first, second = (numpy(layer(ops.ones((4, 50)), training=True)) for _ in "ab")
    assert (first != second).any()
    np.testing.assert_array_equal(first > 0, kept(0.5, (4, 50), seed=3))
    inputs = np.arange(12.0, dtype="float32").reshape(3, 4)
    # Nothing, all, and nothing outside of training.
    for rate, training, share in ((0.0, True, 1), (1.0, True, 0), (0.5, False, 1)):
        values = numpy(Dropout(rate)(inputs, training=training))
        np.testing.assert_array_equal(values, inputs * share)


def test_any_number_of_images_in_any_precision() -> None:
    inputs = keras.Input((3, 5), dtype="bfloat16")
    model = keras.Model(inputs, Dropout(0.5, dtype="bfloat16")(inputs))
    assert model.output.dtype == "bfloat16"
    assert tuple(model(ops.ones((7, 3, 5), "bfloat16"), training=True).shape) == (7, 3, 5)
    model.compile("sgd", "mse")
    for count in (4, 3):
        model.train_on_batch(np.ones((count, 3, 5)), np.ones((count, 3, 5)))
