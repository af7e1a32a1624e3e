"""Equation 1 of the ViT paper: from an image to the sequence of tokens."""

from typing import Any

import keras

from keras_vit.layers import (
    ClassToken,
    ConvStemStage,
    GridPositionBias,
    PatchDropout,
    PatchEmbedding,
    PositionEmbedding,
    RegisterTokens,
    RotaryPositions,
)
from keras_vit.layers._dropout import Dropout
from keras_vit.models.config import ViTConfig
from keras_vit.models.normalization import channels_last


def image_patches(images: Any, config: ViTConfig, data_format: str | None = None) -> dict[str, Any]:
    """The `patches`, each projected linearly: `(batch, rows, columns, width)`.

    Args:
        images: Images, or a feature map that patches are cut from.
        config: The model's arguments.
        data_format: That of `images`; None for the model's.
    """
    embed = PatchEmbedding(
        config.hidden_dim,
        config.patch_size,
        data_format or config.data_format,
        use_bias=not config.pre_norm,
        dtype=config.dtype,
        name="patch_embedding",
    )
    return {"patches": embed(images)}


def conv_stem_patches(images: Any, config: ViTConfig) -> dict[str, Any]:
    """`conv_stem`, the feature map of the convolutions in front, and the `patches` cut from it."""
    assert config.conv_stem is not None
    maps = channels_last(images, config.data_format)
    for i, (filters, stride) in enumerate(config.conv_stem):
        stage = ConvStemStage(
            filters, stride, config.norm_epsilon, dtype=config.dtype, name=f"conv_stem_{i}"
        )
        maps = stage(maps)
    return {"conv_stem": maps, **image_patches(maps, config, "channels_last")}


def embed_tokens(patches: Any, config: ViTConfig) -> Any:
    """Equation 1: the patches as a sequence, class token in front, positions added."""
    add, after = {"dtype": config.dtype}, config.num_prefix_positions
    tokens = keras.layers.Reshape((-1, config.hidden_dim), **add, name="tokens")(patches)
    if config.has_class_token:
        tokens = ClassToken(**add, name="class_token")(tokens)
    if config.distilled:
        tokens = RegisterTokens(1, **add, name="distillation_token")(tokens)
    if config.position_embedding in PositionEmbedding.KINDS:
        assert config.position_grid is not None  # the configuration has replaced it
        tokens = PositionEmbedding(
            config.position_grid, config.position_embedding, after, **add, name="position_embedding"
        )(tokens, patches)
    if config.num_registers:
        registers = RegisterTokens(config.num_registers, after, **add, name="register_tokens")
        tokens = registers(tokens)
    if config.patch_dropout:
        drop = PatchDropout(
            config.patch_dropout, config.num_prefix_tokens, **add, name="patch_dropout"
        )
        tokens = drop(tokens)
    tokens = Dropout(config.dropout, **add, name="dropout")(tokens)
    if config.pre_norm:
        norm = keras.layers.LayerNormalization
        tokens = norm(epsilon=config.norm_epsilon, **add, name="pre_norm")(tokens)
    return tokens


def positions_in_attention(tokens: Any, patches: Any, config: ViTConfig) -> dict[str, Any]:
    """What all blocks take besides the tokens: `angles` of rotary positions, or a shared `bias`."""
    shared = {}
    if config.rotary is not None:
        head_dim = config.hidden_dim // config.num_heads
        rotary = RotaryPositions(
            head_dim,
            config.rotary,
            config.num_prefix_tokens,
            dtype=config.dtype,
            name="rotary_positions",
        )
        shared["angles"] = rotary(patches)
    if config.position_embedding == "relative_2d_shared":
        assert config.position_grid is not None
        relative = GridPositionBias(
            config.position_grid,
            config.num_heads,
            dtype=config.dtype,
            name="relative_position_bias",
        )
        shared["bias"] = relative(tokens)
    return shared
