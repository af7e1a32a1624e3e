"""The block of MLP-Mixer (Tolstikhin et al. 2021): one MLP across tokens, one across channels."""

from functools import partial
from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_positive, check_rate
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import Shape
from keras_vit.layers.encoder import MLP
from keras_vit.layers.rematerialization import rematerialize
from keras_vit.layers.stochastic_depth import StochasticDepth


class _MixingMLP(MLP):
    """An MLP with the initial values of the released Mixer."""

    kernel_initializer = "lecun_normal"
    bias_initializer = "zeros"


@keras.saving.register_keras_serializable(package="keras_vit")
class MixerBlock(CompositeLayer):
    """Mixes the tokens of every channel, then the channels of every token.

    Takes and returns `(batch, length, hidden_dim)`; the length is fixed when the layer is built,
    as the token mixing has a weight for every pair of tokens. Source: MLP-Mixer, equation 1.

    Args:
        tokens_mlp_dim: Width of the MLP across tokens.
        channels_mlp_dim: Width of the MLP across channels.
        stochastic_depth: Probability that an example skips a branch in training. The other
            branches are not scaled up, as in the released code.
        activation: Activation of the MLPs (see `MLP`).
        norm_epsilon: Epsilon of the layer norms.
        remat: Recompute activations in the backward pass instead of keeping them.

    Raises:
        ValueError: The length of the sequence is unknown.

    Example:

    >>> import keras, keras_vit
    >>> block = keras_vit.layers.MixerBlock(tokens_mlp_dim=8, channels_mlp_dim=128)
    >>> tuple(block(keras.ops.ones((2, 16, 32))).shape[1:])
    (16, 32)
    """

    def __init__(
        self,
        tokens_mlp_dim: int,
        channels_mlp_dim: int,
        stochastic_depth: float = 0.0,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        remat: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_positive(tokens_mlp_dim=tokens_mlp_dim, channels_mlp_dim=channels_mlp_dim)
        check_rate(stochastic_depth=stochastic_depth)
        self.tokens_mlp_dim = tokens_mlp_dim
        self.channels_mlp_dim = channels_mlp_dim
        self.stochastic_depth = stochastic_depth
        self.activation = activation
        self.norm_epsilon = norm_epsilon
        self.remat = remat
        norm = partial(self.sublayer, keras.layers.LayerNormalization, epsilon=norm_epsilon)
        mlp = partial(self.sublayer, _MixingMLP, activation=activation)
        drop = partial(self.sublayer, StochasticDepth, stochastic_depth, rescale=False)
        self.norm_0 = norm(name="norm_0")
        self.token_mixing = mlp(mlp_dim=tokens_mlp_dim, name="token_mixing")
        self.norm_1 = norm(name="norm_1")
        self.channel_mixing = mlp(mlp_dim=channels_mlp_dim, name="channel_mixing")
        self.drop_0 = drop(name="drop_0")
        self.drop_1 = drop(name="drop_1")

    def build(self, tokens_shape: Shape) -> None:
        batch, length, hidden_dim = tokens_shape
        if length is None:
            raise ValueError(
                f"Tokens of shape {tuple(tokens_shape)} do not have a fixed length, but MLP-Mixer "
                "learns a weight for every pair of tokens. Give images of one size."
            )
        self.token_mixing.build((batch, hidden_dim, length))
        for layer in (self.norm_0, self.drop_0, self.norm_1, self.channel_mixing, self.drop_1):
            layer.build(tokens_shape)

    def call(self, tokens: Any, training: bool | None = None) -> Any:
        def block(x: Any) -> Any:
            mixed = self._mix_tokens(self.norm_0(x), training)
            x = x + self.cast(self.drop_0(mixed, training=training))
            mixed = self.channel_mixing(self.norm_1(x), training=training)
            return x + self.cast(self.drop_1(mixed, training=training))

        return rematerialize(self, block, tokens) if self.remat and training else block(tokens)

    def _mix_tokens(self, tokens: Any, training: bool | None) -> Any:
        mixed = self.token_mixing(ops.transpose(tokens, (0, 2, 1)), training=training)
        return ops.transpose(mixed, (0, 2, 1))

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        return tokens_shape
