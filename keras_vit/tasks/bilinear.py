"""Bilinear resizing by a matrix per axis: the same numbers in NumPy, in a graph and in exports."""

import numpy as np


def bilinear_matrix(given: int, wanted: int, align_corners: bool = False) -> np.ndarray:
    """Return the weights of each given pixel for each wanted one, float32 `(wanted, given)`.

    Args:
        given: Pixels along an axis.
        wanted: How many there are to be.
        align_corners: Whether the centers of the first and last pixel stay where they are;
            otherwise the borders of the image do.

    >>> bilinear_matrix(2, 3, align_corners=True).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    places = np.arange(wanted, dtype=np.float64)
    if align_corners:
        places *= (given - 1) / max(wanted - 1, 1)
    else:
        places = (places + 0.5) * given / wanted - 0.5
    places = places.clip(0, given - 1)
    return np.maximum(1 - np.abs(places[:, None] - np.arange(given)), 0).astype(np.float32)
