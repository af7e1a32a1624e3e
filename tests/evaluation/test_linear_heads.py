"""Heads in closed form against scikit-learn's, and left-out answers against refits."""

from typing import Any

import numpy as np
import pytest

from keras_vit.evaluation import linear_heads
from keras_vit.evaluation.linear_heads import LOGISTIC, MEANS, NEIGHBORS, RIDGE, fit_head, left_out
from keras_vit.evaluation.probes import ABSENT, STRENGTHS

linear_model = pytest.importorskip("sklearn.linear_model")
neighbors = pytest.importorskip("sklearn.neighbors")

RNG = np.random.default_rng(0)
Y = np.arange(30) % 3
X = RNG.normal(size=(30, 8)) + 1.5 * np.eye(8)[Y] + 3
ONE_HOT = np.eye(3)[Y]


def standardized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(axis=0)) / x.std(axis=0)


def alpha(x: np.ndarray, setting: float, weights: Any = None) -> float:
    """The penalty in scikit-learn's units."""
    weights = np.ones(len(x)) if weights is None else weights
    centered = np.sqrt(weights)[:, None] * (x - weights @ x / weights.sum())
    return setting * float(np.mean(np.linalg.svd(centered)[1] ** 2))


@pytest.mark.parametrize("folds", [np.arange(30), np.arange(30) % 5], ids=["one", "five"])
@pytest.mark.parametrize("wide", [False, True])
def test_left_out_by_the_hat_matrix_is_a_refit(folds: np.ndarray, wide: bool) -> None:
    x = np.concatenate([X, RNG.normal(size=(30, 60))], axis=1) if wide else X
    weights = RNG.uniform(0.5, 2, 30)
    answers, x = left_out(RIDGE, x, Y, 3, folds, weights), standardized(x)
    for setting, scores in answers:
        ridge = linear_model.Ridge(alpha(x, setting, weights))
        for fold in np.unique(folds):
            rest, rows = folds != fold, folds == fold
            ridge.fit(x[rest], ONE_HOT[rest], sample_weight=weights[rest])
            np.testing.assert_allclose(scores[rows], ridge.predict(x[rows]), atol=1e-5)
    assert setting == linear_heads.PENALTIES[-1]


def test_heads_are_scikit_learns() -> None:
    x = standardized(X)
    head = fit_head(RIDGE, X, Y, 3, setting=0.5)
    theirs = linear_model.Ridge(alpha(x, 0.5)).fit(x, ONE_HOT)
    np.testing.assert_allclose(head.scores(X), theirs.predict(x), atol=1e-8)
    theirs = linear_model.LogisticRegression(C=STRENGTHS[4], max_iter=2000).fit(x, Y)
    head = fit_head(LOGISTIC, X, Y, 3, setting=STRENGTHS[4])
    np.testing.assert_allclose(head.scores(X), theirs.decision_function(x), atol=1e-5)
    two = Y < 2
    head, x = fit_head(LOGISTIC, X[two], Y[two], 3), standardized(X[two])
    theirs = linear_model.LogisticRegression(C=1.0, max_iter=2000).fit(x, Y[two])
    scores = head.scores(X[two])
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], theirs.decision_function(x), atol=1e-5)
    assert head.scores(X)[:, 2].max() < ABSENT / 2  # never the most probable


def test_class_means_are_the_nearest_centroid() -> None:
    x, new = standardized(X), RNG.normal(size=(50, 8)) + 3
    unit, others = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in (x, (new - X.mean(axis=0)) / X.std(axis=0))
    )
    theirs = neighbors.NearestCentroid().fit(unit, Y)
    theirs.centroids_ /= np.linalg.norm(theirs.centroids_, axis=1, keepdims=True)
    head = fit_head(MEANS, X, Y, 3)
    np.testing.assert_array_equal(head.scores(new).argmax(axis=1), theirs.predict(others))


def test_neighbors_of_other_folds_vote() -> None:
    folds, x = np.arange(30) % 5, standardized(X)
    ((_, scores),) = left_out(NEIGHBORS, X, Y, 3, folds)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    rest = folds != folds[7]
    votes = np.exp((unit[rest] @ unit[7] - 1) / linear_heads.TEMPERATURE) @ ONE_HOT[rest]
    np.testing.assert_allclose(np.exp(scores[7]), votes, rtol=1e-6)


def test_folds_hold_every_class_and_whole_groups() -> None:
    labels = np.repeat([0, 1, 2], [12, 8, 8])
    folds = linear_heads.stratified_folds(labels, seed=3)
    table = np.zeros((3, 8), int)
    np.add.at(table, (labels, folds), 1)
    assert table[1:].tolist() == [[1] * 8] * 2
    assert set(table[0]) == {1, 2}
    assert (linear_heads.stratified_folds(labels, seed=4) != folds).any()
    assert linear_heads.stratified_folds(labels, most=3).max() == 2
    groups = np.arange(28) // 2
    folds = linear_heads.stratified_folds(labels, groups)
    assert all(len(set(folds[groups == group])) == 1 for group in groups)
