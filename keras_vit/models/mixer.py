"""MLP-Mixer (Tolstikhin et al. 2021, "MLP-Mixer: An all-MLP Architecture for Vision")."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.errors import (
    as_pair,
    check_above_zero,
    check_non_negative,
    check_positive,
    check_rate,
)
from keras_vit.layers import MeanPooling, MixerBlock, PatchEmbedding
from keras_vit.models.image_model import (
    ImageModel,
    classify,
    expose_arguments,
    image_layout,
    image_size,
    normalise,
)

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


@keras.saving.register_keras_serializable(package="keras_vit")
@expose_arguments
class MLPMixer(ImageModel):
    """An MLP-Mixer of any size; its defaults are Mixer-B/16 as its authors released it.

    Takes images `(batch, height, width, channels)` with pixels 0..255, uint8 or float, and
    returns float32 logits `(batch, num_classes)` under every dtype policy. It has a weight for
    every pair of patches, and so one size of images for life.

    Args:
        num_classes: Classes of the zero-initialised head; 0: no head, returns the features.
        input_shape: `(height, width, channels)`; with `data_format="channels_first"`:
            `(channels, height, width)`. None: 224 x 224 RGB. Patches at the border are filled
            up with zeros.
        weights: None; or the tag of released weights (`keras_vit.list_weights`); or a file to
            load (`keras_vit.load_weights`).
        classifier_activation: None for logits, or an activation such as `"softmax"`.
        include_preprocessing: True: the model takes pixels 0..255 and brings them to [-1, 1]
            itself; `"imagenet"`: to ImageNet's mean and deviation instead; False: it takes
            normalised images.
        patch_size: Height and width of a patch in pixels: one number, or a pair.
        hidden_dim: Width of the tokens.
        depth: Number of blocks.
        tokens_mlp_dim: Width of the MLPs across tokens; None for half of `hidden_dim`.
        channels_mlp_dim: Width of the MLPs across channels; None for four times `hidden_dim`.
        stochastic_depth: Rate of stochastic depth at the last block; it rises linearly from 0.
        activation: `"gelu_tanh"` (the released code's), `"gelu"` or another of Keras's.
        norm_epsilon: Epsilon of the layer norms.
        remat: Compute a block's activations again in the backward pass instead of keeping them.
        data_format: `"channels_last"`, `"channels_first"`, or None for Keras's configuration.
        name: Name of the model.
        dtype: Dtype policy of all layers but normalisation and head, such as `"mixed_bfloat16"`.

    Raises:
        ValueError: An argument is misspelt or out of range, or the size of the images is open.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.MLPMixer(num_classes=5, patch_size=8, hidden_dim=64, depth=2,
    ...                            input_shape=(32, 32, 3))
    >>> model(np.zeros((1, 32, 32, 3), "uint8")).shape == (1, 5)
    True
    """

    num_prefix_tokens = 0

    def __init__(
        self,
        num_classes: int = 1000,  # by keyword alone, Keras before 3.14 could not clone the model
        *,
        input_shape: tuple[int | None, int | None, int | None] | None = None,
        weights: str | Path | None = None,
        classifier_activation: str | None = None,
        include_preprocessing: bool | str = True,
        patch_size: int | tuple[int, int] = 16,
        hidden_dim: int = 768,
        depth: int = 12,
        tokens_mlp_dim: int | None = None,
        channels_mlp_dim: int | None = None,
        stochastic_depth: float = 0.0,
        activation: str = "gelu_tanh",
        norm_epsilon: float = 1e-6,
        remat: bool = False,
        data_format: str | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        patch_size = as_pair(patch_size, "patch_size")
        check_positive(hidden_dim=hidden_dim, depth=depth)
        check_non_negative(num_classes=num_classes)
        check_above_zero(norm_epsilon=norm_epsilon)
        check_rate(stochastic_depth=stochastic_depth)
        input_shape, data_format = image_layout(input_shape, data_format)
        tokens_mlp_dim = hidden_dim // 2 if tokens_mlp_dim is None else tokens_mlp_dim
        channels_mlp_dim = 4 * hidden_dim if channels_mlp_dim is None else channels_mlp_dim
        mixer_grid(input_shape, patch_size, data_format)
        dtype = keras.dtype_policies.get(dtype)
        arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__")}

        images = keras.Input(input_shape, name="images")
        x = {"images": normalise(images, include_preprocessing, data_format)}
        x["patches"] = PatchEmbedding(
            hidden_dim, patch_size, data_format, "same", dtype=dtype, name="patch_embedding"
        )(x["images"])
        x["tokens"] = tokens = keras.layers.Reshape((-1, hidden_dim), dtype=dtype, name="tokens")(
            x["patches"]
        )
        for i in range(depth):
            x[f"block_{i}"] = tokens = MixerBlock(
                tokens_mlp_dim,
                channels_mlp_dim,
                stochastic_depth * i / max(depth - 1, 1),
                activation,
                norm_epsilon,
                remat,
                dtype=dtype,
                name=f"block_{i}",
            )(tokens)
        x["encoder_norm"] = keras.layers.LayerNormalization(
            epsilon=norm_epsilon, dtype=dtype, name="encoder_norm"
        )(tokens)
        x["pooled"] = MeanPooling(dtype=dtype, name="pooling")(x["encoder_norm"])
        x["pre_logits"] = x["pooled"]
        x["logits"] = classify(x["pre_logits"], num_classes, classifier_activation, dtype)
        self._assemble(arguments, images, x)

    @property
    def position_grid(self) -> tuple[int, int]:
        """Rows and columns of the patches, whose mixing the model has learned."""
        return mixer_grid(self._arguments["input_shape"], self.patch_size, self.data_format)

    def with_input_shape(self, input_shape: tuple[int | None, int | None, int | None]) -> Self:
        """A copy for images of another size with as many rows and columns of patches.

        Raises:
            ValueError: The size has other patches: what the model has learned is bound to them.
        """
        input_shape = self._other_shape(input_shape)
        grid = mixer_grid(input_shape, self.patch_size, self.data_format)
        if grid != self.position_grid:
            rows, columns = self.position_grid
            raise ValueError(
                f"Images of input_shape={tuple(input_shape)} have {grid[0]} x {grid[1]} patches. "
                f"An MLP-Mixer mixes the {rows} x {columns} it was built for and no others: resize "
                f"images to {rows * self.patch_size[0]} x {columns * self.patch_size[1]} pixels."
            )
        return self._copy_with({"input_shape": input_shape})


def mixer_grid(
    input_shape: tuple[int | None, ...], patch_size: tuple[int, int], data_format: str
) -> tuple[int, int]:
    """Rows and columns of the patches; a patch that the image fills in part counts."""
    height, width = image_size(input_shape, data_format)
    if height is None or width is None:
        raise ValueError(
            f"input_shape={tuple(input_shape)} leaves the size of the images open, but an "
            "MLP-Mixer has a weight for every pair of patches. Give height and width."
        )
    return -(-height // patch_size[0]), -(-width // patch_size[1])
