"""Which pixels lie in a polygon, by the rule of COCO's tools: Pillow's fills half a pixel more."""

import numpy as np

FINER = 5  # steps per pixel to which corners are rounded


def polygon_pixels(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return whether the center of each pixel lies in a polygon, bool `(height, width)`.

    Pixels equal those of pycocotools (`rleFrPoly`, by which COCO's published masks are made): a
    polygon is drawn at five times the size, a pixel is inside where an odd number of its edges pass
    above the center, and what reaches beyond the image is cut off.

    Args:
        points: `(corners, 2)`, x and y in pixels; the first pixel reaches from 0 to 1.

    >>> polygon_pixels(np.array([[1, 0], [4, 0], [4, 2], [1, 2]]), (3, 5)).astype(int).tolist()
    [[0, 1, 1, 1, 0], [0, 1, 1, 1, 0], [0, 0, 0, 0, 0]]
    """
    height, width = size
    start = np.trunc(FINER * np.asarray(points, np.float64) + 0.5).astype(np.int64)
    end = np.roll(start, -1, axis=0)
    column, row = _steps(start, end)
    # Between the columns of two steps the line passes above what is below it.
    moves = np.diff(column) != 0
    column = np.minimum(column[1:], column[:-1])[moves]
    row = np.minimum(row[1:], row[:-1])[moves]
    middle = FINER // 2
    inside = (column % FINER == middle) & (column >= 0) & (column < FINER * width)
    column, row = column[inside] // FINER, -((middle - row[inside]) // FINER)
    places = column * height + row.clip(0, height)
    crossed = np.bincount(places, minlength=width * height + 1)[: width * height]
    return (np.cumsum(crossed) % 2 == 1).reshape(width, height).T


def _steps(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return columns and rows of the points on the edges, a point per step of the longer side."""
    length = np.abs(end - start).max(axis=1)
    edge = np.repeat(np.arange(len(start)), length + 1)
    place = np.arange(len(edge)) - np.repeat(np.cumsum(length + 1) - length - 1, length + 1)
    is_steep = np.abs(end - start).argmax(axis=1)  # 1 where it is longer in y
    each = np.arange(len(start))
    low, high = start.copy(), end.copy()
    flipped = start[each, is_steep] > end[each, is_steep]
    low[flipped], high[flipped] = end[flipped], start[flipped]
    place = np.where(flipped[edge], length[edge] - place, place)
    slope = (high - low)[each, 1 - is_steep] / np.maximum(length, 1)
    along = low[each, is_steep][edge] + place
    across = low[each, 1 - is_steep][edge] + slope[edge] * place + 0.5
    both = np.stack([along, np.trunc(across).astype(np.int64)])
    return np.where(is_steep[edge], both[::-1], both)
