"""Losses and metrics of a positive number for every pixel, of which some are not measured."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_finite

CLOSE = 1.25  # the factor within which a depth counts as right
SCALES = 4  # at which gradients are compared, each of half the size of the one before
_NOTHING = 1e-3  # a spread of outputs that counts as none: a new head's are all the same
_FAR = 1e30  # sorts pixels that are not measured to the end


@keras.saving.register_keras_serializable(package="keras_vit")
class SiLog(keras.losses.Loss):
    """The scale-invariant logarithmic loss over the measured pixels of each image.

    `sqrt(mean(d**2) - balance * mean(d)**2)`, d the difference of the logarithms (Eigen et al.
    2014, "Depth Map Prediction from a Single Image using a Multi-Scale Deep Network", equation 4;
    its root, and half of it, as Depth Anything V2 trains metric depth). Of each image by itself,
    where Depth Anything V2 takes the pixels of a batch together: an image has the same loss in
    any batch. An image without a measured pixel has a loss of 0.

    Targets are numbers `(batch, height, width)`, 0 where nothing was measured (as are negative
    numbers, NaN and infinity); outputs are their logarithms, `(batch, height, width, 1)`.

    Args:
        balance: How much of a factor that is common to all pixels is forgiven, 0 to 1: with 1 the
            depth of an image is learned but for such a factor.
        **kwargs: Arguments of every Keras loss.

    Raises:
        ValueError: `balance` is not in [0, 1].

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.depth_losses import SiLog
    >>> depth = np.array([[[1.0, 2.0, 0.0]]])
    >>> round(float(SiLog()(depth, np.log([[[[2.0], [4.0], [9.0]]]]))), 4)  # log(2) / sqrt(2)
    0.4901
    """

    def __init__(self, balance: float = 0.5, name: str = "silog", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        check_finite(balance=balance)
        if not 0 <= balance <= 1:
            raise ValueError(f"balance={balance!r} must be a number from 0 to 1, such as 0.5.")
        self.balance = balance

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each image, `(batch,)`."""
        logs, parts, has = log_depths_and_parts(y_true)
        difference = ops.cast(y_pred, "float32")[..., 0] - logs
        mean = ops.sum(parts * difference, axis=(1, 2))
        # The variance by differences from the mean: the root never sees a number below 0.
        variance = ops.sum(parts * ops.square(difference - mean[:, None, None]), axis=(1, 2))
        square = variance + (1 - self.balance) * ops.square(mean)
        return has * ops.sqrt(square + 1e-12)  # whose slope at 0 is finite

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "balance": self.balance}


@keras.saving.register_keras_serializable(package="keras_vit")
class CloseShare(keras.metrics.Mean):
    """The share of an image's measured pixels within a factor of 1.25, the mean over images.

    Targets and outputs are those of `SiLog`; an image may have a weight.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.depth_losses import CloseShare
    >>> metric = CloseShare()
    >>> metric.update_state(np.array([[[1.0, 2.0, 0.0]]]), np.log([[[[1.2], [3.0], [9.0]]]]))
    >>> float(metric.result())
    0.5
    """

    _direction = "up"  # Keras looks it up where it is monitored

    def __init__(self, name: str = "delta1", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Add a batch."""
        logs, parts, has = log_depths_and_parts(y_true)
        difference = ops.abs(ops.cast(y_pred, "float32")[..., 0] - logs)
        close = ops.cast(difference < math.log(CLOSE), "float32")
        weights = has if sample_weight is None else has * ops.cast(sample_weight, "float32")
        return super().update_state(ops.sum(parts * close, axis=(1, 2)), weights)


@keras.saving.register_keras_serializable(package="keras_vit")
class AffineInvariant(keras.losses.Loss):
    """The loss of inverse depths that differ from an image's by a factor and a shift (MiDaS).

    The mean absolute difference of inverse depths from which their median is subtracted, and which
    are divided by their mean distance from it, over the measured pixels of each image
    (Ranftl et al. 2020, "Towards Robust Monocular Depth Estimation", equations 5 and 6; Depth
    Anything, equations 1 and 2); and `gradients` times the mean absolute differences, across and
    down, of that difference, summed over four scales (equation 11). An image without a measured
    pixel has a loss of 0.

    Targets are those of `SiLog`, depths; outputs are inverse depths, `(batch, height, width, 1)`.

    Args:
        gradients: The weight of gradients, 0 or above: edges become sharp by it.
        **kwargs: Arguments of every Keras loss.

    Raises:
        ValueError: `gradients` is negative or not finite.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.depth_losses import AffineInvariant
    >>> depth = np.array([[[1.0, 2.0, 4.0, 0.0]]])
    >>> round(float(AffineInvariant()(depth, 8 / (depth[..., None] + 1e-9) + 2)), 3)
    0.0
    """

    def __init__(
        self, gradients: float = 0.5, name: str = "affine_invariant", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_finite(gradients=gradients)
        if gradients < 0:
            raise ValueError(f"gradients={gradients!r} must be 0 or above, such as 0.5.")
        self.gradients = gradients

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of each image, `(batch,)`."""
        logs, parts, has = log_depths_and_parts(y_true)
        truth = _normalized(ops.exp(-logs), parts)
        difference = _normalized(ops.cast(y_pred, "float32")[..., 0], parts) - truth
        loss = ops.sum(parts * ops.abs(difference), axis=(1, 2))
        for scale in range(SCALES if self.gradients else 0):
            step = 2**scale
            loss = loss + self.gradients * _roughness(
                difference[:, ::step, ::step], parts[:, ::step, ::step] > 0
            )
        return has * loss

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "gradients": self.gradients}


