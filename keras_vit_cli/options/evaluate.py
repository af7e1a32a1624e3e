"""The options of `keras-vit evaluate`."""

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
from keras_vit_cli.options.shared import BATCH, DATA_HELP


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


def _check(options: dict[str, Any]) -> None:
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
    _check,
)
