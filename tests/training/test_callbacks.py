"""What the callbacks of a run print and write: files appear whole or not at all."""

import csv
import errno
import importlib.util
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import keras
import numpy as np
import pytest

from keras_vit.training import callbacks
from keras_vit.training.callback_state import continue_logs
from keras_vit.training.callbacks import HistoryLog, NonFiniteLossError, Progress, default_callbacks
from keras_vit.training.resume import ResumableRun
from keras_vit.training.state_file import write_state
from keras_vit_cli.train.job import Job
from keras_vit_cli.train.run import train
from tests.backend import refused
from tests.training.common import QUICK, Killed, StopAt

EPOCHS, STEPS, BATCH = 3, 4, 8


def small_model(**compile_arguments: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **QUICK, **compile_arguments})
    return model


def batches(start_step: int, diverged: int = -1) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for step in itertools.count(start_step):
        x = np.random.default_rng(step).normal(size=(BATCH, 3)).astype("float32")
        yield x, np.full((BATCH, 1), np.nan if step == diverged else 1.0, "float32")


def fit(model: keras.Model, *chosen: Any, diverged: int = -1, **changes: Any) -> Any:
    fixed = {"epochs": EPOCHS, "steps_per_epoch": STEPS, "verbose": 0, "shuffle": False}
    return model.fit(batches(0, diverged), callbacks=list(chosen), **{**fixed, **changes})


@pytest.mark.every_backend
def test_the_step_that_diverged_is_named() -> None:
    model = small_model(run_eagerly=False)
    with pytest.raises(NonFiniteLossError, match=r"loss is nan in step 7 \(epoch 2, step 3\)") as e:
        fit(model, callbacks.StopAtNonFiniteLoss(), diverged=6)
    assert e.value.step == 7
    assert np.isfinite(e.value.last_finite)
    assert "learning rate was 0.01: try a third" in str(e.value)
    with pytest.raises(NonFiniteLossError, match="it is the first step of its epoch"):
        fit(small_model(), callbacks.StopAtNonFiniteLoss(), diverged=4)


def test_step_numbers_after_a_resume(tmp_path: Path) -> None:
    """Diverges in the eighth step of the run, which the second process reaches as its second."""

    def run(*chosen: Any) -> None:
        ours = default_callbacks(tmp_path / "logs", BATCH, "loss", print_fn=lines.append)
        options = {"callbacks": [*ours, *chosen], "verbose": 0}
        resumable = ResumableRun(tmp_path, None, every_steps=3, print_fn=lines.append)
        make = lambda start: batches(start, diverged=7)  # noqa: E731
        resumable.fit(small_model(), make, EPOCHS, STEPS, **options)

    lines: list[str] = []
    with pytest.raises(Killed):
        run(StopAt(4))
    refused(r"in step 8 \(epoch 2, step 4\)", run, error=NonFiniteLossError)
    assert lines[0].startswith("continues with step 4 (epoch 1 of 3, step 4 of 4)")
    assert lines[1].startswith("epoch 1/3  step 4/4")


