"""Losses against those that the official code gave, timm's, and finite differences."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit.tasks import TASKS
from keras_vit.tasks.losses import (
    AsymmetricLoss,
    BinaryCrossentropy,
    CumulativeCrossentropy,
    GradeError,
    QuantileLoss,
    SigmoidCrossentropy,
    SoftmaxCrossentropy,
    UnitError,
    ZLPRLoss,
)

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


# Recorded with timm 1.0.31: BinaryCrossEntropy(smoothing=0), AsymmetricLossMultiLabel, ZlprLoss,
# and with torch 2.13 huber_loss: the loss, and its gradient by the logits.
LOGITS = np.array(
    [[0.5, -1.25, 3.0, -4.0], [-0.1, 0.0, -2.75, 1.5], [6.0, -7.0, 2.0, -0.5]], "float32"
)
HARD = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 0, 0]], "float32")
SOFT = np.array([[0.75, 0, 0.25, 1], [0, 0.5, 0.1, 0.9], [1, 0.05, 0, 0.4]], "float32")
GRADES = np.array([1, 4, 0])  # for timm, rows of whether the grade is above each
RECORDED = {
    "binary, hard": (BinaryCrossentropy(), HARD, 0.9998382925987244,
        [[-3.1461719e-02, 1.8558344e-02, 7.9381175e-02, -8.1834480e-02],
         [3.9585065e-02, -4.1666668e-02, 5.0072209e-03, -1.5202130e-02],
         [-2.0604829e-04, 7.5920929e-05, 7.3399752e-02, 3.1461723e-02]]),
    "binary, soft": (BinaryCrossentropy(), SOFT, 1.0290050506591797,
        [[-0.0106284, 0.0185583, 0.0585478, -0.0818345],
         [0.0395851, 0.0, -0.0033261, -0.0068688],
         [-0.000206, -0.0040907, 0.0733998, -0.0018716]]),
    "asymmetric, hard": (AsymmetricLoss(), HARD, 2.3075950145721436,
        [[-8.4648937e-02, 2.8743435e-04, 2.0571250e-01, -3.4510750e-01],
         [1.8845581e-02, -1.4109561e-01, 9.8026720e-10, -2.1106390e-02],
         [-4.0732448e-06, 0.0000000e+00, 2.4116328e-01, 5.7098917e-03]]),
    "asymmetric, soft": (AsymmetricLoss(), SOFT, 1.892975926399231,
        [[-3.1462748e-02, 2.8743435e-04, 5.1934447e-02, -3.4510750e-01],
         [1.8845581e-02, -1.1780411e-03, 3.1851923e-05, -1.6279280e-02],
         [-4.0732448e-06, -1.6653657e-07, 2.4116328e-01, 5.0628763e-03]]),
    "asymmetric, no clip": (AsymmetricLoss(2, 0, 0), HARD, 3.3437728881835938,
        [[-1.2584689e-01, 1.0156283e-02, 3.7558332e-01, -3.2733792e-01],
         [8.6618274e-02, -1.6666667e-01, 2.1250258e-04, -6.0808521e-02],
         [-8.2419324e-04, 7.5596540e-10, 3.5890457e-01, 4.5979012e-02]]),
    "asymmetric, smooth": (AsymmetricLoss(label_smoothing=0.2), HARD, 1.7297333478927612,
        [[-6.0164470e-02, 1.2436219e-03, 1.1938871e-01, -2.7490848e-01],
         [2.0062951e-02, -1.0203306e-01, 3.1851923e-05, -1.6279280e-02],
         [-8.6364453e-05, -6.7788874e-06, 1.4535810e-01, 8.3943587e-03]]),
    "zlpr, hard": (ZLPRLoss(), HARD, 3.5889060497283936,
        [[-3.5971531e-03, 4.4685313e-03, 3.1326815e-01, -3.2380539e-01],
         [1.5319881e-01, -1.4993873e-01, 1.0823681e-02, -3.3455849e-02],
         [-8.2420767e-04, 3.3786549e-05, 2.7377525e-01, 2.2472842e-02]]),
    "cumulative": (CumulativeCrossentropy(), GRADES, 5.616020679473877,
        [[-1.2584688e-01, 7.4233375e-02, 3.1752470e-01, 5.9954035e-03],
         [-1.7499308e-01, -1.6666667e-01, -3.1330445e-01, -6.0808521e-02],
         [3.3250913e-01, 3.0368372e-04, 2.9359901e-01, 1.2584689e-01]]),
    "huber": (TASKS["regression"](size=4).loss("huber", delta=1.5), SOFT, 2.6460416316986084,
        [[-0.0208333, -0.1041667, 0.125, -0.125],
         [-0.0083333, -0.0416667, -0.125, 0.05],
         [0.125, -0.125, 0.125, -0.075]]),
}  # fmt: skip


def value_and_gradient(
    function: Callable[[Any], Any], x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A scalar function of a tensor, and its gradient."""
    backend = keras.backend.backend()
    tensor = keras.ops.convert_to_tensor(x)
    if backend == "jax":
        import jax

        value, gradient = jax.jit(jax.value_and_grad(function))(tensor)
    elif backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(tensor)
            value = function(tensor)
        gradient = tape.gradient(value, tensor)
    else:
        tensor.requires_grad_()
        value = function(tensor)
        value.backward()
        gradient = tensor.grad
    return keras.ops.convert_to_numpy(value), keras.ops.convert_to_numpy(gradient)


