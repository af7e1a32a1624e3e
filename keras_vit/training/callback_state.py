"""What callbacks remember from epoch to epoch, and the CSV logs that they write."""

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.files import write_bytes
from keras_vit.training.state_file import StateFile

# What Keras's own callbacks remember from epoch to epoch. Others say it by `state_dict()`.
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


def callback_states(
    callbacks: Iterable[keras.callbacks.Callback], arrays: dict[str, Any]
) -> dict[str, Any]:
    """What callbacks remember, as JSON by class and number; arrays go to `arrays`."""
    states = ((name, _state(callback)) for name, callback in _named(callbacks))
    return {name: pack(state, name, arrays) for name, state in states if state is not None}


def set_callback_states(
    callbacks: Iterable[keras.callbacks.Callback], states: dict[str, Any], found: StateFile
) -> None:
    """Gives callbacks what they remembered; who was not there then starts anew."""
    for name, callback in _named(callbacks):
        if name in states:
            _set_state(callback, unpack(states[name], found))


def continue_logs(callbacks: Sequence[keras.callbacks.Callback], epoch: int) -> None:
    """Lets CSV logs go on, without the rows of `epoch` and later ones that will be run again."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
            path = Path(callback.filename)
            if path.exists():
                with path.open(newline="") as file:
                    header, *rows = list(csv.reader(file, delimiter=callback.sep)) or [[]]
                kept = [row for row in rows if row and row[0].isdigit() and int(row[0]) < epoch]
                text = io.StringIO(newline="")
                csv.writer(text, delimiter=callback.sep).writerows(
                    [header, *kept] if header else []
                )
                write_bytes(path, text.getvalue().encode())


def _named(
    callbacks: Iterable[keras.callbacks.Callback],
) -> list[tuple[str, keras.callbacks.Callback]]:
    """Callbacks by class and count: `callback/EarlyStopping/0`."""
    counts: dict[str, int] = {}
    named = []
    for callback in callbacks:
        kind = type(callback).__name__
        counts[kind] = counts.get(kind, -1) + 1
        named.append((f"callback/{kind}/{counts[kind]}", callback))
    return named


def _state(callback: keras.callbacks.Callback) -> dict[str, Any] | None:
    if hasattr(callback, "state_dict"):
        return callback.state_dict()
    for kind, names in REMEMBERED.items():
        if isinstance(callback, kind):
            return {name: getattr(callback, name) for name in names}
    return None


def _set_state(callback: keras.callbacks.Callback, state: dict[str, Any]) -> None:
    if hasattr(callback, "load_state_dict"):
        callback.load_state_dict(state)
    else:
        for name, value in state.items():
            setattr(callback, name, value)


def pack(value: Any, name: str, arrays: dict[str, Any]) -> Any:
    """JSON for a callback's state; arrays go to `arrays` and leave their name."""
    if isinstance(value, dict):
        return {"dict": {key: pack(v, f"{name}/{key}", arrays) for key, v in value.items()}}
    if isinstance(value, list | tuple):
        return [pack(v, f"{name}/{i}", arrays) for i, v in enumerate(value)]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) or keras.ops.is_tensor(value):
        arrays[name] = keras.ops.convert_to_numpy(value)
        return {"array": name}
    return value


def unpack(value: Any, found: StateFile) -> Any:
    if isinstance(value, dict):
        if "array" in value:
            return found.read(value["array"])
        return {key: unpack(v, found) for key, v in value["dict"].items()}
    if isinstance(value, list):
        return [unpack(v, found) for v in value]
    return value
