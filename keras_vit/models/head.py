"""From pooled features to logits."""

from typing import Any

import keras

from keras_vit.models.config import ModelConfig
from keras_vit.models.layer_state import map_names

# DeiT's second head reads the distillation token.
HEADS = ("head", "head_distillation")


def classify(features: Any, config: ModelConfig, distilled: Any = None) -> Any:
    """Return the zero-initialized head, in float32 under every policy: bfloat16 logits lose ties.

    Only a `DTypePolicyMap` that names the head gives it another policy. With the features of a
    distillation token, the mean of two heads (DeiT, section 4).
    """
    if distilled is not None:
        heads = [
            _head(x, config, name) for x, name in zip((features, distilled), HEADS, strict=True)
        ]
        mean = keras.layers.Average(dtype="float32", name="mean_of_heads")(heads)
        activation = config.classifier_activation if config.num_classes else None
        return keras.layers.Activation(activation, dtype="float32", name="logits")(mean)
    return _head(features, config, "head", config.classifier_activation)


def _head(features: Any, config: ModelConfig, name: str, activation: str | None = None) -> Any:
    if config.num_classes == 0:
        name = "features" if name == "head" else f"features_{name}"
        return keras.layers.Activation("linear", dtype="float32", name=name)(features)
    return keras.layers.Dense(
        config.num_classes,
        activation=activation,
        kernel_initializer="zeros",
        dtype=config.dtype if map_names(config.dtype, name) else "float32",
        name=name,
    )(features)
