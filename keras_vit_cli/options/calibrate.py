"""The options of `keras-vit calibrate`."""

from dataclasses import dataclass
from pathlib import Path

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import Command, in_data, in_run
from keras_vit_cli.options.shared import BATCH, COVERAGE_RANGE, DATA_HELP

METHODS = (
    "lac",
    "aps",
    "aps_inclusive",
    "aps_randomized",
    "raps",
)  # as in keras_vit.tasks.conformal


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(shared.MapOptions):
    """The options of `keras-vit calibrate`."""

    model: Path = shared.model()
    data: str | None = in_data(
        f"images that the model was not trained on; {DATA_HELP} (default: the images that the run "
        "validated on)",
        None,
    )
    data_dir: str | None = shared.data_dir()
    max_pixels: int = shared.max_pixels()
    split: str | None = shared.split(
        "images to calibrate on; those that the model was made with are left out (default: val, or "
        "all of a folder that is not split)",
        choices=("all", "val", "test"),
    )
    coverage: float = in_run(
        "part of new images whose class is to be in the set, or whose number in the interval",
        0.95,
        COVERAGE_RANGE,
    )
    method: str = in_run(
        "which classes are in a set: those that are probable enough (lac, the smallest sets), or "
        "the most probable ones up to a sum of probabilities: aps_randomized (as torchcp), "
        "aps_inclusive (as MAPIE, never empty), aps (covers far more than asked for) and raps "
        "(with a penalty on many)",
        METHODS[0],
        choices=METHODS,
    )
    marginal: bool = in_run(
        "one threshold for all classes, where each class with enough images has its own by default",
        False,
    )
    out: Path | None = in_run(
        ".keras file to write (default: MODEL-calibrated.keras)", None, metavar="FILE"
    )
    overwrite: bool = in_run("replace a file that calibrate wrote earlier", False)
    batch_size: int = in_run("images per batch", 32, BATCH)


CALIBRATE = Command(
    CalibrateOptions,
    "make a model answer with sets of classes, or intervals, that hold the truth for a chosen part "
    "of new images",
    "keras-vit calibrate runs/photos --coverage 0.95",
)
