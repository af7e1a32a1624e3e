"""Left-out answers, nearest neighbors and clusters are scikit-learn's; what is refused."""

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.linear_model import Ridge, RidgeClassifierCV, RidgeCV
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from keras_vit import curation
from keras_vit.curation import choice, clusters, nearest, nearest_neighbors, ridge_answers
from keras_vit.tasks import Classification, Multilabel, Ordinal, Regression

PENALTIES = (0.01, 0.3, 10.0, 300.0)


def examples(dimension: int = 8) -> tuple[np.ndarray, np.ndarray]:
    labels = np.arange(60) % 3
    features = np.random.default_rng(0).normal(3, 1, (60, dimension))
    features[:, :3] += 1.2 * np.eye(3)[labels]
    return features.astype("float32"), labels


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "BLOCK", 17)
    monkeypatch.setattr(nearest, "BLOCK", 37)
    monkeypatch.setattr(nearest, "_QUERIES", 11)


of_groups = pytest.mark.parametrize("size", [None, 3], ids=["alone", "of groups"])


@of_groups
@pytest.mark.parametrize("dimension", [8, 90], ids=["more rows", "more columns"])
def test_ridge_answers_are_those_of_a_fit_to_all_other_rows(dimension: int, size: Any) -> None:
    features, labels = examples(dimension)
    right = np.stack([features[:, 0] + 100, np.sin(labels)], axis=1).astype("float64")
    groups = np.arange(60) // (size or 1)
    ours = ridge_answers(features, right, PENALTIES, groups=groups if size else None)
    x, penalty = features.astype("float64"), ours.penalty
    for row, others in enumerate(groups[:, None] != groups):
        expected = Ridge(penalty).fit(x[others], right[others]).predict(x[row : row + 1])[0]
        np.testing.assert_allclose(ours.answers[row], expected, rtol=1e-6, atol=1e-6)
    right = np.eye(3)[labels]
    peer = RidgeCV(PENALTIES, store_cv_results=True).fit(x, right)
    ours = ridge_answers(features, right, PENALTIES)
    assert ours.penalty == peer.alpha_
    np.testing.assert_allclose(ours.errors, peer.cv_results_.mean(axis=(0, 1)), rtol=1e-6)
    classifier = RidgeClassifierCV(PENALTIES).fit(x, labels)
    assert ours.penalty == classifier.alpha_
    # Its targets are -1 and 1 in place of 0 and 1.
    np.testing.assert_allclose(4 * ours.errors.min(), -classifier.best_score_, rtol=1e-6)


@of_groups
def test_neighbors_vote_as_scikit_learns_do(size: Any) -> None:
    features, labels = examples()
    options = {"metric": "cosine", "algorithm": "brute"}
    options["weights"] = lambda distances: np.exp((1 - distances) / 0.07)
    peer, groups = KNeighborsClassifier(7, **options), np.arange(60) // (size or 1)
    options = {"k": 7, "groups": groups if size else None}
    ours = curation.neighbors_answers(features, np.eye(3)[labels], **options)
    for row, others in enumerate(groups[:, None] != groups):
        peer.fit(features[others], labels[others])
        expected = peer.predict_proba(features[row : row + 1])[0]
        np.testing.assert_allclose(ours[row], expected, atol=1e-4)


def test_features_are_judged_by_the_scores_of_their_task() -> None:
    features, labels = examples()
    task = Classification(("a", "b", "c"))
    scores = curation.judge_features(features, labels, task)
    assert scores.measure == "accuracy"
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    ridge = ridge_answers(unit, np.eye(3)[labels])
    assert scores.penalty == pytest.approx(ridge.penalty)
    right = (ridge.answers.argmax(1) == labels).mean()
    assert scores.probe["accuracy"].value == pytest.approx(right)
    rare = np.r_[np.flatnonzero(labels < 2), np.flatnonzero(labels == 2)[:2]]
    scores = curation.judge_features(features[rare], labels[rare], task)
    assert scores.measure == "balanced_accuracy"
    assert {"accuracy", "balanced_accuracy"} <= scores.knn.keys()
    numbers = np.stack([features[:, 0] * 1000, labels], axis=1)
    scores = curation.judge_features(features, numbers, Regression(("grams", "kind")), resamples=50)
    each = [scores.probe[name].value for name in ("r2_grams", "r2_kind")]
    assert scores.probe[scores.measure].value == pytest.approx(np.mean(each))
    assert scores.probe["mae_grams"].value > 10 * scores.probe["mae_kind"].value  # in units
    labels_of = np.stack([labels == 0, labels != 1], axis=1).astype("float32")
    for task, targets, measure, least in (
        (Multilabel(("x", "y")), labels_of, "mean_average_precision", 0.6),
        (Ordinal(("low", "mid", "high")), labels, "quadratic_kappa", 0),
    ):
        scores = curation.judge_features(features, targets, task, resamples=50)
        assert scores.measure == measure
        assert least < scores.probe[measure].value < 1


