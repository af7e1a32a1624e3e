"""Precision, recall and F1 per class, and the confusion matrix; their tables in `report.md`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from keras_vit._base.errors import counted, listed, printable
from keras_vit.evaluation.checks import check_labels, check_scores
from keras_vit.evaluation.markdown import table
from keras_vit.tasks.balance import differs_much, imbalance
from keras_vit.tasks.classification import most_probable
from keras_vit.tasks.scores import Score, class_scores, scores_with_intervals, wilson_interval

_COLUMNS = ("class", "precision", "recall", "F1", "support")

# Tables of more classes have those with most mistakes: nobody reads a thousand rows.
MOST_ROWS = 100
SHOWN_ROWS = 40
SHOWN_CONFUSIONS = 20
MOST_BYTES = 2**30  # of a dense confusion matrix


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
    """How well a classifier does on labeled examples; prints as a table.

    Of more than `MOST_ROWS` classes, the table has the `SHOWN_ROWS` with most mistakes.

    Attributes:
        accuracy: Share of correct predictions.
        classes: Scores per class, in the order of the labels.
        macro: Mean of the scores over the classes that have examples.
        weighted: Mean of the scores over examples.
        pairs: `(pairs, 3)`: label, prediction and how many examples have both, for those that
            occur. It grows with the examples, and not with the square of the classes.
    """

    accuracy: float
    classes: tuple[ClassScores, ...]
    macro: ClassScores
    weighted: ClassScores
    pairs: np.ndarray

    @property
    def confusion(self) -> np.ndarray:
        """`(classes, classes)` counts; rows are labels, columns predictions.

        Raises:
            ValueError: There are so many classes that they would take more than 1 GiB.
        """
        classes = len(self.classes)
        if 8 * classes**2 > MOST_BYTES:
            raise ValueError(
                f"The confusion matrix of {classes:,} classes would take "
                f"{8 * classes**2 / 2**30:.1f} GiB. Use report.pairs, which holds the counts above "
                "0, as rows of label, prediction and count."
            )
        matrix = np.zeros((classes, classes), np.int64)
        matrix[self.pairs[:, 0], self.pairs[:, 1]] = self.pairs[:, 2]
        return matrix

    @property
    def confusions(self) -> np.ndarray:
        """The rows of `pairs` with a wrong prediction, the most frequent first."""
        wrong = self.pairs[self.pairs[:, 0] != self.pairs[:, 1]]
        return wrong[np.argsort(-wrong[:, 2], kind="stable")]

    @property
    def mistakes(self) -> np.ndarray:
        """Examples of each class with another prediction, and the other way round, `(classes,)`."""
        label, prediction, count = self.confusions.T
        size = len(self.classes)
        counts = np.bincount(label, count, size) + np.bincount(prediction, count, size)
        return counts.astype(np.int64)

    @cached_property
    def scores(self) -> dict[str, Score]:
        """Accuracy, balanced accuracy and macro F1 with 95 % intervals.

        The accuracy is last where classes differ much.
        """
        label, prediction, count = self.pairs.T
        scores = self._scores(np.repeat(label, count), np.repeat(prediction, count))
        if self.differs_much:
            scores["accuracy"] = scores.pop("accuracy")
        return scores

    @property
    def constant_of(self) -> str:
        """Whose labels `constant` is of, as in `TaskReport`."""
        return "evaluated"

    @property
    def constant(self) -> dict[str, Score]:
        """The same scores of the most frequent class for all examples, which needs no model."""
        labels = np.repeat(self.pairs[:, 0], self.pairs[:, 2])
        most = np.bincount(labels).argmax()
        return self._scores(labels, np.full_like(labels, most), resamples=0)

    def _scores(
        self, labels: np.ndarray, predictions: np.ndarray, resamples: int = 1000
    ) -> dict[str, Score]:
        named = class_scores(labels, predictions, len(self.classes))
        return scores_with_intervals(named, len(labels), resamples)

    @property
    def balanced_accuracy(self) -> float:
        """The mean recall of the classes that have examples."""
        return float(np.mean([scores.recall for scores in self.classes if scores.support]))

    @property
    def majority(self) -> tuple[str, float]:
        """The class with most examples, and its share of them."""
        largest = max(self.classes, key=lambda scores: scores.support)
        return largest.name, largest.support / self.macro.support

    @property
    def differs_much(self) -> bool:
        """Whether the accuracy is mostly that of the largest classes."""
        return differs_much([scores.support for scores in self.classes])

    @property
    def _lead(self) -> str:
        """The scores to read first, where classes differ much; else empty."""
        if not self.differs_much:
            return ""
        times = imbalance([scores.support for scores in self.classes])
        return (
            f"balanced accuracy {self.balanced_accuracy:.3f}, macro F1 {self.macro.f1:.3f}, "
            f"accuracy {self.accuracy:.3f} (the largest class has {times:,.0f} times as many "
            "images as the smallest)"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the accuracy does not say; none where there is nothing to say."""
        return tuple(filter(None, (self._note_of_untested(), self._note_of_majority())))

    def _note_of_untested(self) -> str:
        untested = [scores.name for scores in self.classes if not scores.support]
        if not untested:
            return ""
        return (
            f"not tested, as there are no validation images: {listed(untested)} "
            f"({counted(len(untested), 'class', 'classes')} of {len(self.classes):,})"
        )

    def _note_of_majority(self) -> str:
        """Where always predicting one class would be as good, as far as so few images can show."""
        images = self.macro.support
        low, high = wilson_interval(self.accuracy, images)
        name, share = self.majority
        if share < low:
            return ""
        supports = [scores.support for scores in self.classes if scores.support]
        smallest = next(s for s in self.classes if s.support == min(supports))
        reason = ""
        if len(supports) == 1:
            reason = "; there are no images of any other class"
        elif min(supports) < max(supports):
            reason = f"; the smallest class, {smallest.name}, has {counted(min(supports), 'image')}"
        return (
            f"an accuracy of {self.accuracy:.1%} on {counted(images, 'image')} says nothing of the "
            f"classes: always predicting {name} would reach {share:.1%}, which is not below its "
            f"95 % confidence interval ({low:.1%} to {high:.1%}){reason}. The balanced accuracy, "
            f"the mean recall of the classes, is {self.balanced_accuracy:.1%}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The values as JSON accepts them.

        Of more than `MOST_ROWS` classes, `confusion_pairs` has the rows of `pairs` in place of the
        `confusion` matrix.
        """
        confusion = (
            {"confusion": self.confusion.tolist()}
            if len(self.classes) <= MOST_ROWS
            else {"confusion_pairs": self.pairs.tolist()}
        )
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "majority_rate": self.majority[1],
            "scores": {name: list(score) for name, score in self.scores.items()},
            "classes": [asdict(scores) for scores in self.classes],
            "macro": asdict(self.macro),
            "weighted": asdict(self.weighted),
            **confusion,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ClassificationReport:
        """The inverse of `to_dict`."""
        if "confusion" in values:
            matrix = np.array(values["confusion"])
            at = np.argwhere(matrix)
            pairs = np.column_stack([at, matrix[tuple(at.T)]])
        else:
            pairs = np.array(values["confusion_pairs"])
        return cls(
            values["accuracy"],
            tuple(ClassScores(**scores) for scores in values["classes"]),
            ClassScores(**values["macro"]),
            ClassScores(**values["weighted"]),
            pairs.reshape(-1, 3),
        )

    @property
    def shown(self) -> tuple[ClassScores, ...]:
        """The classes that the table has, all of them or those with most mistakes, these first."""
        if len(self.classes) <= MOST_ROWS:
            return self.classes
        order = np.argsort(-self.mistakes, kind="stable")[:SHOWN_ROWS]
        return tuple(self.classes[i] for i in order)

    @property
    def selection(self) -> str:
        """Which classes the table has, where it does not have all; else empty."""
        shown = len(self.shown)
        if shown == len(self.classes):
            return ""
        return f"the {shown} classes with most mistakes of {len(self.classes):,}"

    def _rows(self) -> list[tuple[str, ...]]:
        scores = [
            (s.name, f"{s.precision:.3f}", f"{s.recall:.3f}", f"{s.f1:.3f}", str(s.support))
            for s in (*self.shown, self.macro, self.weighted)
        ]
        return [*scores, ("accuracy", "", "", f"{self.accuracy:.3f}", str(self.macro.support))]

    def __str__(self) -> str:
        cells = [tuple(map(printable, row)) for row in (_COLUMNS, *self._rows())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = []
        for name, *numbers in cells:
            right = (cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True))
            lines.append("  ".join([name.ljust(widths[0]), *right]))
        rule, end = "-" * len(lines[0]), len(self.shown) + 1
        title = [f"{self.selection}:"] if self.selection else []
        notes = [f"note: {printable(note)}" for note in self.notes]
        title = [*filter(None, [self._lead]), *title]
        return "\n".join([*title, lines[0], rule, *lines[1:end], rule, *lines[end:], *notes])

    def to_markdown(self) -> str:
        """The table in Markdown, and of many classes the most frequent confusions."""
        parts = [table(_COLUMNS, self._rows(), "lrrrr")]
        if self.selection:
            parts.insert(0, f"Shown: {self.selection}; `report.json` has all.")
            parts.append(self._confusions_to_markdown())
        return "\n\n".join(filter(None, parts))

    def _confusions_to_markdown(self) -> str:
        rows = self.confusions[:SHOWN_CONFUSIONS]
        if not len(rows):
            return ""
        names = [scores.name for scores in self.classes]
        cells = [(names[label], names[other], count) for label, other, count in rows.tolist()]
        title = f"The most frequent confusions, {len(rows)} of {len(self.confusions):,}:"
        return f"{title}\n\n{table(('label', 'predicted', 'images'), cells, 'llr')}"


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
        predictions = most_probable(predictions)
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
    scores, tested = (
        metrics.classification_report(
            labels, predictions, labels=of, output_dict=True, zero_division=0
        )
        for of in (range(classes), np.unique(labels))
    )
    scores["macro avg"] = tested["macro avg"]

    def scores_of(name: str, key: str) -> ClassScores:
        row = scores[key]
        precision, recall, f1 = (float(row[k]) for k in ("precision", "recall", "f1-score"))
        return ClassScores(name, precision, recall, f1, int(row["support"]))

    return ClassificationReport(
        accuracy=float(metrics.accuracy_score(labels, predictions)),
        classes=tuple(scores_of(name, str(i)) for i, name in enumerate(class_names)),
        macro=scores_of("macro average", "macro avg"),
        weighted=scores_of("weighted average", "weighted avg"),
        pairs=_pairs(labels, predictions),
    )


def _pairs(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Label, prediction and count of each pair that occurs, in order."""
    both, counts = np.unique(np.stack([labels, predictions], axis=1), axis=0, return_counts=True)
    return np.column_stack([both, counts]).astype(np.int64)
