"""Scores of answers, of examples with weights, and their intervals by the bootstrap.

A resample of the bootstrap is the same examples with other weights, so what is sorted is sorted
once.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np


class Score(NamedTuple):
    """A score and its 95 % interval: not a number where not defined, infinite of too few images."""

    value: float
    low: float
    high: float

    def to_list(self) -> list[float | None]:
        """Return what JSON has of it: None in place of a number that is not defined."""
        return [float(value) if np.isfinite(value) else None for value in self]

    @classmethod
    def from_list(cls, values: Sequence[float | None]) -> Self:
        """Return the score that `to_list` was called of, as far as it is defined."""
        return cls(*(np.nan if value is None else value for value in values))

    def interval(self, form: str, between: str = " to ") -> str:
        """Return the interval as a text, "unknown" of too few images."""
        known = np.isfinite(self.low)
        return f"{self.low:{form}}{between}{self.high:{form}}" if known else "unknown"


# From weights of the examples `(examples,)` to the values of some scores.
WeightedScores = Callable[[np.ndarray], Sequence[float]]
NamedScores = tuple[Sequence[str], WeightedScores]
# Fewer lie all on one side of the truth with a probability above 5 %, 2 / 2**5, as resamples do.
LEAST_EXAMPLES = 6
_IN_CACHE = 2**17  # numbers of 8 bytes that a processor has at hand


def bootstrap(
    score: WeightedScores,
    names: Sequence[str],
    examples: int,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Score]:
    """Scores with percentile intervals, infinite of fewer than six examples.

    Efron 1979, "Bootstrap Methods".

    Args:
        score: Values of the scores for weights `(examples,)`, one per name.
        names: Of the scores.
        examples: How many there are.
        resamples: How often as many examples are resampled with replacement; 0 for no intervals.
        seed: Of the draws.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.scores import bootstrap
    >>> right = np.array([True, True, True, False] * 25)
    >>> bootstrap(lambda w: [w @ right / w.sum()], ["accuracy"], 100)
    {'accuracy': Score(value=0.75, low=0.66, high=0.83)}
    """
    rng = np.random.default_rng(seed)
    resampled = np.full((max(resamples, 1), len(names)), np.nan)
    for row in resampled[:resamples]:
        counts = np.bincount(rng.integers(0, examples, examples), minlength=examples)
        row[:] = score(counts.astype(np.float64))
    rows = zip(names, score(np.ones(examples)), resampled.T, strict=True)
    return {name: Score(float(one), *_interval(many, examples)) for name, one, many in rows}


def scores_with_intervals(
    named: NamedScores, examples: int, resamples: int = 1000, seed: int = 0
) -> dict[str, Score]:
    """`bootstrap`, but Wilson's interval for an accuracy; infinite ones where resamples are equal.

    They are where nothing is a mistake, which does not show that nothing ever will be.
    """
    names, score = named
    scores = bootstrap(score, names, examples, resamples, seed)
    equal = {name: s.value for name, s in scores.items() if s.low == s.high}
    scores |= {name: Score(value, -np.inf, np.inf) for name, value in equal.items()}
    if "accuracy" in scores:
        rate = scores["accuracy"].value
        scores["accuracy"] = Score(rate, *wilson_interval(rate, examples))
    return scores


def _interval(values: np.ndarray, examples: int) -> tuple[float, float]:
    defined = values[np.isfinite(values)]
    if not defined.size:
        return np.nan, np.nan
    if examples < LEAST_EXAMPLES:
        return -np.inf, np.inf
    low, high = np.quantile(defined, [0.025, 0.975])
    return float(low), float(high)


def wilson_interval(rate: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % confidence interval of a rate, such as an accuracy, from `count` examples.

    Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    >>> [round(bound, 3) for bound in wilson_interval(0.5, 30)]
    [0.332, 0.668]
    """
    z = 1.96
    center = (rate + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * (rate * (1 - rate) / count + (z / (2 * count)) ** 2) ** 0.5
    return max(0.0, center - half), min(1.0, center + half)  # rounding may pass 0 or 1


def mean(values: Any) -> float:
    """Return the mean; not a number where there are no values."""
    return float(np.mean(values)) if len(values) else np.nan


def f1_scores(both: Any, present: Any, predicted: Any) -> np.ndarray:
    """Return F1 of counts: present and predicted, present, predicted; 0 where not defined."""
    return shares(2 * both, present + predicted)


def shares(part: Any, whole: Any) -> np.ndarray:
    """Return the quotients of counts, float64; 0 of nothing."""
    total = np.asarray(whole, np.float64)
    return np.divide(part, total, out=np.zeros_like(total), where=total > 0)


def class_scores(labels: np.ndarray, predicted: np.ndarray, size: int) -> NamedScores:
    """Accuracy, balanced accuracy (the mean recall) and macro F1 of `size` classes.

    Both means are over the classes that have examples: of another, whether the data or a resample
    happens not to have it, nothing is known.

    Args:
        labels: Integer classes `(examples,)`.
        predicted: Integer classes `(examples,)`.
        size: How many classes there are.

    >>> import numpy as np
    >>> names, score = class_scores(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0]), 2)
    >>> dict(zip(names, np.round(score(np.ones(4)), 3).tolist()))
    {'accuracy': 0.75, 'balanced_accuracy': 0.5, 'macro_f1': 0.429}
    """

    def score(weights: np.ndarray) -> list[float]:
        right = weights * (predicted == labels)
        cases = ((labels, right), (labels, weights), (predicted, weights))
        both, present, answered = (np.bincount(x, w, size) for x, w in cases)
        has = present > 0
        recall = (both[has] / present[has]).mean()
        macro_f1 = f1_scores(both, present, answered)[has].mean()
        return [right.sum() / weights.sum(), recall, macro_f1]

    return ("accuracy", "balanced_accuracy", "macro_f1"), score


class AveragePrecision:
    """The area under the steps of precision over recall of each label, as scikit-learn's.

    Only the steps at which an example has the label count. What lies between two of them is added
    at once, for many labels in one call of NumPy: there may be thousands of labels.

    Args:
        present: Bool `(examples, labels)`.
        scores: The higher, the more likely the label is present, `(examples, labels)`.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.scores import AveragePrecision
    >>> present, scores = np.array([[True], [False], [True]]), np.array([[0.9], [0.8], [0.7]])
    >>> AveragePrecision(present, scores)(np.ones(3)).round(3).tolist()
    [0.833]
    """

    def __init__(self, present: np.ndarray, scores: np.ndarray) -> None:
        examples, self.labels = present.shape
        ranked = [_steps(y, x) for y, x in zip(present.T, scores.T, strict=True)]
        self.label = np.repeat(np.arange(self.labels), [len(starts) for _, starts, *_ in ranked])
        self.first = np.searchsorted(self.label, self.label)  # step of its label
        self.true = _joined([pieces[2:] for pieces in ranked])
        at_once = max(1, _IN_CACHE // examples)
        blocks = [ranked[i : i + at_once] for i in range(0, self.labels, at_once)]
        self.predicted = [_joined([pieces[:2] for pieces in block]) for block in blocks]

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Return average precision `(labels,)` for weights; NaN where no example has the label."""
        step = _sums(weights, *self.true)
        true = self._up_to(step)
        predicted = self._up_to(np.concatenate([_sums(weights, *b) for b in self.predicted]))
        precision = np.divide(true, predicted, out=np.zeros_like(true), where=predicted > 0)
        area, total = (np.bincount(self.label, x, self.labels) for x in (step * precision, step))
        return _quotient(area, total, total > 0)

    def _up_to(self, steps: np.ndarray) -> np.ndarray:
        """Return cumulative sums of the steps within each label."""
        sums = np.append(0, np.cumsum(steps))
        return sums[1:] - sums[self.first]


Pieces = tuple[np.ndarray, np.ndarray]  # places of examples, and where each step begins in them


def _steps(present: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return what each step of a label adds: of all examples, then of those that have it."""
    order = np.argsort(-scores, kind="stable")
    present, scores = present[order], scores[order]
    # Examples with one score are above a threshold together.
    ends = np.append(np.flatnonzero(scores[1:] != scores[:-1]), len(scores) - 1) + 1
    true = np.append(0, np.cumsum(present))[ends]
    counts = np.diff(true, prepend=0) > 0
    starts, true = (np.append(0, x[counts]) for x in (ends, true))
    return order[: starts[-1]], starts[:-1], order[present], true[:-1]


def _joined(pieces: Sequence[Sequence[np.ndarray]]) -> Pieces:
    places, starts = zip(*pieces, strict=True)
    offsets = np.cumsum([0, *map(len, places)])
    moved = [start + offset for start, offset in zip(starts, offsets, strict=False)]
    return np.concatenate(places), np.concatenate(moved)


def _sums(weights: np.ndarray, places: np.ndarray, starts: np.ndarray) -> np.ndarray:
    # `reduceat` does not take an empty array.
    return np.add.reduceat(weights[places], starts) if len(starts) else np.zeros(0)


class NumberScores:
    """MAE, RMSE, R2 and Spearman's rank correlation of each of some numbers.

    Args:
        targets: `(examples, numbers)`.
        values: The answers `(examples, numbers)`.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.scores import NumberScores
    >>> scores = NumberScores(np.array([[1.0], [2.0], [4.0]]), np.array([[1.0], [3.0], [5.0]]))
    >>> scores(np.ones(3)).round(3).tolist()
    [[0.667, 0.816, 0.571, 1.0]]
    """

    names = ("mae", "rmse", "r2", "spearman")

    def __init__(self, targets: np.ndarray, values: np.ndarray) -> None:
        # A row per number, side by side in memory.
        self.targets = np.ascontiguousarray(targets.T)
        self.errors = np.ascontiguousarray((values - targets).T)
        self.places = [_places(x.T) for x in (targets, values)]

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Return scores `(numbers, 4)` for weights of the examples; NaN where one is undefined."""
        mae, mse, center = (
            np.average(x, axis=1, weights=weights)
            for x in (np.abs(self.errors), self.errors**2, self.targets)
        )
        variance = np.average((self.targets - center[:, None]) ** 2, axis=1, weights=weights)
        sampled = self.targets[:, weights > 0]
        varies = np.ptp(sampled, axis=1) > 0  # the variance of equal ones may round
        r2 = 1 - _quotient(mse, variance, varies)
        x, y = (_ranks(places, weights) for places in self.places)
        return np.stack([mae, np.sqrt(mse), r2, _correlation(x, y, weights)], axis=1)


def _places(rows: np.ndarray) -> np.ndarray:
    """Return the place of each value among the different ones of all rows, row after row."""
    places, end = [], 0
    for row in rows:
        unique, inverse = np.unique(row, return_inverse=True)
        places.append(end + inverse)
        end += len(unique)
    return np.stack(places)


def _ranks(places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean rank of each value in its row among examples that occur `weights` times."""
    counts = np.bincount(places.ravel(), np.tile(weights, len(places)))
    before = np.arange(len(places))[:, None] * weights.sum()  # all of the rows above
    return (np.cumsum(counts) - (counts - 1) / 2)[places] - before


def _correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    x, y = (z - np.average(z, axis=1, weights=weights)[:, None] for z in (x, y))
    xx, yy, xy = (np.sum(weights * product, axis=1) for product in (x * x, y * y, x * y))
    return _quotient(xy, np.sqrt(xx * yy), xx * yy > 0)


def _quotient(x: np.ndarray, y: np.ndarray, defined: np.ndarray) -> np.ndarray:
    return np.divide(x, y, out=np.full(len(x), np.nan), where=defined)


def quadratic_kappa(targets: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> float:
    """Cohen's kappa with quadratic weights (Cohen 1968): 1 for agreement, 0 for chance.

    >>> import numpy as np
    >>> quadratic_kappa(np.array([0, 1, 2]), np.array([0, 1, 1]), np.ones(3))
    0.6666666666666667
    """
    # Of all pairs of a target and an answer, without a matrix of all grades.
    x, y = targets.astype(np.float64), predicted.astype(np.float64)
    total, sum_x, sum_y = weights.sum(), np.sum(weights * x), np.sum(weights * y)
    squares = np.sum(weights * (x**2 + y**2))
    by_chance = squares - 2 * sum_x * sum_y / total
    observed = np.sum(weights * (x - y) ** 2)
    return float(1 - observed / by_chance) if by_chance else np.nan
