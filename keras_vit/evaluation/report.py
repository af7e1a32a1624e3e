"""Precision, recall and F1 per class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from keras_vit.errors import printable
from keras_vit.evaluation.checks import check_labels, check_scores
from keras_vit.evaluation.markdown import table

_COLUMNS = ("class", "precision", "recall", "F1", "support")


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class, each from 0 to 1; `support` is its number of examples."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationReport:
    """How well a classifier does on labelled examples; prints as a table.

    Attributes:
        accuracy: Share of correct predictions.
        classes: Scores per class, in the order of the labels.
        macro: Mean of the scores over classes.
        weighted: Mean of the scores over examples.
        confusion: `(classes, classes)` counts; rows are labels, columns predictions.
    """

    accuracy: float
    classes: tuple[ClassScores, ...]
    macro: ClassScores
    weighted: ClassScores
    confusion: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON accepts them."""
        return {**asdict(self), "confusion": self.confusion.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ClassificationReport:
        """The inverse of `to_dict`."""
        return cls(
            values["accuracy"],
            tuple(ClassScores(**scores) for scores in values["classes"]),
            ClassScores(**values["macro"]),
            ClassScores(**values["weighted"]),
            np.array(values["confusion"]),
        )

    def _rows(self) -> list[tuple[str, ...]]:
        scores = [
            (s.name, f"{s.precision:.3f}", f"{s.recall:.3f}", f"{s.f1:.3f}", str(s.support))
            for s in (*self.classes, self.macro, self.weighted)
        ]
        return [*scores, ("accuracy", "", "", f"{self.accuracy:.3f}", str(self.macro.support))]

    def __str__(self) -> str:
        cells = [tuple(map(printable, row)) for row in (_COLUMNS, *self._rows())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for name, *numbers in cells:
            right = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
            lines.append("  ".join([name.ljust(widths[0]), *right]))
        rule, end = "-" * len(lines[0]), len(self.classes) + 1
        return "\n".join([lines[0], rule, *lines[1:end], rule, *lines[end:]])

    def to_markdown(self) -> str:
        """The table in Markdown."""
        return table(_COLUMNS, self._rows(), "lrrrr")


def classification_report(
    labels: Any, predictions: Any, class_names: Sequence[str]
) -> ClassificationReport:
    """Scores predicted classes against labels, by scikit-learn's metrics.

    Args:
        labels: Integer classes `(examples,)`.
        predictions: Predicted classes `(examples,)`, or probabilities or logits
            `(examples, classes)`.
        class_names: The name of every class.

    Returns:
        The report. A class that is never predicted has precision 0, and one without examples
        recall 0.

    Raises:
        ValueError: Shapes do not match, a class does not have a name, or scores are NaN or
            infinite.

    Example:

    >>> from keras_vit.evaluation import classification_report
    >>> report = classification_report([0, 0, 1, 1], [0, 1, 1, 1], ["cat", "dog"])
    >>> print(report.accuracy, round(report.classes[1].precision, 3))
    0.75 0.667
    """
    from sklearn import metrics

    labels, predictions = np.asarray(labels), np.asarray(predictions)
    if predictions.ndim == 2:
        if predictions.shape[1] != len(class_names):
            raise ValueError(
                f"Predictions {predictions.shape} do not have one column per class: there are "
                f"{len(class_names)} class names."
            )
        check_scores(predictions)
        predictions = predictions.argmax(axis=-1)
    if labels.shape != predictions.shape or labels.ndim != 1 or not labels.size:
        raise ValueError(
            f"{labels.shape} labels do not match {predictions.shape} predictions. "
            "Give one class per example, or one row of scores."
        )
    highest, classes = max(labels.max(), predictions.max()), len(class_names)
    if highest >= classes:
        raise ValueError(f"Class {highest} does not have a name: there are {classes} class names.")
    check_labels(labels, classes)
    check_labels(predictions, classes)
    scores = metrics.classification_report(
        labels, predictions, labels=range(classes), output_dict=True, zero_division=0
    )

    def scores_of(name: str, key: str) -> ClassScores:
        row = scores[key]
        precision, recall, f1 = (float(row[k]) for k in ("precision", "recall", "f1-score"))
        return ClassScores(name, precision, recall, f1, int(row["support"]))

    return ClassificationReport(
        accuracy=float(metrics.accuracy_score(labels, predictions)),
        classes=tuple(scores_of(name, str(i)) for i, name in enumerate(class_names)),
        macro=scores_of("macro average", "macro avg"),
        weighted=scores_of("weighted average", "weighted avg"),
        confusion=metrics.confusion_matrix(labels, predictions, labels=range(classes)),
    )
