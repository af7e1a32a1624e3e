"""One bank of small models: each is built once per process, and restored after every test."""

from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit.models import ImageModel

SIZES: dict[str, Any] = {
    "patch_size": 8,
    "hidden_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_dim": 48,
    "num_classes": 5,
    "input_shape": (32, 32, 3),
}
# The smallest ViT that has every part: for tests about anything else than the model.
TINY: dict[str, Any] = {
    "patch_size": 8,
    "hidden_dim": 16,
    "depth": 1,
    "num_heads": 2,
    "mlp_dim": 16,
    "num_classes": 2,
    "input_shape": (16, 16, 3),
}
Snapshot = list[np.ndarray]
_models: dict[str, tuple[ImageModel, Snapshot]] = {}
_used: set[str] = set()


def fresh(
    kind: type[ImageModel] = keras_vit.VisionTransformer, *, filled: bool = True, **changes: Any
) -> ImageModel:
    """A new small model: of `SIZES`, with every weight drawn from a normal distribution.

    `filled=False` leaves the initial weights, whose head is zero.
    """
    keras.utils.set_random_seed(0)
    model = kind(**{**SIZES, **changes})
    if filled:
        fill(model)
    keras.utils.set_random_seed(0)
    return model


def small(**changes: Any) -> ImageModel:
    """As `fresh`, but built once per process: compile and change a model of `fresh` instead.

    Its weights and its `trainable` flags may be changed: they are restored after the test.
    """
    policy = keras.config.dtype_policy().name, keras.config.image_data_format()
    key = repr((sorted(changes.items(), key=lambda item: item[0]), policy))
    if key not in _models:
        model = fresh(**changes)
        _models[key] = model, [np.array(w) for w in model.get_weights()]
    _used.add(key)
    keras.utils.set_random_seed(0)
    return _models[key][0]


def tiny(**changes: Any) -> ImageModel:
    """As `small`, of the sizes of `TINY`."""
    return small(**{**TINY, **changes})


def restore() -> None:
    """After a test: its models have their weights back; one changed otherwise is built again."""
    for key in _used:
        model, weights = _models[key]
        now = model.get_weights()
        changed = (
            model.compiled
            or [w.shape for w in now] != [w.shape for w in weights]
            or any(not layer.trainable for layer in model._flatten_layers())
        )
        if changed:
            del _models[key]
        elif not all(map(np.array_equal, now, weights)):
            model.set_weights(weights)
    _used.clear()


def fill(model: keras.Model, seed: int = 0, scale: float = 0.1) -> None:
    """Gives every weight a value that is not zero, the same on every backend."""
    random = np.random.default_rng(seed)
    for variable in model.weights:
        if "float" in variable.dtype:
            variable.assign(random.normal(0, scale, variable.shape).astype("float32"))


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype("uint8")


def outputs(model: keras.Model, images: Any) -> np.ndarray:
    """Operation by operation: to compile a small model takes longer than to run it so."""
    return np.asarray(keras.ops.convert_to_numpy(model(images)), "float32")
