"""Decisions that share a random number are as good as those with one each, in PatchDropout too."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import PatchDropout
from keras_vit.layers._dropout import Dropout
from tests.layers.test_layers import numpy, values

pytestmark = pytest.mark.every_backend


def kept(rate: float, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    dropped = numpy(Dropout(rate, seed=seed)(ops.ones(shape), training=True))
    np.testing.assert_allclose(np.unique(dropped), [0, 1 / (1 - rate)], rtol=1e-6)
    return dropped > 0


@pytest.mark.parametrize("rate", [0.03, 0.1, 0.5, 0.9])
def test_as_many_as_the_rate_says_each_for_itself(rate: float) -> None:
    rows, length = 40_000, 16  # of two numbers a row
    found = kept(rate, (rows, length))
    six_sigma = 6 * np.sqrt(rate * (1 - rate) / rows)
    np.testing.assert_allclose(found.mean(0), 1 - rate, atol=six_sigma)
    assert np.abs(np.corrcoef(found.T) - np.eye(length)).max() < 6 / np.sqrt(rows)
    # How many of a row: binomial, so that its variance is the sum of theirs.
    assert abs(found.sum(1).var() / (length * rate * (1 - rate)) - 1) < 0.06


def test_other_draws_at_every_call_and_the_same_of_the_same_seed() -> None:
    layer = Dropout(0.5, seed=3)
    first, second = (numpy(layer(ops.ones((4, 50)), training=True)) for _ in "ab")
    assert (first != second).any()
    np.testing.assert_array_equal(first > 0, kept(0.5, (4, 50), seed=3))
    inputs = np.arange(12.0, dtype="float32").reshape(3, 4)
    # Nothing, all, and nothing outside of training.
    for rate, training, share in ((0.0, True, 1), (1.0, True, 0), (0.5, False, 1)):
        found = numpy(Dropout(rate)(inputs, training=training))
        np.testing.assert_array_equal(found, inputs * share)


def test_any_number_of_images_in_any_precision() -> None:
    inputs = keras.Input((3, 5), dtype="bfloat16")
    model = keras.Model(inputs, Dropout(0.5, dtype="bfloat16")(inputs))
    assert model.output.dtype == "bfloat16"
    assert tuple(model(ops.ones((7, 3, 5), "bfloat16"), training=True).shape) == (7, 3, 5)
    model.compile("sgd", "mse")
    for count in (4, 3):
        model.train_on_batch(np.ones((count, 3, 5)), np.ones((count, 3, 5)))


def numbered(batch: int, length: int, width: int) -> np.ndarray:
    return np.tile(np.arange(length, dtype="float32")[None, :, None], (batch, 1, width))


@pytest.mark.parametrize("prefix", [0, 2])
def test_the_stated_number_of_patches_is_kept_in_order(prefix: int) -> None:
    sizes = [(0.5, 16, 8), (0.5, 15, 7), (0.25, 16, 12), (0.9, 10, 1), (0.99, 16, 1), (0.0, 16, 16)]
    for rate, patches, left in sizes:
        tokens = numbered(4, prefix + patches, 3)
        found = numpy(PatchDropout(rate, prefix, seed=1)(tokens, training=True))
        assert found.shape == (4, prefix + left, 3)
        np.testing.assert_array_equal(found[:, :prefix], tokens[:, :prefix])
        assert (np.diff(found[..., 0], axis=1) > 0).all()
        assert set(found.ravel()) <= set(tokens.ravel())


def test_patches_are_all_kept_in_inference_and_drawn_fairly_and_by_seed_in_training() -> None:
    tokens, layer = values(2, 17, 8), PatchDropout(0.5, 1)
    for arguments in ({}, {"training": False}):
        np.testing.assert_array_equal(numpy(layer(tokens, **arguments)), tokens)
    with pytest.raises(ValueError, match=r"rate=1\.0"):
        PatchDropout(1.0)
    found = numpy(PatchDropout(0.5, 0, seed=0)(numbered(2000, 8, 1), training=True))
    shares = np.bincount(found.astype(int).ravel(), minlength=8) / 2000
    np.testing.assert_allclose(shares, 0.5, atol=0.05)  # every patch as often as another

    def draws(seed: int | None) -> np.ndarray:
        keras.utils.set_random_seed(5)
        layer = PatchDropout(0.5, 0, seed)
        return np.stack([numpy(layer(numbered(2, 64, 1), training=True)) for _ in range(2)])

    first = draws(7)
    assert not (first[0, 0] == first[0, 1]).all()
    assert not (first[0] == first[1]).all()
    np.testing.assert_array_equal(draws(7), first)
    assert not (draws(8) == first).all()
    np.testing.assert_array_equal(draws(None), draws(None))  # by the seed of the program
