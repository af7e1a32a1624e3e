"""Validation of features, labels and scores."""

from typing import Any

import numpy as np


def checked(
    features: Any, labels: Any, name: str, dimension: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Features as float64 `(n, dimension)` and integer labels `(n,)`, or an error in words.

    Raises:
        ValueError: Another shape or dtype, no example, negative labels, or values that are not
            finite.

    >>> x, y = checked([[1, 2]], [0], "train")
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
            "Take both from one model."
        )
    if not np.isfinite(x).all():
        raise ValueError(
            f"{name} features of example {int(np.argmin(np.isfinite(x).all(axis=1)))} are not "
            "finite. Compute them in float32."
        )
    return x, y


def check_seed(seed: int) -> None:
    """Raises a ValueError for a seed that is not an integer of at least 0."""
    if not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed={seed!r} must be an integer of at least 0.")


def check_labels(labels: np.ndarray, num_classes: int) -> None:
    """Raises a ValueError for labels that are not integers from 0 to `num_classes - 1`."""
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"Labels are {labels.dtype}. Give integer classes 0, 1, 2, ...")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"Labels lie from {labels.min()} to {labels.max()}, and there are {num_classes} "
            f"classes. Give labels from 0 to {num_classes - 1}."
        )


def check_finite(scores: np.ndarray) -> None:
    """Raises a ValueError for scores `(examples, classes)` that are NaN or infinite."""
    finite = np.isfinite(scores).all(axis=1)
    if not finite.all():
        raise ValueError(
            f"The scores of {(~finite).sum()} of {len(scores)} examples are not finite, the first "
            f"of example {int(finite.argmin())}: the model's weights are damaged, or its training "
            "diverged. Train it again with a lower learning rate, or take another file."
        )
