"""The parts of the Dense Prediction Transformer (DPT; Ranftl et al. 2021, section 3).

    tokens of a block ──► Reassemble ──► maps of four scales ──► FeatureFusion, deep to shallow

They compute what transformers' `modeling_dpt.py` and `modeling_depth_anything.py` compute.
"""

from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import as_pair, check_choice, check_positive
from keras_vit.layers._dense import Dense
from keras_vit.layers.activations import gelu
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import ConfiguredLayer, Shape
from keras_vit.layers.map_resize import MapResize

# Of torch's BatchNorm2d; Keras's own defaults are 1e-3 and 0.99.
BATCH_NORM = {"epsilon": 1e-5, "momentum": 0.9}
FACTORS = (4, 2, 1, 0.5)
READOUTS = ("ignore", "project")


def _convolution(filters: int, *, padding: str = "same", **options: Any) -> Any:
    """Return a convolution of 3 x 3 pixels, whatever Keras is configured to."""
    return keras.layers.Conv2D(filters, 3, padding=padding, data_format="channels_last", **options)


@keras.saving.register_keras_serializable(package="keras_vit")
class PixelUpsample(ConfiguredLayer):
    """Enlarges maps by a transposed convolution whose kernel is as large as its stride.

    Takes `(batch, rows, columns, channels)` and returns `(batch, factor * rows,
    factor * columns, channels)`. The blocks of pixels do not overlap, so that it is one matrix
    product, whose results are laid side by side.

    Args:
        factor: Stride, and side of the kernel.

    Raises:
        ValueError: `factor` is not a positive integer.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.PixelUpsample(4)(keras.ops.ones((2, 3, 5, 8))).shape)
    (2, 12, 20, 8)
    """

    def __init__(self, factor: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(factor=factor)
        self.factor = factor

    def build(self, maps_shape: Shape) -> None:
        k, channels = self.factor, maps_shape[-1]
        self.kernel = self.add_weight(
            name="kernel", shape=(k, k, channels, channels), initializer=_per_pixel(k)
        )
        self.bias = self.add_weight(name="bias", shape=(channels,), initializer="zeros")

    def call(self, maps: Any) -> Any:
        k, channels = self.factor, maps.shape[-1]
        rows, columns = ops.shape(maps)[1:3]
        kernel = ops.transpose(ops.convert_to_tensor(self.kernel), (2, 0, 1, 3))
        kernel = ops.reshape(ops.cast(kernel, maps.dtype), (channels, k * k * channels))
        # Four axes at most, which every exported format can transpose.
        blocks = ops.reshape(ops.matmul(maps, kernel), (-1, columns, k, k * channels))
        blocks = ops.transpose(blocks, (0, 2, 1, 3))  # (batch * rows, k, columns, k * channels)
        enlarged = ops.reshape(blocks, (-1, k * rows, k * columns, channels))
        return enlarged + ops.cast(self.bias, maps.dtype)

    def compute_output_shape(self, maps_shape: Shape) -> Shape:
        batch, *sides, channels = maps_shape
        enlarged = [None if side is None else side * self.factor for side in sides]
        return batch, *enlarged, channels


def _per_pixel(factor: int) -> Any:
    """Return Glorot's initializer for one pixel of a block: no other sees that part of a kernel."""
    scaling = keras.initializers.VarianceScaling
    return scaling(float(factor * factor), mode="fan_avg", distribution="uniform")


@keras.saving.register_keras_serializable(package="keras_vit")
class Reassemble(CompositeLayer):
    """Makes a map of the tokens of a block, at one of four scales (DPT, section 3.1).

    Takes the patches at their places `(batch, rows, columns, hidden_dim)`, and for
    `readout="project"` the class token `(batch, hidden_dim)`. Projects each to `channels`, resizes
    the map by `factor`, and convolves it to `width` channels. Returns
    `(batch, factor * rows, factor * columns, width)`; halved sides are rounded up.

    Args:
        channels: Channels of the map while it is resized.
        factor: 4 or 2: a transposed convolution enlarges it; 1; 0.5: a convolution of stride 2.
        width: Channels of the result.
        readout: `"ignore"`: the class token is left out; `"project"`: it is joined to every patch,
            and both are projected to `hidden_dim`, with GELU.

    Raises:
        ValueError: An argument is unknown or out of range.

    Example:

    >>> import keras, keras_vit
    >>> reassemble = keras_vit.layers.Reassemble(channels=8, factor=0.5, width=6)
    >>> tuple(reassemble(keras.ops.ones((2, 7, 4, 16))).shape)
    (2, 4, 2, 6)
    """

    def __init__(
        self, channels: int, factor: float, width: int, readout: str = "ignore", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_positive(channels=channels, width=width)
        check_choice(factor, "factor", FACTORS)
        check_choice(readout, "readout", READOUTS)
        self.channels, self.factor = channels, factor
        self.width, self.readout = width, readout
        self.projection = self.sublayer(Dense, channels, name="projection")
        self.resize = None
        if factor > 1:
            self.resize = self.sublayer(PixelUpsample, int(factor), name="resize")
        elif factor < 1:
            strided = {"strides": 2, "padding": "valid"}
            self.resize = self.sublayer(_convolution, channels, name="resize", **strided)
        self.convolution = self.sublayer(_convolution, width, name="convolution", use_bias=False)

    def build(self, grid_shape: Shape, token_shape: Shape | None = None) -> None:
        if self.readout == "project":
            hidden_dim = grid_shape[-1]
            self.token_projection = self.sublayer(Dense, hidden_dim, name="token_projection")
            self.token_projection.build((*grid_shape[:-1], 2 * (hidden_dim or 0)))
        self.projection.build(grid_shape)
        resized = (*grid_shape[:-1], self.channels)
        if self.resize is not None:
            padding = 2 if self.factor < 1 else 0
            sides = [None if side is None else side + padding for side in resized[1:3]]
            self.resize.build((resized[0], *sides, self.channels))
        self.convolution.build((*self.compute_output_shape(resized)[:-1], self.channels))

    def call(self, grid: Any, token: Any = None) -> Any:
        if self.readout == "project":
            if token is None:
                raise ValueError(
                    'readout="project" joins the class token to every patch: call the layer with '
                    'it, or give readout="ignore".'
                )
            token = ops.broadcast_to(token[:, None, None], ops.shape(grid))
            grid = gelu(self.token_projection(ops.concatenate([grid, token], axis=-1)))
        maps = self.projection(grid)
        if self.factor < 1:  # torch's padding: Keras's "same" adds a row at the end alone
            maps = ops.pad(maps, ((0, 0), (1, 1), (1, 1), (0, 0)))
        if self.resize is not None:
            maps = self.resize(maps)
        return self.cast(self.convolution(maps))

    def compute_output_shape(self, grid_shape: Shape, token_shape: Shape | None = None) -> Shape:
        batch, *sides, _ = grid_shape
        resized = [
            None if side is None else -(-side // 2) if self.factor < 1 else side * int(self.factor)
            for side in sides
        ]
        return batch, *resized, self.width


@keras.saving.register_keras_serializable(package="keras_vit")
class ResidualConvUnit(CompositeLayer):
    """Two convolutions of 3 x 3 pixels, each after ReLU, are added to the maps (RefineNet; DPT).

    Takes and returns `(batch, rows, columns, channels)`.

    Args:
        batch_norm: Whether a batch norm follows each convolution, which then does not have a bias,
            as in DPT's semantic segmentation.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.ResidualConvUnit()(keras.ops.ones((2, 5, 4, 8))).shape)
    (2, 5, 4, 8)
    """

    def __init__(self, batch_norm: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.batch_norm = batch_norm

    def build(self, maps_shape: Shape) -> None:
        options, channels = {"use_bias": not self.batch_norm}, maps_shape[-1]
        self.conv_0 = self.sublayer(_convolution, channels, name="conv_0", **options)
        self.conv_1 = self.sublayer(_convolution, channels, name="conv_1", **options)
        self.norm_0 = self.norm_1 = None
        if self.batch_norm:
            norm = keras.layers.BatchNormalization
            self.norm_0 = self.sublayer(norm, name="norm_0", **BATCH_NORM)
            self.norm_1 = self.sublayer(norm, name="norm_1", **BATCH_NORM)
        for layer in (self.conv_0, self.norm_0, self.conv_1, self.norm_1):
            if layer is not None:
                layer.build(maps_shape)

    def call(self, maps: Any, training: bool | None = None) -> Any:
        residual = maps
        for convolution, norm in ((self.conv_0, self.norm_0), (self.conv_1, self.norm_1)):
            residual = convolution(ops.relu(residual))
            if norm is not None:
                residual = norm(residual, training=training)
        return maps + self.cast(residual)

    def compute_output_shape(self, maps_shape: Shape) -> Shape:
        return maps_shape


@keras.saving.register_keras_serializable(package="keras_vit")
class FeatureFusion(CompositeLayer):
    """Joins the map of a deeper block with that of a shallower one (DPT, section 3.1).

    Takes the deeper map `(batch, rows, columns, channels)`, and but for the deepest one the map of
    that size to join; returns `(batch, *size, channels)`. The first passes a `ResidualConvUnit` and
    is added, the sum passes another, is resized, bilinear with aligned corners, and projected.

    Args:
        size: Height and width of the result: one number, or a pair.
        batch_norm: As for `ResidualConvUnit`.

    Raises:
        ValueError: The maps differ in size, or `size` is not made of positive integers.

    Example:

    >>> import keras, keras_vit
    >>> deep, shallow = keras.ops.ones((2, 3, 4, 8)), keras.ops.ones((2, 3, 4, 8))
    >>> tuple(keras_vit.layers.FeatureFusion((6, 7))(deep, shallow).shape)
    (2, 6, 7, 8)
    """

    def __init__(
        self, size: int | tuple[int, int], batch_norm: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.size = as_pair(size, "size")
        self.batch_norm = batch_norm

    def build(self, deep_shape: Shape, shallow_shape: Shape | None = None) -> None:
        self.skip_unit = None
        if shallow_shape is not None:
            if tuple(shallow_shape[1:]) != tuple(deep_shape[1:]):
                raise ValueError(
                    f"Maps {tuple(deep_shape)} and {tuple(shallow_shape)} are added: resize one to "
                    "the other by MapResize first."
                )
            self.skip_unit = self.sublayer(ResidualConvUnit, self.batch_norm, name="skip_unit")
            self.skip_unit.build(shallow_shape)
        self.unit = self.sublayer(ResidualConvUnit, self.batch_norm, name="unit")
        self.unit.build(deep_shape)
        self.resize = self.sublayer(MapResize, self.size, align_corners=True, name="resize")
        self.resize.build(deep_shape)
        self.projection = self.sublayer(Dense, deep_shape[-1], name="projection")
        self.projection.build(self.compute_output_shape(deep_shape))

    def call(self, deep: Any, shallow: Any = None, training: bool | None = None) -> Any:
        if self.skip_unit is not None:
            deep = deep + self.cast(self.skip_unit(shallow, training=training))
        maps = self.resize(self.unit(deep, training=training))
        return self.cast(self.projection(maps))

    def compute_output_shape(self, deep_shape: Shape, shallow_shape: Shape | None = None) -> Shape:
        return (deep_shape[0], *self.size, deep_shape[-1])
