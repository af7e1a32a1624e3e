"""Exact resume: a run that was killed ends with the weights of one that never was.

Keras's `BackupAndRestore` forgets the seeds of dropout, the place within an epoch and what other
callbacks remember. Here a checkpoint is the state before one step, of everything that changes:
weights, optimizer (moments, averages, accumulators, iterations), seed generators, metrics, history
and callbacks. The data follow from the number of the step alone.
"""

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit import backend
from keras_vit.checkpoints import CheckpointError
from keras_vit.errors import check_positive
from keras_vit.training.callback_state import (
    callback_states,
    continue_logs,
    pack,
    set_callback_states,
    unpack,
)
from keras_vit.training.run_identity import (
    OtherRunError,
    check_identity,
    check_variables,
    identity,
    place_of,
)
from keras_vit.training.state_file import StateFile, is_state, open_state, write_state

__all__ = ["DamagedCheckpointWarning", "OtherRunError", "ResumableRun"]

# With checkpoints by time, at most this share of it goes into writing them.
LARGEST_SHARE = 0.05

# `fit` leaves its loop over batches when `stop_training` is true; this truth means "this epoch".
_EPOCH_IS_OVER = "the rest of a resumed epoch is over"


class DamagedCheckpointWarning(UserWarning):
    """A checkpoint was passed over for the one before; the message names the bytes or the tensor.

    Example:

    >>> from keras_vit.training.resume import DamagedCheckpointWarning
    >>> issubclass(DamagedCheckpointWarning, UserWarning)
    True
    """


@dataclass
class ResumableRun:
    """One training that may be killed at any moment and started again by the same call.

    For any compiled `keras.Model`, on every backend, with `jit_compile`, `steps_per_execution`,
    gradient accumulation and `use_ema`. Bit for bit where the backend itself computes the same
    twice, as on CPUs. Random layers must own their `SeedGenerator`, as Keras's and this package's
    do (torch's own generator is restored, too: unseeded dropout draws from it).

    Attributes:
        folder: Where checkpoints are, `step-NUMBER.safetensors`, each whole and checksummed.
        every_seconds: Time between checkpoints, stretched where writing them would take more than
            5 % of it; None for no such rule.
        every_steps: Steps between checkpoints, counted from the first of the run; None likewise.
        keep: How many checkpoints stay, at least 1. With 2, one may be damaged.
        recipe: What else must agree for two runs to be one, such as the seed and the data; anything
            that JSON can write.
        say: Where the line goes that tells where the run continues.

    Raises:
        ValueError: A number out of range, or no rule at all.

    Example:

    >>> import keras, numpy, tempfile
    >>> from keras_vit.training.resume import ResumableRun
    >>> def batches(start_step):  # endless, and a function of the step alone
    ...     while True:
    ...         x = numpy.random.default_rng(start_step).normal(size=(4, 3)).astype("float32")
    ...         yield x, x[:, :1]
    ...         start_step += 1
    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile("adam", "mse", jit_compile=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = ResumableRun(folder, every_steps=4)
    ...     history = run.fit(model, batches, epochs=2, steps_per_epoch=5, verbose=0)
    ...     again = run.fit(model, batches, epochs=2, steps_per_epoch=5, verbose=0)
    finished before, at step 10
    >>> again.history == history.history
    True
    """

    folder: str | os.PathLike[str]
    every_seconds: float | None = 60.0
    every_steps: int | None = None
    keep: int = 2
    recipe: Any = None
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        check_positive(keep=self.keep)
        if self.every_steps is not None:
            check_positive(every_steps=self.every_steps)
        if self.every_seconds is None and self.every_steps is None:
            raise ValueError("Neither every_seconds nor every_steps is given: give one of them.")
        if self.every_seconds is not None and not self.every_seconds >= 0:
            raise ValueError(f"every_seconds={self.every_seconds!r} must be 0 or more, or None.")

    def fit(
        self,
        model: keras.Model,
        make_batches: Callable[[int], Any],
        epochs: int,
        steps_per_epoch: int,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **fit_arguments: Any,
    ) -> keras.callbacks.History:
        """`model.fit`, from the newest undamaged checkpoint on, or from the start without one.

        Args:
            model: Compiled. Its initial values matter at the very start only.
            make_batches: From the number of a step, counted from 0 through the whole run, to
                whatever `fit` takes (tf.data, generator, torch's `DataLoader`, `PyDataset` without
                its workers) that begins with this step's batch and lasts to the end of the run.
                The same step, the same batch.
            epochs: Of the whole run.
            steps_per_epoch: Batches of a whole epoch.
            callbacks: What they remember is restored: Keras's own, and any with `state_dict()`
                and `load_state_dict(state)`. A `CSVLogger`'s file is continued without rows of
                epochs that are run again.
            **fit_arguments: More for `fit`, such as `validation_data` and `verbose`.

        Returns:
            The history of the whole run; a finished run is restored and not trained again.

        Raises:
            OtherRunError: The newest checkpoint is of another model, optimizer, recipe or backend.
            ValueError: The batches end too early, or steps and `steps_per_execution` do not fit.
            OSError: A checkpoint could not be written.

        Warns:
            DamagedCheckpointWarning: A checkpoint was passed over.
        """
        check_positive(epochs=epochs, steps_per_epoch=steps_per_epoch)
        if steps_per_epoch % model.steps_per_execution:
            raise ValueError(
                f"steps_per_epoch={steps_per_epoch} must be a multiple of the model's "
                f"steps_per_execution={model.steps_per_execution}."
            )
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        facts = identity(model, epochs, steps_per_epoch, self.recipe)
        found = next(_undamaged(folder), None)
        step, finished = 0, False
        if found is not None:
            check_identity(found, facts)
            step, finished = found.notes["step"], found.notes["finished"]
            # A finished run needs no data but their shapes.
            _build(model, make_batches(0 if finished else step))
            check_variables(found, _variables(model))
        epoch = step // steps_per_epoch
        history = keras.callbacks.History()
        saver = _Saver(self, found, facts, steps_per_epoch, [*callbacks, history])
        if finished:
            self.say(f"finished before, at step {step}")
            history.set_model(model)
            saver.set_model(model)
            saver.restore()
            return history
        if found is not None:
            continue_logs(callbacks, epoch)
            self.say(
                f"continues with step {step + 1} (epoch {epoch + 1} of {epochs}, step "
                f"{step % steps_per_epoch + 1} of {steps_per_epoch}) from {found.path}"
            )
        batches = make_batches(step)
        _check_length(batches, epochs * steps_per_epoch - step)
        if isinstance(batches, keras.utils.PyDataset):
            # As such it insists on whole epochs, and the one that is resumed is none.
            batches = _in_order(batches)
        return model.fit(
            batches,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            initial_epoch=epoch,
            callbacks=[*callbacks, history, saver],  # last: it sees what the others did
            **{"shuffle": False, **fit_arguments},
        )


