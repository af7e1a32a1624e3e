"""Small models of every kind whose insides differ, and images for them."""

from functools import cache
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit.inspection import attention_maps

# Patches and grid are not square: a transposed axis cannot hide.
SIZES = {
    "num_classes": 5,
    "patch_size": (8, 4),
    "hidden_dim": 16,
    "depth": 2,
    "num_heads": 2,
    "mlp_dim": 32,
    "input_shape": (32, 12, 3),
}
KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"pooling": "gap", "position_embedding": "sincos2d"},
    "map": {"pooling": "map", "position_embedding": "learned_2d"},
    "registers": {"position_embedding": "relative", "num_registers": 3},
    "gap_registers": {"pooling": "gap", "num_registers": 1, "position_embedding": "none"},
    "all_tokens": {"pooling": None, "class_token": False, "num_classes": 0},
    "channels_first": {"data_format": "channels_first", "input_shape": (3, 32, 12)},
    "any_size": {"input_shape": (None, None, 3), "position_grid": (3, 2)},
}


@cache
def model_of(kind: str) -> keras_vit.VisionTransformer:
    """A model whose weights are large enough that no head attends evenly; leave it as it is."""
    keras.utils.set_random_seed(1)
    model = keras_vit.VisionTransformer(**{**SIZES, **KINDS[kind]})
    random = np.random.default_rng(1)
    for weight in model.trainable_variables:
        weight.assign(random.normal(0, 0.3, weight.shape).astype("float32"))
    return model


@cache
def maps_of(kind: str) -> np.ndarray:
    """The attention of the model on `images_for(kind)`, `(3, depth, heads, tokens, tokens)`."""
    return attention_maps(model_of(kind), images_for(kind))


def images_for(kind: str, count: int = 3) -> np.ndarray:
    images = np.random.default_rng(2).integers(0, 256, (count, 32, 12, 3)).astype("uint8")
    return np.moveaxis(images, -1, 1) if kind == "channels_first" else images


def array(tensor: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(tensor))
