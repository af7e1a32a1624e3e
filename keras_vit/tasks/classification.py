"""Classification: one of several classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import counted
from keras_vit.tasks.answer import Tally
from keras_vit.tasks.balance import class_weights, differs_much, log_priors
from keras_vit.tasks.conformal import METHODS, PredictionSets
from keras_vit.tasks.distillation_losses import hard_distillation, soft_distillation
from keras_vit.tasks.losses import (
    BalancedLoss,
    LabelAccuracy,
    SigmoidCrossentropy,
    SoftmaxCrossentropy,
)
from keras_vit.tasks.rows import NameTask, percentages
from keras_vit.tasks.scores import NamedScores, class_scores
from keras_vit.tasks.target import as_array
from keras_vit.tasks.task import Task


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclass(frozen=True)
class Classification(NameTask):
    """One of several classes; the answers are probabilities, the softmax of the outputs.

    Targets are integers or names `(examples,)`, or rows `(examples, classes)` in [0, 1], one-hot
    or mixed.

    Attributes:
        sets: Which classes an image may be of, with a guaranteed coverage: see
            `keras_vit.tasks.PredictionSets`; None by default. `with_coverage` computes them.

    Raises:
        ValueError: There is not a threshold of the sets per class.

    Example:

    >>> from keras_vit.tasks import Classification
    >>> task = Classification(("cat", "dog"))
    >>> task.check_targets(["dog", "cat"])
    array([1, 0], dtype=int32)
    >>> task.answers([[0.0, 0.0]]).tolist()
    [[0.5, 0.5]]
    >>> task.describe([0.25, 0.75], top=1)
    {'predictions': [{'class': 'dog', 'probability': 0.75}]}
    """

    kind = "classification"
    nouns = ("class", "classes")
    fewest = 2  # the softmax of one output is 1, whatever it is
    distinct = False  # ImageNet has two kinds of cranes
    sums_to_one = True
    keeps_in_mirror = True
    begins_at_mean = False
    losses: ClassVar = {"softmax": SoftmaxCrossentropy, "sigmoid": SigmoidCrossentropy}
    distillation: ClassVar = {"soft": soft_distillation, "hard": hard_distillation}
    balances: ClassVar = {
        "weights": ("softmax", "sigmoid"),
        "logits": ("softmax",),
        "sampling": ("softmax", "sigmoid"),
    }
    tensor_names = ("probabilities", "top_classes", "top_probabilities")
    index_answers = ("top_classes",)

    sets: PredictionSets | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.sets, Mapping):
            self._set(sets=PredictionSets.from_config(self.sets))
        if self.sets is not None and len(self.sets.thresholds) != self.size:
            raise ValueError(
                f"sets of {len(self.sets.thresholds)} classes do not fit {self.size}: calibrate "
                "them on answers of this task."
            )

    @property
    def kind_and_size(self) -> str:
        return counted(self.size, *self.nouns)

    @property
    def answer_names(self) -> tuple[str, ...]:
        return self.tensor_names if self.sets is None else (*self.tensor_names, "in_set")

    def check_targets(self, targets: Any) -> np.ndarray:
        array = as_array(targets)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim == 1:
            return self._indices(array)
        rows = self._number_rows(array).astype(np.float32)
        outside = ~((rows >= 0) & (rows <= 1)).all(axis=1)
        self._refuse(outside, array, "numbers in [0, 1] in rows of classes")
        return rows

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        return self._labels(self.check_targets(targets))

    def _labels(self, checked: np.ndarray) -> np.ndarray:
        return checked if checked.ndim == 1 else most_probable(checked)

    def predicted_names(self, answers: np.ndarray) -> np.ndarray:
        return most_probable(answers)

    def metrics(self) -> list[keras.metrics.Metric]:
        return [LabelAccuracy()]

    def initial_bias(self, targets: Any) -> np.ndarray | None:
        """Return the logarithm of each class's share, with one example added per class."""
        counts = self.counts(targets)
        return np.log((counts + 1) / (counts.sum() + self.size)).astype(np.float32)

    def counts(self, targets: Any) -> np.ndarray:
        checked = self.check_targets(targets)
        return np.bincount(checked, minlength=self.size) if checked.ndim == 1 else checked.sum(0)

    def balanced(self, loss: keras.losses.Loss, balance: str, targets: Any) -> keras.losses.Loss:
        if balance == "weights":
            return BalancedLoss(loss, weights=class_weights(self.counts(targets)).tolist())
        if balance == "logits":
            return BalancedLoss(loss, log_priors=log_priors(self.counts(targets)).tolist())
        return loss

    def answers(self, outputs: Any) -> np.ndarray:
        rows = self._rows(outputs, self.outputs, "Outputs").astype(np.float32)
        return softmax(rows)

    def answers_in_graph(self, outputs: Any) -> Any:
        return ops.softmax(ops.cast(outputs, "float32"))

    def outputs_in_graph(self, answers: Any) -> Any:
        return ops.log(ops.maximum(answers, keras.config.epsilon()))

    def graph_answers(self, answers: Any, top_k: int = 5) -> dict[str, Any]:
        values, indices = ops.top_k(answers, min(top_k, self.size))
        tensors = [answers, ops.cast(indices, "int32"), values]
        if self.sets is not None:
            tensors.append(ops.cast(self.sets.contains_in_graph(answers), "int32"))
        return dict(zip(self.answer_names, tensors, strict=True))

    def main_score(self, targets: Any) -> str:
        """Return the accuracy, or the balanced one where classes differ much in size."""
        return "balanced_accuracy" if differs_much(self.counts(targets)) else "accuracy"

    def best_constants(self, targets: Any) -> dict[str, np.ndarray]:
        """Return the most frequent class: the best accuracy and F1; recall is the same for all."""
        most = np.eye(self.size)[self.counts(targets).argmax()]
        return dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1"), most)

    def tally(self, targets: Any, answers: Any) -> Tally:
        tally = super().tally(targets, answers)
        if self.sets is None:
            return tally
        inside = self.sets.contains(np.asarray(answers))
        in_set = inside[np.arange(len(inside)), tally["labels"]]
        return {**tally, "set_sizes": inside.sum(axis=1), "in_set": in_set}

    def _scores(self, tally: Tally) -> NamedScores:
        return class_scores(tally["labels"], tally["predictions"], self.size)

    def describe(self, answer: Any, top: int = 5) -> dict[str, Any]:
        predictions = self._most_probable("class", answer, top)
        if self.sets is None:
            return {"predictions": predictions}
        return {"set": self.names_in_set(answer), "predictions": predictions}

    def uncalibrated(self) -> Self:
        return replace(self, sets=None)

    def with_coverage(
        self,
        targets: Any,
        answers: Any,
        coverage: float,
        method: str = METHODS[0],
        conditional: bool = True,
    ) -> Self:
        """Return the task with prediction sets; for options see `PredictionSets.calibrated`.

        Example:

        >>> from keras_vit.tasks import Classification
        >>> targets, answers = ["cat", "dog"] * 5, [[0.9, 0.1], [0.3, 0.7]] * 5
        >>> task = Classification(("cat", "dog")).with_coverage(targets, answers, 0.9)
        >>> task.describe([0.6, 0.4])["set"], task.describe([0.95, 0.05])["set"]
        ([], ['cat'])
        """
        checked, rows = self._pairs(targets, answers)
        labels = self._labels(checked)
        sets = PredictionSets.calibrated(labels, rows, coverage, method, conditional=conditional)
        return replace(self, sets=sets)

    def names_in_set(self, answer: Any) -> list[str]:
        """Return the classes in the prediction set of an answer `(size,)`, most probable first.

        Raises:
            ValueError: The task does not have `sets`.
        """
        if self.sets is None:
            raise ValueError("The task does not have prediction sets: see task.with_coverage.")
        row, names = np.asarray(answer), self.shown_names
        inside = self.sets.contains(row[None])[0]
        return [names[i] for i in np.argsort(-row, kind="stable") if inside[i]]

    def to_text(self, answer: Any, top: int = 5) -> str:
        return percentages(self._most_probable("class", answer, top))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "sets": self.sets and self.sets.get_config()}


class OneClass(Classification):
    """The class of a folder that has one: its images are read, and a model learns nothing."""

    fewest = 1


def as_task(meaning: Task | Sequence[str]) -> Task:
    """Return a task as it is, or that of classes with these names, also of one.

    >>> as_task(("cat", "dog")).size, as_task(["cat"]).size
    (2, 1)
    """
    if isinstance(meaning, Task):
        return meaning
    return (Classification if len(meaning) > 1 else OneClass)(tuple(meaning))


def most_probable(scores: np.ndarray) -> np.ndarray:
    """Return the class with the largest score in each row, the first of equal ones, int64."""
    return scores.argmax(axis=-1)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of logits along their last axis, in their dtype."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))
