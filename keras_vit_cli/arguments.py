"""The command line's options as a table, and their ranges. Imports neither Keras nor keras_vit."""

import argparse
import difflib
import math
import re
import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
DISTRIBUTIONS = ("data_parallel", "fsdp", "tensor_parallel")  # as in keras_vit.distribution
EXPORT_FORMATS = ("tf_saved_model", "onnx", "litert", "openvino", "torch")
VIEWS = ("one", "flip", "crops")  # as in keras_vit.models.views
DECODERS = ("tensorflow", "pillow")  # as in keras_vit.data
AUGMENTATIONS = ("inception", "randaugment", "transfer", "tiny", "digits", "none")  # likewise
DISTILLATIONS = ("soft", "hard")  # as in keras_vit.Distillation
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".pdf", ".svg")
MAX_PIXELS = 2**26  # as in keras_vit.data, which cannot be imported here
CHECKPOINT_SECONDS = 60.0  # as in keras_vit.training.resume


class UsageError(ValueError):
    """Arguments that the command line does not accept."""


@dataclass(frozen=True)
class Integers:
    """Integers from `low` to `high`, both included, as the type of an option."""

    low: int
    high: int

    def __call__(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = self.low - 1
        if not self.low <= number <= self.high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not accepted. Give an integer from {self.low} to {self.high:,}."
            )
        return number


@dataclass(frozen=True)
class Numbers:
    """Numbers between `low` and `high`, both excluded, as the type of an option.

    With `or_low`, `low` itself is accepted, too.
    """

    low: float
    high: float
    or_low: bool = False

    def __call__(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        is_low = self.or_low and number == self.low
        if not (is_low or self.low < number < self.high):  # NaN is not, either
            begin = f"from {self.low:g} to" if self.or_low else f"above {self.low:g} and"
            raise argparse.ArgumentTypeError(
                f"{text!r} is not accepted. Give a number {begin} below {self.high:g}."
            )
        return number


# Every option that is a number, whichever commands have it. The upper ends are far above what
# anyone trains and below what a slip of the keyboard would allocate.
RANGES: dict[str, Integers | Numbers] = {
    "--accumulate": Integers(1, 4096),
    "--batch-size": Integers(1, 65_536),
    "--checkpoint-every": Numbers(0, 1_000_000, or_low=True),
    "--devices": Integers(1, 65_536),
    "--epochs": Integers(1, 1_000_000),
    "--fewshot": Integers(1, 100_000),
    "--held-out": Numbers(0, 1, or_low=True),
    "--image-size": Integers(1, 4096),
    "--images": Integers(1, 100),
    "--knn": Integers(1, 100_000),
    "--learning-rate": Numbers(0, 100),
    "--learning-rates": Numbers(0, 100),
    "--lora": Integers(1, 4096),
    "--max-bytes": Integers(1, 2**40),
    "--max-pixels": Integers(1, 1_000_000_000_000),
    "--num-classes": Integers(0, 1_000_000),
    "--patience": Integers(1, 1_000_000),
    "--port": Integers(0, 65_535),
    "--queue": Integers(1, 65_536),
    "--seed": Integers(0, 2**31 - 1),
    "--seeds": Integers(1, 1000),
    "--steps": Integers(1, 1_000_000_000),
    "--token-merging": Integers(1, 4096),
    "--top": Integers(1, 100_000),
    "--training-images": Integers(1, 1_000_000_000_000),
    "--val-fraction": Numbers(0, 1),
    "--versions": Integers(1, 100),
}


METAVARS = {  # N for all others
    "--accumulate": "PARTS",
    "--checkpoint-every": "SECONDS",
    "--held-out": "FRACTION",
    "--image-size": "PIXELS",
    "--knn": "K",
    "--learning-rate": "RATE",
    "--learning-rates": "RATE",
    "--lora": "RANK",
    "--max-bytes": "BYTES",
    "--max-pixels": "PIXELS",
    "--patience": "EPOCHS",
    "--port": "PORT",
    "--fewshot": "SHOTS",
    "--token-merging": "PATCHES",
    "--val-fraction": "FRACTION",
}


# From this ratio on (of `difflib`), a misspelt option is like another.
SIMILAR = 0.75

# What other training scripts call an option.
NAMES_ELSEWHERE = {
    "-b": "--batch-size",
    "--bs": "--batch-size",
    "-d": "--data",
    "--dataset": "--data",
    "--img-size": "--image-size",
    "--input-size": "--image-size",
    "--lr": "--learning-rate",
    "-o": "--out",
    "--output": "--out",
    "--output-dir": "--out",
    "--pretrained": "--weights",
    "--checkpoint": "--weights",
}


def image_file(text: str) -> Path:
    """The path of an image file to write, as the type of an option."""
    path = Path(text)
    if path.suffix.lower() not in IMAGE_SUFFIXES or path.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an image file. Give one that ends in {', '.join(IMAGE_SUFFIXES)}."
        )
    return path


