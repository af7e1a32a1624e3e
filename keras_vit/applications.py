"""Models by name, with random or released weights: `create`, and a function per named size."""

import re
from pathlib import Path
from typing import Any, Protocol, TypeVar

from keras.config import image_data_format

from keras_vit._base.errors import accepted_arguments, printable
from keras_vit.models import (
    MODEL_NAMES,
    BiTResNet,
    ImageModel,
    MLPMixer,
    VisionTransformer,
    family_of,
    model_arguments,
    named_model,
)
from keras_vit.models.geometry import image_shape
from keras_vit.weights import arguments_for, load_weights
from keras_vit.weights.containers.sums import check_file

M = TypeVar("M", bound=ImageModel, covariant=True)


def create(
    name: str,
    *,
    weights: str | Path | None = None,
    sha256: str | None = None,
    **arguments: Any,
) -> ImageModel:
    """Return a model by its name, with any argument of its class.

    Names of timm (`"vit_base_patch16_224"`) and of Hugging Face repositories
    (`"google/vit-base-patch16-224"`) are accepted as well: the model is ours of the same
    architecture, with that name's image size, activation, epsilon, normalization, registers and
    number of classes, unless they are given. Like every model without `weights`, it starts from
    random weights.

    Args:
        name: Such as `"ViT-B/16"`.
        weights: None; or the tag of released weights (`keras_vit.list_weights`); or a file to load
            (`keras_vit.load_weights`). Activation, epsilon, normalization and pooling follow the
            weights unless they are given; the model's `load_report` has how each tensor was
            handled.
        sha256: The sum that the file given as `weights` must have.
        **arguments: Any argument of the model's class.

    Raises:
        ValueError: The name or an argument is unknown, or out of range, or the weights are of
            another kind of model.

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
    if weights is not None:
        if sha256 is not None:
            check_file(Path(weights).expanduser(), sha256)
        of_file = arguments_for(weights, **{**sizes, **arguments})
        if others := sorted({*of_file} - {*accepted_arguments(family_of(name).model)}):
            raise ValueError(
                f"{printable(weights)} holds the weights of another kind of model than {name}, "
                f"with {', '.join(others)}. Leave the name out: keras_vit.load(file) builds the "
                "model that the file is of."
            )
        sizes |= of_file
    label = re.sub(r"\W", "_", name.lower())
    model = family_of(name).model(**{"name": label, **sizes, **arguments})
    if weights is not None:
        model.load_report = load_weights(model, weights)
    return model


class Constructor(Protocol[M]):
    """A constructor of one row of the table of sizes."""

    def __call__(
        self, *, weights: str | Path | None = None, sha256: str | None = None, **arguments: Any
    ) -> M: ...


def _named(name: str, model: type[M]) -> Constructor[M]:
    """Return the constructor of one row of the table: `ViTB16` for `"ViT-B/16"`."""

    def constructor(
        *positional: Any,
        weights: str | Path | None = None,
        sha256: str | None = None,
        **arguments: Any,
    ) -> M:
        if positional:
            raise ValueError(
                f"{constructor.__name__} takes named arguments only: "
                f"{constructor.__name__}(num_classes={positional[0]!r})?"
            )
        return create(name, weights=weights, sha256=sha256, **arguments)  # type: ignore[return-value]

    sizes = ", ".join(f"{k}={v}" for k, v in model_arguments(name).items())
    constructor.__name__ = constructor.__qualname__ = constructor_name(name)
    constructor.__doc__ = (
        f"{name}: `{model.__name__}` with {sizes}.\n\n"
        f"Takes every argument of `{model.__name__}`, by name, and `weights` and `sha256` as "
        f"`keras_vit.create`.\n\n    {model.__init__.__doc__}"
    )
    return constructor


def constructor_name(name: str) -> str:
    """Return the function of a named size: `ViTB16` for `"ViT-B/16"`."""
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
__all__ = ["create", *map(constructor_name, MODEL_NAMES)]
