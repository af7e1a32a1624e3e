"""Expected calibration error and the reliability diagram (Guo et al. 2017)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_vit.errors import check_positive
from keras_vit.evaluation.arrays import check_finite, check_labels


@dataclass(frozen=True)
class Calibration:
    """Confidence against accuracy, over predictions sorted into bins by their confidence.

    Attributes:
        error: The expected calibration error, from 0 (as sure as right) to 1.
        counts: `(bins,)` predictions in each bin; bin i holds confidences above i / bins, up to
            and with (i + 1) / bins.
        confidence: `(bins,)` mean probability of the predicted class in each bin; NaN in empty
            bins.
        accuracy: `(bins,)` share of right predictions in each bin; NaN in empty bins.
    """

    error: float
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON takes it: empty bins are None."""
        return {
            "expected_calibration_error": self.error,
            "counts": self.counts.tolist(),
            "confidence": [None if np.isnan(v) else float(v) for v in self.confidence],
            "accuracy": [None if np.isnan(v) else float(v) for v in self.accuracy],
        }


def calibration(labels: Any, probabilities: Any, bins: int = 15) -> Calibration:
    """Expected calibration error of the predicted class, in bins of equal width.

    The sum over bins of their share of the predictions times |accuracy - confidence| (Guo et al.
    2017, "On Calibration of Modern Neural Networks", equation 3).

    Args:
        labels: Integer classes `(examples,)`.
        probabilities: `(examples, classes)`, rows that sum to 1.
        bins: How many.

    Returns:
        The error, and what a reliability diagram shows.

    Raises:
        ValueError: Shapes do not match, or rows are not probabilities.

    Example:

    >>> from keras_vit.evaluation import calibration
    >>> sure_and_half_right = calibration([0, 1], [[1.0, 0.0], [1.0, 0.0]])
    >>> sure_and_half_right.error
    0.5
    """
    check_positive(bins=bins)
    labels, probabilities = probabilities_of(labels, probabilities)
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    # Half-open towards zero, as in the paper: a confidence of exactly 1 is in the last bin.
    index = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    counts = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        mean_confidence = np.bincount(index, confidence, bins) / counts
        accuracy = np.bincount(index, right, bins) / counts
    gaps = np.abs(accuracy - mean_confidence)
    return Calibration(
        float(np.nansum(gaps * counts) / len(labels)), counts, mean_confidence, accuracy
    )


def probabilities_of(labels: Any, probabilities: Any) -> tuple[np.ndarray, np.ndarray]:
    """Labels `(n,)` and float64 probabilities `(n, classes)`, or an error in words."""
    labels, probabilities = np.asarray(labels), np.asarray(probabilities, np.float64)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not labels.size:
        raise ValueError(
            f"{labels.shape} labels do not match {probabilities.shape} probabilities. "
            "Give (examples,) and (examples, classes)."
        )
    check_labels(labels, probabilities.shape[1])
    check_finite(probabilities)
    sums = probabilities.sum(axis=1)
    if probabilities.min() < 0 or not np.allclose(sums, 1, atol=1e-3):
        raise ValueError(
            f"Rows sum to {sums.min():.3g} ... {sums.max():.3g}, with values down to "
            f"{probabilities.min():.3g}: not probabilities. Apply keras.ops.softmax "
            "to logits first."
        )
    return labels, probabilities
