"""The gradient of a number with respect to arrays, outside of training."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

Function = Callable[[list[Any]], tuple[Any, Any]]


def gradients(function: Function, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return what a function returns beside its number, and the number's gradient by each input.

    Args:
        function: From tensors like `inputs` to a number, of shape (), and anything else: tensors
            in lists or dictionaries. No tensor that it computes may leave it on another way.
        inputs: Arrays.

    Returns:
        The second of what `function` returns, and a gradient per input, of its shape: zero where
        the number does not depend on it.
    """
    compute = {"jax": _jax, "tensorflow": _tensorflow, "torch": _torch}
    return compute[keras.backend.backend()](function, [*map(keras.ops.convert_to_tensor, inputs)])


def _jax(function: Function, inputs: list[Any]) -> tuple[Any, list[Any]]:
    import jax

    by_inputs, others = jax.grad(function, has_aux=True)(inputs)
    return others, by_inputs


def _tensorflow(function: Function, inputs: list[Any]) -> tuple[Any, list[Any]]:
    import tensorflow as tf

    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(inputs)
        number, others = function(inputs)
    zero = tf.UnconnectedGradients.ZERO
    return others, tape.gradient(number, inputs, unconnected_gradients=zero)


def _torch(function: Function, inputs: list[Any]) -> tuple[Any, list[Any]]:
    import torch

    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in inputs]
        number, others = function(inputs)
        if not number.requires_grad:  # it depends on none of them
            return others, [torch.zeros_like(x) for x in inputs]
        by_inputs = zip(inputs, torch.autograd.grad(number, inputs, allow_unused=True), strict=True)
    others = keras.tree.map_structure(lambda x: x.detach(), others)
    return others, [torch.zeros_like(x) if g is None else g for x, g in by_inputs]
