"""The loss and the metric of a positive number for every pixel, of which some are not measured."""

import math
from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_finite

CLOSE = 1.25  # the factor within which a depth counts as right


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

    def __init__(self, name: str = "delta1", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Add a batch."""
        logs, parts, has = log_depths_and_parts(y_true)
        difference = ops.abs(ops.cast(y_pred, "float32")[..., 0] - logs)
        close = ops.cast(difference < math.log(CLOSE), "float32")
        weights = has if sample_weight is None else has * ops.cast(sample_weight, "float32")
        return super().update_state(ops.sum(parts * close, axis=(1, 2)), weights)


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
