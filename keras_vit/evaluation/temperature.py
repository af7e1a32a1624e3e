"""Temperature scaling (Guo et al. 2017): probabilities that are as sure as they are right."""

from typing import Any

import keras
import numpy as np

from keras_vit._base.errors import check_above_zero, check_rate
from keras_vit.evaluation.checks import check_labels, check_scores, row_slices
from keras_vit.models.head import DENSE_HEADS

# Temperatures that are searched: beyond them, images are too few or labels are wrong.
RANGE = (0.05, 20.0)


def fit_temperature(labels: Any, logits: Any, smoothing: float = 0.0) -> float:
    """Return the temperature by which to divide logits for the smallest log-loss on these images.

    Fit it on images that were not trained on, and that no accuracy is reported for. It does not
    change which class is the most probable (Guo et al. 2017, "On Calibration of Modern Neural
    Networks", section 4.2).

    Args:
        labels: Integer classes `(images,)`.
        logits: `(images, classes)`.
        smoothing: Part of each label, from 0 to below 1, that is spread over all classes: of a few
            images that are all right, the log-loss alone would ask for probabilities of 1.

    Returns:
        The temperature, from 0.05 to 20, and above 1 for a model that was too sure of its classes.

    Raises:
        ValueError: Shapes do not match, there is no image, logits are NaN or infinite, or
            `smoothing` is out of range.

    Example:

    >>> from keras_vit.evaluation import fit_temperature
    >>> half_right = [[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [4.0, 0.0]]
    >>> fit_temperature([0, 0, 1, 1], half_right)
    20.0
    """
    from scipy.optimize import minimize_scalar
    from scipy.special import logsumexp

    labels, logits = np.asarray(labels), np.asarray(logits)
    if logits.ndim != 2 or not len(labels) or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"labels {labels.shape} do not go with logits {logits.shape}: give one label per row, "
            "and at least one row."
        )
    check_scores(logits)
    check_labels(labels, logits.shape[1])
    check_rate(smoothing=smoothing)
    right = logits[np.arange(len(labels)), labels].astype(np.float64)
    if smoothing:
        right = (1 - smoothing) * right + smoothing * logits.mean(axis=1, dtype=np.float64)

    def log_loss(inverse: float) -> float:
        sums = [
            logsumexp(inverse * logits[rows].astype(np.float64), axis=1)
            for rows in row_slices(logits)
        ]
        return float(np.mean(np.concatenate(sums) - inverse * right))

    # Convex in the inverse of the temperature. Beyond the bounds the best is a bound.
    low, high = 1 / RANGE[1], 1 / RANGE[0]
    inside = minimize_scalar(log_loss, bounds=(low, high), method="bounded").x
    best = min((low, high, float(inside)), key=log_loss)
    return round(1 / best, 6)


def divide_logits(model: keras.Model, temperature: float) -> None:
    """Divides a classifier's logits by a temperature, for good: the head's weights are divided.

    So every file of the model has it, in each layout and exported format, and prediction takes no
    more time. Prediction sets of the task are left out: they were of the other probabilities.

    Args:
        model: A classifier of this package.
        temperature: Of `fit_temperature`; above 0.

    Raises:
        ValueError: The temperature is not above 0, or the model does not have a head in float.

    Example:

    >>> import keras_vit, numpy as np
    >>> model = keras_vit.VisionTransformer(
    ...     patch_size=8, hidden_dim=16, depth=1, num_heads=2, num_classes=3,
    ...     input_shape=(32, 32, 3))
    >>> model.get_layer("head").set_weights([np.ones((16, 3)), np.ones(3)])
    >>> keras_vit.evaluation.divide_logits(model, 2.0)
    >>> float(model.get_layer("head").bias[0])
    0.5
    """
    check_above_zero(temperature=temperature)
    heads = [layer for layer in model.layers if layer.name in DENSE_HEADS]
    if not heads or any(layer.quantization_mode is not None for layer in heads):
        raise ValueError(
            f"{model.name} does not have a head in floating point, whose weights could be divided: "
            "give a classifier that is not quantized."
        )
    for head in heads:
        for variable in head.weights:
            variable.assign(keras.ops.divide(variable, temperature))
    if task := getattr(model, "task", None):
        model.task = task.uncalibrated()
