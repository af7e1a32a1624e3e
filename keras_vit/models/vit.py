"""The Vision Transformer, top to bottom (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words").

    images ──► patches ──► tokens ──► block_0 ... block_L-1 ──► encoder_norm ──► pooled ──► logits
               image_patches, embed_tokens: equation 1      encode: 2 and 3      read_out: 4

In shapes: `n` images of `rows` x `columns` patches are `t` tokens of width `d` (`hidden_dim`), of
which the first, the prefix, belong to no patch: class token, distillation token, registers.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import keras

from keras_vit.layers import (
    AttentionPooling,
    ClassToken,
    ConvStemStage,
    EncoderBlock,
    GridPositionBias,
    MeanPooling,
    MergingEncoderBlock,
    PatchDropout,
    PatchEmbedding,
    PositionEmbedding,
    RegisterTokens,
    RotaryPositions,
    TokenPooling,
    TokensToGrid,
    UnmergeTokens,
)
from keras_vit.layers._dropout import Dropout
from keras_vit.layers.first_tokens import only_first_tokens
from keras_vit.models.config import ViTAttributes, ViTConfig, arguments_of
from keras_vit.models.eomt import Queries
from keras_vit.models.eomt_training import QueryTrainedModel
from keras_vit.models.geometry import ImageShape, feature_stride, image_size
from keras_vit.models.head import classify
from keras_vit.models.normalization import channels_last, normalize
from keras_vit.models.resnet import resnet_features
from keras_vit.ops import has_hooks

Features = dict[str, Any]
NO_LAYERS: Mapping[str, keras.layers.Layer] = MappingProxyType({})


def vision_transformer(images: Any, config: ViTConfig) -> Features:
    """Figure 1 of the paper: every intermediate by name, in the order of the data."""
    x = {"images": normalize(images, config)}  # (n, height, width, channels), in [-1, 1]
    x |= patch_maps(x["images"], config)  # patches (n, rows, columns, d)
    x["tokens"] = embed_tokens(x["patches"], config)  # (n, t, d): z_0
    encoded = encode(x["tokens"], x["patches"], config)  # block_i (n, t, d): z_1 to z_L
    x |= encoded.features
    x |= read_out(encoded, config)  # encoder_norm (n, t, d), pooled (n, d): y
    x["pre_logits"] = pre_logits(x["pooled"], config)  # (n, representation_size or d)
    if config.head_kind == "linear":
        x["grid"] = on_grid(x["encoder_norm"], x["patches"], encoded, config)
    elif config.head_kind == "dpt":
        x |= block_grids(x, encoded, config)
    x["logits"] = classify(x, config)  # (n, classes), or (n, height, width, classes)
    if config.head_kind == "dpt" and not config.map_head.normalized:
        for name in ("encoder_norm", "pooled", "pre_logits"):
            del x[name]  # outputs do not depend on this norm, so that files do not fill it
    return x


# From images to patches.


def patch_maps(images: Any, config: ViTConfig) -> Features:
    """`patches`, and the feature maps that they are cut from where it is not the image itself.

    A hybrid's are those of a ResNet (section 3.1): `stem`, `stage_1` and so on. It is big_vision's
    `bit` (version 1), which AugReg's hybrids start with. A stem of convolutions gives `conv_stem`.
    """
    if config.resnet is not None:
        x = resnet_features(images, config, config.resnet, config.resnet_width, version=1)
        last = x[f"stage_{len(config.resnet)}"] if config.resnet else x["stem"]
        return {**x, "patches": image_patches(last, config, "channels_last")}
    if config.conv_stem is None:
        return {"patches": image_patches(images, config, config.data_format)}
    maps = channels_last(images, config.data_format)
    for i, (filters, stride) in enumerate(config.conv_stem):
        stage = ConvStemStage(
            filters, stride, config.norm_epsilon, dtype=config.dtype, name=f"conv_stem_{i}"
        )
        maps = stage(maps)  # (n, height / stride, width / stride, filters)
    return {"conv_stem": maps, "patches": image_patches(maps, config, "channels_last")}


def image_patches(images: Any, config: ViTConfig, data_format: str | None) -> Any:
    """Patches of images or of a feature map, each projected linearly: `(n, rows, columns, d)`."""
    embed = PatchEmbedding(
        config.hidden_dim,
        config.patch_size,
        data_format,
        use_bias=not config.pre_norm,
        dtype=config.dtype,
        name="patch_embedding",
    )
    return embed(images)


# Equation 1: from patches to tokens.


def embed_tokens(patches: Any, config: ViTConfig) -> Any:
    """Return the patches as a sequence, the prefix in front, positions added: `(n, t, d)`."""
    add, after = {"dtype": config.dtype}, config.num_prefix_positions
    tokens = keras.layers.Reshape((-1, config.hidden_dim), **add, name="tokens")(patches)
    if config.has_class_token:
        tokens = ClassToken(**add, name="class_token")(tokens)  # (n, 1 + rows * columns, d)
    if config.distilled:
        tokens = RegisterTokens(1, **add, name="distillation_token")(tokens)
    if config.position_embedding in PositionEmbedding.KINDS:
        assert config.position_grid is not None  # the configuration has replaced it
        tokens = PositionEmbedding(
            config.position_grid, config.position_embedding, after, **add, name="position_embedding"
        )(tokens, patches)
    if config.num_registers:
        registers = RegisterTokens(config.num_registers, after, **add, name="register_tokens")
        tokens = registers(tokens)  # (n, t, d)
    if config.patch_dropout:
        drop = PatchDropout(
            config.patch_dropout, config.num_prefix_tokens, **add, name="patch_dropout"
        )
        tokens = drop(tokens)  # in training fewer of them
    tokens = Dropout(config.dropout, **add, name="dropout")(tokens)
    if config.pre_norm:
        tokens = layer_norm(config, "pre_norm")(tokens)
    return tokens


# Equations 2 and 3: the encoder.


class Encoded(NamedTuple):
    """What the encoder returns.

    Attributes:
        features: The output of every block by name: `block_0` and so on, and where patches are
            merged `block_0_token_index`.
        tokens: The last block's, `(n, t, d)`.
        norm: The encoder's last norm, a layer; None where it stands after the pooling.
        token_index: `(index,)` after token merging (see `MergingEncoderBlock`), else ().
    """

    features: Features
    tokens: Any
    norm: Any = None
    token_index: tuple[Any, ...] = ()


def encode(tokens: Any, patches: Any, config: ViTConfig) -> Encoded:
    """Block by block; from the first that merges patches on (ToMe, section 3), they are merged."""
    features: Features = {}
    shared = positions_in_attention(tokens, patches, config)
    index: tuple[Any, ...] = ()
    merges = False
    of_queries = config.map_head.blocks if config.head_kind == "eomt" else 0
    for i, merge in enumerate(config.merging[: config.depth - of_queries]):
        merges = merges or merge > 0
        if not merges:
            tokens = encoder_block(config, i)(tokens, **shared)
        else:
            options = {"dtype": config.dtype, "name": f"block_{i}"}
            merging = MergingEncoderBlock(
                config.block(i), merge, config.num_prefix_tokens, **options
            )
            tokens, token_index = merging(tokens, *index)  # (n, fewer, d), (n, t)
            index = (token_index,)
        features[f"block_{i}"] = tokens
        if index:
            features[f"block_{i}_token_index"] = index[0]
    norm = None if config.norm_after_pooling else layer_norm(config, "encoder_norm")
    if of_queries:
        tokens, of_last = encode_queries(tokens, patches, norm, config)
        features |= of_last
    return Encoded(features, tokens, norm, index)


def encoder_block(config: ViTConfig, i: int) -> EncoderBlock:
    """Return the layer of block `i`."""
    return EncoderBlock(config.block(i), **config.relative, dtype=config.dtype, name=f"block_{i}")


def encode_queries(
    tokens: Any,
    patches: Any,
    norm: Any,
    config: ViTConfig,
    built: Mapping[str, keras.layers.Layer] = NO_LAYERS,
    is_masked: Sequence[Any] = (),
) -> tuple[Any, Features]:
    """Return the tokens after the last blocks, which the queries of an EoMT head pass in front.

    And features: blocks as elsewhere, without the queries; `mask_logits` and `class_logits` of the
    last block, and where queries are masked those in front of each block, `mask_logits_i`.

    Args:
        tokens: Those in front of these blocks; `patches` and `config` as everywhere.
        norm: The last norm of the encoder.
        built: Layers by name that there are already; those that are missing are made.
        is_masked: Which queries each of these blocks holds to their masks, bool `(n, queries)`;
            without it, all where the head is `masked`, else none.
    """
    features: Features = {}
    queries, head = Queries(config, patches, norm, built), config.map_head
    shared = positions_in_attention(tokens, patches, config, head.queries)
    tokens = queries.add(tokens)
    parts = queries.split(tokens, "first")
    which = is_masked or (head.blocks * [None] if head.masked else ())
    for k, i in enumerate(range(config.depth - head.blocks, config.depth)):
        masks = {}
        if which:
            predicted = queries.predict(*parts, f"{i}")
            features[f"mask_logits_{i}"], features[f"class_logits_{i}"] = predicted
            masks["mask"] = queries.attention_mask(predicted[0], f"{i}", which[k])
        block = built[f"block_{i}"] if built else encoder_block(config, i)
        tokens = block(tokens, **shared, **masks)
        parts = queries.split(tokens, f"{i}")
        features[f"block_{i}"] = parts[1]
    features["mask_logits"], features["class_logits"] = queries.predict(*parts, "last")
    return parts[1], features


def positions_in_attention(
    tokens: Any, patches: Any, config: ViTConfig, queries: int = 0
) -> Features:
    """Return the positions that all blocks take: rotary `angles`, a shared `bias`, or neither.

    Of blocks with `queries` in front of all tokens, which do not have one.
    """
    shared = {}
    if config.rotary is not None:
        rotary = RotaryPositions(
            config.hidden_dim // config.num_heads,
            config.rotary,
            queries + config.num_prefix_tokens,
            dtype=config.dtype,
            name="eomt_rotary_positions" if queries else "rotary_positions",
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
        shared["bias"] = relative(tokens)  # (1, heads, t, t)
    return shared


# Equation 4: from tokens to the vector that is classified.


def read_out(encoded: Encoded, config: ViTConfig) -> Features:
    """`encoder_norm`, all tokens after the last norm, and what is `pooled` of them.

    Where the norm stands after the pooling, `encoder_norm` is the last block's tokens.
    """
    if config.norm_after_pooling:
        pooled = pool_mean(encoded.tokens, encoded, config)
        return {
            "encoder_norm": encoded.tokens,
            "pooled": layer_norm(config, "pooling_norm")(pooled),
        }
    tokens = encoded.norm(encoded.tokens)
    x = {"encoder_norm": tokens, "pooled": POOL[config.pooling](tokens, encoded, config)}
    if config.distilled:  # DeiT's second token
        second = TokenPooling(1, dtype=config.dtype, name="distillation_pooling")
        x["distillation_token"] = second(tokens)  # (n, d)
    return x


def pool_class_token(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Return the class token (equation 4): `(n, d)`."""
    return TokenPooling(dtype=config.dtype, name="pooling")(tokens)


