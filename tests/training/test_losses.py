"""Losses against those that the official code gave."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.training.losses import SigmoidCrossentropy

LOSSES = {
    "sigmoid": SigmoidCrossentropy,
    "softmax": lambda **options: keras.losses.CategoricalCrossentropy(from_logits=True, **options),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("labels", ["onehot", "soft", "multi"])
def test_losses_equal_the_official_ones(name: str, labels: str, shared: Path) -> None:
    recorded = np.load(shared / "golden" / "losses" / "ref.npz")
    for reduction, key in (
        (None, f"{name}_xent_{labels}"),
        ("sum_over_batch_size", f"{name}_xent_mean_{labels}"),
    ):
        found = LOSSES[name](reduction=reduction)(recorded[labels], recorded["logits"])
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(found), recorded[key], rtol=1e-5, atol=1e-6
        )


def test_the_sigmoid_loss_under_low_precision_and_large_logits() -> None:
    logits = keras.ops.convert_to_tensor([[90.0, -90.0], [-90.0, 90.0]], "bfloat16")
    loss = SigmoidCrossentropy(reduction=None)(np.eye(2), logits)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(loss), [0, 0], atol=1e-6)
    smooth = SigmoidCrossentropy(label_smoothing=0.2, reduction=None)(np.eye(2), np.zeros((2, 2)))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(smooth), 2 * np.log(2), rtol=1e-6)
    smooth = SigmoidCrossentropy(label_smoothing=0.2)(
        np.array([[1.0, 0.0]]), np.array([[3.0, 3.0]])
    )
    wanted = 2 * np.log1p(np.exp(3)) - 3 * (0.9 + 0.1)
    np.testing.assert_allclose(float(smooth), wanted, rtol=1e-5)


def test_the_loss_comes_back_from_its_configuration() -> None:
    saved = keras.saving.serialize_keras_object(SigmoidCrossentropy(label_smoothing=0.1))
    assert keras.saving.deserialize_keras_object(saved).label_smoothing == 0.1
