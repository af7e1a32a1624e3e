"""A training to kill: `python -m tests.training.resumable FOLDER STEP MILLISECONDS`."""

import hashlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.callbacks import CSVLogger, EarlyStopping

from keras_vit.training.resume import ResumableRun
from tests.bank import TINY, fresh
from tests.quick_tensorflow import skip_graph_optimization
from tests.training.common import JIT, StopAt

skip_graph_optimization()

EPOCHS, STEPS, BATCH = 5, 7, 4  # 7 is not a multiple of the 3 accumulated batches
IMAGES = np.random.default_rng(0).integers(0, 256, (STEPS * BATCH, 16, 16, 3)).astype("float32")
LABELS = np.eye(4, dtype="float32")[np.arange(STEPS * BATCH) % 4]


def batches(start_step: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for step in itertools.count(start_step):
        order = np.random.default_rng([1, step // STEPS]).permutation(len(IMAGES))
        chosen = order[step % STEPS * BATCH :][:BATCH]
        weight = np.random.default_rng([2, step]).beta(0.4, 0.4)
        images, labels = (
            (weight * values + (1 - weight) * values[::-1]).astype("float32")
            for values in (IMAGES[chosen], LABELS[chosen])
        )
        yield images, labels


class KillAt(StopAt):
    """Kills the process some milliseconds after a step of the run."""

    def __init__(self, step: int, milliseconds: float) -> None:
        super().__init__(step)
        self.seconds = milliseconds / 1000

    def stop(self) -> None:
        threading.Timer(self.seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


def train(folder: Path, *callbacks: keras.callbacks.Callback) -> tuple[str, dict[str, Any], str]:
    """With all that is random or remembers: final weights' digest, history and CSV log."""
    changes = {"depth": 2, "mlp_dim": 32, "num_classes": 4, "dropout": 0.2, "stochastic_depth": 0.3}
    model, log = fresh(**{**TINY, **changes}, filled=False), folder / "history.csv"
    rise = {"warmup_target": 3e-3, "warmup_steps": 10}
    schedule = keras.optimizers.schedules.CosineDecay(0.0, EPOCHS * STEPS, **rise)
    averages = {"use_ema": True, "ema_momentum": 0.9, "gradient_accumulation_steps": 3}
    loss = keras.losses.CategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.AdamW(schedule, **averages)
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=JIT)
    run = ResumableRun(folder / "checkpoints", every_seconds=None, every_steps=2, print_fn=print)
    watching = [CSVLogger(log), EarlyStopping("val_loss", patience=20), *callbacks]
    options = {"validation_data": (IMAGES, LABELS), "callbacks": watching, "verbose": 0}
    history = run.fit(model, batches, EPOCHS, STEPS, **options)
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    return digest, history.history, log.read_text()


if __name__ == "__main__":
    train(Path(sys.argv[1]), KillAt(int(sys.argv[2]), float(sys.argv[3])))