class _Saver(keras.callbacks.Callback):
    """Saves before steps, and restores before the first one.

    Not after steps: JAX calls `on_train_batch_end` from another thread unless a callback needs it.
    """

    def __init__(
        self,
        run: ResumableRun,
        found: StateFile | None,
        facts: dict[str, Any],
        steps_per_epoch: int,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> None:
        super().__init__()
        self.run, self.found, self.identity = run, found, facts
        self.steps_per_epoch, self.callbacks = steps_per_epoch, callbacks
        self.saved = found.notes["step"] if found else 0
        self.skipped = self.saved % steps_per_epoch  # of the epoch that is resumed
        self.step = self.saved  # of the whole run
        self.end = 0  # of this epoch
        self.due = time.monotonic() + (run.every_seconds or 0)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.end = (epoch + 1) * self.steps_per_epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Exactly where it was saved: metrics are reset before, other callbacks have begun the
        # epoch, and torch has drawn a seed for its loader of data.
        if self.found is not None:
            self.restore()
            self.found = None
        # Keras counts the steps of a resumed epoch from 0, too, and would run a whole one.
        self.step = self.end - self.steps_per_epoch + self.skipped + batch
        if self.step > self.saved and self._is_due():
            self.save(finished=False)
        last = self.step + self.model.steps_per_execution >= self.end
        if last and self.skipped and not self.model.stop_training:
            self.model.stop_training = _EPOCH_IS_OVER

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model.stop_training == _EPOCH_IS_OVER:
            self.model.stop_training = False
        complete = self.step + self.model.steps_per_execution >= self.end
        if not complete and not self.model.stop_training:
            raise ValueError(
                f"The batches ended at step {self.step} of {self.params['epochs']} epochs of "
                f"{self.steps_per_epoch}: make_batches(start_step) must last to the end of the "
                "run, as with repeat=True."
            )
        self.skipped = 0
        self.step = self.end

    def on_train_end(self, logs: Any = None) -> None:
        self.save(finished=True)

    def _is_due(self) -> bool:
        run = self.run
        by_steps = run.every_steps is not None and (
            self.step // run.every_steps > self.saved // run.every_steps
        )
        return by_steps or (run.every_seconds is not None and time.monotonic() >= self.due)

    def save(self, finished: bool) -> None:
        started = time.monotonic()
        backend.synchronize(self.model)
        # What has diverged is lost: an older checkpoint is worth more.
        if all(_is_finite(variable) for variable in self.model.trainable_variables):
            arrays = _variables(self.model)
            notes = {
                "step": self.step,
                "finished": finished,
                "identity": self.identity,
                "callbacks": callback_states(self.callbacks, arrays),
                "random": pack(backend.random_state(), "random", arrays),
            }
            folder = Path(self.run.folder)
            write_state(folder / f"step-{self.step:09d}.safetensors", arrays, notes)
            _prune(folder, self.step, self.run.keep)
        self.saved = self.step
        now = time.monotonic()
        self.due = now + max(self.run.every_seconds or 0, (now - started) / LARGEST_SHARE)

    def restore(self) -> None:
        assert self.found is not None
        in_file = {place_of(name): name for name in self.found.places}
        for name, variable in _variables(self.model).items():
            variable.assign(self.found.read(in_file[place_of(name)]))
        set_callback_states(self.callbacks, self.found.notes["callbacks"], self.found)
        backend.set_random_state(unpack(self.found.notes["random"], self.found))


def _variables(model: keras.Model) -> dict[str, Any]:
    """Everything of a model that a step changes, seeds included, as `kind/number/path`."""
    kinds = {
        "trainable": model.trainable_variables,
        "fixed": model.non_trainable_variables,
        "optimizer": model.optimizer.variables,
        "metric": model.metrics_variables,
    }
    return {
        f"{kind}/{i}/{variable.path}": variable
        for kind, variables in kinds.items()
        for i, variable in enumerate(variables)
    }


def _is_finite(variable: Any) -> bool:
    total = keras.ops.sum(keras.ops.cast(variable, "float32"))
    return bool(np.isfinite(keras.ops.convert_to_numpy(total)))


def _build(model: keras.Model, batches: Any) -> None:
    """Makes the variables of optimizer and metrics, which `fit` makes as late as its first step."""
    # A tf.data pipeline tells the shapes without running.
    spec = getattr(batches, "element_spec", None)
    model._symbolic_build(data_batch=next(iter(batches)) if spec is None else spec)


def _check_length(batches: Any, steps: int) -> None:
    try:
        length = len(batches)
    except TypeError:  # endless, or nobody knows
        return
    if length < steps:
        raise ValueError(
            f"make_batches gave {length} batches where {steps} steps remain: it must last to the "
            "end of the run, as with repeat=True."
        )


def _in_order(batches: keras.utils.PyDataset) -> Iterator[Any]:
    for i in range(len(batches)):
        yield batches[i]


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"step-{'[0-9]' * 9}.safetensors"), reverse=True)


def _undamaged(folder: Path) -> Iterator[StateFile]:
    """The checkpoints of a folder, newest first; of a damaged one there is a warning instead."""
    for path in _newest_first(folder):
        try:
            yield open_state(path)
        except CheckpointError as error:
            warnings.warn(
                f"{error} Going on with the checkpoint before it, or from the start.",
                DamagedCheckpointWarning,
                stacklevel=3,
            )


def _prune(folder: Path, step: int, keep: int) -> None:
    """Leaves the newest checkpoints. What is newer than now was damaged, or is half written."""
    paths = _newest_first(folder)
    past = [path for path in paths if path.name > f"step-{step:09d}.safetensors"]
    kept = [path for path in paths if path not in past][:keep]
    parts = folder.glob(".step-*.part")
    for path in {*paths, *parts} - {*kept}:
        if is_state(path):
            path.unlink(missing_ok=True)
