"""How much the features of an index know of labels: every image answered by all the others.

    features, targets ──┬──► neighbors_answers   the nearest neighbors vote
                        └──► ridge_answers       a linear probe, in closed form
                                    ├──► judge_features: scores with intervals, by the task
                                    └──► compare_features: of two sets of features, the difference

Both leave one image out at a time, exactly and without a second fit, so that no image is held out
and nothing is drawn: the same features have the same scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from keras_vit.curation.feature_index import FeatureIndex
from keras_vit.curation.nearest import (
    BLOCK,
    TEMPERATURE,
    VOTERS,
    feature_blocks,
    nearest_neighbors,
    unit_rows,
    weighted_votes,
)
from keras_vit.tasks import Task
from keras_vit.tasks.scores import Score

# Multiples of the features' mean variance times the number of images: from next to no penalty to
# one that leaves only the directions of largest variance.
PENALTIES = tuple(float(p) for p in np.logspace(-4, 2, 13))


class RidgeAnswers(NamedTuple):
    """What a ridge regression answers for each example when it is fitted to all others.

    Attributes:
        answers: float64 `(n, outputs)`.
        penalty: The one of `penalties` with the smallest error.
        errors: Mean squared error of the left-out answers per penalty, `(penalties,)`.
        penalties: Those that were compared, `(penalties,)`.
    """

    answers: np.ndarray
    penalty: float
    errors: np.ndarray
    penalties: np.ndarray


@dataclass(frozen=True)
class FeatureScores:
    """What features know of labels.

    Attributes:
        measure: The score to compare by, the higher the better: `"accuracy"`, or
            `"balanced_accuracy"` where classes differ much; `"mean_average_precision"`; `"r2"`, of
            several numbers the mean; `"quadratic_kappa"` of grades.
        knn: The scores of the nearest neighbors' vote, each with a 95 % interval.
        probe: Those of the linear probe.
        penalty: The probe's.
        examples: How many images there are.
    """

    measure: str
    knn: dict[str, Score]
    probe: dict[str, Score]
    penalty: float
    examples: int


@dataclass(frozen=True)
class FeatureComparison:
    """What two sets of features know of the same labels.

    Attributes:
        before: The scores of the first.
        after: The scores of the second.
        knn: By how much the second's nearest neighbors score more, by `before.measure`, with the
            95 % interval of the paired difference.
        probe: By how much its linear probe does.
    """

    before: FeatureScores
    after: FeatureScores
    knn: Score
    probe: Score

    @property
    def is_gain(self) -> bool:
        """Whether one of the differences is certainly above 0, and neither is certainly below."""
        changes = (self.knn, self.probe)
        return any(c.low > 0 for c in changes) and not any(c.high < 0 for c in changes)


def judge_features(
    features: FeatureIndex | np.ndarray,
    targets: Any,
    task: Task,
    k: int = VOTERS,
    resamples: int = 1000,
    groups: Any = None,
) -> FeatureScores:
    """Scores of the nearest neighbors and of a linear probe, each image answered by all others.

    Features are scaled to length 1, as k-NN by cosine does.

    Args:
        features: An index, or an array `(n, dimension)`.
        targets: One per row, as `task.check_targets` takes them.
        task: What they mean: any of `keras_vit.tasks`; numbers are scored in their units.
        k: How many nearest neighbors vote, by exp(cosine / 0.07); fewer where there are fewer
            images.
        resamples: Of the bootstrap that intervals are from; that of an accuracy is Wilson's.
        groups: One per row, such as the patient of each image, whose rows do not answer each other;
            None where there are none. Intervals do not know of them.

    Raises:
        ValueError: Rows and targets do not match, there are fewer than three, a target is not
            accepted, or a number is not finite.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import judge_features
    >>> from keras_vit.tasks import Classification
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(60) % 2
    >>> features = rng.normal(size=(60, 4)) + 5 * np.eye(4)[labels]
    >>> scores = judge_features(features, labels, Classification(("cat", "dog")))
    >>> scores.probe[scores.measure].value
    1.0
    """
    return _judge(features, targets, task.fitted(targets), slice(None), k, resamples, groups)[0]


def compare_features(
    before: FeatureIndex | np.ndarray,
    after: FeatureIndex | np.ndarray,
    targets: Any,
    task: Task,
    scored: Any = None,
    k: int = VOTERS,
    groups: Any = None,
) -> FeatureComparison:
    """Scores two sets of features of the same images, and by how much the second one scores more.

    Each image is answered by all others; the intervals of the differences are paired.

    Args:
        before: Features, as for `judge_features`.
        after: Others of the same images, in the same order, of any dimension.
        targets: As for `judge_features`, like `task`, `k` and `groups`.
        scored: The places of the images whose answers are scored, such as those that neither of the
            two was trained on; the others vote. None for all.

    Raises:
        ValueError: See `judge_features`; or `scored` are not the places of two images or more.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import compare_features
    >>> from keras_vit.tasks import Classification
    >>> rng = np.random.default_rng(0)
    >>> labels = np.arange(60) % 2
    >>> noise = rng.normal(size=(60, 4))
    >>> changed = compare_features(
    ...     noise, noise + 5 * np.eye(4)[labels], labels, Classification(("cat", "dog")))
    >>> changed.is_gain, changed.after.probe["accuracy"].value
    (True, 1.0)
    """
    task = task.fitted(targets)
    count = len(task.check_targets(targets))
    places = np.arange(count) if scored is None else np.unique(np.asarray(scored))
    if places.dtype.kind not in "iu" or len(places) < 2 or places[0] < 0 or places[-1] >= count:
        raise ValueError(
            f"scored={scored!r} must be the places of at least two of {count:,} images: integers "
            f"from 0 to {count - 1}, or None for all."
        )
    (first, *answers), (second, *others) = (
        _judge(each, targets, task, places, k, groups=groups) for each in (before, after)
    )
    right = np.asarray(targets)[places]
    knn, probe = (
        task.score_changes(right, *pair)[first.measure]
        for pair in zip(answers, others, strict=True)
    )
    return FeatureComparison(first, second, knn, probe)


def _judge(
    features: FeatureIndex | np.ndarray,
    targets: Any,
    task: Task,
    places: Any,
    k: int,
    resamples: int = 1000,
    groups: Any = None,
) -> tuple[FeatureScores, np.ndarray, np.ndarray]:
    """Return the scores at these places, and what k-NN and the probe answer there."""
    # Ridge regression answers what `check_targets` returns: numbers are scaled there.
    right, at_places = task.check_targets(targets), np.asarray(targets)[places]
    right = right if right.ndim == 2 else np.eye(task.size)[right]
    rows = np.concatenate([unit_rows(block) for block in feature_blocks(features, BLOCK)])
    ridge = ridge_answers(rows, right, groups=groups)
    votes = neighbors_answers(rows, right, k, groups=groups)
    knn, probe = (task.to_targets(each[places]) for each in (votes, ridge.answers))
    scores = FeatureScores(
        task.main_score(at_places),
        task.scores(at_places, knn, resamples),
        task.scores(at_places, probe, resamples),
        ridge.penalty,
        len(at_places),
    )
    return scores, knn, probe


def neighbors_answers(
    features: FeatureIndex | np.ndarray,
    answers: Any,
    k: int = VOTERS,
    temperature: float = TEMPERATURE,
    groups: Any = None,
) -> np.ndarray:
    """Average the answers of each row's nearest other rows, weighted by exp(cosine / temperature).

    Args:
        features: An index, or an array `(n, dimension)`.
        answers: What is right for each row, `(n, outputs)`: of classes, rows of one-hot.
        k: Rows that vote, by cosine; fewer where there are fewer.
        temperature: A small value lets the nearest ones decide; with `float("inf")` all votes
            weigh the same.
        groups: One per row; rows of one group do not vote for each other. None without groups.

    Returns:
        float64 `(n, outputs)`; where nobody may vote, the mean of all answers.

    Raises:
        ValueError: See `ridge_answers`; or the temperature is not above 0.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import neighbors_answers
    >>> features = [[1, 0], [1, 0.1], [0, 1], [0.1, 1]]
    >>> neighbors_answers(np.array(features), [[1], [1], [0], [0]], k=1).ravel().tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    right = _check_pairs(features, answers)
    if not temperature > 0:
        raise ValueError(f"temperature={temperature!r} must be greater than 0, such as 0.07.")
    if groups is None:
        return weighted_votes(nearest_neighbors(features, k=k), right, temperature)
    group = _check_groups(groups, len(right))
    near = nearest_neighbors(features, k=k + int(np.bincount(group).max()) - 1)
    excluded = group[near.rows] == group[:, None]
    excluded |= (~excluded).cumsum(axis=1) > k  # the nearest k of other groups vote
    votes = weighted_votes(near, right, temperature, excluded)
    votes[excluded.all(axis=1)] = right.mean(axis=0)
    return votes


