"""Segments from the queries of an EoMT head: the objects of an image one by one."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit._base.errors import check_rate
from keras_vit.tasks.bilinear import resized_map
from keras_vit.tasks.classification import softmax
from keras_vit.tasks.multilabel import sigmoid
from keras_vit.tasks.pixel_losses import IGNORED


def panoptic_segments(
    mask_logits: Any,
    class_logits: Any,
    size: tuple[int, int],
    *,
    stuff: Sequence[int] = (),
    score: float = 0.8,
    inside: float = 0.5,
    overlap: float = 0.8,
) -> np.ndarray:
    """Return the class and the number of the segment in each pixel, int32 `(height, width, 2)`.

    A query is kept whose most probable class is not that of no object, and has a probability above
    `score`. A pixel is of the kept query with the largest probability of class times mask, where
    that of the mask is at least `inside`. A segment is dropped where others win a part of its mask,
    so that at most `overlap` of it is left. Numbers are from 1 on in the order of the queries, 0
    for `stuff`; a pixel of no segment has the class 255 and the number 0.

    Equal to `post_process_panoptic_segmentation` of transformers' EoMT for images that are
    stretched to the model's size, as they are here.

    Args:
        mask_logits: `(rows, columns, queries)`, an entry of the model's feature `mask_logits`.
        class_logits: `(queries, classes + 1)`, that of `class_logits`.
        size: Height and width of the result.
        stuff: Classes whose segments are one, such as sky.
        score: In [0, 1), as `inside` and `overlap`.
        inside: Of a pixel's mask.
        overlap: Of a mask's pixels.

    Raises:
        ValueError: Shapes do not match, or a number is out of range.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.query_segments import panoptic_segments
    >>> masks = np.array([[[9.0, -9.0], [-9.0, 9.0]]])
    >>> panoptic_segments(masks, 9 * np.eye(3)[[1, 1]], (1, 2)).tolist()
    [[[1, 1], [1, 2]]]
    """
    check_rate(score=score, inside=inside, overlap=overlap)
    maps, logits = (np.asarray(x, np.float32) for x in (mask_logits, class_logits))
    if maps.ndim != 3 or logits.ndim != 2 or maps.shape[-1] != len(logits):
        raise ValueError(
            f"Masks {maps.shape} and classes {logits.shape} are not of one image: give (rows, "
            "columns, queries) and (queries, classes + 1)."
        )
    probabilities = softmax(logits)
    classes, scores = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    is_object = (classes < logits.shape[1] - 1) & (scores > score)
    classes, scores = classes[is_object], scores[is_object]
    segments = np.full((*size, 2), (IGNORED, 0), np.int32)
    if not is_object.any():
        return segments
    whole = np.zeros(len(classes), np.int64)  # pixels of each mask

    def decide(rows: np.ndarray) -> np.ndarray:
        masks = sigmoid(rows)
        whole[:] += (masks >= inside).sum(axis=(0, 1))
        query = (scores * masks).argmax(axis=-1)
        is_inside = np.take_along_axis(masks, query[..., None], axis=-1)[..., 0] >= inside
        return 2 * query + is_inside

    query, is_inside = np.divmod(resized_map(maps[..., is_object], size, decide), 2)
    won, number = np.bincount(query.ravel(), minlength=len(classes)), 0
    for i in range(len(classes)):
        pixels = (query == i) & (is_inside == 1)
        if pixels.any() and won[i] / whole[i] > overlap:
            number += classes[i] not in stuff
            segments[pixels] = (classes[i], 0 if classes[i] in stuff else number)
    return segments
