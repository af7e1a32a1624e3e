"""The options of `keras-vit pretrain`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import (
    POSITIONAL,
    Command,
    Integers,
    Numbers,
    UsageError,
    duration,
    in_data,
    in_model,
    in_recipe,
    in_run,
)
from keras_vit_cli.options.shared import BATCH, EPOCHS, PIXELS, RATE

NONE = "none"  # no weights, or no labels
AUTO = "auto"
BETTER, AFTER = KEPT = ("better", "after")


@dataclass(frozen=True, kw_only=True)
class PretrainOptions(shared.RunOptions, shared.TableOptions):
    """The options of `keras-vit pretrain`."""

    photos: Path = in_data(
        "a folder of images, with all folders in it; or a table, CSV, TSV, JSON lines or Parquet, "
        "with a column of files relative to its folder",
        metavar="PHOTOS",
        name=POSITIONAL,
    )
    labels: str | None = in_data(
        "table of the labels of some of the images, by which the weights are compared before and "
        "after: a CSV, TSV, JSON lines or Parquet file with a column of files; or none, with "
        "--keep after, where the folders are not classes (default: the folders' names)",
        None,
        metavar="FILE",
    )
    val_fraction: float = in_data(
        "fraction of the labeled images to compare by, where they do not have a validation split; "
        "they are not trained on",
        0.2,
        Numbers(0, 1, metavar="FRACTION"),
    )
    max_pixels: int = shared.max_pixels()
    reader: str | None = shared.reader()
    cache: int | None = in_data(
        "keep the images decoded on the disk, with a shorter side of at most so many pixels: twice "
        "the image size is good (default: in memory, where that takes less than 2 GiB)",
        None,
        PIXELS,
    )
    weights: str = in_model(
        "the weights to go on from: a .keras or weights file, the folder of a training run, or "
        "MODEL:TAG; none begins with random ones",
        metavar="FILE",
    )
    model: str | None = in_model(
        "name of the model for --weights none (default: ViT-Ti/16)", None, metavar="NAME"
    )
    image_size: int | None = in_model(
        "resize images to this height and width (default: the model's)", None, PIXELS
    )
    method: str = in_recipe(
        "what is learned: which image it is (diet); that views of an image are alike, and images "
        "are spread (visreg); or visreg from 5,000 images on without weights, and else diet (auto)",
        AUTO,
        choices=(AUTO, "diet", "visreg"),
    )
    blocks: int | None = in_recipe(
        "train this many of the last blocks, after the head alone; all of them without weights "
        "(default: 2)",
        None,
        Integers(1, 1000),
    )
    epochs: int | None = in_recipe(
        "number of passes over the images (default: 150; without weights 1000, or 200 of visreg)",
        None,
        EPOCHS,
    )
    budget: float | None = in_recipe(
        "time that training may take, about: 90s, 10m, 2h; fewer epochs where that is too little",
        None,
        metavar="TIME",
        type=duration,
    )
    batch_size: int | None = in_recipe(
        "number of images per batch, of each of which visreg has four views (default: 32, or 64 of "
        "visreg)",
        None,
        BATCH,
    )
    learning_rate: float | None = in_recipe(
        "peak learning rate; 0.0005 suits small models (default: 0.0001; without weights 0.001)",
        None,
        RATE,
    )
    out: Path = in_run(
        "folder to write, with the model that is kept and the report", metavar="FOLDER"
    )
    keep: str = in_run(
        "keep the weights after training where they are measurably better (better), or in any case "
        "(after), which needs no labels",
        BETTER,
        choices=KEPT,
    )


def _check(options: dict[str, Any]) -> None:
    is_new = options["weights"] == NONE
    if options["model"] and not is_new:
        raise UsageError(
            "--model has no effect with --weights FILE, which has the architecture: leave one of "
            "them out, or give --weights none."
        )
    if options["blocks"] and is_new:
        raise UsageError(
            "--blocks has no effect with --weights none, where the whole model is trained: leave "
            "it out."
        )
    if options["labels"] == NONE and options["keep"] == BETTER:
        raise UsageError(
            "--keep better compares the weights before and after by labels, and --labels none has "
            "none: give a table of some, or --keep after."
        )


PRETRAIN = Command(
    PretrainOptions,
    "train weights further on images without labels, and keep them where labels of some show that "
    "they are better",
    "keras-vit pretrain photos/ --weights ViT-Ti/16:augreg_in21k_ft_in1k --out pretrained",
    _check,
)
