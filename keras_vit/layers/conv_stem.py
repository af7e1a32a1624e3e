"""Convolutions in front of the patches (Xiao et al. 2021, "Early Convolutions")."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.errors import check_positive
from keras_vit.layers.composite import CompositeLayer
from keras_vit.layers.configured import Shape

Stages = tuple[tuple[int, int], ...]


def conv_stages(stages: Sequence[Sequence[int]], argument: str = "stages") -> Stages:
    """`(channels, stride)` of each convolution, or a ValueError."""
    pairs = isinstance(stages, Sequence) and not isinstance(stages, str) and len(stages) > 0
    if not pairs or not all(isinstance(stage, Sequence) and len(stage) == 2 for stage in stages):
        raise ValueError(
            f"{argument}={stages!r} must be the channels and the stride of each convolution, such "
            "as ((32, 2), (64, 1))."
        )
    for number, (channels, stride) in enumerate(stages):
        check_positive(**{f"channels of {argument}[{number}]": channels})
        check_positive(**{f"stride of {argument}[{number}]": stride})
    return tuple((channels, stride) for channels, stride in stages)


@keras.saving.register_keras_serializable(package="keras_vit")
class ConvStem(CompositeLayer):
    """Convolutions of 3 x 3 pixels, each followed by layer norm over the channels and GELU.

    Takes `(batch, height, width, channels)`, returns `(batch, new_height, new_width, filters)`:
    height and width are divided by the product of the strides and rounded up. With few training
    images, a ViT whose patches are cut from the result is more accurate than one whose patches are
    cut from the pixels. The paper's stem has batch norm and ReLU; layer norm treats every image
    alike, whatever the batch, in training and in inference.

    Args:
        stages: Channels and stride of each convolution, in order.
        epsilon: Epsilon of the norms.

    Raises:
        ValueError: `stages` is empty, or has something other than pairs of positive integers.

    Example:

    >>> import keras, keras_vit
    >>> stem = keras_vit.layers.ConvStem(((8, 2), (16, 1)))
    >>> tuple(stem(keras.ops.ones((2, 31, 24, 3))).shape[1:])
    (16, 12, 16)
    """

    def __init__(
        self, stages: Sequence[Sequence[int]], epsilon: float = 1e-6, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.stages = conv_stages(stages)
        self.epsilon = epsilon
        self.convolutions = [
            self.sublayer(
                keras.layers.Conv2D,
                channels,
                3,
                stride,
                "same",
                use_bias=False,
                kernel_initializer="he_normal",
                data_format="channels_last",
                name=f"conv_{i}",
            )
            for i, (channels, stride) in enumerate(self.stages)
        ]
        self.norms = [
            self.sublayer(keras.layers.LayerNormalization, epsilon=epsilon, name=f"norm_{i}")
            for i in range(len(self.stages))
        ]

    def build(self, images_shape: Shape) -> None:
        channels = images_shape[-1]
        for (filters, _), convolution, norm in zip(
            self.stages, self.convolutions, self.norms, strict=True
        ):
            convolution.build((None, None, None, channels))
            norm.build((None, None, None, filters))
            channels = filters

    def call(self, images: Any) -> Any:
        x = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = ops.gelu(self.cast(norm(convolution(x))), approximate=True)
        return x

    def compute_output_shape(self, images_shape: Shape) -> Shape:
        batch, *sides, _ = images_shape
        for _, stride in self.stages:
            sides = [None if side is None else -(-side // stride) for side in sides]
        return batch, *sides, self.stages[-1][0]
