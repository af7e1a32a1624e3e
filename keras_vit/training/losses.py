"""The loss of the released pre-training that Keras does not have; softmax's is Keras's own."""

from typing import Any

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """One yes-or-no question a class: summed over the classes, averaged over the batch.

    Keras's `BinaryCrossentropy` averages over the classes, a thousand times less for ImageNet.
    Source: big_vision's `sigmoid_xent`, the loss of its pre-training.

    Takes labels `(batch, classes)` in [0, 1], one-hot, mixed or several of them 1, and logits
    `(batch, classes)`; computes in float32.

    Args:
        label_smoothing: Share of a label that is spread over all classes, in [0, 1).
        reduction: As for every Keras loss.
        name: Name of the loss.

    Example:

    >>> import numpy as np
    >>> from keras_vit.training.losses import SigmoidCrossentropy
    >>> round(float(SigmoidCrossentropy()(np.eye(2), np.zeros((2, 2)))), 4)  # two times log 2
    1.3863
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        reduction: str = "sum_over_batch_size",
        name: str = "sigmoid_crossentropy",
        **kwargs: Any,
    ) -> None:
        super().__init__(reduction=reduction, name=name, **kwargs)
        self.label_smoothing = label_smoothing

    def call(self, y_true: Any, y_pred: Any) -> Any:
        logits = ops.cast(y_pred, "float32")
        labels = ops.cast(y_true, "float32")
        if self.label_smoothing:
            labels = labels * (1 - self.label_smoothing) + self.label_smoothing / labels.shape[-1]
        # -labels log p - (1 - labels) log(1 - p), with log p = -softplus(-logits).
        each = labels * ops.softplus(-logits) + (1 - labels) * ops.softplus(logits)
        return ops.sum(each, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}
