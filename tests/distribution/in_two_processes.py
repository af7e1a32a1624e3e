"""Two torch processes give what one gives (run by `test_torch_processes.py`, once per process)."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import torch

import keras_vit
from keras_vit.training.callbacks import BestModel, HistoryLog
from keras_vit.training.optimizers import DecoupledAdam, MomentumSGD
from keras_vit.training.resume import ResumableRun

RANK = int(os.environ["RANK"])
FOLDER = Path(os.environ["TEST_FOLDER"])
CLASSES = 5
SHAPE = (16, 16, 3)
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (43, *SHAPE)).astype("uint8")
LABELS = RANDOM.integers(0, CLASSES, 43)

torch.set_num_threads(1)
keras_vit.distribution.initialize()


def vit(**arguments: Any) -> keras.Model:
    sizes = {"patch_size": 4, "hidden_dim": 16, "mlp_dim": 32, "depth": 2, "num_heads": 2}
    return keras_vit.VisionTransformer(
        **{**sizes, "num_classes": CLASSES, "input_shape": SHAPE, **arguments}
    )


def sgd(**options: Any) -> keras.optimizers.Optimizer:
    return MomentumSGD(0.05, state_dtype="float32", **options)


def compiled(model: keras.Model, optimizer: Any = None, **options: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer or sgd(), loss, metrics=["accuracy"], **options)
    return model


def on(several: bool, job: Callable[[], Any], seed: int = 1) -> Any:
    """What a job returns in both processes together, or in each one alone."""
    distribution = keras_vit.distribution.create("data_parallel") if several else None
    keras.distribution.set_distribution(distribution)
    keras.utils.set_random_seed(seed)
    try:
        return job()
    finally:
        keras.distribution.set_distribution(None)


def assert_same_weights(model: keras.Model, expected: keras.Model, tolerance: float) -> None:
    worst = 0.0
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        worst = max(worst, np.abs(one - other).max() / max(np.abs(other).max(), 0.1))
    assert worst <= tolerance, worst


def assert_same(one: Any, other: Any, tolerance: float) -> None:
    for value, expected in zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=tolerance)


def test_fit_evaluate_and_predict() -> None:
    """With all that random numbers and averages go into, and batches of 16, 16 and 3."""

    def job() -> Any:
        model = vit(dropout=0.1, attention_dropout=0.1, stochastic_depth=0.1, patch_dropout=0.25)
        options = {"use_ema": True, "global_clipnorm": 1.0, "gradient_accumulation_steps": 2}
        compiled(model, sgd(**options))
        history = model.fit(
            IMAGES, LABELS, batch_size=16, epochs=7, validation_split=0.2, verbose=0
        )
        scores = model.evaluate(IMAGES, LABELS, batch_size=16, verbose=0)
        return model, history.history, scores, model.predict(IMAGES, batch_size=16, verbose=0)

    one, history, scores, logits = on(False, job)
    two, its_history, its_scores, its_logits = on(True, job)
    assert history.keys() == its_history.keys()
    assert_same(its_history, history, 1e-5)
    assert_same(its_scores, scores, 1e-6)
    assert_same(its_logits, logits, 1e-6)
    assert_same_weights(two, one, 1e-6)
