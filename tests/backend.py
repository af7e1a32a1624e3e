"""What Keras itself does not offer across backends, as gradients, and what tests often do."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

numpy = keras.ops.convert_to_numpy


def reloaded(model: keras.Model, folder: Path) -> Any:
    """The model out of its `.keras` file."""
    model.save(folder / "reloaded.keras")
    return keras.saving.load_model(folder / "reloaded.keras")


def gradients(model: Any, images: Any, training: bool = False, weights: Any = None) -> Any:
    """Gradient of a weighted sum of the logits by each trainable variable, by path."""
    if weights is None:
        shape = tuple(model(images).shape)
        # All ones would be blind to softmax outputs and to errors that cancel out.
        weights = np.cos(np.arange(int(np.prod(shape)))).reshape(shape).astype("float32")
    variables = model.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(images, training=training) * weights)
        found = tape.gradient(loss, [v.value for v in variables])
    elif keras.backend.backend() == "jax":
        found = _jax_gradient(model, images, weights, training)([v.value for v in variables])
    else:
        import torch

        model.zero_grad()
        (model(images, training=training) * torch.as_tensor(weights)).sum().backward()
        found = [v.value.grad for v in variables]
    return {  # a missing one stays visible as NaN instead of passing for a zero
        variable.path: np.full(variable.shape, np.nan) if gradient is None else numpy(gradient)
        for variable, gradient in zip(variables, found, strict=True)
    }


def _jax_gradient(model: keras.Model, images: Any, weights: np.ndarray, training: bool) -> Any:
    """From values of the variables. Operation by operation takes several times as long."""
    import jax

    fixed = [v.value for v in model.non_trainable_variables]

    def loss_of(values: list[Any]) -> Any:
        outputs, _ = model.stateless_call(values, fixed, images, training=training)
        return (outputs * weights).sum()

    return jax.jit(jax.grad(loss_of))


def temporary_bytes(model: keras.Model, images: Any) -> int:
    """What JAX's compiler plans to take for a training step's gradients while they are computed."""
    values = [v.value for v in model.trainable_variables]
    gradient = _jax_gradient(model, images, np.ones(1, "float32"), training=True)
    return gradient.lower(values).compile().memory_analysis().temp_size_in_bytes


def at_once(function: Any) -> Any:
    """The function compiled as one on JAX, where every operation alone is compiled on its own."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def refused(
    words: str | list[str], call: Any, /, *args: Any, error: Any = ValueError, **named: Any
) -> str:
    """What a call that has to fail says: it fits a pattern, or has each of some words."""
    with pytest.raises(error, match=words or None if isinstance(words, str) else None) as raised:
        call(*args, **named)
    said = str(raised.value)
    del raised  # and with it the frames of the call, which may hold files
    for word in () if isinstance(words, str) else words:
        assert word in said
    return said


def warned(pattern: str, call: Any, /, *args: Any, kind: Any = UserWarning, **named: Any) -> Any:
    """What a call returns that warns the user by the way."""
    with pytest.warns(kind, match=pattern):
        return call(*args, **named)


def rows(values: Iterable[Any], everywhere: Callable[[Any], bool] | Iterable[Any]) -> list[Any]:
    """The values of `parametrize` of a test that runs once, but for some, on every backend."""
    chosen = everywhere if callable(everywhere) else list(everywhere).__contains__
    mark = pytest.mark.every_backend
    found = [(value if isinstance(value, tuple) else (value,), chosen(value)) for value in values]
    return [pytest.param(*row, marks=[mark] * bool(is_chosen)) for row, is_chosen in found]
