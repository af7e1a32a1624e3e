"""Loss scaling for float16, whose smallest numbers are larger than most gradients of a ViT.

Unnecessary from Keras: none yet. It asks for the model's own policy, not those of its layers.
"""

from typing import Any

import keras


def with_loss_scaling(model: keras.Model, optimizer: Any) -> Any:
    """Return the optimizer, in a `LossScaleOptimizer` where layers of the model compute in float16.

    Keras itself looks only at the name of the model's policy. It misses a `DTypePolicyMap`, a
    model that contains ours, and a model whose layers have a policy each.
    """
    optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer | None):
        return optimizer
    if any(
        (layer.compute_dtype, layer.variable_dtype) == ("float16", "float32")
        for layer in model._flatten_layers()
    ):
        return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
    return optimizer
