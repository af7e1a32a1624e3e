"""Exported files, read back: what they take, and predictions by their own engines."""

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit._base.errors import check_positive
from keras_vit.exporting.contract import Contract, Run
from keras_vit.exporting.failure import engine_errors
from keras_vit.exporting.format_table import FORMATS, row_of
from keras_vit.models.answers import several_tasks
from keras_vit.models.combined import Head
from keras_vit.tasks import Task
from keras_vit.trainer.pixel_ranges import check_pixels
from keras_vit.weights import load
from keras_vit.weights.checkpoint_error import CheckpointError
from keras_vit.weights.containers.checkpoint_file import holds_weights
from keras_vit.weights.folders.combined_folder import is_combined, load_combined
from keras_vit.weights.folders.folder_writer import folder_layout

_GIVE = (
    "Give a .onnx, .tflite, .pt2, .pte or .html file, or the folder of a SavedModel, of OpenVINO, "
    "Core ML or a page, as keras_vit.export writes them."
)


class ExportedModel:
    """A model in an exported file; has what `predict_files` and `predict_split` need.

    Attributes:
        path: The file or folder.
        contract: What it takes and returns.
        name: Of the file.
        task: What it answers; None where nobody said what its outputs mean, until it is assigned.
            Of a file with several heads, a ValueError.
        heads: Of a file with several heads, a `keras_vit.models.combined.Head` each, else ().
        class_names: The names of the task, or numbers; None without one.
        num_classes: How many answers, or raw outputs, there are for an image.
        output_shape: `(None, num_classes)`, or that of the raw outputs.
        classifier_activation: `"exported"`: it returns answers; None: raw outputs.
        eval_transform: How photographs are prepared.
        normalization: The means and standard deviations of bands; None for photographs.
        image_size: Height and width.
        seen_images: Which images the model was made with, or None.
        input_shape: `(None, height, width, channels)`.
    """

    data_format = "channels_last"
    include_preprocessing = True

    def __init__(self, path: Path, contract: Contract, run: Run) -> None:
        self.path, self.contract, self._run = path, contract, run
        self.name = path.name
        self._task = contract.task
        self.heads = tuple(
            Head(name, task, "exported", (None, *task.answer_shape(contract.image_size)))
            for name, task in contract.tasks
        )
        self.class_names = contract.task and contract.task.shown_names
        self.output_shape = (None, *contract.heads[0].answer_shape)
        self.num_classes = contract.heads[0].answer_shape[-1]
        self.classifier_activation = "exported" if contract.has_task else None
        self.eval_transform, self.normalization = contract.evaluation, contract.statistics
        self.image_size, self.seen_images = contract.image_size, contract.seen_images
        self.input_shape = (None, *contract.image_size, contract.channels)
        self._looks = True  # until a batch of `predict_on_batch` has shown its range

    @property
    def task(self) -> Task | None:
        if self.heads:
            raise ValueError(several_tasks(self.name, dict(self.contract.tasks)))
        return self._task

    @task.setter
    def task(self, task: Task | None) -> None:
        self._task = task

    def predict(
        self,
        images: Any,
        batch_size: int = 32,
        verbose: int | str = 0,
        steps: int | None = None,
    ) -> Any:
        """Return float32 answers `(images, size)`, such as probabilities; without a task, outputs.

        Of a file with several heads, a list of the answers of each.

        Args:
            images: Pixels 0..255 `(images, height, width, channels)`, uint8 or float; or batches
                of such, with or without labels: what `keras_vit.data.pipeline` returns, or a
                `tf.data.Dataset`. The first batch is looked at: `keras_vit.data.DataRangeWarning`.
            batch_size: Images per batch, of an array.
            verbose: Is there as in Keras, and prints nothing.
            steps: Batches to take; by default all, which batches without an end do not have.

        Raises:
            ValueError: The images have another shape, or the first of them hold NaN, or
                `batch_size` or `steps` is below 1.
        """
        outputs = self.outputs(images, batch_size, verbose, steps)
        return outputs if self.heads else outputs[0]

    def predict_on_batch(self, images: Any) -> Any:
        """Return the answers for one batch, as `predict`."""
        outputs = self.outputs_on_batch(images)
        return outputs if self.heads else outputs[0]

    @property
    def is_calibrated(self) -> bool:
        """Whether the task has prediction sets or intervals, or the file a novelty."""
        promises = any(head.task and head.task.is_calibrated for head in self.contract.heads)
        return promises or self.contract.novelty

    def scoring(self) -> Any:
        """Return what `keras_vit.models.scoring.scoring_model` returns for a model."""
        return _Scoring(self) if self.contract.novelty else self

    def outputs(
        self,
        images: Any,
        batch_size: int = 32,
        verbose: int | str = 0,
        steps: int | None = None,
    ) -> list[np.ndarray]:
        """Return what `predict` returns, and the novelty `(images,)` where the file has one."""
        check_positive(batch_size=batch_size)
        if steps is not None:
            check_positive(steps=steps)
        self._looks = True
        if hasattr(images, "as_numpy_iterator"):
            batches = images.as_numpy_iterator()
        else:
            batches = (images[i : i + batch_size] for i in range(0, len(images), batch_size))
        batches = itertools.islice(batches, steps)
        none = [np.zeros((0, *each.answer_shape), "float32") for each in self.contract.heads]
        parts = [none + [np.zeros(0, "float32")] * self.contract.novelty]
        parts += [self.outputs_on_batch(b[0] if isinstance(b, tuple) else b) for b in batches]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def outputs_on_batch(self, images: Any) -> list[np.ndarray]:
        """Return the answers for one batch, of each head, and the novelty where there is one."""
        images = np.asarray(images)
        if images.ndim != 4 or images.shape[1:] != self.input_shape[1:]:
            raise ValueError(
                f"images of shape {images.shape} do not fit {self.name}, which takes "
                f"{self.input_shape}."
            )
        if self._looks:
            self._looks = not check_pixels(images, self.name, statistics=self.contract.statistics)
        return self._run(images.astype("float32"))


