"""The training step of sharpness-aware minimization (SAM): two gradients per batch.

Unnecessary from Keras: none yet. Its training steps compute one gradient per batch.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import keras

from keras_vit.ops.constants import changing_variables


def two_pass_step(
    model: keras.Model,
    perturb: Callable[[list[Any], list[Any], Any], list[Any]],
    combine: Callable[[list[Any], list[Any]], list[Any]],
) -> Callable[..., Any]:
    """Return a `train_step` for `fit` with two gradients: at the weights, and at perturbed weights.

    Both see the same batch under the same dropout masks. Loss, metrics and the state of layers are
    those of the first pass. The gradient of a variable that the loss does not depend on is None.

    Args:
        perturb: From weights, gradients and the optimizer's iterations to the perturbed weights.
        combine: From both gradients to those that the optimizer applies.
    """
    step = {"jax": _jax_step, "tensorflow": _tensorflow_step, "torch": _torch_step}
    return step[keras.backend.backend()](model, perturb, combine)


def _jax_step(model: keras.Model, perturb: Any, combine: Any) -> Callable[..., Any]:
    import jax

    def train_step(state: Any, data: Any) -> Any:
        weights, others, optimizer_state, metrics_state = state
        batch = keras.utils.unpack_x_y_sample_weight(data)
        differentiate = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

        def gradients(at: list[Any]) -> Any:
            rest = (others, metrics_state, *batch)
            return differentiate(at, *rest, training=True, optimizer_variables=optimizer_state)

        (_, (loss, outputs, new_others, metrics_state)), first = gradients(weights)
        mapping = list(zip(model.optimizer.variables, optimizer_state, strict=True))
        with keras.StatelessScope(state_mapping=mapping):
            perturbed = perturb(weights, first, model.optimizer.iterations)
        # The seeds among `others` have not moved: the second pass draws the same masks.
        _, second = gradients(perturbed)
        weights, optimizer_state = model.optimizer.stateless_apply(
            optimizer_state, combine(first, second), weights
        )
        mapping = list(zip(model.metrics_variables, metrics_state, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            logs = _update_metrics(model, batch, outputs, loss)
        metrics_state = [scope.get_current_value(v) for v in model.metrics_variables]
        return logs, (weights, new_others, optimizer_state, metrics_state)

    return train_step


def _tensorflow_step(model: keras.Model, perturb: Any, combine: Any) -> Callable[..., Any]:
    import tensorflow as tf

    def gradients(batch: Any) -> Any:
        _check_replicas(tf.distribute.get_strategy())
        with tf.GradientTape() as tape:
            loss, outputs = _loss_and_outputs(model, batch)
            scaled = model.optimizer.scale_loss(loss)
        return tape.gradient(scaled, [v.value for v in model.trainable_weights]), loss, outputs

    return _stateful_step(model, perturb, combine, gradients, tf.identity, nullcontext)


def _check_replicas(strategy: Any) -> None:
    if strategy.num_replicas_in_sync > 1:
        raise ValueError(
            f"Sharpness-aware steps do not work in the scope of a {type(strategy).__name__}, where "
            f"each of {strategy.num_replicas_in_sync} replicas has a part of the gradient. Train "
            "on one device, or with KERAS_BACKEND=jax and keras_vit.distribution."
        )


def _torch_step(model: keras.Model, perturb: Any, combine: Any) -> Callable[..., Any]:
    import torch

    def gradients(batch: Any) -> Any:
        model.zero_grad()
        loss, outputs = _loss_and_outputs(model, batch)
        model.optimizer.scale_loss(loss).backward()
        return [v.value.grad for v in model.trainable_weights], loss, outputs

    return _stateful_step(model, perturb, combine, gradients, torch.clone, torch.no_grad)


def _loss_and_outputs(model: keras.Model, batch: Any) -> tuple[Any, Any]:
    x, y, sample_weight = batch
    takes_training = "training" in inspect.signature(model.call).parameters
    outputs = model(x, training=True) if takes_training else model(x)
    return model.compute_loss(x, y, outputs, sample_weight, training=True), outputs


def _update_metrics(model: keras.Model, batch: Any, outputs: Any, loss: Any) -> dict[str, Any]:
    """Updates the metrics, of which Keras's mean of the loss is the first; returns the logs."""
    x, y, sample_weight = batch
    examples = keras.ops.shape(keras.tree.flatten(x)[0])[0]
    model.metrics[0].update_state(loss, sample_weight=examples)
    logs: dict[str, Any] = model.compute_metrics(x, y, outputs, sample_weight=sample_weight)
    return logs


def _stateful_step(
    model: keras.Model,
    perturb: Any,
    combine: Any,
    gradients: Callable[[Any], Any],
    copy: Callable[[Any], Any],
    no_grad: Callable[[], Any],
) -> Callable[..., Any]:
    """Return the step where variables change in place: it stores and restores their values."""

    def copies(variables: Sequence[keras.Variable]) -> list[Any]:
        return [copy(variable.value) for variable in variables]

    def assign(variables: Sequence[keras.Variable], values: list[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    def train_step(data: Any) -> Any:
        batch = keras.utils.unpack_x_y_sample_weight(data)
        weights = model.trainable_weights
        others = changing_variables(model)
        with no_grad():
            others_before = copies(others)
        first, loss, outputs = gradients(batch)
        with no_grad():
            weights_before, others_after = copies(weights), copies(others)
            assign(weights, perturb(weights_before, first, model.optimizer.iterations))
            assign(others, others_before)
        second, _, _ = gradients(batch)
        with no_grad():
            assign(weights, weights_before)
            assign(others, others_after)
            model.optimizer.apply(combine(first, second), weights)
        return _update_metrics(model, batch, outputs, loss)

    return train_step
