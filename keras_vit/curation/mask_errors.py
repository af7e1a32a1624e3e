"""Which masks are probably wrong, and where: what probes of other images' patches say of each."""

from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np

from keras_vit import data
from keras_vit._base.errors import check_positive, warn_at_caller
from keras_vit.curation.label_errors import confident_errors, probe_probabilities
from keras_vit.evaluation.prediction import check_takes_pixels, padded, pipeline_arguments
from keras_vit.evaluation.probes import STRENGTHS
from keras_vit.tasks import Segmentation

_LAYER = "encoder_norm"
_MOST_PATCHES = 6000  # that a probe is fitted to: those of one image are much alike
_MOST_CONTRADICTED = 0.5  # of the masks, beyond which it is the features that are wrong
_PURE = 0.9  # of a patch's pixels that are of one class: others lie on borders, and prove nothing


@dataclass(frozen=True)
class MaskErrors:
    """How well each mask agrees with the features of its photograph.

    Attributes:
        disagreement: float64 `(n,)`, the part of an image's patches that another class is for,
            each by how much more probable that is than the labeled one; 0 where nothing is.
        order: int64 `(n,)`, the images, those that disagree most first.
        labels: int32 `(n, rows, columns)`, the class of each patch; -1 on borders between classes
            and where the class is not known.
        suggested: int32 `(n, rows, columns)`, the most probable class of each patch.
        wrong: bool `(n, rows, columns)`, the patches that confident learning calls wrong.
    """

    disagreement: np.ndarray
    order: np.ndarray
    labels: np.ndarray
    suggested: np.ndarray
    wrong: np.ndarray


def find_mask_errors(
    model: Any, split: data.Split, *, folds: int = 5, seed: int = 0, batch_size: int = 32
) -> MaskErrors:
    """Compare the mask of every photograph with probes that have not seen the photograph.

    A linear probe per fold of the photographs (`probe_probabilities`) is fitted to the model's
    patch features and their classes, those of patches on borders left out, and answers the patches
    of the others. Objects smaller than a patch are not seen, nor borders that lie a little beside.

    Args:
        model: A ViT that takes pixels; trained on other images, or without labels.
        split: Photographs and masks, `keras_vit.data.load(folder, labels=masks)["train"]`.
        folds: Of the photographs.
        seed: Which photographs are in which fold.
        batch_size: Images per batch.

    Warns where the features do not separate the classes, so that most masks are contradicted.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: The labels are not masks, the model does not have features of patches, or a
            number is out of range.

    Source: Northcutt, Jiang and Chuang, "Confident Learning" (2021), of patches in place of images.

    Example:

    >>> import keras_vit, numpy as np
    >>> from keras_vit.curation.mask_errors import find_mask_errors
    >>> masks = np.zeros((10, 16, 16), int)
    >>> masks[:, 8:] = 1
    >>> images = np.repeat(200 * masks[..., None], 3, axis=-1).astype("uint8")
    >>> masks[4] = 1 - masks[4]
    >>> task = keras_vit.tasks.Segmentation(size=2)
    >>> split = keras_vit.data.ArraySplit("all", task, images, masks)
    >>> model = keras_vit.VisionTransformer(patch_size=4, hidden_dim=16, depth=1, num_heads=2,
    ...     input_shape=(16, 16, 3), num_classes=0)
    >>> int(find_mask_errors(model, split).order[0])
    4
    """
    check_positive(batch_size=batch_size)
    task = split.task
    if not isinstance(task, Segmentation):
        raise ValueError(
            f"{split!r} has labels of {task.kind}, and not a mask for each image: load it with "
            "labels=, a folder of masks."
        )
    features, labels = _patches(model, split, batch_size)
    count, rows, columns = labels.shape
    flat, groups = labels.reshape(-1), np.repeat(np.arange(count), rows * columns)
    settings: dict[str, Any] = {"folds": folds, "seed": seed, "strengths": STRENGTHS[1:4]}
    probabilities = probe_probabilities(features, flat, groups, most=_MOST_PATCHES, **settings)
    known = np.flatnonzero(flat >= 0)
    wrong, excess = np.zeros(len(flat), bool), np.zeros(len(flat))
    wrong[known] = confident_errors(flat[known], probabilities[known])
    excess[known] = probabilities[known].max(axis=1) - probabilities[known, flat[known]]
    disagreement = (excess * wrong).reshape(count, -1).mean(axis=1)
    if (contradicted := (disagreement > 0).mean()) > _MOST_CONTRADICTED:
        warn_at_caller(
            f"The features contradict {contradicted:.0%} of {count:,} masks somewhere: they do not "
            "separate the classes well, and most of these masks may be right. Take a larger model "
            "or image size."
        )
    return MaskErrors(
        disagreement,
        np.argsort(-disagreement, kind="stable"),
        labels,
        probabilities.argmax(axis=1).astype(np.int32).reshape(labels.shape),
        wrong.reshape(labels.shape),
    )


def _patches(model: Any, split: data.Split, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of all patches, `(patches, dimension)`, and the class of each."""
    check_takes_pixels(model)
    if _LAYER not in model.feature_names:
        raise ValueError(
            f"{model.name} does not have features of patches: give a Vision Transformer."
        )
    arguments = pipeline_arguments(model)
    transform = arguments["eval_transform"]
    if not transform.is_whole:  # as masks are
        arguments["eval_transform"] = replace(transform, mode="stretch", interpolation=None)
    encoder = model.feature_model(_LAYER, format="grid")
    features, labels = [], []
    batches = data.pipeline(split, batch_size=batch_size, **arguments)
    first = getattr(model, "data_format", "channels_last") == "channels_first"
    for images, masks in batches.as_numpy_iterator():
        grids = keras.ops.convert_to_numpy(encoder.predict_on_batch(padded(images, batch_size)))
        grids = (np.moveaxis(grids, 1, -1) if first else grids)[: len(images)]
        features.append(grids)
        labels.append(_classes(masks, grids.shape[1:3], split.task.size))
    of_all = np.concatenate(features)
    return of_all.reshape(-1, of_all.shape[-1]), np.concatenate(labels)


def _classes(masks: np.ndarray, grid: tuple[int, int], size: int) -> np.ndarray:
    """Return the class of each patch, int32 `(n, rows, columns)`; -1 where it has several."""
    rows, columns = grid
    p, q = (side // n for side, n in zip(masks.shape[1:], grid, strict=True))
    patches = masks[:, : rows * p, : columns * q].reshape(-1, rows, p, columns, q)
    parts = np.stack([(patches == c).mean(axis=(2, 4)) for c in range(size)], axis=-1)
    return np.where(parts.max(axis=-1) >= _PURE, parts.argmax(axis=-1), -1).astype(np.int32)
