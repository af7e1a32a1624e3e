"""When XLA compiles a model that TensorFlow runs on a CPU, where Keras does without it.

Unnecessary from Keras: none yet. Its "auto" does not ask how many steps are ahead.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from keras_vit.ops import is_tensorflow

# XLA takes faster steps, but compiles each batch size before its first one: on two cores, 14 s of
# processor time more than Keras for ViT-Ti/16 at batch 8, and 9 s for the smaller last batch. About
# 60 steps make up for both; with fewer parameters each step saves less (the digits: 800 steps).
# `python -m benchmarks first_steps` measures it.
MIN_STEPS = 64
MIN_WORK = 2.5e8  # steps times parameters


def xla_pays(model: keras.Model, steps: float | None) -> bool:
    """Return whether so many steps on TensorFlow repay compiling; on a GPU, Keras takes XLA anyway.

    Args:
        model: A model with a fixed image size; XLA compiles again for every other size.
        steps: How many steps are ahead; None where nobody knows.
    """
    if steps is None or steps < max(MIN_STEPS, MIN_WORK / max(1, model.count_params())):
        return False
    import tensorflow as tf

    return all(d.device_type == "CPU" for d in tf.config.list_physical_devices())


def calls_host(loss: Any) -> bool:
    """Return whether a loss, as `compile` takes it, calls the host within a step."""
    return any(getattr(one, "calls_host", False) for one in keras.tree.flatten(loss))


def without_xla(jit_compile: Any) -> Any:
    """Return the `jit_compile` of steps that call the host, which XLA does not on TensorFlow.

    Raises:
        ValueError: XLA was asked for there.
    """
    if not is_tensorflow():
        return jit_compile
    if jit_compile is True:
        raise ValueError(
            "jit_compile=True does not work with this loss on TensorFlow: it calls scipy on the "
            "host within a step, which XLA does not compile there. Leave it out, or train with "
            "KERAS_BACKEND=jax, whose steps XLA compiles."
        )
    return False


@contextmanager
def compiled_by_xla(model: keras.Model) -> Iterator[None]:
    """Step functions that Keras makes meanwhile are compiled by XLA."""
    before = model.jit_compile
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # asked for deterministic operators, Keras declines
        model.jit_compile = True
    try:
        yield
    finally:
        model.jit_compile = before


def choose_xla_by_steps(model: keras.Model, function: str, arguments: dict[str, Any]) -> None:
    """Adds the callback that chooses to the arguments of a method, which are changed in place."""
    callbacks = arguments.get("callbacks")
    if model._xla_is_free and not isinstance(callbacks, keras.callbacks.CallbackList):
        arguments["callbacks"] = [_XLAChoice(function), *keras.tree.flatten(callbacks or [])]


class _XLAChoice(keras.callbacks.Callback):
    """Lets XLA compile a step function of its model where enough steps are ahead.

    `fit`, `evaluate` and `predict` count their steps before the first one. A resumed run has as
    many as the whole one: both compute alike, bit for bit.
    """

    def __init__(self, function: str) -> None:
        super().__init__()
        self.function = function

    def set_params(self, params: dict[str, Any]) -> None:
        super().set_params(params)
        per_epoch, model = params.get("steps"), self.model
        steps = None if per_epoch is None else per_epoch * params.get("epochs", 1)
        if self.function not in model._xla_functions and xla_pays(model, steps):
            model._xla_functions += (self.function,)
            # Anew, and never None: other threads may be in `predict`.
            getattr(model, f"make_{self.function}")(force=True)
