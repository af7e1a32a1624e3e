"""The command line's options and their ranges. It imports neither Keras nor this package."""

import argparse
import math
import runpy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".pdf", ".svg")
MODEL_HELP = "a .keras or released weights file, or the folder of a training run"
DATA_HELP = (
    "digits; a folder with CLASS/*.jpg, with train/CLASS/*.jpg and val/CLASS/*.jpg, or with "
    "train.txt and val.txt; or the name of a TensorFlow data set"
)
MAX_PIXELS = 2**26  # as in keras_vit.data, which cannot be imported here
MAX_PIXELS_HELP = "height times width of an image that is decoded; larger ones are left out"
DATA_DIR_HELP = "folder of prepared TensorFlow data sets"


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
    """Numbers between `low` and `high`, both excluded, as the type of an option."""

    low: float
    high: float

    def __call__(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not self.low < number < self.high:  # NaN is not, either
            raise argparse.ArgumentTypeError(
                f"{text!r} is not accepted. Give a number above {self.low:g} and below "
                f"{self.high:g}."
            )
        return number


# Every option that is a number, whichever commands have it. The upper ends are far above what
# anyone trains and below what a slip of the keyboard would allocate.
RANGES: dict[str, Integers | Numbers] = {
    "--accumulate": Integers(1, 4096),
    "--batch-size": Integers(1, 65_536),
    "--epochs": Integers(1, 1_000_000),
    "--fewshot": Integers(1, 100_000),
    "--image-size": Integers(1, 4096),
    "--knn": Integers(1, 100_000),
    "--learning-rate": Numbers(0, 100),
    "--learning-rates": Numbers(0, 100),
    "--lora": Integers(1, 4096),
    "--max-pixels": Integers(1, 1_000_000_000_000),
    "--num-classes": Integers(0, 1_000_000),
    "--patience": Integers(1, 1_000_000),
    "--pictures": Integers(1, 100),
    "--seed": Integers(0, 2**31 - 1),
    "--seeds": Integers(1, 1000),
    "--steps": Integers(1, 1_000_000_000),
    "--top": Integers(1, 100_000),
    "--val-fraction": Numbers(0, 1),
    "--versions": Integers(1, 100),
}


def parse(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The options of one command by name, the command itself as `"command"`.

    Args:
        arguments: The words after `keras-vit`; None for those of this process.

    Raises:
        UsageError: An option is unknown, missing or out of range.
        SystemExit: `--help`, `--version`, or no command at all.

    Example:

    >>> from keras_vit_arguments import parse
    >>> parse(["list", "ViT-B*"])
    {'command': 'list', 'pattern': 'ViT-B*', 'weights': False}
    """
    parser = make_parser()
    options = vars(parser.parse_args(arguments))
    if options["command"] is None:
        # Status 2, as for every incomplete command: a script whose words came out empty has not
        # done its work.
        parser.exit(2, parser.format_help())
    if options["command"] == "evaluate":
        _check_evaluate(options)
    return options


def _check_evaluate(options: dict[str, Any]) -> None:
    if not options["vtab"]:
        if options["data"] is None:
            raise UsageError("evaluate needs --data: a folder of images, or a data set's name.")
        return
    if options["out"] is None:
        raise UsageError("--vtab needs --out, the folder of its results.")
    batch_size, parts = options["batch_size"] or 512, options["accumulate"]
    if batch_size % parts:
        raise UsageError(
            f"--accumulate {parts} does not divide --batch-size {batch_size}. "
            "Give a divisor, such as 1."
        )


class _Parser(argparse.ArgumentParser):
    """Reports a usage error in one line, without the usage of all options before it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message.removesuffix('.')} (see {self.prog} --help).")


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Prints the defaults that are values: `None` and `False` tell a reader nothing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def make_parser() -> argparse.ArgumentParser:
    """The parser of `keras-vit` with all its commands."""
    parser = _Parser(
        prog="keras-vit",
        description="The Vision Transformer for Keras 3: train it, use it, ship it.",
        epilog="KERAS_BACKEND=tensorflow|jax|torch chooses the backend; "
        "KERAS_VIT_TRACEBACK=1 shows where an error came from.",
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)

    def command(name: str, help: str, example: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=help,
            description=f"{help[0].upper()}{help[1:]}.",
            epilog=f"example: {example}",
            formatter_class=_HelpFormatter,
        )

    _add_train(
        command(
            "train",
            "train on a data set or a folder of images; writes the model, its report and a "
            "SavedModel",
            "keras-vit train --data photos/ --out runs/photos",
        )
    )

    predict = command(
        "predict",
        "print the most probable classes of images",
        "keras-vit predict runs/photos photo.jpg",
    )
    predict.add_argument("model", type=Path, help=MODEL_HELP)
    predict.add_argument("files", nargs="+", type=Path, metavar="IMAGE", help="image files")
    _number(predict, "--top", default=5, help="number of classes per image")
    _number(predict, "--max-pixels", default=MAX_PIXELS, help=MAX_PIXELS_HELP)

    _add_evaluate(
        command(
            "evaluate",
            "evaluate a model on its own classes, or its features on new ones (k-NN, linear "
            "probe, few-shot)",
            "keras-vit evaluate runs/photos --data photos/ --probe --knn 20 --fewshot 1 5 10 25",
        )
    )

    inspect = command(
        "inspect",
        "plot what a model attends to in images, and collect the plots on one page",
        "keras-vit inspect runs/photos photo.jpg --out runs/photos/inspection",
    )
    inspect.add_argument("model", type=Path, help=MODEL_HELP)
    inspect.add_argument("files", nargs="+", type=Path, metavar="IMAGE", help="image files")
    inspect.add_argument("--out", type=Path, required=True, help="folder to write")
    _number(inspect, "--top", default=5, help="number of predicted classes per image")
    _number(inspect, "--max-pixels", default=MAX_PIXELS, help=MAX_PIXELS_HELP)
    inspect.add_argument("--overwrite", action="store_true", help="replace the page in --out")

    export = command(
        "export",
        "write a SavedModel that takes encoded images",
        "keras-vit export runs/photos --out saved_models/photos/1",
    )
    export.add_argument("model", type=Path, help=MODEL_HELP)
    export.add_argument(
        "--out", type=Path, required=True, help="folder to write: saved_models/NAME/VERSION"
    )
    _number(export, "--image-size", help="image size in pixels (default: the model's)")
    export.add_argument("--overwrite", action="store_true", help="replace the export in --out")

    convert = command(
        "convert",
        "write weights in another layout, and report how each tensor was handled",
        "keras-vit convert ViT-B_16.npz vit.safetensors --layout timm",
    )
    convert.add_argument(
        "source", metavar="IN", help="a weights file, or MODEL:TAG of released weights"
    )
    convert.add_argument("target", metavar="OUT", type=Path, help="file to write")
    convert.add_argument("--layout", help="google, big_vision, timm or huggingface")
    convert.add_argument(
        "--overwrite", action="store_true", help="replace a file that convert wrote"
    )

    plan = command(
        "plan",
        "print the parameters, operations and memory of a model, without building it",
        "keras-vit plan ViT-L/16 --image-size 384 --batch-size 32",
    )
    plan.add_argument("model", help="name of a model, such as ViT-B/16")
    _number(plan, "--image-size", default=224, help="image size in pixels")
    _number(plan, "--batch-size", default=32, help="images per batch")
    _number(plan, "--num-classes", default=1000, help="number of classes; 0 for no head")
    plan.add_argument("--precision", choices=PRECISIONS, default="float32", help="dtype policy")
    plan.add_argument(
        "--remat", action="store_true", help="recompute activations in the backward pass"
    )

    augment = command(
        "augment",
        "plot augmented images, as the network sees them in training",
        "keras-vit augment --data photos/ --recipe augreg/medium1 --out sheet.png",
    )
    augment.add_argument("--data", required=True, help=DATA_HELP)
    augment.add_argument(
        "--recipe", default="small_data", help="recipe that sets augmentation and mixing"
    )
    augment.add_argument(
        "--out", type=_image_file, required=True, help="image file to write, such as sheet.png"
    )
    _number(augment, "--image-size", help="image size in pixels (default: the recipe's)")
    _number(augment, "--pictures", default=6, help="number of images, one per row")
    _number(augment, "--versions", default=7, help="augmented versions of each image")
    _number(augment, "--seed", default=0, help="seed of the augmentation")
    augment.add_argument("--data-dir", help=DATA_DIR_HELP)
    augment.add_argument("--overwrite", action="store_true", help="replace the file --out")

    listing = command(
        "list", "list the models, or released weights", "keras-vit list 'ViT-B*' --weights"
    )
    listing.add_argument("pattern", nargs="?", default="*", help="shell pattern, such as 'ViT-B*'")
    listing.add_argument("--weights", action="store_true", help="list released weights instead")
    return parser


def _add_train(train: argparse.ArgumentParser) -> None:
    train.add_argument("--data", required=True, help=DATA_HELP)
    train.add_argument("--out", type=Path, help="folder to write (default: runs/DATA)")
    train.add_argument(
        "--model", help="name of a model, such as ViT-Ti/16 (default: the recipe's small one)"
    )
    train.add_argument(
        "--weights",
        help="weights file or MODEL:TAG to start from; without --model it sets the architecture",
    )
    train.add_argument("--recipe", help="training recipe (default: one that suits the data)")
    _number(train, "--image-size", help="image size in pixels (default: the recipe's, or 224)")
    length = train.add_mutually_exclusive_group()
    _number(length, "--epochs", help="passes over the data (default: the recipe's)")
    _number(length, "--steps", help="total number of batches, instead of --epochs")
    _number(train, "--batch-size", help="images per batch (default: the recipe's)")
    _number(train, "--learning-rate", help="peak learning rate (default: the recipe's)")
    train.add_argument("--precision", choices=PRECISIONS, default="float32", help="dtype policy")
    partly = train.add_mutually_exclusive_group()
    partly.add_argument(
        "--freeze-backbone",
        action="store_true",
        help="fit a linear classifier on the frozen features; needs --weights",
    )
    _number(
        partly,
        "--lora",
        metavar="RANK",
        help="train low-rank updates of the weights; needs --weights",
    )
    train.add_argument("--sam", action="store_true", help="use sharpness-aware minimization (SAM)")
    train.add_argument(
        "--first-look",
        action="store_true",
        help="print the accuracy of k-NN and of a linear probe before training",
    )
    _number(
        train,
        "--patience",
        metavar="EPOCHS",
        help="stop after this many epochs without a lower validation loss (default: never)",
    )
    train.add_argument("--tensorboard", action="store_true", help="write logs for TensorBoard")
    _number(train, "--seed", default=0, help="seed of the split, the weights and augmentation")
    train.add_argument("--data-dir", help=DATA_DIR_HELP)
    _number(
        train,
        "--val-fraction",
        default=0.2,
        help="fraction of the images for validation, where the data has no validation split",
    )
    train.add_argument(
        "--on-bad-file",
        choices=("skip", "raise"),
        default="skip",
        help="what to do with files that cannot be decoded",
    )
    again = train.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="continue an interrupted run")
    again.add_argument("--overwrite", action="store_true", help="replace the run in --out")


