"""The stem and the bottleneck unit of ResNets with group norm and weight standardization.

Version 1 is that of the hybrids and of big_vision's `bit`: norm and ReLU after every convolution.
Version 2 is BiT's (Kolesnikov et al. 2020, "Big Transfer"): norm and ReLU before it.
"""

from typing import Any, NamedTuple

import keras
from keras import ops

from keras_vit._base.errors import check_choice, check_positive
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import Shape
from keras_vit.layers.convolution import StandardizedConv2D
from keras_vit.layers.rematerialization import rematerialize

GROUPS = 32
EXPANSION = 4  # A unit's output has four times the channels of its middle.


class Version(NamedTuple):
    """The numbers in which the two released code bases differ."""

    norm_epsilon: float
    variance_epsilon: float
    deviation_epsilon: float
    symmetric: bool  # padding is the same on each side, where "same" adds to the end first


VERSIONS = {
    1: Version(1e-6, 0.0, 1e-5, symmetric=False),
    2: Version(1e-5, 1e-10, 0.0, symmetric=True),
}


class _Residual(CompositeLayer):
    """Creates the convolutions and norms of a version."""

    def __init__(self, width: int, version: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice(version, "version", VERSIONS)
        check_positive(width=width)
        if width % GROUPS:
            raise ValueError(
                f"width={width!r} cannot be normalized in {GROUPS} groups. Give a multiple of "
                f"{GROUPS}, such as {-(-width // GROUPS) * GROUPS}."
            )
        self.width = width
        self.version = version
        self.rules = VERSIONS[version]
        self.padding = "valid" if self.rules.symmetric else "same"

    def convolution(self, filters: int, size: int, strides: int, name: str) -> Any:
        epsilons = self.rules.variance_epsilon, self.rules.deviation_epsilon
        options = (filters, size, strides, self.padding, *epsilons)
        return self.sublayer(StandardizedConv2D, *options, name=name)

    def padded_shape(self, shape: Shape, width: int) -> Shape:
        """Return the shape of what `padded` returns."""
        batch, *sides, channels = shape
        if self.rules.symmetric:
            sides = [None if side is None else side + 2 * width for side in sides]
        return batch, *sides, channels

    def padded(self, images: Any, width: int, value: float = 0.0) -> Any:
        """Pads images, unless this version's convolutions do so."""
        if not self.rules.symmetric:
            return images
        border = (width, width)
        return ops.pad(images, ((0, 0), border, border, (0, 0)), constant_values=value)

    def norm(self, name: str, **kwargs: Any) -> Any:
        kwargs |= {"epsilon": self.rules.norm_epsilon, "name": name}
        return self.sublayer(keras.layers.GroupNormalization, GROUPS, **kwargs)


@keras.saving.register_keras_serializable(package="keras_vit")
class ResNetStem(_Residual):
    """Reduces height and width to a quarter: a 7 x 7 convolution, then 3 x 3 max pooling.

    Takes `(batch, height, width, channels)`, returns `(batch, height / 4, width / 4, width)`,
    rounded up.

    Args:
        width: Channels of the output, a multiple of 32.
        version: 1 or 2: see the module.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.ResNetStem(32)(keras.ops.ones((2, 60, 44, 3))).shape[1:])
    (15, 11, 32)
    """

    def __init__(self, width: int, version: int = 2, **kwargs: Any) -> None:
        super().__init__(width, version, **kwargs)
        self.conv = self.convolution(width, 7, 2, "conv")
        self.norm_layer = self.norm("norm") if version == 1 else None

    def build(self, images_shape: Shape) -> None:
        shape = self.padded_shape(images_shape, 3)
        self.conv.build(shape)
        if self.norm_layer is not None:
            self.norm_layer.build(self.conv.compute_output_shape(shape))

    def call(self, images: Any) -> Any:
        x = self.conv(self.padded(images, 3))
        if self.norm_layer is not None:
            x = ops.relu(self.norm_layer(x))
        # Without a norm values may be negative, and zeros at the border would exceed them.
        x = self.padded(x, 1, float("-inf"))
        return self.cast(ops.max_pool(x, 3, 2, self.padding, data_format="channels_last"))

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        batch, height, width, _ = images_shape
        quarter = [None if side is None else -(-side // 4) for side in (height, width)]
        return batch, *quarter, self.width


@keras.saving.register_keras_serializable(package="keras_vit")
class ResidualUnit(_Residual):
    """A bottleneck unit: 1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut.

    Takes `(batch, height, width, channels)`, returns `(batch, height / strides, width / strides,
    4 * width)`, rounded up. The shortcut is a 1 x 1 convolution where the shape changes.

    Args:
        width: Channels in the middle, a multiple of 32.
        strides: Step of the 3 x 3 convolution: 1 or 2.
        version: 1 or 2: see the module.
        remat: Recompute activations in the backward pass instead of keeping them.

    Example:

    >>> import keras, keras_vit
    >>> tuple(keras_vit.layers.ResidualUnit(32, strides=2)(keras.ops.ones((2, 8, 6, 32))).shape[1:])
    (4, 3, 128)
    """

    def __init__(
        self, width: int, strides: int = 1, version: int = 2, remat: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(width, version, **kwargs)
        self.strides = strides
        self.remat = remat
        self.conv_1 = self.convolution(width, 1, 1, "conv_1")
        self.conv_2 = self.convolution(width, 3, strides, "conv_2")
        self.conv_3 = self.convolution(EXPANSION * width, 1, 1, "conv_3")
        self.norm_1, self.norm_2 = self.norm("norm_1"), self.norm("norm_2")
        # The last norm of version 1 starts at zero, so that a new unit passes on its input.
        self.norm_3 = self.norm("norm_3", gamma_initializer="zeros" if version == 1 else "ones")

    def build(self, images_shape: Shape) -> None:
        channels, out = images_shape[-1], EXPANSION * self.width
        self.projection = self.projection_norm = None
        if channels != out or self.strides != 1:
            self.projection = self.convolution(out, 1, self.strides, "projection")
            self.projection_norm = self.norm("projection_norm") if self.version == 1 else None
        wide, narrow = images_shape[:3], self.compute_output_shape(images_shape)[:3]
        inside = (*wide, self.width), (*narrow, self.width)
        last, result = self.padded_shape(inside[0], 1), (*narrow, out)
        layers = {self.conv_1: images_shape, self.conv_2: last, self.conv_3: inside[1]}
        normalized = (images_shape, *inside) if self.version == 2 else (*inside, result)
        layers |= dict(zip((self.norm_1, self.norm_2, self.norm_3), normalized, strict=True))
        layers |= {self.projection: images_shape, self.projection_norm: result}
        for layer, shape in layers.items():
            if layer is not None:
                layer.build(shape)

    def _version_1(self, x: Any) -> Any:
        shortcut = x
        if self.projection is not None and self.projection_norm is not None:
            shortcut = self.projection_norm(self.projection(x))
        y = ops.relu(self.norm_1(self.conv_1(x)))
        y = ops.relu(self.norm_2(self.conv_2(self.padded(y, 1))))
        return ops.relu(self.cast(shortcut) + self.cast(self.norm_3(self.conv_3(y))))

    def _version_2(self, x: Any) -> Any:
        y = ops.relu(self.norm_1(x))
        shortcut = x if self.projection is None else self.projection(y)
        y = ops.relu(self.norm_2(self.conv_1(y)))
        y = ops.relu(self.norm_3(self.conv_2(self.padded(y, 1))))
        return self.cast(shortcut) + self.cast(self.conv_3(y))

    def call(self, images: Any, training: bool | None = None) -> Any:
        unit = self._version_1 if self.version == 1 else self._version_2
        return rematerialize(self, unit, images) if self.remat and training else unit(images)

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        batch, *sides, _ = images_shape
        smaller = [None if side is None else -(-side // self.strides) for side in sides]
        return batch, *smaller, EXPANSION * self.width
