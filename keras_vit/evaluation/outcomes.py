"""What a report needs of each prediction: four numbers per image, however many classes there are.

Scores of 21,843 images and as many classes are 1.9 GB; softmax and checks would copy them several
times. So rows are checked and reduced a few at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from keras_vit.evaluation.checks import (
    check_label_shape,
    check_labels,
    check_probability_rows,
    check_scores,
    row_slices,
)
from keras_vit.tasks.classification import most_probable, softmax
from keras_vit.tasks.conformal import PredictionSets


@dataclass(frozen=True)
class Outcomes:
    """Labels and predictions of some examples.

    Attributes:
        labels: Integer classes `(examples,)`.
        predictions: The most probable class of each `(examples,)`.
        probability: Its probability `(examples,)`, float64.
        label_probability: The probability of the label `(examples,)`, float64.
        set_sizes: Classes in the prediction set of each, int `(examples,)`; None without sets.
        in_set: Whether the label is one of them, bool `(examples,)`; None without sets.
        novelty: How far each image is from the training images, in parts of the threshold
            `(examples,)`; None for a model without a novelty.
    """

    labels: np.ndarray
    predictions: np.ndarray
    probability: np.ndarray
    label_probability: np.ndarray
    set_sizes: np.ndarray | None = None
    in_set: np.ndarray | None = None
    novelty: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @classmethod
    def of_logits(cls, labels: Any, logits: Any) -> Outcomes:
        """Outcomes of logits `(examples, classes)`.

        Raises:
            ValueError: Shapes do not match, labels are out of range, or logits are not finite.

        Example:

        >>> import numpy as np
        >>> from keras_vit.evaluation.outcomes import Outcomes
        >>> outcomes = Outcomes.of_logits([0, 1], np.array([[0.0, 0.0], [9.0, 0.0]]))
        >>> outcomes.predictions.tolist(), float(outcomes.probability[0])
        ([0, 0], 0.5)
        """
        return cls._of(labels, np.asarray(logits), softmax)

    @classmethod
    def of_scores(
        cls, labels: Any, scores: Any, activation: str | None, sets: PredictionSets | None = None
    ) -> Outcomes:
        """Outcomes of what a model with this `classifier_activation` returns; None: logits.

        Args:
            labels: Integer classes `(examples,)`.
            scores: `(examples, classes)`.
            activation: Of the model.
            sets: The prediction sets of its task, or None.
        """
        to_probabilities = softmax if activation is None else lambda rows: rows
        return cls._of(labels, np.asarray(scores), to_probabilities, sets)

    @classmethod
    def of_probabilities(cls, labels: Any, probabilities: Any) -> Outcomes:
        """Outcomes of probabilities `(examples, classes)`, rows that sum to 1.

        Raises:
            ValueError: Shapes do not match, labels are out of range, or rows are not probabilities.
        """
        return cls._of(labels, np.asarray(probabilities), check_probability_rows)

    @classmethod
    def joined(cls, parts: list[Outcomes]) -> Outcomes:
        """All examples of some parts, in order."""
        columns: dict[str, Any] = {
            field.name: [getattr(part, field.name) for part in parts] for field in fields(cls)
        }
        joined: dict[str, Any] = {
            k: None if x[0] is None else np.concatenate(x) for k, x in columns.items()
        }
        return cls(**joined)

    @classmethod
    def _of(
        cls,
        labels: Any,
        scores: np.ndarray,
        to_probabilities: Callable[[np.ndarray], np.ndarray],
        sets: PredictionSets | None = None,
    ) -> Outcomes:
        labels = np.asarray(labels)
        check_label_shape(labels, scores)
        check_labels(labels, scores.shape[1])
        check_scores(scores)
        parts = []
        for rows in row_slices(scores):
            part, probabilities = labels[rows], to_probabilities(scores[rows].astype(np.float64))
            at = np.arange(len(part))
            best = most_probable(probabilities)
            inside = None if sets is None else sets.contains(probabilities)
            parts.append(
                cls(
                    part,
                    best,
                    probabilities[at, best],
                    probabilities[at, part],
                    None if inside is None else inside.sum(axis=1),
                    None if inside is None else inside[at, part],
                )
            )
        return cls.joined(parts)
