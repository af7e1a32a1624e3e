"""Losses against the official code's, timm's and finite differences; metrics against scores."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from sklearn.metrics import mean_pinball_loss

from keras_vit.tasks import TASKS, get, losses
from tests.backend import rows

# Except that of queries: tests/tasks/test_query_losses.py has it.
NAMED = [(kind, name, {}) for kind in TASKS for name in TASKS[kind].losses if name != "queries"]
EVERY_LOSS = [
    *NAMED,
    ("multilabel", "asymmetric", {"gamma_positive": 0.5, "gamma_negative": 0.0, "clip": 0.1}),
    ("regression", "quantile", {"quantile": 0.9}),
    ("segmentation", "pixel_crossentropy", {"dice": 1.0}),
    ("depth", "silog", {"balance": 1.0}),
    ("relative_depth", "affine_invariant", {"gradients": 0.1}),
    ("classification", "softmax", {"label_smoothing": 0.1}),
    ("classification", "sigmoid", {"label_smoothing": 0.1}),
]
LOSSES = {"sigmoid": losses.SigmoidCrossentropy, "softmax": losses.SoftmaxCrossentropy}


@pytest.mark.every_backend
@pytest.mark.parametrize("name", LOSSES)
def test_losses_equal_the_official_ones(name: str, shared: Path) -> None:
    recorded = np.load(shared / "golden" / "losses" / "ref.npz")
    for labels in ("onehot", "soft", "multi"):
        for reduction, part in ((None, ""), ("sum_over_batch_size", "mean_")):
            actual = LOSSES[name](reduction=reduction)(recorded[labels], recorded["logits"])
            actual, expected = np.asarray(actual), recorded[f"{name}_xent_{part}{labels}"]
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, err_msg=labels)


def test_values_of_the_sigmoid_and_the_quantile_loss() -> None:
    # Under low precision and large logits.
    logits = keras.ops.convert_to_tensor([[90.0, -90.0], [-90.0, 90.0]], "bfloat16")
    loss = losses.SigmoidCrossentropy(reduction=None)(np.eye(2), logits)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(loss), [0, 0], atol=1e-6)
    smooth = losses.SigmoidCrossentropy(0.2)(np.array([[1.0, 0.0]]), np.array([[3.0, 3.0]]))
    np.testing.assert_allclose(float(smooth), 2 * np.log1p(np.exp(3)) - 3, rtol=1e-5)
    # The quantile loss is least at the quantile, as scikit-learn's.
    targets, outputs = np.random.default_rng(0).normal(size=(2, 50, 1)).astype("float32")
    for q in (0.1, 0.5, 0.9):
        expected = mean_pinball_loss(targets, outputs, alpha=q)
        found = losses.QuantileLoss(q)(targets, outputs)
        np.testing.assert_allclose(float(found), expected, rtol=1e-6)


@pytest.mark.every_backend
def test_integer_labels_are_one_hot_rows() -> None:
    logits = np.random.default_rng(0).normal(size=(6, 300)).astype("float32")
    integers = np.array([0, 299, 257, 1, 2, 258])  # bfloat16 does not have 257 and more
    for kind, label_smoothing in itertools.product(LOSSES.values(), (0.0, 0.1)):
        loss = kind(label_smoothing=label_smoothing, reduction=None)
        expected = np.asarray(loss(np.eye(300, dtype="float32")[integers], logits))
        for labels in (integers, integers[:, None], integers.astype("uint16")):
            np.testing.assert_array_equal(np.asarray(loss(labels, logits)), expected)


# `golden/task_losses.json` is of timm 1.0.31: BinaryCrossEntropy(smoothing=0),
# AsymmetricLossMultiLabel, ZlprLoss, and of torch 2.13 huber_loss: the loss, and its gradient by
# the logits.
GOLDEN = json.loads((Path(__file__).parents[1] / "golden/task_losses.json").read_text())
ROWS = [[0.5, -1.25, 3.0, -4.0], [-0.1, 0.0, -2.75, 1.5], [6.0, -7.0, 2.0, -0.5]]
LOGITS = np.array(ROWS, "float32")
HARD = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [1, 0, 0, 0]], "float32")
SOFT = np.array([[0.75, 0, 0.25, 1], [0, 0.5, 0.1, 0.9], [1, 0.05, 0, 0.4]], "float32")
GRADES = np.array([1, 4, 0])  # for timm, rows of whether the grade is above each
RECORDED = {
    "binary, hard": (losses.BinaryCrossentropy(), HARD),
    "binary, soft": (losses.BinaryCrossentropy(), SOFT),
    "asymmetric, hard": (losses.AsymmetricLoss(), HARD),
    "asymmetric, soft": (losses.AsymmetricLoss(), SOFT),
    "asymmetric, no clip": (losses.AsymmetricLoss(2, 0, 0), HARD),
    "asymmetric, smooth": (losses.AsymmetricLoss(label_smoothing=0.2), HARD),
    "zlpr, hard": (losses.ZLPRLoss(), HARD),
    "cumulative": (losses.CumulativeCrossentropy(), GRADES),
    "huber": (TASKS["regression"](size=4).loss("huber", delta=1.5), SOFT),
}
ONE_PER_LOSS = ("binary, soft", "asymmetric, smooth", "zlpr, hard", "cumulative", "huber")


def value_and_gradient(function: Callable[[Any], Any], x: np.ndarray) -> tuple:
    """A scalar function of a tensor, and its gradient."""
    tensor = keras.ops.convert_to_tensor(x)
    if keras.backend.backend() == "jax":
        import jax

        value, gradient = jax.jit(jax.value_and_grad(function))(tensor)
    elif keras.backend.backend() == "tensorflow":
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


def restore(loss: keras.losses.Loss) -> Any:
    return keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))


def of_logits(loss: keras.losses.Loss, targets: Any, logits: np.ndarray) -> tuple:
    return value_and_gradient(lambda x: loss(targets, x), logits)


@pytest.mark.parametrize("name", rows(RECORDED, ONE_PER_LOSS))
def test_values_and_gradients_are_those_of_timm(name: str) -> None:
    actual, by_logits = of_logits(*RECORDED[name], LOGITS)
    np.testing.assert_allclose(actual, GOLDEN[name]["loss"], rtol=2e-6)
    np.testing.assert_allclose(by_logits, GOLDEN[name]["gradient"], rtol=2e-5, atol=2e-7)


@pytest.mark.every_backend
@pytest.mark.parametrize("kind", TASKS)
def test_gradients_are_those_of_finite_differences(kind: str) -> None:
    """In float32, of steps that no kink lies in; they are finite for extreme logits, too."""
    task = TASKS[kind](size=min(4 + (kind == "ordinal"), TASKS[kind].most))
    logits, targets = {
        "classification": (LOGITS, np.array([3, 0, 1])),
        "ordinal": (LOGITS, GRADES),
        "segmentation": (LOGITS[:, None, None], np.array([[[3]], [[0]], [[1]]])),
        "depth": (LOGITS[:, None, :, None], SOFT[:, None]),
    }.get(kind.removeprefix("relative_"), (LOGITS, SOFT))
    logits = logits + 0.01
    targets = task.check_targets(targets)
    for name, options in [row[1:] for row in EVERY_LOSS if row[0] == kind]:
        loss = task.loss(name, **options)
        differences = np.zeros_like(logits, "float64")
        for at in np.ndindex(logits.shape):
            step = np.zeros_like(logits)
            step[at] = 2e-3
            upper, lower = (float(loss(targets, logits + way)) for way in (step, -step))
            differences[at] = (upper - lower) / 4e-3
        _, gradient = of_logits(loss, targets, logits)
        np.testing.assert_allclose(gradient, differences, rtol=5e-3, atol=5e-4, err_msg=name)
        for scale in (0.0, 50.0, 1e4):
            value, gradient = of_logits(loss, targets, scale * logits)
            assert np.isfinite([value, *gradient.reshape(-1)]).all(), name
        assert float(restore(loss)(targets, logits)) == float(loss(targets, logits))


@pytest.mark.every_backend
def test_metrics() -> None:
    rng = np.random.default_rng(0)
    numbers, outputs = rng.normal(size=(2, 20, 2)).astype("float32")
    weights, grades = rng.random(20).astype("float32"), rng.integers(0, 3, (20, 1))
    for metric, y, errors in (
        (losses.UnitError(3.0, 1), numbers, 3 * np.abs(numbers - outputs)[:, 1]),
        (losses.GradeError(), grades, np.abs(grades[:, 0] - (outputs > 0).sum(axis=1))),
    ):
        metric.update_state(y[:5], outputs[:5], weights[:5])
        metric.update_state(y[5:], outputs[5:], weights[5:])
        expected = np.average(errors, weights=weights)
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)
        assert type(metric).from_config(metric.get_config()).get_config() == metric.get_config()
    # Those of a task are its main scores.
    for kind, y in (
        ("classification", grades[:, 0]),
        ("ordinal", grades[:, 0]),
        ("regression", numbers),
    ):
        task = get(kind, size=2 + (kind != "regression")).fitted(y)
        found = rng.normal(size=(20, task.outputs)).astype("float32")
        (metric, *_), scores = task.metrics(), task.scores(y, task.answers(found), 0)
        metric.update_state(task.check_targets(y), found)
        expected = scores[next(iter(scores))].value
        np.testing.assert_allclose(float(metric.result()), expected, rtol=1e-5)
