"""Every model that has a name, and the way to ask for one."""

import fnmatch
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from keras.config import image_data_format

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
from keras_vit.models.geometry import image_shape
from keras_vit.models.image_model import ImageModel
from keras_vit.models.mixer import MLPMixer
from keras_vit.models.resnet import BiTResNet
from keras_vit.models.vit import VisionTransformer

__all__ = [
    "FAMILIES",
    "BiTResNet",
    "Family",
    "ImageModel",
    "MLPMixer",
    "MixerConfig",
    "ModelConfig",
    "ResNetConfig",
    "ViTConfig",
    "VisionTransformer",
    "create",
    "family_of",
    "list_models",
    "model_arguments",
    "model_cost",
    "named_model",
]

P = ParamSpec("P")
M = TypeVar("M", bound=ImageModel)


def list_models(pattern: str = "*") -> list[str]:
    """The names of this package, such as `"ViT-B/16"`, for `create`; `pattern` is a shell pattern.

    >>> import keras_vit
    >>> keras_vit.list_models("ViT-L*")
    ['ViT-L/32', 'ViT-L/16']
    """
    return [name for name in MODEL_NAMES if fnmatch.fnmatch(name.lower(), pattern.lower())]


def create(name: str, *, sha256: str | None = None, **arguments: Any) -> ImageModel:
    """A model by its name, with any argument of its class.

    Names of timm (`"vit_base_patch16_224"`) and of Hugging Face repositories
    (`"google/vit-base-patch16-224"`) are accepted as well: the model is ours of the same
    architecture, with that name's image size, activation, epsilon, normalisation, registers and
    number of classes, unless they are given. Like every model without `weights`, it starts from
    random weights.

    `sha256` is the sum that the file given as `weights` must have.

    With `weights`, activation, epsilon, normalisation and pooling follow the weights unless they
    are given.

    Raises:
        ValueError: The name or an argument is unknown, or out of range.

    Example:

    >>> import keras_vit
    >>> keras_vit.create("ViT-Ti/16", num_classes=5, input_shape=(64, 96, 3)).output_shape
    (None, 5)
    >>> keras_vit.create("deit_tiny_patch16_384", num_classes=5).input_shape
    (None, 384, 384, 3)
    """
    sizes = model_arguments(name)
    if (size := named_model(name).image_size) is not None:
        data_format = arguments.get("data_format") or image_data_format()
        sizes["input_shape"] = image_shape((size, size), 3, data_format)
    if arguments.get("num_classes", 0) != sizes.get("num_classes", 0):
        sizes.pop("representation_size", None)  # belongs to the head, as in `arguments_for`
    weights = arguments.get("weights")
    if weights is not None:
        from keras_vit.checkpoints import arguments_for
        from keras_vit.checkpoints.sums import check_file

        if sha256 is not None:
            check_file(Path(weights).expanduser(), sha256)
        sizes |= arguments_for(weights, **{**sizes, **arguments})
    label = re.sub(r"\W", "_", name.lower())
    return family_of(name).model(**{"name": label, **sizes, **arguments})


def _named(name: str, model: Callable[P, M]) -> Callable[P, M]:
    """The constructor of one row of the table: `ViTB16` for `"ViT-B/16"`."""

    def constructor(*args: P.args, **kwargs: P.kwargs) -> M:
        if args:
            raise ValueError(
                f"{constructor.__name__} takes named arguments only: "
                f"{constructor.__name__}(num_classes={args[0]!r})?"
            )
        return create(name, **kwargs)  # type: ignore[return-value,arg-type]

    sizes = ", ".join(f"{k}={v}" for k, v in model_arguments(name).items())
    constructor.__name__ = constructor.__qualname__ = _python_name(name)
    constructor.__doc__ = (
        f"{name}: `{model.__name__}` with {sizes}.\n\n"
        f"Takes every argument of `{model.__name__}`, by name.\n\n    {model.__init__.__doc__}"
    )
    constructor.__wrapped__ = model  # type: ignore[attr-defined]  # the signature that help() shows
    return constructor


def _python_name(name: str) -> str:
    return name.replace("/", "").replace("-", "").replace("+", "")


ViTTi16 = _named("ViT-Ti/16", VisionTransformer)
ViTS32 = _named("ViT-S/32", VisionTransformer)
ViTS16 = _named("ViT-S/16", VisionTransformer)
ViTB32 = _named("ViT-B/32", VisionTransformer)
ViTB16 = _named("ViT-B/16", VisionTransformer)
ViTB8 = _named("ViT-B/8", VisionTransformer)
ViTL32 = _named("ViT-L/32", VisionTransformer)
ViTL16 = _named("ViT-L/16", VisionTransformer)
ViTH14 = _named("ViT-H/14", VisionTransformer)
ViTg14 = _named("ViT-g/14", VisionTransformer)
ViTG14 = _named("ViT-G/14", VisionTransformer)
RViTTi16 = _named("R+ViT-Ti/16", VisionTransformer)
R26ViTS32 = _named("R26+ViT-S/32", VisionTransformer)
R26ViTB32 = _named("R26+ViT-B/32", VisionTransformer)
R50ViTB16 = _named("R50+ViT-B/16", VisionTransformer)
R50ViTL32 = _named("R50+ViT-L/32", VisionTransformer)
BiTR50x1 = _named("BiT-R50x1", BiTResNet)
BiTR50x3 = _named("BiT-R50x3", BiTResNet)
BiTR101x1 = _named("BiT-R101x1", BiTResNet)
BiTR101x3 = _named("BiT-R101x3", BiTResNet)
BiTR152x2 = _named("BiT-R152x2", BiTResNet)
BiTR152x4 = _named("BiT-R152x4", BiTResNet)
MixerS32 = _named("Mixer-S/32", MLPMixer)
MixerS16 = _named("Mixer-S/16", MLPMixer)
MixerS8 = _named("Mixer-S/8", MLPMixer)
MixerB32 = _named("Mixer-B/32", MLPMixer)
MixerB16 = _named("Mixer-B/16", MLPMixer)
MixerL32 = _named("Mixer-L/32", MLPMixer)
MixerL16 = _named("Mixer-L/16", MLPMixer)
MixerH14 = _named("Mixer-H/14", MLPMixer)
__all__ += [_python_name(name) for name in MODEL_NAMES]