def ridge_answers(
    features: FeatureIndex | np.ndarray,
    answers: Any,
    penalties: Sequence[float] | None = None,
    groups: Any = None,
) -> RidgeAnswers:
    """Return the answer for each row of a ridge regression on all other rows, for the best penalty.

    Not a fit per row: with the hat matrix H of the fit to all rows, intercept included, the
    left-out residual of row i is its residual divided by 1 - H[i, i] (Allen 1974, "The relationship
    between variable selection and data augmentation and a method for prediction"). One
    decomposition of the covariance serves all penalties. The intercept is not penalized. All in
    float64, a block of rows at a time.

    Args:
        features: An index, or an array `(n, dimension)`; they are not scaled.
        answers: What is right for each row, `(n, outputs)`.
        penalties: L2 penalties to compare by the left-out squared error, scikit-learn's `alpha`;
            None for 13 from 0.0001 to 100 times the features' mean variance times n.
        groups: One per row; a row is answered by the rows of other groups, whose left-out residuals
            are those of its own group times the inverse of 1 - H[F, F]. All rows are in memory
            then. None without groups.

    Raises:
        ValueError: Rows and answers do not match, there are fewer than three, a number is not
            finite, or a penalty is not above 0.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import ridge_answers
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> left_out = ridge_answers(x, x @ [[1.0], [2.0], [0.0]] + 5, penalties=[1e-6, 1.0])
    >>> left_out.penalty, bool(left_out.errors[0] < 1e-9)
    (1e-06, True)
    """
    right = _check_pairs(features, answers)
    count = len(right)
    center = sum(block.sum(axis=0) for block in _blocks(features)) / count
    if not np.isfinite(center).all():
        raise ValueError("A feature is NaN or infinite: take its image out, or compute it again.")
    mean = right.mean(axis=0)
    covariance = np.zeros((len(center), len(center)))
    moments = np.zeros((len(center), right.shape[1]))
    for start, block in _centered(features, center):
        covariance += block.T @ block
        moments += block.T @ (right[start : start + len(block)] - mean)
    values, vectors = np.linalg.eigh(covariance)
    values = values.clip(0)  # rounding makes those of directions without variance negative
    grid = _check_penalties(penalties, values)
    moments = vectors.T @ moments

    group = None if groups is None else _check_groups(groups, count)
    parts = [] if group is None else [np.flatnonzero(group == g) for g in range(group.max() + 1)]
    rotated_rows = [block @ vectors for _, block in _centered(features, center)] if parts else []
    whole = np.concatenate(rotated_rows) if parts else None

    def left_out(penalty: float) -> Iterator[tuple[slice | np.ndarray, np.ndarray]]:
        shrunk = 1 / (values + penalty)
        if whole is not None:
            residual = right - mean - whole @ (shrunk[:, None] * moments)
            for rows in parts:
                hat = 1 / count + (whole[rows] * shrunk) @ whole[rows].T
                yield rows, right[rows] - np.linalg.solve(np.eye(len(rows)) - hat, residual[rows])
            return
        for start, block in _centered(features, center):
            place = slice(start, start + len(block))
            rotated = block @ vectors
            leverage = 1 / count + rotated**2 @ shrunk
            residual = right[place] - mean - rotated @ (shrunk[:, None] * moments)
            yield place, right[place] - residual / (1 - leverage)[:, None]

    errors = np.array(
        [
            sum(((right[place] - rows) ** 2).sum() for place, rows in left_out(penalty))
            / right.size
            for penalty in grid
        ]
    )
    best = float(grid[int(errors.argmin())])
    unseen = np.zeros_like(right)
    for place, rows in left_out(best):
        unseen[place] = rows
    return RidgeAnswers(unseen, best, errors, grid)


