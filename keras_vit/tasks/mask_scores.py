"""Scores of masks that counts of pixels do not give: of boundaries, and of objects one by one."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from keras_vit.tasks.answer import Columns

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


def panoptic_quality(
    true: Iterable[Any], predicted: Iterable[Any], size: int, *, stuff: Sequence[int] = ()
) -> Columns:
    """Return panoptic quality, and what it is made of, per class (Kirillov et al. 2019).

    A true and a predicted segment of one class match where their IoU is above 0.5. SQ is the mean
    IoU of the matches, RQ the F1 of segments, and PQ the product of both. Pixels of no known class
    are in no union, and a predicted segment that is not matched and lies in them by more than half
    is not counted: as in the authors' `panopticapi`.

    Args:
        true: Per image the class and the number of the object in each pixel, integers
            `(height, width, 2)`; a class that is not from 0 to `size` - 1, such as 255, is not
            known.
        predicted: The same of the answers, such as those of `query_segments.panoptic_segments`.
        size: How many classes there are.
        stuff: Classes of which an image has one segment, whatever the numbers.

    Returns:
        `PQ`, `SQ` and `RQ`, not a number of a class without segments, and the number of segments
        that are `matched`, `missed` and `invented`: `(size,)` each. Take `np.nanmean` of a column.

    Raises:
        ValueError: Images are not such arrays, or not as many or not as large as the answers.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.mask_scores import panoptic_quality
    >>> true = np.array([[[[0, 1], [0, 1], [0, 1], [1, 0], [1, 0]]]])
    >>> answered = np.array([[[[0, 7], [0, 7], [0, 8], [1, 0], [1, 0]]]])
    >>> panoptic_quality(true, answered, 2)["PQ"].round(3).tolist()
    [0.444, 1.0]
    """
    total = np.zeros((4, size))
    for maps in zip(true, predicted, strict=True):
        pair = [np.asarray(each) for each in maps]
        if any(x.ndim != 3 or x.shape != (*pair[0].shape[:2], 2) or x.dtype.kind not in "iu"
               for x in pair):  # fmt: skip
            raise ValueError(
                f"Segments {pair[0].shape} of {pair[0].dtype} and {pair[1].shape} of "
                f"{pair[1].dtype} are not integers (height, width, 2) of one size: give the class "
                "and the number of the object in each pixel."
            )
        first, second = (_segments(each, size, stuff) for each in pair)
        total += _matches(first, second, size)
    iou, matched, missed, invented = total
    with np.errstate(invalid="ignore"):
        recognized = matched / (matched + 0.5 * missed + 0.5 * invented)
    quality = np.where(np.isnan(recognized), np.nan, iou / np.maximum(matched, 1))
    counts = dict(zip(("matched", "missed", "invented"), total[1:].astype(int), strict=True))
    return {"PQ": quality * recognized, "SQ": quality, "RQ": recognized, **counts}


def _segments(pairs: np.ndarray, size: int, stuff: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each segment, the first -1 of what is not known; and each pixel's."""
    classes, numbers = pairs[..., 0].astype(np.int64), pairs[..., 1].astype(np.int64)
    known = (classes >= 0) & (classes < size)
    keys = classes * 2**32 + np.where(np.isin(classes, stuff), 0, numbers)
    different, places = np.unique(keys[known], return_inverse=True)
    pixels = np.zeros(classes.shape, np.int64)
    pixels[known] = places + 1
    return np.append(-1, different // 2**32), pixels


def _matches(
    true: tuple[np.ndarray, np.ndarray], predicted: tuple[np.ndarray, np.ndarray], size: int
) -> np.ndarray:
    """Return the sum of IoU, and matched, missed and invented segments per class, `(4, size)`."""
    (classes, pixels), (answered, answers) = true, predicted
    shape = len(classes), len(answered)
    both = np.bincount((pixels * shape[1] + answers).ravel(), minlength=math.prod(shape))
    both = both.reshape(shape)
    areas = both.sum(axis=0)
    union = areas + both.sum(axis=1)[:, None] - both - both[0]
    fits = (classes[:, None] == answered) & (classes[:, None] >= 0) & (2 * both > union)
    iou = np.where(fits, both / np.maximum(union, 1), 0).sum(axis=1)
    missed = ~fits.any(axis=1)
    invented = ~fits.any(axis=0) & (2 * both[0] <= areas)
    return np.stack(
        [
            np.bincount(which[1:], weights[1:], size)
            for which, weights in (
                (classes, iou),
                (classes, ~missed),
                (classes, missed),
                (answered, invented),
            )
        ]
    )
