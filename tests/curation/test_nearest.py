"""Nearest neighbors and clusters are scikit-learn's, and faiss's, in blocks and with ties."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors

from keras_vit.curation import clusters, find_clusters, nearest, nearest_neighbors


def rows_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 16)).astype("float32")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "BLOCK", 37)
    monkeypatch.setattr(nearest, "_QUERIES", 11)


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
    # Few rows, and rows of zeros.
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
    labels = find_clusters(features, 10, seed=4).labels
    assert adjusted_rand_score(peer, labels) > 0.98  # a center of length 1 moves a border a little
    # Groups that stand apart are the clusters.
    monkeypatch.setattr(clusters, "BLOCK", 23)
    features, number = blobs((50, 20, 30))
    groups = find_clusters(features)
    assert groups.sizes.tolist() == [50, 30, 20]
    assert adjusted_rand_score(number, groups.labels) == 1
    assert groups.silhouette > 0.8
    assert (np.diff(groups.similarities[groups.members(0)]) <= 0).all()
    np.testing.assert_allclose(np.linalg.norm(groups.centers, axis=1), 1, atol=1e-6)
    # Of many rows a sample is fitted, and all are assigned.
    monkeypatch.setattr(clusters, "MOST_FITTED", 40)
    features, number = blobs((60, 40))
    groups = find_clusters(features, 2)
    assert adjusted_rand_score(number, groups.labels) == 1
