"""The options of `keras-vit inspect`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import Command, in_run
from keras_vit_cli.options.shared import CLASSES


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """The options of `keras-vit inspect`."""

    model: Path = shared.model()
    files: tuple[Path, ...] = shared.images()
    max_pixels: int = shared.max_pixels()
    out: Path = in_run("folder to write", metavar="FOLDER")
    overwrite: bool = in_run("replace the earlier page in --out", False)
    top: int = in_run("number of predicted classes per image", 5, CLASSES)
    method: str | None = in_run(
        "map of all layers: attribution, which is of a class, or rollout, which is of none "
        "(default: attribution, and rollout for a model without classes)",
        None,
        choices=("attribution", "rollout"),
    )
    for_class: str | None = in_run(
        "class that attribution explains (default: the one predicted for each image)",
        None,
        metavar="NAME",
    )


INSPECT = Command(
    InspectOptions,
    "plot what a model attends to in images, and collect the plots on one page",
    "keras-vit inspect runs/photos photo.jpg --out runs/photos/inspection",
)
