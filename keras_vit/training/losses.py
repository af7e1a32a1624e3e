"""Losses and the metric of the recipes: they take integer labels as well as one-hot rows."""

from typing import Any

import keras
from keras import ops

from keras_vit._base.errors import check_rate


def one_hot_labels(y_true: Any, y_pred: Any) -> Any:
    """Labels as rows of the shape of `y_pred`: integers become one-hot, rows stay as they are.

    Args:
        y_true: Integers `(batch,)` or `(batch, 1)` of any dtype, or rows `(batch, classes)`.
        y_pred: Scores `(batch, classes)`.

    Example:

    >>> import numpy as np
    >>> from keras_vit.training.losses import one_hot_labels
    >>> np.asarray(one_hot_labels(np.array([2, 0]), np.zeros((2, 3)))).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    classes = y_pred.shape[-1]
    if len(y_true.shape) == len(y_pred.shape):
        if y_true.shape[-1] == classes:
            return y_true
        if y_true.shape[-1] is None:  # rows, or an error
            return ops.reshape(y_true, ops.shape(y_pred))
        if y_true.shape[-1] == 1:
            y_true = ops.squeeze(y_true, axis=-1)
    return ops.one_hot(ops.cast(y_true, "int32"), classes, dtype="float32")


@keras.saving.register_keras_serializable(package="keras_vit")
class SoftmaxCrossentropy(keras.losses.CategoricalCrossentropy):
    """`keras.losses.CategoricalCrossentropy` of logits that takes integer labels, too.

    Labels are integers `(batch,)`, or rows `(batch, classes)` in [0, 1], one-hot or mixed.

    Args:
        label_smoothing: Fraction of a label that is spread over all classes, in [0, 1).
        **kwargs: Arguments of every Keras loss.

    Raises:
        ValueError: `label_smoothing` is out of range.

    Example:

    >>> import numpy as np
    >>> from keras_vit.training.losses import SoftmaxCrossentropy
    >>> loss = SoftmaxCrossentropy(label_smoothing=0.1)
    >>> logits = np.array([[1.0, 0.0], [0.0, 3.0]])
    >>> float(loss(np.array([0, 1]), logits)) == float(loss(np.eye(2), logits))
    True
    """

    takes_integer_labels = True

    def __init__(
        self, label_smoothing: float = 0.0, name: str = "softmax_crossentropy", **kwargs: Any
    ) -> None:
        check_rate(label_smoothing=label_smoothing)
        options = {"from_logits": True, "name": name, **kwargs}
        super().__init__(label_smoothing=label_smoothing, **options)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return super().call(one_hot_labels(y_true, y_pred), y_pred)


@keras.saving.register_keras_serializable(package="keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """One yes-or-no question per class: summed over the classes, averaged over the batch.

    Keras's `BinaryCrossentropy` averages over the classes, a thousand times less for ImageNet.
    Source: big_vision's `sigmoid_xent`, the loss of its pre-training.

    Takes integer labels `(batch,)` or labels `(batch, classes)` in [0, 1], one-hot, mixed or
    several of them 1, and logits `(batch, classes)`; computes in float32.

    Args:
        label_smoothing: As for `SoftmaxCrossentropy`, also for the other arguments.

    Raises:
        ValueError: `label_smoothing` is out of range.

    Example:

    >>> import numpy as np
    >>> from keras_vit.training.losses import SigmoidCrossentropy
    >>> round(float(SigmoidCrossentropy()(np.eye(2), np.zeros((2, 2)))), 4)  # two times log 2
    1.3863
    """

    takes_integer_labels = True

    def __init__(
        self, label_smoothing: float = 0.0, name: str = "sigmoid_crossentropy", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_rate(label_smoothing=label_smoothing)
        self.label_smoothing = label_smoothing
        self.from_logits = True

    def call(self, y_true: Any, y_pred: Any) -> Any:
        logits = ops.cast(y_pred, "float32")
        labels = ops.cast(one_hot_labels(y_true, y_pred), "float32")
        if self.label_smoothing:
            labels = labels * (1 - self.label_smoothing) + self.label_smoothing / labels.shape[-1]
        # -labels log p - (1 - labels) log(1 - p), with log p = -softplus(-logits).
        each = labels * ops.softplus(-logits) + (1 - labels) * ops.softplus(logits)
        return ops.sum(each, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "label_smoothing": self.label_smoothing}


@keras.saving.register_keras_serializable(package="keras_vit")
class LabelAccuracy(keras.metrics.CategoricalAccuracy):
    """`keras.metrics.CategoricalAccuracy` that takes integer labels, too.

    Example:

    >>> import numpy as np
    >>> from keras_vit.training.losses import LabelAccuracy
    >>> accuracy = LabelAccuracy()
    >>> accuracy.update_state(np.array([0, 1]), np.eye(2))
    >>> accuracy.update_state(np.eye(2), np.array([[1.0, 0.0], [1.0, 0.0]]))
    >>> float(accuracy.result())
    0.75
    """

    def __init__(self, name: str = "accuracy", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        return super().update_state(one_hot_labels(y_true, y_pred), y_pred, sample_weight)