def test_two_sets_of_features_are_compared_where_they_are_scored() -> None:
    features, labels = examples()
    noise = np.random.default_rng(1).normal(size=(60, 5))
    task, scored = Classification(("a", "b", "c")), np.arange(60)[::2]
    ours = curation.compare_features(noise, features, labels, task, scored, k=7)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    rows = np.eye(3)[labels]
    answers = {"probe": ridge_answers(unit, rows, [ours.after.penalty]).answers}
    answers["knn"] = curation.neighbors_answers(features, rows, k=7)
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
    # Rows of one group, such as copies, do not answer each other.
    twice, same, groups = (np.repeat(each, 2, axis=0) for each in (noise, labels, np.arange(60)))
    known = curation.compare_features(twice, twice, same, task, k=1)
    apart = curation.compare_features(twice, twice, same, task, k=1, groups=groups)
    assert known.after.knn["accuracy"].value == 1 > apart.after.knn["accuracy"].value
    for wrong in ([0], [0, 60], [-1, 2], [0.5, 1.5]):
        with pytest.raises(ValueError, match="must be the places of at least two of 60"):
            curation.compare_features(noise, features, labels, task, wrong)


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 16)).astype("float32")


@pytest.mark.parametrize("engine", ["numpy", "faiss"])
@pytest.mark.parametrize("among_themselves", [False, True])
def test_they_are_those_of_scikit_learn(engine: str, among_themselves: bool) -> None:
    if engine == "faiss":
        pytest.importorskip("faiss")
    features, queries = rows_of(200), rows_of(25, seed=1)
    peer = NearestNeighbors(n_neighbors=7, metric="cosine", algorithm="brute").fit(features)
    distances, rows = peer.kneighbors(None if among_themselves else queries)
    ours = nearest_neighbors(features, None if among_themselves else queries, 7, engine)
    np.testing.assert_array_equal(ours.rows, rows)
    np.testing.assert_allclose(ours.similarities, 1 - distances, atol=1e-6)


def test_equal_rows_stand_in_their_order_in_any_block() -> None:
    features = np.tile(rows_of(3), (40, 1))
    rows, similarities = nearest_neighbors(features, features[:1], k=5, engine="numpy")
    assert rows.tolist() == [[0, 3, 6, 9, 12]]
    np.testing.assert_allclose(similarities, 1, atol=1e-6)
    features = np.array([[1.0, 0], [0, 0], [-1, 0]])
    rows, similarities = nearest_neighbors(features, features[:1], k=12, engine="numpy")
    assert rows.tolist() == [[0, 1, 2]]
    assert similarities.tolist() == [[1, 0, -1]]
    assert nearest_neighbors(features, features[:0]).rows.shape == (0, 3)


def blobs(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    number = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.eye(16)[number] + random.normal(0, 0.08, (len(number), 16))
    order = random.permutation(len(number))
    return (rows * random.uniform(1, 9, (len(rows), 1)))[order], number[order]


def test_clusters_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    features = load_digits().data[:500]
    peer = KMeans(10, n_init=3, random_state=4).fit(nearest.unit_rows(features)).labels_
    labels = curation.find_clusters(features, 10, seed=4).labels
    assert adjusted_rand_score(peer, labels) > 0.98  # a center of length 1 moves a border a little
    # Groups that stand apart are the clusters.
    monkeypatch.setattr(clusters, "BLOCK", 23)
    features, number = blobs((50, 20, 30))
    groups = curation.find_clusters(features)
    assert groups.sizes.tolist() == [50, 30, 20]
    assert adjusted_rand_score(number, groups.labels) == 1
    assert groups.silhouette > 0.8
    assert (np.diff(groups.similarities[groups.members(0)]) <= 0).all()
    np.testing.assert_allclose(np.linalg.norm(groups.centers, axis=1), 1, atol=1e-6)
    # Of many rows a sample is fitted, and all are assigned.
    monkeypatch.setattr(clusters, "MOST_FITTED", 40)
    features, number = blobs((60, 40))
    groups = curation.find_clusters(features, 2)
    assert adjusted_rand_score(number, groups.labels) == 1
