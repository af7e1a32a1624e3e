"""Pools the tokens of an image into one vector: class token, mean, or attention pooling."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers._dense import Dense
from keras_vit.layers.attention import (
    attention,
    check_heads,
    projection_initializer,
    proportional_bias,
)
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import ConfiguredLayer, Shape
from keras_vit.layers.encoder import MLP
from keras_vit.layers.merging import token_sizes


@keras.saving.register_keras_serializable(package="keras_vit")
class TokenPooling(ConfiguredLayer):
    """The first token, which is the class token (ViT paper, equation 4).

    Takes `(batch, length, hidden_dim)`, returns `(batch, hidden_dim)`.

    Args:
        index: Another token's place: 1 for DeiT's distillation token.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.TokenPooling()(keras.ops.ones((2, 17, 32))).shape)
    (2, 32)
    """

    def __init__(self, index: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.index = index

    def call(self, tokens: Any) -> Any:
        return tokens[:, self.index]

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        return tokens_shape[0], tokens_shape[2]


@keras.saving.register_keras_serializable(package="keras_vit")
class MeanPooling(ConfiguredLayer):
    """The mean over the patches (ViT paper, appendix D.3): global average pooling.

    Takes `(batch, length, hidden_dim)`, returns `(batch, hidden_dim)`. With the `token_index` of a
    `MergingEncoderBlock`, a merged token counts once per patch.

    Args:
        num_prefix_tokens: Tokens at the front that are not patches: class token and registers.
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def build(self, tokens_shape: Shape, token_index_shape: Shape | None = None) -> None:
        """Does nothing: there are no weights to create."""

    def call(self, tokens: Any, token_index: Any = None) -> Any:
        patches = tokens[:, self.num_prefix_tokens :]
        if token_index is None:
            return ops.mean(patches, axis=1)
        sizes = token_sizes(token_index, ops.shape(tokens)[1])[:, self.num_prefix_tokens :]
        weights = sizes / ops.sum(sizes, axis=1, keepdims=True)
        return ops.sum(patches * ops.cast(weights[:, :, None], patches.dtype), axis=1)

    def compute_output_shape(self, tokens_shape: Shape, *_: Shape) -> Shape:
        return tokens_shape[0], tokens_shape[2]


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionPooling(CompositeLayer):
    """A learned probe attends to all tokens, then passes an MLP: MAP, the head of big_vision.

    Takes `(batch, length, hidden_dim)`, returns `(batch, hidden_dim)`. With the `token_index` of a
    `MergingEncoderBlock`, a merged token is attended to as all of its patches would be. Source:
    "Scaling Vision Transformers" (Zhai et al. 2022), big_vision `MAPHead`.

    Args:
        num_heads: Number of attention heads; must divide the width of the tokens.
        mlp_dim: Width of the MLP.
        activation: The MLP's activation (see `MLP`).
        norm_epsilon: Epsilon of the layer norm before the MLP.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.AttentionPooling(4, 128)(keras.ops.ones((2, 16, 32))).shape[1:])
    (32,)
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.activation = activation
        self.norm_epsilon = norm_epsilon
        self.norm = self.sublayer(
            keras.layers.LayerNormalization, epsilon=norm_epsilon, name="norm"
        )
        self.mlp = self.sublayer(MLP, mlp_dim, activation, name="mlp")

    def build(self, tokens_shape: Shape, token_index_shape: Shape | None = None) -> None:
        hidden_dim = tokens_shape[-1]
        assert hidden_dim is not None
        self.head_dim = check_heads(hidden_dim, self.num_heads)
        add, init = self.sublayer, projection_initializer(hidden_dim)
        self.probe = self.add_weight(
            name="probe", shape=(1, 1, hidden_dim), initializer="glorot_uniform"
        )
        self.query = add(Dense, hidden_dim, kernel_initializer=init, name="query")
        self.key_value = add(Dense, 2 * hidden_dim, kernel_initializer=init, name="key_value")
        self.output_projection = add(Dense, hidden_dim, kernel_initializer=init, name="output")
        for layer in (self.query, self.output_projection, self.norm, self.mlp):
            layer.build((tokens_shape[0], 1, hidden_dim))
        self.key_value.build(tokens_shape)

    def call(self, tokens: Any, token_index: Any = None, training: bool | None = None) -> Any:
        batch, length, hidden_dim = ops.shape(tokens)
        heads = (self.num_heads, self.head_dim)
        probe = ops.broadcast_to(ops.cast(self.probe, tokens.dtype), (batch, 1, hidden_dim))
        query = ops.reshape(self.cast(self.query(probe)), (-1, 1, *heads))
        key_value = ops.reshape(self.cast(self.key_value(tokens)), (-1, length, 2, *heads))
        bias = None
        if token_index is not None:
            bias = proportional_bias(token_sizes(token_index, length), query.dtype)
        attended = attention(query, key_value[:, :, 0], key_value[:, :, 1], bias)
        pooled = self.cast(self.output_projection(ops.reshape(attended, (-1, 1, hidden_dim))))
        return (pooled + self.cast(self.mlp(self.norm(pooled), training=training)))[:, 0]

    def compute_output_shape(self, tokens_shape: Shape, *_: Shape) -> Shape:
        return tokens_shape[0], tokens_shape[2]
