"""Whether the backend that Keras will choose is installed. Imports neither Keras nor a backend."""

import json
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

BACKENDS = ("tensorflow", "jax", "torch")


def check_backend() -> None:
    """Raises an ImportError with the fix if the backend that Keras will choose is not installed."""
    name = os.environ.get("KERAS_BACKEND") or _configured_backend()
    if find_spec(name):
        return
    if name not in BACKENDS:
        raise ImportError(
            f"KERAS_BACKEND={name} is not a backend. Give one of {', '.join(BACKENDS)}."
        )
    installed = [backend for backend in BACKENDS if find_spec(backend)]
    others = " or ".join(f"KERAS_BACKEND={backend}" for backend in installed)
    raise ImportError(
        f"The backend {name} is not installed: "
        + (f"set {others}, or " if others else "")
        + f"pip install 'keras3-vit[{name}]'"
    )


def _configured_backend() -> str:
    """Return the backend of Keras's configuration file, or its default."""
    folder = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    with suppress(OSError, ValueError, AttributeError):
        configured = json.loads((folder / "keras.json").read_text("utf-8"))
        return str(configured.get("backend", "tensorflow"))
    return "tensorflow"