@dataclass(frozen=True)
class Option:
    """One argument of a command.

    Attributes:
        name: `--name`, or the name of a positional argument.
        help: What it does, as a phrase that stands alone.
        exclusive: Options of a command with the same word here exclude each other.
        settings: What else `add_argument` takes. The type of a number comes from `RANGES`.
    """

    name: str
    help: str
    exclusive: str | None
    settings: dict[str, Any]


@dataclass(frozen=True)
class Command:
    """One command: what it does, a line to copy, and its options by group."""

    help: str
    example: str
    groups: dict[str, list[Option]]


def option(name: str, help: str, exclusive: str | None = None, **settings: Any) -> Option:
    """An option with a value, or a positional argument."""
    return Option(name, help, exclusive, settings)


def flag(name: str, help: str, exclusive: str | None = None) -> Option:
    """An option without a value."""
    return Option(name, help, exclusive, {"action": "store_true"})


VIEWS_OPTION = option(
    "--views",
    "average predictions over the image and its mirror image (flip), or over those of the image "
    "and of its four corners as well (crops), which takes as many times longer (default: that "
    "of the recipe or the model)",
    choices=VIEWS,
)
MODEL = option("model", "a .keras or weights file, or the folder of a training run", type=Path)
CLASSIFIER = option(
    "model",
    "a .keras or weights file, the folder of a training run, or an exported file",
    type=Path,
)
IMAGES = option("files", "image files", nargs="+", type=Path, metavar="IMAGE")
DATA_HELP = (
    "where the labelled images are: a folder with CLASS/*.jpg, with train/CLASS/*.jpg and "
    "val/CLASS/*.jpg, or with train.txt and val.txt; records:FOLDER of TFRecord or ArrayRecord "
    "files; the name of a TensorFlow data set; or digits, scikit-learn's handwritten digits"
)
DATA = option("--data", DATA_HELP, required=True)
DATA_DIR = option("--data-dir", "folder of prepared TensorFlow data sets", metavar="FOLDER")
MAX_IMAGE = option(
    "--max-pixels",
    "leave out images of more pixels (height times width) than this",
    default=MAX_PIXELS,
)
DECODER = option(
    "--decoder",
    "decode JPEG files as TensorFlow does by default, or to Pillow's pixels, which timm and "
    "transformers see (default: the model's, else the backend's)",
    choices=DECODERS,
)
PRECISION = option(
    "--precision",
    "dtype policy of the model: in mixed ones the weights stay float32",
    choices=PRECISIONS,
    default="float32",
)
AUGMENT = option(
    "--augment",
    "augmentation of this name in place of the recipe's",
    choices=AUGMENTATIONS,
)

