"""Exact nearest neighbors by cosine: faiss where it is installed, NumPy otherwise.

Rows are compared a block at a time, so that memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from keras_vit._base.errors import check_choice, check_positive, counted
from keras_vit._base.version import install_command
from keras_vit.curation.feature_index import FeatureIndex
from keras_vit.data._imports import require

ENGINES = ("faiss", "numpy")
VOTERS, TEMPERATURE = 20, 0.07  # DINO's, as in `keras_vit.evaluation.knn_accuracy`
BLOCK = 8192  # rows of a block
_QUERIES = 1024  # queries that are compared with a block at once


class Nearest(NamedTuple):
    """The nearest rows of each query, the nearest first.

    Attributes:
        rows: int64 `(queries, k)`.
        similarities: float32 `(queries, k)`, the cosines, in [-1, 1].
    """

    rows: np.ndarray
    similarities: np.ndarray


def nearest_neighbors(
    features: FeatureIndex | np.ndarray,
    queries: np.ndarray | None = None,
    k: int = 12,
    engine: str | None = None,
) -> Nearest:
    """Return the rows with the largest cosine to each query, exactly.

    Rows with exactly the same cosine stand in their order, where NumPy compares. A row of zeros has
    the cosine 0 to all.

    Args:
        features: An index, or an array `(n, dimension)`.
        queries: `(queries, dimension)`; None for every row, which is not near itself then.
        k: Rows per query; fewer where there are fewer rows.
        engine: `"faiss"` or `"numpy"`; None for faiss where it is installed. The cosines of both
            differ by rounding alone.

    Raises:
        ImportError: faiss is asked for, and not installed.
        ValueError: The widths differ, a number is out of range, or a feature is not finite.

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import nearest_neighbors
    >>> rows, similarities = nearest_neighbors(np.eye(3), np.array([[3, 4, 0]]), k=2)
    >>> rows.tolist(), similarities.round(2).tolist()
    ([[1, 0]], [[0.800000011920929, 0.6000000238418579]])
    """
    check_positive(k=k)
    check_choice(engine, "engine", (None, *ENGINES))
    if engine is None:
        engine = "faiss" if find_spec("faiss") else "numpy"
    search = _faiss_search() if engine == "faiss" else _numpy_search
    is_self = queries is None
    count = len(features)
    k = min(k, count - is_self)
    asked = (
        feature_blocks(features, _QUERIES)
        if queries is None
        else feature_blocks(np.asarray(queries), _QUERIES)
    )
    rows, similarities, start = [], [], 0
    for block in asked:
        unit = unit_rows(block)
        numbers = np.arange(start, start + len(unit)) if is_self else None
        nearest = _of_queries(features, unit, k, numbers, search)
        rows.append(nearest.rows)
        similarities.append(nearest.similarities)
        start += len(unit)
    if not rows:
        return Nearest(np.zeros((0, k), np.int64), np.zeros((0, k), np.float32))
    # Rounding makes the cosine of equal rows a little more than 1.
    return Nearest(np.concatenate(rows), np.concatenate(similarities).clip(-1, 1))


def weighted_votes(
    near: Nearest, values: np.ndarray, temperature: float, excluded: np.ndarray | None = None
) -> np.ndarray:
    """Return the mean of the values of the nearest rows, weighted by exp(cosine / temperature).

    Args:
        values: float64 `(n, outputs)`.
        temperature: Above 0.
        excluded: bool `(queries, k)`, which of them do not vote; None where all do.

    Returns:
        float64 `(queries, outputs)`; zeros where nobody votes.
    """
    cosines = near.similarities
    # Less the largest, so that the nearest row's weight is 1 whatever the temperature.
    weights = np.exp((cosines - cosines.max(axis=1, keepdims=True)) / temperature, dtype=np.float64)
    if excluded is not None:
        weights[excluded] = 0
    total = weights.sum(axis=1, keepdims=True)
    weights = np.divide(weights, total, out=weights, where=total > 0)
    votes = np.zeros((len(weights), values.shape[1]))
    for rows, weight in zip(near.rows.T, weights.T, strict=True):  # one nearest neighbor at a time
        votes += weight[:, None] * values[rows]
    return votes


def unit_rows(features: np.ndarray) -> np.ndarray:
    """float32 rows `(n, dimension)` of length 1; those of zeros stay.

    Raises:
        ValueError: The array is not one of rows, or a number is not finite.
    """
    rows = np.array(features, np.float32, ndmin=1)
    if rows.ndim != 2:
        raise ValueError(f"Features of shape {rows.shape} are not rows: give (n, dimension).")
    if not np.isfinite(rows).all():
        raise ValueError("A feature is NaN or infinite: take its image out, or compute it again.")
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=rows, where=lengths > 0)


def rows_of(features: FeatureIndex | np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return some rows, float32."""
    array = features.features if isinstance(features, FeatureIndex) else np.asarray(features)
    return np.asarray(array[rows], np.float32)


