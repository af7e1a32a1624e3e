"""The state of a run in one `.safetensors` file that carries its own SHA-256 sum.

Its tensor `state` is JSON as bytes: what is not an array, and dtype and shape of each array.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import ml_dtypes
import numpy as np

from keras_vit._base.files import atomic_write, begins_with_mark
from keras_vit.weights import CheckpointError
from keras_vit.weights.containers.sums import (
    SEAL_KEY,
    UNSET_SEAL,
    carries_sum,
    check_file,
    write_seal,
)

_METADATA = {"written_by": "keras_vit", SEAL_KEY: UNSET_SEAL}
_MARK = b'"written_by":"keras_vit"'  # in the header, as the library writes it


@dataclass
class StateFile:
    """A verified file, whose `arrays`, dtype and shape by name, are read on demand."""

    path: Path
    arrays: dict[str, tuple[str, list[int]]]
    _json: str

    def read(self, name: str) -> np.ndarray:
        """Return one array, exactly as it was written."""
        # Opened for each, so that the file can be deleted while the run goes on.
        array, dtype = _read(self.path, name), self.arrays[name][0]
        return array if array.dtype.name == dtype else array.view(getattr(ml_dtypes, dtype))

    @cached_property
    def state(self) -> dict[str, Any]:
        """Return what `write_state` was given, with its arrays."""
        return json.loads(
            self._json,
            object_hook=lambda entry: (
                self.read(entry["array"]) if entry.keys() == {"array"} else entry
            ),
        )


def write_state(path: Path, arrays: Mapping[str, Any], state: dict[str, Any]) -> None:
    """Writes arrays or Keras variables, and a state of JSON values and further arrays, atomically.

    Raises:
        OSError: The disk is full or the folder cannot be written; an existing file stays. The
            error names the file.
        TypeError: A value that is neither an array nor one that JSON can express.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    tensors = {name: _to_numpy(value) for name, value in arrays.items()}

    def encode(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        name = f"state/{len(tensors)}"
        tensors[name] = _to_numpy(value)
        return {"array": name}

    text = json.dumps(state, default=encode)
    described = {name: (array.dtype.name, array.shape) for name, array in tensors.items()}
    content = json.dumps({"state": text, "arrays": described})
    tensors = {
        # bfloat16 and float8 as integers of the same bits: older releases of the library lack them.
        name: value if value.dtype.isbuiltin == 1 else value.view(f"u{value.itemsize}")
        for name, value in tensors.items()
    }
    tensors["state"] = np.frombuffer(content.encode(), np.uint8)
    with atomic_write(path) as temporary:
        try:
            save_file(tensors, temporary, _METADATA)
        except SafetensorError as error:  # of a full disk, too
            raise OSError(str(error)) from error
        write_seal(temporary)


def open_state(path: Path) -> StateFile:
    """Verifies a whole file and reads its state.

    Raises:
        CheckpointError: The file is damaged, cut off, or not one of `write_state`.
    """
    from safetensors import SafetensorError

    if not is_state(path) or not carries_sum(path):
        raise CheckpointError(f"{path} is not a checkpoint of a run, or it was cut off.")
    check_file(path)
    try:
        content = json.loads(_read(path, "state").tobytes())
    except SafetensorError as error:
        raise CheckpointError(f"{path} is not a checkpoint of a run: {error}.") from error
    return StateFile(path, content["arrays"], content["state"])


def is_state(path: Path) -> bool:
    """Return whether `write_state` began this file, by the mark in its header."""
    return begins_with_mark(path, _MARK)


def _read(path: Path, name: str) -> np.ndarray:
    from safetensors import safe_open  # with the first checkpoint, not with the package

    with safe_open(path, "numpy") as file:
        return file.get_tensor(name)


def _to_numpy(value: Any) -> np.ndarray:
    if not (isinstance(value, np.ndarray | keras.Variable) or keras.ops.is_tensor(value)):
        raise TypeError(f"{value!r} is neither an array nor a value that JSON can express.")
    return np.asarray(keras.ops.convert_to_numpy(value), order="C")