COMMANDS: dict[str, Command] = {
    "train": Command(
        "train on a data set or a folder of images; writes the model, its report and a SavedModel",
        "keras-vit train --data photos/ --out runs/photos",
        {
            "data": [
                DATA,
                DATA_DIR,
                option(
                    "--val-fraction",
                    "fraction of the images to hold out, where the data does not have a "
                    "validation split",
                    default=0.2,
                ),
                option(
                    "--on-bad-file",
                    "skip files that cannot be decoded, or raise an error",
                    choices=("skip", "raise"),
                    default="skip",
                ),
                MAX_IMAGE,
            ],
            "model": [
                option(
                    "--model",
                    "name of a model, such as ViT-Ti/16 or timm's deit_tiny_patch16_224 (default: "
                    "the recipe's small model)",
                ),
                option(
                    "--weights",
                    "start from a weights file, or from the released weights MODEL:TAG; without "
                    "--model the file also sets the architecture",
                ),
                option(
                    "--image-size",
                    "resize images to this height and width (default: those in the model's name, "
                    "the recipe's, or 224)",
                ),
                PRECISION,
                flag(
                    "--freeze-backbone",
                    "train only the head, on features that are computed once; needs --weights",
                    exclusive="partly",
                ),
                option(
                    "--lora",
                    "train low-rank updates of this rank in place of the backbone's weights; needs "
                    "--weights",
                    exclusive="partly",
                ),
                option(
                    "--token-merging",
                    "merge this many similar patches in each encoder block, which makes the model "
                    "faster (default: none)",
                ),
            ],
            "recipe": [
                option(
                    "--recipe",
                    "name of a training recipe, or auto: the one that suits the weights and the "
                    "images; prints which and why (default: auto)",
                ),
                option(
                    "--epochs",
                    "number of passes over the data (default: the recipe's)",
                    exclusive="length",
                ),
                option(
                    "--steps",
                    "number of batches to train on, in place of --epochs",
                    exclusive="length",
                ),
                option("--batch-size", "number of images per batch (default: the recipe's)"),
                option("--learning-rate", "peak learning rate (default: the recipe's)"),
                AUGMENT,
                flag("--sam", "take the steps of sharpness-aware minimization (SAM)"),
                option(
                    "--teacher",
                    "learn from the predictions of this model, too: a .keras or weights file, or "
                    "the folder of a training run on the same classes",
                    metavar="MODEL",
                ),
                option(
                    "--distill",
                    "what to learn from --teacher: its probabilities (soft) or the class that it "
                    "predicts (hard) (default: soft)",
                    choices=DISTILLATIONS,
                    dest="distillation",
                ),
                option(
                    "--patience",
                    "stop after this many epochs without a lower validation loss (default: never)",
                ),
                option(
                    "--seed",
                    "seed of the validation split, the new weights and the augmentation",
                    default=0,
                ),
                option(
                    "--held-out",
                    "fraction of the training images that is not trained on, but sets the "
                    "temperature of the probabilities, so that they are as sure as they are right, "
                    "and decides whether a linear probe that training started from is kept "
                    "(default: the recipe's; to decide, a fifth)",
                ),
                VIEWS_OPTION,
            ],
            "run": [
                option(
                    "--out", "folder to write (default: runs/DATA)", type=Path, metavar="FOLDER"
                ),
                option(
                    "--checkpoint-every",
                    "seconds between checkpoints, from which --resume continues",
                    default=CHECKPOINT_SECONDS,
                    dest="checkpoint_seconds",
                ),
                flag("--resume", "continue an interrupted run", exclusive="start"),
                flag("--overwrite", "replace the earlier run in --out", exclusive="start"),
                flag(
                    "--first-look",
                    "before training, print the accuracy of k-NN and of a linear probe",
                ),
                flag("--tensorboard", "write logs for TensorBoard"),
                option(
                    "--distribution",
                    "cut the batches (data_parallel), the weights as well (fsdp), or the products "
                    "of each block (tensor_parallel) over several GPUs or TPU cores; with "
                    "KERAS_BACKEND=jax",
                    choices=DISTRIBUTIONS,
                ),
                option("--devices", "number of devices for --distribution (default: all)"),
            ],
        },
    ),
    "predict": Command(
        "print the most probable classes of images",
        "keras-vit predict runs/photos photo.jpg",
        {
            "model": [CLASSIFIER],
            "data": [IMAGES, MAX_IMAGE, DECODER, VIEWS_OPTION],
            "run": [option("--top", "number of classes to print per image", default=5)],
        },
    ),
    "evaluate": Command(
        "evaluate a model on its own classes, or its features on new ones (k-NN, linear "
        "probe, few-shot)",
        "keras-vit evaluate runs/photos --data photos/ --probe --knn 20 --fewshot 1 5 10 25",
        {
            "model": [
                option(
                    "model",
                    "a .keras or weights file, the folder of a training run, an exported file, or "
                    "the released weights MODEL:TAG",
                )
            ],
            "data": [
                option("--data", DATA_HELP),
                DATA_DIR,
                MAX_IMAGE,
                DECODER,
                VIEWS_OPTION,
                option("--split", "split to evaluate on: val or test", default="val"),
                option("--batch-size", "number of images per batch (default: 32; 512 with --vtab)"),
            ],
            "recipe": [
                option("--steps", "number of updates per VTAB task (default: 2500)"),
                option("--image-size", "height and width of the VTAB images (default: 384)"),
                option(
                    "--learning-rates",
                    "learning rates to try on each VTAB task (default: 0.01)",
                    nargs="+",
                ),
                option("--accumulate", "compute each VTAB batch in this many parts (default: 1)"),
            ],
            "run": [
                flag("--probe", "fit a linear probe on the frozen features"),
                option(
                    "--knn",
                    "classify by the K nearest neighbours (default of K: 20)",
                    nargs="?",
                    const=20,
                ),
                option(
                    "--fewshot",
                    "classify from this many examples per class, by least squares "
                    "(default of SHOTS: 1 5 10 25)",
                    nargs="*",
                ),
                option("--seeds", "number of few-shot draws to average (default: 3)"),
                option(
                    "--cache-dir",
                    "folder in which features are cached (default: in Keras's cache)",
                    type=Path,
                    metavar="FOLDER",
                ),
                flag("--vtab", "fine-tune on the 19 tasks of VTAB, from --data-dir"),
                option(
                    "--out",
                    "folder of the VTAB results; a second run continues there",
                    type=Path,
                    metavar="FOLDER",
                ),
                option(
                    "--tasks",
                    "VTAB tasks to run, such as svhn dtd (default: all 19)",
                    nargs="+",
                    metavar="TASK",
                ),
            ],
        },
    ),
    "inspect": Command(
        "plot what a model attends to in images, and collect the plots on one page",
        "keras-vit inspect runs/photos photo.jpg --out runs/photos/inspection",
        {
            "model": [MODEL],
            "data": [IMAGES, MAX_IMAGE],
            "run": [
                option("--out", "folder to write", type=Path, required=True, metavar="FOLDER"),
                flag("--overwrite", "replace the earlier page in --out"),
                option("--top", "number of predicted classes per image", default=5),
                option(
                    "--method",
                    "map of all layers: attribution, which is of a class, or rollout, which is of "
                    "none (default: attribution, and rollout for a model without classes)",
                    choices=("attribution", "rollout"),
                ),
                option(
                    "--for-class",
                    "class that attribution explains (default: the one predicted for each image)",
                    metavar="NAME",
                ),
            ],
        },
    ),
    "export": Command(
        "write a file that other engines run: SavedModel, ONNX, LiteRT, OpenVINO or torch",
        "keras-vit export runs/photos --format onnx --out photos.onnx",
        {
            "data": [
                option(
                    "--data",
                    "labelled images, as for train: calibrates --quantize int8 on the training "
                    "images, and compares the accuracy of model and file on the others",
                ),
                DATA_DIR,
            ],
            "model": [
                MODEL,
                option(
                    "--image-size", "resize images to this height and width (default: the model's)"
                ),
            ],
            "run": [
                option(
                    "--format",
                    "what to write: tf_saved_model and openvino are folders, onnx is a .onnx file, "
                    "litert a .tflite file, torch a .pt2 file",
                    choices=EXPORT_FORMATS,
                    default="tf_saved_model",
                ),
                option(
                    "--quantize",
                    "weights in eight bits, a quarter of the size: onnx, litert and openvino",
                    choices=("int8",),
                ),
                option(
                    "--out",
                    "file or folder to write, such as photos.tflite or saved_models/NAME/VERSION",
                    type=Path,
                    required=True,
                    metavar="PATH",
                ),
                flag("--overwrite", "replace the earlier export in --out"),
            ],
        },
    ),
    "serve": Command(
        "serve a model over HTTP, with a page on which one drops a photograph",
        "keras-vit serve runs/photos --port 8000",
        {
            "model": [
                option(
                    "model",
                    "a .keras or weights file, the folder of a training run, an exported file, or "
                    "a folder of numbered versions; a new version takes over while the server runs",
                    type=Path,
                )
            ],
            "data": [
                option(
                    "--max-bytes",
                    "refuse request bodies of more bytes than this",
                    default=20 * 2**20,
                ),
                option(
                    "--max-pixels",
                    "refuse images of more pixels (height times width) than this",
                    default=MAX_PIXELS,
                ),
            ],
            "run": [
                option(
                    "--host",
                    "address to listen on; 0.0.0.0 for all, without a password",
                    default="127.0.0.1",
                ),
                option("--port", "port to listen on; 0 for any free one", default=8000),
                option("--batch-size", "the most images per batch; more suit a GPU", default=4),
                option(
                    "--queue",
                    "the most requests in progress; further ones are answered with 429 "
                    "(default: twice --batch-size)",
                ),
                option("--top", "number of classes per answer", default=5),
            ],
        },
    ),
    "convert": Command(
        "write weights in another layout, and report how each tensor was handled",
        "keras-vit convert ViT-B_16.npz vit.safetensors --layout timm",
        {
            "model": [
                option(
                    "source",
                    "a weights file, a folder of transformers or timm, or the released weights "
                    "MODEL:TAG",
                    metavar="IN",
                ),
                option(
                    "target",
                    "file to write; with --layout huggingface or timm also a folder, which "
                    "transformers or timm opens as it is",
                    metavar="OUT",
                    type=Path,
                ),
                option(
                    "--layout",
                    "names and shapes of the tensors: google, big_vision, timm or huggingface",
                ),
            ],
            "run": [flag("--overwrite", "replace a file that convert wrote earlier")],
        },
    ),
    "average": Command(
        "average the weights of fine-tuned models of one origin into one model of the same size",
        "keras-vit average runs/seed0 runs/seed1 runs/seed2 --out runs/soup.keras",
        {
            "model": [
                option(
                    "models",
                    "two or more .keras or weights files, or folders of training runs, all "
                    "fine-tuned from the same weights",
                    nargs="+",
                    type=Path,
                    metavar="MODEL",
                ),
                option(
                    "--start",
                    "the weights that all of them started from, a file or MODEL:TAG: draw the "
                    "average towards them, as far as the runs disagree (Model Stock)",
                ),
            ],
            "run": [
                option("--out", ".keras file to write", type=Path, metavar="FILE", required=True),
                flag("--overwrite", "replace a file that average or convert wrote earlier"),
            ],
        },
    ),
    "plan": Command(
        "print the parameters, operations and memory of a model, without building it",
        "keras-vit plan ViT-L/16 --image-size 384 --batch-size 32",
        {
            "model": [
                option("model", "name of a model, such as ViT-B/16 or vit_base_patch16_384"),
                option(
                    "--image-size",
                    "height and width of the images (default: those in the name, else 224)",
                ),
                option(
                    "--num-classes",
                    "number of classes; 0 for a model without a head (default: that of the name, "
                    "else 1000)",
                ),
                PRECISION,
            ],
            "recipe": [
                option("--batch-size", "number of images per batch", default=32),
                flag("--remat", "recompute activations in the backward pass, to save memory"),
                option(
                    "--training-images",
                    "number of images to train on: print the least time of a whole training on "
                    "the chips of --compile",
                ),
                option("--epochs", "passes over the images in that training", default=1),
            ],
            "run": [
                option(
                    "--compile",
                    "compile the training step for this TPU, such as v5e:4x4, and print what it "
                    "costs each chip; with KERAS_BACKEND=jax and the extra tpu, without a TPU",
                    metavar="TPU",
                ),
                option(
                    "--distribution",
                    "how --compile cuts the training over the chips",
                    choices=DISTRIBUTIONS,
                    default="data_parallel",
                ),
            ],
        },
    ),
    "augment": Command(
        "plot augmented images, as the network sees them in training",
        "keras-vit augment --data photos/ --recipe augreg/medium1 --out sheet.png",
        {
            "data": [
                DATA,
                DATA_DIR,
                MAX_IMAGE,
                option("--images", "number of images to plot, one per row", default=6),
                option("--versions", "number of augmented versions per image", default=7),
            ],
            "recipe": [
                option(
                    "--recipe",
                    "name of the training recipe that sets augmentation, Mixup and CutMix",
                    default="small_data",
                ),
                AUGMENT,
                option(
                    "--image-size", "resize images to this height and width (default: the recipe's)"
                ),
                option("--seed", "seed of the augmentation", default=0),
            ],
            "run": [
                option(
                    "--out",
                    "image file to write, such as sheet.png",
                    type=image_file,
                    required=True,
                    metavar="FILE",
                ),
                flag("--overwrite", "replace the earlier plot in --out"),
            ],
        },
    ),
    "list": Command(
        "list the models, or the released weights",
        "keras-vit list --weights dinov2",
        {
            "model": [
                option(
                    "pattern",
                    "list only names that match this shell pattern, such as 'ViT-B*'; with "
                    "--weights also a model, or a part of a name, such as dinov2",
                    nargs="?",
                    default="*",
                ),
                flag("--weights", "list released weights in place of models"),
            ]
        },
    ),
}