def _check_penalties(penalties: Sequence[float] | None, values: np.ndarray) -> np.ndarray:
    if penalties is None:
        # Of features that are all the same, the answer is the mean, whatever the penalty.
        return np.array(PENALTIES) * (values.mean() or 1.0)
    grid = np.asarray(penalties, np.float64)
    if grid.ndim != 1 or not grid.size or not ((grid > 0) & np.isfinite(grid)).all():
        raise ValueError(
            f"penalties={penalties!r} must be one or more numbers above 0, such as [0.1, 1, 10]."
        )
    return grid


def _check_groups(groups: Any, count: int) -> np.ndarray:
    """Return the number of each row's group, from 0."""
    names, group = np.unique(np.asarray(groups), return_inverse=True)
    if group.shape != (count,) or len(names) < 2:
        raise ValueError(
            f"Groups of shape {np.shape(groups)}, {len(names)} of them, do not fit {count:,} rows: "
            "give one per row, and two groups at least."
        )
    return group


def _check_pairs(features: FeatureIndex | np.ndarray, answers: Any) -> np.ndarray:
    """Answers as float64 `(n, outputs)`."""
    right = np.asarray(answers, np.float64)
    if right.ndim != 2 or len(right) != len(features) or not right.shape[1]:
        raise ValueError(
            f"Answers of shape {right.shape} do not match {len(features):,} rows of features: give "
            "(rows, outputs)."
        )
    if len(right) < 3:
        raise ValueError(
            f"There are {len(right)} images, and each is answered by all others: give at least 3."
        )
    if not np.isfinite(right).all():
        raise ValueError("An answer is NaN or infinite: leave its image out.")
    return right


def _blocks(features: FeatureIndex | np.ndarray) -> Iterator[np.ndarray]:
    return (np.asarray(block, np.float64) for block in feature_blocks(features, BLOCK))


def _centered(
    features: FeatureIndex | np.ndarray, center: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    start = 0
    for block in _blocks(features):
        yield start, block - center
        start += len(block)