def pool_mean(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Return the mean over the patches (appendix D.3): `(n, d)`."""
    pool = MeanPooling(config.num_prefix_tokens, dtype=config.dtype, name="pooling")
    return pool(tokens, *encoded.token_index)


def pool_both(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Return the class token and the mean over the patches, side by side (DINOv2, section 7.1)."""
    first = TokenPooling(dtype=config.dtype, name="class_token_pooling")(tokens)
    mean = pool_mean(tokens, encoded, config)
    join = keras.layers.Concatenate(dtype=config.dtype, name="pooled")
    return join([first, mean])  # (n, 2 d)


def pool_by_attention(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Attend to all tokens by a learned query ("Scaling Vision Transformers", MAP head)."""
    assert config.mlp_dim is not None  # the configuration has replaced it
    pool = AttentionPooling(
        config.num_heads,
        config.mlp_dim,
        config.activation,
        config.norm_epsilon,
        dtype=config.dtype,
        name="pooling",
    )
    return pool(tokens, *encoded.token_index)  # (n, d)


def keep_all_tokens(tokens: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Return every token, `(n, t, d)`; merged ones are restored to the full sequence."""
    for index in encoded.token_index:
        tokens = UnmergeTokens(dtype=config.dtype, name="pooling")(tokens, index)
    return tokens


def on_grid(tokens: Any, patches: Any, encoded: Encoded, config: ViTConfig) -> Any:
    """Return the tokens of the patches at their places, `(n, rows, columns, d)`."""
    for index in encoded.token_index:
        tokens = UnmergeTokens(dtype=config.dtype, name="grid_unmerged")(tokens, index)
    options = {"data_format": "channels_last", "dtype": config.dtype, "name": "grid"}
    return TokensToGrid(config.num_prefix_tokens, **options)(tokens, patches)


def block_grids(x: Features, encoded: Encoded, config: ViTConfig) -> Features:
    """Return the patches of four blocks at their places, `grid_0` to `grid_3`, for the DPT head.

    And `grid_0_token` and so on, their class tokens, where it reads them.
    """
    head, grids = config.map_head, {}
    for i, block in enumerate(head.blocks):
        tokens = x[f"block_{block}"]
        if head.normalized:
            is_last = block == config.depth - 1
            tokens = x["encoder_norm"] if is_last else encoded.norm(tokens)
        options = {"data_format": "channels_last", "dtype": config.dtype, "name": f"grid_{i}"}
        grids[f"grid_{i}"] = TokensToGrid(config.num_prefix_tokens, **options)(tokens, x["patches"])
        if head.readout == "project":
            first = TokenPooling(dtype=config.dtype, name=f"grid_{i}_token")
            grids[f"grid_{i}_token"] = first(tokens)
    return grids


POOL = {
    "token": pool_class_token,
    "gap": pool_mean,
    "map": pool_by_attention,
    "token_gap": pool_both,
    None: keep_all_tokens,
}


def pre_logits(pooled: Any, config: ViTConfig) -> Any:
    """Apply the tanh layer that pre-training puts before the head (section 3.1), if configured."""
    if config.representation_size is None:
        return pooled
    return keras.layers.Dense(
        config.representation_size,
        activation="tanh",
        kernel_initializer="lecun_normal",
        dtype=config.dtype,
        name="pre_logits",
    )(pooled)


def layer_norm(config: ViTConfig, name: str) -> keras.layers.Layer:
    """Return a norm over the width of the tokens, with the model's epsilon."""
    norm = keras.layers.LayerNormalization
    return norm(epsilon=config.norm_epsilon, dtype=config.dtype, name=name)


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(QueryTrainedModel, ViTAttributes):
    """A Vision Transformer of any size; its defaults are ViT-B/16 as its authors released it.

    Takes images `(batch, height, width, channels)` with pixels 0..255, uint8 or float, and
    returns float32 logits `(batch, num_classes)` under every dtype policy. Its arguments are those
    of `ViTConfig`, by name; each is a read-only attribute of the model as well.

    Raises:
        ValueError: An argument is misspelled or out of range; the message lists what is accepted.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(num_classes=5, patch_size=8, hidden_dim=64, depth=2,
    ...                                     num_heads=4, input_shape=(32, 32, 3))
    >>> model(np.zeros((1, 32, 32, 3), "uint8")).shape == (1, 5)
    True
    """

    config_class = ViTConfig

    @arguments_of(ViTConfig)
    def __init__(self, config: ViTConfig) -> None:
        self._assemble(config, vision_transformer)

    def _forward(self, *args: Any, **options: Any) -> Any:
        with self.only_pooled_tokens():
            return super()._forward(*args, **options)

    def only_pooled_tokens(self) -> AbstractContextManager[None]:
        last_block = self.get_layer(f"block_{self.depth - 1}")
        is_row = self.pooling == "token" and self._config.head == "row"
        if not is_row or has_hooks((last_block, self.get_layer("encoder_norm"))):
            return nullcontext()
        return only_first_tokens(last_block, 1 + self.distilled)

    def _features_of_queries(self, is_masked: Sequence[Any]) -> Features:
        config, x = self._config, self._features
        first = config.depth - config.map_head.blocks
        tokens = x[f"block_{first - 1}"] if first else x["tokens"]
        built = {layer.name: layer for layer in self.layers}
        norm = built["encoder_norm"]
        return encode_queries(tokens, x["patches"], norm, config, built, is_masked)[1]

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the patches; they are for the class, distillation and registers."""
        return self._config.num_prefix_tokens

    @property
    def patch_pixels(self) -> tuple[int, int]:
        """Height and width in pixels of the part of the image that one token represents."""
        stride = feature_stride(self.resnet, self.conv_stem)
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    def with_input_shape(self, input_shape: ImageShape) -> Self:
        """Return a copy for images of another size, with the position embeddings resampled to it.

        The released code's rule (`scipy.ndimage.zoom`, order 1), extended to grids that are not
        square; see `keras_vit.layers.positions.resample_grid`. `(None, None, channels)` keeps
        the embeddings as they are and resamples them to each image inside the graph.

        Raises:
            ValueError: The image is smaller than a patch, or has another number of channels.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.with_input_shape((48, 24, 3)).get_layer("position_embedding").grid
        (6, 3)
        """
        input_shape = self._other_shape(input_shape)
        # None: the configuration computes it from the shape.
        grid = self.position_grid if None in image_size(input_shape, self.data_format) else None
        return self._copy_with({"input_shape": input_shape, "position_grid": grid})

    def with_token_merging(self, token_merging: int | Sequence[int]) -> Self:
        """Return a copy with the same weights whose blocks merge this many patches each; 0: none.

        A trained model needs no further training for it. See the argument `token_merging`.

        Raises:
            ValueError: The integers do not fit the blocks, or the model has relative positions.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=2, num_heads=2, input_shape=(32, 32, 3))
        >>> faster = model.with_token_merging(3)
        >>> [faster.feature_model(f"block_{i}").output_shape for i in range(2)]
        [(None, 14, 16), (None, 11, 16)]
        """
        return self._copy_with({"token_merging": token_merging})

    def _token_index(self, feature: str) -> Any:
        block = f"block_{self.depth - 1}" if feature == "encoder_norm" else feature
        return self._features.get(f"{block}_token_index")
