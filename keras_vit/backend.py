"""The one place that knows which backend Keras runs on."""

import os
import sys

import keras


def is_tensorflow() -> bool:
    """Whether this process runs Keras on TensorFlow."""
    return keras.backend.backend() == "tensorflow"


def tensorflow_process() -> tuple[list[str], dict[str, str]]:
    """The interpreter and the environment of a process that runs Keras on TensorFlow."""
    return [sys.executable], {**os.environ, "KERAS_BACKEND": "tensorflow"}
