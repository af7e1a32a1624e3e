"""The hybrid: patches are cut from a ResNet's feature map (ViT paper, section 3.1)."""

from typing import Any

from keras_vit.models.config import ViTConfig
from keras_vit.models.embedding import image_patches
from keras_vit.models.resnet import resnet_features


def hybrid_patches(images: Any, config: ViTConfig) -> dict[str, Any]:
    """`stem`, `stage_1` and so on, and the `patches` of the last, `(batch, rows, columns, width)`.

    The ResNet is big_vision's `bit` (version 1), which AugReg's hybrids start with.
    """
    assert config.resnet is not None
    x = resnet_features(images, config, config.resnet, config.resnet_width, version=1)
    last = x[f"stage_{len(config.resnet)}"] if config.resnet else x["stem"]
    return {**x, **image_patches(last, config, "channels_last")}
