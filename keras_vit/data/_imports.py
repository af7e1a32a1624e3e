"""TensorFlow and its data sets, imported at first use: `import keras_vit` works without them."""

import importlib
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

from keras_vit._base.version import install_command
from keras_vit.ops import is_tensorflow

__all__ = ["require", "tensorflow_datasets", "tf"]


class _LazyModule:
    """Stands for a module until one of its attributes is asked for."""

    def __init__(self, name: str, install: str):
        self._package, self._install = name, install

    def __getattr__(self, attribute: str) -> Any:
        # Inspection (pytest, copy, help) asks for private names; it must not start an import.
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(require(self._package, self._install), attribute)


def require(name: str, install: str) -> Any:
    """Imports the module `name`, or raises an `ImportError` with the command that installs it."""
    try:
        if name.startswith("tensorflow"):
            _import_tensorflow()
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        message = f"keras_vit.data needs {error.name}: {install}"
        raise ImportError(message, name=error.name) from error


@cache
def _import_tensorflow() -> None:
    """Import TensorFlow; on other backends hide GPUs from it, which these use themselves."""
    tensorflow = importlib.import_module("tensorflow")
    if not is_tensorflow():
        with suppress(RuntimeError):  # someone has used it before, and a GPU with it
            tensorflow.config.set_visible_devices([], "GPU")


if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets
else:
    tf = _LazyModule("tensorflow", install_command("tensorflow"))
    tensorflow_datasets = _LazyModule("tensorflow_datasets", install_command("tensorflow"))
