"""From the encoder's tokens to the vector that is classified (ViT paper, equation 4)."""

from typing import Any

import keras

from keras_vit.layers import AttentionPooling, MeanPooling, TokenPooling, UnmergeTokens
from keras_vit.models.config import ViTConfig
from keras_vit.models.encoder import Encoded


def read_out(encoded: Encoded, config: ViTConfig) -> dict[str, Any]:
    """Equation 4: `encoder_norm`, all tokens after the last norm, and what is `pooled` of them.

    Where the norm stands after the pooling, `encoder_norm` is the last block's tokens.
    """
    name = "pooling_norm" if config.norm_after_pooling else "encoder_norm"
    norm = keras.layers.LayerNormalization(
        epsilon=config.norm_epsilon, dtype=config.dtype, name=name
    )
    if config.norm_after_pooling:
        pooled = norm(pool_mean(encoded.tokens, encoded, config))
        return {"encoder_norm": encoded.tokens, "pooled": pooled}
    tokens = norm(encoded.tokens)
    x = {"encoder_norm": tokens, "pooled": POOL[config.pooling](tokens, encoded, config)}
    if config.distilled:  # DeiT's second token
        second = TokenPooling(1, dtype=config.dtype, name="distillation_pooling")
        x["distillation_token"] = second(tokens)
    return x


# Each takes the normalized tokens, what the encoder returned, and the arguments.


def pool_class_token(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """The class token (equation 4)."""
    return TokenPooling(dtype=config.dtype, name="pooling")(tokens)


def pool_mean(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """The mean over the patches (appendix D.3)."""
    pool = MeanPooling(config.num_prefix_tokens, dtype=config.dtype, name="pooling")
    return pool(tokens, *encoded.token_index)


def pool_both(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """The class token and the mean over the patches, side by side (DINOv2, section 7.1)."""
    first = TokenPooling(dtype=config.dtype, name="class_token_pooling")(tokens)
    mean = pool_mean(tokens, encoded, config)
    return keras.layers.Concatenate(dtype=config.dtype, name="pooled")([first, mean])


def pool_by_attention(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
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


def keep_all_tokens(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Every token; merged ones are restored to the full sequence."""
    for index in encoded.token_index:
        tokens = UnmergeTokens(dtype=config.dtype, name="pooling")(tokens, index)
    return tokens


POOL = {
    "token": pool_class_token,
    "gap": pool_mean,
    "map": pool_by_attention,
    "token_gap": pool_both,
    None: keep_all_tokens,
}
