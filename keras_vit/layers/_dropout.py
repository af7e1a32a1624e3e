"""Dropout that draws several decisions from one random number."""

from typing import Any

import keras
from keras import ops

from keras_vit.ops import DropoutStrategy, dropout_strategy, random_int16, random_rows

DECISIONS = 8


@keras.saving.register_keras_serializable(package="keras_vit")
class Dropout(keras.layers.Dropout):
    """`keras.layers.Dropout`, with fewer random numbers: they take a fifth of a training step.

    Takes and returns any array; its last axis must be known. A uniform number is compared with the
    rate; conditioned on the outcome, its remainder is uniform again and decides the next value.
    Eight decisions use a few of its 23 bits. torch on CPUs takes 16 random bits per decision, which
    rounds the rate to 1 / 65536; torch on GPUs has one kernel for the whole layer.

    Args:
        rate: Fraction of the values set to 0 in training, in [0, 1]; the others are scaled up.
        noise_shape: As in `keras.layers.Dropout`: along axes of size 1 a decision is shared.
        seed: Seed of the random numbers, or None.

    Example:

    >>> import keras
    >>> from keras_vit.layers._dropout import Dropout
    >>> dropped = Dropout(0.5)(keras.ops.ones((4, 64)), training=True)
    >>> sorted({float(value) for value in keras.ops.reshape(dropped, (-1,))})
    [0.0, 2.0]
    """

    def call(self, inputs: Any, training: bool = False) -> Any:
        # The remainder is undefined for rates 0 and 1, and a shared mask needs few numbers.
        uses_keras = not 0 < self.rate < 1 or self.noise_shape is not None
        strategy = dropout_strategy()
        if not training or uses_keras or strategy is DropoutStrategy.KERNEL:
            return super().call(inputs, training=training)
        shape = ops.shape(inputs)
        if strategy is DropoutStrategy.BITS:
            integers = random_int16(shape, self.seed_generator)
            mask = ops.cast(integers >= round(self.rate * 2**16) - 2**15, inputs.dtype)
            # A product instead of `where`: one pass in the backward pass.
            return inputs * (mask * (1 / (1 - self.rate)))
        mask = ops.logical_not(self._is_dropped(shape))
        return ops.where(mask, inputs / (1 - self.rate), ops.zeros((), inputs.dtype))

    def _is_dropped(self, shape: tuple[Any, ...]) -> Any:
        words = (*shape[1:-1], -(-shape[-1] // DECISIONS))

        def draw(rows: Any) -> Any:
            return keras.random.uniform((rows, *words), dtype="float32", seed=self.seed_generator)

        uniform = random_rows(draw, shape[0])
        is_dropped = []
        for _ in range(DECISIONS):
            below = uniform < self.rate
            is_dropped.append(below)
            remainder = (uniform - self.rate) / (1 - self.rate)
            uniform = ops.where(below, uniform / self.rate, remainder)
        return ops.concatenate(is_dropped, axis=-1)[..., : shape[-1]]
