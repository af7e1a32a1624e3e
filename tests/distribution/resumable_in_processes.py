"""A resumable run in several processes, of which the last dies at DIES_AT as of lost power."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_vit
from keras_vit.training.optimizers import MomentumSGD
from keras_vit.training.resume import ResumableRun
from tests.distribution.helpers import compiled, on, vit

EPOCHS, STEPS = 3, 8
ON_JAX = keras.backend.backend() == "jax"
KIND = "fsdp" if ON_JAX else "data_parallel"


def batches(step: int) -> Iterator[Any]:
    while True:
        random = np.random.default_rng(step)
        yield random.integers(0, 256, (7, 8, 8, 3)).astype("uint8"), random.integers(0, 2, 7)
        step += 1


class Die(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == int(os.environ.get("DIES_AT", -1)) and os.environ["RANK"] == "1":
            os._exit(9)


def train(folder: Path) -> list[np.ndarray]:
    keras.utils.set_random_seed(1)
    width = 128 if ON_JAX else 8  # which FSDP cuts
    sizes = {"hidden_dim": width, "mlp_dim": 2 * width, "input_shape": (8, 8, 3), "num_classes": 2}
    optimizer = MomentumSGD(0.002, state_dtype="float32", global_clipnorm=1.0)
    model = compiled(vit(**sizes, dropout=0.2), optimizer)
    run = ResumableRun(folder, every_steps=1)
    run.fit(model, batches, EPOCHS, STEPS, callbacks=[Die()], verbose=0)
    return model.get_weights()


if __name__ == "__main__":
    keras_vit.distribution.initialize()
    folder = Path(os.environ["TEST_FOLDER"])
    weights = on(KIND, lambda: train(folder / "run"))
    np.savez(folder / f"weights-{os.environ['RANK']}.npz", *weights)
