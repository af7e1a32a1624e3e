"""TensorFlow runs the small graphs of the suite as they are; for XLA there are flags."""

import keras
import pytest


def skip_graph_optimization() -> None:
    """It takes longer than a small graph. Bits of two processes are compared with it in both."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def without_graphs(patch: pytest.MonkeyPatch) -> None:
    """Small models run operation by operation in less time than they are traced and compiled."""
    if keras.backend.backend() == "tensorflow":
        always = property(lambda model: True, lambda model, value: None)
        patch.setattr(keras.Model, "run_eagerly", always)
