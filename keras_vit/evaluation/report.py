"""Precision, recall and F1 of every class, and where the confusions lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from keras_vit.errors import printable
from keras_vit.evaluation.arrays import check_finite, check_labels
from keras_vit.evaluation.markdown import inline


@dataclass(frozen=True)
class ClassScores:
    """The scores of one class, each from 0 to 1; `support` is how many examples it has."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class ClassificationReport:
    """How a classifier did on labelled examples; prints as a table.

    Attributes:
        accuracy: Share of examples whose prediction is their label.
        classes: Scores of every class, in the order of the labels.
        macro: Mean of the scores over classes.
        weighted: Mean of the scores over examples.
        confusion: `(classes, classes)` counts; row: label, column: prediction.
    """

    accuracy: float
    classes: tuple[ClassScores, ...]
    macro: ClassScores
    weighted: ClassScores
    confusion: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        return {**asdict(self), "confusion": self.confusion.tolist()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ClassificationReport:
        """The report whose `to_dict` this is."""
        return cls(
            values["accuracy"],
            tuple(ClassScores(**scores) for scores in values["classes"]),
            ClassScores(**values["macro"]),
            ClassScores(**values["weighted"]),
            np.array(values["confusion"]),
        )

    def _cells(self) -> list[tuple[str, ...]]:
        rows = [
            (s.name, f"{s.precision:.3f}", f"{s.recall:.3f}", f"{s.f1:.3f}", str(s.support))
            for s in (*self.classes, self.macro, self.weighted)
        ]
        total = str(self.macro.support)
        return [
            ("class", "precision", "recall", "F1", "support"),
            *rows,
            ("accuracy", "", "", f"{self.accuracy:.3f}", total),
        ]

    def __str__(self) -> str:
        cells = [tuple(map(printable, row)) for row in self._cells()]
        widths = [max(len(row[i]) for row in cells) for i in range(5)]
        lines = [
            "  ".join(
                [
                    row[0].ljust(widths[0]),
                    *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=False)),
                ]
            )
            for row in cells
        ]
        rule = "-" * len(lines[0])
        last = len(self.classes) + 1
        return "\n".join([lines[0], rule, *lines[1:last], rule, *lines[last:]])

    def to_markdown(self) -> str:
        """The table in Markdown."""
        header, *rows = self._cells()
        lines = ["| " + " | ".join(header) + " |", "|---|---:|---:|---:|---:|"]
        return "\n".join(lines + ["| " + " | ".join(map(inline, row)) + " |" for row in rows])


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
        check_finite(predictions)
        predictions = predictions.argmax(axis=-1)
    if labels.shape != predictions.shape or labels.ndim != 1 or not labels.size:
        raise ValueError(
            f"{labels.shape} labels do not match {predictions.shape} predictions. "
            "Give one class for each example, or one row of scores."
        )
    highest = max(labels.max(), predictions.max())
    if highest >= len(class_names):
        raise ValueError(f"Class {highest} has no name among the {len(class_names)} given.")
    for classes in (labels, predictions):
        check_labels(classes, len(class_names))
    every_class = range(len(class_names))

    def averaged(name: str, average: str) -> ClassScores:
        precision, recall, f1, _ = metrics.precision_recall_fscore_support(
            labels, predictions, labels=every_class, average=average, zero_division=0
        )
        return ClassScores(name, float(precision), float(recall), float(f1), len(labels))

    columns = metrics.precision_recall_fscore_support(
        labels, predictions, labels=every_class, zero_division=0
    )
    return ClassificationReport(
        accuracy=float(metrics.accuracy_score(labels, predictions)),
        classes=tuple(
            ClassScores(name, float(p), float(r), float(f), int(n))
            for name, p, r, f, n in zip(class_names, *columns, strict=True)
        ),
        macro=averaged("macro average", "macro"),
        weighted=averaged("weighted average", "weighted"),
        confusion=metrics.confusion_matrix(labels, predictions, labels=every_class),
    )