@pytest.mark.parametrize("name", RECORDED)
def test_values_and_gradients_are_those_of_timm(name: str) -> None:
    loss, labels, value, gradient = RECORDED[name]
    actual, by_logits = value_and_gradient(lambda logits: loss(labels, logits), LOGITS)
    np.testing.assert_allclose(actual, value, rtol=2e-6)
    np.testing.assert_allclose(by_logits, gradient, rtol=2e-5, atol=2e-7)


EVERY_LOSS = [
    (kind, name, options)
    for kind, task in TASKS.items()
    for name in task.losses
    for options in ({}, {"gamma_positive": 0.5, "gamma_negative": 0.0, "clip": 0.1})
    if not options or name == "asymmetric"
] + [("regression", "quantile", {"quantile": 0.9})]


def targets_of(kind: str) -> np.ndarray:
    return {"classification": np.array([3, 0, 1]), "ordinal": GRADES}.get(kind, SOFT)


@pytest.mark.parametrize(("kind", "name", "options"), EVERY_LOSS)
def test_gradients_are_those_of_finite_differences(kind: str, name: str, options: dict) -> None:
    """In float32, of steps that no kink lies in."""
    task = TASKS[kind](size=4 + (kind == "ordinal"))
    loss, targets = task.loss(name, **options), task.check_targets(targets_of(kind))
    logits = LOGITS + 0.01
    _, gradient = value_and_gradient(lambda x: loss(targets, x), logits)
    step, differences = 2e-3, np.zeros_like(logits, "float64")
    for at in np.ndindex(logits.shape):
        sides = []
        for sign in (1, -1):
            moved = logits.copy()
            moved[at] += sign * step
            sides.append(float(loss(targets, moved)))
        differences[at] = (sides[0] - sides[1]) / (2 * step)
    np.testing.assert_allclose(gradient, differences, rtol=5e-3, atol=5e-4)


@pytest.mark.parametrize(("kind", "name", "options"), EVERY_LOSS)
def test_extreme_logits(kind: str, name: str, options: dict) -> None:
    task = TASKS[kind](size=4 + (kind == "ordinal"))
    loss, targets = task.loss(name, **options), task.check_targets(targets_of(kind))
    for scale in (0.0, 50.0, 1e4):
        value, gradient = value_and_gradient(lambda x: loss(targets, x), scale * LOGITS)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("kind", "name", "options"), EVERY_LOSS)
def test_every_loss_comes_back(kind: str, name: str, options: dict) -> None:
    loss = TASKS[kind](size=4).loss(name, **options)
    loaded = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert loaded.get_config() == loss.get_config()
    targets, logits = targets_of(kind), LOGITS[:, : 3 if kind == "ordinal" else 4]
    assert float(loaded(targets, logits)) == float(loss(targets, logits))


def test_the_quantile_loss_is_least_at_the_quantile() -> None:
    from sklearn.metrics import mean_pinball_loss

    rng = np.random.default_rng(0)
    targets, outputs = rng.normal(size=(2, 50, 1)).astype("float32")
    for q in (0.1, 0.5, 0.9):
        expected = mean_pinball_loss(targets, outputs, alpha=q)
        np.testing.assert_allclose(float(QuantileLoss(q)(targets, outputs)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AsymmetricLoss(clip=1.0), "clip=1.0"),
        (lambda: AsymmetricLoss(gamma_negative=-1), "gamma_negative=-1"),
        (lambda: QuantileLoss(1.0), "quantile=1.0"),
        (lambda: BinaryCrossentropy(label_smoothing=-0.1), "label_smoothing=-0.1"),
        (lambda: UnitError(0.0), "scale=0.0"),
    ],
)
def test_options_out_of_range(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_metrics() -> None:
    rng = np.random.default_rng(0)
    targets, outputs = rng.normal(size=(2, 20, 2)).astype("float32")
    weights = rng.random(20).astype("float32")
    for metric in (UnitError(3.0, 1), GradeError()):
        y = targets if isinstance(metric, UnitError) else rng.integers(0, 3, (20, 1))
        metric.update_state(y[:5], outputs[:5], weights[:5])
        metric.update_state(y[5:], outputs[5:], weights[5:])
        if isinstance(metric, UnitError):
            errors = 3 * np.abs(targets - outputs)[:, 1]
        else:
            errors = np.abs(y[:, 0] - (outputs > 0).sum(axis=1))
        expected = np.average(errors, weights=weights)
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)
        again = type(metric).from_config(metric.get_config())
        assert again.get_config() == metric.get_config()
