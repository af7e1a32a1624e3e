"""TensorFlow and its kind, imported when first used: `import keras_vit` works without them."""

import importlib
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

__all__ = ["require", "tensorflow_datasets", "tf"]


class _LazyModule:
    """Stands for a module until one of its attributes is asked for."""

    def __init__(self, name: str, install: str):
        self._name, self._install = name, install

    def __getattr__(self, attribute: str) -> Any:
        # Inspection (doctest, copy, help) asks for dunder names; it must not start an import.
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(require(self._name, self._install), attribute)


def require(name: str, install: str) -> Any:
    """Imports the module `name`, or raises an `ImportError` that says what to install."""
    try:
        with _quietly(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        message = f"keras_vit.data needs {error.name}: pip install '{install}'"
        raise ImportError(message, name=error.name) from error


def _quietly(name: str) -> AbstractContextManager[None]:
    """Without TensorFlow's notes about processors, where this imports it first.

    On the JAX and torch backends it reads images, on the processor alone.
    """
    if not name.startswith("tensorflow") or "tensorflow" in sys.modules:
        return nullcontext()
    from keras_vit_command import _without_noise

    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return _without_noise()


if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets
else:
    tf = _LazyModule("tensorflow", "keras_vit[tensorflow]")
    tensorflow_datasets = _LazyModule("tensorflow_datasets", "keras_vit[tensorflow]")
