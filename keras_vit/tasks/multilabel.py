"""Several labels: any of them, or none."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import listed, printable
from keras_vit.tasks.answer import Columns, Tally
from keras_vit.tasks.balance import positive_weights
from keras_vit.tasks.distillation_losses import label_distillation
from keras_vit.tasks.losses import AsymmetricLoss, BinaryCrossentropy, ZLPRLoss
from keras_vit.tasks.rows import RowTask, percentages
from keras_vit.tasks.scores import AveragePrecision, NamedScores, f1_scores, mean
from keras_vit.tasks.thresholds import shrunk_thresholds


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclass(frozen=True)
class Multilabel(RowTask):
    """Any of several labels; the answers are a probability per label, the sigmoid of the outputs.

    Targets are rows `(examples, labels)` in [0, 1], or a collection of names per example, which may
    be empty.

    Attributes:
        thresholds: Per label, the probability from which it is predicted; 0.5 by default.
            `calibrated` chooses them.
        positives: Per label, how many images have it of those that its threshold was chosen by;
            empty where it was not.

    Raises:
        ValueError: There is not a threshold in [0, 1] per label, or counts are not as many.

    Example:

    >>> from keras_vit.tasks import Multilabel
    >>> task = Multilabel(("beach", "night", "people"))
    >>> task.check_targets([{"people", "beach"}, []]).tolist()
    [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    >>> [round(p, 3) for p in task.answers([[0.0, 2.0, -2.0]])[0].tolist()]
    [0.5, 0.881, 0.119]
    """

    kind = "multilabel"
    nouns = ("label", "labels")
    calibrates = True
    losses: ClassVar = {
        "binary_crossentropy": BinaryCrossentropy,
        "asymmetric": AsymmetricLoss,
        "zlpr": ZLPRLoss,
    }
    problem_type = "multi_label_classification"
    distillation: ClassVar = {"soft": label_distillation}
    balances: ClassVar = {"weights": ("binary_crossentropy",)}
    unbalanced = (
        "an image has several labels, so that one that is drawn more often for one label changes "
        "the others, and a label's threshold is chosen afterwards"
    )
    tensor_names = ("probabilities", "labels")

    thresholds: tuple[float, ...] = ()
    positives: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(thresholds=tuple(map(float, self.thresholds)) or (0.5,) * self.size)
        self._set(positives=tuple(map(int, self.positives)))
        if len(self.thresholds) != self.size or not all(0 <= t <= 1 for t in self.thresholds):
            raise ValueError(
                f"thresholds={self.thresholds} must be {self.size} numbers in [0, 1], one per "
                "label; leave them out for 0.5."
            )
        if self.positives and (len(self.positives) != self.size or min(self.positives) < 0):
            raise ValueError(
                f"positives={self.positives} must be {self.size} numbers of images, one per label."
            )

    def check_targets(self, targets: Any) -> np.ndarray:
        names = self._names(targets)
        if names is not None:
            return names
        rows = self._number_rows(targets).astype(np.float32)
        outside = ~((rows >= 0) & (rows <= 1)).all(axis=1)
        self._refuse(outside, rows, "a number in [0, 1] per label, or a list of names per example")
        return rows

    def _names(self, targets: Any) -> np.ndarray | None:
        """Collections of names as rows of 0 and 1; None for numbers."""
        if hasattr(targets, "dtype") and getattr(targets.dtype, "kind", "f") in "biuf":
            return None
        sets = list(targets)
        if texts := [row for row, names in enumerate(sets) if isinstance(names, str)]:
            raise ValueError(
                f"Row {texts[0]} of the targets is the text {sets[texts[0]]!r}: give a list of "
                'names per example, such as [["beach", "people"], []].'
            )
        if any(np.isscalar(names) or not all(isinstance(n, str) for n in names) for names in sets):
            return None
        index = {name: i for i, name in enumerate(self.names)}
        rows = np.zeros((len(sets), self.size), np.float32)
        for row, names in enumerate(sets):
            for name in names:
                if name not in index:
                    raise ValueError(
                        f"Label {name!r} of row {row} is not known. Give labels of: "
                        f"{listed(self.names) or '(the task does not have names)'}."
                    )
                rows[row, index[name]] = 1
        return rows

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        return self.check_targets(targets) >= 0.5

    def metrics(self) -> list[keras.metrics.Metric]:
        return [keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)]

    def initial_bias(self, targets: Any) -> np.ndarray | None:
        """Return each label's log-odds, with one example added with it and one without it."""
        rows = self.check_targets(targets)
        positive = rows.sum(axis=0) + 1
        return np.log(positive / (len(rows) + 2 - positive)).astype(np.float32)

    def counts(self, targets: Any) -> np.ndarray:
        return self.check_targets(targets).sum(axis=0)

    def balanced(self, loss: keras.losses.Loss, balance: str, targets: Any) -> keras.losses.Loss:
        if balance != "weights":
            return loss
        weights = positive_weights(self.counts(targets), len(targets))
        config = {**loss.get_config(), "positive_weights": weights}
        return type(loss).from_config(config)

    def answers(self, outputs: Any) -> np.ndarray:
        return sigmoid(self._rows(outputs, self.outputs, "Outputs"))

    def answers_in_graph(self, outputs: Any) -> Any:
        return ops.sigmoid(ops.cast(outputs, "float32"))

    def outputs_in_graph(self, answers: Any) -> Any:
        return log_odds(answers)

    def graph_answers(self, answers: Any, top_k: int = 5) -> dict[str, Any]:
        thresholds = ops.convert_to_tensor(np.array(self.thresholds, np.float32))
        labels = ops.cast(answers >= thresholds, "int32")
        return dict(zip(self.answer_names, (answers, labels), strict=True))

    def calibrated(self, targets: Any, answers: Any) -> Self:
        """Return the task with F1 thresholds per label, near 0.5 where few targets have the label.

        See `keras_vit.tasks.thresholds`. A label that none of the targets has keeps its threshold.
        """
        targets, rows = self._pairs(targets, answers)
        present = targets >= 0.5
        chosen = np.where(present.any(axis=0), shrunk_thresholds(present, rows), self.thresholds)
        counts = present.sum(axis=0)
        return replace(self, thresholds=tuple(chosen.tolist()), positives=tuple(counts.tolist()))

    def main_score(self, targets: Any) -> str:
        return "mean_average_precision"

    def best_constants(self, targets: Any) -> dict[str, np.ndarray]:
        """Return each label's share, any constant's precision, and all labels: without, F1 is 0."""
        share = self.check_targets(targets).mean(axis=0)
        return {"mean_average_precision": share, "macro_f1": np.ones(self.size)}

    def name_scores(self, tally: Tally) -> Columns:
        """Return each label's scores, what its threshold stands on, and how many images have it."""
        present, answers = tally["targets"] >= 0.5, tally["answers"]
        half = replace(self, thresholds=())
        columns = {
            "average precision": AveragePrecision(present, answers)(np.ones(len(answers))),
            "F1": self._f1(present, answers),
            "threshold": np.array(self.thresholds),
            "chosen by": np.array(self.positives),
            "F1 at 0.5": half._f1(present, answers),
            "images": present.sum(0),
        }
        return {title: column for title, column in columns.items() if len(column)}

    def _f1(self, present: np.ndarray, answers: np.ndarray) -> np.ndarray:
        predicted = self.predicted(answers)
        return f1_scores((present & predicted).sum(0), present.sum(0), predicted.sum(0))

    def facts(self, tally: Tally) -> dict[str, float]:
        """Return for what part of the images exactly their labels are predicted, also at 0.5."""
        present = tally["targets"] >= 0.5
        each = {"exact": self, "exact_at_half": replace(self, thresholds=())}
        return {
            name: float((task.predicted(tally["answers"]) == present).all(axis=1).mean())
            for name, task in each.items()
        }

    def _truth(self, target: np.ndarray) -> str:
        names = [self.shown_names[i] for i in np.flatnonzero(target >= 0.5)]
        return ", ".join(names) or "none of the labels"

    def _scores(self, tally: Tally) -> NamedScores:
        present, answers = tally["targets"] >= 0.5, tally["answers"]
        predicted = self.predicted(answers)
        precision = AveragePrecision(present, answers)
        cells = [np.nonzero(x) for x in (present & predicted, present, predicted)]

        def score(weights: np.ndarray) -> list[float]:
            both, counts, answered = (
                np.bincount(labels, weights[examples], self.size) for examples, labels in cells
            )
            # A label that no example has does not count.
            tested = counts > 0
            f1 = f1_scores(both, counts, answered)
            return [mean(precision(weights)[tested]), mean(f1[tested])]

        return ("mean_average_precision", "macro_f1"), score

    def predicted(self, answers: np.ndarray) -> np.ndarray:
        """Return which labels are predicted, bool of the same shape: from their thresholds on."""
        return answers.astype(np.float32) >= np.array(self.thresholds, np.float32)

    def describe(self, answer: Any, top: int = 5) -> dict[str, Any]:
        names = self.shown_names
        predicted = np.flatnonzero(self.predicted(np.asarray(answer)))
        rows = self._most_probable("label", answer, top)
        for row in rows:
            row["threshold"] = self.thresholds[names.index(row["label"])]
        return {"labels": [names[i] for i in predicted], "predictions": rows}

    def to_text(self, answer: Any, top: int = 5) -> str:
        description = self.describe(answer, top)
        labels = printable(", ".join(description["labels"])) or "none of the labels"
        return f"{labels} ({percentages(description['predictions'])})"


def sigmoid(outputs: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)) without an overflow, float32."""
    x = np.asarray(outputs, np.float32)
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def log_odds(probabilities: Any) -> Any:
    """Return the inverse of the sigmoid by `keras.ops`, of probabilities away from 0 and 1."""
    epsilon = keras.config.epsilon()
    p = ops.clip(probabilities, epsilon, 1 - epsilon)
    return ops.log(p) - ops.log(1 - p)