def _normalized(maps: Any, parts: Any) -> Any:
    """Return maps of median 0, and a mean distance of 1 from it; 0 where nothing is measured."""
    flat, weights = (ops.reshape(x, (-1, maps.shape[1] * maps.shape[2])) for x in (maps, parts))
    measured = weights > 0
    order = ops.argsort(ops.stop_gradient(ops.where(measured, flat, _FAR)), axis=1)
    number = ops.sum(ops.cast(measured, "int32"), axis=1, keepdims=True)
    middle = ops.take_along_axis(order, ops.maximum(number - 1, 0) // 2, axis=1)
    away = ops.where(measured, flat - ops.take_along_axis(flat, middle, axis=1), 0.0)
    spread = ops.sum(weights * ops.abs(away), axis=1, keepdims=True)
    away = away / ops.sqrt(ops.square(spread) + _NOTHING**2)
    return ops.reshape(away, ops.shape(maps))


def _roughness(maps: Any, measured: Any) -> Any:
    """Return the mean absolute difference of adjacent pixels that are both measured, `(batch,)`."""
    known = ops.cast(measured, "float32")
    across = known[:, :, 1:] * known[:, :, :-1] * ops.abs(maps[:, :, 1:] - maps[:, :, :-1])
    down = known[:, 1:] * known[:, :-1] * ops.abs(maps[:, 1:] - maps[:, :-1])
    total = ops.sum(across, axis=(1, 2)) + ops.sum(down, axis=(1, 2))
    return total / ops.maximum(ops.sum(known, axis=(1, 2)), 1.0)


@keras.saving.register_keras_serializable(package="keras_vit")
class AlignedCloseShare(CloseShare):
    """`CloseShare` of inverse depths, after a factor and a shift of least squares per image.

    Targets and outputs are those of `AffineInvariant`.

    Example:

    >>> import numpy as np
    >>> from keras_vit.tasks.depth_losses import AlignedCloseShare
    >>> metric = AlignedCloseShare()
    >>> metric.update_state(np.array([[[1.0, 2.0, 4.0]]]), np.array([[[[10.0], [6.0], [4.0]]]]))
    >>> float(metric.result())
    1.0
    """

    def __init__(self, name: str = "aligned_delta1", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Add a batch."""
        logs, parts, _ = log_depths_and_parts(y_true)

        def mean(maps: Any) -> Any:
            return ops.sum(parts * maps, axis=(1, 2), keepdims=True)

        truth, outputs = ops.exp(-logs), ops.cast(y_pred, "float32")[..., 0]
        x, away = outputs - mean(outputs), truth - mean(truth)
        slope = ops.maximum(mean(x * away) / ops.maximum(mean(x * x), 1e-30), 0.0)
        nearest = ops.min(ops.where(parts > 0, truth, _FAR), axis=(1, 2), keepdims=True)
        aligned = ops.maximum(slope * x + mean(truth), nearest)
        return super().update_state(y_true, -ops.log(aligned)[..., None], sample_weight)


def log_depths_and_parts(depths: Any) -> tuple[Any, Any, Any]:
    """Return logarithms, what part of its image's measured pixels each is, and whether it has any.

    Args:
        depths: `(batch, height, width)`; logarithms are 0 where nothing was measured, as the parts.
    """
    depths = ops.cast(ops.convert_to_tensor(depths), "float32")
    measured = ops.logical_and(depths > 0, depths < float("inf"))  # nor NaN
    logs = ops.log(ops.where(measured, depths, ops.ones_like(depths)))
    counts = ops.cast(measured, "float32")
    total = ops.sum(counts, axis=(1, 2))
    parts = counts / ops.maximum(total, 1.0)[:, None, None]
    return logs, parts, ops.cast(total > 0, "float32")
