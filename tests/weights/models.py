"""Small models with values everywhere, and the comparison of two models."""

from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import VisionTransformer
from keras_vit.weights import save_weights
from keras_vit.weights.variables import canonical_values

SIZES: dict[str, Any] = {
    "patch_size": 8,
    "hidden_dim": 32,
    "depth": 2,
    "num_heads": 4,
    "mlp_dim": 48,
    "num_classes": 5,
    "input_shape": (32, 32, 3),
}


def small(**changes: Any) -> VisionTransformer:
    """A small model in which no weight is zero."""
    model = VisionTransformer(**{**SIZES, **changes})
    fill(model)
    return model


def fill(model: keras.Model, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    for variable in model.weights:
        if "float" in variable.dtype:
            variable.assign(random.normal(0, 0.1, variable.shape).astype("float32"))


def saved(folder: Path, layout: str = "google", **changes: Any) -> Path:
    """A file of a small model in a layout."""
    file = folder / ("model.npz" if layout in ("google", "big_vision") else "model.safetensors")
    file.unlink(missing_ok=True)
    save_weights(small(**changes), file, layout=layout)
    return file


def assert_same_weights(model: keras.Model, expected: keras.Model) -> None:
    ours, theirs = canonical_values(model), canonical_values(expected)
    assert set(ours) == set(theirs)
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)


def outputs(model: keras.Model, images: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(model(images)))


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype("uint8")
