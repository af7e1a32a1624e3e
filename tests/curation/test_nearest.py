"""Nearest neighbors are scikit-learn's and faiss's, in blocks and with ties."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from keras_vit.curation import nearest, nearest_neighbors


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
    assert nearest_neighbors(features, k=3, engine="numpy").rows[6].tolist() == [0, 3, 9]
    # Few rows, and rows of zeros.
    features = np.array([[1.0, 0], [0, 0], [-1, 0]])
    rows, similarities = nearest_neighbors(features, features[:1], k=12, engine="numpy")
    assert rows.tolist() == [[0, 1, 2]]
    assert similarities.tolist() == [[1, 0, -1]]
    assert nearest_neighbors(features, k=12).rows.shape == (3, 2)
    assert nearest_neighbors(features, features[:0]).rows.shape == (0, 3)
