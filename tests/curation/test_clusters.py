"""Clusters are scikit-learn's k-means, ordered by size; every row gets one."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

from keras_vit.curation import clusters, find_clusters, nearest


def blobs(sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    number = np.repeat(np.arange(len(sizes)), sizes)
    rows = np.eye(16)[number] + random.normal(0, 0.08, (len(number), 16))
    order = random.permutation(len(number))
    return (rows * random.uniform(1, 9, (len(rows), 1)))[order], number[order]


def test_groups_that_stand_apart_are_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters, "BLOCK", 23)
    features, number = blobs((50, 20, 30))
    groups = find_clusters(features)
    assert groups.sizes.tolist() == [50, 30, 20]
    assert adjusted_rand_score(number, groups.labels) == 1
    assert groups.silhouette > 0.8
    first = groups.members(0)
    assert (np.diff(groups.similarities[first]) <= 0).all()
    np.testing.assert_allclose(np.linalg.norm(groups.centers, axis=1), 1, atol=1e-6)
    assert find_clusters(np.eye(3), 3).sizes.tolist() == [1, 1, 1]
    # Of many rows a sample is fitted, and all are assigned.
    monkeypatch.setattr(clusters, "MOST_FITTED", 40)
    features, number = blobs((60, 40))
    groups = find_clusters(features, 2)
    assert adjusted_rand_score(number, groups.labels) == 1
    np.testing.assert_array_equal(groups.labels, find_clusters(features, 2).labels)


def test_they_are_those_of_scikit_learn() -> None:
    features = load_digits().data[:500]
    rows = nearest.unit_rows(features)
    peer = KMeans(10, n_init=3, random_state=4).fit(rows).labels_
    labels = find_clusters(features, 10, seed=4).labels
    assert adjusted_rand_score(peer, labels) > 0.98  # a center of length 1 moves a border a little
