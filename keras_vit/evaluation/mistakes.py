"""The most confident mistakes of a classifier, and their images."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from keras_vit import data
from keras_vit._base.errors import check_choice, check_positive
from keras_vit.data.decode.rasters import shown
from keras_vit.evaluation.outcomes import Outcomes


@dataclass(frozen=True)
class Mistake:
    """An example whose predicted class is not its label.

    Attributes:
        index: Its index in the split.
        label: The true class.
        prediction: The predicted class.
        probability: Probability of the predicted class.
        label_probability: Probability of the label.
        file: The path of the image, or None where there is no file.
    """

    index: int
    label: int
    prediction: int
    probability: float
    label_probability: float
    file: str | None = None


def worst_mistakes(
    labels: Any, probabilities: Any, count: int = 24, files: Sequence[Any] | None = None
) -> tuple[Mistake, ...]:
    """Wrong predictions, the most confident first.

    Args:
        labels: Integer classes `(examples,)`.
        probabilities: `(examples, classes)`, rows that sum to 1.
        count: The largest number of mistakes to return.
        files: The path of every example, as `Split.files`.

    Returns:
        The mistakes; an empty tuple when every prediction is correct.

    Raises:
        ValueError: Shapes do not match, rows are not probabilities, or `count` is below 1.

    Example:

    >>> from keras_vit.evaluation import worst_mistakes
    >>> mistakes = worst_mistakes([0, 1, 1], [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> [(mistake.index, mistake.probability) for mistake in mistakes]
    [(1, 0.8), (2, 0.7)]
    """
    return mistakes_of(Outcomes.of_probabilities(labels, probabilities), count, files)


def mistakes_of(
    outcomes: Outcomes, count: int = 24, files: Sequence[Any] | None = None
) -> tuple[Mistake, ...]:
    """`worst_mistakes` of predictions that are reduced already."""
    check_positive(count=count)
    order = np.argsort(-outcomes.probability, kind="stable")
    wrong = order[outcomes.predictions[order] != outcomes.labels[order]][:count]
    return tuple(
        Mistake(
            index=int(i),
            label=int(outcomes.labels[i]),
            prediction=int(outcomes.predictions[i]),
            probability=float(outcomes.probability[i]),
            label_probability=float(outcomes.label_probability[i]),
            file=None if files is None else str(files[i]),
        )
        for i in wrong
    )


def images_at(
    split: data.Split, indices: Sequence[int], channels: int = 3, largest: int | None = None
) -> list[np.ndarray]:
    """Some images of a split with 3 or 1 `channels`, decoded and not cropped.

    Args:
        split: One of `keras_vit.data.load(...)`.
        indices: Places in the split.
        channels: 3, or 1 for gray; bands are shown as `keras_vit.data.decode.rasters.shown` does.
        largest: The larger side in pixels to which larger images are reduced as soon as they are
            decoded, so that a few photographs do not fill the memory; None keeps their size.

    Returns:
        uint8 arrays `(height, width, channels)`, in the order of `indices`.

    Raises:
        ValueError: An index is outside the split, or `channels` is neither 1 nor 3.

    >>> from keras_vit import data
    >>> [image.shape for image in images_at(data.load("digits").val, [5, 3], channels=1)]
    [(8, 8, 1), (8, 8, 1)]
    """
    if split.bands is not None:
        channels = split.channels
    else:
        check_choice(channels, "channels", (1, 3))
    if not indices:
        return []
    if min(indices) < 0 or max(indices) >= len(split):
        raise ValueError(
            f"indices from {min(indices)} to {max(indices)} are not all examples of {split!r}. "
            f"Give integers from 0 to {len(split) - 1}."
        )
    ascending = sorted(set(indices))
    if split.skips:  # where only those that decode are counted
        places = set(ascending)
        decoded = enumerate(islice(split.decoded(channels), ascending[-1] + 1))
        images = [image for place, (image, _) in decoded if place in places]
    else:
        images = [image for image, _ in split.decoded(channels, ascending)]
    if split.bands is not None:
        images = [shown(image) for image in images]
    by_index = dict(zip(ascending, (_reduced(image, largest) for image in images), strict=True))
    return [by_index[index] for index in indices]


def _reduced(image: np.ndarray, largest: int | None) -> np.ndarray:
    if largest is None or max(image.shape[:2]) <= largest:
        return image
    from PIL import Image

    is_gray = image.shape[-1] == 1
    reduced = Image.fromarray(image[..., 0] if is_gray else image)
    reduced.thumbnail((largest, largest))
    pixels = np.asarray(reduced)
    return pixels[..., None] if is_gray else pixels
