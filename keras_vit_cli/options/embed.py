"""The options of `keras-vit embed`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, in_data, in_model, in_run
from keras_vit_cli.options.shared import BATCH


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """The options of `keras-vit embed`."""

    photos: Path = in_data(
        "a folder of images, with all folders in it; or a table, CSV, TSV, JSON lines or Parquet, "
        "with a column of files relative to its folder; with --ray also s3://BUCKET/FOLDER",
        metavar="PHOTOS",
        name=POSITIONAL,
    )
    max_pixels: int = shared.max_pixels()
    decoder: str | None = shared.decoder()
    model: Path = in_model(
        "a .keras or weights file, the folder of a training run, or MODEL:TAG", metavar="MODEL"
    )
    layer: str = in_model(
        "the layer whose features are stored, such as pre_logits, pooled or block_8",
        "pre_logits",
        metavar="NAME",
    )
    pooling: str | None = in_model(
        "what becomes of a layer with a vector per token: the mean of the patches, or the class "
        "token",
        None,
        choices=("mean", "token"),  # as in keras_vit.curation.photo_encoder
    )
    out: Path = in_run(
        "folder of the index; where there is one, new and changed files are added, and files that "
        "are gone are left out. A name that ends in .parquet is a table with a row per image, as "
        "predict writes, and the index is made beside it",
        metavar="FOLDER",
    )
    dtype: str = in_run(
        "how numbers are stored: float16 takes half the space, and keeps 11 bits of each",
        "float16",
        choices=("float16", "float32"),
    )
    batch_size: int = in_run("images per batch", 32, BATCH)
    ray: str | None = shared.ray()


EMBED = Command(
    EmbedOptions,
    "compute the features of images once, as an index that other commands search and audit",
    "keras-vit embed photos/ --model runs/photos --out index",
    lambda options: shared.check_is_here(options["out"]),
)
