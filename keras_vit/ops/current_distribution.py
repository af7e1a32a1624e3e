"""The distribution that `fit` runs on, which Keras's own loops do not see."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import keras

_set_aside: ContextVar[Any] = ContextVar("set_aside", default=None)


def current_distribution() -> Any:
    """Return the `keras.distribution.Distribution` that is set, or None; see `batches_on_host`.

    Always None on TensorFlow and torch, whose Keras does nothing with it.
    """
    if keras.backend.backend() != "jax":
        return None
    return keras.distribution.distribution() or _set_aside.get()


@contextmanager
def batches_on_host() -> Iterator[None]:
    """Meanwhile Keras's loops do not cut batches; `on_devices` does."""
    distribution, before = current_distribution(), keras.distribution.distribution()
    if distribution is None:
        yield
        return
    token = _set_aside.set(distribution)
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)
        _set_aside.reset(token)


def on_devices() -> Any:
    """Return a context that creates variables, and traces steps, for the devices that are set."""
    distribution = current_distribution()
    return nullcontext() if distribution is None else distribution.scope()


@contextmanager
def single_process() -> Iterator[None]:
    """Meanwhile no distribution is set: models are built for this process alone."""
    before = keras.distribution.distribution()
    keras.distribution.set_distribution(None)
    try:
        yield
    finally:
        keras.distribution.set_distribution(before)
