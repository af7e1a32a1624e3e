"""Learned tokens that are added to the patches: the class token and registers."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.configured import ConfiguredLayer, Shape

# A configuration: an initializer object would draw its seed when this module is imported.
TOKEN_INITIALIZER = {"class_name": "RandomNormal", "config": {"stddev": 0.02}}


class _LearnedTokens(ConfiguredLayer):
    """Inserts `num_tokens` learned vectors after the first `after` tokens of the sequence."""

    num_tokens = 1
    after = 0
    initializer: Any = "zeros"

    def build(self, tokens_shape: Shape) -> None:
        self.embedding = self.add_weight(
            name="embedding",
            shape=(1, self.num_tokens, tokens_shape[-1]),
            initializer=self.initializer,
        )

    def call(self, tokens: Any) -> Any:
        learned = ops.broadcast_to(
            ops.cast(self.embedding, tokens.dtype),
            (ops.shape(tokens)[0], self.num_tokens, tokens.shape[-1]),
        )
        if self.after == 0:
            return ops.concatenate([learned, tokens], axis=1)
        return ops.concatenate([tokens[:, : self.after], learned, tokens[:, self.after :]], axis=1)

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        batch, length, hidden_dim = tokens_shape
        return batch, None if length is None else length + self.num_tokens, hidden_dim


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(_LearnedTokens):
    """Prepends the learned class token, whose final state represents the image (equation 1).

    Takes `(batch, length, hidden_dim)`, returns `(batch, 1 + length, hidden_dim)`.
    It starts at zero, as in the released code.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.ClassToken()(keras.ops.ones((2, 196, 64))).shape[1:])
    (197, 64)
    """


@keras.saving.register_keras_serializable(package="keras_vit")
class RegisterTokens(_LearnedTokens):
    """Inserts register tokens after the class token ("Vision Transformers Need Registers").

    Takes `(batch, length, hidden_dim)`, returns `(batch, length + num_tokens, hidden_dim)`.
    Registers do not have positions, so this layer follows `PositionEmbedding`.

    Args:
        num_tokens: Number of registers.
        after: Number of tokens in front of them: 1 with a class token, else 0.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.RegisterTokens(4)(keras.ops.ones((2, 197, 64))).shape[1:])
    (201, 64)
    """

    # DINOv2's: unlike the class token, registers must differ from each other to be useful.
    initializer: Any = TOKEN_INITIALIZER

    def __init__(self, num_tokens: int, after: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_tokens = num_tokens
        self.after = after
