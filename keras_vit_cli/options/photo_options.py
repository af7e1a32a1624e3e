"""Commands that make an index of images, or find something in it or by it: their options."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, Integers, in_data, in_model, in_run
from keras_vit_cli.options.shared import BATCH, PIXELS, SEED, IndexOptions


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


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of `keras-vit search`."""

    index: Path = in_data("the folder that keras-vit embed wrote", metavar="INDEX", name=POSITIONAL)
    files: tuple[Path, ...] = shared.images()
    model: Path | None = in_model(
        "the model that made the index (default: where the index notes that it was)",
        None,
        metavar="MODEL",
    )
    top: int = in_run("number of results per image", 12, Integers(1, 1000))
    out: Path | None = in_run(
        "HTML page to write, and a CSV file beside it (default: a table is printed)",
        None,
        metavar="PAGE.html",
    )
    overwrite: bool = in_run("replace the earlier page in --out", False)


SEARCH = Command(
    SearchOptions,
    "find the images of an index that are most like other ones",
    "keras-vit search index photo.jpg --out similar.html",
)


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """The options of `keras-vit cluster`."""

    index: Path = in_data("the folder that keras-vit embed wrote", metavar="INDEX", name=POSITIONAL)
    clusters: int | None = in_run(
        "number of clusters (default: the best silhouette of 2 to 6, 8, 10, 12, 15, 20, 25 and 30)",
        None,
        Integers(2, 10_000),
    )
    examples: int = in_run("images of each cluster on the page", 12, Integers(1, 100))
    seed: int = in_run("where the clusters start", 0, SEED)
    out: Path = in_run("HTML page to write, and a CSV file beside it", metavar="PAGE.html")
    overwrite: bool = in_run("replace the earlier page in --out", False)


CLUSTER = Command(
    ClusterOptions,
    "sort the images of an index into groups of similar ones",
    "keras-vit cluster index --out clusters.html",
)


@dataclass(frozen=True, kw_only=True)
class AuditOptions(IndexOptions):
    """The options of `keras-vit audit`."""

    masks: Path | None = in_data(
        "the masks of the images in PHOTOS, as train's --labels takes them: find those that are "
        "probably wrong, and nothing else",
        None,
        metavar="MASKS",
    )
    decisions: Path | None = in_data(
        "the CSV file that the page downloads: write the cleaned lists by it, and nothing else",
        None,
        metavar="FILE",
    )
    most: int = in_run(
        "images of each kind on the page; the table has all", 100, Integers(1, 10_000)
    )
    seed: int = in_run("which images are in which fold of the probes", 0, SEED)
    out: Path = in_run("folder of the page, the table and the cleaned lists", metavar="FOLDER")
    overwrite: bool = in_run("replace the earlier audit in --out", False)


AUDIT = Command(
    AuditOptions,
    "find wrong labels, duplicates, outliers and bad images, and decide on them on a page",
    "keras-vit audit photos --model runs/photos --out audit",
)


@dataclass(frozen=True, kw_only=True)
class LabelOptions(IndexOptions):
    """The options of `keras-vit label`."""

    labels: Path | None = in_data(
        "table with the labels that there are: the page's labels.csv, or any that train --labels "
        "reads, with one class per image; images with an empty label count as not labeled",
        None,
        metavar="FILE",
    )
    classes: tuple[str, ...] = in_data(
        "names of classes to label with; others can be added on the page (default: those of "
        "--labels)",
        (),
        metavar="NAME",
    )
    count: int = in_run("how many images to choose", 50, Integers(1, 10_000))
    seed: int = in_run("where clusters start, and which features are dropped", 0, SEED)
    out: Path = in_run("folder of the page and the table", metavar="FOLDER")
    overwrite: bool = in_run("replace the earlier page and table in --out", False)


LABEL = Command(
    LabelOptions,
    "choose the images whose labels teach a classifier most, and label them on a page",
    "keras-vit label photos --model ViT-Ti/16:augreg_in21k_ft_in1k --count 50 --out label",
)


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
)
