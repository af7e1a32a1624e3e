"""Thresholds of labels: the best for F1, drawn toward 0.5 as far as few images stand behind it.

The best threshold of a dozen images is mostly theirs. How much it is drawn toward 0.5 is chosen by
cross-fitting: thresholds of four fifths of the images predict the last fifth.
"""

import numpy as np

from keras_vit.tasks.scores import f1_scores

FOLDS, RESAMPLES = 5, 100
# As many images with the label weigh as much as 0.5 does; in the end it weighs all.
STRENGTHS = (0.0, 2.0, 5.0, 10.0, 20.0, 50.0, np.inf)
_SURE = 1e-6  # thresholds are drawn in log-odds, which 0 and 1 do not have


def best_threshold(present: np.ndarray, scores: np.ndarray) -> float:
    """Return the threshold, from which on a label is predicted, with the largest F1.

    Halfway between the two scores it separates, so that it does not hang on one example; of several
    the one nearest to 0.5.

    >>> best_threshold(np.array([True, True, False]), np.array([0.6, 0.3, 0.1]))
    0.20000000298023224
    """
    values, inverse = np.unique(scores.astype(np.float64), return_inverse=True)
    true = np.bincount(inverse, present)[::-1].cumsum()[::-1]  # from each value on
    predicted = np.bincount(inverse)[::-1].cumsum()[::-1]
    f1 = f1_scores(true, present.sum(), predicted)
    below = np.concatenate([[0.0], values[:-1]])
    middles = ((values + below) / 2).astype(np.float32)  # as answers are
    middles = np.where(middles > below, middles, values)
    best = np.flatnonzero(np.isclose(f1, f1.max(), rtol=0, atol=1e-12))
    return float(middles[best[np.abs(middles[best] - 0.5).argmin()]])


def shrunk_thresholds(present: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the threshold per label that is likely to be good for F1 on other images, `(labels,)`.

    The log-odds of `best_threshold` times `n / (n + strength)`, where `n` images have the label.
    The strength is the largest of `STRENGTHS` whose macro F1 on images that set nothing is not
    below the best one's by more than a standard error of the difference (the rule of Breiman et al.
    1984, by the bootstrap). With the last one every threshold is 0.5, as is that of a label that no
    image has.

    Args:
        present: Bool `(images, labels)`.
        scores: Probabilities `(images, labels)`.
    """
    predicted = np.zeros((len(STRENGTHS), *present.shape), bool)
    fold = np.random.default_rng(0).permutation(len(present)) % FOLDS
    for rows in (fold == f for f in range(FOLDS)):
        best, positives = _best_thresholds(present[~rows], scores[~rows])
        for strength, answers in zip(STRENGTHS, predicted, strict=True):
            limits = _shrunk(best, positives, strength).astype(np.float32)
            answers[rows] = scores[rows].astype(np.float32) >= limits
    return _shrunk(*_best_thresholds(present, scores), _chosen_strength(present, predicted))


def _best_thresholds(present: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the best threshold per label, and how many images have it; 0.5 where none has."""
    columns = zip(present.T, scores.T, strict=True)
    best = [best_threshold(y, x) if y.any() else 0.5 for y, x in columns]
    return np.array(best), present.sum(axis=0)


def _shrunk(best: np.ndarray, positives: np.ndarray, strength: float) -> np.ndarray:
    """Thresholds drawn toward 0.5 by a strength."""
    if not strength:
        return best
    p = np.clip(best, _SURE, 1 - _SURE)
    return 1 / (1 + ((1 - p) / p) ** (positives / (positives + strength)))


def _chosen_strength(present: np.ndarray, predicted: np.ndarray) -> float:
    """Return the largest strength whose F1 is not clearly worse than the best on these images.

    Args:
        present: `(images, labels)`.
        predicted: `(strengths, images, labels)`.
    """
    count = len(present)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), RESAMPLES)
    weights = np.concatenate([np.ones((1, count)), draws]).astype(np.float32)
    tested = present.any(axis=0)
    if not tested.any():
        return STRENGTHS[-1]
    present, totals = present[:, tested], weights @ present[:, tested]
    f1 = np.array(
        [
            f1_scores(weights @ (present & answers), totals, weights @ answers).mean(axis=1)
            for answers in predicted[..., tested]
        ]
    )
    lost = f1[f1[:, 0].argmax()] - f1
    is_close = lost[:, 0] <= lost[:, 1:].std(axis=1)
    return STRENGTHS[np.flatnonzero(is_close)[-1]]
