"""The options of `keras-vit augment`."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import Command, in_data, in_recipe, in_run
from keras_vit_cli.options.shared import DATA_HELP, PIXELS, SEED, SOME

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".pdf", ".svg")


def image_file(text: str) -> Path:
    """Return the path of an image file to write, as the type of an option."""
    path = Path(text)
    if path.suffix.lower() not in IMAGE_SUFFIXES or path.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an image file. Give one that ends in {', '.join(IMAGE_SUFFIXES)}."
        )
    return path


@dataclass(frozen=True, kw_only=True)
class AugmentOptions(shared.MapOptions):
    """The options of `keras-vit augment`."""

    data: str = in_data(DATA_HELP)
    data_dir: str | None = shared.data_dir()
    max_pixels: int = shared.max_pixels()
    reader: str | None = shared.reader()
    images: int = in_data("number of images to plot, one per row", 6, SOME)
    versions: int = in_data("number of augmented versions per image", 7, SOME)
    recipe: str | None = in_recipe(
        "training recipe that sets augmentation, Mixup and CutMix (default: small_data)",
        None,
    )
    augment: tuple[str, ...] | None = shared.augment()
    image_size: int | None = in_recipe(
        "resize images to this height and width (default: the recipe's)", None, PIXELS
    )
    seed: int = in_recipe("seed of the augmentation", 0, SEED)
    out: Path = in_run("image file to write, such as sheet.png", metavar="FILE", type=image_file)
    overwrite: bool = in_run("replace the earlier plot in --out", False)


AUGMENT = Command(
    AugmentOptions,
    "plot augmented images, as the network sees them in training",
    "keras-vit augment --data photos/ --recipe augreg/medium1 --out sheet.png",
)
