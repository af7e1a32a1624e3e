"""The registry of model families: for each its class, its named sizes and what they cost."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras_vit.errors import did_you_mean
from keras_vit.models.cost import Cost, mixer_cost, resnet_cost, vit_cost
from keras_vit.models.image_model import ImageModel
from keras_vit.models.mixer import MLPMixer
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.variants import BIT_NAMES, HYBRIDS, MIXER_NAMES, VIT_NAMES, size_arguments
from keras_vit.models.vit import VisionTransformer


class Family(NamedTuple):
    """Its class, the names that `create` takes, and what counts its cost from size arguments."""

    model: type[ImageModel]
    names: tuple[str, ...]
    cost: Callable[..., Cost]


FAMILIES = {
    "ViT": Family(VisionTransformer, VIT_NAMES, vit_cost),
    "hybrid": Family(VisionTransformer, tuple(HYBRIDS), vit_cost),
    "BiT": Family(BiTResNet, BIT_NAMES, resnet_cost),
    "Mixer": Family(MLPMixer, MIXER_NAMES, mixer_cost),
}

MODEL_NAMES = tuple(name for family in FAMILIES.values() for name in family.names)


def family_of(name: str) -> Family:
    """The family of a name such as `"ViT-B/16"`.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.
    """
    for family in FAMILIES.values():
        if name in family.names:
            return family
    raise ValueError(f"No model {name!r}. {did_you_mean(name, MODEL_NAMES)}")


def model_arguments(name: str) -> dict[str, Any]:
    """The size arguments of a name: patch size, width, depth, heads, MLP.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.

    Example:

    >>> from keras_vit.models import model_arguments
    >>> model_arguments("BiT-R50x1")
    {'depths': (3, 4, 6, 3), 'width': 64}
    """
    family_of(name)
    return size_arguments(name)


def model_cost(name: str, **options: Any) -> Cost:
    """The cost of a model by its name; options as in `vit_cost`, except the sizes.

    Raises:
        ValueError: The name is unknown, or the images are smaller than a patch.

    Example:

    >>> from keras_vit.models import model_cost
    >>> round(model_cost("ViT-S/16", image_size=224).macs / 1e9, 2)
    4.6
    """
    return family_of(name).cost(**{**size_arguments(name), **options})
