"""Multi-head self-attention (ViT paper, appendix A), through the backend's fused operator."""

import math
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_choice, check_positive, check_rate
from keras_vit.layers._dense import Dense
from keras_vit.layers._dropout import Dropout
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import Shape
from keras_vit.layers.observation import current_observer
from keras_vit.layers.positions import GridPositionBias, RelativePositionBias
from keras_vit.layers.rotary import ROTATIONS, rotate
from keras_vit.ops import (
    DropoutStrategy,
    cut_last_axis,
    dropout_strategy,
    fused_attention,
    has_fused_attention,
    is_cut_by_heads,
    multiply_in_float32,
)


def projection_initializer(hidden_dim: int) -> keras.initializers.Initializer:
    """Xavier's uniform limits of one square projection, as the released code draws them.

    Keras's GlorotUniform would read the fused kernel as one wide matrix and draw narrower.
    """
    limit = math.sqrt(6 / (hidden_dim + hidden_dim))
    return keras.initializers.RandomUniform(-limit, limit)


def proportional_bias(sizes: Any, dtype: Any) -> Any:
    """Return the bias `(batch, 1, 1, keys)` by which a key counts as `sizes` equal ones (ToMe)."""
    return ops.cast(ops.log(sizes), dtype)[:, None, None, :]


def check_heads(hidden_dim: int, num_heads: int) -> int:
    """Return the width of a head, or a ValueError when the heads do not divide the width."""
    check_positive(hidden_dim=hidden_dim, num_heads=num_heads)
    if hidden_dim % num_heads:
        divisors = [n for n in range(1, min(hidden_dim, 33)) if hidden_dim % n == 0]
        raise ValueError(
            f"num_heads={num_heads} does not divide hidden_dim={hidden_dim}. "
            f"Give one of {', '.join(map(str, divisors))}, or a multiple of {num_heads} as width."
        )
    return hidden_dim // num_heads


def masked(bias: Any, mask: Any, dtype: Any) -> Any:
    """Return a bias that lets a query attend only where a boolean mask is True.

    Args:
        bias: Added to the logits as well, or None.
        mask: `(batch, heads, queries, keys)`, each axis whole or 1.
        dtype: Of the result.

    Raises:
        ValueError: The mask does not have four axes.
    """
    if len(mask.shape) != 4:
        raise ValueError(
            f"mask of shape {tuple(mask.shape)} must be (batch, heads, queries, keys), each axis "
            "whole or 1: for padding in sequences (batch, length), give mask[:, None, None, :]."
        )
    # Finite: a query without any key would be NaN, and so would the gradients of all images.
    lowest = -3e4 if keras.backend.standardize_dtype(dtype) == "float16" else -1e30
    return ops.cast(ops.where(mask, 0.0 if bias is None else bias, lowest), dtype)


def attention_probabilities(query: Any, key: Any, bias: Any = None) -> Any:
    """Softmax of the scaled products of queries and keys: `(batch, heads, queries, keys)`."""
    query = ops.transpose(query / math.sqrt(query.shape[-1]), (0, 2, 1, 3))
    logits = multiply_in_float32(query, ops.transpose(key, (0, 2, 3, 1)))
    if bias is not None:
        logits = logits + ops.cast(bias, "float32")
    # The sum over hundreds of keys needs float32, as inside the fused operator.
    return ops.cast(ops.softmax(logits), query.dtype)


