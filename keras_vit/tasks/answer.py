"""`Answer`: from a model's outputs to answers, names, text, graphs, explanations and scores."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np

from keras_vit.tasks.scores import NamedScores, Score, bootstrap, scores_with_intervals

# What images leave behind for their scores: arrays with an entry per image, by name. Where an
# image has one name of several, `labels`, `predictions`, `probability` (of the prediction) and
# `label_probability` are among them: confusion and calibration are made from these.
Tally = dict[str, np.ndarray]
# A number or a word per name of a task, by the title of a column.
Columns = dict[str, np.ndarray]


class Answer:
    """What outputs mean: the half of a `Task` that a model's outputs meet."""

    kind: ClassVar[str]
    size: int
    # The names of the tensors of every exported file, the one of `answers` first.
    tensor_names: ClassVar[tuple[str, ...]]
    # Those of them that are places in `names`; other integers are one per name, 1 for predicted.
    index_answers: ClassVar[tuple[str, ...]] = ()
    # Whether answers are the softmax of as many outputs: those have temperatures, and probes by
    # logistic regression.
    sums_to_one: ClassVar[bool] = False
    # Whether answers to the pixels of two windows of an image mean the same.
    joins_windows: ClassVar[bool] = True
    # Whether `calibrated` decides something, on images that were not trained on.
    calibrates: ClassVar[bool] = False

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The names of the tensors of an exported file, the one of `answers` first."""
        return self.tensor_names

    @property
    def activations(self) -> tuple[str, ...]:
        """What a head of maps may end with, for outputs of which these are the answers."""
        return ("linear",)

    def answer_shape(self, image_size: tuple[int, int]) -> tuple[int, ...]:
        """Return the shape of the answer to one image of this height and width."""
        return (self.size,)

    def answers(self, outputs: Any) -> np.ndarray:
        """Return what outputs mean, float32, an entry per image.

        In NumPy: JAX would compile for each number of images.
        """
        raise NotImplementedError

    def answers_in_graph(self, outputs: Any) -> Any:
        """Return `answers` by `keras.ops`, for graphs."""
        raise NotImplementedError

    def outputs_in_graph(self, answers: Any) -> Any:
        """Return outputs that mean these answers, such as an average, by `keras.ops`.

        Where several outputs mean the same, one of them.
        """
        raise NotImplementedError

    def in_units(self, kernel: np.ndarray, bias: np.ndarray) -> tuple[Self, np.ndarray, np.ndarray]:
        """Return the task and a head's weights whose outputs others can take as they are."""
        return self, kernel, bias

    def outputs_like(self, other: Any, outputs: Any) -> Any:
        """Return outputs of another task of this kind as this one's, by `keras.ops`."""
        return outputs

    def graph_answers(self, answers: Any, top_k: int = 5) -> dict[str, Any]:
        """Return the named tensors of an exported file, by `keras.ops`, in `answer_names`.

        Args:
            answers: Float32, as `answers_in_graph` returns them.
            top_k: How many of the most probable classes there are to be, where there are classes.
        """
        raise NotImplementedError

    @property
    def answer_scale(self) -> np.ndarray:
        """Per answer, the size of a large difference in units, `(size,)`; 1 of probabilities."""
        return np.ones(self.size, np.float32)

    def describe(self, answer: Any, top: int = 5) -> dict[str, Any]:
        """Return the answer for one image as JSON values; `predictions` has a row per name.

        Pages show of a row its first value, and `probability`, `part`, or `value` with its `unit`.

        Args:
            answer: An entry of `answers`.
            top: How many rows there are at most, where rows have probabilities.
        """
        raise NotImplementedError

    def answer_map(self, answer: Any, size: tuple[int, int]) -> np.ndarray:
        """Return what is answered to each pixel of an image, as targets are.

        Args:
            answer: An entry of `answers`; or such a map, as large images have it: `describe`,
                `answer_files` and `tally` take that as well.
            size: Height and width of the image.

        Returns:
            `(height, width, *pixel_shape)`.

        Raises:
            ValueError: The answer is not one of pixels.
        """
        raise ValueError(f"{self.kind} answers an image in words and numbers, not in an image.")

    def decided(self, answers: Any) -> np.ndarray:
        """Return the pixels of `answer_map` from answers of that size, `(..., size)`."""
        raise NotImplementedError

    def answer_files(self, answer: Any, size: tuple[int, int]) -> dict[str, bytes]:
        """Return files of `answer_map`, from the same arguments: their contents by suffix."""
        raise ValueError(f"{self.kind} answers an image in words and numbers, not in an image.")

    def to_text(self, answer: Any, top: int = 5) -> str:
        """Return the answer for one image as one line."""
        raise NotImplementedError

    # Calibration

    @property
    def learns_from_held_out(self) -> bool:
        """Whether images that were not trained on set something: a temperature, thresholds."""
        return self.sums_to_one or self.calibrates

    def calibrated(self, targets: Any, answers: Any) -> Self:
        """Return the task with what held-out images decide: thresholds, prediction intervals.

        Args:
            targets: As `check_targets` takes them.
            answers: As `answers` returns them, of images that the model has not been trained on.
        """
        return self

    @property
    def is_calibrated(self) -> bool:
        """Whether there are prediction sets or intervals."""
        return self != self.uncalibrated()

    def uncalibrated(self) -> Self:
        """Return the task without sets and intervals, whose coverage is of one model's answers."""
        return self

    def with_coverage(self, targets: Any, answers: Any, coverage: float) -> Self:
        """Return the task with answers that hold the truth for a part of new images.

        `PredictionSets` of classes, prediction intervals of numbers.

        Args:
            targets: As `check_targets` takes them.
            answers: As `answers` returns them, of images that the model has not been trained on.
            coverage: That part, in (0, 1).

        Raises:
            ValueError: The coverage is out of range, there are too few examples for it, or the
                task has neither.
        """
        raise ValueError(
            "A coverage is of the sets of classification and of the intervals of regression; "
            f"{self.kind} has neither: train without it, and calibrate models of those two."
        )

    # Scores

    def tally(self, targets: Any, answers: Any) -> Tally:
        """Return what the scores need of each image: so much stays of each batch.

        Args:
            targets: As `check_targets` takes them.
            answers: As `answers` returns them.

        Raises:
            ValueError: There is not a finite answer per target.
        """
        raise NotImplementedError

    def scores(
        self, targets: Any, answers: Any, resamples: int = 1000, seed: int = 0
    ) -> dict[str, Score]:
        """Return how good the answers are: named scores, each with a 95 % interval.

        Not a number where a score is not defined, as R2 is of targets that are all the same.

        Args:
            targets: As `check_targets` takes them.
            answers: As `answers` returns them.
            resamples: Of the bootstrap that the intervals are from; 0 for none. That of an accuracy
                is Wilson's.
            seed: Of the bootstrap.

        Raises:
            ValueError: There is not a finite answer per target.
        """
        return self.scores_of(self.tally(targets, answers), resamples, seed)

    def scores_of(self, tally: Tally, resamples: int = 1000, seed: int = 0) -> dict[str, Score]:
        """Return `scores` of a `tally`."""
        examples = len(next(iter(tally.values())))
        return scores_with_intervals(self._scores(tally), examples, resamples, seed)

    def score_changes(
        self, targets: Any, answers: Any, others: Any, resamples: int = 1000, seed: int = 0
    ) -> dict[str, Score]:
        """Return by how much other answers to the same examples score more, with 95 % intervals.

        The intervals are paired: each resample of the bootstrap scores both answers to the same
        examples. They are narrower than the difference of two intervals, where answers are similar.

        Args:
            targets: As for `scores`, like `resamples` and `seed`.
            answers: As `answers` returns them.
            others: The same of another model.
        """
        first, second = (self.tally(targets, each) for each in (answers, others))
        return self.changes_of(first, second, self, resamples, seed)

    def changes_of(
        self, tally: Tally, other: Tally, task: "Answer", resamples: int = 1000, seed: int = 0
    ) -> dict[str, Score]:
        """Return `score_changes` of tallies of the same examples, the other one by its `task`."""
        (names, before), (_, after) = self._scores(tally), task._scores(other)
        examples = len(next(iter(tally.values())))

        def change(weights: np.ndarray) -> list[float]:
            return np.subtract(after(weights), before(weights)).tolist()

        return bootstrap(change, names, examples, resamples, seed)

    def _scores(self, tally: Tally) -> NamedScores:
        """Return the names of the scores, and what computes them for weights of the examples."""
        raise NotImplementedError

    def main_score(self, targets: Any) -> str:
        """Return the name of the score, higher is better, that ranks models on these targets."""
        raise NotImplementedError

    def best_constants(self, targets: Any) -> Mapping[str, Any]:
        """Return by each score the best single answer for all images, which needs no model.

        Where any is as good as another, one of them.

        Args:
            targets: As `check_targets` takes them, by which they are the best.
        """
        raise NotImplementedError

    def constant_tally(self, targets: Any, answer: Any) -> Tally:
        """Return the tally of one answer for all images.

        Args:
            targets: As `summary` returns them.
            answer: A value of `best_constants`.
        """
        rows = np.broadcast_to(answer, (len(targets), *np.shape(answer)))
        return self.tally(targets, rows)

    def name_scores(self, tally: Tally) -> Columns:
        """Return a table of numbers per name, `(size,)` each; empty where the scores say it all."""
        return {}

    def facts(self, tally: Tally) -> dict[str, float]:
        """Return further numbers of all images, which do not rank models."""
        return {}

    def distance(self, tally: Tally) -> np.ndarray:
        """Return how far each answer is from its truth, `(examples,)`; 0 or less: not a mistake."""
        raise NotImplementedError

    def texts(self, tally: Tally, index: int) -> tuple[str, str]:
        """Return the answer and the truth of an image in words."""
        raise NotImplementedError

    # Explanation

    def explained(self, answers: Any) -> np.ndarray:
        """Return which of the names to explain for each image, int `(examples,)`.

        The most probable. Raises a ValueError where none of several numbers is more than another.

        Args:
            answers: `(examples, size)`, as `answers` returns them.
        """
        return np.asarray(answers).argmax(axis=1)

    def evidence(self, outputs: Any, which: Any) -> Any:
        """Return how much the outputs speak for a name, `(examples,)`, by `keras.ops`.

        Args:
            outputs: `(examples, outputs)`.
            which: Places in the names, int `(examples,)`.
        """
        raise NotImplementedError

    def evidence_text(self, which: int) -> str:
        """Return what `evidence` speaks for, such as the class's name."""
        raise NotImplementedError


def check_finite_answers(answers: np.ndarray) -> None:
    """Raise a ValueError where the answer to an example, `(examples, ...)`, is not finite."""
    broken = np.flatnonzero(~np.isfinite(answers).reshape(len(answers), -1).all(axis=1))
    if broken.size:
        raise ValueError(
            f"The answers of {broken.size:,} of {len(answers):,} examples are not finite, the "
            f"first of example {broken[0]}: the model's weights are damaged, or its training "
            "diverged. Train it again with a lower learning rate, or use another file."
        )
