"""Which backend Keras runs on, and on what kind of device."""

import os
import sys

import keras


def is_tensorflow() -> bool:
    """Whether this process runs Keras on TensorFlow."""
    return keras.backend.backend() == "tensorflow"


def tensorflow_process() -> tuple[list[str], dict[str, str]]:
    """The interpreter and the environment of a process that runs Keras on TensorFlow."""
    return [sys.executable], {**os.environ, "KERAS_BACKEND": "tensorflow"}


def jax_platform() -> str:
    """What JAX, which must be the backend, runs or compiles for: `"cpu"`, `"gpu"` or `"tpu"`."""
    import jax

    device = jax.devices()[0]
    if distribution := keras.distribution.distribution():
        device = distribution.device_mesh.devices.flat[0]  # its name, or the device
    return str(getattr(device, "platform", device)).split(":")[0]


def jax_is_accelerated() -> bool:
    """Whether JAX, which must be the backend, runs or compiles for a GPU or a TPU."""
    return jax_platform() != "cpu"
