"""Left-out answers are those of a fit per row, and scikit-learn's; what every function refuses."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeClassifierCV, RidgeCV
from sklearn.neighbors import KNeighborsClassifier

from keras_vit import curation
from keras_vit.curation import choice, judge_features, neighbors_answers, ridge_answers
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression
from tests.curation.photos import in_memory, no_hashes

PENALTIES = (0.01, 0.3, 10.0, 300.0)


def examples(dimension: int = 8) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(60) % 3
    features = np.random.default_rng(0).normal(3, 1, (60, dimension))
    features[:, :3] += 1.2 * np.eye(3)[labels]
    return features.astype("float32"), labels


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "BLOCK", 17)


@pytest.mark.parametrize("dimension", [8, 90], ids=["more rows", "more columns"])
def test_ridge_answers_are_those_of_a_fit_to_all_other_rows(dimension: int) -> None:
    features, labels = examples(dimension)
    right = np.stack([features[:, 0] + 100, np.sin(labels)], axis=1).astype("float64")
    ours = ridge_answers(features, right, PENALTIES)
    others = ~np.eye(len(features), dtype=bool)
    x = features.astype("float64")
    expected = [Ridge(ours.penalty).fit(x[o], right[o]).predict(x[~o])[0] for o in others]
    np.testing.assert_allclose(ours.answers, expected, rtol=1e-6, atol=1e-6)
    # The penalty is scikit-learn's.
    right = np.eye(3)[labels]
    peer = RidgeCV(PENALTIES, store_cv_results=True).fit(x, right)
    ours = ridge_answers(features, right, PENALTIES)
    assert ours.penalty == peer.alpha_
    np.testing.assert_allclose(ours.errors, peer.cv_results_.mean(axis=(0, 1)), rtol=1e-6)
    classifier = RidgeClassifierCV(PENALTIES).fit(x, labels)
    assert ours.penalty == classifier.alpha_
    # Its targets are -1 and 1 in place of 0 and 1.
    np.testing.assert_allclose(4 * ours.errors.min(), -classifier.best_score_, rtol=1e-6)


def test_neighbors_vote_as_scikit_learns_do() -> None:
    features, labels = examples()
    options = {"metric": "cosine", "algorithm": "brute"}
    options["weights"] = lambda distances: np.exp((1 - distances) / 0.07)
    peer, expected = KNeighborsClassifier(7, **options), []
    for others in ~np.eye(len(features), dtype=bool):
        peer.fit(features[others], labels[others])
        expected.append(peer.predict_proba(features[~others])[0])
    ours = neighbors_answers(features, np.eye(3)[labels], k=7)
    np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_features_are_judged_by_the_scores_of_their_task() -> None:
    features, labels = examples()
    task = Classification(("a", "b", "c"))
    scores = judge_features(features, labels, task)
    assert scores.measure == "accuracy"
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    ridge = ridge_answers(unit, np.eye(3)[labels])
    assert scores.penalty == pytest.approx(ridge.penalty)
    right = (ridge.answers.argmax(1) == labels).mean()
    assert scores.probe["accuracy"].value == pytest.approx(right)
    rare = np.r_[np.flatnonzero(labels < 2), np.flatnonzero(labels == 2)[:2]]
    scores = judge_features(features[rare], labels[rare], task)
    assert scores.measure == "balanced_accuracy"
    assert {"accuracy", "balanced_accuracy"} <= scores.knn.keys()
    # Other tasks have their own scores.
    numbers = np.stack([features[:, 0] * 1000, labels], axis=1)
    scores = judge_features(features, numbers, Regression(("grams", "kind")), resamples=50)
    each = [scores.probe[name].value for name in ("r2_grams", "r2_kind")]
    assert scores.probe[scores.measure].value == pytest.approx(np.mean(each))
    assert scores.probe["mae_grams"].value > 10 * scores.probe["mae_kind"].value  # in units
    labels_of = np.stack([labels == 0, labels != 1], axis=1).astype("float32")
    for task, targets, measure, least in (
        (Multilabel(("x", "y")), labels_of, "mean_average_precision", 0.6),
        (Ordinal(("low", "mid", "high")), labels, "quadratic_kappa", 0),
    ):
        scores = judge_features(features, targets, task, resamples=50)
        assert scores.measure == measure
        assert least < scores.probe[measure].value < 1


def test_two_sets_of_features_are_compared_where_they_are_scored() -> None:
    """Which are judged by the answers that are scikit-learn's, of the scored rows alone."""
    features, labels = examples()
    noise = np.random.default_rng(1).normal(size=(60, 5))
    task, scored = Classification(("a", "b", "c")), np.arange(60)[::2]
    ours = curation.compare_features(noise, features, labels, task, scored, k=7)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    rows = np.eye(3)[labels]
    answers = {"probe": ridge_answers(unit, rows, [ours.after.penalty]).answers}
    answers["knn"] = neighbors_answers(features, rows, k=7)
    assert ours.after.examples == 30
    for name, found in answers.items():
        after = getattr(ours.after, name)["accuracy"].value
        np.testing.assert_allclose(after, (found.argmax(1) == labels)[scored].mean())
        before = getattr(ours.before, name)["accuracy"].value
        change = getattr(ours, name)
        np.testing.assert_allclose(change.value, after - before, atol=1e-12)
        assert change.low <= change.value <= change.high
    assert curation.compare_features(noise, noise, labels, task).knn.value == 0
    back = curation.compare_features(features, noise, labels, task, scored, k=7)
    assert (ours.is_gain, back.is_gain) == (True, False)
    for wrong in ([0], [0, 60], [-1, 2], [0.5, 1.5]):
        with pytest.raises(ValueError, match="must be the places of at least two of 60"):
            curation.compare_features(noise, features, labels, task, wrong)


