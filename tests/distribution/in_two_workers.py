"""Two TensorFlow processes give what one gives (run by `test_workers.py`, once per process)."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit.training.optimizers import MomentumSGD
from keras_vit.training.resume import ResumableRun
from tests.distribution.helpers import assert_same, assert_same_weights, compiled, with_head

RANK = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
FOLDER = Path(os.environ.get("TEST_FOLDER", ""))
SHAPE = (16, 16, 3)
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (19, *SHAPE)).astype("uint8")
LABELS = RANDOM.integers(0, 5, 19)


@pytest.fixture(scope="module")
def workers() -> Any:
    return keras_vit.distribution.create("data_parallel")


def vit() -> keras.Model:
    sizes = {"patch_size": 4, "hidden_dim": 16, "mlp_dim": 32, "depth": 1, "num_heads": 2}
    rates = {"dropout": 0.1, "stochastic_depth": 0.2}
    model = keras_vit.VisionTransformer(**sizes, **rates, num_classes=5, input_shape=SHAPE)
    options = {"use_ema": True, "global_clipnorm": 1.0, "gradient_accumulation_steps": 2}
    return compiled(with_head(model), MomentumSGD(0.02, state_dtype="float32", **options))


def on(workers: Any, job: Callable[[], Any], seed: int = 1) -> Any:
    """What a job returns in both processes together, or, for None, in each one alone."""
    keras.distribution.set_distribution(workers)
    keras.utils.set_random_seed(seed)
    try:
        return job()
    finally:
        keras.distribution.set_distribution(None)


def test_fit_evaluate_and_predict(workers: Any) -> None:
    """In batches of 8, 8 and 3; with other seeds, they follow process 0."""

    def job() -> Any:
        model = vit()
        history = model.fit(IMAGES, LABELS, 8, epochs=2, shuffle=False, verbose=0).history
        scores = model.evaluate(IMAGES, LABELS, batch_size=8, verbose=0)
        return model, history, scores, model.predict(IMAGES, batch_size=8, verbose=0)

    one, *expected = on(None, job)
    two, *its = on(workers, job, seed=1 + RANK)
    assert_same(its, expected, 1e-5)
    assert_same_weights(two, one, 1e-6)


def test_the_first_process_writes(workers: Any) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == 2:
                raise KeyboardInterrupt

    def batches(start: int) -> Any:
        while True:
            rows = (np.arange(7) + 7 * start) % len(IMAGES)
            yield IMAGES[rows], LABELS[rows]
            start += 1

    def job(folder: Path, *callbacks: keras.callbacks.Callback) -> keras.Model:
        model = vit()
        run = ResumableRun(folder, every_steps=1, print_fn=lambda line: None)
        run.fit(model, batches, 1, 3, callbacks, verbose=0)
        return model

    def is_first() -> bool:
        return keras_vit.distribution.is_first_process()

    assert on(workers, is_first) == (RANK == 0)
    with pytest.raises(KeyboardInterrupt):
        on(workers, lambda: job(FOLDER / f"together-{RANK}", Stop()))
    written = list((FOLDER / f"together-{RANK}").glob("step-*"))
    assert len(written) == (1 if RANK == 0 else 0)


def test_arguments(workers: Any) -> None:
    with pytest.raises(ValueError, match="the 2 processes of TF_CONFIG have 2"):
        keras_vit.distribution.create("data_parallel", devices=3)


def test_other_batches_are_refused(workers: Any) -> None:
    """The last test: what processes exchange is aborted afterwards."""

    def job() -> None:
        vit().fit(IMAGES[RANK:], LABELS[RANK:], batch_size=8, shuffle=False, verbose=0)

    with pytest.raises(Exception, match=r"not have the same batch|lost the connection"):
        on(workers, job)
