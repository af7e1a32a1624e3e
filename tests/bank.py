"""One bank of small models: each is built once per process, and restored after every test."""

from collections.abc import Callable
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
# Every kind of model, as changes of `SIZES`. Options that do not meet share one: compiling is slow.
KINDS: dict[str, dict[str, Any]] = {
    "token": {},
    "gap": {"pooling": "gap", "position_embedding": "sincos2d"},
    "map": {"pooling": "map", "position_embedding": "learned_2d"},
    "all_tokens": {"pooling": None, "num_classes": 0, "position_embedding": "none"},
    "relative": {"position_embedding": "relative", "num_registers": 2},
    "exact_gelu": {"activation": "gelu", "norm_epsilon": 1e-12, "representation_size": 24},
    "dinov2_giant": {"activation": "swiglu", "layer_scale": 0.5, "num_registers": 4},
    "clip": {
        "pre_norm": True,
        "activation": "quick_gelu",
        "normalization": "clip",
        "distilled": True,
    },
    "dinov3": {
        "position_embedding": "none",
        "rotary": "dinov3",
        "key_bias": False,
        "layer_scale": 0.5,
        "num_registers": 2,
        "pooling": "token_gap",
    },
    "eva02": {
        "rotary": "eva02",
        "key_bias": False,
        "mlp_norm": True,
        "activation": "swiglu",
        "pooling": "gap",
        "class_token": True,
        "norm_after_pooling": True,
    },
    "beit": {"position_embedding": "relative_2d", "key_bias": False, "layer_scale": 0.5},
    "beit_shared": {"position_embedding": "relative_2d_shared"},
    "hybrid": {"resnet": (1,), "resnet_width": 32, "patch_size": 2},
    "conv_stem": {"conv_stem": ((8, 2), (12, 1)), "patch_size": 4, "pooling": "gap"},
    "mixer": {},
    "bit": {},
}
KIND_SIZES = {k: v for k, v in SIZES.items() if k not in ("mlp_dim", "num_classes")}
# The models that are no ViT, and their sizes.
OTHERS: dict[str, tuple[type[ImageModel], dict[str, Any]]] = {
    "mixer": (keras_vit.models.MLPMixer, {k: v for k, v in KIND_SIZES.items() if k != "num_heads"}),
    "bit": (
        keras_vit.models.BiTResNet,
        {"depths": (1, 1), "width": 32, "input_shape": (32, 32, 3)},
    ),
}
Snapshot = list[np.ndarray]
_models: dict[str, tuple[ImageModel, Snapshot, str]] = {}
_used: set[str] = set()


def fresh(
    kind: type[ImageModel] = keras_vit.VisionTransformer, *, filled: bool = True, **changes: Any
) -> ImageModel:
    """A new small model: of `SIZES`, with every weight drawn from a normal distribution.

    `filled=False` leaves the initial weights, whose head is zero. A `task` has a size of its own.
    """
    keras.utils.set_random_seed(0)
    sizes = dict(SIZES)
    if "task" in changes:
        del sizes["num_classes"]
    model = kind(**{**sizes, **changes})
    if filled:
        fill(model)
    keras.utils.set_random_seed(0)
    return model


def small(**changes: Any) -> ImageModel:
    """As `fresh`, but built once per process, and restored after a test that has changed it."""
    return _once(lambda: fresh(**changes), changes)


def _once(make: Callable[[], ImageModel], changes: dict[str, Any]) -> ImageModel:
    policy = keras.config.dtype_policy().name, keras.config.image_data_format()
    key = repr((sorted(changes.items(), key=lambda item: item[0]), policy))
    if key not in _models:
        keras.utils.set_random_seed(0)
        model = make()
        _models[key] = model, [np.array(w) for w in model.get_weights()], _state(model)
    _used.add(key)
    keras.utils.set_random_seed(0)
    return _models[key][0]


def tiny(**changes: Any) -> ImageModel:
    """As `small`, of the sizes of `TINY`."""
    return small(**{**TINY, **changes})


def fresh_kind(kind: str, **changes: Any) -> ImageModel:
    """A new model of a row of `KINDS`: its initial weights, and values in place of zeros."""
    constructor, sizes = OTHERS.get(kind, (keras_vit.VisionTransformer, KIND_SIZES))
    model = constructor(**{**sizes, "num_classes": 5, **KINDS[kind], **changes})
    wake(model)
    return model


def small_kind(kind: str, **changes: Any) -> ImageModel:
    """As `fresh_kind`, but built once per process and restored after the test, as `small`."""
    return _once(lambda: fresh_kind(kind, **changes), {"its kind": kind, **changes})


def restore() -> None:
    """After a test: its models have their weights back; one changed otherwise is built again."""
    for key in _used:
        model, weights, state = _models[key]
        if _state(model) != state:
            del _models[key]
        elif not all(map(np.array_equal, model.get_weights(), weights)):
            model.set_weights(weights)
    _used.clear()


def _state(model: ImageModel) -> str:
    """What a test may have changed beside weights: options, names, what is frozen, `compile`."""
    flags = [variable.trainable for variable in model.weights]
    return repr((model.get_config(), flags, model.compiled))


def fill(model: keras.Model, seed: int = 0, scale: float = 0.1) -> None:
    """Gives every weight a value that is not zero, the same on every backend."""
    random = np.random.default_rng(seed)
    for variable in model.weights:
        if "float" in variable.dtype:
            values = random.normal(0, scale, variable.shape).astype("float32")
            is_variance = variable.name == "moving_variance"  # the root of it is NaN below 0
            variable.assign(1 + np.abs(values) if is_variance else values)


def wake(model: keras.Model) -> None:
    """Gives zero-initialized weights values, without which no gradient passes the head."""
    random = np.random.default_rng(0)
    for variable in model.trainable_variables:
        if not keras.ops.convert_to_numpy(variable).any():
            variable.assign(random.normal(0, 0.1, variable.shape).astype("float32"))


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype("uint8")


def outputs(model: keras.Model, images: Any) -> np.ndarray:
    """Operation by operation: to compile a small model takes longer than to run it so."""
    return np.asarray(keras.ops.convert_to_numpy(model(images)), "float32")
