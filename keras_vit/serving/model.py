"""A model as the server needs it: from pixels to probabilities, whatever kind of file it is in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit import backend
from keras_vit.checkpoints import load_model
from keras_vit.data.decoder import check_channels
from keras_vit.errors import printable
from keras_vit.evaluation.prediction import (
    check_takes_pixels_to_classes,
    image_shape,
    probabilities_of,
)
from keras_vit.export import load_exported
from keras_vit.export.exported import format_of
from keras_vit.inspection import attention_rollout
from keras_vit.inspection.forward_pass import encoder_blocks
from keras_vit.inspection.plots import covered_size
from keras_vit.models.views import average_views


@dataclass(frozen=True)
class ServedModel:
    """What the server calls.

    Attributes:
        class_names: One printable name per class.
        image_size: Height and width of the images.
        channels: 3, or 1 for grey.
        evaluation: How an image is brought to that size: `mode` and `crop_fraction` of
            `keras_vit.data.evaluation_image`.
        format: What was loaded, such as `"keras"` or `"onnx"`.
        predict: From float32 pixels 0..255 `(batch, height, width, channels)` to probabilities
            `(batch, classes)`.
        rollout: From the pixels of one image `(1, height, width, channels)` to its attention
            rollout `(grid_h, grid_w)` and the height and width in pixels that the grid covers;
            None for a model without attention.
    """

    class_names: tuple[str, ...]
    image_size: tuple[int, int]
    channels: int
    evaluation: dict[str, Any]
    format: str
    predict: Callable[[np.ndarray], np.ndarray]
    rollout: Callable[[np.ndarray], tuple[np.ndarray, tuple[int, int]]] | None = None


def load_served(path: str | Path) -> ServedModel:
    """The model in a file, the folder of a run, an exported artefact, or released weights.

    Raises:
        ValueError: The file is damaged, or its model cannot classify images.
        FileNotFoundError: There is no such file.
    """
    served = _load(Path(path))
    check_channels(served.channels)
    return served


def _load(path: Path) -> ServedModel:
    if format_of(path) is None:
        if not path.exists() and ":" not in str(path):
            raise FileNotFoundError(
                f"There is no model at {path}. Give a .keras or weights file, the folder of a "
                "training run, an exported file, or a folder of numbered versions of one."
            )
        return _from_keras(load_model(path))
    exported = load_exported(path)
    contract = exported.contract
    return ServedModel(
        class_names=tuple(map(printable, contract.class_names)),
        image_size=contract.image_size,
        channels=contract.channels,
        evaluation=dict(contract.evaluation),
        format=contract.format,
        predict=exported.predict_on_batch,
    )


def warm_up(model: ServedModel, batch_size: int) -> None:
    """Computes batches of every size that is compiled, and checks what comes back.

    Raises:
        ValueError: The probabilities are not finite, or do not match the class names.
    """
    for size in sorted({1, 2, *_sizes(batch_size)}):
        shape = (size, *model.image_size, model.channels)
        probabilities = model.predict(np.zeros(shape, "float32"))
        if probabilities.shape != (size, len(model.class_names)):
            raise ValueError(
                f"The model returns {probabilities.shape} for {size} images and "
                f"{len(model.class_names)} class names. Give a classifier with a name per class."
            )
        if not np.isfinite(probabilities).all():
            raise ValueError(
                "The model predicts values that are not finite: its weights are damaged, or its "
                "training diverged. Train it again, or take another file."
            )


def _sizes(batch_size: int) -> list[int]:
    """The powers of two below `batch_size`, and `batch_size`."""
    return [*(2**i for i in range((batch_size - 1).bit_length())), batch_size]


def _from_keras(model: Any) -> ServedModel:
    check_takes_pixels_to_classes(model)
    averaged = average_views(model)
    size, channels = image_shape(model)
    names = model.class_names or tuple(map(str, range(model.num_classes)))

    def arranged(images: np.ndarray) -> np.ndarray:
        return np.moveaxis(images, -1, 1) if model.data_format == "channels_first" else images

    def predict(images: np.ndarray) -> np.ndarray:
        count = len(images)
        if backend.compiles_per_shape():
            images = np.pad(images, [(0, _power_of_two(count) - count), (0, 0), (0, 0), (0, 0)])
        return probabilities_of(model, averaged.predict_on_batch(arranged(images)))[:count]

    def rollout(images: np.ndarray) -> tuple[np.ndarray, tuple[int, int]]:
        maps = attention_rollout(model, arranged(images))
        return maps[0], covered_size(model, maps.shape[1:])

    return ServedModel(
        class_names=tuple(map(printable, names)),
        image_size=size,
        channels=channels,
        evaluation=dict(model.eval_transform),
        format="keras",
        predict=predict,
        rollout=rollout if _has_attention(model) else None,
    )


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _has_attention(model: Any) -> bool:
    try:
        return bool(encoder_blocks(model))
    except ValueError:
        return False
