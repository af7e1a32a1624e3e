"""`Task`: what a model's outputs mean, from the targets it learns from to the answers it gives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from keras_vit._base.errors import check_arguments, check_choice, listed, printable
from keras_vit.tasks.balance import BALANCES
from keras_vit.tasks.scores import NamedScores, Score, scores_with_intervals
from keras_vit.tasks.splitting import held_out

# Of targets in rows: how many, the means and the standard deviations of the columns; or nothing.
Seen = tuple[float, ...]


@dataclass(frozen=True)
class Task:
    """What a model's outputs mean; one subclass per kind, listed in `keras_vit.tasks.TASKS`.

    An object is immutable and consists of plain values, so that it is saved in a model's
    configuration and in the metadata of every exported file.

    Attributes:
        names: Of the classes, labels, numbers or grades, in the order of the outputs; empty where
            nobody gave them.
        size: How many there are; follows from `names` where there are names.

    Raises:
        ValueError: There are neither names nor a size, the two differ, or a name occurs twice
            (as names of classes may).
    """

    kind: ClassVar[str]
    nouns: ClassVar[tuple[str, str]]  # what one of its names is, what several are
    fewest: ClassVar[int] = 1
    most: ClassVar[int] = 2**24  # more than this is a damaged file's
    mixes: ClassVar[bool] = True  # whether a mixture of two targets is a target
    distinct: ClassVar[bool] = True  # whether no name may occur twice
    sums_to_one: ClassVar[bool] = False  # whether answers are the softmax of as many outputs
    # The losses by name, the default first.
    losses: ClassVar[Mapping[str, type[keras.losses.Loss]]]
    # What a student learns from a teacher's outputs, by kind: functions of both.
    distillation: ClassVar[Mapping[str, Callable[..., Any]]]
    # The ways of `keras_vit.tasks.balance` that suit the task, with the losses for which they do.
    balances: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    unbalanced: ClassVar[str] = "they are numbers, of which none is rare"  # why not all of them
    # The names of the tensors of every exported file, the one of `answers` first.
    tensor_names: ClassVar[tuple[str, ...]]
    # Those of them that are places in `names`; other integers are one per name, 1 for predicted.
    index_answers: ClassVar[tuple[str, ...]] = ()

    # `problem_type` of transformers' configurations; None for its default, one of several classes.
    problem_type: ClassVar[str | None] = None

    names: tuple[str, ...] = ()
    size: int = 0

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if isinstance(self.names, str):
            raise ValueError(f'{kind}(names={self.names!r}) is one text: give ("{self.names}",).')
        self._set(names=tuple(map(str, self.names)))
        if self.names and self.size not in (0, len(self.names)):
            raise ValueError(
                f"{kind} has size={self.size} and {len(self.names)} names: {listed(self.names)}. "
                "Leave out the size, or give as many names."
            )
        self._set(size=len(self.names) or self.size)
        if not isinstance(self.size, int) or not self.fewest <= self.size <= self.most:
            raise ValueError(
                f"{kind} with {len(self.names)} names and size={self.size!r}: give at least "
                f"{self.fewest} names, or a size from {self.fewest} to {self.most:,}."
            )
        if self._repeated and self.distinct:
            raise ValueError(f"{kind} has these names more than once: {listed(self._repeated)}.")

    def _set(self, **values: Any) -> None:
        """Sets fields while the object is made; it is frozen afterwards."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def _repeated(self) -> list[str]:
        return sorted(name for name, count in Counter(self.names).items() if count > 1)

    @property
    def outputs(self) -> int:
        """The width of the model's head."""
        return self.size

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names, or `"0"`, `"1"`, ... where nobody gave any."""
        return self.names or tuple(map(str, range(self.size)))

    @property
    def answer_names(self) -> tuple[str, ...]:
        """The names of the tensors of an exported file, the one of `answers` first."""
        return self.tensor_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """What each output of the head is for, as other packages name it."""
        return self.shown_names

    def with_names(self, names: Sequence[str]) -> Self:
        """The same task with other names; none of them for numbers from 0 on.

        Raises:
            ValueError: There are more or fewer than `size`.
        """
        return replace(self, names=tuple(names))

    # Targets

    def check_targets(self, targets: Any) -> np.ndarray:
        """Targets as the loss takes them.

        Args:
            targets: One per example: numbers or names, as the subclass describes.

        Raises:
            ValueError: A target is not accepted; the message has its row, its value and what is
                accepted.
        """
        raise NotImplementedError

    def to_targets(self, checked: Any) -> np.ndarray:
        """The inverse of `check_targets`: what batches hold, as it takes them; numbers in units."""
        return np.asarray(checked)

    def split(self, targets: Any, fraction: float, seed: int = 0, groups: Any = None) -> np.ndarray:
        """Which examples to hold out: stratified by the targets, the same for the same seed.

        Args:
            targets: As `check_targets` takes them.
            fraction: The part to hold out, in (0, 1).
            seed: Another one gives another split.
            groups: One per example, of any type that can be compared, such as patients: the
                examples of a group are never on both sides.

        Returns:
            `(examples,)` of bool, True for those to hold out.

        Raises:
            ValueError: The fraction is out of range, targets are not accepted, or one side would
                be empty.
        """
        return held_out(self._strata(targets, fraction), fraction, seed, groups)

    def _strata(self, targets: Any, fraction: float) -> np.ndarray:
        """What `held_out` keeps in proportion, `(examples,)` or `(examples, strata)`."""
        raise NotImplementedError

    def fitted(self, targets: Any) -> Self:
        """The task with what it takes from the training targets: the scale of `Regression`."""
        return self

    def not_scaled(self, seen: Seen) -> str:
        """What is wrong with targets that look as if `check_targets` had not scaled them; or ""."""
        return ""

    def initial_bias(self, targets: Any) -> np.ndarray | None:
        """The bias of a zero head that predicts the mean target, `(outputs,)`; None for zeros."""
        return None

    # Training

    def loss(self, name: str | None = None, **options: Any) -> keras.losses.Loss:
        """A loss of this task's outputs and its `check_targets`.

        Args:
            name: A key of `losses`; None for the first.
            **options: Arguments of its class, such as `label_smoothing`.

        Raises:
            ValueError: The name or an option is unknown.
        """
        known = self.losses
        cls = known[check_choice(name or next(iter(known)), f"{self.kind} loss", known)]
        check_arguments(cls, options)
        return cls(**options)

    def counts(self, targets: Any) -> np.ndarray | None:
        """How many examples have each name, `(size,)`; None where targets are numbers."""
        return None

    def check_balance(self, balance: str, loss: str) -> None:
        """Raises a ValueError where a way of `keras_vit.tasks.balance` does not suit a loss."""
        check_choice(balance, "balance", BALANCES)
        if balance != "none" and balance not in self.balances:
            fitting = "".join(f"give {way!r}, or " for way in self.balances)
            raise ValueError(
                f"balance={balance!r} is not for {self.kind} targets: {self.unbalanced}; {fitting}"
                "leave it out."
            )
        if balance != "none" and loss not in self.balances[balance]:
            losses = " or ".join(self.balances[balance])
            raise ValueError(
                f"balance={balance!r} changes the loss {losses}, and this one is {loss}: give "
                "another of the two, or leave one out."
            )

    def balanced(self, loss: keras.losses.Loss, balance: str, targets: Any) -> keras.losses.Loss:
        """A loss that makes up for rare classes, as `balance` says, by the training targets."""
        return loss

    def metrics(self) -> list[keras.metrics.Metric]:
        """New metrics of this task's outputs, for `compile`."""
        raise NotImplementedError

    # Answers

    def answers(self, outputs: Any) -> np.ndarray:
        """What outputs `(examples, outputs)` mean, `(examples, size)` of float32.

        In NumPy: JAX would compile for each number of images.
        """
        raise NotImplementedError

    def answers_in_graph(self, outputs: Any) -> Any:
        """`answers` by `keras.ops`, for graphs."""
        raise NotImplementedError

    def outputs_in_graph(self, answers: Any) -> Any:
        """The inverse of `answers_in_graph`: outputs that mean these answers, such as an average.

        Where several outputs mean the same, one of them.
        """
        raise NotImplementedError

    def in_units(self, kernel: np.ndarray, bias: np.ndarray) -> tuple[Self, np.ndarray, np.ndarray]:
        """The task and a head's weights whose outputs others can take as they are: in units."""
        return self, kernel, bias

    def outputs_like(self, other: Task, outputs: Any) -> Any:
        """Outputs of another task of this kind as this one's, by `keras.ops`."""
        return outputs

    def graph_answers(self, answers: Any, top_k: int = 5) -> dict[str, Any]:
        """The named tensors of an exported file, by `keras.ops`; their names are `answer_names`.

        Args:
            answers: `(batch, size)`, float32, as `answers_in_graph` returns them.
            top_k: How many of the most probable classes there are to be, where there are classes.
        """
        raise NotImplementedError

    @property
    def answer_scale(self) -> np.ndarray:
        """Per answer, the size of a large difference in units, `(size,)`; 1 of probabilities."""
        return np.ones(self.size, np.float32)

    def calibrated(self, targets: Any, answers: Any) -> Self:
        """The task with what it takes from held-out images: thresholds, prediction intervals.

        Args:
            targets: As `check_targets` takes them.
            answers: `(examples, size)`, as `answers` returns them, of images that the model has
                not been trained on.
        """
        return self

    @property
    def is_calibrated(self) -> bool:
        """Whether there are prediction sets or intervals."""
        return self != self.uncalibrated()

    def uncalibrated(self) -> Self:
        """The task without sets and intervals, whose coverage holds for one model's answers."""
        return self

    def with_coverage(self, targets: Any, answers: Any, coverage: float) -> Self:
        """The task with answers that hold the truth for a part of new images: `PredictionSets` of
        classes, prediction intervals of numbers.

        Args:
            targets: As `check_targets` takes them.
            answers: `(examples, size)`, as `answers` returns them, of images that the model has
                not been trained on.
            coverage: That part, in (0, 1).

        Raises:
            ValueError: The coverage is out of range, there are too few examples for it, or the
                task has neither.
        """
        raise ValueError(
            f"coverage={coverage} is for classification, whose answers become sets of classes, and "
            f"for regression, whose answers become intervals; {self.kind} has neither: leave it "
            "out."
        )

    def scores(
        self, targets: Any, answers: Any, resamples: int = 1000, seed: int = 0
    ) -> dict[str, Score]:
        """How good the answers are: named scores, each with a 95 % interval.

        Not a number where a score is not defined, as R2 is of targets that are all the same.

        Args:
            targets: As `check_targets` takes them.
            answers: `(examples, size)`, as `answers` returns them.
            resamples: Of the bootstrap that the intervals are from; 0 for none. That of an accuracy
                is Wilson's.
            seed: Of the bootstrap.

        Raises:
            ValueError: There is not a row of finite answers per target.
        """
        named = self._scores(*self._pairs(targets, answers))
        return scores_with_intervals(named, len(answers), resamples, seed)

    def best_constants(self, targets: Any) -> dict[str, np.ndarray]:
        """By each score, the best single answer for all images `(size,)`, which needs no model.

        Where any is as good as another, one of them.

        Args:
            targets: As `check_targets` takes them, by which they are the best.
        """
        raise NotImplementedError

    def _scores(self, targets: np.ndarray, answers: np.ndarray) -> NamedScores:
        """The names of the scores, and what computes them for weights of the examples."""
        raise NotImplementedError

    def _most_probable(self, key: str, answer: Any, top: int) -> list[dict[str, Any]]:
        """Names and probabilities, the most probable first, the first of equal ones first."""
        row, names = np.asarray(answer), self.shown_names
        order = np.argsort(-row, kind="stable")[:top]
        return [{key: names[i], "probability": float(row[i])} for i in order]

    def describe(self, answer: Any, top: int = 5) -> dict[str, Any]:
        """The answer for one image as JSON values; `predictions` has a row per name.

        Args:
            answer: `(size,)`, a row of `answers`.
            top: How many rows there are at most, where rows have probabilities.
        """
        raise NotImplementedError

    def to_text(self, answer: Any, top: int = 5) -> str:
        """The answer for one image as one line."""
        raise NotImplementedError

    # Explanation

    def explained(self, answers: Any) -> np.ndarray:
        """Which of the names to explain for each image where nobody chose one, int `(examples,)`.

        The most probable. Raises a ValueError where none of several numbers is more than another.

        Args:
            answers: `(examples, size)`, as `answers` returns them.
        """
        return np.asarray(answers).argmax(axis=1)

    def evidence(self, outputs: Any, which: Any) -> Any:
        """How much the outputs speak for a name, `(examples,)`, by `keras.ops`, for gradients.

        Args:
            outputs: `(examples, outputs)`.
            which: Places in the names, int `(examples,)`.
        """
        return ops.sum(outputs * ops.one_hot(which, self.outputs, dtype="float32"), axis=1)

    def evidence_text(self, which: int) -> str:
        """What `evidence` speaks for, such as the class's name."""
        return self.shown_names[which]

    # Configuration

    def get_config(self) -> dict[str, Any]:
        """JSON values from which `keras_vit.tasks.get` makes the same task."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
        return {"kind": self.kind, **lists}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """The inverse of `get_config`.

        Raises:
            ValueError: The configuration is of another kind, or a value is not accepted.
        """
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in config.items()
        }
        check_choice(values.pop("kind", cls.kind), "kind", [cls.kind])
        check_arguments(cls, values)
        return cls(**values)

    def _indices(self, targets: np.ndarray) -> np.ndarray:
        """Names or integers `(examples,)` as indices, int32.

        Raises:
            ValueError: A row is neither a name nor an index.
        """
        if targets.dtype.kind in "biuf":
            indices = targets.astype(np.float64)
        else:
            index = {name: i for i, name in enumerate(self.names)}
            index |= dict.fromkeys(self._repeated, -1)
            numbers = [t if isinstance(t, Integral) else index.get(str(t), -1) for t in targets]
            indices = np.array(numbers, np.float64)
        accepted = f"an integer from 0 to {self.size - 1}"
        if self.names:
            accepted += f", or a name that stands for one of them: {listed(self.names)}"
        inside = (indices >= 0) & (indices < self.size) & (indices == np.trunc(indices))
        self._refuse(~inside, targets, accepted)
        return indices.astype(np.int32)

    def _refuse(self, wrong: Any, targets: Any, accepted: str) -> None:
        """Raises a ValueError for the first of the wrong rows `(examples,)`."""
        rows = np.flatnonzero(wrong)
        if rows.size:
            raise ValueError(
                f"Target {_shown(targets[rows[0]])} of row {rows[0]} does not suit {self.kind} "
                f"({rows.size:,} of {len(targets):,} rows are not accepted): give {accepted}."
            )

    def _rows(self, values: Any, columns: int, what: str) -> np.ndarray:
        """Values as an array `(examples, columns)`.

        Raises:
            ValueError: They have another shape.
        """
        rows = np.asarray(values)
        if rows.ndim == 1 and columns == 1:
            rows = rows[:, None]
        if rows.ndim != 2 or rows.shape[1] != columns:
            raise ValueError(
                f"{what} {rows.shape} do not fit {self.kind} of {self.size}: give "
                f"(examples, {columns})."
            )
        return rows

    def _number_rows(self, targets: Any) -> np.ndarray:
        """Targets as numbers `(examples, size)`, float64.

        Raises:
            ValueError: They are not numbers, or have another shape.
        """
        try:
            return self._rows(as_array(targets), self.size, "Targets").astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"Targets are not rows of {self.size} numbers: {error}") from error

    def _pairs(self, targets: Any, answers: Any) -> tuple[np.ndarray, np.ndarray]:
        """Checked targets, and as many rows of answers.

        Raises:
            ValueError: Their numbers differ, or an answer is not finite.
        """
        checked, rows = self.check_targets(targets), self._rows(answers, self.size, "Answers")
        if len(checked) != len(rows):
            raise ValueError(f"{len(checked):,} targets do not match {len(rows):,} answers.")
        broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
        if broken.size:
            raise ValueError(
                f"The answers of {broken.size:,} of {len(rows):,} examples are not finite, the "
                f"first of example {broken[0]}: the model's weights are damaged, or its training "
                "diverged. Train it again with a lower learning rate, or use another file."
            )
        return checked, rows


def percentages(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of `_most_probable` in one line."""
    cells = (f"{next(iter(row.values()))} {row['probability']:.2%}" for row in rows)
    return printable(", ".join(cells))


def _shown(value: Any) -> str:
    text = repr(value.tolist() if isinstance(value, np.ndarray | np.generic) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def as_array(targets: Any) -> np.ndarray:
    """Targets as an array with an example per row.

    Raises:
        ValueError: There is no example, or rows have different lengths.
    """
    try:
        array = np.asarray(keras.ops.convert_to_numpy(targets) if _is_tensor(targets) else targets)
    except ValueError as error:  # NumPy's own is about sequences and shapes
        raise ValueError("Targets are rows of different lengths: give one value each.") from error
    if array.ndim == 0 or not len(array):
        raise ValueError(f"Targets {array.shape} do not have an example per row, or are empty.")
    return array


def _is_tensor(targets: Any) -> bool:
    return not isinstance(targets, np.ndarray | Sequence) and keras.ops.is_tensor(targets)
