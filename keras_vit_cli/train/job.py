"""The options of `keras-vit train`, and the folder that they write."""

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from keras_vit._base.output_folder import OutputFolder
from keras_vit.data import MAX_PIXELS
from keras_vit.training.resume import CHECKPOINT_SECONDS

# The files of a complete run, and those that are needed only until it is complete.
RUN_FILES = (
    *("model.keras", "best.keras", "saved_models/*", "tensorboard/*"),
    *("config.json", "history.csv", "report.json", "report.md"),
    *("calibration.png", "confusion.png", "curves.png", "mistakes.png"),
)
SCRATCH_FILES = ("checkpoints/*",)


@dataclass(frozen=True)
class Job:
    """The options of `keras-vit train`; None leaves the choice to the recipe.

    Attributes:
        data: `"digits"`, a folder of images, or the name of a TFDS data set.
        out: The folder to write; its name is also the name of the SavedModel.
        model: A name that `keras_vit.create` knows.
        weights: A file or the name of released weights to start from. Without `model`, the file
            determines the architecture.
        recipe: A name in `keras_vit.recipes`; None or `"auto"` for the one that suits the number of
            images and the weights (see `auto_recipe`).
        augment: The name of an augmentation, or layers, as a tuple that `keras_vit.data.pipeline`
            takes, in place of the recipe's augmentation, Mixup and CutMix; layers follow the
            recipe's crop.
        precision: A Keras dtype policy, such as `"mixed_bfloat16"`.
        freeze_backbone: Train the head alone, on features that are computed once and cached.
        lora: Rank of low-rank updates to train in place of the backbone's weights.
        token_merging: Number of similar patches that each encoder block merges, in training and
            in the trained model.
        teacher: A model that teaches this one: what `keras_vit.weights.load_model` opens, with
            the classes of `data`.
        distillation: What the teacher teaches, a kind of `keras_vit.Distillation`; None: `"soft"`.
        sam: Take sharpness-aware steps, with the recipe's rho, or the paper's for the model.
        first_look: Print the accuracy of k-NN and of a linear probe before training.
        patience: Stop after this many epochs without a better validation loss, and save the best
            model in place of the last.
        tensorboard: Write logs for TensorBoard.
        on_bad_file: `"skip"` files that cannot be decoded, or `"raise"`.
        held_out: Fraction of the training images that sets the temperature of the probabilities
            and, where training starts from a linear probe, decides whether that is kept. None is
            the recipe's, and a fifth, at most 500 images, to decide; 0 compares nothing.
        views: What predictions are averaged over; a key of `keras_vit.models.views.VIEWS`.
        max_pixels: Height times width that an image may have; larger ones are bad files.
        checkpoint_seconds: Time between the checkpoints of `resume`.
        distribution: A kind of `keras_vit.distribution.create`; None for one device.
        devices: How many devices; None for all.
        resume: Continue an interrupted run.
        overwrite: Replace a former run in `out`, and discard an interrupted one. Files that were
            not written by a run stay.
    """

    data: str
    out: Path
    model: str | None = None
    weights: str | None = None
    recipe: str | None = None
    image_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    augment: tuple[Any, ...] | None = None
    precision: str = "float32"
    freeze_backbone: bool = False
    lora: int | None = None
    token_merging: int | None = None
    teacher: str | None = None
    distillation: str | None = None
    sam: bool = False
    first_look: bool = False
    patience: int | None = None
    tensorboard: bool = False
    seed: int = 0
    data_dir: str | None = None
    val_fraction: float = 0.2
    on_bad_file: str = "skip"
    held_out: float | None = None
    views: str | None = None
    max_pixels: int = MAX_PIXELS
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    distribution: str | None = None
    devices: int | None = None
    resume: bool = False
    overwrite: bool = False

    @property
    def output(self) -> OutputFolder:
        """The folder of the run, and the one where it is until it is complete."""
        source = self.data.removeprefix("records:").removeprefix("tfds:")
        # A pattern such as /data/train-* is that of files in a folder.
        folder = str(Path(source).parent) if any(c in source for c in "*?[") else source
        inputs = [folder, self.data_dir, self.weights, self.teacher]
        return OutputFolder(
            self.out,
            "run",
            f"{Path(os.path.abspath(self.out)).name}.partial",
            results=RUN_FILES,
            scratch=SCRATCH_FILES,
            protected=[Path(path).expanduser() for path in inputs if path is not None],
            resumable=True,
        )

    @property
    def identity(self) -> dict[str, str]:
        """The options that must agree for two calls to belong to one run.

        Devices need not: a run may continue on others, and with other checkpoints.
        """
        options = asdict(replace(self, resume=False, overwrite=False, out=Path()))
        for name in ("distribution", "devices", "checkpoint_seconds"):
            del options[name]
        return {name: str(value) for name, value in options.items()}
