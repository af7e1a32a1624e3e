"""The Transformer encoder's block and its MLP (ViT paper, equations 2 and 3)."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import keras

from keras_vit._base.errors import check_above_zero, check_finite, check_positive, check_rate
from keras_vit.layers._dense import Dense
from keras_vit.layers._dropout import Dropout
from keras_vit.layers.activations import activation_function, dense_activation
from keras_vit.layers.attention import AttentionConfig, MultiHeadSelfAttention
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import ConfiguredLayer, Shape
from keras_vit.layers.first_tokens import queries_and_context
from keras_vit.layers.rematerialization import rematerialize
from keras_vit.layers.stochastic_depth import StochasticDepth
from keras_vit.ops import recompute_derivative

# A configuration: an initializer object would draw the same numbers for every layer.
MLP_BIAS_INITIALIZER = {"class_name": "RandomNormal", "config": {"stddev": 1e-6}}


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(ConfiguredLayer):
    """Scales a residual branch by a learned vector (CaiT, equation 3; DINOv2).

    Takes and returns `(batch, length, hidden_dim)`.

    Args:
        initial: Value of the vector before training, such as 1e-5.

    Example:

    >>> import keras, keras_vit
    >>> float(keras_vit.layers.LayerScale(0.5)(keras.ops.ones((1, 2, 4)))[0, 0, 0])
    0.5
    """

    def __init__(self, initial: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, tokens_shape: Shape) -> None:
        self.gamma = self.add_weight(
            name="gamma",
            shape=(tokens_shape[-1],),
            initializer=keras.initializers.Constant(self.initial),
        )

    def call(self, tokens: Any) -> Any:
        return tokens * self.gamma

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        return tokens_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class MLP(CompositeLayer):
    """Two dense layers with GELU between, token by token (ViT paper, section 3.1).

    Takes and returns `(batch, length, hidden_dim)`.

    Args:
        mlp_dim: Width between the two layers.
        activation: `"gelu_tanh"` as in the released code, or any name that Keras knows;
            `"gelu"` is the exact form of timm and Hugging Face, `"swiglu"` the gated one of
            DINOv2's giant, whose first layer is twice `mlp_dim` wide.
        dropout: Rate of dropout after the activation and after the second layer.
        norm_epsilon: Epsilon of a layer norm in front of the second layer (EVA-02); None for none.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.MLP(mlp_dim=128)(keras.ops.ones((2, 17, 32))).shape[1:])
    (17, 32)
    """

    kernel_initializer: Any = "glorot_uniform"
    bias_initializer: Any = MLP_BIAS_INITIALIZER

    def __init__(
        self,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        dropout: float = 0.0,
        norm_epsilon: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive(mlp_dim=mlp_dim)
        check_rate(dropout=dropout)
        self.mlp_dim = mlp_dim
        self.activation = activation
        self.activation_function = activation_function(activation)
        self.dropout = dropout
        self.norm_epsilon = norm_epsilon

    def build(self, tokens_shape: Shape) -> None:
        dense = partial(
            self.sublayer,
            Dense,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
        )
        gated = 2 if self.activation == "swiglu" else 1
        inside = dense_activation(self.activation)
        self.is_activated = inside is not None
        self.dense_0 = dense(gated * self.mlp_dim, activation=inside, name="dense_0")
        self.dense_1 = dense(tokens_shape[-1], name="dense_1")
        self.dropout_0 = self.sublayer(Dropout, self.dropout, name="dropout_0")
        self.dropout_1 = self.sublayer(Dropout, self.dropout, name="dropout_1")
        self.norm = None
        if self.norm_epsilon is not None:
            norm = keras.layers.LayerNormalization
            self.norm = self.sublayer(norm, epsilon=self.norm_epsilon, name="norm")
            self.norm.build((*tokens_shape[:-1], self.mlp_dim))
        self.dense_0.build(tokens_shape)
        self.dense_1.build((*tokens_shape[:-1], self.mlp_dim))

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        hidden = self.dense_0(tokens, training=training)
        if not self.is_activated:
            hidden = recompute_derivative(self.activation_function)(hidden)
        hidden = self.dropout_0(hidden, training=training)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.cast(self.dropout_1(self.dense_1(hidden, training=training), training=training))

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        return tokens_shape


@dataclass(frozen=True, kw_only=True)
class BlockConfig(AttentionConfig):
    """The options of an encoder block beside those of its attention.

    Args:
        mlp_dim: Width of the MLP.
        stochastic_depth: Probability that an example skips a branch in training; of a model, that
            at the last block, to which it rises linearly from 0.
        activation: The MLP's: `"gelu_tanh"` (the released code's), `"gelu"` (timm, Hugging Face),
            `"quick_gelu"` (OpenAI's CLIP) or `"swiglu"` (DINOv2's giant); see `MLP`.
        norm_epsilon: Epsilon of the layer norms: 1e-6 in the released code.
        layer_scale: Initial value of a learned scale on both branches (DINOv2); None for none.
        remat: Recompute a block's activations in the backward pass instead of keeping them.
        mlp_norm: Whether the MLP has a norm inside (EVA-02).

    Raises:
        ValueError: An argument is out of range.
    """

    mlp_dim: int
    stochastic_depth: float = 0.0
    activation: str = "gelu_tanh"
    norm_epsilon: float = 1e-6
    layer_scale: float | None = None
    remat: bool = False
    mlp_norm: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(mlp_dim=self.mlp_dim)
        check_rate(stochastic_depth=self.stochastic_depth)
        check_above_zero(norm_epsilon=self.norm_epsilon)
        if self.layer_scale is not None:
            check_finite(layer_scale=self.layer_scale)


@keras.saving.register_keras_serializable(package="keras_vit")
class EncoderBlock(CompositeLayer):
    """Pre-norm encoder block: attention, then MLP, each after a norm and with a shortcut.

    Takes and returns `(batch, length, hidden_dim)`. Source: ViT paper, equations 2 and 3.
    Called with `context`, a sequence of which the tokens are the first ones, it encodes only the
    tokens, as queries to the whole sequence (CaiT's class attention). `angles` and `bias` are what
    the blocks of a model share, and `mask` is what may be attended to: see
    `MultiHeadSelfAttention.attend`.

    Args:
        config: The block's options.
        relative_length, relative_grid: See `MultiHeadSelfAttention`.

    Example:

    >>> import keras
    >>> from keras_vit.layers import BlockConfig, EncoderBlock
    >>> block = EncoderBlock(BlockConfig(num_heads=4, mlp_dim=128))
    >>> tuple(block(keras.ops.ones((2, 17, 32))).shape[1:])
    (17, 32)
    """

    config_class = BlockConfig

    def __init__(
        self,
        config: BlockConfig,
        relative_length: int | None = None,
        relative_grid: tuple[int, int] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.config = c = config
        self.relative_length, self.relative_grid = relative_length, relative_grid
        norm, add = keras.layers.LayerNormalization, self.sublayer
        self.norm_0 = add(norm, epsilon=c.norm_epsilon, name="norm_0")
        relative = relative_length, relative_grid
        self.attention = add(MultiHeadSelfAttention, c, *relative, name="attention")
        self.norm_1 = add(norm, epsilon=c.norm_epsilon, name="norm_1")
        epsilon = c.norm_epsilon if c.mlp_norm else None
        self.mlp = add(MLP, c.mlp_dim, c.activation, c.dropout, epsilon, name="mlp")
        initial, plain = c.layer_scale, keras.layers.Identity
        scale = plain if initial is None else partial(LayerScale, initial)
        self.scale_0, self.scale_1 = add(scale, name="scale_0"), add(scale, name="scale_1")
        self.drop_0 = add(StochasticDepth, c.stochastic_depth, name="drop_0")
        self.drop_1 = add(StochasticDepth, c.stochastic_depth, name="drop_1")

    def build(self, tokens_shape: Shape, *_: Shape, **__: Shape) -> None:
        attention = (self.norm_0, self.attention, self.scale_0, self.drop_0)
        for layer in (*attention, self.norm_1, self.mlp, self.scale_1, self.drop_1):
            layer.build(tokens_shape)

    # `training` is passed by name: a rematerialized pass runs outside Keras's call context.

    def _attend(self, z: Any, context: Any, sizes: Any, **options: Any) -> tuple[Any, Any]:
        """Equation 2, and the keys."""
        training = options["training"]
        context = None if context is None else self.norm_0(context)
        attended, keys = self.attention.attend(self.norm_0(z), context, sizes, **options)
        return z + self.cast(self.drop_0(self.scale_0(attended), training=training)), keys

    def _mlp(self, z: Any, training: bool | None) -> Any:
        """Equation 3."""
        mixed = self.scale_1(self.mlp(self.norm_1(z), training=training))
        return z + self.cast(self.drop_1(mixed, training=training))

    def call(
        self,
        tokens: Any,
        context: Any = None,
        angles: Any = None,
        bias: Any = None,
        mask: Any = None,
        training: bool | None = None,
    ) -> Any:
        if context is None:
            tokens, context = queries_and_context(self, tokens)
        optional = {"context": context, "angles": angles, "bias": bias}
        optional = {name: x for name, x in optional.items() if x is not None}

        def encode(z: Any, *others: Any) -> Any:
            options = dict(zip([*optional, "mask"], others, strict=False))
            z, _ = self._attend(z, options.pop("context", None), None, **options, training=training)
            return self._mlp(z, training)

        inputs, constants = (tokens, *optional.values()), () if mask is None else (mask,)
        if self.config.remat and training:
            return rematerialize(self, encode, *inputs, constants=constants)
        return encode(*inputs, *constants)

    def compute_mask(self, *_: Any) -> None:
        """Returns None, as that of `MultiHeadSelfAttention`."""

    def compute_output_shape(self, tokens_shape: Shape, *_: Shape) -> Shape:
        return tokens_shape
