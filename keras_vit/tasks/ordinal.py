"""Ordinal regression: grades in an order."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import listed, printable
from keras_vit.tasks.answer import Tally
from keras_vit.tasks.distillation_losses import grade_distillation
from keras_vit.tasks.losses import CumulativeCrossentropy, GradeError
from keras_vit.tasks.multilabel import log_odds, sigmoid
from keras_vit.tasks.rows import NameTask, percentages
from keras_vit.tasks.scores import NamedScores, quadratic_kappa
from keras_vit.tasks.target import as_array

# Words of usual scales from the lowest grade on, with slashes between words for one grade.
_KNOWN_ORDERS = (
    "none, very low, low, medium/moderate/mid/middle, high, very high",
    "none/normal, minimal, mild, moderate, severe, very severe",
    "very small, small, medium, large, very large",
    "short, medium, long",
    "xxs, xs, s, m, l, xl, xxl, xxxl",
    "never, rarely/seldom, sometimes, often/frequently, always",
    "very bad/very poor, bad/poor, fair/average, good, very good, excellent",
    "strongly disagree, disagree, neutral, agree, strongly agree",
    "beginner, intermediate, advanced, expert",
    "i, ii, iii, iv, v, vi",
)


_UNIT = re.compile(
    r"\d\s*(s|sec|second|min|minute|h|hr|hour|d|day|wk|week|mo|month|y|yr|year|[mck]?m|[mk]?g|m?l)"
    r"s?\b",
    re.IGNORECASE,
)


def known_order(names: Iterable[str]) -> tuple[str, ...]:
    """Grades with the words of a usual scale from the lowest on; empty where they are others.

    >>> known_order(["High", "low", "very_high"])
    ('low', 'High', 'very_high')
    """
    words = {" ".join(re.split(r"[\W_]+", name.lower())): name for name in names}
    for line in _KNOWN_ORDERS:
        ranks = {word: i for i, grade in enumerate(line.split(", ")) for word in grade.split("/")}
        if words and len({ranks.get(word, -1) for word in words} - {-1}) == len(words):
            return tuple(words[word] for word in sorted(words, key=ranks.__getitem__))
    return ()


def grade_order(names: Iterable[str]) -> tuple[str, ...]:
    """Grades from the lowest on, by the words of a known scale or by the numbers that they have.

    Raises:
        ValueError: The names do not show their order.

    >>> grade_order(["severe", "mild", "none"]), grade_order(["stage 10", "stage 9"])
    (('none', 'mild', 'severe'), ('stage 9', 'stage 10'))
    """
    texts = sorted(names)
    if len(order := known_order(texts)) == len(texts):
        return order
    # 1,000 may be a thousand or one; and 6 months are less than 1 year.
    numbered = [re.match(r"(\D*)(\d+(?:\.\d+)?)(?!,?\d)", text) for text in texts]
    units = {unit.lower() for text in texts for unit in _UNIT.findall(text)}
    parts = {m[1]: None for m in numbered if m}
    values = {float(m[2]): m.string for m in numbered if m}
    if len(parts) == 1 and len(values) == len(texts) and len(units) < 2:
        return tuple(values[value] for value in sorted(values))
    raise ValueError(
        f"The texts {printable(listed(texts))} do not show the order of the grades: give all of "
        f"them from the lowest on, as task=keras_vit.tasks.Ordinal({tuple(texts[:5])}), or write "
        "them with numbers, as '1 low' and '2 high'."
    )


@keras.saving.register_keras_serializable(package="keras_vit")
@dataclass(frozen=True)
class Ordinal(NameTask):
    """One of several grades in an order; the answers are a probability per grade.

    Output `k` of the `grades - 1` outputs is the log-odds of a grade above `k` (Li and Lin 2006,
    "Ordinal Regression by Extended Binary Classification"). Those probabilities can come out in
    another order than their grades; they are then sorted, which never takes them farther from the
    true ones (Chernozhukov et al. 2010). The predicted grade is the median: the number of
    probabilities above one half, sorted or not.

    Targets are integers or names `(examples,)`.

    Example:

    >>> from keras_vit.tasks import Ordinal
    >>> task = Ordinal(("mild", "moderate", "severe"))
    >>> task.outputs
    2
    >>> answer = task.answers([[2.0, 0.5]])[0]
    >>> [round(p, 3) for p in answer.tolist()]
    [0.119, 0.258, 0.622]
    >>> task.describe(answer)["grade"]
    'severe'
    """

    kind = "ordinal"
    nouns = ("grade", "grades")
    fewest = 2
    names_without_output = 1
    mixes = False  # there are not any half grades
    losses: ClassVar = {"cumulative_crossentropy": CumulativeCrossentropy}
    problem_type = "multi_label_classification"  # each output is a yes or no
    distillation: ClassVar = {"soft": grade_distillation}
    unbalanced = "they are in an order, and a weight of one grade moves the limits of the others"
    tensor_names = ("probabilities", "grade")
    index_answers = ("grade",)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(f"above {name}" for name in self.shown_names[:-1])

    def check_targets(self, targets: Any) -> np.ndarray:
        array = as_array(targets)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise ValueError(f"Targets {array.shape} are not grades: give (examples,).")
        return self._indices(array)

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        return self.check_targets(targets)

    def counts(self, targets: Any) -> np.ndarray:
        return np.bincount(self.check_targets(targets), minlength=self.size)

    def metrics(self) -> list[keras.metrics.Metric]:
        return [GradeError()]

    def initial_bias(self, targets: Any) -> np.ndarray | None:
        """Return the log-odds that a grade lies above each one, with one example added per side."""
        grades = self.check_targets(targets)
        above = (grades[:, None] > np.arange(self.outputs)).sum(axis=0) + 1
        return np.log(above / (len(grades) + 2 - above)).astype(np.float32)

    def answers(self, outputs: Any) -> np.ndarray:
        above = sigmoid(self._rows(outputs, self.outputs, "Outputs"))
        edges = np.pad(
            -np.sort(-above, axis=-1), ((0, 0), (1, 1)), constant_values=((0, 0), (1, 0))
        )
        return edges[:, :-1] - edges[:, 1:]

    def answers_in_graph(self, outputs: Any) -> Any:
        above = -ops.sort(-ops.sigmoid(ops.cast(outputs, "float32")), axis=-1)
        ones = ops.ones_like(above[:, :1])
        return ops.concatenate([ones, above], -1) - ops.concatenate([above, 0 * ones], -1)

    def outputs_in_graph(self, answers: Any) -> Any:
        return log_odds(ops.flip(self._above(answers), axis=-1))

    def graph_answers(self, answers: Any, top_k: int = 5) -> dict[str, Any]:
        grade = ops.sum(ops.cast(self._above(answers) > 0.5, "int32"), axis=-1)
        return dict(zip(self.answer_names, (answers, grade), strict=True))

    def _above(self, answers: Any) -> Any:
        """Return the probability of a grade above each, highest first to keep small tails exact."""
        return ops.cumsum(ops.flip(answers[:, 1:], axis=-1), axis=-1)

    def grades(self, answers: Any) -> np.ndarray:
        """Return the median grade of each row of answers `(examples, grades)`, int64."""
        rows = self._rows(answers, self.size, "Answers")
        above = np.cumsum(rows[:, :0:-1], axis=1)
        return (above > 0.5).sum(axis=1)

    def predicted_names(self, answers: np.ndarray) -> np.ndarray:
        return self.grades(answers)

    def _scores(self, tally: Tally) -> NamedScores:
        targets, predicted = tally["labels"], tally["predictions"]

        def score(weights: np.ndarray) -> list[float]:
            error = np.average(np.abs(targets - predicted), weights=weights)
            accuracy = np.average(targets == predicted, weights=weights)
            return [error, accuracy, quadratic_kappa(targets, predicted, weights)]

        return ("grade_mae", "accuracy", "quadratic_kappa"), score

    def main_score(self, targets: Any) -> str:
        return "quadratic_kappa"

    def best_constants(self, targets: Any) -> dict[str, np.ndarray]:
        """Return the median for MAE, the most frequent grade for accuracy; any has a kappa of 0."""
        grades = np.sort(self.check_targets(targets))
        median, most = np.eye(self.size)[[grades[len(grades) // 2], self.counts(grades).argmax()]]
        return {"grade_mae": median, "accuracy": most, "quadratic_kappa": median}

    def explained(self, answers: Any) -> np.ndarray:
        """Return the median grade, which is the one predicted."""
        return self.grades(answers)

    def evidence(self, outputs: Any, which: Any) -> Any:
        """Return the output of "this grade or a higher one"; for the lowest, of "no higher one"."""
        above = super().evidence(outputs, ops.maximum(which, 1) - 1)
        return ops.where(ops.equal(which, 0), -above, above)

    def evidence_text(self, which: int) -> str:
        return f"at least {self.shown_names[which]}" if which else self.shown_names[0]

    def describe(self, answer: Any, top: int = 5) -> dict[str, Any]:
        (grade,) = self.grades(np.asarray(answer)[None])
        rows = self._most_probable("grade", answer, top)
        return {"grade": self.shown_names[grade], "predictions": rows}

    def to_text(self, answer: Any, top: int = 5) -> str:
        description = self.describe(answer, top)
        return f"{printable(description['grade'])} ({percentages(description['predictions'])})"
