"""The registry of model families: for each its class and its named sizes; what a name costs."""

from functools import partial
from typing import Any, NamedTuple

from keras_vit._base.errors import as_pair, did_you_mean
from keras_vit.models.cost import Cost, cost_of
from keras_vit.models.geometry import DEFAULT_SIZE
from keras_vit.models.image_model import ImageModel
from keras_vit.models.mixer import MLPMixer
from keras_vit.models.other_names import OTHER_NAMES, NamedModel, of_other_package
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.skeleton import without_values
from keras_vit.models.variants import BIT_NAMES, HYBRIDS, MIXER_NAMES, VIT_NAMES, size_arguments
from keras_vit.models.vit import VisionTransformer


class Family(NamedTuple):
    """Its class, and the names that `create` takes."""

    model: type[ImageModel]
    names: tuple[str, ...]


FAMILIES = {
    "ViT": Family(VisionTransformer, VIT_NAMES),
    "hybrid": Family(VisionTransformer, tuple(HYBRIDS)),
    "BiT": Family(BiTResNet, BIT_NAMES),
    "Mixer": Family(MLPMixer, MIXER_NAMES),
}

MODEL_NAMES = tuple(name for family in FAMILIES.values() for name in family.names)


def named_model(name: str) -> NamedModel:
    """Return what a name of ours, timm's or Hugging Face's stands for.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.
    """
    named = NamedModel(name) if name in MODEL_NAMES else of_other_package(name)
    if named is None:
        nearest = did_you_mean(name, [*MODEL_NAMES, *OTHER_NAMES], listed=MODEL_NAMES)
        raise ValueError(f"No model {name!r}. {nearest}")
    return named


def family_of(name: str) -> Family:
    """Return the family of a name such as `"ViT-B/16"` or `"vit_base_patch16_224"`.

    Raises:
        ValueError: The name is unknown; the message proposes the nearest ones.
    """
    variant = named_model(name).variant
    return FAMILIES["hybrid" if variant in HYBRIDS else variant.partition("-")[0]]


def model_arguments(name: str) -> dict[str, Any]:
    """Return the arguments of a name: patch size, width, depth, heads, MLP.

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


def model_cost(
    name: str,
    *,
    image_size: int | tuple[int, int] | None = None,
    batch_size: int = 1,
    precision: str = "float32",
    **arguments: Any,
) -> Cost:
    """Return the cost of a model by its name, counted on a model without values: see `cost_of`.

    Args:
        name: As for `keras_vit.create`.
        image_size: Height and width, or one number for both; None for the name's own, or 224.
        batch_size: Images of a step.
        precision: A Keras dtype policy.
        **arguments: More arguments of the model, such as `num_classes` and `remat`.

    Raises:
        ValueError: The name is unknown, an argument is out of range, or the images are smaller than
            a patch.

    Example:

    >>> from keras_vit.models import model_cost
    >>> round(model_cost("ViT-S/16", image_size=224).macs / 1e9, 2)
    4.6
    """
    named = named_model(name)
    size = as_pair(image_size or named.image_size or DEFAULT_SIZE, "image_size")
    images = {"input_shape": (*size, 3), "data_format": "channels_last", "dtype": precision}
    family = family_of(name).model
    build = partial(family, **{**model_arguments(name), **images, **arguments})
    return cost_of(without_values(build), batch_size)
