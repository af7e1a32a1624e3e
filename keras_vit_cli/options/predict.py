"""The options of `keras-vit predict`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import POSITIONAL, Command, UsageError, in_data, in_model, in_run
from keras_vit_cli.options.shared import BATCH, CLASSES

FORMATS = ("table", "csv", "jsonl", "parquet")


@dataclass(frozen=True)
class PredictOptions:
    """The options of `keras-vit predict`."""

    model: Path = in_model(
        "a .keras or weights file, the folder of a training run, or an exported file",
        name=POSITIONAL,
    )
    files: tuple[Path, ...] = in_data(
        "image files; folders, with all folders in them; patterns such as 'photos/**/*.jpg'; "
        "tables with a column of files; @list.txt, a file with a path per line; or - for such a "
        "list on standard input",
        metavar="IMAGE",
        name=POSITIONAL,
    )
    max_pixels: int = shared.max_pixels()
    decoder: str | None = shared.decoder()
    views: str | None = shared.views()
    windows: str | int | None = shared.windows()
    top: int = in_run("number of classes to print per image", 5, CLASSES)
    format: str = in_run(
        "how answers are printed or written (default: that of the suffix of --out, else table)",
        None,
        choices=FORMATS,
    )
    out: Path | None = in_run(
        "file to write, .csv, .jsonl or .parquet (default: standard output)", None, metavar="FILE"
    )
    maps: Path | None = in_run(
        "folder for the answers to every pixel, at the size of each image: PNG files with the "
        "number of a class in each; of depth, TIFF files of floats, and PNG files of their colors",
        None,
        metavar="FOLDER",
    )
    resume: bool = in_run(
        "go on with the .csv or .jsonl file of an earlier call: its images are left out", False
    )
    batch_size: int = in_run("images per batch", 32, BATCH)
    ray: str | None = shared.ray()


def _check(options: dict[str, Any]) -> None:
    """Finds the format, and refuses what a format cannot do."""
    out, format = options["out"], options["format"]
    if format is None:
        format = "table" if out is None else out.suffix.lower().removeprefix(".")
        if format not in FORMATS:
            raise UsageError(f"--out {out} does not end in .csv, .jsonl or .parquet: give --format")
    if format == "table" and out is not None:
        raise UsageError("--format table is printed: leave --out out, or give csv, jsonl, parquet")
    if format == "parquet" and out is None:
        raise UsageError("--format parquet is not printed: give --out FILE")
    if options["resume"] and (out is None or format == "parquet"):
        raise UsageError("--resume goes on with a file: give --out FILE.csv or FILE.jsonl")
    if options["ray"] is not None and (options["maps"] or options["windows"]):
        raise UsageError("--ray does not make maps: leave --ray out, or --maps and --windows")
    shared.check_is_here(out)
    options["format"] = format


PREDICT = Command(
    PredictOptions,
    "print or write what a model answers for images",
    "keras-vit predict runs/photos photos/ --out answers.csv",
    _check,
)
