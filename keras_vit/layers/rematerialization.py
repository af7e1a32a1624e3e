"""Rematerialization: activations are recomputed in the backward pass, which saves memory."""

from collections.abc import Callable
from typing import Any

import keras

from keras_vit.ops import remat


def rematerialize(
    layer: keras.layers.Layer, function: Callable[..., Any], *inputs: Any, constants: Any = ()
) -> Any:
    """`function(*inputs, *constants)`, of which only the inputs are stored for the backward pass.

    `keras.remat` alone draws new dropout masks when it recomputes on TensorFlow and torch, so that
    gradients belong to another forward pass, and leaks a traced seed on JAX. Here the weights of
    `layer` are arguments, its seeds constants, and the advanced seeds outputs: both passes see the
    same numbers. `constants` are integer or boolean tensors, which do not have a gradient.
    """
    weights = [v for v in layer.variables if "float" in v.dtype]
    seeds = [v for v in layer.variables if "int" in v.dtype]
    # Integers do not have a gradient, and TensorFlow warns when a tape watches one. Copies, since
    # torch advances a seed in place, before the backward pass reads it again.
    seed_values = [(seed, keras.ops.copy(seed)) for seed in seeds]

    def pure(*arguments: Any) -> tuple[Any, list[Any]]:
        values, arguments = arguments[: len(weights)], arguments[len(weights) :]
        mapping = list(zip(weights, values, strict=True)) + seed_values
        with keras.StatelessScope(mapping) as scope:
            outputs = function(*arguments)
        return outputs, [scope.get_current_value(seed) for seed in seeds]

    values = [keras.ops.convert_to_tensor(weight) for weight in weights]
    outputs, advanced = remat(pure, *constants)(*values, *inputs)
    for seed, value in zip(seeds, advanced, strict=True):
        seed.assign(value)
    return outputs
