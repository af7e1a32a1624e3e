"""The options of `keras-vit plan`."""

from dataclasses import dataclass

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, Integers, in_model, in_recipe
from keras_vit_cli.options.shared import BATCH, PIXELS


@dataclass(frozen=True)
class PlanOptions:
    """The options of `keras-vit plan`."""

    model: str = in_model(
        "name of a model, such as ViT-B/16 or vit_base_patch16_384", name=POSITIONAL
    )
    image_size: int | None = in_model(
        "height and width of the images (default: those in the name, else 224)", None, PIXELS
    )
    num_classes: int | None = in_model(
        "number of classes; 0 for a model without a head (default: that of the name, else 1000)",
        None,
        Integers(0, 1000000),
    )
    precision: str = shared.precision()
    batch_size: int = in_recipe("number of images per batch", 32, BATCH)
    remat: bool = in_recipe("recompute activations in the backward pass, to save memory", False)


PLAN = Command(
    PlanOptions,
    "print the parameters, operations and memory of a model, without building it",
    "keras-vit plan ViT-L/16 --image-size 384 --batch-size 32",
)