def _add_evaluate(evaluate: argparse.ArgumentParser) -> None:
    evaluate.add_argument("model", help=MODEL_HELP + ", or MODEL:TAG of released weights")
    evaluate.add_argument("--data", help=DATA_HELP)
    evaluate.add_argument(
        "--probe", action="store_true", help="fit a linear probe on frozen features"
    )
    _number(
        evaluate,
        "--knn",
        nargs="?",
        const=20,
        metavar="K",
        help="k-NN accuracy (K: 20 unless given)",
    )
    _number(
        evaluate,
        "--fewshot",
        nargs="*",
        metavar="SHOTS",
        help="few-shot accuracy by least squares, examples per class (1 5 10 25 unless given)",
    )
    _number(evaluate, "--seeds", default=3, help="number of few-shot draws")
    evaluate.add_argument("--split", default="val", help="split to evaluate on: val or test")
    evaluate.add_argument("--data-dir", help=DATA_DIR_HELP)
    _number(evaluate, "--batch-size", help="images per batch (default: 32; 512 for --vtab)")
    evaluate.add_argument(
        "--cache-dir", type=Path, help="folder of cached features (default: in Keras's cache)"
    )
    evaluate.add_argument(
        "--vtab", action="store_true", help="fine-tune on the 19 tasks of VTAB, from --data-dir"
    )
    evaluate.add_argument(
        "--out", type=Path, help="folder of the VTAB results; a second run continues there"
    )
    evaluate.add_argument(
        "--tasks", nargs="+", help="VTAB tasks, such as svhn dtd (default: all 19)"
    )
    _number(evaluate, "--steps", default=2500, help="updates per VTAB task")
    _number(evaluate, "--image-size", default=384, help="image size of the VTAB tasks in pixels")
    _number(
        evaluate,
        "--learning-rates",
        nargs="+",
        metavar="RATE",
        default=[0.01],
        help="learning rates of the VTAB sweep",
    )
    _number(evaluate, "--accumulate", default=1, help="parts that a VTAB batch is computed in")


def _number(group: argparse._ActionsContainer, option: str, **settings: Any) -> None:
    group.add_argument(option, type=RANGES[option], **settings)


def _image_file(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in IMAGE_SUFFIXES or path.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text!r} is not an image file. Give one that ends in {', '.join(IMAGE_SUFFIXES)}."
        )
    return path


def _version() -> str:
    """The version of the package beside this file: to import it from there would import Keras."""
    file = Path(__file__).with_name("keras_vit") / "version.py"
    return str(runpy.run_path(str(file))["__version__"])
