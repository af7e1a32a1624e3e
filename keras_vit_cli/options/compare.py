"""The options of `keras-vit compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, UsageError, in_data, in_model, in_run
from keras_vit_cli.options.shared import BATCH, DATA_HELP

MOST_MODELS = 8


@dataclass(frozen=True, kw_only=True)
class CompareOptions(shared.TableOptions):
    """The options of `keras-vit compare`."""

    models: tuple[str, ...] = in_model(
        "two to eight training runs, .keras files or exported files of one task; each is compared "
        "with the first",
        metavar="MODEL",
        name=POSITIONAL,
    )
    data: str | None = in_data(
        f"{DATA_HELP} (default: the images that the first run validated on)", None
    )
    data_dir: str | None = shared.data_dir()
    max_pixels: int = shared.max_pixels()
    reader: str | None = shared.reader()
    split: str | None = shared.split(
        "images to compare on; those that any of the models was made with are left out (default: "
        "val, or all of a folder that is not split)",
        choices=("val", "test", "all"),
    )
    batch_size: int = in_data("number of images per batch", 32, BATCH)
    out: Path = in_run("folder for the page", metavar="FOLDER")
    overwrite: bool = in_run("replace an earlier page in --out", False)


def _check(options: dict[str, Any]) -> None:
    models = options["models"]
    if not 2 <= len(models) <= MOST_MODELS:
        raise UsageError(
            f"{len(models)} model{'s' * (len(models) != 1)} given: give two to {MOST_MODELS}, such "
            "as runs/before runs/after."
        )
    twice = sorted({model for model in models if models.count(model) > 1})
    if twice:
        raise UsageError(f"{twice[0]} is given twice: give each model once.")


COMPARE = Command(
    CompareOptions,
    "compare models on the same new images: paired differences, the images on which they differ",
    "keras-vit compare runs/before runs/after --data photos/ --out comparison",
    _check,
)
