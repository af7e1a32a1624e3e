"""A model as the server needs it: from pixels to probabilities, whatever kind of file it is in."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import ops as backend
from keras_vit._base.errors import printable
from keras_vit.data.data_errors import check_channels
from keras_vit.data.eval_transform import EvalTransform
from keras_vit.evaluation.prediction import (
    check_reads_files,
    check_takes_pixels_to_answers,
    size_and_channels,
)
from keras_vit.exporting import ExportedModel, load_classifier
from keras_vit.inspection.recording import encoder_blocks
from keras_vit.models import ImageModel
from keras_vit.models.answers import task_of
from keras_vit.models.layer_state import weights_digest
from keras_vit.models.scoring import answer_rows, has_novelty, scoring_model
from keras_vit.models.views import eval_transform_of, mean_of_views
from keras_vit.tasks import Task
from keras_vit_cli.inspect.looks import look
from keras_vit_cli.model_files import sum_of_files
from keras_vit_cli.serve.drift import FeatureDrift


@dataclass(frozen=True)
class Explanation:
    """Where a model looked in an image.

    Attributes:
        map: `(grid_h, grid_w)`: see `class_attribution` and `attention_rollout`.
        covered: Height and width in pixels that the grid covers.
        class_name: The class that the map is of; None for rollout, which is of none.
        evidence: What it speaks for, such as "at least severe"; None for rollout.
    """

    map: np.ndarray
    covered: tuple[int, int]
    class_name: str | None = None
    evidence: str | None = None


@dataclass(frozen=True)
class ServedModel:
    """What the server calls.

    Attributes:
        task: What the answers mean, with printable names.
        channels: 3, or 1 for gray.
        evaluation: How an image is brought to that size: see
            `keras_vit.data.evaluation_image`.
        sha256: Of the weights in Keras's order; of an exported file that of the file, and of an
            exported folder that of the lines that `sha256sum` prints for its sorted files.
        predict: From float32 pixels 0..255 `(batch, height, width, channels)` to answers
            `(batch, size)`.
        explain: From the pixels of one image `(1, height, width, channels)`, a method,
            `"attribution"` or `"rollout"`, and the name of a class or None for the predicted one,
            to an `Explanation`; None for a model without attention.
        novelty: Whether answers are `(batch, size + 1)`, the last of which is the novelty.
        drift: That of predicted images; None without a novelty, or where features are not returned.
    """

    task: Task
    image_size: tuple[int, int]
    channels: int
    evaluation: EvalTransform
    format: str
    sha256: str
    predict: Callable[[np.ndarray], np.ndarray]
    explain: Callable[[np.ndarray, str, str | None], Explanation] | None = None
    novelty: bool = False
    drift: FeatureDrift | None = None

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the task."""
        return self.task.names


def load_served(path: str | Path) -> ServedModel:
    """Return the model in a file, the folder of a run, an exported artifact, or released weights.

    Raises:
        ValueError: The file is damaged, or its model cannot classify images.
        FileNotFoundError: There is no such file.
    """
    model = load_classifier(path)
    served = _from_exported(model) if isinstance(model, ExportedModel) else _from_keras(model)
    if (bands := eval_transform_of(model).bands) is not None:
        raise ValueError(
            f"{path} is for bands {bands} of raster files, and the server takes "
            "photographs: keras-vit predict takes such files, and an exported file their pixels."
        )
    check_reads_files(model)
    check_channels(served.channels)
    return served


def _from_exported(model: ExportedModel) -> ServedModel:
    check_takes_pixels_to_answers(model)
    contract = model.contract
    return ServedModel(
        task=_printable(task_of(model)),
        image_size=contract.image_size,
        channels=contract.channels,
        evaluation=contract.evaluation,
        format=contract.format,
        sha256=sum_of_files(model.path),
        predict=lambda images: answer_rows(model, model.scoring().predict_on_batch(images)),
        novelty=has_novelty(model),
    )


def warm_up(model: ServedModel, batch_size: int) -> None:
    """Computes batches of every size that is compiled, and checks what comes back.

    Raises:
        ValueError: The answers are not finite, or do not match the task.
    """
    powers = (2**i for i in range((batch_size - 1).bit_length()))
    for size in sorted({1, 2, *powers, batch_size}):
        shape = (size, *model.image_size, model.channels)
        answers = model.predict(np.zeros(shape, "float32"))
        *first, last = model.task.answer_shape(model.image_size)
        if answers.shape != (size, *first, last + model.novelty):
            raise ValueError(
                f"The model returns {answers.shape} for {size} images, which is not "
                f"{model.task.kind} of {model.task.size}."
            )
        if not np.isfinite(answers).all():
            raise ValueError(
                "The model predicts values that are not finite: its weights are damaged, or its "
                "training diverged. Train it again, or take another file."
            )
    if model.drift is not None:
        model.drift.rows.clear()  # of black images, which nobody sent


def _from_keras(model: ImageModel) -> ServedModel:
    check_takes_pixels_to_answers(model)
    drift = FeatureDrift(model.novelty.get_weights()[0]) if model.novelty else None
    scoring = scoring_model(model, with_features=drift is not None)
    averaged = mean_of_views(model)
    size, channels = size_and_channels(model)
    task = _printable(task_of(model))
    printed = task.names

    def arranged(images: np.ndarray) -> np.ndarray:
        return np.moveaxis(images, -1, 1) if model.data_format == "channels_first" else images

    def predict(images: np.ndarray) -> np.ndarray:
        count = len(images)
        if backend.compiles_per_shape():
            missing = (1 << (count - 1).bit_length()) - count  # to a power of two
            images = np.pad(images, [(0, missing), *3 * [(0, 0)]])
        outputs = scoring.predict_on_batch(arranged(images))
        if drift is not None:
            *outputs, features = outputs
            drift.add(features[:count])
        return answer_rows(model, outputs)[:count]

    def explain(images: np.ndarray, method: str, class_name: str | None) -> Explanation:
        number = None if class_name is None else printed.index(class_name)
        looks = look(model, arranged(images), images.shape[1:3], 1, method, number, averaged)
        if not looks.classes:
            return Explanation(looks.maps[0], looks.covered)
        evidence = printable(task.evidence_text(looks.classes[0]))
        return Explanation(looks.maps[0], looks.covered, printed[looks.classes[0]], evidence)

    return ServedModel(
        task=task,
        image_size=size,
        channels=channels,
        evaluation=model.eval_transform,
        format="keras",
        sha256=weights_digest(model),
        predict=predict,
        novelty=has_novelty(model),
        drift=drift,
        explain=explain if _has_attention(model) else None,
    )


def _printable(task: Task) -> Task:
    return task.with_names(list(map(printable, task.shown_names)))


def _has_attention(model: Any) -> bool:
    try:
        return bool(encoder_blocks(model))
    except ValueError:
        return False
