"""What callbacks remember from epoch to epoch, and the CSV logs that they write."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import keras

from keras_vit._base.files import write_bytes

Callbacks = Iterable[keras.callbacks.Callback]

# Attributes in which Keras's own callbacks remember something; others have `state_dict()`.
REMEMBERED: dict[type, tuple[str, ...]] = {
    keras.callbacks.History: ("history", "epoch"),
    keras.callbacks.EarlyStopping: ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "cooldown_counter", "best"),
    keras.callbacks.ModelCheckpoint: (
        "best",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
}


def callback_states(callbacks: Callbacks) -> dict[str, Any]:
    """Return what the callbacks remember, by class and number: JSON values and arrays."""
    states = {name: _state(callback) for name, callback in _named(callbacks)}
    return {name: state for name, state in states.items() if state is not None}


def set_callback_states(callbacks: Callbacks, states: dict[str, Any]) -> None:
    """Restores what the callbacks remembered; a callback without a state starts anew."""
    for name, callback in _named(callbacks):
        state = states.get(name, {})
        if name in states and hasattr(callback, "load_state_dict"):
            callback.load_state_dict(state)
        else:
            vars(callback).update(state)


def continue_logs(callbacks: Callbacks, epoch: int) -> None:
    """Makes CSV loggers append, after removing the rows of `epoch` and later ones."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
            path = Path(callback.filename)
            if path.exists():
                header, *rows = path.read_bytes().splitlines(keepends=True) or [b""]
                numbers = (re.match(rb"(\d+).*\n", row) for row in rows)
                earlier = [number[0] for number in numbers if number and int(number[1]) < epoch]
                write_bytes(path, b"".join([header, *earlier]))


def _named(callbacks: Callbacks) -> Iterator[tuple[str, keras.callbacks.Callback]]:
    """Callbacks by class and number among those of the class: `EarlyStopping/0`."""
    counts: dict[str, int] = {}
    for callback in callbacks:
        kind = type(callback).__name__
        counts[kind] = counts.get(kind, -1) + 1
        yield f"{kind}/{counts[kind]}", callback


def _state(callback: keras.callbacks.Callback) -> dict[str, Any] | None:
    if hasattr(callback, "state_dict"):
        return callback.state_dict()
    for kind, names in REMEMBERED.items():
        if isinstance(callback, kind):
            return {name: getattr(callback, name) for name in names}
    return None
