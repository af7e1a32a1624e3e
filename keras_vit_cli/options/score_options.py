"""Commands that score models on labeled images, or calibrate them by these: their options."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import (
    POSITIONAL,
    Command,
    Integers,
    UsageError,
    in_data,
    in_model,
    in_run,
)
from keras_vit_cli.options.shared import BATCH, COVERAGE_RANGE, DATA_HELP

# As in keras_vit.tasks.conformal.
METHODS = ("lac", "aps", "aps_inclusive", "aps_randomized", "raps")
MOST_MODELS = 8


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
    reader: str | None = shared.reader()
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


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(shared.MapOptions):
    """The options of `keras-vit evaluate`."""

    model: str = in_model(
        "a .keras or weights file, the folder of a training run, an exported file, or the "
        "released weights MODEL:TAG",
        name=POSITIONAL,
    )
    data: str | None = in_data(f"{DATA_HELP} (default: the images that the run validated on)", None)
    data_dir: str | None = shared.data_dir()
    max_pixels: int = shared.max_pixels()
    reader: str | None = shared.reader()
    decoder: str | None = shared.decoder()
    views: str | None = shared.views()
    windows: str | int | None = shared.windows()
    split: str | None = shared.split(
        "images to evaluate on; those that the model was made with are left out but of train "
        "(default: val, or all of a folder that is not split)",
        choices=("val", "test", "train", "all"),
    )
    batch_size: int = in_data("number of images per batch", 32, BATCH)
    probe: bool = in_run("fit a linear probe on the frozen features", False)
    knn: int | None = in_run(
        "classify by the K nearest neighbors (default of K: 20)",
        None,
        Integers(1, 100_000, "K"),
        nargs="?",
        const=20,
    )
    fewshot: tuple[int, ...] | None = in_run(
        "classify from this many examples per class, by least squares (default of SHOTS: 1 5 "
        "10 25)",
        None,
        Integers(1, 100_000, "SHOTS"),
        nargs="*",
    )
    seeds: int = in_run(
        "number of few-shot draws to average (default: 3)",
        MISSING,
        Integers(1, 1000),
        optional=True,
    )
    cache_dir: Path | None = in_run(
        "folder in which features are cached (default: in Keras's cache)", None, metavar="FOLDER"
    )
    out: Path | None = in_run("folder for the report as JSON and as a page", None, metavar="FOLDER")
    overwrite: bool = in_run("replace an earlier report in --out", False)


FEATURE_OPTIONS = ("probe", "knn", "fewshot")


def _check_features(options: dict[str, Any]) -> None:
    """Refuses what would be ignored, then fills in the defaults."""
    on_features = any(options[name] not in (None, False) for name in FEATURE_OPTIONS)
    for name, has_effect, needed in (
        ("seeds", options["fewshot"] is not None, "--fewshot"),
        ("cache_dir", on_features, "--probe, --knn or --fewshot"),
    ):
        if options[name] is not None and not has_effect:
            shown = name.replace("_", "-")
            raise UsageError(
                f"--{shown} has no effect without {needed} (see keras-vit evaluate -h)."
            )
    options["seeds"] = options["seeds"] or 3
    if options["overwrite"] and options["out"] is None:
        raise UsageError("--overwrite is about the report in --out: give --out.")
    if options["windows"] is not None and on_features:
        raise UsageError("--windows is for the model's own answers to pixels, not for features.")
    if options["out"] is not None and on_features:
        raise UsageError("--out keeps a report on the model's own answers, not on features.")
    if options["split"] in ("train", "all") and on_features:
        raise UsageError("--probe, --knn and --fewshot are fitted on train: give val or test.")


EVALUATE = Command(
    EvaluateOptions,
    "evaluate a model on its own classes, or its features on new ones (k-NN, linear probe, "
    "few-shot)",
    "keras-vit evaluate runs/photos --data photos/ --probe --knn 20 --fewshot 1 5 10 25",
    _check_features,
)


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


def _check_models(options: dict[str, Any]) -> None:
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
    _check_models,
)
