"""The registry of model families: for each its class, its named sizes and what they cost."""

from collections.abc import Callable
from typing import Any, NamedTuple

from keras_vit._base.errors import did_you_mean
from keras_vit.models.cost import Cost, counted_arguments, mixer_cost, resnet_cost, vit_cost
from keras_vit.models.image_model import ImageModel
from keras_vit.models.mixer import MLPMixer
from keras_vit.models.other_names import OTHER_NAMES, NamedModel, of_other_package
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


def named_model(name: str) -> NamedModel:
    """What a name of ours, timm's or Hugging Face's stands for.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.
    """
    named = NamedModel(name) if name in MODEL_NAMES else of_other_package(name)
    if named is None:
        nearest = did_you_mean(name, [*MODEL_NAMES, *OTHER_NAMES], listed=MODEL_NAMES)
        raise ValueError(f"No model {name!r}. {nearest}")
    return named


def family_of(name: str) -> Family:
    """The family of a name such as `"ViT-B/16"` or `"vit_base_patch16_224"`.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.
    """
    variant = named_model(name).variant
    return FAMILIES["hybrid" if variant in HYBRIDS else variant.partition("-")[0]]


def model_arguments(name: str) -> dict[str, Any]:
    """The arguments of a name: patch size, width, depth, heads, MLP.

    For a name of timm or Hugging Face also those in which its model differs from ours by default,
    such as `activation="gelu"`. The image size is not among them.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.

    Example:

    >>> from keras_vit.models import model_arguments
    >>> model_arguments("BiT-R50x1")
    {'depths': (3, 4, 6, 3), 'width': 64}
    """
    named = named_model(name)
    return {**size_arguments(named.variant), **named.arguments}


def model_cost(name: str, **options: Any) -> Cost:
    """The cost of a model by its name; options as in `vit_cost`, except the sizes.

    Raises:
        ValueError: The name is unknown, or the images are smaller than a patch.

    Example:

    >>> from keras_vit.models import model_cost
    >>> round(model_cost("ViT-S/16", image_size=224).macs / 1e9, 2)
    4.6
    """
    named, cost = named_model(name), family_of(name).cost
    counted = counted_arguments(cost)
    arguments = {k: v for k, v in model_arguments(name).items() if k in counted}
    if "representation_size" in named.arguments:
        # It comes without classes: a layer of that size in place of the head.
        arguments["num_classes"] = named.arguments["representation_size"]
    if named.image_size is not None:
        arguments["image_size"] = named.image_size
    return cost(**{**arguments, **options})
