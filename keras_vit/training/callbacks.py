"""Callbacks: progress, logs, early stopping, the best model, a stop on a non-finite loss."""

import functools
import importlib.util
import io
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras

from keras_vit import ops as backend
from keras_vit._base.errors import check_positive
from keras_vit._base.files import atomic_write, write_bytes
from keras_vit._base.version import DISTRIBUTION
from keras_vit.trainer.guarded_step import synchronize
from keras_vit.training.lora import set_trainable_layers, trainable_layers


class NonFiniteLossError(FloatingPointError):
    """The loss became NaN or infinite.

    Attributes:
        step: Number of the step in the whole run, counted from 1.
        loss: The loss of that step.
        last_finite: Mean loss of the epoch before that step; None in an epoch's first step.
    """

    def __init__(self, message: str, step: int, loss: float, last_finite: float | None) -> None:
        super().__init__(message)
        self.step, self.loss, self.last_finite = step, loss, last_finite


class _StepCounter(keras.callbacks.Callback):
    """Counts the steps of an epoch, also where `ResumableRun` resumes in its middle."""

    epoch = 0
    skipped = 0  # steps of this epoch in an earlier process
    done = 0  # steps of this epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch, self.skipped, self.done = epoch, 0, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done = self.skipped + batch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.skipped = self.done = state["done"]

    @property
    def steps(self) -> int | None:
        """Steps of a whole epoch; None where `fit` does not know them."""
        return self.params.get("steps")


class StopAtNonFiniteLoss(_StepCounter):
    """Raises a `NonFiniteLossError` in the first step whose loss is NaN or infinite.

    Keras's `TerminateOnNaN` ends `fit` without an error.
    """

    last_finite: float | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch)
        self.last_finite = None  # `fit` reports the mean of an epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch)
        loss = float((logs or {}).get("loss", 0.0))
        if math.isfinite(loss):
            self.last_finite = loss
            return
        step = self.epoch * (self.steps or 0) + self.done
        before = (
            "it is the first step of its epoch"
            if self.last_finite is None
            else f"the epoch's mean before it was {self.last_finite:.6g}"
        )
        synchronize(self.model)
        learning_rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))
        raise NonFiniteLossError(
            f"The loss is {loss} in step {step} (epoch {self.epoch + 1}, step {self.done}): "
            f"{before}. The learning rate was {learning_rate:.3g}: try a third of it, a "
            "longer warm-up, clipping (global_clipnorm=1.0), float32 or bfloat16 in place of "
            "float16; and check that images and labels are finite.",
            step,
            loss,
            self.last_finite,
        )

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "last_finite": self.last_finite}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.last_finite = state["last_finite"]


