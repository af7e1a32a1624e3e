"""What an exported file predicts beside its model, on labeled images."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import data
from keras_vit._base.errors import counted
from keras_vit.evaluation.prediction import pipeline_arguments, predict_split
from keras_vit.export.exported import ExportedModel, format_of
from keras_vit.export.format_table import FORMATS

# Images to calibrate by: NNCF's own default.
CALIBRATION_IMAGES = 300


@dataclass(frozen=True)
class Comparison:
    """A model and the file that was made of it, on the same labeled images.

    Attributes:
        images: How many.
        accuracy: Of the model, 0..1.
        exported_accuracy: Of the file, 0..1.
        agreement: The part of the images to which both give the same class.
        size: Bytes of the file.
        weights: Bytes of the model's weights.
    """

    images: int
    accuracy: float
    exported_accuracy: float
    agreement: float
    size: int
    weights: int

    def __str__(self) -> str:
        return "\n".join(
            (
                f"on {counted(self.images, 'image')}{'':12}model      file",
                f"  accuracy{'':16}{self.accuracy:8.2%}  {self.exported_accuracy:8.2%}",
                f"  the same class{'':20}{self.agreement:8.2%}",
                f"  size{'':20}{self.weights / 1e6:5.1f} MB  {self.size / 1e6:5.1f} MB",
            )
        )


def compare(model: Any, exported: ExportedModel, split: data.Split) -> Comparison:
    """Predicts a split by a model and by the file that was exported from it.

    Raises:
        ValueError: The split does not have the model's classes.
    """
    if len(split.class_names) != exported.num_classes:
        raise ValueError(
            f"{exported.name} predicts {exported.num_classes} classes, and the data has "
            f"{len(split.class_names)}: give the data that it was trained for."
        )
    labels, scores = predict_split(model, split)
    _, probabilities = predict_split(exported, split)
    classes, exported_classes = scores.argmax(-1), probabilities.argmax(-1)
    return Comparison(
        len(labels),
        float(np.mean(classes == labels)),
        float(np.mean(exported_classes == labels)),
        float(np.mean(classes == exported_classes)),
        size_of(exported.path),
        4 * model.count_params(),
    )


def size_of(path: Path) -> int:
    """Bytes of an exported file, or of the files of its folder."""
    if path.is_file():
        return path.stat().st_size
    name = format_of(path)
    patterns = FORMATS[name].files if name else ("*",)
    return sum(f.stat().st_size for pattern in patterns for f in path.glob(pattern))


def calibration_images(
    model: Any, split: data.Split, number: int = CALIBRATION_IMAGES
) -> np.ndarray:
    """Images of a split as the model sees them, uint8, taken evenly over the split."""
    step = max(1, len(split) // number)
    batches = data.pipeline(split, batch_size=step, **pipeline_arguments(model))
    firsts = [images[:1] for images, _ in islice(batches.as_numpy_iterator(), number)]
    return np.clip(np.rint(np.concatenate(firsts)), 0, 255).astype("uint8")
