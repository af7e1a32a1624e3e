"""Linear heads on frozen features, without gradient steps, and their answers to left-out images.

    features, labels ──┬── class means            nearest mean by cosine
                       ├── ridge                  least squares, by one decomposition
                       ├── logistic regression    by scikit-learn
                       └── nearest neighbors      for comparison: they are not a head
                                └──► left_out: the scores of each image, by heads of other folds

All features are standardized first, by variances that are drawn halfway to their mean: a few
images know little of each one. On flowers and on CIFAR-10, from one to twenty images per class,
class means are better so than by each feature's own variance.

Folds hold the same part of every class. Leaving out one image at a time would not: of two images
per class it leaves one, against two of every other class, and so speaks against strong penalties,
which are the best then (of eight flowers per class, folds are half a point better).
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.errors import check_choice
from keras_vit.evaluation.checks import check_features
from keras_vit.evaluation.probes import ABSENT, STRENGTHS, as_head
from keras_vit.layers.novelty_score import unit_rows

MEANS, RIDGE, LOGISTIC = "class means", "ridge", "logistic regression"
NEIGHBORS = "nearest neighbors"
MOST_FOLDS = 10
# Multiples of the mean squared singular value of the standardized features.
PENALTIES = tuple(float(p) for p in np.logspace(-2, 3, 11))
TEMPERATURE = 0.07  # of the votes, as in DINO (Caron et al. 2021)


class Head(NamedTuple):
    """A linear classifier: `features @ kernel + bias` are its scores.

    Attributes:
        kernel: float64 `(dimension, classes)`.
        bias: float64 `(classes,)`.
    """

    kernel: np.ndarray
    bias: np.ndarray

    def scores(self, features: Any) -> np.ndarray:
        """Return the scores of features `(n, dimension)`, float64 `(n, classes)`."""
        return np.asarray(features, np.float64) @ self.kernel + self.bias

    def divided(self, temperature: float) -> "Head":
        """Return the head whose scores are divided by a temperature."""
        present = self.bias > ABSENT
        return Head(self.kernel / temperature, np.where(present, self.bias / temperature, ABSENT))


def fit_head(
    method: str,
    features: Any,
    labels: Any,
    classes: int,
    setting: float = 1.0,
    weights: np.ndarray | None = None,
) -> Head:
    """Fit one of the heads.

    Args:
        method: `MEANS`, `RIDGE` or `LOGISTIC`.
        features: `(n, dimension)`.
        labels: Integers `(n,)`.
        classes: How many the head answers; one without examples is never the most probable.
        setting: Of a ridge, a multiple of the mean squared singular value of the features; of a
            logistic regression, scikit-learn's C.
        weights: Of the examples, `(n,)`; None for 1. Class means do not have any.

    Raises:
        ValueError: The method is unknown, or features and labels do not match.
    """
    check_choice(method, "method", HEADS_BY_NAME)
    x, y = check_features(features, labels, "training")
    center, scale = _moments(x)
    weights = np.ones(len(y)) if weights is None else weights
    head = _fit(method, (x - center) / scale, y, classes, setting, weights)
    kernel = head.kernel / scale[:, None]
    return Head(kernel, head.bias - center @ kernel)


def _fit(
    method: str, x: np.ndarray, y: np.ndarray, classes: int, setting: float, weights: np.ndarray
) -> Head:
    """Fit a head to standardized features; a class without examples is never the most probable."""
    head = HEADS_BY_NAME[method](x, y, classes, setting, weights)
    present = np.bincount(y, minlength=classes) > 0
    return Head(head.kernel * present, np.where(present, head.bias, ABSENT))


def _moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean of each feature and what it is divided by; 1 where none varies.

    A few images know little of each feature's variance: it is drawn halfway to the mean variance.
    """
    variance = x.var(axis=0)
    scale = np.sqrt((variance + variance.mean()) / 2)
    return x.mean(axis=0), np.where(scale > 0, scale, 1.0)


def _class_means(x: np.ndarray, y: np.ndarray, classes: int, _: float, weights: Any) -> Head:
    """Nearest mean by cosine; an image's own length does not change which one is nearest."""
    sums = np.eye(classes)[y].T @ unit_rows(x)
    return Head(unit_rows(sums).T, np.zeros(classes))


def _ridge(x: np.ndarray, y: np.ndarray, classes: int, setting: float, weights: np.ndarray) -> Head:
    parts = _decompose(x, weights)
    targets = np.eye(classes)[y]
    mean = weights @ targets / weights.sum()
    moments = parts.left.T @ (parts.roots[:, None] * (targets - mean))
    shrunk = parts.values / (parts.values**2 + parts.penalty(setting))
    kernel = parts.right.T @ (shrunk[:, None] * moments)
    return Head(kernel, mean - parts.center @ kernel)


def _logistic(
    x: np.ndarray, y: np.ndarray, classes: int, setting: float, weights: np.ndarray
) -> Head:
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(y)) < 2:
        return Head(np.zeros((x.shape[1], classes)), np.zeros(classes))
    return Head(*as_head(LogisticRegression(C=setting, max_iter=2000).fit(x, y, weights), classes))