class Progress(_StepCounter):
    """Prints the step, images per second, the remaining time and the metrics as one line.

    In a terminal the line has a bar and is rewritten in place, and each epoch leaves one without.
    Elsewhere (a file, a pipe, CI) there is a line per epoch, and one per minute within long epochs.
    Call `fit` with `verbose=0`, which switches Keras's own bar off. Validation is timed separately,
    so the remaining time is right from the second epoch on.

    Args:
        images_per_step: Images in a batch, for the images per second.
        print_fn: Prints a line; None for the standard output, in place if it is a terminal.

    Example:

    >>> import keras, numpy
    >>> from keras_vit.training.callbacks import Progress
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse", run_eagerly=True, jit_compile=False)
    >>> lines = []
    >>> x = numpy.zeros((64, 3))
    >>> _ = model.fit(x, x[:, :1], 32, verbose=0, callbacks=[Progress(32, lines.append)])
    >>> lines[0][:21]
    'epoch 1/1  step 2/2  '
    """

    def __init__(self, images_per_step: int, print_fn: Callable[[str], None] | None = None) -> None:
        super().__init__()
        check_positive(images_per_step=images_per_step)
        self.images_per_step = images_per_step
        self.terminal = print_fn is None and sys.stdout.isatty()
        self.print_fn = print_fn or functools.partial(print, flush=True)
        self.interval = 0.1 if self.terminal else 60.0
        self.step_seconds: float | None = None
        self.epoch_end_seconds = 0.0  # validation and other callbacks
        self.last_step: float | None = None
        self.shown = time.monotonic()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_begin(epoch)
        if self.last_step is not None:
            self.epoch_end_seconds = time.monotonic() - self.last_step
        self.last_step = None  # the time between two epochs is not a step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        super().on_train_batch_end(batch)
        now = time.monotonic()
        if self.last_step is not None:
            # Over about twenty steps; the very first, which compiles, is not counted.
            seconds = now - self.last_step
            average = seconds if self.step_seconds is None else self.step_seconds
            self.step_seconds = 0.95 * average + 0.05 * seconds
        self.last_step = now
        if now - self.shown >= self.interval:
            self.shown = now
            self._show(logs or {})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.shown = time.monotonic()
        self._show(logs or {}, is_last=True)

    def line(self, logs: Mapping[str, float]) -> str:
        """`epoch 3/60  step 12/40  512 images/s  1:10 left  loss 0.612  accuracy 0.81`."""
        return _joined(self._epoch, self._step, self._speed, self._time_left, *_metrics(logs))

    @property
    def _epoch(self) -> str:
        return f"epoch {self.epoch + 1}/{self.params['epochs']}"

    @property
    def _step(self) -> str:
        return f"step {self.done}/{self.steps or '?'}"

    @property
    def _speed(self) -> str:
        if not self.step_seconds:
            return ""
        return f"{self.images_per_step / self.step_seconds:,.0f} images/s"

    @property
    def _time_left(self) -> str:
        if not self.step_seconds or not self.steps:
            return ""
        epochs = self.params["epochs"] - self.epoch
        steps = epochs * self.steps - self.done
        epoch_ends = epochs - (self.done == self.steps)
        seconds = steps * self.step_seconds + epoch_ends * self.epoch_end_seconds
        return f"{_clock(seconds)} left"

    def _terminal_line(self, logs: Mapping[str, float], width: int, is_last: bool) -> str:
        """Return the richest line that fits a terminal, leaving out first what matters least."""
        epoch, step, metrics = self._epoch, self._step, _metrics(logs)
        if is_last:  # the numbers of finished epochs stand below each other, and all of them count
            lines = [self.line(logs), _joined(epoch, *metrics)]
        else:
            long, short = (_bar(self.done, self.steps, cells) for cells in (24, 12))
            lines = [
                _joined(epoch, long, step, self._speed, self._time_left, *metrics),
                _joined(epoch, short, step, self._speed, self._time_left, *metrics),
                _joined(epoch, short, step, self._time_left, *metrics),
                _joined(epoch, short, self._time_left, *metrics),
            ]
        return next((line for line in lines if len(line) <= width), lines[-1])

    def _show(self, logs: Mapping[str, float], is_last: bool = False) -> None:
        if not backend.is_first_process():
            return
        if not self.terminal:
            self.print_fn(self.line(logs))
            return
        width = shutil.get_terminal_size().columns - 1
        line = self._terminal_line(logs, width, is_last)
        if is_last:  # it may wrap, as it is not rewritten
            print(f"\r{line:{width}}", flush=True)
        else:
            print(f"\r{line[:width]:{width}}", end="", flush=True)


def _metrics(logs: Mapping[str, float]) -> list[str]:
    """Format all metrics but the learning rate, which `history.csv` has: the line is short."""
    return [f"{name} {value:.4g}" for name, value in logs.items() if name != LearningRate.KEY]


def _joined(*parts: str) -> str:
    return "  ".join(filter(None, parts))


def _bar(done: int, steps: int | None, cells: int) -> str:
    """`████████░░░░`, or `########....` where the terminal cannot show that."""
    if not steps:
        return ""
    full, empty = "█░"
    try:
        (full + empty).encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        full, empty = "#."
    count = round(cells * min(done / steps, 1.0))
    return full * count + empty * (cells - count)


class LearningRate(keras.callbacks.Callback):
    """Adds the `learning_rate` after the last step of each epoch to the metrics of `fit`.

    It must come before the callbacks that log it. Keras's `LearningRateScheduler` uses the same
    name; schedules in an optimizer are in no history otherwise.

    >>> import numpy
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile(keras.optimizers.SGD(0.25), "mse", run_eagerly=True, jit_compile=False)
    >>> x = numpy.zeros((4, 3))
    >>> model.fit(x, x[:, :1], verbose=0, callbacks=[LearningRate()]).history["learning_rate"]
    [0.25]
    """

    KEY = "learning_rate"

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            # On JAX, `self.model` brings the step that the schedule counts by up to date.
            logs[self.KEY] = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate))


class HistoryLog(keras.callbacks.CSVLogger):
    """Keras's `CSVLogger`, with a file that is replaced atomically after each epoch.

    A kill or a full disk leaves the rows of the epochs before.

    >>> import pathlib, tempfile
    >>> log = HistoryLog(pathlib.Path(tempfile.mkdtemp()) / "history.csv")
    >>> log.on_train_begin()  # `model.fit(callbacks=[log])` calls both
    >>> log.on_epoch_end(0, {"loss": 0.5, "val_loss": 0.7})
    >>> pathlib.Path(log.filename).read_text().splitlines()
    ['epoch,loss,val_loss', '0,0.5,0.7']
    """

    def on_train_begin(self, logs: Any = None) -> None:
        path = Path(self.filename)
        self.before = path.read_bytes() if self.append and path.exists() else b""
        self.append_header = not self.before
        self.csv_file = io.StringIO(newline="")
        self.writer = self.keys = None

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        if not backend.is_first_process():
            return
        write_bytes(self.filename, self.before + self.csv_file.getvalue().encode())


