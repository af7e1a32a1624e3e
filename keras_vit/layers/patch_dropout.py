"""PatchDropout: training on a random subset of each image's patches."""

from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_rate
from keras_vit.layers.configured import ConfiguredLayer, Shape
from keras_vit.layers.merging import take_tokens
from keras_vit.ops import random_rows


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchDropout(ConfiguredLayer):
    """Drops patches at random in training, which makes a step cheaper in proportion.

    Takes `(batch, length, hidden_dim)`, after the positions are added, and in inference returns it
    unchanged. In training it returns `(batch, num_prefix_tokens + n, hidden_dim)`, where `n` is
    `(1 - rate)` of the patches, rounded down, and at least 1. Each example drops different patches;
    the others keep their order. Nothing is rescaled, as in the paper.

    Args:
        rate: Fraction of the patches to drop, in [0, 1).
        num_prefix_tokens: Tokens at the front that are never dropped: class token and registers.
        seed: Seed of the random numbers, or None.

    Raises:
        ValueError: The rate is outside [0, 1).

    Source: "PatchDropout: Economizing Vision Transformers Using Patch Dropout" (Liu et al. 2022).

    Example:

    >>> import keras, keras_vit
    >>> drop = keras_vit.layers.PatchDropout(0.5, num_prefix_tokens=1)
    >>> tuple(drop(keras.ops.ones((2, 197, 8)), training=True).shape)
    (2, 99, 8)
    """

    def __init__(
        self, rate: float, num_prefix_tokens: int = 0, seed: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_rate(rate=rate)
        self.rate = rate
        self.num_prefix_tokens = num_prefix_tokens
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def _num_remaining(self, patches: Any) -> Any:
        if isinstance(patches, int):
            # 10 * (1 - 0.9) is a little less than 1.
            return max(1, int(patches * (1 - self.rate) + 1e-6))
        remaining = ops.cast(patches, "float32") * (1 - self.rate) + 1e-4
        return ops.maximum(1, ops.cast(remaining, "int32"))

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        if not training or self.rate == 0:
            return tokens
        batch, length = ops.shape(tokens)[:2]
        patches = length - self.num_prefix_tokens
        # float32 under every policy: bfloat16 has few distinct values, and they would tie.
        noise = random_rows(
            lambda rows: keras.random.uniform(
                (rows, patches), dtype="float32", seed=self.seed_generator
            ),
            batch,
        )
        chosen = ops.argsort(noise, axis=-1)[:, : self._num_remaining(patches)]
        indices = self.num_prefix_tokens + ops.sort(chosen, axis=-1)
        prefix = tokens[:, : self.num_prefix_tokens]
        return ops.concatenate([prefix, take_tokens(tokens, indices)], axis=1)

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        return tokens_shape
