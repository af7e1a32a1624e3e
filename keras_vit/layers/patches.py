"""Images to a grid of patches, and the patches to embeddings (ViT paper, section 3.1)."""

from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import as_pair, check_choice
from keras_vit.layers.configured import ConfiguredLayer, Shape


def check_data_format(data_format: str | None) -> str:
    """`data_format`, or that of Keras's configuration for None; a ValueError if it is unknown."""
    formats = ("channels_last", "channels_first", None)
    check_choice(data_format, "data_format", formats)
    return str(data_format or keras.config.image_data_format())


@keras.saving.register_keras_serializable(package="keras_vit")
class Patches(ConfiguredLayer):
    """Cuts images into non-overlapping patches, without any weights.

    Takes `(batch, height, width, channels)`, or `(batch, channels, height, width)` under
    `data_format="channels_first"`; returns `(batch, grid_h, grid_w, patch_h * patch_w * channels)`,
    the pixels of a patch in the order row, column, channel. Pixels at the bottom and the right that
    do not fill a patch are dropped, as in the released code.

    Args:
        patch_size: Height and width of a patch in pixels: one number, or a pair.
        data_format: `"channels_last"`, `"channels_first"`, or None for Keras's configuration.

    Raises:
        ValueError: The input does not have four dimensions, or is smaller than one patch.

    Example:

    >>> import keras, keras_vit
    >>> keras_vit.layers.Patches(16)(keras.ops.ones((2, 64, 48, 3))).shape == (2, 4, 3, 768)
    True
    """

    def __init__(
        self, patch_size: int | tuple[int, int], data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.patch_size = as_pair(patch_size, "patch_size")
        self.data_format = check_data_format(data_format)

    def _height_width_channels(self, shape: Shape) -> Shape:
        channels_first = self.data_format == "channels_first"
        if len(shape) != 4:
            layout = "channels, height, width" if channels_first else "height, width, channels"
            raise ValueError(
                f"Images of shape {tuple(shape)} have {len(shape)} dimensions, not four: "
                f"(batch, {layout}). For a single image add a batch dimension: images[None]."
            )
        return (*shape[2:], shape[1]) if channels_first else shape[1:]

    def _grid(self, shape: Shape) -> Shape:
        height, width, _ = self._height_width_channels(shape)
        patch_h, patch_w = self.patch_size
        grid = (
            None if height is None else height // patch_h,
            None if width is None else width // patch_w,
        )
        if 0 in grid:
            raise ValueError(
                f"Images of {height} x {width} pixels are smaller than one patch of {patch_h} x "
                f"{patch_w} pixels. Give images of at least that size, or a smaller patch_size."
            )
        return grid

    def _channels_last(self, images: Any) -> Any:
        # Convolutions of channels_first images do not run on TensorFlow's CPU kernels.
        if self.data_format == "channels_first":
            return ops.transpose(images, (0, 2, 3, 1))
        return images

    def call(self, images: Any) -> Any:
        self._grid(images.shape)
        images = self._channels_last(images)
        return ops.image.extract_patches(
            images, self.patch_size, padding="valid", data_format="channels_last"
        )

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        channels = self._height_width_channels(images_shape)[2]
        assert channels is not None
        length = self.patch_size[0] * self.patch_size[1] * channels
        return images_shape[0], *self._grid(images_shape), length


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEmbedding(Patches):
    """Cuts images into patches and projects each to `hidden_dim` (ViT paper, equation 1).

    Takes images as `Patches` does; returns the grid `(batch, grid_h, grid_w, hidden_dim)`.
    The kernel has the shape `(patch_h, patch_w, channels, hidden_dim)`, as in released files.

    Args:
        hidden_dim: Width of an embedding.
        patch_size: As in `Patches`, like `data_format`.
        padding: `"valid"`: pixels that do not fill a patch are dropped, as in the ViT; `"same"`:
            patches at the border are padded with zeros, as in MLP-Mixer.
        use_bias: Whether a bias is added.

    Example:

    >>> import keras, keras_vit
    >>> embed = keras_vit.layers.PatchEmbedding(hidden_dim=32, patch_size=(16, 8))
    >>> tuple(embed(keras.ops.ones((2, 64, 48, 3))).shape[1:])
    (4, 6, 32)
    """

    def __init__(
        self,
        hidden_dim: int,
        patch_size: int | tuple[int, int],
        data_format: str | None = None,
        padding: str = "valid",
        use_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(patch_size, data_format, **kwargs)
        self.hidden_dim = hidden_dim
        self.padding = check_choice(padding, "padding", ("valid", "same"))
        self.use_bias = use_bias

    def _grid(self, shape: Shape) -> Shape:
        if self.padding == "valid":
            return super()._grid(shape)
        sides = zip(self._height_width_channels(shape)[:2], self.patch_size, strict=True)
        return tuple(None if side is None else -(-side // patch) for side, patch in sides)

    def build(self, images_shape: Shape) -> None:
        channels = self._height_width_channels(images_shape)[2]
        if channels is None:
            raise ValueError(
                f"Images of shape {tuple(images_shape)} have an unknown number of channels. "
                "Height and width may be None, the channels may not."
            )
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.patch_size, channels, self.hidden_dim),
            initializer="lecun_normal",
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.hidden_dim,), initializer="zeros")

    def call(self, images: Any) -> Any:
        self._grid(images.shape)
        images = self._channels_last(images)
        grid = ops.conv(
            images, self.kernel, self.patch_size, padding=self.padding, data_format="channels_last"
        )
        return grid if self.bias is None else grid + self.bias

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        return images_shape[0], *self._grid(images_shape), self.hidden_dim


@keras.saving.register_keras_serializable(package="keras_vit")
class TokensToGrid(ConfiguredLayer):
    """Reshapes a sequence of tokens to the grid of patches they came from.

    Called with tokens `(batch, prefix + grid_h * grid_w, hidden_dim)` and the patches
    `(batch, grid_h, grid_w, ...)`, of which only the shape is used; returns
    `(batch, grid_h, grid_w, hidden_dim)`, or `(batch, hidden_dim, grid_h, grid_w)` under
    `data_format="channels_first"`.

    Args:
        num_prefix_tokens: Tokens at the front that are omitted: class token and registers.
        data_format: `"channels_last"`, `"channels_first"`, or None for Keras's configuration.

    Raises:
        ValueError: There are fewer tokens than patches, as in training with patch dropout.

    Example:

    >>> import keras, keras_vit
    >>> tokens, patches = keras.ops.ones((2, 13, 8)), keras.ops.ones((2, 4, 3, 8))
    >>> tuple(keras_vit.layers.TokensToGrid()(tokens, patches).shape)
    (2, 4, 3, 8)
    """

    def __init__(
        self, num_prefix_tokens: int = 1, data_format: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.num_prefix_tokens = num_prefix_tokens
        self.data_format = check_data_format(data_format)

    def build(self, tokens_shape: Shape, patches_shape: Shape) -> None:
        """Does nothing: there are no weights to create."""

    def call(self, tokens: Any, patches: Any) -> Any:
        _, grid_h, grid_w, _ = ops.shape(patches)
        tokens = tokens[:, self.num_prefix_tokens :]
        count, (rows, columns) = tokens.shape[1], patches.shape[1:3]
        # A reshape of half the patches of two images would give one image.
        if None not in (count, rows, columns) and count != rows * columns:
            raise ValueError(
                f"{count} patches do not fill a grid of {rows} x {columns}: patch dropout removes "
                "some in training. Compute grid features with training=False, or build the model "
                "with patch_dropout=0."
            )
        grid = ops.reshape(tokens, (-1, grid_h, grid_w, tokens.shape[-1]))
        if self.data_format == "channels_first":
            return ops.transpose(grid, (0, 3, 1, 2))
        return grid

    def compute_output_shape(self, tokens_shape: Shape, patches_shape: Shape) -> Shape:
        batch, grid_h, grid_w, _ = patches_shape
        if self.data_format == "channels_first":
            return batch, tokens_shape[-1], grid_h, grid_w
        return batch, grid_h, grid_w, tokens_shape[-1]
