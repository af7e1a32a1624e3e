"""What the tests on several devices and those in several processes share."""

from typing import Any

import keras
import numpy as np


def with_head(model: keras.Model) -> keras.Model:
    """With logits that differ from zero: new heads are zero, and give the blocks no gradient."""
    kernel = model.get_layer("head").kernel
    kernel.assign(np.random.default_rng(2).normal(0, 0.1, kernel.shape))
    return model


def assert_same(one: Any, other: Any, tolerance: float) -> None:
    """Each number of a structure within a tolerance."""
    for value, expected in zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)


def compiled(model: keras.Model, optimizer: Any, **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def assert_same_weights(model: keras.Model, expected: keras.Model, tolerance: float) -> None:
    """Each variable within a tolerance of its largest value, or of 0.1 if that is smaller."""
    worst = 0.0
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        worst = max(worst, np.abs(one - other).max() / max(np.abs(other).max(), 0.1))
    print(f"weights differ by {worst:.1e} of their scale")
    assert worst <= tolerance
