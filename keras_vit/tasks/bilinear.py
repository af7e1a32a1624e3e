"""Bilinear resizing by a matrix per axis: the same numbers in NumPy, in a graph and in exports."""

import numpy as np


def bilinear_matrix(before: int, after: int, align_corners: bool = False) -> np.ndarray:
    """Return the weights of each pixel for each one after, float32 `(after, before)`.

    Args:
        before: Pixels along an axis.
        after: How many there are to be.
        align_corners: Whether the centers of the first and last pixel stay where they are;
            otherwise the borders of the image do.

    >>> bilinear_matrix(2, 3, align_corners=True).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    places = np.arange(after, dtype=np.float64)
    if align_corners:
        places *= (before - 1) / max(after - 1, 1)
    else:
        places = (places + 0.5) * before / after - 0.5
    places = places.clip(0, before - 1)
    return np.maximum(1 - np.abs(places[:, None] - np.arange(before)), 0).astype(np.float32)
