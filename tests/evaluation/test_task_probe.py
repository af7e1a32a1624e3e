"""Linear heads of tasks, beside scikit-learn's classifiers and regressions of the same penalty."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

from keras_vit.evaluation.task_probe import TaskProbe, task_probe
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(1, 2, (200, 6))
SCORES = X @ RANDOM.normal(size=(6, 3)) + RANDOM.normal(size=(200, 3))
SCALED = StandardScaler().fit_transform(X)


def test_labels_are_logistic_regressions() -> None:
    """The mean over the labels is a sum with a weaker penalty."""
    labels = (SCORES > 0).astype(int)
    task = Multilabel(("a", "b", "c"))
    probe = task_probe(task, X, task.check_targets(labels))
    for i in range(3):
        sklearn = LogisticRegression(C=probe.strength / 3, max_iter=5000, tol=1e-8)
        expected = sklearn.fit(SCALED, labels[:, i]).decision_function(SCALED)
        np.testing.assert_allclose(probe.outputs(X)[:, i], expected, atol=0.02)


@pytest.mark.every_backend
def test_classes_are_a_logistic_regression() -> None:
    labels = SCORES.argmax(axis=1)
    task = Classification(("a", "b", "c"))
    probe = task_probe(task, X, task.check_targets(labels))
    sklearn = LogisticRegression(C=probe.strength, max_iter=5000, tol=1e-8).fit(SCALED, labels)
    expected = sklearn.predict_proba(SCALED)
    np.testing.assert_allclose(task.answers(probe.outputs(X)), expected, atol=2e-3)


@pytest.mark.every_backend
def test_numbers_are_a_ridge_regression() -> None:
    task = Regression(("x", "y")).fitted(SCORES[:, :2])
    targets = task.check_targets(SCORES[:, :2])
    probe = task_probe(task, X, targets)
    # Mean over two numbers, and squares without a half.
    expected = Ridge(alpha=1 / probe.strength).fit(SCALED, targets).predict(SCALED)
    np.testing.assert_allclose(probe.outputs(X), expected, atol=2e-3)


def test_grades_beat_the_best_constant() -> None:
    grades = np.digitize(SCORES[:, 0], [-2, 0, 2])
    task = Ordinal(size=4)
    probe = task_probe(task, X[:150], task.check_targets(grades[:150]))
    answers = task.answers(probe.outputs(X[150:]))
    constant = np.full(50, np.median(grades[:150]))
    errors = [np.abs(each - grades[150:]).mean() for each in (task.grades(answers), constant)]
    assert errors[0] < 0.5 * errors[1]


def test_the_penalty_is_chosen_on_held_out_examples() -> None:
    """Of noise in many dimensions, nothing is learned: the strongest penalty."""
    noise, numbers = RANDOM.normal(size=(60, 50)), RANDOM.normal(size=60)
    task = Regression(("x",)).fitted(numbers)
    probe = task_probe(task, noise, task.check_targets(numbers))
    assert probe.strength <= 1e-3
    assert np.abs(probe.outputs(noise)).max() < 0.2


@pytest.mark.parametrize(
    ("features", "targets", "words"),
    [
        (X, np.zeros((3, 1)), r"features \(200, 6\) and targets \(3, 1\) do not match"),
        (np.where(np.arange(200)[:, None] == 7, np.nan, X), SCORES[:, :1], "example 7 are not fin"),
    ],
)
def test_errors(features: Any, targets: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        task_probe(Regression(("x",)), features, targets)


def test_the_head_is_for_features_as_they_are() -> None:
    probe = TaskProbe(1.0, np.ones((2, 1), np.float32), np.ones(1, np.float32))
    assert probe.outputs([[1, 2]]).tolist() == [[4.0]]