def attention(query: Any, key: Any, value: Any, bias: Any = None, dropout: Any = None) -> Any:
    """Scaled dot-product attention (ViT paper, equation 7) in the backend's fastest form.

    Queries, keys, values and the result are `(batch, length, heads, head_dim)`. The fused operator
    where the backend has one; TensorFlow does not, nor does JAX on CPUs: there, products of
    transposed matrices, which make a step 1 to 5 % faster under XLA than those of Keras.

    Args:
        bias: Added to the logits; broadcasts to `(batch, heads, queries, keys)`.
        dropout: The `Dropout` of the probabilities when training, or None.
    """
    rate = 0.0 if dropout is None else dropout.rate
    observer = current_observer()
    fused = has_fused_attention() and observer is None
    if fused and (rate == 0 or dropout_strategy() is DropoutStrategy.KERNEL):
        return fused_attention(query, key, value, bias, rate)
    probabilities = attention_probabilities(query, key, bias)
    if rate > 0:
        probabilities = dropout(probabilities, training=True)
    if observer is not None:
        probabilities = observer.attended(probabilities)
    heads = ops.matmul(probabilities, ops.transpose(value, (0, 2, 1, 3)))
    return ops.transpose(heads, (0, 2, 1, 3))


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The options of self-attention.

    Args:
        num_heads: Number of attention heads; must divide the width of the tokens.
        dropout: Rate of dropout after the attention; of a block and of a model also twice in the
            MLP, of a model after the positions.
        attention_dropout: Rate of dropout on the attention probabilities. Only torch's fused
            operator supports it, on GPUs; elsewhere training computes the probabilities explicitly.
        key_bias: Whether the projection to keys has a bias, too: not in BEiT, EVA-02 and DINOv3.
        rotary: `"dinov3"` or `"eva02"`: queries and keys are rotated by their positions as in these
            models (see `RotaryPositions`); None for none.

    Raises:
        ValueError: An argument is out of range.
    """

    num_heads: int
    dropout: float = 0.0
    attention_dropout: float = 0.0
    key_bias: bool = True
    rotary: str | None = None

    def __post_init__(self) -> None:
        check_positive(num_heads=self.num_heads)
        check_rate(dropout=self.dropout, attention_dropout=self.attention_dropout)
        check_choice(self.rotary, "rotary", (None, *ROTATIONS))


@keras.saving.register_keras_serializable(package="keras_vit")
class MultiHeadSelfAttention(CompositeLayer):
    """Every token reads from every token (ViT paper, equations 5 to 8).

    Takes and returns `(batch, length, hidden_dim)`. One matrix product projects to queries, keys
    and values; the backend's fused operator does the rest.

    Args:
        config: The options, an `AttentionConfig`, or the `BlockConfig` of its block.
        relative_length: Length of the sequence for which relative position embeddings are
            learned, or None for none (see `RelativePositionBias`).
        relative_grid: Rows and columns of patches for which BEiT's bias is learned, or None.

    Raises:
        ValueError: The heads do not divide the width.

    Example:

    >>> import keras
    >>> from keras_vit.layers import AttentionConfig, MultiHeadSelfAttention
    >>> attention = MultiHeadSelfAttention(AttentionConfig(num_heads=4))
    >>> tuple(attention(keras.ops.ones((2, 17, 32))).shape[1:])
    (17, 32)
    """

    config_class = AttentionConfig

    def __init__(
        self,
        config: AttentionConfig,
        relative_length: int | None = None,
        relative_grid: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config = config
        self.relative_length = relative_length
        self.relative_grid = relative_grid

    def build(self, tokens_shape: Shape, angles_shape: Shape | None = None) -> None:
        (batch, length, hidden_dim), c = tokens_shape, self.config
        assert hidden_dim is not None
        self.head_dim = check_heads(hidden_dim, c.num_heads)
        add, init = self.sublayer, projection_initializer(hidden_dim)
        self.query_key_value = add(
            Dense,
            3 * hidden_dim,
            use_bias=c.key_bias,
            kernel_initializer=init,
            name="query_key_value",
        )
        self.query_value_bias = None
        if not c.key_bias:
            self.query_value_bias = self.add_weight(
                name="query_value_bias", shape=(2 * hidden_dim,), initializer="zeros"
            )
        self.output_projection = add(Dense, hidden_dim, kernel_initializer=init, name="output")
        self.output_dropout = add(Dropout, c.dropout, name="output_dropout")
        self.probability_dropout = add(Dropout, c.attention_dropout, name="probability_dropout")
        self.query_key_value.build(tokens_shape)
        self.output_projection.build(tokens_shape)
        self.relative_positions = None
        if self.relative_length is not None:
            self.relative_positions = add(
                RelativePositionBias, self.relative_length, name="relative_position_bias"
            )
            self.relative_positions.build((batch, length, c.num_heads, self.head_dim))
        elif self.relative_grid is not None:
            self.relative_positions = add(
                GridPositionBias, self.relative_grid, c.num_heads, name="relative_position_bias"
            )
            self.relative_positions.build(tokens_shape)

    def _project(self, tokens: Any, training: bool | None) -> tuple[Any, Any, Any]:
        """Queries, keys and values, each `(batch, length, heads, head_dim)`."""
        shape = (-1, ops.shape(tokens)[1], self.config.num_heads, self.head_dim)
        # Split last axis first: the gradient is one concatenation. That of slices out of the
        # middle is three padded arrays and their sum, a tenth of TensorFlow's step.
        if is_cut_by_heads():
            parts = self._project_by_heads(tokens)
        else:
            projected = self.query_key_value(tokens, training=training)
            if not self.config.key_bias:
                projected = projected + ops.cast(self._joint_bias(), projected.dtype)
            parts = ops.split(projected, 3, axis=-1)
        query, key, value = (ops.reshape(part, shape) for part in parts)
        return query, key, value

    def _project_by_heads(self, tokens: Any) -> Any:
        """Queries, keys and values of the heads that each device has, under tensor parallel.

        The kernel's columns lie on the devices in order, all queries first. The devices exchange
        weights here, once per step; they would exchange activations in each split otherwise.
        """
        layer, width = self.query_key_value, tokens.shape[-1]
        kernel = cut_last_axis(ops.reshape(layer.kernel, (width, 3, width)))
        bias = cut_last_axis(ops.reshape(self._joint_bias(), (3, width)))
        return ops.unstack(ops.tensordot(tokens, kernel, 1) + bias, axis=-2)

    def _joint_bias(self) -> Any:
        """Return the biases of queries, keys and values, concatenated."""
        if self.query_value_bias is None:
            return self.query_key_value.bias
        of_queries, of_values = ops.split(self.query_value_bias, 2)
        return ops.concatenate([of_queries, ops.zeros_like(of_queries), of_values])

    def _bias(self, query: Any, sizes: Any, bias: Any, mask: Any) -> Any:
        """Return the bias to add to the attention logits, or None."""
        if bias is not None:
            bias = ops.cast(bias, query.dtype)
        elif self.relative_positions is not None:
            bias = ops.cast(self.relative_positions(query), query.dtype)
        elif sizes is not None:
            bias = proportional_bias(sizes, query.dtype)
        return bias if mask is None else masked(bias, mask, query.dtype)

    def attention_probabilities(
        self, tokens: Any, sizes: Any = None, angles: Any = None, bias: Any = None, mask: Any = None
    ) -> Any:
        """Return the attention maps `(batch, heads, queries, keys)`; each row of keys sums to 1.

        Computes the probabilities explicitly; `call` uses a fused kernel that never materializes
        them. Takes what `call` takes: inside an encoder block, the normalized tokens; the others
        as in `attend`.
        """
        query, key, _ = self._project(tokens, training=False)
        query, key = (self._rotated(x, angles) for x in (query, key))
        return attention_probabilities(query, key, self._bias(query, sizes, bias, mask))

    def _rotated(self, x: Any, angles: Any) -> Any:
        """Queries or keys of the first tokens, rotated by their positions."""
        if self.config.rotary is None:
            return x
        return rotate(x, angles[:, : ops.shape(x)[1]], self.config.rotary)

    def call(
        self,
        tokens: Any,
        angles: Any = None,
        bias: Any = None,
        mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        return self.attend(tokens, angles=angles, bias=bias, mask=mask, training=training)[0]

    def attend(
        self,
        tokens: Any,
        context: Any = None,
        sizes: Any = None,
        angles: Any = None,
        bias: Any = None,
        mask: Any = None,
        training: bool | None = None,
    ) -> tuple[Any, Any]:
        """Return outputs `(batch, length, hidden_dim)`, and keys `(batch, keys, heads, head_dim)`.

        Args:
            tokens: Tokens `(batch, length, hidden_dim)`: the queries.
            context: Tokens that keys and values come from, of which `tokens` are the first; None
                for `tokens` themselves.
            sizes: `(batch, keys)`, for proportional attention: a key counts as that many equal
                ones would (ToMe, equation 1). Cannot be combined with relative positions.
            angles: What `RotaryPositions` returns, under `rotary`.
            bias: Added to the logits, `(1, heads, length, length)`: what blocks share.
            mask: Boolean, `(batch, heads, length, length)`, each axis whole or 1: a query attends
                to a key only where it is True. The output of a query without any key is finite,
                but arbitrary.
            training: Whether dropout is applied.
        """
        query, key, value = self._project(tokens, training)
        if context is None:
            bias = self._bias(query, sizes, bias, mask)
        else:
            all_queries, key, value = self._project(context, training)
            bias = self._bias(all_queries, sizes, bias, mask)
            bias = None if bias is None else bias[:, :, : ops.shape(query)[1]]
        query, key = self._rotated(query, angles), self._rotated(key, angles)
        dropout = self.probability_dropout if training else None
        heads = attention(query, key, value, bias, dropout)
        outputs = ops.reshape(heads, (-1, ops.shape(tokens)[1], tokens.shape[-1]))
        outputs = self.output_projection(outputs, training=training)
        return self.cast(self.output_dropout(outputs, training=training)), key

    def compute_mask(self, *_: Any) -> None:
        """Returns None: the mask is of one call, and Keras attaches none to the outputs."""

    def compute_output_shape(self, tokens_shape: Shape, *_: Shape) -> Shape:
        return tokens_shape
