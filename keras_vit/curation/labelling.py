"""Which images to label next, by frozen features alone.

no labels ────► k-means of all images ────────────────────────┐
labels ──► ridge probe ──► images whose class flips where      ├──► of each cluster the image
           features are dropped ──► k-means of these ──────────┘    nearest to its center
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit._base.errors import check_non_negative, check_positive, check_rate, counted
from keras_vit.curation.clusters import MOST_FITTED, find_clusters
from keras_vit.curation.feature_index import FeatureIndex
from keras_vit.curation.nearest import BLOCK, label_rows, rows_of, unit_rows
from keras_vit.evaluation.linear_heads import RIDGE, Head, fit_head, left_out, stratified_folds

# The constants of the paper: dropouts per image, and the part of the features that each drops.
DROPOUTS, RATE = 3, 0.75
FEWEST = 2  # labeled images and classes from which on a probe is fitted


@dataclass(frozen=True)
class ToLabel:
    """The images to label next; those of large clusters first.

    Attributes:
        rows: int64 `(m,)`, as many as were asked for, or all where there are fewer.
        predicted: int32 `(m,)`, the class that a probe gives each; -1 without a probe.
        flipped: How many images without a label change their class under dropout; None without a
            probe.
        considered: How many images without a label were compared; of equal features, one.
    """

    rows: np.ndarray
    predicted: np.ndarray
    flipped: int | None
    considered: int


def next_to_label(
    features: FeatureIndex | np.ndarray,
    labels: Any = None,
    count: int = 50,
    *,
    dropouts: int = DROPOUTS,
    rate: float = RATE,
    seed: int = 0,
) -> ToLabel:
    """Choose the images whose labels teach a classifier most, of those without one.

    Without labels, k-means sorts the images into as many clusters as are asked for, and the image
    nearest to each center is chosen. With labels, a ridge probe is fitted to them, and answers
    every other image once with all features and `dropouts` times with the mean of all images in
    place of a random part of them. Images whose class differs in more than half of these are
    clustered, and again the nearest to each center are chosen; where they are too few, the others
    are clustered to make up the number. The model itself does not run: features are dropped, not
    units of the network. (The paper trains its probe with dropout, and drops to 0; a ridge probe
    is fitted without, and at 0 most of its answers change.)

    Args:
        features: An index, or an array `(n, dimension)`; rows are scaled to length 1. Of more than
            50,000 rows without a label, so many are drawn.
        labels: `(n,)` integers from 0, the class of each row, -1 where it is not known; None where
            none is. With fewer than two classes no probe is fitted.
        count: How many to choose.
        dropouts: How often features are dropped, odd, so that more than half is defined.
        rate: The part of the features that is dropped, in [0, 1).
        seed: Of the dropouts and the clusters: the same arguments give the same images.

    Raises:
        ImportError: scikit-learn is not installed.
        ValueError: Shapes do not match, a number is out of range or not finite, or every row has a
            label.

    Source: Gupte et al., "Revisiting Active Learning in the Era of Vision Foundation Models"
    (2024, arXiv 2401.14555), algorithm 1 (DropQuery) and section 3 (the first images by k-means).

    Example:

    >>> import numpy as np
    >>> from keras_vit.curation import next_to_label
    >>> features = np.array([[9, 1], [9, 2], [1, 9], [2, 9], [9, 1.5]])
    >>> sorted(next_to_label(features, count=2).rows.tolist())
    [2, 4]
    >>> sorted(next_to_label(features, [-1, -1, 0, -1, 1], count=3).rows.tolist())
    [0, 1, 3]
    """
    check_positive(count=count, dropouts=dropouts)
    check_non_negative(seed=seed)
    check_rate(rate=rate)
    if dropouts % 2 == 0:
        raise ValueError(
            f"dropouts={dropouts} must be odd, such as 3: of an even number, half may differ."
        )
    known = label_rows(features, np.full(len(features), -1) if labels is None else labels)
    unlabeled = np.flatnonzero(known < 0)
    if not len(unlabeled):
        raise ValueError(
            f"All {counted(len(known), 'image')} have a label: there is none to choose."
        )
    random = np.random.default_rng(seed)
    if len(unlabeled) > MOST_FITTED:
        unlabeled = np.sort(random.permutation(unlabeled)[:MOST_FITTED])
    rows = unit_rows(rows_of(features, unlabeled))
    different = np.sort(np.unique(rows, axis=0, return_index=True)[1])  # of copies, the first
    unlabeled, rows = unlabeled[different], rows[different]
    labeled = np.flatnonzero(known >= 0)
    predicted, flips = np.full(len(rows), -1, np.int32), np.zeros(len(rows), bool)
    has_probe = len(np.unique(known[labeled])) >= FEWEST
    if has_probe:
        probe = fit_probe(unit_rows(rows_of(features, labeled)), known[labeled])
        predicted, flips = _flips(probe, rows, dropouts, rate, random)
    chosen = _spread(rows, np.flatnonzero(flips), count, seed)
    if len(chosen) < count:
        rest = np.setdiff1d(np.flatnonzero(~flips), chosen)
        chosen = np.concatenate([chosen, _spread(rows, rest, count - len(chosen), seed)])
    flipped = int(flips.sum()) if has_probe else None
    return ToLabel(unlabeled[chosen], predicted[chosen], flipped, len(rows))


def fit_probe(x: np.ndarray, labels: np.ndarray) -> Head:
    """Return a ridge probe, whose penalty has the smallest squared error on left-out images."""
    y = np.unique(labels, return_inverse=True)[1]
    classes, targets = int(labels.max()) + 1, np.eye(int(y.max()) + 1)[y]
    folds = stratified_folds(y)
    ways = left_out(RIDGE, x, y, targets.shape[1], folds)
    setting = min((float(((scores - targets) ** 2).mean()), setting) for setting, scores in ways)[1]
    return fit_head(RIDGE, x, labels, classes, setting)


def _flips(
    probe: Head, rows: np.ndarray, dropouts: int, rate: float, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of each row, int32, and whether it differs in most of the dropouts."""
    predicted, flips, mean = [], [], rows.mean(axis=0)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        whole = probe.scores(block).argmax(axis=1)
        differs = np.zeros(len(block), int)
        for _ in range(dropouts):
            stays = random.random(block.shape, np.float32) >= rate
            differs += probe.scores(np.where(stays, block, mean)).argmax(axis=1) != whole
        predicted.append(whole.astype(np.int32))
        flips.append(differs > dropouts // 2)
    return np.concatenate(predicted), np.concatenate(flips)


def _spread(rows: np.ndarray, candidates: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the candidate nearest to the center of each of `count` clusters; all where fewer."""
    if len(candidates) <= count:
        return candidates
    groups = find_clusters(rows[candidates], count, seed)
    nearest = [groups.members(number)[:1] for number in range(len(groups.centers))]
    return candidates[np.concatenate(nearest)]
