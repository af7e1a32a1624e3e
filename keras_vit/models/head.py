"""From the features of an image to outputs: a row of the table `HEADS` for each kind of head."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras

from keras_vit.layers import MapResize
from keras_vit.models import dpt, eomt
from keras_vit.models.config import ModelConfig, ViTConfig
from keras_vit.models.layer_state import map_names

Features = Mapping[str, Any]

# What computes outputs: DeiT's second head reads the distillation token.
DENSE_HEADS = ("head", "head_distillation")
# What a new head does not take over; one of the same kind takes the DPT's neck, or the queries.
OUTPUT_LAYERS = (
    *DENSE_HEADS,
    "head_norm",
    "head_resize",
    "head_conv_0",
    "head_conv_1",
    eomt.CLASSES,
)
# And all layers that belong to a head.
HEAD_LAYERS = (*OUTPUT_LAYERS, *dpt.NECK_LAYERS, *eomt.QUERY_LAYERS)


def classify(features: Features, config: ModelConfig) -> Any:
    """Return the outputs: of features by name, by the head that the task asks for."""
    return HEADS[config.head_kind](features, config)


def row_head(features: Features, config: ModelConfig) -> Any:
    """Return the zero-initialized head, in float32 under every policy: bfloat16 logits lose ties.

    Only a `DTypePolicyMap` that names the head gives it another policy. With the features of a
    distillation token, the mean of two heads (DeiT, section 4).
    """
    pooled, distilled = features["pre_logits"], features.get("distillation_token")
    if distilled is not None:
        both = zip((pooled, distilled), DENSE_HEADS, strict=True)
        heads = [_dense(x, config, name) for x, name in both]
        mean = keras.layers.Average(dtype="float32", name="mean_of_heads")(heads)
        activation = config.classifier_activation if config.num_classes else None
        return keras.layers.Activation(activation, dtype="float32", name="logits")(mean)
    return _dense(pooled, config, "head", config.classifier_activation)


def linear_head(features: Features, config: ModelConfig) -> Any:
    """Return outputs for every pixel, `(n, height, width, outputs)`: a linear head on the grid.

    Features at the places of the patches, normalized over the batch, a linear layer that begins at
    zero, and outputs enlarged to the image, bilinear (DINOv3, section 6.1.2; its released head).
    """
    norm = keras.layers.BatchNormalization(
        momentum=0.9, epsilon=1e-5, dtype="float32", name="head_norm"
    )
    outputs = _dense(norm(features["grid"]), config, "head")
    height, width = config.image_size
    assert height is not None  # the configuration has seen to it
    assert width is not None
    resize = MapResize((height, width), dtype="float32", name="head_resize")
    return resize(outputs)


def dpt_head(features: Features, config: ModelConfig) -> Any:
    """Return outputs for every pixel, `(n, height, width, outputs)`, from four blocks: see `dpt`.

    The layer before the outputs begins at zero, unless what follows it does not have a gradient
    there.
    """
    assert isinstance(config, ViTConfig)
    assert isinstance(config.map_head, dpt.DPTHead)
    maps = dpt.neck(features, config, config.map_head)
    initializer = "glorot_uniform" if config.map_head.activation == "relu" else "zeros"
    linear = partial(_dense, config=config, name="head", initializer=initializer)
    return dpt.last_layers(maps, config, config.map_head, linear)


# By `ModelConfig.head_kind`: (features by name, configuration) -> outputs.
HEADS: dict[str, Callable[[Features, ModelConfig], Any]] = {
    "row": row_head,
    "linear": linear_head,
    "dpt": dpt_head,
    "eomt": eomt.semantic_outputs,
}


def _dense(
    features: Any,
    config: ModelConfig,
    name: str,
    activation: str | None = None,
    initializer: str = "zeros",
) -> Any:
    if config.num_classes == 0:
        name = "features" if name == "head" else f"features_{name}"
        return keras.layers.Activation("linear", dtype="float32", name=name)(features)
    return keras.layers.Dense(
        config.num_classes,
        activation=activation,
        kernel_initializer=initializer,
        dtype=config.dtype if map_names(config.dtype, name) else "float32",
        name=name,
    )(features)
