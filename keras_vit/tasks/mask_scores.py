"""Scores of masks that counts of pixels do not give: how well borders are followed."""

import math
from collections.abc import Callable

import numpy as np

BOUNDARY = 0.02  # of the image's diagonal


def near_boundary(maps: np.ndarray, ratio: float = BOUNDARY) -> np.ndarray:
    """Return which pixels are close to another class or to the image's border, bool.

    Boundary IoU (Cheng et al. 2021, arXiv 2103.16562) is the IoU of these pixels alone. As in its
    authors' code, close is a square of `2 d + 1` pixels around, where `d` is `ratio` of the
    diagonal, rounded, at least 1. The square is of one class where its least and its largest number
    are equal, which is the same for all classes at once.

    Args:
        maps: `(images, height, width)`, integers.
        ratio: Of the diagonal.

    >>> near_boundary(np.array([[[0, 0, 0, 0, 0, 1]] * 5])).astype(int)[0, 2].tolist()
    [1, 0, 0, 0, 1, 1]
    """
    height, width = maps.shape[1:]
    reach = max(round(ratio * math.hypot(height, width)), 1)
    near = np.ones(maps.shape, bool)
    inside = near[:, reach : height - reach, reach : width - reach]
    if inside.size:
        least, largest = (_of_squares(maps, 2 * reach + 1, f) for f in (np.minimum, np.maximum))
        np.not_equal(least, largest, out=inside)
    return near


def _of_squares(maps: np.ndarray, side: int, choose: Callable[..., np.ndarray]) -> np.ndarray:
    """Return the extreme of each square of so many pixels that is inside, by ever wider windows."""
    for _ in range(2):
        wide = 1
        while wide < side:
            step = min(wide, side - wide)
            maps = choose(maps[:, :-step], maps[:, step:])
            wide += step
        maps = maps.swapaxes(1, 2)
    return maps
