"""The options of `keras-vit label`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options.option import Command, Integers, in_data, in_run
from keras_vit_cli.options.shared import SEED, IndexOptions

COUNT = Integers(1, 10_000)


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
    count: int = in_run("how many images to choose", 50, COUNT)
    seed: int = in_run("where clusters start, and which features are dropped", 0, SEED)
    out: Path = in_run("folder of the page and the table", metavar="FOLDER")
    overwrite: bool = in_run("replace the earlier page and table in --out", False)


LABEL = Command(
    LabelOptions,
    "choose the images whose labels teach a classifier most, and label them on a page",
    "keras-vit label photos --model ViT-Ti/16:augreg_in21k_ft_in1k --count 50 --out label",
)
