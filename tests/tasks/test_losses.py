"""Losses against those that the official code gave."""

from pathlib import Path

import keras
import numpy as np
import pytest

from keras_vit.tasks.losses import SigmoidCrossentropy, SoftmaxCrossentropy

LOSSES = {
    "sigmoid": SigmoidCrossentropy,
    "softmax": SoftmaxCrossentropy,
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("labels", ["onehot", "soft", "multi"])
def test_losses_equal_the_official_ones(name: str, labels: str, shared: Path) -> None:
    recorded = np.load(shared / "golden" / "losses" / "ref.npz")
    for reduction, key in (
        (None, f"{name}_xent_{labels}"),
        ("sum_over_batch_size", f"{name}_xent_mean_{labels}"),
    ):
        actual = LOSSES[name](reduction=reduction)(recorded[labels], recorded["logits"])
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(actual), recorded[key], rtol=1e-5, atol=1e-6
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
    expected = 2 * np.log1p(np.exp(3)) - 3 * (0.9 + 0.1)
    np.testing.assert_allclose(float(smooth), expected, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_integer_labels_are_one_hot_rows(name: str, label_smoothing: float) -> None:
    logits = np.random.default_rng(0).normal(size=(6, 300)).astype("float32")
    integers = np.array([0, 299, 257, 1, 2, 258])  # bfloat16 does not have 257 and more
    loss = LOSSES[name](label_smoothing=label_smoothing, reduction=None)
    expected = np.asarray(loss(np.eye(300, dtype="float32")[integers], logits))
    for labels in (integers, integers[:, None], integers.astype("uint16")):
        np.testing.assert_array_equal(np.asarray(loss(labels, logits)), expected)


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_comes_back_from_its_configuration(name: str) -> None:
    saved = keras.saving.serialize_keras_object(LOSSES[name](label_smoothing=0.1))
    loaded = keras.saving.deserialize_keras_object(saved)
    assert (type(loaded), loaded.label_smoothing) == (LOSSES[name], 0.1)
    assert loaded.from_logits
    with pytest.raises(ValueError, match=r"label_smoothing=1\.5"):
        LOSSES[name](label_smoothing=1.5)