class Clock(keras.callbacks.Callback):
    """A second per step, ten for validation."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.now = 0.0
        monkeypatch.setattr(callbacks.time, "monotonic", lambda: self.now)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.now += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.now += 10


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Callable[..., str]:

    def train_in(columns: int, **options: Any) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", str(columns))
        fit(small_model(), Clock(monkeypatch), Progress(BATCH), **options)
        return capsys.readouterr().out

    return train_in


@pytest.mark.parametrize("columns", [20, 50, 120])
def test_a_line_per_epoch_has_a_bar_and_every_metric(columns: int, terminal: Any) -> None:
    """The metrics of validation come last, and were cut off in a narrow terminal."""
    out = terminal(columns, validation_data=next(batches(0)))
    assert (out.count("\n"), out.count("\r")) == (EPOCHS, EPOCHS * (STEPS + 1))
    shown = out.split("\r")[1:]
    finished = [line.rstrip() for line in shown if "\n" in line]
    assert len(finished) == EPOCHS
    for epoch, line in enumerate(finished, 1):
        assert re.search(rf"^epoch {epoch}/3[^█]*  loss [\d.e-]+  val_loss [\d.e-]+$", line)
    running = [line for line in shown if "\n" not in line and columns > 20]
    assert {len(line) for line in running} <= {columns - 1}
    cells = [(line.count("█"), line.count("░")) for line in running]
    assert {full + empty for full, empty in cells} <= {12, 24}
    fractions = [full / (full + empty) for full, empty in cells]
    assert columns == 20 or fractions == [step / STEPS for step in range(1, STEPS + 1)] * EPOCHS
    assert all("loss" in line for line in running)


def test_bar_clock_and_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    # A terminal without block characters.
    with patch.object(callbacks.sys, "stdout", SimpleNamespace(encoding="ascii")):
        assert callbacks._bar(1, 4, 12) == "###........."
    assert callbacks._bar(5, None, 12) == ""  # `fit` does not know the number of steps
    assert [callbacks._clock(seconds) for seconds in (59.9, 11045)] == ["1:00", "3:04:05"]
    # One per epoch; of long epochs, one per minute.
    lines: list[str] = []
    fit(small_model(), Clock(monkeypatch), Progress(BATCH, lines.append))
    assert [line.split("  ")[:4] for line in lines] == [
        ["epoch 1/3", "step 4/4", "8 images/s", "0:08 left"],
        ["epoch 2/3", "step 4/4", "8 images/s", "0:14 left"],  # validation is known by now
        ["epoch 3/3", "step 4/4", "8 images/s", "0:00 left"],
    ]
    lines.clear()
    clock, progress = Clock(monkeypatch), Progress(BATCH, lines.append)
    fit(small_model(), clock, progress, epochs=1, steps_per_epoch=150)
    printed = [line.split("  ")[1] for line in lines]
    assert printed == ["step 60/150", "step 120/150", "step 150/150"]


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    chosen = default_callbacks(tmp_path, BATCH, tensorboard=True)
    assert any(isinstance(callback, keras.callbacks.TensorBoard) for callback in chosen)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    listing = "keras_vit_cli.train.run.load_splits"
    monkeypatch.setattr(listing, lambda job: pytest.fail("data were listed"))
    for call in (
        lambda: default_callbacks(tmp_path, BATCH, tensorboard=True),
        lambda: train(Job("digits", tmp_path / "run", tensorboard=True)),
    ):
        refused(r"pip install 'tensorboard' 'keras3-vit", call, error=ImportError)
    assert not list(tmp_path.iterdir())


def test_default_callbacks_write_the_log_and_the_best_model(tmp_path: Path) -> None:
    for options, message in (
        ({"patience": 0}, "patience=0 must be"),
        ({"patience": 3, "monitor": None}, "patience=3 needs a monitor"),
        ({"images_per_step": 0}, "images_per_step=0 must be"),
    ):
        refused(message, default_callbacks, tmp_path, **{"images_per_step": BATCH, **options})
    lines: list[str] = []
    model = small_model(optimizer=keras.optimizers.SGD(1.0))  # diverges: the first is the best
    ours = default_callbacks(tmp_path / "logs", BATCH, patience=1, print_fn=lines.append)
    options = {"epochs": 9, "steps_per_epoch": 1, "validation_data": next(batches(0))}
    history = fit(model, *ours, **options).history
    stopped = len(history["loss"])
    assert len(lines) == stopped < 9
    assert f"val_loss {history['val_loss'][0]:.4g}" in lines[0]
    with (tmp_path / "logs" / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["val_loss"]) for row in rows] == history["val_loss"]
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates == history["learning_rate"] == [1] * stopped
    assert "learning_rate" not in lines[0]
    assert (tmp_path / "logs" / "best.keras").exists()


# Which file each of them writes.
WRITES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "history": ("history.csv", lambda path: fit(small_model(), HistoryLog(path))),
    "best": ("best.keras", lambda path: fit(small_model(), callbacks.BestModel(path, "loss"))),
    "continued log": ("history.csv", lambda path: continue_logs([HistoryLog(path)], epoch=1)),
    "state": ("state.safetensors", lambda path: write_state(path, {"a": np.arange(4)}, {})),
}


@pytest.mark.parametrize("case", WRITES)
def test_a_full_disk_leaves_the_file_that_was_there(case: str, tmp_path: Path) -> None:
    name, write = WRITES[case]
    path = tmp_path / name
    path.write_bytes(before := b"epoch,loss\r\n0,1.0\r\n1,0.5\r\n")
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        patch.object(os, "fsync", side_effect=full),
        pytest.raises(OSError, match=f"No space left on device: .*{path.stem}"),
    ):
        write(path)
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".*"))  # no temporary file
    write(path)
    assert path.read_bytes() != before


def test_the_best_model_and_the_history(tmp_path: Path) -> None:
    best, model = callbacks.BestModel(tmp_path / "best.keras"), small_model()
    fit(model, epochs=1)
    best.set_model(model)
    for epoch, (loss, bias) in enumerate([(0.7, 1.0), (0.5, 2.0), (0.6, 3.0)]):
        model.layers[0].bias.assign([bias])
        best.on_epoch_end(epoch, {"val_loss": loss})
    assert keras.saving.load_model(tmp_path / "best.keras").layers[0].get_weights()[1] == [2.0]
    path = tmp_path / "history.csv"
    fit(small_model(), HistoryLog(path))
    log = HistoryLog(path)
    continue_logs([log], epoch=2)
    assert [line[:2] for line in path.read_text().splitlines()] == ["ep", "0,", "1,"]
    fit(small_model(), log, epochs=1)
    assert [line[:2] for line in path.read_text().splitlines()] == ["ep", "0,", "1,", "0,"]
    schedule = keras.optimizers.schedules.PolynomialDecay(0.5, EPOCHS * STEPS, 0.1)
    model = small_model(optimizer=keras.optimizers.SGD(schedule), run_eagerly=False)
    rates = fit(model, callbacks.LearningRate()).history["learning_rate"]
    expected = [float(schedule(epoch * STEPS)) for epoch in range(1, EPOCHS + 1)]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
