"""The options of `keras-vit train`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_vit_cli.options import shared
from keras_vit_cli.options.option import (
    Command,
    Integers,
    Numbers,
    UsageError,
    duration,
    in_data,
    in_model,
    in_recipe,
    in_run,
)
from keras_vit_cli.options.shared import (
    BALANCES,
    BATCH,
    COVERAGE_RANGE,
    DATA_HELP,
    DISTRIBUTIONS,
    EPOCHS,
    PIXELS,
    RATE,
    STEPS,
    VIEWS,
    VIEWS_HELP,
)

DISTILLATIONS = ("soft", "hard")  # as in keras_vit.training.Distillation
HEADS = ("linear", "dpt", "eomt")  # as in keras_vit.models.head


@dataclass(frozen=True)
class TrainOptions(shared.RunOptions, shared.MapOptions):
    """The options of `keras-vit train`; None leaves the choice to the recipe."""

    data: str = in_data(DATA_HELP)
    out: Path = in_run("folder to write (default: runs/DATA)", metavar="FOLDER", optional=True)
    data_dir: str | None = shared.data_dir()
    val_fraction: float = in_data(
        "fraction of the images to hold out, where the data does not have a validation split",
        0.2,
        Numbers(0, 1, metavar="FRACTION"),
    )
    on_bad_file: str = in_data(
        "skip files that cannot be decoded, or raise an error", "skip", choices=("skip", "raise")
    )
    max_pixels: int = shared.max_pixels()
    reader: str | None = shared.reader()
    bands: str | None = shared.bands()
    nodata: str = shared.nodata()
    cache: int | None = in_data(
        "keep the training photographs decoded on the disk (in photographs of Keras's cache, "
        "KERAS_HOME), with a shorter side of at most so many pixels: twice the image size is "
        "good; says first how large that gets (default: in memory, where that takes less than "
        "2 GiB)",
        None,
        PIXELS,
    )
    model: str | None = in_model(
        "name of a model, such as ViT-Ti/16 or timm's deit_tiny_patch16_224 (default: the "
        "recipe's small model)",
        None,
    )
    weights: str | None = in_model(
        "start from a weights file, or from the released weights MODEL:TAG; without --model "
        "the file also sets the architecture; or auto: of the weights on this machine (downloaded "
        "ones and the Hugging Face hub's cache; auto:FOLDER: those in a folder), the ones whose "
        "frozen features know most of the labels; prints the table",
        None,
    )
    map_head: str | None = in_model(
        "how a model answers every pixel, with --labels of masks: a linear layer on each patch; "
        "the DPT head, which fuses the maps of four blocks; or the EoMT head, whose queries pass "
        "the last blocks, so that all weights are trained (default: linear, or that of --weights)",
        None,
        choices=HEADS,
        name="--head",
    )
    image_size: int | None = in_model(
        "resize images to this height and width (default: those in the model's name, those of "
        "the run that --weights is from, the recipe's, or 224)",
        None,
        PIXELS,
    )
    precision: str = shared.precision()
    freeze_backbone: bool = in_model(
        "train only the head, on features that are computed once; needs --weights",
        False,
        exclusive="partly",
    )
    lora: int | None = in_model(
        "train low-rank updates of this rank in place of the backbone's weights; needs --weights",
        None,
        Integers(1, 4096, "RANK"),
        exclusive="partly",
    )
    token_merging: int | None = in_model(
        "merge this many similar patches in each encoder block, which makes the model faster "
        "(default: none)",
        None,
        Integers(1, 4096, "PATCHES"),
    )
    recipe: str | None = in_recipe(
        "name of a training recipe; or measured: with --weights, heads on frozen features and "
        "fine-tuning from the best of them are compared on training images that they have not "
        "seen; or auto: that below 20 images per class, else by the number of images; prints "
        "which and why (default: auto)",
        None,
    )
    budget: float | None = in_recipe(
        "time that --recipe measured (or auto, where it measures) may spend on fine-tuning, about: "
        "90s, 10m, 2h; prints what is left out for it (default: the same work on every machine)",
        None,
        metavar="TIME",
        type=duration,
    )
    epochs: int | None = in_recipe(
        "number of passes over the data (default: the recipe's)", None, EPOCHS, exclusive="length"
    )
    steps: int | None = in_recipe(
        "number of batches to train on, in place of --epochs", None, STEPS, exclusive="length"
    )
    batch_size: int | None = in_recipe(
        "number of images per batch (default: the recipe's)", None, BATCH
    )
    learning_rate: float | None = in_recipe(
        "peak learning rate (default: the recipe's)", None, RATE
    )
    loss: str | None = in_recipe(
        "loss in place of the recipe's or the task's: softmax, sigmoid; binary_crossentropy, "
        "asymmetric, zlpr; squared_error, huber, quantile; cumulative_crossentropy; of masks "
        "pixel_crossentropy, crossentropy_dice, crossentropy_lovasz; silog",
        None,
    )
    balance: str | None = in_recipe(
        "make up for classes with few images: by their weights in the loss, by their priors in it "
        "(logits), or by drawing images of every class as often (sampling); several labels per "
        "image have weights alone (default: the recipe's, none)",
        None,
        choices=BALANCES,
    )
    augment: tuple[Any, ...] | None = shared.augment()  # in Python also layers
    sam: bool = in_recipe("take the steps of sharpness-aware minimization (SAM)", False)
    teacher: str | None = in_recipe(
        "learn from the predictions of this model, too: a .keras or weights file, or the "
        "folder of a training run on the same classes",
        None,
        metavar="MODEL",
    )
    distillation: str | None = in_recipe(
        "what to learn from --teacher: its probabilities (soft) or the class that it predicts "
        "(hard) (default: soft)",
        None,
        choices=DISTILLATIONS,
        name="--distill",
    )
    patience: int | None = in_recipe(
        "stop after this many epochs without a lower validation loss (default: never)",
        None,
        Integers(1, 1_000_000, "EPOCHS"),
    )
    held_out: float | None = in_recipe(
        "fraction of the training images that is not trained on, but sets the temperature of "
        "the probabilities, so that they are as sure as they are right, and decides whether a "
        "linear probe that training started from is kept (default: the recipe's; to decide, a "
        "fifth)",
        None,
        Numbers(0, 1, or_low=True, metavar="FRACTION"),
    )
    coverage: float | None = in_recipe(
        "answer with the set of classes, or the interval of a number, that holds the truth for "
        "this part of new images, such as 0.95; holds out a tenth of the training images for it "
        "(default: none)",
        None,
        COVERAGE_RANGE,
    )
    views: str | None = in_recipe(VIEWS_HELP, None, choices=VIEWS)
    first_look: bool = in_run(
        "before training, print the scores of a linear probe on the frozen features", False
    )
    tensorboard: bool = in_run("write logs for TensorBoard", False)
    distribution: str | None = in_run(
        "cut the batches (data_parallel), the weights as well (fsdp) or the products of each block "
        "(tensor_parallel) over GPUs or TPU cores; on JAX, or data_parallel in torch's processes",
        None,
        choices=DISTRIBUTIONS,
    )
    devices: int | None = in_run("number of devices for --distribution (default: all)", None, BATCH)


def _check(options: dict[str, Any]) -> None:
    if options["distillation"] and not options["teacher"]:
        raise UsageError("--distill has no effect without --teacher (see keras-vit train -h).")
    if options["budget"] and options["recipe"] not in (None, "auto", "measured"):
        raise UsageError(
            f"--budget has no effect with --recipe {options['recipe']}: leave one of them out."
        )
    cache, size = options["cache"], options["image_size"]
    if cache and options["freeze_backbone"]:
        raise UsageError("--cache has no effect with --freeze-backbone, which reads images once.")
    if cache and size and cache < size:
        raise UsageError(
            f"--cache {cache} is below --image-size {size}, so that every crop would be enlarged: "
            f"give {2 * size}, or more."
        )


TRAIN = Command(
    TrainOptions,
    "train on a data set or a folder of images; writes the model, its report and a SavedModel",
    "keras-vit train --data photos/ --out runs/photos",
    _check,
    has_config=True,
)
