"""The options of `keras-vit export`."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import Command, UsageError, in_data, in_model, in_run, percent
from keras_vit_cli.options.shared import PIXELS

ON_TORCH = ("torch", "executorch", "coreml")  # what is written there
EXPORT_FORMATS = ("tf_saved_model", "onnx", "litert", "openvino", "html", *ON_TORCH)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """The options of `keras-vit export`."""

    data: str | None = in_data(
        "labeled images, as for train: calibrates --quantize int8 on the training images, "
        "compares the accuracy of model and file on the others, and lists whose answer changes "
        "(--quantize auto: default, the images that the run validated on)",
        None,
    )
    data_dir: str | None = shared.data_dir()
    decoder: str | None = shared.decoder()
    model: Path = shared.model()
    image_size: int | None = in_model(
        "resize images to this height and width (default: the model's)", None, PIXELS
    )
    format: str = in_run(
        "what to write: tf_saved_model and openvino are folders, onnx is a .onnx file, litert "
        "a .tflite file, torch a .pt2 file, executorch a .pte file, coreml a .mlpackage folder for "
        "Macs and iPhones, html a page for browsers, a folder where --out lacks a suffix",
        "tf_saved_model",
        choices=EXPORT_FORMATS,
    )
    quantize: str | None = in_run(
        "weights in eight bits, a quarter of the size, in float16, or mixed: float16 in the first "
        "and the last block and around them, int8 between; auto tries what the format has and "
        "keeps the smallest that holds --max-flips: onnx, html and, but for mixed, litert and "
        "openvino; executorch and, without auto, coreml: int8 alone",
        None,
        choices=("int8", "mixed", "float16", "auto"),
    )
    max_flips: float = in_run(
        "of --quantize auto: the largest part of the images that may get another class, labels or "
        "grade (default: one percent)",
        MISSING,
        optional=True,
        type=percent,
        metavar="PERCENT",
    )
    out: Path = in_run(
        "file or folder to write, such as photos.tflite or saved_models/NAME/VERSION",
        metavar="PATH",
    )
    runtime: Path | None = in_run(
        "of html: the npm package onnxruntime-web, a .tgz file (default: its files in Keras's "
        "cache, into which they are downloaded once)",
        None,
        metavar="FILE",
    )
    triton: bool = in_run(
        "of onnx: with --out REPOSITORY/NAME/VERSION/model.onnx, also write config.pbtxt, by which "
        "Triton serves it",
        False,
    )
    debug: bool = in_run(
        "also return the features of each block, by which keras-vit check names the first one that "
        "an engine computes otherwise",
        False,
    )
    overwrite: bool = in_run("replace the earlier export in --out", False)


def _check(options: dict[str, Any]) -> None:
    """Refuses what would be ignored, then fills in the default."""
    if options["max_flips"] is not None and options["quantize"] != "auto":
        raise UsageError(
            "--max-flips has no effect without --quantize auto (see keras-vit export -h)."
        )
    if options["triton"] and options["format"] != "onnx":
        raise UsageError("--triton is for --format onnx (see keras-vit export -h).")
    if options["max_flips"] is None:
        options["max_flips"] = 0.01


EXPORT = Command(
    ExportOptions,
    "write a file that other engines run: SavedModel, ONNX, LiteRT, OpenVINO, torch or a page",
    "keras-vit export runs/photos --format onnx --out photos.onnx",
    _check,
)
