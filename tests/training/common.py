"""What tests of training share: sources of batches, a stop within a run, arrays compared."""

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest

from keras_vit import data
from keras_vit.data.sources.array_splits import ArraySplit
from tests.backend import numpy, refused

BACKEND = keras.backend.backend()
# Operation by operation JAX takes longer than to compile; TensorFlow's graphs need no XLA.
JIT = BACKEND == "jax"
# Where nothing depends on compilation.
QUICK = {"run_eagerly": not JIT, "jit_compile": JIT}
Source = Callable[[np.ndarray, np.ndarray], dict[str, Any]]


class Killed(Exception):
    """Stands for the signal where nothing depends on a process that ends."""


killed: Any = partial(refused, "", error=Killed)  # calls what has to end so


class StopAt(keras.callbacks.Callback):
    """Raises at the end of a step, counted from 1 over all processes of a run."""

    def __init__(self, step: int, error: type[BaseException] = Killed) -> None:
        super().__init__()
        self.at, self.step, self.error = step, 0, error

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.step += 1
        if self.step == self.at:
            self.stop()

    def stop(self) -> None:
        raise self.error

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


array = numpy


def assert_equal(actual: Any, expected: Any, **tolerance: float) -> None:
    """Each array of two models or lists: exactly, or within the tolerance of `assert_allclose`."""
    check: Any = np.testing.assert_allclose if tolerance else np.testing.assert_array_equal
    ours, theirs = (x.get_weights() if hasattr(x, "get_weights") else x for x in (actual, expected))
    for one, other in zip(ours, theirs, strict=True):
        check(one, other, **tolerance)


def splits_of(task: Any, images: np.ndarray, labels: Any, val: Any = None) -> data.Splits:
    """Arrays of a task, or of classes of these names; validated on themselves, or on `val`."""
    train = ArraySplit("train", task, images, labels, "none")
    val = train if val is None else ArraySplit("val", task, *val, "none")
    return data.Splits("arrays", getattr(task, "names", task), {"train": train, "val": val})


def arrays(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    return {"x": images, "y": labels}


def tensorflow_dataset(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    tf = pytest.importorskip("tensorflow")
    return {"x": tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)}


class Batches(keras.utils.PyDataset):
    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        super().__init__()
        self.arrays = images, labels

    def __len__(self) -> int:
        return len(self.arrays[0]) // 4

    def __getitem__(self, index: int) -> Any:
        return tuple(values[4 * index : 4 * index + 4] for values in self.arrays)


def generator(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    batches = Batches(images, labels)
    return {"x": (batches[i] for i in range(len(batches)))}


def py_dataset(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    return {"x": Batches(images, labels)}


def torch_loader(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.tensor(images), torch.tensor(labels))
    return {"x": torch.utils.data.DataLoader(data, batch_size=4)}


SOURCES = [arrays, tensorflow_dataset, generator, py_dataset, torch_loader]
