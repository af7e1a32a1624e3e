"""Which backend Keras runs on, and on what kind of device."""

import os
import sys
from typing import Any

import keras


def is_tensorflow() -> bool:
    """Return whether this process runs Keras on TensorFlow."""
    return keras.backend.backend() == "tensorflow"


def compiles_per_shape() -> bool:
    """Return whether Keras's backend compiles a model anew for each batch size."""
    return keras.backend.backend() == "jax"


def process_on(backend: str) -> tuple[list[str], dict[str, str]]:
    """Return the interpreter and the environment of a process that runs Keras on a backend."""
    return [sys.executable], {**os.environ, "KERAS_BACKEND": backend}


def jax_platform() -> str:
    """Return the kind of device that JAX, which must be the backend, runs or compiles for."""
    import jax

    device: Any = jax.devices()[0]
    if distribution := keras.distribution.distribution():
        placed = distribution.device_mesh.devices.flat[0]
        local = isinstance(placed, str) and placed.startswith(device.platform)
        device = device if local else placed
    return str(getattr(device, "platform", device)).split(":")[0]


def jax_is_accelerated() -> bool:
    """Return whether JAX, which must be the backend, runs or compiles for a GPU or a TPU."""
    return jax_platform() != "cpu"