def label_rows(features: FeatureIndex | np.ndarray, labels: Any) -> np.ndarray:
    """Return an integer for each row, -1 where its class is not known; a ValueError for others."""
    array = np.asarray(labels)
    if array.shape != (len(features),) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"Labels of shape {array.shape} and type {array.dtype} do not fit "
            f"{counted(len(features), 'row')} of features: give an integer per row, -1 where the "
            "class is not known."
        )
    return array


def feature_blocks(features: FeatureIndex | np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Return all rows in order, so many at a time."""
    if isinstance(features, FeatureIndex):
        return features.blocks(size)
    return (features[start : start + size] for start in range(0, len(features), size))


def _of_queries(
    features: FeatureIndex | np.ndarray, unit: np.ndarray, k: int, numbers: Any, search: Any
) -> Nearest:
    """Return the nearest rows of a block of queries, the best of what each block of rows has."""
    best = Nearest(np.zeros((len(unit), 0), np.int64), np.zeros((len(unit), 0), np.float32))
    start = 0
    for block in feature_blocks(features, BLOCK):
        rows = unit_rows(block)
        if rows.shape[1] != unit.shape[1]:
            raise ValueError(
                f"Queries of {unit.shape[1]} numbers do not fit features of {rows.shape[1]}: "
                "compute both by one model and layer."
            )
        # One more, where a query may find itself.
        near, cosines = search(unit, rows, min(k + (numbers is not None), len(rows)))
        near = near.astype(np.int64) + start
        if numbers is not None:
            cosines = np.where(near == numbers[:, None], -np.inf, cosines)
        best = _merge(best, Nearest(near, cosines), k)
        start += len(block)
    return best


def _merge(one: Nearest, other: Nearest, k: int) -> Nearest:
    rows = np.concatenate([one.rows, other.rows], axis=1)
    cosines = np.concatenate([one.similarities, other.similarities], axis=1)
    order = np.lexsort((rows, -cosines))[:, :k]  # by cosine, then by row
    return Nearest(
        np.take_along_axis(rows, order, axis=1),
        np.take_along_axis(cosines, order, axis=1).astype(np.float32),
    )


def _numpy_search(queries: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    cosines = queries @ rows.T
    if k < len(rows):
        near = np.argpartition(-cosines, k - 1, axis=1)[:, :k]
        near = _first_of_ties(cosines, near)
    else:
        near = np.broadcast_to(np.arange(len(rows)), cosines.shape)
    return near, np.take_along_axis(cosines, near, axis=1)


def _first_of_ties(cosines: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Return the nearest rows, replacing ties at the cut by the first rows with those cosines."""
    least = np.take_along_axis(cosines, near, axis=1).min(axis=1, keepdims=True)
    cut = np.flatnonzero((cosines >= least).sum(axis=1) > near.shape[1])
    for query in cut:
        near[query] = np.lexsort((np.arange(cosines.shape[1]), -cosines[query]))[: near.shape[1]]
    return near


def _faiss_search() -> Any:
    faiss = require("faiss", install_command("search"))

    def search(queries: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        cosines, near = faiss.knn(queries, rows, k, metric=faiss.METRIC_INNER_PRODUCT)
        return near, cosines

    return search
