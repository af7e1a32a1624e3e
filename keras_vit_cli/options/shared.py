"""Options that several commands have, and the ranges of their numbers."""

import argparse
import re
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from keras_vit_cli.options.option import (
    POSITIONAL,
    Integers,
    Numbers,
    UsageError,
    band_numbers,
    in_data,
    in_model,
    in_recipe,
    in_run,
    nodata_rule,
)

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")
DISTRIBUTIONS = ("data_parallel", "fsdp", "tensor_parallel")  # as in keras_vit.distribution
VIEWS = ("one", "flip", "crops")  # as in keras_vit.models.views
WINDOWS = ("model", "own", "whole")  # as in keras_vit.evaluation.windows
MOST_SIDE = 32_768  # likewise
DECODERS = ("tensorflow", "pillow")  # as in keras_vit.data
READERS = ("tensorflow", "grain")  # likewise
# Likewise.
AUGMENTATIONS = ("inception", "randaugment", "transfer", "maps", "tiny", "digits", "none")
# The names of a split, as in keras_vit.data.sources.split_names.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "val": ("val", "validation", "valid", "dev", "eval"),
    "test": ("test", "testing"),
}
MAX_PIXELS = 2**26  # as in keras_vit.data, which cannot be imported here

# What is said of --labels.
OF_TABLE = ("task", "order", "depth_scale", "file_column", "label_columns", "separator")
# Upper ends are far above what anyone trains and below what a slip of the keyboard would allocate.
BATCH = Integers(1, 65_536)
COVERAGE_RANGE = Numbers(0, 1, metavar="PART")
CLASSES = Integers(1, 100_000)
EPOCHS = Integers(1, 1_000_000)
MOST_PIXELS = Integers(1, 1_000_000_000_000, "PIXELS")
PIXELS = Integers(1, 4096, "PIXELS")
RATE = Numbers(0, 100, metavar="RATE")
SEED = Integers(0, 2**31 - 1)
SOME = Integers(1, 100)
STEPS = Integers(1, 1_000_000_000)

DATA_HELP = (
    "where the labeled images are: a folder with CLASS/*.jpg, with train/CLASS/*.jpg and "
    "val/CLASS/*.jpg, or with train.txt and val.txt; records:FOLDER of TFRecord or ArrayRecord "
    "files; the name of a TensorFlow data set; or digits, scikit-learn's handwritten digits"
)
EXPORTED_HELP = (
    "a .onnx, .tflite, .pt2, .pte or .html file, or the folder of a SavedModel, of OpenVINO, Core "
    "ML or a page, that keras-vit export wrote"
)
BALANCES = ("none", "weights", "logits", "sampling")  # as in keras_vit.tasks.balance
# As in keras_vit.tasks.
OF_DEPTH = ("depth", "relative_depth")
TASKS = ("classification", "multilabel", "regression", "ordinal", "segmentation", *OF_DEPTH)
VIEWS_HELP = (
    "average predictions over the image and its mirror image (flip), or over those of the image "
    "and of its four corners as well (crops), which takes as many times longer (default: that "
    "of the recipe or the model)"
)


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """What commands of labeled images ask about labels that are not in folders' names."""

    labels: str | None = in_data(
        "labels of the images in --data: a CSV, TSV, JSON lines or Parquet file with a column of "
        "files; or a folder of masks, PNG files with the number of a class in each pixel, or of "
        "polygons of labelme or YOLO, or a JSON file of COCO; or a folder of maps of depth, .npy, "
        "TIFF or 16-bit PNG files (default: the folders' names)",
        None,
        metavar="FILE",
    )
    task: str | None = in_data(
        "what the labels are: one of several classes, any of several labels, numbers, grades in an "
        "order, classes of pixels, depths of pixels, or which pixels are nearer (default: guessed "
        "from --labels, and printed with the reason)",
        None,
        choices=TASKS,
    )
    order: str | None = in_data(
        "the grades in --labels from the lowest on, separated by commas, such as low,medium,high "
        "(default: by their numbers, or by the words of a usual scale)",
        None,
        metavar="GRADES",
    )
    file_column: str | None = in_data(
        "column of --labels with the files (default: the one that names files of the images)",
        None,
        metavar="COLUMN",
    )
    label_columns: str | None = in_data(
        "columns of --labels with the labels, separated by commas (default: all others)",
        None,
        metavar="COLUMNS",
    )
    separator: str | None = in_data(
        "what stands between several labels in one cell of --labels (default: guessed)",
        None,
        metavar="TEXT",
    )
    on_bad_row: str = in_data(
        "rows of --labels that cannot be used, such as those of missing files: raise an error that "
        "lists them, or skip them",
        "error",
        choices=("error", "skip"),
    )


