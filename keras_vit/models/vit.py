"""The Vision Transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words")."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.errors import (
    as_pair,
    check_above_zero,
    check_choice,
    check_finite,
    check_non_negative,
    check_positive,
    check_rate,
)
from keras_vit.layers import (
    AttentionPooling,
    ClassToken,
    Dropout,
    EncoderBlock,
    MeanPooling,
    MergingEncoderBlock,
    PatchDropout,
    PatchEmbedding,
    PositionEmbedding,
    RegisterTokens,
    TokenPooling,
    UnmergeTokens,
)
from keras_vit.layers.attention import check_heads
from keras_vit.layers.merging import merging_schedule
from keras_vit.models.hybrid import feature_stride
from keras_vit.models.image_model import (
    ImageModel,
    classify,
    expose_arguments,
    image_layout,
    image_size,
    normalise,
)
from keras_vit.models.resnet import resnet_features, stages

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

POOLINGS = ("token", "gap", "map", None)
POSITION_EMBEDDINGS = ("learned", "learned_2d", "relative", "sincos2d", "none")
# Local names of the constructor, before its first layer, that are no arguments.
DERIVED = ("self", "__class__", "size", "stride", "merging")
# The grid of a model that takes images of any size learns its positions for this many pixels.
PIXELS_OF_ANY_SIZE = 224


@keras.saving.register_keras_serializable(package="keras_vit")
@expose_arguments
class VisionTransformer(ImageModel):
    """A Vision Transformer of any size; its defaults are ViT-B/16 as its authors released it.

    Takes images `(batch, height, width, channels)` with pixels 0..255, uint8 or float, and
    returns float32 logits `(batch, num_classes)` under every dtype policy.

    Args:
        num_classes: Classes of the zero-initialised head; 0: no head, returns the features.
        input_shape: `(height, width, channels)`, or `(None, None, channels)` for images of any
            size, to which position embeddings are then resampled inside the graph. With
            `data_format="channels_first"`: `(channels, height, width)`. None: 224 x 224 RGB.
        weights: None; or the tag of released weights (`keras_vit.list_weights`); or a file to
            load (`keras_vit.load_weights`). By a model's name, as in `ViTB16(weights=...)`, what
            is not stated here follows the weights: activation, epsilon, normalisation.
        classifier_activation: None for logits, or an activation such as `"softmax"`.
        include_preprocessing: True: the model takes pixels 0..255 and brings them to [-1, 1]
            itself; `"imagenet"`: to ImageNet's mean and deviation instead; False: it takes what
            the authors' code takes, normalised images.
        patch_size: Height and width of a patch in pixels: one number, or a pair.
            In a hybrid: of the ResNet's feature map.
        resnet: None, or a hybrid: the units of each stage of the ResNet whose feature map is cut
            into patches; () for its stem alone. `remat` holds for its units as well.
        resnet_width: Channels of that ResNet's stem: 64, or another multiple of 32.
        hidden_dim: Width of the tokens.
        depth: Number of encoder blocks.
        num_heads: Attention heads of a block; must divide `hidden_dim`.
        mlp_dim: Width of the MLPs; None for four times `hidden_dim`.
        pooling: `"token"`: the class token; `"gap"`: mean over the patches; `"map"`: attention
            pooling; None: all tokens after the last norm.
        class_token: Whether there is one; None for yes under `"token"` and None pooling.
        num_registers: Register tokens behind the class token.
        representation_size: Width of the tanh layer before the head; None for none.
        position_embedding: `"learned"`, `"learned_2d"`, `"relative"`, `"sincos2d"` or `"none"`.
        position_grid: Rows and columns that positions are learned for; None for the grid of
            `input_shape`, and that of 224 pixels where it says None.
        dropout: Rate of dropout after the positions, the attention, and twice in the MLP.
        attention_dropout: Rate of dropout on attention probabilities.
        stochastic_depth: Rate of stochastic depth at the last block; it rises linearly from 0.
        activation: `"gelu_tanh"` (the released code's), `"gelu"` (timm, Hugging Face) or
            `"swiglu"` (DINOv2's giant).
        norm_epsilon: Epsilon of the layer norms.
        layer_scale: Initial value of a learned scale on every branch (DINOv2); None for none.
        remat: Compute a block's activations again in the backward pass instead of keeping them.
        token_merging: How many patches each block merges with others like them, in training and
            inference (ToMe's `r`, such as 8 for ViT-Ti/16): one number, or one for each block; 0
            is the plain model. Attention maps and features on the grid are laid out again.
        patch_dropout: Share of the patches left out of every training step (PatchDropout).
        data_format: `"channels_last"`, `"channels_first"`, or None for Keras's configuration.
        name: Name of the model.
        dtype: Dtype policy of all layers but normalisation and head, such as `"mixed_bfloat16"`.

    Raises:
        ValueError: An argument is misspelt or out of range; the message says what is accepted.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(num_classes=5, patch_size=8, hidden_dim=64, depth=2,
    ...                                     num_heads=4, input_shape=(32, 32, 3))
    >>> model(np.zeros((1, 32, 32, 3), "uint8")).shape == (1, 5)
    True
    """

    def __init__(
        self,
        num_classes: int = 1000,  # by keyword alone, Keras before 3.14 could not clone the model
        *,
        input_shape: tuple[int | None, int | None, int | None] | None = None,
        weights: str | Path | None = None,
        classifier_activation: str | None = None,
        include_preprocessing: bool | str = True,
        patch_size: int | tuple[int, int] = 16,
        resnet: Sequence[int] | None = None,
        resnet_width: int = 64,
        hidden_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        mlp_dim: int | None = None,
        pooling: str | None = "token",
        class_token: bool | None = None,
        num_registers: int = 0,
        representation_size: int | None = None,
        position_embedding: str = "learned",
        position_grid: tuple[int, int] | None = None,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        stochastic_depth: float = 0.0,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        layer_scale: float | None = None,
        remat: bool = False,
        token_merging: int | Sequence[int] = 0,
        patch_dropout: float = 0.0,
        data_format: str | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        patch_size = as_pair(patch_size, "patch_size")
        check_positive(hidden_dim=hidden_dim, depth=depth)
        check_non_negative(num_classes=num_classes, num_registers=num_registers)
        check_above_zero(norm_epsilon=norm_epsilon)
        check_heads(hidden_dim, num_heads)
        check_choice(pooling, "pooling", POOLINGS)
        check_choice(position_embedding, "position_embedding", POSITION_EMBEDDINGS)
        check_rate(
            dropout=dropout, attention_dropout=attention_dropout, patch_dropout=patch_dropout
        )
        check_rate(stochastic_depth=stochastic_depth, patch_dropout=patch_dropout)
        merging = merging_schedule(token_merging, depth)
        token_merging = token_merging if isinstance(token_merging, int) else merging
        if position_embedding == "relative" and (any(merging) or patch_dropout):
            raise ValueError(
                'position_embedding="relative" needs every patch in its place. Give another, such '
                f'as "learned", or 0 for token_merging={token_merging!r} and '
                f"patch_dropout={patch_dropout!r}."
            )
        input_shape, data_format = image_layout(input_shape, data_format)
        mlp_dim = 4 * hidden_dim if mlp_dim is None else mlp_dim
        class_token = pooling in ("token", None) if class_token is None else class_token
        if pooling == "token" and not class_token:
            raise ValueError(
                'pooling="token" needs the class token. Leave class_token out, or pool by "gap".'
            )
        if representation_size is not None:
            check_positive(representation_size=representation_size)
        if layer_scale is not None:
            check_finite(layer_scale=layer_scale)
        size = image_size(input_shape, data_format)
        resnet = None if resnet is None else stages(resnet, "resnet")
        stride = feature_stride(resnet)
        position_grid = (
            position_grid_of(size, patch_size, stride)
            if position_grid is None
            else as_pair(position_grid, "position_grid")
        )
        dtype = keras.dtype_policies.get(dtype)
        arguments = {k: v for k, v in locals().items() if k not in DERIVED}
        num_prefix = int(class_token) + num_registers
        relative = position_embedding == "relative"

        images = keras.Input(input_shape, name="images")
        x = {"images": normalise(images, include_preprocessing, data_format)}
        if resnet is not None:
            x |= resnet_features(x["images"], data_format, resnet, resnet_width, 1, remat, dtype)
        x["patches"] = PatchEmbedding(
            hidden_dim,
            patch_size,
            data_format if resnet is None else "channels_last",
            dtype=dtype,
            name="patch_embedding",
        )(list(x.values())[-1])
        tokens = keras.layers.Reshape((-1, hidden_dim), dtype=dtype, name="tokens")(x["patches"])
        if class_token:
            tokens = ClassToken(dtype=dtype, name="class_token")(tokens)
        if position_embedding in PositionEmbedding.KINDS:
            tokens = PositionEmbedding(
                position_grid,
                position_embedding,
                int(class_token),
                dtype=dtype,
                name="position_embedding",
            )(tokens, x["patches"])
        if num_registers:
            tokens = RegisterTokens(
                num_registers, int(class_token), dtype=dtype, name="register_tokens"
            )(tokens)
        if patch_dropout:
            tokens = PatchDropout(patch_dropout, num_prefix, dtype=dtype, name="patch_dropout")(
                tokens
            )
        x["tokens"] = tokens = Dropout(dropout, dtype=dtype, name="dropout")(tokens)
        merged: dict[str, Any] = {}  # the sources, once tokens are merged: `MergingEncoderBlock`
        for i in range(depth):
            kind: Any = EncoderBlock
            if merging[i] or merged:
                kind = partial(MergingEncoderBlock, merge=merging[i], num_prefix_tokens=num_prefix)
            block = kind(
                num_heads,
                mlp_dim,
                dropout,
                attention_dropout,
                stochastic_depth * i / max(depth - 1, 1),
                activation,
                norm_epsilon,
                position_grid[0] * position_grid[1] + num_prefix if relative else None,
                layer_scale,
                remat,
                dtype=dtype,
                name=f"block_{i}",
            )
            encode = partial(block, tokens, **merged)
            if kind is EncoderBlock:
                x[f"block_{i}"] = tokens = encode()
            else:
                x[f"block_{i}"], x[f"block_{i}_sources"] = tokens, sources = encode()
                merged["sources"] = sources
        encoder_norm = keras.layers.LayerNormalization(
            epsilon=norm_epsilon, dtype=dtype, name="encoder_norm"
        )
        x["encoder_norm"] = tokens = encoder_norm(tokens)

        if pooling == "token":
            # No logit depends on what the last block makes of the patches. A road of its own for
            # the class token leaves that out, 6 % of ViT-B; `x` has the patches all the same, for
            # those who ask for features.
            read = encode(first=1) if not merged else encode(first=1)[0]
            pooled = TokenPooling(dtype=dtype, name="pooling")(encoder_norm(read))
        elif pooling == "gap":
            pooled = MeanPooling(num_prefix, dtype=dtype, name="pooling")(tokens, **merged)
        elif pooling == "map":
            pooled = AttentionPooling(
                num_heads, mlp_dim, activation, norm_epsilon, dtype=dtype, name="pooling"
            )(tokens, **merged)
        elif merged:
            pooled = UnmergeTokens(dtype=dtype, name="pooling")(tokens, **merged)
        else:
            pooled = tokens
        x["pooled"] = x["pre_logits"] = pooled
        if representation_size is not None:
            x["pre_logits"] = keras.layers.Dense(
                representation_size,
                activation="tanh",
                kernel_initializer="lecun_normal",
                dtype=dtype,
                name="pre_logits",
            )(pooled)
        x["logits"] = classify(x["pre_logits"], num_classes, classifier_activation, dtype)
        self._assemble(arguments, images, x)

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the patches: class token and registers."""
        return int(self._arguments["class_token"]) + self._arguments["num_registers"]

    @property
    def patch_pixels(self) -> tuple[int, int]:
        """Height and width in pixels of the image that one token stands for."""
        stride = feature_stride(self.resnet)
        return self.patch_size[0] * stride, self.patch_size[1] * stride

    def with_input_shape(self, input_shape: tuple[int | None, int | None, int | None]) -> Self:
        """A copy for images of another size, with the position embeddings resampled to it.

        The released code's rule (`scipy.ndimage.zoom`, order 1), extended to grids that are not
        square; see `keras_vit.layers.positions.resample_grid`. `(None, None, channels)` keeps
        the embeddings as they are and resamples them to each image inside the graph.

        Raises:
            ValueError: The image is smaller than a patch, or has other channels.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, input_shape=(32, 32, 3))
        >>> model.with_input_shape((48, 24, 3)).get_layer("position_embedding").grid
        (6, 3)
        """
        input_shape = self._other_shape(input_shape)
        size = image_size(input_shape, self.data_format)
        grid = self.position_grid
        if None not in size:
            grid = position_grid_of(size, self.patch_size, feature_stride(self.resnet))
        return self._copy_with({"input_shape": input_shape, "position_grid": grid})

    def with_token_merging(self, token_merging: int | Sequence[int]) -> Self:
        """A copy with the same weights that merges this many patches in each block; 0: none.

        A trained model needs no training for it. See the argument `token_merging`.

        Raises:
            ValueError: The numbers do not fit the blocks, or the model has relative positions.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.VisionTransformer(
        ...     patch_size=8, hidden_dim=16, depth=2, num_heads=2, input_shape=(32, 32, 3))
        >>> faster = model.with_token_merging(3)
        >>> [faster.feature_model(f"block_{i}").output_shape for i in range(2)]
        [(None, 14, 16), (None, 11, 16)]
        """
        return self._copy_with({"token_merging": token_merging})

    def _feature_sources(self, name: str) -> Any:
        last_block = f"block_{self.depth - 1}"
        return self._features.get(f"{last_block if name == 'encoder_norm' else name}_sources")


def position_grid_of(
    size: tuple[int | None, int | None], patch_size: tuple[int, int], stride: int = 1
) -> tuple[int, int]:
    """Rows and columns of the patches of an image; warns of pixels that no patch covers.

    `stride`: see `keras_vit.models.hybrid.feature_stride`.
    """
    height, width = (PIXELS_OF_ANY_SIZE if side is None else side for side in size)
    patch_h, patch_w = patch_size[0] * stride, patch_size[1] * stride
    # The feature map's height and width are rounded up, then the patches' number down.
    grid = -(-height // stride) // patch_size[0], -(-width // stride) // patch_size[1]
    if 0 in grid:
        raise ValueError(
            f"An image of {height} x {width} pixels is smaller than one patch of "
            f"{patch_h} x {patch_w}. Give a larger input_shape or a smaller patch_size."
        )
    covered = grid[0] * patch_h, grid[1] * patch_w
    if (covered[0] < height or covered[1] < width) and None not in size:
        warnings.warn(
            f"Patches of {patch_h} x {patch_w} cover {covered[0]} x {covered[1]} of "
            f"{height} x {width} pixels: the rest at the bottom and the right is dropped, "
            f"as in the released code. Give {covered[0]} x {covered[1]} to lose nothing.",
            stacklevel=4,
        )
    return grid
