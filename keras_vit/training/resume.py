"""Exact resume: an interrupted run ends with the weights of an uninterrupted one.

Keras's `BackupAndRestore` does not save the seeds of dropout, the step within an epoch or the state
of other callbacks. A checkpoint here is everything that changes, before one step: weights,
optimizer (moments, averages, accumulators, iterations), seed generators, metrics, history and
callbacks. The data depend on the number of the step alone.
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

from keras_vit import ops as backend
from keras_vit._base.errors import check_positive
from keras_vit.trainer.guarded_step import synchronize
from keras_vit.training.callback_state import callback_states, continue_logs, set_callback_states
from keras_vit.training.run_identity import (
    RunMismatchError,
    check_identity,
    check_variables,
    identity,
    variable_key,
)
from keras_vit.training.state_file import StateFile, is_state, open_state, write_state
from keras_vit.weights import CheckpointError

__all__ = ["DamagedCheckpointWarning", "ResumableRun", "RunMismatchError"]

CHECKPOINT_SECONDS = 60.0

# Checkpoints by time take at most this share of it.
MAX_SAVING_SHARE = 0.05

# In several processes, the steps between looks at a common clock, each of which waits for all.
STEPS_BETWEEN_CLOCKS = 8

# `fit` leaves its loop over batches when `stop_training` is true; this value ends one epoch only.
_END_OF_EPOCH = "end of a resumed epoch"


class DamagedCheckpointWarning(UserWarning):
    """A damaged checkpoint was skipped for the one before it."""


@dataclass
class ResumableRun:
    """A training that may be killed at any moment and resumed by the same call.

    For any compiled `keras.Model`, on every backend, with `jit_compile`, `steps_per_execution`,
    gradient accumulation and `use_ema`. Equal bit for bit where the backend is deterministic, as on
    CPUs. Random layers must own their `SeedGenerator`, as those of Keras and this package do.
    (torch's own generator is restored, too, for dropout without a seed.)

    Attributes:
        folder: Folder of the checkpoints, `step-NUMBER.safetensors`, each with its SHA-256 sum.
        every_seconds: Time between checkpoints, longer where writing them would take more than
            5 % of it; None for checkpoints by steps alone.
        every_steps: Steps between checkpoints, counted from the start of the run; None for
            checkpoints by time alone.
        keep: How many checkpoints to keep, at least 1. With 2, one may be damaged.
        recipe: What else must agree for a checkpoint to belong to the run, such as the seed and the
            data; anything that JSON can express.
        print_fn: Prints the step with which the run continues.

    Raises:
        ValueError: A number is out of range, or neither interval is given.

    Example:

    >>> import keras, numpy, tempfile
    >>> from keras_vit.training.resume import ResumableRun
    >>> def batches(start_step):  # endless; each batch depends on its step alone
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
    finished already, at step 10
    >>> again.history == history.history
    True
    """

    folder: str | os.PathLike[str]
    every_seconds: float | None = CHECKPOINT_SECONDS
    every_steps: int | None = None
    keep: int = 2
    recipe: Any = None
    print_fn: Callable[[str], None] = print

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
        """`model.fit`, from the newest undamaged checkpoint, or from the start without one.

        Args:
            model: Compiled. Its initial values are used only where there is no checkpoint.
            make_batches: A function of the number of a step, counted from 0 through the whole run.
                It returns whatever `fit` takes (tf.data, generator, torch's `DataLoader`,
                `PyDataset` without its workers), which starts with this step's batch, lasts to the
                end of the run, and is the same for the same step.
            epochs: Epochs of the whole run.
            steps_per_epoch: Batches of a whole epoch.
            callbacks: Their state is restored, if they are Keras's own or have `state_dict()` and
                `load_state_dict(state)`. A `CSVLogger`'s file is continued, without the rows of
                epochs that run again.
            **fit_arguments: Further arguments of `fit`, such as `validation_data` and `verbose`.

        Returns:
            The history of the whole run. A finished run is restored, and not trained again.

        Raises:
            RunMismatchError: The newest checkpoint belongs to another run.
            ValueError: The batches end too early, or `steps_per_epoch` is not a multiple of the
                model's `steps_per_execution`.
            OSError: A checkpoint could not be written.

        Warns:
            DamagedCheckpointWarning: A checkpoint was skipped.
        """
        check_positive(epochs=epochs, steps_per_epoch=steps_per_epoch)
        if steps_per_epoch % model.steps_per_execution:
            raise ValueError(
                f"steps_per_epoch={steps_per_epoch} must be a multiple of the model's "
                f"steps_per_execution={model.steps_per_execution}."
            )
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        run_identity = identity(model, epochs, steps_per_epoch, self.recipe)
        checkpoint = next(_undamaged(folder), None)
        step, finished = 0, False
        if checkpoint is not None:
            check_identity(checkpoint.path, checkpoint.state["identity"], run_identity)
            step, finished = checkpoint.state["step"], checkpoint.state["finished"]
        if not backend.same_in_all_processes(2 * step + finished):
            raise ValueError(
                f"The processes found different checkpoints in {folder}; this one continues with "
                f"step {step + 1}. Give all of them one folder that every machine sees."
            )
        if checkpoint is not None:
            # Of the data, a finished run needs the shapes alone.
            _build(model, make_batches(0 if finished else step))
            check_variables(checkpoint, _variables(model))
        epoch = step // steps_per_epoch
        history = keras.callbacks.History()
        saver = _Saver(self, checkpoint, run_identity, steps_per_epoch, [*callbacks, history])
        if finished:
            self._print(f"finished already, at step {step}")
            history.set_model(model)
            saver.set_model(model)
            saver.restore()
            return history
        if checkpoint is not None:
            if backend.is_first_process():
                continue_logs(callbacks, epoch)
            self._print(
                f"continues with step {step + 1} (epoch {epoch + 1} of {epochs}, step "
                f"{step % steps_per_epoch + 1} of {steps_per_epoch}) from {checkpoint.path}"
            )
        batches = make_batches(step)
        _check_length(batches, epochs * steps_per_epoch - step)
        if isinstance(batches, keras.utils.PyDataset):
            # A PyDataset insists on whole epochs; the first of a resumed run is part of one.
            dataset = batches
            batches = (dataset[i] for i in range(len(dataset)))
        return model.fit(
            batches,
            epochs=epochs,
            steps_per_epoch=steps_per_epoch,
            initial_epoch=epoch,
            callbacks=[*callbacks, history, saver],  # the last sees what the others did
            **{"shuffle": False, **fit_arguments},
        )

    def _print(self, line: str) -> None:
        if backend.is_first_process():
            self.print_fn(line)


class _Saver(keras.callbacks.Callback):
    """Saves before steps, and restores before the first one.

    Not after steps, as JAX may call `on_train_batch_end` from another thread.
    """

    def __init__(
        self,
        run: ResumableRun,
        checkpoint: StateFile | None,
        run_identity: dict[str, Any],
        steps_per_epoch: int,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> None:
        super().__init__()
        self.run, self.checkpoint, self.identity = run, checkpoint, run_identity
        self.steps_per_epoch, self.callbacks = steps_per_epoch, callbacks
        self.saved_step = checkpoint.state["step"] if checkpoint else 0
        self.skipped = self.saved_step % steps_per_epoch  # steps of the resumed epoch
        self.step = self.saved_step  # counted through the whole run
        self.epoch_end = 0  # the step with which the next epoch starts
        self.due = time.monotonic() + (run.every_seconds or 0)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch_end = (epoch + 1) * self.steps_per_epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # At the point where it was saved: metrics were reset before, the other callbacks have
        # started the epoch, and torch's DataLoader has drawn its seed.
        if self.checkpoint is not None:
            self.restore()
            self.checkpoint = None
        # Keras counts the steps of a resumed epoch from 0, too, and would run a whole epoch.
        self.step = self.epoch_end - self.steps_per_epoch + self.skipped + batch
        if self.step > self.saved_step and self._is_due():
            self.save(finished=False)
        is_last = self.step + self.model.steps_per_execution >= self.epoch_end
        if is_last and self.skipped and not self.model.stop_training:
            self.model.stop_training = _END_OF_EPOCH

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model.stop_training == _END_OF_EPOCH:
            self.model.stop_training = False
        is_complete = self.step + self.model.steps_per_execution >= self.epoch_end
        if not is_complete and not self.model.stop_training:
            raise ValueError(
                f"The batches ended at step {self.step} of {self.params['epochs']} epochs of "
                f"{self.steps_per_epoch}: make_batches(start_step) must last to the end of the "
                "run, as with repeat=True."
            )
        self.skipped = 0
        self.step = self.epoch_end

    def on_train_end(self, logs: Any = None) -> None:
        self.save(finished=True)
        backend.wait_for_processes()  # none of them ends before the file is there

    def _is_due(self) -> bool:
        run = self.run
        by_steps = run.every_steps is not None and (
            self.step // run.every_steps > self.saved_step // run.every_steps
        )
        if by_steps or run.every_seconds is None:
            return by_steps
        by_time = time.monotonic() >= self.due
        if not backend.current_processes():
            return by_time
        # They save together, by the clock of the first.
        return self.step % STEPS_BETWEEN_CLOCKS == 0 and bool(
            backend.from_all_processes(by_time)[0]
        )

    def save(self, finished: bool) -> None:
        started = time.monotonic()
        synchronize(self.model)
        variables = _variables(self.model)
        # A diverged model is not saved: the checkpoint before it is worth more.
        is_finite = all(map(_is_finite, self.model.trainable_variables))
        # Several processes have the same state, each perhaps a part, and the first one writes it.
        with backend.whole_values(variables.values()):
            if is_finite and backend.is_first_process():
                state = {
                    "step": self.step,
                    "finished": finished,
                    "identity": self.identity,
                    "callbacks": callback_states(self.callbacks),
                    "random": backend.random_state(),
                }
                folder = Path(self.run.folder)
                path = folder / f"step-{self.step:09d}.safetensors"
                write_state(path, variables, state)
                _prune(folder, self.step, self.run.keep)
        self.saved_step = self.step
        now = time.monotonic()
        self.due = now + max(self.run.every_seconds or 0, (now - started) / MAX_SAVING_SHARE)

    def restore(self) -> None:
        assert self.checkpoint is not None
        stored_names = {variable_key(name): name for name in self.checkpoint.arrays}
        for name, variable in _variables(self.model).items():
            variable.assign(self.checkpoint.read(stored_names[variable_key(name)]))
        set_callback_states(self.callbacks, self.checkpoint.state["callbacks"])
        backend.set_random_state(self.checkpoint.state["random"])


def _variables(model: keras.Model) -> dict[str, Any]:
    """Return every variable that a step changes, seeds included, by `kind/number/path`."""
    kinds = {
        "trainable": model.trainable_variables,
        "fixed": backend.changing_variables(model),
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
    """Builds the variables of optimizer and metrics, as the first step of `fit` would."""
    # A tf.data pipeline has the shapes without running.
    spec = getattr(batches, "element_spec", None)
    model._symbolic_build(data_batch=next(iter(batches)) if spec is None else spec)


def _check_length(batches: Any, steps: int) -> None:
    try:
        length = len(batches)
    except TypeError:  # endless, or of unknown length
        return
    if length < steps:
        raise ValueError(
            f"make_batches returned {length} batches for the remaining {steps} steps: it must last "
            "to the end of the run, as with repeat=True."
        )


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"step-{'[0-9]' * 9}.safetensors"), reverse=True)


def _undamaged(folder: Path) -> Iterator[StateFile]:
    """Yield the checkpoints in a folder, newest first, with a warning for each that is damaged."""
    for path in _newest_first(folder):
        try:
            yield open_state(path)
        except CheckpointError as error:
            warnings.warn(
                f"{error} Continuing with the checkpoint before it, or from the start.",
                DamagedCheckpointWarning,
                stacklevel=3,
            )


def _prune(folder: Path, step: int, keep: int) -> None:
    """Deletes all but the newest checkpoints; what is newer than `step` was damaged."""
    paths = _newest_first(folder)
    current = [path for path in paths if path.name <= f"step-{step:09d}.safetensors"]
    temporary = folder.glob(".step-*.part*")
    for path in {*paths, *temporary} - {*current[:keep]}:
        if is_state(path):
            path.unlink(missing_ok=True)
