"""TensorFlow and its kind, imported when first used: `import keras_vit` works without them."""

import importlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

__all__ = ["require", "tensorflow_datasets", "tf"]


# What TensorFlow's libraries write as they are loaded, before they can be told not to.
_NOISE = re.compile(rb"WARNING: All log messages before absl|I0000 |E0000 .* failed call to cuInit")


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


@contextmanager
def _quietly(name: str) -> Iterator[None]:
    """Holds back TensorFlow's notes about processors and plug-ins where this imports it first.

    That is on the JAX and torch backends, where it reads images on the processor alone: a GPU is
    theirs.
    """
    if not name.startswith("tensorflow") or "tensorflow" in sys.modules:
        yield
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
            if "tensorflow" in sys.modules:
                sys.modules["tensorflow"].config.set_visible_devices([], "GPU")
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not _NOISE.match(line)))


if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets
else:
    tf = _LazyModule("tensorflow", "keras_vit[tensorflow]")
    tensorflow_datasets = _LazyModule("tensorflow_datasets", "keras_vit[tensorflow]")
