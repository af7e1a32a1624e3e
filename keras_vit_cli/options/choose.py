"""The options of `keras-vit choose`."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, Integers, in_data, in_model, in_run
from keras_vit_cli.options.shared import BATCH, PIXELS


@dataclass(frozen=True, kw_only=True)
class ChooseOptions(shared.MapOptions):
    """The options of `keras-vit choose`."""

    photos: Path = in_data(
        "the folder of labeled images that keras-vit train would train on, with CLASS/*.jpg, or "
        "with --labels; what it holds out for validation takes no part",
        metavar="PHOTOS",
        name=POSITIONAL,
    )
    labels: str | None = in_data(
        "table of the labels of the images in PHOTOS: a CSV, TSV, JSON lines or Parquet file with "
        "a column of files (default: the folders' names)",
        None,
        metavar="FILE",
    )
    images: int = in_data(
        "compare on at most this many images, drawn in proportion to the labels",
        10_000,
        Integers(10, 1_000_000_000),
    )
    max_pixels: int = shared.max_pixels()
    decoder: str | None = shared.decoder()
    among: tuple[str, ...] = in_model(
        "what to choose among: .keras or weights files, folders of training runs, or MODEL:TAG",
        metavar="FILE",
    )
    layers: tuple[str, ...] | None = in_model(
        "layers whose features are compared, such as pre_logits or block_8 (default: pre_logits)",
        None,
        metavar="NAME",
    )
    poolings: tuple[str, ...] | None = in_model(
        "what becomes of a layer with a vector per token: the mean of the patches, the class "
        "token, or each of them (default: mean)",
        None,
        choices=("mean", "token"),  # as in keras_vit.curation.photo_encoder
    )
    sizes: tuple[int, ...] | None = in_model(
        "heights and widths of the images (default: each model's)", None, PIXELS
    )
    out: Path = in_run(
        "folder to write, with choice.csv and choice.png; the features are kept in the cache, so "
        "that a killed or repeated call computes what is missing alone",
        metavar="FOLDER",
    )
    overwrite: bool = in_run("replace what this command wrote to --out before", False)
    neighbors: int = in_run("nearest neighbors that vote", 20, Integers(1, 100_000))
    batch_size: int = in_run("images per batch", 32, BATCH)


CHOOSE = Command(
    ChooseOptions,
    "compare weights, layers and image sizes by what their features know of your labels",
    "keras-vit choose photos --among ViT-Ti/16:augreg_in21k_ft_in1k ViT-S/16:augreg_in21k "
    "--out choice",
    partial(shared.check_table, "choose"),
)
