"""What the tests on several devices and those in several processes share."""

from typing import Any

import keras
import numpy as np


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
