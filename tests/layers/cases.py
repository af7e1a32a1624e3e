"""Every layer that is saved, each argument away from its default, and inputs that it takes."""

import inspect
from dataclasses import fields
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from keras_vit import layers
from keras_vit.layers._dense import Dense
from keras_vit.layers._dropout import Dropout

TOKENS, IMAGES, FIRST = (2, 17, 32), (2, 32, 24, 3), (2, 3, 32, 24)
MAPS, READOUT = (2, 4, 5, 3), {"readout": "project"}
PATCHES, QUERIES, ANGLES = (2, 4, 4, 5), (2, 17, 4, 8), (2, 17, 8)
TOKEN_INDEX = np.stack([np.arange(34), np.arange(34)[::-1]]).astype("int32") // 2


class Case(NamedTuple):
    """A layer and what it is called with: an array for each of `inputs`, by argument."""

    cls: Any
    arguments: dict[str, Any]
    inputs: dict[str, Any]


def case(cls: Any, inputs: Any = TOKENS, more: Any = None, **arguments: Any) -> Case:
    first = list(inspect.signature(cls.call).parameters)[1]
    return Case(cls, arguments, {first: inputs, **(more or {})})


GELU: dict[str, Any] = {"activation": "gelu", "norm_epsilon": 1e-5}
NOISE: dict[str, Any] = {"dropout": 0.1, "attention_dropout": 0.2}
HEADS: dict[str, Any] = {"num_heads": 4, "mlp_dim": 24}
BLOCK: dict[str, Any] = {**HEADS, "layer_scale": 0.5, "remat": True}
BLOCK |= {"stochastic_depth": 0.3, **GELU, **NOISE}
MERGED, TURNED, ON_GRID = {"token_index": TOKEN_INDEX}, {"angles": ANGLES}, {"patches": PATCHES}
PLAIN_BLOCK = layers.BlockConfig(**BLOCK)
SWITCHED = {f.name: not f.default for f in fields(layers.BlockConfig) if f.type is bool}
ROTARY_BLOCK = layers.BlockConfig(**BLOCK | SWITCHED, rotary="eva02")
PLAIN = layers.AttentionConfig(num_heads=4, **NOISE)
ROTARY = layers.AttentionConfig(num_heads=4, rotary="dinov3", key_bias=False)
RELATIVE, SQUARE = {"relative_length": 17}, {"relative_grid": (4, 4)}
PREFIX, IS_FIRST = {"num_prefix_tokens": 2}, {"data_format": "channels_first"}
DENSE = {"kernel_initializer": "he_normal", "kernel_regularizer": "l2", "bias_regularizer": "l1"}
DENSE |= {"bias_initializer": "ones", "bias_constraint": "non_neg", "kernel_constraint": "non_neg"}
STEM: dict[str, Any] = {"patch_size": (16, 5), "padding": "same", "use_bias": False, **IS_FIRST}
MIXER = {"tokens_mlp_dim": 8, "channels_mlp_dim": 24, "stochastic_depth": 0.2, "remat": True}
CONV: dict[str, Any] = {"variance_epsilon": 1e-10, "deviation_epsilon": 0.0, "padding": "valid"}
CASES: dict[str, Case] = {
    "mlp": case(layers.MLP, mlp_dim=24, activation="swiglu", dropout=0.1, norm_epsilon=1e-5),
    "attention_pooling": case(layers.AttentionPooling, more=MERGED, **HEADS, **GELU),
    "class_token": case(layers.ClassToken),
    "dense": case(Dense, units=24, activation="relu", activity_regularizer="l2", **DENSE),
    "dense_lora": case(Dense, units=24, use_bias=False, lora_rank=2, lora_alpha=3.0),
    "dropout": case(Dropout, rate=0.5, noise_shape=(None, 1, 32), seed=3),
    "encoder_block": case(layers.EncoderBlock, config=PLAIN_BLOCK, **RELATIVE),
    "rotary_block": case(layers.EncoderBlock, more=TURNED, config=ROTARY_BLOCK, **SQUARE),
    "grid_position_bias": case(layers.GridPositionBias, grid=(4, 4), num_heads=4),
    "layer_scale": case(layers.LayerScale, initial=0.5),
    "mean_pooling": case(layers.MeanPooling, more=MERGED, num_prefix_tokens=1),
    "merging_block": case(
        layers.MergingEncoderBlock, TOKENS, MERGED, merge=3, config=PLAIN_BLOCK, **PREFIX
    ),
    "mixer_block": case(layers.MixerBlock, **MIXER, **GELU),
    "attention": case(layers.MultiHeadSelfAttention, config=PLAIN, **RELATIVE),
    "rotary_attention": case(layers.MultiHeadSelfAttention, more=TURNED, config=ROTARY, **SQUARE),
    "patch_dropout": case(layers.PatchDropout, rate=0.5, num_prefix_tokens=1, seed=3),
    "patch_embedding": case(layers.PatchEmbedding, FIRST, hidden_dim=32, **STEM),
    "patches": case(layers.Patches, FIRST, patch_size=(16, 8), **IS_FIRST),
    "position_embedding": case(
        layers.PositionEmbedding, (2, 18, 32), ON_GRID, grid=(3, 5), kind="learned_2d", **PREFIX
    ),
    "register_tokens": case(layers.RegisterTokens, num_tokens=3, after=2),
    "conv_stem_stage": case(layers.ConvStemStage, IMAGES, filters=8, stride=2, epsilon=1e-3),
    "relative_position_bias": case(layers.RelativePositionBias, QUERIES, max_length=9),
    "resnet_stem": case(layers.ResNetStem, IMAGES, width=32, version=1),
    "residual_unit": case(
        layers.ResidualUnit, (2, 7, 6, 64), width=32, strides=2, version=1, remat=True
    ),
    "rotary_positions": case(layers.RotaryPositions, PATCHES, head_dim=8, kind="eva02", **PREFIX),
    "standardized_conv": case(
        layers.StandardizedConv2D, IMAGES, filters=8, kernel_size=3, strides=2, **CONV
    ),
    "stochastic_depth": case(layers.StochasticDepth, rate=0.5, seed=3, rescale=False),
    "map_resize": case(layers.MapResize, (2, 4, 5, 3), size=(6, 7), align_corners=True),
    "pixel_upsample": case(layers.PixelUpsample, MAPS, factor=2),
    "reassemble": case(
        layers.Reassemble, MAPS, {"token": (2, 3)}, channels=6, factor=0.5, width=4, **READOUT
    ),
    "residual_conv_unit": case(layers.ResidualConvUnit, MAPS, batch_norm=True),
    "feature_fusion": case(
        layers.FeatureFusion, MAPS, {"shallow": MAPS}, size=(6, 7), batch_norm=True
    ),
    "query_tokens": case(layers.QueryTokens, num_tokens=3, after=2),
    "split_tokens": case(layers.SplitTokens, number=3),
    "mask_upscale": case(layers.MaskUpscale, MAPS, activation="relu"),
    "query_masks": case(layers.QueryMasks, (2, 7, 3), {"maps": MAPS}, activation="relu"),
    "masked_queries": case(layers.MaskedQueries, MAPS, **PREFIX),
    "semantic_maps": case(layers.SemanticMaps, MAPS, {"class_logits": (2, 3, 4)}),
    "token_pooling": case(layers.TokenPooling, index=1),
    "tokens_to_grid": case(layers.TokensToGrid, (2, 18, 32), ON_GRID, **PREFIX, **IS_FIRST),
    "unmerge_tokens": case(layers.UnmergeTokens, more=MERGED),
}


def quantizer(name: str, **arguments: Any) -> Any:
    """A configuration of `keras.quantizers`, or a skip where Keras is older than it."""
    if not hasattr(keras.quantizers, name):
        pytest.skip(f"Keras {keras.__version__} has no {name}")
    return getattr(keras.quantizers, name)(**arguments)


def arrays(inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    return {
        name: random.normal(size=given).astype("float32") if isinstance(given, tuple) else given
        for name, given in inputs.items()
    }
