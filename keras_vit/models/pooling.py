"""From the encoder's tokens to the vector that is classified (ViT paper, equation 4)."""

from typing import Any

from keras_vit.layers import AttentionPooling, MeanPooling, TokenPooling, UnmergeTokens
from keras_vit.models.config import ViTConfig
from keras_vit.models.encoder import Encoded

# Each takes the normalised tokens, the norm itself, what the encoder returned, and the arguments.


def pool_class_token(tokens: Any, norm: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Equation 4: the class token."""
    pool = TokenPooling(dtype=config.dtype, name="pooling")
    return pool(norm(encoded.class_token()))


def pool_mean(tokens: Any, norm: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """The mean over the patches (appendix D.3)."""
    pool = MeanPooling(config.num_prefix_tokens, dtype=config.dtype, name="pooling")
    return pool(tokens, *encoded.token_index)


def pool_by_attention(tokens: Any, norm: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """A learned query attends to all tokens ("Scaling Vision Transformers", MAP head)."""
    assert config.mlp_dim is not None  # the configuration has replaced it
    pool = AttentionPooling(
        config.num_heads,
        config.mlp_dim,
        config.activation,
        config.norm_epsilon,
        dtype=config.dtype,
        name="pooling",
    )
    return pool(tokens, *encoded.token_index)


def keep_all_tokens(tokens: Any, norm: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Every token; merged ones are restored to the full sequence."""
    for index in encoded.token_index:
        tokens = UnmergeTokens(dtype=config.dtype, name="pooling")(tokens, index)
    return tokens


POOL = {
    "token": pool_class_token,
    "gap": pool_mean,
    "map": pool_by_attention,
    None: keep_all_tokens,
}
