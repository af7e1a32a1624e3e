"""The layers of a Vision Transformer and of the models that it is compared with."""

from keras_vit.layers.attention import AttentionConfig, MultiHeadSelfAttention
from keras_vit.layers.conv_stem import ConvStemStage
from keras_vit.layers.convolution import StandardizedConv2D
from keras_vit.layers.dense_prediction import (
    FeatureFusion,
    PixelUpsample,
    Reassemble,
    ResidualConvUnit,
)
from keras_vit.layers.encoder import MLP, BlockConfig, EncoderBlock, LayerScale
from keras_vit.layers.map_resize import MapResize
from keras_vit.layers.merging import MergingEncoderBlock, UnmergeTokens
from keras_vit.layers.mixer_block import MixerBlock
from keras_vit.layers.patch_dropout import PatchDropout
from keras_vit.layers.patches import PatchEmbedding, Patches, TokensToGrid
from keras_vit.layers.pooling import AttentionPooling, MeanPooling, TokenPooling
from keras_vit.layers.positions import (
    GridPositionBias,
    PositionEmbedding,
    RelativePositionBias,
)
from keras_vit.layers.queries import (
    MaskedQueries,
    MaskUpscale,
    QueryMasks,
    QueryTokens,
    SemanticMaps,
    SplitTokens,
)
from keras_vit.layers.residual import ResidualUnit, ResNetStem
from keras_vit.layers.rotary import RotaryPositions
from keras_vit.layers.stochastic_depth import StochasticDepth
from keras_vit.layers.tokens import ClassToken, RegisterTokens

__all__ = [
    "MLP",
    "AttentionConfig",
    "AttentionPooling",
    "BlockConfig",
    "ClassToken",
    "ConvStemStage",
    "EncoderBlock",
    "FeatureFusion",
    "GridPositionBias",
    "LayerScale",
    "MapResize",
    "MaskUpscale",
    "MaskedQueries",
    "MeanPooling",
    "MergingEncoderBlock",
    "MixerBlock",
    "MultiHeadSelfAttention",
    "PatchDropout",
    "PatchEmbedding",
    "Patches",
    "PixelUpsample",
    "PositionEmbedding",
    "QueryMasks",
    "QueryTokens",
    "Reassemble",
    "RegisterTokens",
    "RelativePositionBias",
    "ResNetStem",
    "ResidualConvUnit",
    "ResidualUnit",
    "RotaryPositions",
    "SemanticMaps",
    "SplitTokens",
    "StandardizedConv2D",
    "StochasticDepth",
    "TokenPooling",
    "TokensToGrid",
    "UnmergeTokens",
]
