"""The models, their arguments, and the names of their sizes."""

import fnmatch

from keras_vit.models.config import MixerConfig, ModelConfig, ResNetConfig, ViTConfig
from keras_vit.models.families import (
    FAMILIES,
    MODEL_NAMES,
    Family,
    family_of,
    model_arguments,
    model_cost,
    named_model,
)
from keras_vit.models.image_model import ImageModel
from keras_vit.models.mixer import MLPMixer
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.vit import VisionTransformer

__all__ = [
    "FAMILIES",
    "MODEL_NAMES",
    "BiTResNet",
    "Family",
    "ImageModel",
    "MLPMixer",
    "MixerConfig",
    "ModelConfig",
    "ResNetConfig",
    "ViTConfig",
    "VisionTransformer",
    "family_of",
    "list_models",
    "model_arguments",
    "model_cost",
    "named_model",
]


def list_models(pattern: str = "*") -> list[str]:
    """List the model names for `create`, such as `"ViT-B/16"`; `pattern` is a shell pattern.

    >>> import keras_vit
    >>> keras_vit.list_models("ViT-L*")
    ['ViT-L/32', 'ViT-L/16']
    """
    return [name for name in MODEL_NAMES if fnmatch.fnmatch(name.lower(), pattern.lower())]
