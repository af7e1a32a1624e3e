"""When XLA compiles a model that TensorFlow runs on a CPU, where Keras does without it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import keras

# XLA's steps are faster, and it compiles each batch size for many seconds before the first of them.
# ViT-Ti/16 at batch 8 has caught up after about 60 steps; fewer parameters save less in each step.
# Measured by `python -m benchmarks first_steps`.
MIN_STEPS = 64
MIN_WORK = 64 * 5.5e6  # steps times parameters


def xla_pays(model: keras.Model, steps: float | None) -> bool:
    """Whether so many steps on TensorFlow repay compiling; on a GPU, Keras takes XLA anyway.

    Args:
        model: A model with a fixed image size; XLA compiles again for every other size.
        steps: How many steps are ahead; None where nobody knows.
    """
    if steps is None or steps < max(MIN_STEPS, MIN_WORK / max(1, model.count_params())):
        return False
    import tensorflow as tf

    accelerated = any(d.device_type != "CPU" for d in tf.config.list_physical_devices())
    return not accelerated and not tf.distribute.has_strategy()


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
