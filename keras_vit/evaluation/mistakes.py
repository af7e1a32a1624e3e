"""The most confident mistakes of a classifier, and their images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit import data
from keras_vit.errors import check_choice, check_positive
from keras_vit.evaluation.calibration import probabilities_of


@dataclass(frozen=True)
class Mistake:
    """An example whose prediction is not its label.

    Attributes:
        index: Its place in the split.
        label: The class it has.
        prediction: The class it was given.
        probability: Probability of the predicted class.
        label_probability: Probability of the label.
        file: The path of the photograph, or None where there is no file.
    """

    index: int
    label: int
    prediction: int
    probability: float
    label_probability: float
    file: str | None = None


def worst_mistakes(
    labels: Any,
    probabilities: Any,
    count: int = 24,
    files: Sequence[Any] | None = None,
) -> tuple[Mistake, ...]:
    """Wrong predictions, the most confident first.

    Args:
        labels: Integer classes `(examples,)`.
        probabilities: `(examples, classes)`, rows that sum to 1.
        count: The most mistakes to return.
        files: The path of every example, as `Split.files`.

    Returns:
        The mistakes; none when every prediction is right.

    Raises:
        ValueError: Shapes do not match, rows are not probabilities, or `count` is below 1.

    Example:

    >>> from keras_vit.evaluation import worst_mistakes
    >>> found = worst_mistakes([0, 1, 1], [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]])
    >>> [(mistake.index, mistake.probability) for mistake in found]
    [(1, 0.8), (2, 0.7)]
    """
    check_positive(count=count)
    labels, probabilities = probabilities_of(labels, probabilities)
    predictions = probabilities.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    order = np.argsort(-confidence, kind="stable")
    wrong = order[predictions[order] != labels[order]][:count]
    return tuple(
        Mistake(
            index=int(i),
            label=int(labels[i]),
            prediction=int(predictions[i]),
            probability=float(confidence[i]),
            label_probability=float(probabilities[i, labels[i]]),
            file=None if files is None else str(files[i]),
        )
        for i in wrong
    )


def pictures(split: data.Split, indices: Sequence[int], channels: int = 3) -> list[np.ndarray]:
    """Some images of a split as they are, before anything is resized or cut away.

    Args:
        split: One of `keras_vit.data.load(...)`.
        indices: Places in the split's order.
        channels: 3, or 1 for grey.

    Returns:
        uint8 arrays `(height, width, channels)`, in the order of `indices`.

    Raises:
        ValueError: An index is outside the split, or `channels` is neither 1 nor 3.

    >>> from keras_vit import data
    >>> [image.shape for image in pictures(data.load("digits").val, [5, 3], channels=1)]
    [(8, 8, 1), (8, 8, 1)]
    """
    check_choice(channels, "channels", (1, 3))
    if not indices:
        return []
    if min(indices) < 0 or max(indices) >= len(split):
        raise ValueError(
            f"indices from {min(indices)} to {max(indices)} are not all examples of {split!r}. "
            f"Give integers from 0 to {len(split) - 1}."
        )
    import tensorflow as tf

    ascending = sorted(set(indices))
    wanted = tf.constant(ascending, tf.int64)
    # Where files that do not decode are skipped, only those that do are counted.
    examples = split.images(split.dataset(), channels) if split.skips else split.dataset()
    chosen = (
        examples.enumerate()
        .filter(lambda index, _: tf.reduce_any(index == wanted))
        .map(lambda _, example: example)
        .take(len(ascending))
        .apply(tf.data.experimental.assert_cardinality(len(ascending)))
    )
    if not split.skips:
        chosen = split.images(chosen, channels)
    images = [image for image, *_ in chosen.as_numpy_iterator()]
    found = dict(zip(ascending, images, strict=True))
    return [found[index] for index in indices]
