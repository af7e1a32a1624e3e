"""Validation of features, labels, scores and probabilities."""

from collections.abc import Iterator
from typing import Any

import numpy as np

CHUNK_BYTES = 32 * 2**20  # rows of scores are checked and reduced in parts of this size


def check_features(
    features: Any, labels: Any, name: str, dimension: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return features as float64 `(n, dimension)` and integer labels `(n,)`.

    Raises:
        ValueError: The shape or dtype is wrong, there is no example, a label is negative, or a
            value is not finite.

    >>> x, y = check_features([[1, 2]], [0], "train")
    >>> x.dtype, y
    (dtype('float64'), array([0]))
    """
    x, y = np.asarray(features, np.float64), np.asarray(labels)
    if x.ndim != 2 or y.shape != x.shape[:1] or not x.size:
        raise ValueError(
            f"{name} features {x.shape} and labels {y.shape} do not match. "
            "Give (examples, dimension) and (examples,), with at least one example."
        )
    if not np.issubdtype(y.dtype, np.integer) or y.min() < 0:
        raise ValueError(f"{name} labels are {y.dtype} from {y.min()}. Give classes 0, 1, 2, ...")
    if dimension is not None and x.shape[1] != dimension:
        raise ValueError(
            f"{name} features have {x.shape[1]} dimensions and the training features {dimension}. "
            "Compute both with one model."
        )
    finite = np.isfinite(x).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"{name} features of example {finite.argmin()} are not finite. Compute them in float32."
        )
    return x, y


def check_labels(labels: np.ndarray, num_classes: int) -> None:
    """Raises a ValueError for labels that are not integers from 0 to `num_classes - 1`."""
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"Labels are {labels.dtype}. Give integer classes 0, 1, 2, ...")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"Labels range from {labels.min()} to {labels.max()}, and there are {num_classes} "
            f"classes. Give labels from 0 to {num_classes - 1}."
        )


def row_slices(scores: np.ndarray) -> Iterator[slice]:
    """Slices of rows whose float64 values take about `CHUNK_BYTES`."""
    rows, columns = scores.shape
    step = max(CHUNK_BYTES // (8 * max(columns, 1)), 1)
    return (slice(start, start + step) for start in range(0, rows, step))


def check_scores(scores: np.ndarray) -> None:
    """Raises a ValueError for scores `(examples, classes)` that are NaN or infinite."""
    rows = [np.isfinite(scores[rows]).all(axis=1) for rows in row_slices(scores)]
    finite = np.concatenate(rows) if rows else np.ones(0, bool)
    if not finite.all():
        raise ValueError(
            f"The scores of {(~finite).sum()} of {len(scores)} examples are not finite, the first "
            f"of example {finite.argmin()}: the model's weights are damaged, or its training "
            "diverged. Train it again with a lower learning rate, or use another file."
        )
