"""The first updates in float16 and bfloat16 are float32's, however the policy is asked for."""

import copy
import importlib
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.tasks import Classification
from keras_vit.training.compilation import compile_model
from keras_vit.training.recipes import Recipe
from keras_vit.training.sam import sharpness_aware
from keras_vit_cli.train.build import build
from keras_vit_cli.train.job import Job
from tests.backend import reloaded
from tests.bank import pixels
from tests.training.common import BACKEND

MODEL = {"patch_size": 8, "hidden_dim": 16, "depth": 1, "num_heads": 2}
CLASSES = 5
IMAGES, LABELS = pixels(8, 16, 16, 3), np.arange(8) % CLASSES
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# So large that the update of a weight is not lost in the rounding of the weight.
RATE = 1000.0
SGD: dict[str, Any] = {"optimizer": "sgd", "warmup": 0, "weight_decay": 0, "clip_norm": None}
SIZED: dict[str, Any] = {"image_size": 16, "epochs": 1, "batch_size": 8, "learning_rate": RATE}
RECIPE = Recipe(source="This test.", model=MODEL, label_smoothing=0, **SIZED, **SGD)


# How far an update may be from float32's; what underflows is lost as a whole.
TOLERANCE = {"mixed_float16": 0.01, "mixed_bfloat16": 0.05}
IS_JAX = BACKEND == "jax"
NO_FLOAT16 = IS_JAX and importlib.import_module("jax").default_backend() == "cpu"


def small_vit(dtype: Any = None) -> keras_vit.VisionTransformer:
    sizes = {**MODEL, "num_classes": CLASSES, "input_shape": (16, 16, 3)}
    return keras_vit.VisionTransformer(**sizes, dtype=dtype)


def by_the_program(policy: str) -> keras.Model:
    keras.config.set_dtype_policy(policy)
    return small_vit()


def by_a_map(policy: str, pattern: str, other: str) -> keras.Model:
    parts = {pattern: keras.DTypePolicy(other)}
    return small_vit(keras.dtype_policies.DTypePolicyMap(policy, parts))


def by_the_command_line(policy: str) -> keras.Model:
    job = Job("digits", Path("runs"), precision=policy)
    return build(job, RECIPE, Classification(size=CLASSES), 3)


WAYS: dict[str, Callable[[str], keras.Model]] = {
    "the program's policy": by_the_program, "a name": small_vit,
    "the command line": by_the_command_line,
    "a policy": lambda policy: small_vit(keras.DTypePolicy(policy)),
    "a map": lambda policy: by_a_map(policy, ".*norm_0", "float32"),
    "a map of blocks": lambda policy: by_a_map("float32", "block_.*", policy),
    "a copy": lambda policy: small_vit().copy(dtype=policy),
    "a feature model": lambda policy: small_vit(policy).feature_model("logits"),
}  # fmt: skip
EXTRAS: dict[str, Any] = {"plain": {}, "all": {"rho": 1e-5, "accumulation": 2, "ema": 0.75}}


def compile_by_hand(model: Any, rho: float = 0, accumulation: int = 1, ema: float = 0) -> None:
    steps = accumulation if accumulation > 1 else None
    averages = {"use_ema": ema > 0, "ema_momentum": ema or 0.99}
    optimizer = keras.optimizers.SGD(RATE, gradient_accumulation_steps=steps, **averages)
    model.compile(optimizer, LOSS, jit_compile=IS_JAX)
    sharpness_aware(model, rho or None)


def is_scaled(model: keras.Model) -> bool:
    return isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def updates(model: keras.Model, extra: str) -> list[np.ndarray]:
    """By how much a first update changes each weight, from values that are always the same."""
    random = np.random.default_rng(1)
    # A small head, so that gradients are as small as those of a large model in the middle of its
    # training: float16 does not reach below 6e-8.
    before = [
        random.normal(0, 1e-5 if v.path.startswith("head") else 0.3, v.shape).astype("float32")
        for v in model.weights
    ]
    model.set_weights(before)
    compile_by_hand(model, **EXTRAS[extra])
    batch = 8 // EXTRAS[extra].get("accumulation", 1)
    model.fit(IMAGES, LABELS, batch, shuffle=False, verbose=0)
    changes = zip(model.weights, model.get_weights(), before, strict=True)
    is_kernel = re.compile("block_0/.*/kernel").fullmatch
    return [after - value for weight, after, value in changes if is_kernel(weight.path)]


@cache
def expected_updates(extra: str) -> list[np.ndarray]:
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    expected = updates(small_vit(), extra)
    keras.config.set_dtype_policy(policy)
    return expected


FLOAT16, BFLOAT16 = TOLERANCE
CASES = [
    (FLOAT16, "plain"),
    (BFLOAT16, "plain"),
    # What a backend computes in another way.
    pytest.param(FLOAT16, "all", marks=pytest.mark.backends("tensorflow", "torch")),
    pytest.param(BFLOAT16, "all", marks=pytest.mark.backends("jax")),
]


@pytest.mark.parametrize(("policy", "extra"), CASES)
def test_a_first_update_is_that_of_float32(policy: str, extra: str) -> None:
    if policy == FLOAT16 and NO_FLOAT16:
        pytest.skip("XLA's CPU compiler does not have the products of attention in float16")
    expected = expected_updates(extra)
    for update, other in zip(updates(small_vit(policy), extra), expected, strict=True):
        assert np.linalg.norm(update - other) / np.linalg.norm(other) < TOLERANCE[policy]


def test_every_way_of_asking_is_the_models_policy(tmp_path: Path) -> None:
    """Also where nothing can be computed in float16: each model's policy, and its optimizer."""
    for way, ask in WAYS.items():
        keras.config.set_dtype_policy("float32")
        model = ask(FLOAT16)
        keras.config.set_dtype_policy("float32")
        assert model.compute_dtype == ("float32" if way == "a map of blocks" else "float16")
        assert model.variable_dtype == "float32"
        name = {"a map": f"map_{FLOAT16}", "a map of blocks": "map_float32"}.get(way, FLOAT16)
        compile_by_hand(model)
        assert is_scaled(model), way
        others = [model, copy.deepcopy(model)]
        if way in ("a name", "a map", "a feature model"):
            others.append(reloaded(model, tmp_path))
            assert is_scaled(others[-1])
        if way != "a feature model":
            others += [model.copy(), model.with_classifier(3), model.with_input_shape((24, 24, 3))]
        assert [other.dtype_policy.name for other in others] == [name] * len(others), way


def test_who_scales_the_loss(tmp_path: Path) -> None:
    for policy in ("float32", BFLOAT16):
        model = small_vit(policy)
        compile_by_hand(model)
        assert not is_scaled(model)
    model = small_vit(FLOAT16)
    model.compile("adam", LOSS, auto_scale_loss=False)
    assert not is_scaled(reloaded(model, tmp_path))
    mine = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=8.0)
    model.compile(mine, LOSS)
    assert model.optimizer is mine
    model.compile(loss=LOSS)
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.RMSprop)
    # Keras asks the policy of the model alone, which is that of the program.
    layers = [keras.layers.Flatten(), keras.layers.Dense(5, dtype=FLOAT16)]
    model = keras.Sequential([keras.Input((16, 16, 3)), *layers])
    compile_model(model, RECIPE, 10)
    assert is_scaled(model)
