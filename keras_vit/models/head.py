"""From pooled features to logits."""

from typing import Any

import keras

from keras_vit.models.config import ModelConfig
from keras_vit.models.layer_state import map_names


def classify(features: Any, config: ModelConfig) -> Any:
    """The zero-initialised head, in float32 under every policy: bfloat16 logits lose ties.

    Only a `DTypePolicyMap` that names the head gives it another policy.
    """
    if config.num_classes == 0:
        return keras.layers.Activation("linear", dtype="float32", name="features")(features)
    return keras.layers.Dense(
        config.num_classes,
        activation=config.classifier_activation,
        kernel_initializer="zeros",
        dtype=config.dtype if map_names(config.dtype, "head") else "float32",
        name="head",
    )(features)
