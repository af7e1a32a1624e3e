"""PatchDropout keeps the stated number of patches, in order, and nothing else happens."""

import keras
import numpy as np
import pytest

from keras_vit import layers
from tests.layers.test_layers import numpy, values

pytestmark = pytest.mark.every_backend


def numbered(batch: int, length: int, width: int) -> np.ndarray:
    """Every token says where it stands."""
    return np.tile(np.arange(length, dtype="float32")[None, :, None], (batch, 1, width))


@pytest.mark.parametrize("prefix", [0, 2])
def test_it_keeps_the_stated_number_of_patches_in_order(prefix: int) -> None:
    sizes = [(0.5, 16, 8), (0.5, 15, 7), (0.25, 16, 12), (0.9, 10, 1), (0.99, 16, 1), (0.0, 16, 16)]
    for rate, patches, kept in sizes:
        tokens = numbered(4, prefix + patches, 3)
        found = numpy(layers.PatchDropout(rate, prefix, seed=1)(tokens, training=True))
        assert found.shape == (4, prefix + kept, 3)
        np.testing.assert_array_equal(found[:, :prefix], tokens[:, :prefix])
        assert (np.diff(found[..., 0], axis=1) > 0).all()
        assert set(found.ravel()) <= set(tokens.ravel())


def test_it_is_the_identity_in_inference_and_fair_in_training() -> None:
    tokens, layer = values(2, 17, 8), layers.PatchDropout(0.5, 1)
    for arguments in ({}, {"training": False}):
        np.testing.assert_array_equal(numpy(layer(tokens, **arguments)), tokens)
    with pytest.raises(ValueError, match=r"rate=1\.0"):
        layers.PatchDropout(1.0)
    # Every patch is kept as often as another.
    found = numpy(layers.PatchDropout(0.5, 0, seed=0)(numbered(2000, 8, 1), training=True))
    shares = np.bincount(found.astype(int).ravel(), minlength=8) / 2000
    np.testing.assert_allclose(shares, 0.5, atol=0.05)


def test_draws_differ_by_example_and_step_and_repeat_by_seed() -> None:
    tokens = numbered(2, 64, 1)

    def draws(seed: int | None) -> np.ndarray:
        keras.utils.set_random_seed(5)
        layer = layers.PatchDropout(0.5, 0, seed)
        return np.stack([numpy(layer(tokens, training=True)) for _ in range(2)])

    first = draws(7)
    assert not (first[0, 0] == first[0, 1]).all()
    assert not (first[0] == first[1]).all()
    np.testing.assert_array_equal(draws(7), first)
    assert not (draws(8) == first).all()
    np.testing.assert_array_equal(draws(None), draws(None))  # by the seed of the program
