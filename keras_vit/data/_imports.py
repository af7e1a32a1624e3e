"""TensorFlow and its kind, imported when first used: `import keras_vit` works without them."""

import importlib
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
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        message = f"keras_vit.data needs {error.name}: pip install '{install}'"
        raise ImportError(message, name=error.name) from error


if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets
else:
    tf = _LazyModule("tensorflow", "keras_vit[tensorflow]")
    tensorflow_datasets = _LazyModule("tensorflow_datasets", "keras_vit[tensorflow]")
