"""From pixels 0..255 to the values that the weights were trained on."""

from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import check_choice
from keras_vit.data.band_statistics import Statistics
from keras_vit.models.config import ModelConfig

# Mean and standard deviation of pixels 0..1.
NORMALIZATIONS: dict[str, Statistics] = {
    "inception": ((0.5,), (0.5,)),  # to [-1, 1]
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
}


def normalize(images: Any, config: ModelConfig) -> Any:
    """Return pixels 0..255, or bands in their own range, as the weights expect them, in float32.

    Gray images under statistics of three channels become three: each statistic applies to the one
    channel, and the kernel stays as it was trained. So logits equal those of the gray image given
    as RGB, bit for bit, also where no bias could take the difference (CLIP, a ResNet's stem).
    """
    kind, data_format = config.normalization, config.data_format
    if isinstance(kind, str):
        check_choice(kind, "normalization", NORMALIZATIONS)
    if not config.include_preprocessing:
        return images
    means, stds = statistics_in_parts(kind)
    axis = -1 if data_format == "channels_last" else 1
    channels = images.shape[axis]
    if len(means) not in (1, normalized_channels(config, channels)):
        raise ValueError(
            f"normalization={kind!r} is for {len(means)} channels, or 1 for gray, not {channels}. "
            "Give include_preprocessing=False and normalize the images yourself; or, for weights "
            'that are to be trained anew, "inception", which scales any number of channels to '
            "[-1, 1]."
        )
    if channels < len(means):
        repeat = keras.layers.Concatenate(axis=axis, dtype="float32", name="gray_to_rgb")
        images = repeat([images] * len(means))
    per_channel = zip(means, stds, strict=True)
    scale, offset = np.array([(1 / (255 * std), -mean / std) for mean, std in per_channel]).T
    if data_format == "channels_first":
        # Rescaling would take the channel axis from Keras's global configuration.
        scale, offset = scale[:, None, None], offset[:, None, None]
    return keras.layers.Rescaling(scale, offset, dtype="float32", name="normalize")(images)


def statistics_in_parts(normalization: str | Statistics) -> Statistics:
    """Return the mean and the standard deviation of each channel, as parts of 255.

    >>> statistics_in_parts("inception")
    ((0.5,), (0.5,))
    """
    if isinstance(normalization, str):
        return NORMALIZATIONS[normalization]
    means, stds = ([value / 255 for value in values] for values in normalization)
    return tuple(means), tuple(stds)


def normalized_channels(config: Any, channels: int) -> int:
    """Return the channels of the normalized images, which the weights are for.

    >>> normalized_channels(ModelConfig(normalization="imagenet"), 1)
    3
    >>> normalized_channels(ModelConfig(), 1)
    1
    """
    is_gray = config.include_preprocessing and channels == 1
    return len(statistics_in_parts(config.normalization)[0]) if is_gray else channels


def own_statistics(model: Any) -> Any:
    """Return means and standard deviations of channels in a range of their own, or None."""
    normalization = getattr(model, "normalization", None)
    takes_pixels = getattr(model, "include_preprocessing", False)
    return None if isinstance(normalization, str) or not takes_pixels else normalization


def channels_last(images: Any, data_format: str | None) -> Any:
    """Return images with their channels last, as all convolutions here take them.

    Convolutions of `channels_first` images do not run on TensorFlow's CPU kernels.
    """
    if data_format == "channels_last":
        return images
    return keras.layers.Permute((2, 3, 1), dtype="float32", name="channels_last")(images)
