"""Models that XLA compiles wherever this is the faster way."""

import inspect
from typing import Any

import keras

from keras_vit.backend import compile_on_cpu


class CompiledModel(keras.Model):
    """A `keras.Model` whose `jit_compile="auto"` takes XLA on TensorFlow's CPU, too.

    Keras does without it there: convolutions train slower under XLA. Matrix products and what
    stands between them take up to 1.8 times as many steps (`docs/performance.md`), and cost two
    seconds more before the first. `jit_compile=False` goes without.
    """

    @property
    def _convolves(self) -> bool:
        """Whether a ResNet is part of the model."""
        return False

    def compile(self, *args: Any, **options: Any) -> None:
        super().compile(*args, **options)
        given = inspect.signature(keras.Model.compile).bind(self, *args, **options).arguments
        self._jit_compile_given = given.get("jit_compile", "auto")
        free = self._jit_compile_given == "auto" and not self.run_eagerly
        if free and not self._convolves:
            compile_on_cpu(self)

    def get_compile_config(self) -> dict[str, Any]:
        config = super().get_compile_config()
        if not config:
            return config
        # What was asked for, not what became of it here: elsewhere the choice is another one.
        return {**config, "jit_compile": self._jit_compile_given}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """As Keras does where `compile` is its own."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.built:
            self.optimizer.build(self.trainable_variables)
