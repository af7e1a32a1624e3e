"""BiT's ResNet (Kolesnikov et al. 2020, "Big Transfer"), the CNN that the ViT was measured by."""

from collections.abc import Sequence
from typing import Any, Self

import keras

from keras_vit.layers import ResidualUnit, ResNetStem
from keras_vit.layers.residual import GROUPS, VERSIONS
from keras_vit.models.config import ResNetConfig, ViTConfig, arguments_of
from keras_vit.models.geometry import ImageShape
from keras_vit.models.head import classify
from keras_vit.models.image_model import ImageModel
from keras_vit.models.normalization import channels_last, normalize


def bit_resnet(images: Any, config: ResNetConfig) -> dict[str, Any]:
    """Stem, stages, norm and head: every intermediate by name, in the order of the data."""
    x = {"images": normalize(images, config)}
    x |= resnet_features(x["images"], config, config.depths, config.width, config.version)
    last = x[f"stage_{len(config.depths)}"]
    if config.version == 2:  # its last unit ends without a norm
        epsilon = VERSIONS[2].norm_epsilon
        x["norm"] = keras.layers.GroupNormalization(
            GROUPS, epsilon=epsilon, dtype=config.dtype, name="norm"
        )(last)
        last = keras.layers.ReLU(dtype=config.dtype, name="relu")(x["norm"])
    x["pre_logits_2d"] = last
    x["pooled"] = x["pre_logits"] = keras.layers.GlobalAveragePooling2D(
        data_format="channels_last", dtype=config.dtype, name="pooling"
    )(last)
    if config.head == "map":
        x["grid"] = last
    x["logits"] = classify(x, config)
    return x


def resnet_features(
    images: Any, config: ResNetConfig | ViTConfig, depths: Sequence[int], width: int, version: int
) -> dict[str, Any]:
    """Return the stem and the stages of a ResNet over normalized images, by name; channels last."""
    images = channels_last(images, config.data_format)
    x = {}
    x["stem"] = maps = ResNetStem(width, version, dtype=config.dtype, name="stem")(images)
    for stage, units in enumerate(depths, 1):
        for unit in range(1, units + 1):
            maps = ResidualUnit(
                width * 2 ** (stage - 1),
                2 if stage > 1 and unit == 1 else 1,
                version,
                config.remat,
                dtype=config.dtype,
                name=f"stage_{stage}_unit_{unit}",
            )(maps)
        x[f"stage_{stage}"] = maps
    return x


@keras.saving.register_keras_serializable(package="keras_vit")
class BiTResNet(ImageModel):
    """A ResNet with group norm and weight standardization; its defaults are BiT-R50x1's.

    Takes images `(batch, height, width, channels)` of any size with pixels 0..255, uint8 or
    float, and returns float32 logits `(batch, num_classes)` under every dtype policy. Its arguments
    are those of `ResNetConfig`, by name; each is a read-only attribute of the model as well.

    Raises:
        ValueError: An argument is misspelled or out of range; the message lists what is accepted.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.models.BiTResNet(num_classes=5, depths=(1, 1), width=32,
    ...                             input_shape=(None, None, 3))
    >>> model(np.zeros((1, 40, 32, 3), "uint8")).shape == (1, 5)
    True
    """

    config_class = ResNetConfig
    # The arguments, which `ImageModel` makes attributes: here for editors and type checkers.
    depths: tuple[int, ...]
    width: int
    version: int
    remat: bool

    @arguments_of(ResNetConfig)
    def __init__(self, config: ResNetConfig) -> None:
        self._assemble(config, bit_resnet)

    def with_input_shape(self, input_shape: ImageShape) -> Self:
        """Return a copy for images of another size with the same weights.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.models.BiTResNet(depths=(1,), width=32, input_shape=(32, 32, 3))
        >>> model.with_input_shape((None, None, 3)).input_shape
        (None, None, None, 3)
        """
        return self._copy_with({"input_shape": self._other_shape(input_shape)})
