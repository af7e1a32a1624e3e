"""The options of `keras-vit predict`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, in_model, in_run
from keras_vit_cli.options.shared import CLASSES


@dataclass(frozen=True)
class PredictOptions:
    """The options of `keras-vit predict`."""

    model: Path = in_model(
        "a .keras or weights file, the folder of a training run, or an exported file",
        name=POSITIONAL,
    )
    files: tuple[Path, ...] = shared.images()
    max_pixels: int = shared.max_pixels()
    decoder: str | None = shared.decoder()
    views: str | None = shared.views()
    top: int = in_run("number of classes to print per image", 5, CLASSES)


PREDICT = Command(
    PredictOptions,
    "print the most probable classes of images",
    "keras-vit predict runs/photos photo.jpg",
)
