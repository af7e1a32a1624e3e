"""When XLA compiles a model that TensorFlow runs on a CPU."""

import warnings

import keras

from keras_vit.backend.platform import is_tensorflow


def compile_on_cpu(model: keras.Model) -> None:
    """Turns XLA on where `jit_compile="auto"` leaves it off: on TensorFlow without a GPU."""
    if not is_tensorflow():
        return
    import tensorflow as tf

    accelerated = any(d.device_type != "CPU" for d in tf.config.list_physical_devices())
    if accelerated or tf.distribute.has_strategy():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # asked for deterministic operators, Keras declines
        model.jit_compile = True