X = np.random.default_rng(0).normal(size=(20, 16)).astype("float32")
Y = np.arange(20) % 4
FEW_LABELS = "two classes or more with two labeled images each"
ONE, TWO = np.ones((4, 1)), np.ones((4, 2))


def duplicates(measured: int = 20, **options: Any) -> None:
    curation.find_duplicates(in_memory(X), no_hashes(measured), **options)


@pytest.mark.parametrize(("words", "call"), [
    (r"\(5, 1\) do not match 4 rows", lambda: curation.ridge_answers(TWO, np.ones((5, 1)))),
    ("at least 3", lambda: curation.ridge_answers(np.ones((2, 2)), np.ones((2, 1)))),
    ("An answer is NaN", lambda: curation.ridge_answers(TWO, ONE * np.nan)),
    ("A feature is NaN or infinite", lambda: curation.ridge_answers(np.full((4, 2), np.inf), ONE)),
    ("above 0", lambda: curation.ridge_answers(TWO, ONE, [0.0])),
    ("temperature=0 must be greater", lambda: curation.neighbors_answers(ONE, ONE, temperature=0)),
    ("2 images are not enough for clusters: give 3", lambda: curation.find_clusters(np.eye(2), 3)),
    (r"similar=1.5 is not a cosine", lambda: duplicates(similar=1.5)),
    ("closeness=2", lambda: duplicates(closeness=2)),
    ("2 measures do not fit 20 photographs", lambda: duplicates(2)),
    ("do not fit 20 rows", lambda: curation.find_label_errors(X, Y[:5])),
    (FEW_LABELS, lambda: curation.find_label_errors(X, np.zeros(20, int))),
    ("Groups of shape", lambda: curation.find_label_errors(X, Y, [0])),
    ("do not match", lambda: curation.label_quality(Y, np.ones((20, 1)))),
    ("are not classes of 0 to 1", lambda: curation.confident_errors(Y[2:3], np.ones((1, 2)))),
    ("2 numbers do not fit features of 16", lambda: curation.nearest_neighbors(X, np.ones((1, 2)))),
    ("NaN or infinite", lambda: curation.nearest_neighbors(X, np.full((1, 16), np.nan))),
    ("are not rows", lambda: curation.nearest_neighbors(X, np.ones(16))),
    ("count=0 must be an integer of at least 1", lambda: curation.next_to_label(X, count=0)),
    ("dropouts=2 must be odd", lambda: curation.next_to_label(X, dropouts=2)),
    ("rate=1.0 is not a rate", lambda: curation.next_to_label(X, rate=1.0)),
    ("seed=-1", lambda: curation.next_to_label(X, seed=-1)),
    ("give an integer per row, -1 where", lambda: curation.next_to_label(X, [0.5] * 20)),
    (r"Labels of shape \(2,\)", lambda: curation.next_to_label(X, [0, 1])),
    ("All 20 images have a label", lambda: curation.next_to_label(X, [1] * 20)),
    ("NaN or infinite", lambda: curation.next_to_label(np.full((4, 2), np.nan))),
])  # fmt: skip
def test_what_does_not_fit_is_refused(words: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=words):
        call()
