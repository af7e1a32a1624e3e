"""Features and labels as the classifiers over them want them."""

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
