"""Bilinear resizing: by a matrix per axis, in a graph and in exports; and of a map as it grows."""

from collections.abc import Callable

import numpy as np

_MOST_SCORES = 2**22  # of pixels and classes, that are enlarged at once


def bilinear_matrix(before: int, after: int, align_corners: bool = False) -> np.ndarray:
    """Return the weights of each pixel for each one after, float32 `(after, before)`.

    Args:
        align_corners: Whether the centers of the first and last pixel stay where they are;
            otherwise the borders of the image do.

    >>> bilinear_matrix(2, 3, align_corners=True).tolist()
    [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    """
    places = _places(before, after, align_corners)
    return np.maximum(1 - np.abs(places[:, None] - np.arange(before)), 0).astype(np.float32)


class GrowingMap:
    """A map of a photograph's size from rows of answers, of which memory may not hold all.

    Probabilities are resized, bilinear, before any of them is chosen.

    Args:
        decide: Makes of answers `(rows, columns, size)` each pixel's value, `(rows, columns, ...)`.

    >>> growing = GrowingMap((2, 1), (3, 1), lambda answers: answers[..., 0])
    >>> growing.add(np.array([[[0.0]]]))
    >>> growing.add(np.array([[[3.0]]]))
    >>> growing.finished().ravel().tolist()
    [0.0, 1.5, 3.0]
    """

    def __init__(
        self,
        before: tuple[int, int],
        after: tuple[int, int],
        decide: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        (self._rows, self._columns) = map(_places, before, after)
        self._decide = decide
        self._waiting: np.ndarray | None = None
        self._begin = self._done = 0
        self._parts: list[np.ndarray] = []

    def add(self, answers: np.ndarray) -> None:
        """Take the next rows of answers, `(rows, columns, size)`."""
        rows = _between(answers.swapaxes(0, 1), self._columns).swapaxes(0, 1)
        rows = rows if self._waiting is None else np.concatenate([self._waiting, rows])
        last = self._begin + len(rows) - 1
        until = int(np.searchsorted(self._rows, last, side="right"))
        step = max(_MOST_SCORES // rows[0].size, 1)
        for begin in range(self._done, until, step):
            places = self._rows[begin : min(begin + step, until)] - self._begin
            self._parts.append(self._decide(_between(rows, places)))
        self._done = until
        if until < len(self._rows):  # the last of these rows is between this call and the next
            first = min(int(self._rows[until]), last + 1)  # some rows may be skipped
            self._waiting, self._begin = rows[first - self._begin :], first

    def finished(self) -> np.ndarray:
        """Return the map, `(height, width, ...)`, once all rows are there."""
        return np.concatenate(self._parts)


def resized_map(
    answer: np.ndarray, size: tuple[int, int], decide: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Return the map of an image from an answer `(rows, columns, size)` at any other size.

    What is a map of one number per pixel already, `(height, width)`, is resized by the nearest
    pixel; of several numbers, a map is an answer.
    """
    if answer.ndim == 2:
        rows, columns = (
            (np.arange(after) + 0.5) * before // after
            for before, after in zip(answer.shape, size, strict=True)
        )
        return answer[np.ix_(rows.astype(int), columns.astype(int))]
    growing = GrowingMap(answer.shape[:2], size, decide)
    growing.add(answer)
    return growing.finished()


def _places(before: int, after: int, align_corners: bool = False) -> np.ndarray:
    """Return where each pixel after lies among those before, ascending, float64 `(after,)`."""
    places = np.arange(after, dtype=np.float64)
    if align_corners:
        places *= (before - 1) / max(after - 1, 1)
    else:
        places = (places + 0.5) * before / after - 0.5
    return places.clip(0, before - 1)


def _between(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return what lies at places along the first axis, `(len(places), ...)`."""
    low = places.astype(int)
    part = (places - low).astype(np.float32).reshape(-1, *(1,) * (values.ndim - 1))
    return values[low] * (1 - part) + values[np.minimum(low + 1, len(values) - 1)] * part
