"""Convolutions in front of the patches (Xiao et al. 2021, "Early Convolutions")."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_positive
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import Shape

Stages = tuple[tuple[int, int], ...]


def conv_stages(stages: Sequence[Sequence[int]]) -> Stages:
    """`(channels, stride)` of each convolution, or a ValueError."""
    pairs = isinstance(stages, Sequence) and not isinstance(stages, str) and len(stages) > 0
    if not pairs or not all(isinstance(stage, Sequence) and len(stage) == 2 for stage in stages):
        raise ValueError(
            f"conv_stem={stages!r} must be the channels and the stride of each convolution, such "
            "as ((32, 2), (64, 1))."
        )
    for number, (channels, stride) in enumerate(stages):
        check_positive(**{f"channels of conv_stem[{number}]": channels})
        check_positive(**{f"stride of conv_stem[{number}]": stride})
    return tuple((channels, stride) for channels, stride in stages)


@keras.saving.register_keras_serializable(package="keras_vit")
class ConvStemStage(CompositeLayer):
    """A convolution of 3 x 3 pixels, layer norm over the channels and GELU.

    Takes `(batch, height, width, channels)`, returns `(batch, new_height, new_width, filters)`:
    height and width are divided by the stride and rounded up. With few training images, a ViT
    whose patches are cut from the result of some stages is more accurate than one whose patches
    are cut from the pixels. The paper's stem has batch norm and ReLU; layer norm treats every
    image alike, whatever the batch, in training and in inference.

    Args:
        filters: Channels of the result.
        stride: Pixels from one result to the next, in both directions.
        epsilon: Epsilon of the norm.

    Raises:
        ValueError: `filters` or `stride` is not a positive integer.

    Example:

    >>> import keras, keras_vit
    >>> stage = keras_vit.layers.ConvStemStage(16, stride=2)
    >>> tuple(stage(keras.ops.ones((2, 31, 24, 3))).shape[1:])
    (16, 12, 16)
    """

    def __init__(self, filters: int, stride: int = 1, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_positive(filters=filters, stride=stride)
        self.filters, self.stride, self.epsilon = filters, stride, epsilon
        self.convolution = self.sublayer(
            keras.layers.Conv2D,
            filters,
            3,
            stride,
            "same",
            use_bias=False,
            kernel_initializer="he_normal",
            data_format="channels_last",
            name="convolution",
        )
        self.norm = self.sublayer(keras.layers.LayerNormalization, epsilon=epsilon, name="norm")

    def build(self, images_shape: Shape) -> None:
        self.convolution.build(images_shape)
        self.norm.build(self.compute_output_shape(images_shape))

    def call(self, images: Any) -> Any:
        return ops.gelu(self.cast(self.norm(self.convolution(images))), approximate=True)

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        batch, *sides, _ = images_shape
        sides = [None if side is None else -(-side // self.stride) for side in sides]
        return batch, *sides, self.filters