class BestModel(keras.callbacks.ModelCheckpoint):
    """Keras's `ModelCheckpoint` of the best epoch, with a file that is replaced atomically.

    A kill or a full disk leaves the best model of the epochs before. It is saved with `unfrozen`,
    what `lora.trainable_layers` returned before a recipe froze layers, where that is given.
    """

    def __init__(
        self, path: str | os.PathLike[str], monitor: str = "val_loss", unfrozen: Any = ()
    ) -> None:
        super().__init__(str(path), monitor, save_best_only=True)
        self.path = Path(path)
        self.best: Any
        self.unfrozen = unfrozen

    @property
    def model(self) -> Any:
        """The model to save: of a `Distillation`, the student alone."""
        model = super().model  # also brings the weights up to date on JAX
        return getattr(model, "student", model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        frozen = trainable_layers(self.model) if self.unfrozen else []
        set_trainable_layers(self.unfrozen)
        try:
            self._replace_file(epoch, logs)
        finally:
            set_trainable_layers(frozen)

    def _replace_file(self, epoch: int, logs: Any) -> None:
        if not backend.is_first_process():
            if backend.current_processes():  # which gather the weights to save together
                self.filepath = str(self.path)
                super().on_epoch_end(epoch, logs)
            return
        best = self.best
        try:
            with suppress(_NotImproved), atomic_write(self.path) as temporary:
                temporary.unlink()
                self.filepath = str(temporary)
                super().on_epoch_end(epoch, logs)
                if not temporary.exists():
                    raise _NotImproved
        except BaseException:
            self.best = best  # the file still holds that model
            raise


class _NotImproved(Exception):
    """Raised to leave the file unchanged, as the epoch is not the best one."""


def default_callbacks(
    folder: str | os.PathLike[str],
    images_per_step: int,
    monitor: str | None = "val_loss",
    patience: int | None = None,
    tensorboard: bool = False,
    print_fn: Callable[[str], None] | None = None,
    progress: bool = True,
    unfrozen: Any = (),
) -> list[keras.callbacks.Callback]:
    """Return the callbacks of `fit`, which is called with `verbose=0` as `Progress` is one of them.

    They write into `folder`: `history.csv`, a row per epoch; `best.keras`, the model of the epoch
    with the best `monitor`; `tensorboard/`, if asked for. `ResumableRun` restores their state.

    Args:
        folder: Created if missing.
        images_per_step: See `Progress`, also for `print_fn`.
        monitor: The metric of the best epoch, such as `"val_accuracy"`; None saves no best model.
        patience: Stop when `monitor` has not improved for this many epochs; None never stops.
        tensorboard: Write logs for TensorBoard.
        progress: Whether `Progress` is one of them.
        unfrozen: See `BestModel`.

    Raises:
        ValueError: `patience` below 1, or without a `monitor`.
        ImportError: `tensorboard=True`, and it is not installed.

    Example:

    >>> import tempfile
    >>> from keras_vit.training.callbacks import default_callbacks
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [type(callback).__name__ for callback in default_callbacks(folder, 32, patience=5)]
    ['StopAtNonFiniteLoss', 'LearningRate', 'HistoryLog', 'BestModel', 'EarlyStopping', 'Progress']
    """
    if patience is not None:
        check_positive(patience=patience)
        if monitor is None:
            raise ValueError(f"patience={patience} needs a monitor, such as 'val_accuracy'.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # StopAtNonFiniteLoss first: a diverged epoch is neither logged nor saved. Progress last, after
    # what the others print.
    log = HistoryLog(folder / "history.csv")
    callbacks: list[Any] = [StopAtNonFiniteLoss(), LearningRate(), log]
    if monitor is not None:
        callbacks.append(BestModel(folder / "best.keras", monitor, unfrozen))
    if patience is not None:
        callbacks.append(keras.callbacks.EarlyStopping(monitor, patience=patience))
    if tensorboard and backend.is_first_process():
        check_tensorboard()
        callbacks.append(keras.callbacks.TensorBoard(str(folder / "tensorboard")))
    return [*callbacks, *([Progress(images_per_step, print_fn)] if progress else [])]


def check_tensorboard() -> None:
    """Raises an ImportError where the callback for TensorBoard cannot work."""
    needed = {"tensorboard": "tensorboard", "tensorflow": f"{DISTRIBUTION}[tensorflow]"}
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        install = " ".join(f"'{needed[name]}'" for name in missing)
        raise ImportError(
            f"TensorBoard logs need {' and '.join(missing)}: pip install {install}. "
            "history.csv holds the same numbers."
        )


def _clock(seconds: float) -> str:
    """`0:07`, `12:30` or `3:04:05`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