@dataclass(frozen=True, kw_only=True)
class MapOptions(TableOptions):
    """`TableOptions`, and what else commands ask that read maps of depth."""

    depth_scale: float | str | None = in_data(
        "what 1 in a file of depth in --labels is worth, such as 0.001 for millimeters in meters; "
        "or inverse, where larger numbers are nearer, as disparities (default: 1 in files of "
        "floats; files of integers need it; evaluate takes the model's)",
        None,
        Numbers(0, 1e6, metavar="NUMBER", word="inverse"),
    )


@dataclass(frozen=True, kw_only=True)
class IndexOptions:
    """What commands ask that find something in a folder of images by its index."""

    photos: Path = in_data(
        "a folder or table of images, which --model makes an index of; or the index that "
        "keras-vit embed wrote",
        metavar="PHOTOS",
        name=POSITIONAL,
    )
    model: Path | None = in_model(
        "for images: a .keras or weights file, the folder of a training run, or MODEL:TAG",
        None,
        metavar="MODEL",
    )
    index: Path | None = in_run(
        "for images: the folder of their index, which is made or brought up to date (default: "
        "that of --out with _index at its end)",
        None,
        metavar="FOLDER",
    )


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What commands ask that train for long, and can be interrupted."""

    seed: int = in_recipe(
        "seed of the validation split, the new weights and the augmentation", 0, SEED
    )
    checkpoint_seconds: float = in_run(
        "seconds between checkpoints, from which --resume continues",
        60.0,  # as in keras_vit.training.resume
        Numbers(0, 1_000_000, or_low=True, metavar="SECONDS"),
        name="--checkpoint-every",
    )
    resume: bool = in_run("continue an interrupted run", False, exclusive="start")
    overwrite: bool = in_run("replace the earlier run in --out", False, exclusive="start")

    @property
    def identity(self) -> dict[str, str]:
        """The options that must agree for two calls to belong to one run.

        Devices need not: a run may continue on others, and with other checkpoints. Who reads, and
        what the files hold that options name, is compared by `fit`, which knows it.
        """
        others = ["resume", "overwrite", "out", "checkpoint_seconds", "reader"]
        others += ["distribution", "devices"]
        others += PLACES
        return {name: str(v) for name, v in asdict(self).items() if name not in others}


# Options that may name files.
PLACES = ("data", "photos", "labels", "data_dir", "weights", "teacher")
# A bucket as a path has it: with one slash behind the colon.
BUCKET = re.compile(r"([a-z][a-z0-9+]+):/{1,2}(?=[^/])")


def bucket(path: object) -> str | None:
    """Return the address of a file in a bucket, of a word or of the path made of it; else None.

    >>> bucket("s3:/photos/a.jpg"), bucket("a.jpg")
    ('s3://photos/a.jpg', None)
    """
    text, match = str(path), BUCKET.match(str(path))
    return f"{match[1]}://{text[match.end() :]}" if match else None


def check_is_here(out: object) -> None:
    """Raise a UsageError for `--out` in a bucket."""
    if address := bucket(out):
        raise UsageError(f"--out {address} is in a bucket: give a place here, and copy it there")


def split_name(text: str) -> str:
    """Return the split that a word of `--split` stands for, in any case; another word as it is.

    >>> split_name("Valid"), split_name("all")
    ('val', 'all')
    """
    word = text.strip().lower()
    return next((split for split, names in SPLIT_NAMES.items() if word in names), text)


def window_side(text: str) -> str | int:
    """Return the value of `--windows`: one of three words, or a number of pixels.

    >>> window_side("own"), window_side("1024")
    ('own', 1024)
    """
    if text in WINDOWS:
        return text
    if text.isdecimal() and 1 <= int(text) <= MOST_SIDE:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"{text!r} is not accepted. Give {', '.join(WINDOWS)}, or the pixels of a short side from "
        f"1 to {MOST_SIDE:,}, such as 1024."
    )


def ray_address(text: str) -> str:
    """Return the value of `--ray`: auto, or a host and a port.

    >>> ray_address("10.0.0.1:6379")
    '10.0.0.1:6379'
    """
    if text in ("", "auto") or re.fullmatch(r"[^\s/:]+:\d{1,5}", text):
        return text
    raise argparse.ArgumentTypeError(
        f"{text!r} is not accepted. Give the address that `ray start --head` prints, such as "
        "10.0.0.1:6379; auto for a cluster of this machine; or --ray alone, as the last word."
    )


ray = partial(
    in_run,
    "share the work among the nodes of a Ray cluster, all of which see the images and the model: "
    "its address, such as 10.0.0.1:6379 (default: that of RAY_ADDRESS or of this machine, where "
    "one is started if there is none)",
    None,
    metavar="ADDRESS",
    type=ray_address,
    nargs="?",
    const="",
)
split = partial(in_data, default=None, type=split_name)
data_dir = partial(in_data, "folder of prepared TensorFlow data sets", None, metavar="FOLDER")
max_pixels = partial(
    in_data,
    "leave out images of more pixels (height times width) than this",
    MAX_PIXELS,
    MOST_PIXELS,
)
reader = partial(
    in_data,
    "read images by TensorFlow's tf.data, or by Pillow in Grain's threads, which needs no "
    "TensorFlow and reads folders, tables and digits (default: TensorFlow where it is installed)",
    None,
    choices=READERS,
)
bands = partial(
    in_data,
    "read TIFF, PNG, NumPy or DICOM files of any bit depth in their own range, and take these "
    "bands as channels, such as 4,3,2 or all (default: photographs, 0 to 255)",
    None,
    type=band_numbers,
    metavar="NUMBERS",
)
nodata = partial(
    in_data,
    "what --bands does with pixels that do not have a value (GDAL_NODATA, masks, NaN, DICOM's "
    "padding): mean writes that of each band over the training images, refuse leaves such files "
    "out, a number is written there",
    "mean",
    type=nodata_rule,
    metavar="RULE",
)
images = partial(in_data, "image files", metavar="IMAGE", name=POSITIONAL)
decoder = partial(
    in_data,
    "decode JPEG files as TensorFlow does by default, or to Pillow's pixels, which timm and "
    "transformers see (default: the model's, else the backend's)",
    None,
    choices=DECODERS,
)
views = partial(in_data, VIEWS_HELP, None, choices=VIEWS)
windows = partial(
    in_data,
    "predict pixels of images larger than the model's by windows that overlap, at the images' own "
    "sizes: with a short side as the model's (model, the default of SIDE), as they are (own), or "
    "of so many pixels; or without windows at their aspect ratio (whole) (default: images are "
    "stretched to the model's size)",
    None,
    type=window_side,
    metavar="SIDE",
    nargs="?",
    const="model",
)
model = partial(
    in_model, "a .keras or weights file, or the folder of a training run", name=POSITIONAL
)
precision = partial(
    in_model,
    "dtype policy of the model: in mixed ones the weights stay float32",
    "float32",
    choices=PRECISIONS,
)
augment = partial(
    in_recipe,
    "augmentation of this name in place of the recipe's",
    None,
    choices=AUGMENTATIONS,
    nargs=1,
)


def check_table(command: str, options: dict[str, Any]) -> None:
    """Refuses what is said of a table of labels where none is given, for `TableOptions`."""
    if "order" not in options:
        return
    for name in OF_TABLE:
        if options.get(name) is not None and options["labels"] is None:
            raise UsageError(
                f"--{name.replace('_', '-')} has no effect without --labels (see keras-vit "
                f"{command} -h)."
            )
    if options["order"] is not None and options["task"] not in (None, "ordinal"):
        raise UsageError(
            f"--order is for the grades of --task ordinal, not for {options['task']}: leave one "
            "of them out."
        )
    if options.get("depth_scale") is not None and options["task"] not in (None, *OF_DEPTH):
        raise UsageError(
            f"--depth-scale is for --task {' or '.join(OF_DEPTH)}, not for {options['task']}: "
            "leave one of them out."
        )
