"""When XLA compiles a model that TensorFlow runs on a CPU, where Keras does without it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import keras

# XLA takes faster steps, but compiles each batch size before its first one: on two cores, 14 s of
# processor time more than Keras for ViT-Ti/16 at batch 8, and 9 s for the smaller last batch. About
# 60 steps make up for both; with fewer parameters each step saves less (the digits: 800 steps).
# `python -m benchmarks first_steps` measures it.
MIN_STEPS = 64
MIN_WORK = 2.5e8  # steps times parameters


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
    return not accelerated


@contextmanager
def compiled_by_xla(model: keras.Model, chosen: bool = True) -> Iterator[None]:
    """Step functions that Keras makes meanwhile are compiled by XLA, or not."""
    before = model.jit_compile
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # asked for deterministic operators, Keras declines
        model.jit_compile = chosen
    try:
        yield
    finally:
        model.jit_compile = before