HEADS_BY_NAME: dict[str, Callable[..., Head]] = {
    MEANS: _class_means,
    RIDGE: _ridge,
    LOGISTIC: _logistic,
}
SETTINGS = {MEANS: (1.0,), RIDGE: PENALTIES, LOGISTIC: STRENGTHS}


def left_out(
    method: str,
    features: Any,
    labels: Any,
    classes: int,
    folds: np.ndarray,
    weights: np.ndarray | None = None,
) -> Iterator[tuple[float, np.ndarray]]:
    """Yield each setting of a method with the scores that heads of the other folds give each image.

    The features are standardized once. Ridge regressions are not fitted again: with the hat matrix
    H of the fit to all images, the residuals of the images F of a fold are those of that fit times
    the inverse of 1 - H[F, F] (Allen 1974). Folds of one image each are leave-one-out.

    Args:
        method: As for `fit_head`, also `features`, `labels`, `classes` and `weights`; or
            `NEIGHBORS`, the votes of all images of other folds by exp(cosine / 0.07).
        folds: The number of each image's fold, `(n,)`.

    Yields:
        The setting, and float64 scores `(n, classes)`.
    """
    check_choice(method, "method", (*HEADS_BY_NAME, NEIGHBORS))
    x, y = check_features(features, labels, "training")
    center, scale = _moments(x)
    x, weights = (x - center) / scale, np.ones(len(y)) if weights is None else weights
    if method == NEIGHBORS:
        unit = unit_rows(x)
        votes = np.exp((unit @ unit.T - 1) / TEMPERATURE)
        votes[folds[:, None] == folds] = 0
        yield TEMPERATURE, np.log(votes @ np.eye(classes)[y] + 1e-30)
    elif method == RIDGE:
        yield from _ridge_left_out(x, y, classes, folds, weights)
    else:
        for setting in SETTINGS[method]:
            scores = np.zeros((len(y), classes))
            for fold in np.unique(folds):
                rest, rows = folds != fold, folds == fold
                head = _fit(method, x[rest], y[rest], classes, setting, weights[rest])
                scores[rows] = head.scores(x[rows])
            yield setting, scores


def _ridge_left_out(
    x: np.ndarray, y: np.ndarray, classes: int, folds: np.ndarray, weights: np.ndarray
) -> Iterator[tuple[float, np.ndarray]]:
    parts, targets = _decompose(x, weights), np.eye(classes)[y]
    centered = parts.roots[:, None] * (targets - weights @ targets / weights.sum())
    constant = parts.roots / np.linalg.norm(parts.roots)  # what the intercept adds to H
    for setting in PENALTIES:
        shrunk = parts.values**2 / (parts.values**2 + parts.penalty(setting))
        residuals = centered - parts.left @ (shrunk[:, None] * (parts.left.T @ centered))
        scores = np.zeros(targets.shape)
        for fold in np.unique(folds):
            rows = np.flatnonzero(folds == fold)
            hat = (parts.left[rows] * shrunk) @ parts.left[rows].T
            hat += np.outer(constant[rows], constant[rows])
            unseen = np.linalg.solve(np.eye(len(rows)) - hat, residuals[rows])
            scores[rows] = targets[rows] - unseen / parts.roots[rows, None]
        yield setting, scores


class _Decomposition(NamedTuple):
    """The singular values of weighted, centered features, and the square roots of the weights."""

    center: np.ndarray
    roots: np.ndarray
    left: np.ndarray
    values: np.ndarray
    right: np.ndarray

    def penalty(self, setting: float) -> float:
        return setting * (float(np.mean(self.values**2)) or 1.0)


def _decompose(x: np.ndarray, weights: np.ndarray) -> _Decomposition:
    center, roots = weights @ x / weights.sum(), np.sqrt(weights)
    return _Decomposition(
        center, roots, *np.linalg.svd(roots[:, None] * (x - center), full_matrices=False)
    )


def stratified_folds(
    labels: np.ndarray, groups: Any = None, seed: int = 0, most: int = MOST_FOLDS
) -> np.ndarray:
    """Return the number of each image's fold: as many as classes have images, from 2 on.

    Args:
        labels: Integers `(n,)`.
        groups: None, or one per image; the images of a group are in one fold.

    >>> np.bincount(stratified_folds(np.repeat([0, 1], 4))).tolist()
    [2, 2, 2, 2]
    """
    counts = np.unique(labels, return_counts=True)[1]
    count = int(np.clip(np.median(counts[counts > 1]) if (counts > 1).any() else 2, 2, most))
    numbers = np.zeros(len(labels), int)
    if groups is not None and len(np.unique(groups)) < 2:
        return numbers  # nothing can be left out
    if groups is not None:
        from sklearn.model_selection import StratifiedGroupKFold

        if count > counts.max():
            return numbers  # of one image per class, too
        count = min(count, len(np.unique(groups)))
        ways = StratifiedGroupKFold(count, shuffle=True, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of classes smaller than most
            for fold, (_, rows) in enumerate(ways.split(labels, labels, groups)):
                numbers[rows] = fold
        return numbers
    random, start = np.random.default_rng(seed), 0
    for name in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == name))
        numbers[rows] = (start + np.arange(len(rows))) % count
        start += len(rows)  # where a class ends, so that folds are as large as each other
    return numbers
