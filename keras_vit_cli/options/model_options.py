"""Commands that make, export, check or name models: their options."""

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
    in_recipe,
    in_run,
    percent,
)
from keras_vit_cli.options.shared import BATCH, EXPORTED_HELP, PIXELS


@dataclass(frozen=True)
class ConvertOptions:
    """The options of `keras-vit convert`."""

    source: str = in_model(
        "a weights file, a folder of transformers or timm, or the released weights MODEL:TAG",
        metavar="IN",
        name=POSITIONAL,
    )
    target: Path = in_model(
        "file to write; with --layout huggingface or timm also a folder, which transformers "
        "or timm opens as it is",
        metavar="OUT",
        name=POSITIONAL,
    )
    layout: str | None = in_model(
        "tensor names and shapes: google, big_vision, timm, huggingface or dino_linear_head", None
    )
    overwrite: bool = in_run("replace a file that convert wrote earlier", False)


CONVERT = Command(
    ConvertOptions,
    "write weights in another layout, and report how each tensor was handled",
    "keras-vit convert ViT-B_16.npz vit.safetensors --layout timm",
)


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """The options of `keras-vit average`."""

    models: tuple[Path, ...] = in_model(
        "two or more .keras or weights files, or folders of training runs, all fine-tuned "
        "from the same weights",
        metavar="MODEL",
        name=POSITIONAL,
    )
    start: str | None = in_model(
        "the weights that all of them started from, a file or MODEL:TAG: draw the average "
        "toward them, as far as the runs disagree (Model Stock)",
        None,
    )
    out: Path = in_run(".keras file to write", metavar="FILE")
    overwrite: bool = in_run("replace a file that average or convert wrote earlier", False)


AVERAGE = Command(
    AverageOptions,
    "average the weights of fine-tuned models of one origin into one model of the same size",
    "keras-vit average runs/seed0 runs/seed1 runs/seed2 --out runs/soup.keras",
)


# Modes of `keras_vit.data.EvalTransform` that a model does not take from another package.
TRANSFORMS = ("crop", "stretch", "stretch_bicubic")


@dataclass(frozen=True, kw_only=True)
class CombineOptions:
    """The options of `keras-vit combine`."""

    eval_transform: str | None = in_data(
        "how images are prepared for all heads: the middle of an image, or all of it, which masks "
        "and depth need (default: as in the runs, which then have to agree)",
        None,
        choices=TRANSFORMS,
    )
    models: tuple[Path, ...] = in_model(
        "two or more .keras or weights files, or folders of training runs, whose heads were "
        "trained on one frozen encoder",
        metavar="RUN",
        name=POSITIONAL,
    )
    names: tuple[str, ...] | None = in_model(
        "a name for each head, which its outputs, columns and file begin with (default: what each "
        "run predicts, such as segmentation; of two that predict alike, the names of the runs)",
        None,
        metavar="NAME",
    )
    out: Path = in_run("folder to write", metavar="FOLDER")
    overwrite: bool = in_run("replace a folder that combine wrote earlier", False)


def _check_names(options: dict[str, Any]) -> None:
    models, names = options["models"], options["names"]
    if names is not None and len(names) != len(models):
        raise UsageError(f"--names has {len(names)} for {len(models)} runs: give one for each")


COMBINE = Command(
    CombineOptions,
    "join the heads of several runs on the frozen encoder that they share: all answers in one pass",
    "keras-vit combine runs/photos runs/masks --eval-transform stretch --out runs/both",
    _check_names,
)


ON_TORCH = ("torch", "executorch", "coreml")  # what is written there
EXPORT_FORMATS = ("tf_saved_model", "onnx", "litert", "openvino", "html", *ON_TORCH)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(shared.MapOptions):
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
    format: str | None = in_run(
        "what to write: tf_saved_model and openvino are folders, onnx is a .onnx file, litert "
        "a .tflite file, torch a .pt2 file, executorch a .pte file, coreml a .mlpackage folder for "
        "Macs and iPhones, html a page for browsers, a folder where --out lacks a suffix "
        "(default: by the suffix of --out, else tf_saved_model)",
        None,
        choices=EXPORT_FORMATS,
    )
    quantize: str | None = in_run(
        "weights in eight bits, about a third of the size, in float16, or mixed: float16 in the "
        "first and the last block and around them, int8 between; auto tries what the format has "
        "and keeps the smallest that holds --max-flips: onnx, html and, but for mixed, litert and "
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


def _check_export(options: dict[str, Any]) -> None:
    """Refuses what would be ignored, then fills in the default."""
    if options["max_flips"] is not None and options["quantize"] != "auto":
        raise UsageError(
            "--max-flips has no effect without --quantize auto (see keras-vit export -h)."
        )
    if options["labels"] is not None and options["data"] is None:
        raise UsageError("--labels has no effect without --data (see keras-vit export -h).")
    if options["triton"] and options["format"] not in (None, "onnx"):
        raise UsageError("--triton is for --format onnx (see keras-vit export -h).")
    if options["max_flips"] is None:
        options["max_flips"] = 0.01


EXPORT = Command(
    ExportOptions,
    "write a file that other engines run: SavedModel, ONNX, LiteRT, OpenVINO, torch or a page",
    "keras-vit export runs/photos --format onnx --out photos.onnx",
    _check_export,
)


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """The options of `keras-vit check`."""

    file: Path = in_model(
        f"{EXPORTED_HELP}, or a folder of keras-vit convert for transformers or timm",
        name=POSITIONAL,
    )
    engine: str | None = in_run(
        "what runs the file (default: the engine of its format); ONNX: onnxruntime, openvino, "
        "openvino-bf16 or onnx, its definitions in NumPy; LiteRT: ai-edge-litert or tensorflow; "
        "OpenVINO: openvino or openvino-bf16",
        None,
        metavar="NAME",
    )


CHECK = Command(
    CheckOptions,
    "run an exported file on the images that it carries, and compare with its model's answers; "
    "status 1 where it differs",
    "keras-vit check runs/photos/saved_models/photos/1",
)


@dataclass(frozen=True)
class PlanOptions:
    """The options of `keras-vit plan`."""

    model: str = in_model(
        "name of a model, such as ViT-B/16 or vit_base_patch16_384", name=POSITIONAL
    )
    image_size: int | None = in_model(
        "height and width of the images (default: those in the name, else 224)", None, PIXELS
    )
    num_classes: int | None = in_model(
        "number of classes; 0 for a model without a head (default: that of the name, else 1000)",
        None,
        Integers(0, 1000000),
    )
    precision: str = shared.precision()
    batch_size: int = in_recipe("number of images per batch", 32, BATCH)
    remat: bool = in_recipe("recompute activations in the backward pass, to save memory", False)


PLAN = Command(
    PlanOptions,
    "print the parameters, operations and memory of a model, without building it",
    "keras-vit plan ViT-L/16 --image-size 384 --batch-size 32",
)


@dataclass(frozen=True)
class ListOptions:
    """The options of `keras-vit list`."""

    pattern: str = in_model(
        "list only names that match this shell pattern, such as 'ViT-B*'; with --weights also "
        "a model, or a part of a name, such as dinov2",
        "*",
        name=POSITIONAL,
        nargs="?",
    )
    weights: bool = in_model("list released weights in place of models", False)


LIST = Command(
    ListOptions,
    "list the models, or the released weights",
    "keras-vit list --weights dinov2",
)
