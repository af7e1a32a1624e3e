"""The options of `keras-vit audit`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options.option import Command, Integers, in_data, in_run
from keras_vit_cli.options.shared import SEED, IndexOptions

SHOWN = Integers(1, 10_000)


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
    most: int = in_run("images of each kind on the page; the table has all", 100, SHOWN)
    seed: int = in_run("which images are in which fold of the probes", 0, SEED)
    out: Path = in_run("folder of the page, the table and the cleaned lists", metavar="FOLDER")
    overwrite: bool = in_run("replace the earlier audit in --out", False)


AUDIT = Command(
    AuditOptions,
    "find wrong labels, duplicates, outliers and bad images, and decide on them on a page",
    "keras-vit audit photos --model runs/photos --out audit",
)
