"""Expected calibration error and the reliability diagram (Guo et al. 2017)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from keras_vit._base.errors import check_positive
from keras_vit.evaluation.checks import check_labels, check_scores
from keras_vit.tasks.answer import Tally
from keras_vit.tasks.classification import most_probable


@dataclass(frozen=True)
class Calibration:
    """Confidence against accuracy, over predictions sorted into bins by their confidence.

    Attributes:
        error: The expected calibration error, from 0 (confidence equals accuracy) to 1.
        counts: `(bins,)` predictions per bin; bin i holds confidences above i / bins, up to and
            including (i + 1) / bins.
        confidence: `(bins,)` mean probability of the predicted class per bin; NaN in empty bins.
        accuracy: `(bins,)` accuracy per bin; NaN in empty bins.
    """

    error: float
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    @property
    def overconfidence(self) -> float:
        """Mean probability of the predicted class minus accuracy; below 0 for too low ones."""
        gaps = np.nan_to_num(self.confidence - self.accuracy)
        return float(np.average(gaps, weights=self.counts))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` was called of."""
        error, *columns = (
            np.array(values[name], float)  # null becomes NaN
            for name in ("expected_calibration_error", "counts", "confidence", "accuracy")
        )
        counts, confidence, accuracy = columns
        return cls(float(error), counts.astype(int), confidence, accuracy)

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON accepts them: None in empty bins."""
        return {
            "expected_calibration_error": self.error,
            "counts": self.counts.tolist(),
            "confidence": [None if np.isnan(v) else float(v) for v in self.confidence],
            "accuracy": [None if np.isnan(v) else float(v) for v in self.accuracy],
        }


def calibration(labels: Any, probabilities: Any, bins: int = 15) -> Calibration:
    """Expected calibration error of the predicted class, in bins of equal width.

    The mean over predictions of `|accuracy - confidence|` of their bin (Guo et al. 2017, "On
    Calibration of Modern Neural Networks", equation 3).

    Args:
        labels: Integer classes `(examples,)`.
        probabilities: `(examples, classes)`, rows that sum to 1.
        bins: Number of bins.

    Raises:
        ValueError: Shapes do not match, or rows are not probabilities.

    Example:

    >>> from keras_vit.evaluation import calibration
    >>> certain_and_half_correct = calibration([0, 1], [[1.0, 0.0], [1.0, 0.0]])
    >>> certain_and_half_correct.error, certain_and_half_correct.overconfidence
    (0.5, 0.5)
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not labels.size:
        raise ValueError(
            f"{labels.shape} labels do not match {probabilities.shape} probabilities. "
            "Give (examples,) and (examples, classes)."
        )
    check_labels(labels, probabilities.shape[1])
    check_scores(probabilities)
    sums = probabilities.sum(axis=1)
    if probabilities.min() < 0 or not np.allclose(sums, 1, atol=1e-3):
        raise ValueError(
            f"Rows sum to {sums.min():.3g} ... {sums.max():.3g}, with values down to "
            f"{probabilities.min():.3g}: not probabilities. Apply keras.ops.softmax to logits "
            "first."
        )
    best = most_probable(probabilities)
    confidence = probabilities[np.arange(len(labels)), best].astype(np.float64)
    return calibration_of({"labels": labels, "predictions": best, "probability": confidence}, bins)


def calibration_of(tally: Tally, bins: int = 15) -> Calibration:
    """Return `calibration` of what a task of one name per image keeps."""
    check_positive(bins=bins)
    confidence, correct = tally["probability"], tally["predictions"] == tally["labels"]
    # Half-open toward zero, as in the paper: a confidence of exactly 1 is in the last bin.
    index = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(index, confidence, bins) / counts
        accuracy = np.bincount(index, correct, bins) / counts
    gaps = np.abs(accuracy - mean_confidence)
    return Calibration(
        float(np.nansum(gaps * counts) / len(correct)), counts, mean_confidence, accuracy
    )
