"""Dropout that makes several decisions by one random number."""

from typing import Any

import keras
from keras import ops

from keras_vit.backend import masks_come_from, random_int16

DECISIONS = 8


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, with fewer random numbers: they take a fifth of a training step.

    Takes and returns any array; its last axis must be known. Of a uniform number it is decided
    whether it is below the rate; given that, what is left of it is uniform again, and decides
    next. Eight decisions use up a few bits of its 23. torch on CPUs takes 16 random bits for each
    decision, which rounds the rate to 1 / 65536; torch on GPUs has one kernel for it all.

    Args:
        rate: Share of the values that become 0 in training, in [0, 1]; the others are scaled up.
        noise_shape: As in `keras.layers.Dropout`: along axes of size 1 a decision is shared.
        seed: Of the draws, or None.

    Example:

    >>> import keras, keras_vit
    >>> dropped = keras_vit.layers.Dropout(0.5)(keras.ops.ones((4, 64)), training=True)
    >>> sorted({float(value) for value in keras.ops.reshape(dropped, (-1,))})
    [0.0, 2.0]
    """

    def call(self, inputs: Any, training: bool = False) -> Any:
        # All or nothing leaves no number to go on with, and a shared draw needs none of this.
        keras_draws = not 0 < self.rate < 1 or self.noise_shape is not None
        if not training or keras_draws or (source := masks_come_from()) == "kernel":
            return super().call(inputs, training=training)
        shape = ops.shape(inputs)
        if source == "bits":
            drawn = random_int16(shape, self.seed_generator)
            kept = ops.cast(drawn >= round(self.rate * 2**16) - 2**15, inputs.dtype)
            # A product and not a choice: one pass backward.
            return inputs * (kept * (1 / (1 - self.rate)))
        kept = ops.logical_not(self._below_the_rate(shape))
        return ops.where(kept, inputs / (1 - self.rate), ops.zeros((), inputs.dtype))

    def _below_the_rate(self, shape: tuple[Any, ...]) -> Any:
        words = (*shape[:-1], -(-shape[-1] // DECISIONS))
        left, dropped = keras.random.uniform(words, dtype="float32", seed=self.seed_generator), []
        for _ in range(DECISIONS):
            below = left < self.rate
            dropped.append(below)
            left = ops.where(below, left / self.rate, (left - self.rate) / (1 - self.rate))
        return ops.concatenate(dropped, axis=-1)[..., : shape[-1]]