# Options of `evaluate` that have an effect only beside others, and only with or without --vtab.
VTAB_DEFAULTS: dict[str, Any] = {
    "out": None,
    "tasks": None,
    "steps": 2500,
    "image_size": 384,
    "learning_rates": [0.01],
    "accumulate": 1,
}
FEATURE_OPTIONS = ("probe", "knn", "fewshot")


def parse(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The options of one command by name, the command itself as `"command"`.

    Args:
        arguments: The words after `keras-vit`; None for those of this process.

    Raises:
        UsageError: An option is unknown, missing, out of range, or has no effect.
        SystemExit: `--help`, `--version`, or no command at all.

    Example:

    >>> from keras_vit_cli.arguments import parse
    >>> parse(["list", "ViT-B*"])
    {'command': 'list', 'pattern': 'ViT-B*', 'weights': False}
    """
    parser = make_parser()
    known, unknown = parser.parse_known_args(arguments)
    options = vars(known)
    if unknown:
        raise UsageError(_unrecognized(options["command"], unknown))
    if options["command"] is None:
        # Status 2, as for every incomplete command: a script whose words came out empty has not
        # done its work.
        parser.exit(2, parser.format_help())
    if options["command"] == "evaluate":
        _check_evaluate(options)
    if options["command"] == "train" and options["distillation"] and not options["teacher"]:
        raise UsageError("--distill has no effect without --teacher (see keras-vit train -h).")
    return options


def _unrecognized(command: str | None, words: Sequence[str]) -> str:
    """The message for arguments that a command does not have, with those of similar names."""
    program = f"keras-vit {command}" if command else "keras-vit"
    groups = COMMANDS[command].groups.values() if command else ()
    names = [option.name for group in groups for option in group if option.name[0] == "-"]
    near: list[str] = []
    for word in (word.split("=")[0] for word in words):
        elsewhere = NAMES_ELSEWHERE.get(word)
        near += [elsewhere] if elsewhere in names else _similar(word, names)
    proposal = f" Did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    return f"unrecognized arguments: {' '.join(words)} (see {program} --help).{proposal}"


def _similar(word: str, names: Sequence[str]) -> list[str]:
    """The option of the most similar name, if one is: `--epocs`, `--num-epochs`, `--lora-rank`.

    Without the dashes, which all options have in common.
    """
    bare = {name.lstrip("-"): name for name in names}
    word = word.lstrip("-").replace("_", "-").lower()
    near = difflib.get_close_matches(word, bare, n=1, cutoff=SIMILAR)
    near += [name for name in bare if name == word.split("-")[0]]
    return [bare[name] for name in near[:1]]


def _check_evaluate(options: dict[str, Any]) -> None:
    """Refuses what would be ignored, then fills in the defaults."""

    def refuse(names: Sequence[str], reason: str) -> None:
        for name in names:
            if options[name] not in (None, False):
                raise UsageError(
                    f"--{name.replace('_', '-')} {reason} (see keras-vit evaluate -h)."
                )

    if options["vtab"]:
        refuse(("data", "decoder", *FEATURE_OPTIONS), "has no effect with --vtab")
    else:
        refuse(tuple(VTAB_DEFAULTS), "has no effect without --vtab")
    if options["fewshot"] is None:
        refuse(("seeds",), "has no effect without --fewshot")
    if all(options[name] in (None, False) for name in FEATURE_OPTIONS):
        refuse(("cache_dir",), "has no effect without --probe, --knn or --fewshot")
    defaults = {"seeds": 3, "batch_size": 512 if options["vtab"] else 32, **VTAB_DEFAULTS}
    options |= {name: value for name, value in defaults.items() if options[name] is None}
    if not options["vtab"]:
        if options["data"] is None:
            raise UsageError("evaluate needs --data: a folder of images, or a data set's name.")
    elif options["out"] is None:
        raise UsageError("--vtab needs --out, the folder of its results.")
    elif options["batch_size"] % options["accumulate"]:
        raise UsageError(
            f"--accumulate {options['accumulate']} does not divide --batch-size "
            f"{options['batch_size']}. Give a divisor, such as 1."
        )


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one line, without the usage of all options before it."""

    def error(self, message: str) -> NoReturn:
        word = re.search(r"COMMAND: invalid choice: '(.*?)'", message)
        near = difflib.get_close_matches(word[1], COMMANDS) if word else []
        proposal = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise UsageError(f"{message.removesuffix('.')} (see {self.prog} --help).{proposal}")


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Prints the defaults that are values: `None` and `False` mean nothing to a reader."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def make_parser() -> argparse.ArgumentParser:
    """The parser of `keras-vit` with all its commands."""
    parser = _Parser(
        prog="keras-vit",
        description="The Vision Transformer for Keras 3: train it, use it, ship it.",
        epilog="environment:\n"
        "  KERAS_BACKEND=tensorflow|jax|torch  chooses the backend\n"
        "  KERAS_VIT_TRACEBACK=1               shows where an error came from\n"
        "  KERAS_VIT_PLAIN=1                   shows TensorFlow's start-up notes",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, command in COMMANDS.items():
        _add_command(commands, name, command)
    return parser


def _add_command(commands: Any, name: str, command: Command) -> None:
    parser = commands.add_parser(
        name,
        help=command.help,
        description=f"{command.help[0].upper()}{command.help[1:]}.",
        epilog=f"example: {command.example}",
        formatter_class=_HelpFormatter,
    )
    for title, options in command.groups.items():
        group = parser.add_argument_group(title)
        exclusive: dict[str, Any] = {}
        for row in options:
            target = group
            if row.exclusive is not None:
                if row.exclusive not in exclusive:
                    exclusive[row.exclusive] = group.add_mutually_exclusive_group()
                target = exclusive[row.exclusive]
            settings = dict(row.settings)
            if row.name in RANGES:
                settings["type"] = RANGES[row.name]
                settings["metavar"] = METAVARS.get(row.name, "N")
            target.add_argument(row.name, help=row.help, **settings)


def _version() -> str:
    """The version of the library beside this package: to import it would import Keras."""
    file = Path(__file__).parents[1] / "keras_vit" / "_base" / "version.py"
    return str(runpy.run_path(str(file))["__version__"])
