"""MLP-Mixer (Tolstikhin et al. 2021, "MLP-Mixer: An all-MLP Architecture for Vision")."""

from typing import Any, Self

import keras

from keras_vit.layers import MeanPooling, MixerBlock, PatchEmbedding, TokensToGrid
from keras_vit.models.config import MixerConfig, arguments_of
from keras_vit.models.geometry import ImageShape, mixer_grid
from keras_vit.models.head import classify
from keras_vit.models.image_model import ImageModel
from keras_vit.models.normalization import normalize


def mlp_mixer(images: Any, config: MixerConfig) -> dict[str, Any]:
    """Figure 1 of the paper: every intermediate by name, in the order of the data."""
    add = {"dtype": config.dtype}
    x = {"images": normalize(images, config)}
    x["patches"] = PatchEmbedding(
        config.hidden_dim,
        config.patch_size,
        config.data_format,
        "same",
        **add,
        name="patch_embedding",
    )(x["images"])
    tokens = keras.layers.Reshape((-1, config.hidden_dim), **add, name="tokens")(x["patches"])
    x["tokens"] = tokens
    for i in range(config.depth):
        x[f"block_{i}"] = tokens = MixerBlock(**config.block(i))(tokens)
    x["encoder_norm"] = keras.layers.LayerNormalization(
        epsilon=config.norm_epsilon, **add, name="encoder_norm"
    )(tokens)
    x["pooled"] = x["pre_logits"] = MeanPooling(**add, name="pooling")(x["encoder_norm"])
    if config.head == "map":
        to_grid = TokensToGrid(0, "channels_last", **add, name="grid")
        x["grid"] = to_grid(x["encoder_norm"], x["patches"])
    x["logits"] = classify(x, config)
    return x


@keras.saving.register_keras_serializable(package="keras_vit")
class MLPMixer(ImageModel):
    """An MLP-Mixer of any size; its defaults are Mixer-B/16 as its authors released it.

    Takes images `(batch, height, width, channels)` with pixels 0..255, uint8 or float, and
    returns float32 logits `(batch, num_classes)` under every dtype policy. It has a weight for
    every pair of patches, and so a fixed image size. Its arguments are those of `MixerConfig`, by
    name; each is a read-only attribute of the model as well.

    Raises:
        ValueError: An argument is misspelled or out of range, or the image size is open.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.models.MLPMixer(num_classes=5, patch_size=8, hidden_dim=64, depth=2,
    ...                            input_shape=(32, 32, 3))
    >>> model(np.zeros((1, 32, 32, 3), "uint8")).shape == (1, 5)
    True
    """

    num_prefix_tokens = 0

    config_class = MixerConfig
    # The arguments, which `ImageModel` makes attributes: here for editors and type checkers.
    patch_size: tuple[int, int]
    hidden_dim: int
    depth: int
    tokens_mlp_dim: int
    channels_mlp_dim: int
    stochastic_depth: float
    activation: str
    norm_epsilon: float
    remat: bool

    @arguments_of(MixerConfig)
    def __init__(self, config: MixerConfig) -> None:
        self._assemble(config, mlp_mixer)

    @property
    def position_grid(self) -> tuple[int, int]:
        """Rows and columns of the patches, whose mixing the model has learned."""
        return self._config.position_grid

    def with_input_shape(self, input_shape: ImageShape) -> Self:
        """Return a copy for images of another size with as many rows and columns of patches.

        Raises:
            ValueError: The size gives another grid of patches than the weights are for.
        """
        input_shape = self._other_shape(input_shape)
        grid = mixer_grid(input_shape, self.patch_size, self.data_format)
        if grid != self.position_grid:
            rows, columns = self.position_grid
            raise ValueError(
                f"Images of input_shape={tuple(input_shape)} have {grid[0]} x {grid[1]} patches. "
                f"An MLP-Mixer mixes only the {rows} x {columns} it was built for: resize "
                f"images to {rows * self.patch_size[0]} x {columns * self.patch_size[1]} pixels."
            )
        return self._copy_with({"input_shape": input_shape})
