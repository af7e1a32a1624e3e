"""BiT's ResNet (Kolesnikov et al. 2020, "Big Transfer"), the CNN that the ViT was measured by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.errors import check_choice, check_non_negative, check_positive
from keras_vit.layers import ResidualUnit, ResNetStem
from keras_vit.layers.residual import GROUPS, VERSIONS
from keras_vit.models.image_model import (
    ImageModel,
    classify,
    expose_arguments,
    image_layout,
    normalise,
)

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


@keras.saving.register_keras_serializable(package="keras_vit")
@expose_arguments
class BiTResNet(ImageModel):
    """A ResNet with group norm and weight standardisation; its defaults are BiT-R50x1's.

    Takes images `(batch, height, width, channels)` of any size with pixels 0..255, uint8 or
    float, and returns float32 logits `(batch, num_classes)` under every dtype policy.

    Args:
        num_classes: Classes of the zero-initialised head; 0: no head, returns the features.
        input_shape: `(height, width, channels)`, or `(None, None, channels)` for images of any
            size. With `data_format="channels_first"`: `(channels, height, width)`. None: 224 x 224
            RGB.
        weights: None; or the tag of released weights (`keras_vit.list_weights`); or a file to
            load (`keras_vit.load_weights`).
        classifier_activation: None for logits, or an activation such as `"softmax"`.
        include_preprocessing: True: the model takes pixels 0..255 and brings them to [-1, 1]
            itself; `"imagenet"`: to ImageNet's mean and deviation instead; False: it takes
            normalised images.
        depths: Units of each stage: (3, 4, 6, 3) is R50, (3, 4, 23, 3) R101, (3, 8, 36, 3) R152.
        width: Channels of the stem, a multiple of 32: 64 is x1, 192 is x3. A stage has four times
            as many, each later one twice those of the one before.
        version: 2: BiT's, norm and ReLU before each convolution; 1: big_vision's `bit`, behind it.
        remat: Compute a unit's activations again in the backward pass instead of keeping them.
        data_format: `"channels_last"`, `"channels_first"`, or None for Keras's configuration.
        name: Name of the model.
        dtype: Dtype policy of all layers but normalisation and head, such as `"mixed_bfloat16"`.

    Raises:
        ValueError: An argument is misspelt or out of range; the message says what is accepted.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.BiTResNet(num_classes=5, depths=(1, 1), width=32,
    ...                             input_shape=(None, None, 3))
    >>> model(np.zeros((1, 40, 32, 3), "uint8")).shape == (1, 5)
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
        depths: Sequence[int] = (3, 4, 6, 3),
        width: int = 64,
        version: int = 2,
        remat: bool = False,
        data_format: str | None = None,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        depths = stages(depths, "depths")
        if not depths:
            raise ValueError(
                "depths=() has no stage. Give the units of each, such as (3, 4, 6, 3)."
            )
        check_non_negative(num_classes=num_classes)
        input_shape, data_format = image_layout(input_shape, data_format)
        check_choice(version, "version", VERSIONS)
        dtype = keras.dtype_policies.get(dtype)
        arguments = {k: v for k, v in locals().items() if k not in ("self", "__class__")}

        images = keras.Input(input_shape, name="images")
        x = {"images": normalise(images, include_preprocessing, data_format)}
        x |= resnet_features(x["images"], data_format, depths, width, version, remat, dtype)
        x["pre_logits_2d"] = x[f"stage_{len(depths)}"]
        if version == 2:  # its last unit ends without a norm
            x["norm"] = keras.layers.GroupNormalization(
                GROUPS, epsilon=VERSIONS[2].norm_epsilon, dtype=dtype, name="norm"
            )(x.pop("pre_logits_2d"))
            x["pre_logits_2d"] = keras.layers.ReLU(dtype=dtype, name="relu")(x["norm"])
        x["pooled"] = x["pre_logits"] = keras.layers.GlobalAveragePooling2D(
            data_format="channels_last", dtype=dtype, name="pooling"
        )(x["pre_logits_2d"])
        x["logits"] = classify(x["pre_logits"], num_classes, classifier_activation, dtype)
        self._assemble(arguments, images, x)

    def with_input_shape(self, input_shape: tuple[int | None, int | None, int | None]) -> Self:
        """A copy for images of another size, under the same weights.

        Example:

        >>> import keras_vit
        >>> model = keras_vit.BiTResNet(depths=(1,), width=32, input_shape=(32, 32, 3))
        >>> model.with_input_shape((None, None, 3)).input_shape
        (None, None, None, 3)
        """
        return self._copy_with({"input_shape": self._other_shape(input_shape)})


def stages(depths: Sequence[int], argument: str) -> tuple[int, ...]:
    """The units of each stage of a ResNet, or a ValueError."""
    if not isinstance(depths, Sequence):
        raise ValueError(
            f"{argument}={depths!r} must be the units of each stage, such as (3, 4, 6, 3)."
        )
    units = tuple(depths)
    check_positive(**{f"{argument}[{stage}]": number for stage, number in enumerate(units)})
    return units


def resnet_features(
    images: Any,
    data_format: str,
    depths: Sequence[int],
    width: int,
    version: int,
    remat: bool,
    dtype: Any,
) -> dict[str, Any]:
    """The stem and the stages of a ResNet over normalised images, by name; channels last."""
    if data_format == "channels_first":
        # Convolutions of channels_first images do not run on TensorFlow's CPU kernels.
        images = keras.layers.Permute((2, 3, 1), dtype="float32", name="channels_last")(images)
    features = {}
    features["stem"] = maps = ResNetStem(width, version, dtype=dtype, name="stem")(images)
    for stage, depth in enumerate(depths, 1):
        for unit in range(1, depth + 1):
            maps = ResidualUnit(
                width * 2 ** (stage - 1),
                2 if stage > 1 and unit == 1 else 1,
                version,
                remat,
                dtype=dtype,
                name=f"stage_{stage}_unit_{unit}",
            )(maps)
        features[f"stage_{stage}"] = maps
    return features
