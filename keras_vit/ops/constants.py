"""What a training step leaves as it is: models that are not trained, and their variables."""

from collections.abc import Callable
from typing import Any

import keras


def without_gradient(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls a function whose outputs are constants to the gradient.

    torch would otherwise keep all activations until the outputs are cut off.
    """
    if keras.backend.backend() != "torch":
        return keras.tree.map_structure(keras.ops.stop_gradient, function(*args, **options))
    import torch

    with torch.no_grad():
        return function(*args, **options)


def changing_variables(model: keras.Model) -> list[keras.Variable]:
    """Return the variables that a step changes without a gradient: seeds, moving averages.

    All that are not trainable, except for a model's `constant_variables`, if it has any.
    """
    constant = set(map(id, getattr(model, "constant_variables", ())))
    return [variable for variable in model.non_trainable_variables if id(variable) not in constant]
