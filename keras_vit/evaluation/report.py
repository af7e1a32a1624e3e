"""`Report`: how good answers are, for any task, as numbers; `report_text` puts them into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from keras_vit import tasks
from keras_vit.evaluation import report_text
from keras_vit.evaluation.calibration import Calibration, calibration_of
from keras_vit.evaluation.checks import check_labels, check_scores
from keras_vit.evaluation.novelty import NoveltyReport
from keras_vit.evaluation.outcomes import Outcomes
from keras_vit.evaluation.set_report import SetReport, set_report
from keras_vit.tasks import Classification, Task
from keras_vit.tasks.answer import Columns
from keras_vit.tasks.balance import differs_much
from keras_vit.tasks.classification import most_probable
from keras_vit.tasks.scores import Score

MOST_BYTES = 2**30  # of a dense confusion matrix


@dataclass(frozen=True, eq=False)
class Report:
    """The scores of a model's answers by its task; prints as tables and notes.

    Attributes:
        task: What the answers mean.
        examples: How many images they are of.
        scores: By name, with 95 % intervals; the first is the one to read first, of classes that
            differ much in size the balanced accuracy.
        constant: Of each score, what the best single answer for all images is worth, which needs no
            model.
        constant_of: Whose labels the best constants are of: "training" or "evaluated" images.
        names: Numbers per name of the task, `(size,)` by the title of a column: precision, recall,
            F1 and images of classes; empty where the scores say it all.
        facts: Further numbers, such as the share of images whose labels are all right.
        pairs: `(pairs, 3)`: label, prediction and how many images have both, for those that occur;
            None where an image does not have one name of several. It grows with the images, and
            not with the square of the classes.
        calibration: Confidence against accuracy, where answers are probabilities of one name.
        sets: How prediction sets hold, where the task has them.
        novelty: How many images are novel, where the model has a novelty.
    """

    task: Task
    examples: int
    scores: Mapping[str, Score]
    constant: Mapping[str, Score]
    constant_of: str = "evaluated"
    names: Columns = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    pairs: np.ndarray | None = None
    calibration: Calibration | None = None
    sets: SetReport | None = None
    novelty: NoveltyReport | None = None

    @property
    def confusion(self) -> np.ndarray:
        """`(size, size)` counts; rows are labels, columns predictions.

        Raises:
            ValueError: The task does not have one name per image, or there are so many names that
                the matrix would take more than 1 GiB.
        """
        if self.pairs is None:
            raise ValueError(f"{self.task.kind} does not have one name per image to confuse.")
        if 8 * self.task.size**2 > MOST_BYTES:
            raise ValueError(
                f"The confusion matrix of {self.task.size:,} classes would take "
                f"{8 * self.task.size**2 / 2**30:.1f} GiB. Use report.pairs, which holds the "
                "counts above 0, as rows of label, prediction and count."
            )
        matrix = np.zeros((self.task.size, self.task.size), np.int64)
        matrix[self.pairs[:, 0], self.pairs[:, 1]] = self.pairs[:, 2]
        return matrix

    @property
    def confusions(self) -> np.ndarray:
        """The rows of `pairs` with a wrong prediction, the most frequent first."""
        pairs = np.zeros((0, 3), np.int64) if self.pairs is None else self.pairs
        wrong = pairs[pairs[:, 0] != pairs[:, 1]]
        return wrong[np.argsort(-wrong[:, 2], kind="stable")]

    @property
    def promises(self) -> tuple[SetReport | NoveltyReport, ...]:
        """How prediction sets and the novelty held, as far as there are any."""
        return tuple(part for part in (self.sets, self.novelty) if part is not None)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what the scores do not say; none where there is nothing to say."""
        return report_text.notes(self)

    def __str__(self) -> str:
        return report_text.text(self)

    def to_markdown(self) -> str:
        """Return the table of the task's names; empty where the scores say it all."""
        return report_text.markdown(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON accepts them; what is not a number is null."""
        return {
            "task": self.task.get_config(),
            "examples": self.examples,
            "scores": {name: score.to_list() for name, score in self.scores.items()},
            "constant": {name: score.to_list() for name, score in self.constant.items()},
            "constant_of": self.constant_of,
            "names": {title: _without_nan(column) for title, column in self.names.items()},
            "facts": dict(self.facts),
            "pairs": None if self.pairs is None else self.pairs.tolist(),
            "calibration": self.calibration and self.calibration.to_dict(),
            "sets": self.sets and asdict(self.sets),
            "novelty": self.novelty and asdict(self.novelty),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Report:
        """Return the report that `to_dict` was called of."""

        def scores(name: str) -> dict[str, Score]:
            known = values[name].items()
            return {k: Score.from_list(v) for k, v in known}

        pairs = values["pairs"]
        return cls(
            tasks.get(values["task"]),
            values["examples"],
            scores("scores"),
            scores("constant"),
            values["constant_of"],
            {
                title: np.array([np.nan if cell is None else cell for cell in column])
                for title, column in values["names"].items()
            },
            values["facts"],
            None if pairs is None else np.array(pairs, np.int64).reshape(-1, 3),
            values["calibration"] and Calibration.from_dict(values["calibration"]),
            values["sets"] and SetReport(**values["sets"]),
            values["novelty"] and NoveltyReport(**values["novelty"]),
        )


def _without_nan(column: np.ndarray) -> list[Any]:
    return [None if cell != cell else cell for cell in column.tolist()]


def report(task: Task, targets: Any, answers: Any, training_targets: Any = None) -> Report:
    """Score answers by their task.

    Args:
        task: What they mean.
        targets: As `task.check_targets` takes them.
        answers: As `task.answers` returns them.
        training_targets: Those by which the best constants are chosen; None for `targets`, which
            makes the constants a little better than they can be.

    Raises:
        ValueError: There is not a finite answer per target.

    Example:

    >>> import numpy as np
    >>> from keras_vit.evaluation import report
    >>> from keras_vit.tasks import Regression
    >>> of_ages = report(Regression(("age",)), [1.0, 2.0, 6.0], np.array([[1.0], [2.0], [3.0]]))
    >>> of_ages.scores["mae"].value, round(of_ages.constant["mae"].value, 3)
    (1.0, 1.667)
    """
    return report_of(Outcomes.of(task, targets, answers), targets, training_targets)


def report_of(outcomes: Outcomes, targets: Any, training_targets: Any = None) -> Report:
    """Return `report` of what predictions left behind, and of the targets."""
    task, tally, novelty = outcomes.task, outcomes.tally, outcomes.novelty
    scores, names = task.scores_of(tally), task.name_scores(tally)
    if "accuracy" in scores and differs_much(names["images"]):
        scores["accuracy"] = scores.pop("accuracy")  # mostly that of the largest classes: last
    is_named, has_sets = "predictions" in tally, "set_sizes" in tally
    sets: Any = getattr(task, "sets", None)
    return Report(
        task,
        len(outcomes),
        scores,
        _constants(
            task, targets, targets if training_targets is None else training_targets, scores
        ),
        "evaluated" if training_targets is None else "training",
        names,
        task.facts(tally),
        _pairs(tally["labels"], tally["predictions"]) if is_named else None,
        calibration_of(tally) if "probability" in tally else None,
        set_report(sets, tally["set_sizes"], tally["in_set"]) if has_sets else None,
        None if novelty is None else NoveltyReport(len(novelty), int((novelty > 1).sum())),
    )


def _constants(
    task: Task, targets: Any, training_targets: Any, scores: Mapping[str, Score]
) -> dict[str, Score]:
    """Return every score of the constant that is best by it, in the order of the scores."""
    constants: dict[str, Score] = {}
    for kind, answer in task.best_constants(training_targets).items():
        of_this = task.scores_of(task.constant_tally(targets, answer), resamples=0)
        constants = constants or dict(of_this)
        constants |= {k: v for k, v in of_this.items() if k == kind or k.startswith(f"{kind}_")}
    return {name: constants[name] for name in scores}


def classification_report(labels: Any, predictions: Any, class_names: Sequence[str]) -> Report:
    """Score predicted classes against labels.

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
    >>> print(report.scores["accuracy"].value, report.names["precision"].round(3))
    0.75 [1.    0.667]
    """
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
    tally = {"labels": labels, "predictions": predictions}
    return report_of(Outcomes(Classification(tuple(class_names)), tally), labels)


def _pairs(labels: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return label, prediction and count of each pair that occurs, in order."""
    both, counts = np.unique(np.stack([labels, predictions], axis=1), axis=0, return_counts=True)
    return np.column_stack([both, counts]).astype(np.int64)