class _Scoring:
    """An exported file that predicts a novelty beside the answers."""

    def __init__(self, file: ExportedModel) -> None:
        self.predict, self.predict_on_batch = file.outputs, file.outputs_on_batch


def load_exported(path: str | os.PathLike[str]) -> ExportedModel:
    """Opens what `keras_vit.export` wrote, in the format's own engine.

    Args:
        path: A `.onnx`, `.tflite`, `.pt2`, `.pte` or `.html` file, or the folder of a SavedModel,
            of OpenVINO, Core ML or a page.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It was not exported by this package, or is damaged.
        ImportError: The engine is not installed.
        RuntimeError: It is for Core ML, and this is not a Mac.

    Example:

    >>> import keras_vit, tempfile
    >>> from keras_vit.exporting import load_exported
    >>> model = keras_vit.VisionTransformer(num_classes=2, patch_size=8, hidden_dim=16, depth=1,
    ...                                     num_heads=2, input_shape=(32, 32, 3))
    >>> folder = keras_vit.export(model, tempfile.mkdtemp() + "/1", class_names="ab")
    >>> load_exported(folder).class_names
    ('a', 'b')
    """
    path = Path(path)
    contract = read_contract(path)
    row = row_of(contract.format)
    row.require(row.runs_with)
    row.require_system(path)
    with engine_errors(f"{path} is damaged"):
        run = row.implementation().runner(path, contract.measured, "float32")
    return ExportedModel(path, contract, run)


def load_classifier(path: str | Path, *, several: bool = False) -> Any:
    """Opens what `keras_vit.load` or `load_exported` opens: for predictions, either will do.

    Args:
        path: A file, the folder of a run, `"MODEL:TAG"` of released weights, or an exported file.
        several: Open the folder of a combined model as well.

    Returns:
        An `ImageModel`, an `ExportedModel`, or a `CombinedModel`.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It is damaged or of something else.
        ImportError: The engine of an exported file is not installed.

    Example:

    >>> import keras_vit, tempfile
    >>> from keras_vit.exporting import load_classifier
    >>> model = keras_vit.VisionTransformer(num_classes=2, patch_size=8, hidden_dim=16, depth=1,
    ...                                     num_heads=2, input_shape=(32, 32, 3))
    >>> model.save(file := tempfile.mkdtemp() + "/model.keras")
    >>> load_classifier(file).num_classes
    2
    """
    if several and is_combined(Path(path)):
        return load_combined(path)
    return load(path) if format_of(Path(path)) is None else load_exported(path)


def read_contract(path: str | os.PathLike[str]) -> Contract:
    """Return what an exported file takes and returns.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It was not exported by this package, or is damaged.
        ImportError: The package that reads it is not installed.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no exported model at {path}.")
    name = format_of(path) or folder_layout(path)
    if name is None:
        within = [f for of in ("*", "saved_models/*/*") for f in path.glob(f"{of}/saved_model.pb")]
        near = f" There is one at {within[0].parent}." if within else ""
        raise CheckpointError(f"{path} is not an exported model.{near} {_GIVE}")
    row = row_of(name)
    with engine_errors(f"{path} is damaged, or was not exported by this package"):
        try:
            contract = row.implementation().read_contract(path)
        except KeyError as error:
            raise CheckpointError(f"{path} was not exported by this package. {_GIVE}") from error
        except ImportError:
            row.require(row.runs_with)  # says how to install it
            raise
    if contract.format != name:
        raise CheckpointError(f"{path} says that it is {contract.format!r}, and is {name!r}.")
    return contract


def format_of(path: Path) -> str | None:
    """Return the format that a file or folder has by its name or files; None if none of them."""
    if path.is_dir():
        if holds_weights(path):  # a run, or a folder of weights
            return None
        for name, row in FORMATS.items():
            if row.patterns and (path / row.patterns[0]).exists():
                return name
        return None
    return next((name for name, row in FORMATS.items() if row.suffix == path.suffix.lower()), None)
