"""The Vision Transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Self

import keras

from keras_vit.layers.first_tokens import only_first_tokens
from keras_vit.models.config import ViTConfig, arguments_of
from keras_vit.models.embedding import (
    conv_stem_patches,
    embed_tokens,
    image_patches,
    positions_in_attention,
)
from keras_vit.models.encoder import Encoded, plain_encoder
from keras_vit.models.geometry import ImageShape, feature_stride, image_size
from keras_vit.models.head import classify
from keras_vit.models.hybrid import hybrid_patches
from keras_vit.models.image_model import ImageModel
from keras_vit.models.normalization import normalize
from keras_vit.models.pooling import read_out
from keras_vit.models.token_merging import merging_encoder
from keras_vit.ops import has_hooks

Features = dict[str, Any]


def vision_transformer(
    images: Any,
    config: ViTConfig,
    embed_patches: Callable[[Any, ViTConfig], Features],
    encode: Callable[..., Encoded],
) -> Features:
    """Figure 1 of the paper: every intermediate by name, in the order of the data."""
    x = {"images": normalize(images, config)}
    x |= embed_patches(x["images"], config)
    x["tokens"] = embed_tokens(x["patches"], config)  # equation 1: z_0
    shared = positions_in_attention(x["tokens"], x["patches"], config)
    encoded = encode(x["tokens"], config, **shared)  # equations 2 and 3: z_1 to z_L
    x |= encoded.features
    x |= read_out(encoded, config)  # equation 4: y
    x["pre_logits"] = pre_logits(x["pooled"], config)
    x["logits"] = classify(x["pre_logits"], config, x.get("distillation_token"))
    return x


def pre_logits(pooled: Any, config: ViTConfig) -> Any:
    """The tanh layer that pre-training puts before the head (section 3.1), if there is one."""
    if config.representation_size is None:
        return pooled
    return keras.layers.Dense(
        config.representation_size,
        activation="tanh",
        kernel_initializer="lecun_normal",
        dtype=config.dtype,
        name="pre_logits",
    )(pooled)


@keras.saving.register_keras_serializable(package="keras_vit")
class VisionTransformer(ImageModel):
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
        embed: Callable[..., Features] = image_patches
        if config.resnet is not None:
            embed = hybrid_patches
        elif config.conv_stem is not None:
            embed = conv_stem_patches
        encode = merging_encoder if any(config.merging) else plain_encoder
        self._assemble(config, partial(vision_transformer, embed_patches=embed, encode=encode))

    def _forward(self, *args: Any, **options: Any) -> Any:
        with self.only_pooled_tokens():
            return super()._forward(*args, **options)

    def only_pooled_tokens(self) -> AbstractContextManager[None]:
        last_block = self.get_layer(f"block_{self.depth - 1}")
        if self.pooling != "token" or has_hooks((last_block, self.get_layer("encoder_norm"))):
            return nullcontext()
        return only_first_tokens(last_block, 1 + self.distilled)

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
        """A copy for images of another size, with the position embeddings resampled to it.

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
        """A copy with the same weights whose blocks merge this many patches each; 0: none.

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
